// SPDX-License-Identifier: Apache-2.0
/// @file
/// How a question about a room's presence is answered (CONTRACT §4): from memory where that will do, else with the
/// reads that it takes, and after waiting for news where that is asked for. GET /rooms/{room}/presence is this and
/// parameters; a heartbeat with `since` embeds the same answer in its own reply.
///
/// A handler keeps a struct presence in its state, fills the first part and calls presence_begin(). On
/// PRESENCE_WAITING the request is parked and the handler returns REQUEST_PARKED; its own `resumed` function is called
/// in the end and hands the reason to presence_resume(), which says the same kind of thing again. In every case
/// presence_clear() is called when the state is freed. Worker's thread.
///
///     static enum request_verdict resumed(struct request *r, enum wake_reason reason) {
///       struct my_state *state = r->state;
///       return answer(r, presence_resume(&state->presence, reason));
///     }
#ifndef SH_HTTP_PRESENCE_H
#define SH_HTTP_PRESENCE_H

#include "base/buf.h"
#include "http/request.h"
#include "live/tail.h"

/// A room that could not be read for so long after the request's arrival is unavailable, microseconds.
#define PRESENCE_LOAD_US INT64_C(4500000)

enum presence_step {
  PRESENCE_WAITING,          ///< the request is parked
  PRESENCE_READY,            ///< answer.body and presence_suffix() are the reply; the body alone of a stream's events
  PRESENCE_UNAVAILABLE,      ///< the room could not be read in time: 503
  PRESENCE_TOO_MANY_WAITING, ///< as many polls wait already as may: request_too_many_waiting()
};

/// Zero-initialise.
struct presence {
  // The question. Strings live as long as this struct. query.asked_us is from when on the answer must be true: the
  // request's arrival, or the commit of what it wrote; query.covered and query.snapshot_us are set here.
  struct request *request;
  struct presence_query query;
  int64_t wait_until_us;            ///< monotonic; how long to wait for news at the head; 0: not at all
  const char *user_id, *session_id; ///< whose state to add on reconnect; both or neither
  enum request_verdict (*resumed)(struct request *r, enum wake_reason reason);

  // The answer, after PRESENCE_READY. The reference to the body is this struct's until presence_take_body().
  struct tail_answer answer;

  // Private to presence.c.
  enum { PRESENCE_LOOKING, PRESENCE_READING_EVENTS, PRESENCE_READING_SESSION } stage;
  struct request_read *read;
  int64_t deadline_us; ///< of the reads
  int64_t head;        ///< the head as the database once told it to this request; -1: not yet
  char epoch[EPOCH_SIZE];
  bool hurry;   ///< the client or the server is going: no more waiting for news
  bool counted; ///< among the waiting polls
  int reads;    ///< begun since the request last stood at the head
  struct buf session;
};

/// Reads the parameters `since` and `epoch` of the request into @a query.
/// @return true; or false when a 400 has been sent
bool presence_parse_cursor(struct request *r, struct presence_query *query);

enum presence_step presence_begin(struct presence *p);
enum presence_step presence_resume(struct presence *p, enum wake_reason reason);

/// After an answer, for a stream: asks for what comes after it, and waits so long for it.
enum presence_step presence_next(struct presence *p, int64_t wait_until_us);

/// Hands over the body's reference.
struct body *presence_take_body(struct presence *p);

/// What follows the body: `reason`, `session`, `server_time`, `next_poll_ms` and the closing `}`; begins with a comma.
void presence_suffix(const struct presence *p, struct buf *out);

/// Counts the answer in stillhere_replies_total. Once for each that is sent.
void presence_count(const struct presence *p);

/// Gives up what is under way and releases everything.
void presence_clear(struct presence *p);

#endif
