// SPDX-License-Identifier: Apache-2.0
/// @file
/// One HTTP request, from its first header to its last byte. It lives as MHD's con_cls, belongs to one worker thread,
/// and is freed in the completion callback and nowhere else.
///
/// A handler is called once the whole request has arrived. It answers with request_reply() and returns REQUEST_DONE, or
/// it parks the request and returns REQUEST_PARKED; then its `resumed` function is called in the same thread after
/// request_wake(), once, with the reason, and the same choice is before it. WAKE_GONE and WAKE_DRAINING are told at
/// most once to each request: one that cannot answer yet, since its job is still with the writer, simply parks again.
#ifndef SH_HTTP_REQUEST_H
#define SH_HTTP_REQUEST_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/body.h"
#include "base/buf.h"
#include "base/heap.h"
#include "base/util.h"

struct worker;
struct route;
struct conn;
struct stream;
struct credential;
struct refusal;
struct input_problem;

enum request_verdict { REQUEST_DONE, REQUEST_PARKED };

enum wake_reason {
  WAKE_DONE,     ///< a job of the request is finished (the job's deliver function called request_wake())
  WAKE_ROOM,     ///< the watched room may have changed
  WAKE_DEADLINE, ///< the time given to request_park() is over
  WAKE_GONE,     ///< the client has closed, or half-closed, its connection: answer now
  WAKE_DRAINING, ///< the server is stopping: answer now
};

/// Path parameters at most: /rooms/{room}/leases/{user}/{session}.
#define PATH_PARAMS_MAX 3
#define QUERY_PARAMS_MAX 8
/// Values of a query parameter that may be repeated.
#define REPEATED_MAX 1000
/// Bytes of an Allow header's value and its NUL.
#define ALLOW_SIZE 64

struct query_param {
  char *name, *value; ///< decoded once, NUL-terminated, valid UTF-8
};

struct request {
  struct worker *worker;
  struct MHD_Connection *connection;
  const struct route *route;
  char *params[PATH_PARAMS_MAX]; ///< decoded and checked identifiers, in the order of the pattern
  struct query_param query[QUERY_PARAMS_MAX];
  int n_query;
  char **repeated; ///< decoded values of the parameter that the route lets repeat, in order
  size_t n_repeated;
  struct buf body;                     ///< the whole body
  const struct credential *credential; ///< what the caller has shown; NULL: nothing (auth=none, open routes)
  char id[REQUEST_ID_MAX + 1];         ///< X-Request-Id, taken or made
  int64_t arrived_us;                  ///< monotonic
  bool head_only;                      ///< HEAD: as GET, but never parked and without a body
  bool answers_first;                  ///< what it answers (a heartbeat) goes before what it watches: the handler asks
                                       ///< standing_check() by itself
  void *state;                         ///< the handler's own
  void (*free_state)(void *state);     ///< called in the completion callback when state is set
  enum request_verdict (*resumed)(struct request *r, enum wake_reason reason);

  // The HTTP room's own (http/inside.h).
  struct conn *conn;
  char *target;         ///< the request target as it was sent; the query's strings point into it
  char *path;           ///< its path, still encoded
  const char *received; ///< where libmicrohttpd keeps the target; only while the head is read
  char *raw_query;
  int phase; ///< enum request_phase
  int find;  ///< enum route_result
  const char *find_problem;
  char allow[ALLOW_SIZE];
  char content_encoding[16];
  const char *cors_origin;       ///< what Access-Control-Allow-Origin says; NULL: nothing
  bool preflight;                ///< an allowed origin asks what it may send
  const struct refusal *refusal; ///< answered in the handler's place; the body is thrown away (http/access.h)
  const char *refusal_reason;    ///< for the log: static text, nothing of the client's
  int retry_after_s;             ///< of a refusal; 0: any
  unsigned authority_generation; ///< of the keys by which the credential was judged
  int64_t park_until_us;         ///< as the handler wanted it
  bool cut_short;                ///< parked for less, until its credential is over
  uint64_t body_bytes;           ///< received so far, kept or not
  bool replied;
  bool suspended; ///< in MHD
  bool to_resume; ///< in the loop's list of woken ones
  bool told_gone, told_draining;
  enum wake_reason reason;
  struct heap_node deadline;
  struct room_watch *watch;
  struct request *watch_prev, *watch_next, *prev, *next;
  bool patient;  ///< waits for news of its room, not for a read: can wait for the end of a window
  bool its_turn; ///< was woken with its room, and has not answered since
  bool counted_waiting;
  bool own_limit;        ///< was not counted since its credential, or its address, has as many waiting as it may
  struct stream *stream; ///< its reply is a stream (http/stream.h); NULL: not, or no longer
};

/// The decoded value of a query parameter, or NULL. (A repeated or unknown one was refused before the handler.)
const char *request_query(const struct request *r, const char *name);

/// Appends the values of a header, which may come in several lines, joined by commas. The worker's thread.
void request_header_list(const struct request *r, const char *name, struct buf *out);

/// Parks the request until request_wake() or @a deadline_us (monotonic). The caller returns REQUEST_PARKED.
void request_park(struct request *r, int64_t deadline_us,
                  enum request_verdict (*resumed)(struct request *r, enum wake_reason reason));

/// Ends the wait; `resumed` runs later in this loop turn. Worker's thread; only for a parked request, further calls
/// before it runs do nothing.
void request_wake(struct request *r, enum wake_reason reason);

/// From now on, while it is parked, a wake of the room wakes the request. Call before tail_look(), so that no wake is
/// lost. Ends by itself with the request, or with request_unwatch(). @return false when memory ran out
bool request_watch(struct request *r, const char *room_id);
void request_unwatch(struct request *r);

/// In the place of request_watch(): a wake of the room's cursors wakes the request. Call before cursors_look().
bool request_watch_cursors(struct request *r, const char *room_id);

/// Ends a watching request (ROUTE_WATCHES) whose caller may watch no more, with a problem; a stream gets it as an event
/// `problem` and ends. For `resumed`, in the place of its reply.
void request_expel(struct request *r, int status, const char *code, const char *detail);

/// Counts the request among the waiting polls and streams. @return false when as many wait already as may: of all of
/// them (longpoll_max_waiting), or of this credential or, without one, this address (longpoll_max_per_credential)
bool request_count_waiting(struct request *r);

/// Answers a request that was not counted: 503, or 429 where the limit was its credential's own.
void request_too_many_waiting(struct request *r);

// -- replies (reply.c). One for each request. X-Request-Id and Cache-Control are added. ----------------------------

/// Headers of a reply beyond those that every reply has. NULL values are left out.
struct reply_headers {
  const char *etag;
  const char *allow;
  const char *content_type; ///< NULL: application/json
  const char *www_authenticate;
  int retry_after_s;                   ///< 0: none
  const char *content_security_policy; ///< of a page for people, which gets its other headers with it
  bool close;                          ///< Connection: close
  bool revalidate;                     ///< may be kept if it is asked for again each time (it has an etag)
};

/// JSON text in @a b, which is taken over and empty afterwards.
void request_reply_json(struct request *r, int status, struct buf *b, const struct reply_headers *headers);

/// A shared body followed by a part of this reader's own; @a body's reference is taken over.
void request_reply_shared(struct request *r, int status, struct body *body, struct buf *suffix,
                          const struct reply_headers *headers);

/// No body: 304, 204.
void request_reply_empty(struct request *r, int status, const struct reply_headers *headers);

/// application/problem+json; 401 gets a WWW-Authenticate, 429 and 503 a Retry-After. @a code is stable; @a field names
/// the culprit or is NULL;
/// @a detail says what to do.
void request_problem(struct request *r, int status, const char *code, const char *field, const char *detail_fmt, ...)
    PRINTF_LIKE(5, 6);

/// The same with further headers.
void request_problem_headers(struct request *r, int status, const char *code, const char *field,
                             const struct reply_headers *headers, const char *detail_fmt, ...) PRINTF_LIKE(6, 7);

/// 503 with Retry-After, code "unavailable": a fault of ours that the client can retry.
void request_unavailable(struct request *r, const char *detail);

/// The detail where a job of the database has failed (DB_FAILED): to wait for longer would not have helped.
#define DETAIL_FAILED "the database refused it, or memory ran out; the server's log says why"

/// 400 for a body that cannot be taken; 503 where it could not be read for want of memory.
void request_bad_input(struct request *r, const struct input_problem *problem);

/// A problem object as text that is still open, for further members; the caller closes it with jo_object_end().
void problem_open(struct buf *b, int status, const char *code, const char *field, const char *detail,
                  const char *request_id);

/// The whole object, for items of a batch.
void problem_json(struct buf *b, int status, const char *code, const char *field, const char *detail,
                  const char *request_id);

#endif
