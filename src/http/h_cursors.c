// SPDX-License-Identifier: Apache-2.0
// GET /rooms/{room}/cursors: as a poll, and as a stream. Either is answered only while memory has every event of the
// room that this instance has heard of, so that no cursor is shown whose session's end has been.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "base/rand.h"
#include "base/strict.h"
#include "http/fold.h"
#include "http/handlers.h"
#include "http/stream.h"
#include "http/worker.h"
#include "live/cursors.h"

/// A room that could not be read for so long after the request's arrival is unavailable.
#define LOAD_US INT64_C(4500000)

/// When a client that does not long-poll should ask again.
#define NEXT_POLL_MS 30000

struct cursor_watch {
  struct cursors_query query;
  bool stream;
  bool stood; ///< it has been told that there is nothing new: there is an answer without another look
  bool hurry; ///< the client or the server is going: no more waiting
  int64_t wait_until_us;
};

static enum request_verdict look(struct request *r, struct cursor_watch *w);

static enum request_verdict resumed(struct request *r, enum wake_reason reason) {
  struct cursor_watch *w = r->state;
  w->query.fresh = false;
  w->hurry = w->hurry || reason == WAKE_GONE || reason == WAKE_DRAINING;
  if (stream_open(r) && w->hurry)
    return REQUEST_DONE; // what has come meanwhile is for the client's next stream
  return look(r, w);
}

static enum request_verdict park(struct request *r, int64_t until_us) {
  request_park(r, until_us, resumed);
  return REQUEST_PARKED;
}

static int64_t earlier(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static enum request_verdict too_many(struct request *r) {
  request_too_many_waiting(r);
  return REQUEST_DONE;
}

// -- polls ---------------------------------------------------------------------------------------------------------

static enum request_verdict reply(struct request *r, struct body *body) {
  struct buf suffix = {0};
  buf_puts(&suffix, ",\"server_time\":"); // the comma is written here, since the body is in another buffer
  jo_time(&suffix, clock_db_us());
  jo_kint(&suffix, "next_poll_ms", jitter_down(NEXT_POLL_MS, 5));
  jo_object_end(&suffix);
  request_reply_shared(r, 200, body, &suffix, NULL);
  return REQUEST_DONE;
}

/// Nothing is known to have changed.
static enum request_verdict reply_unchanged(struct request *r, const struct cursor_watch *w) {
  struct buf text = {0};
  jo_object(&text);
  jo_kstr(&text, "room_id", w->query.room_id);
  jo_kint(&text, "seq", w->query.since);
  jo_key(&text, "cursors");
  jo_array(&text);
  jo_array_end(&text);
  jo_key(&text, "gone");
  jo_array(&text);
  jo_array_end(&text);
  struct body *body = body_take(&text);
  if (body != NULL)
    return reply(r, body);
  request_unavailable(r, "out of memory; try again");
  return REQUEST_DONE;
}

static enum request_verdict poll_on(struct request *r, struct cursor_watch *w, bool says,
                                    const struct cursors_answer *answer) {
  if (says || w->hurry || r->head_only || clock_mono_us() >= w->wait_until_us)
    return reply(r, answer->body);
  body_unref(answer->body);
  if (!request_count_waiting(r))
    return too_many(r);
  w->stood = true;
  return park(r, earlier(w->wait_until_us, answer->not_before));
}

// -- streams -------------------------------------------------------------------------------------------------------

/// @return false when the stream is over, or a problem was sent
static bool send_news(struct request *r, struct cursor_watch *w, bool says, const struct cursors_answer *answer) {
  if (!stream_open(r) && !stream_begin(r, NULL)) {
    if (!r->replied)
      request_unavailable(r, "out of memory; try again");
    return false;
  }
  if (says && !stream_send(r, NULL, answer->body, NULL))
    return false;
  if (says) {
    w->query.has_since = true;
    w->query.since = answer->seq;
    w->query.fresh = true;
  }
  return stream_keepalive(r, w->query.has_since ? w->query.since : -1);
}

static enum request_verdict stream_on(struct request *r, struct cursor_watch *w, bool says,
                                      const struct cursors_answer *answer) {
  bool open = send_news(r, w, says, answer);
  body_unref(answer->body);
  if (!open)
    return REQUEST_DONE;
  if (stream_behind(r)) {
    stream_park_behind(r, resumed);
    return REQUEST_PARKED;
  }
  // After news one more look: it registers this worker for the next.
  return says ? look(r, w) : park(r, earlier(stream_keepalive_due(r), answer->not_before));
}

// -- both ----------------------------------------------------------------------------------------------------------

/// The room is being read.
static enum request_verdict loading(struct request *r, struct cursor_watch *w) {
  request_await_read(r);
  int64_t now_us = clock_mono_us();
  if (stream_open(r))
    return stream_keepalive(r, -1) ? park(r, stream_keepalive_due(r)) : REQUEST_DONE;
  int64_t until_us = w->stood ? w->wait_until_us : r->arrived_us + LOAD_US;
  if (now_us < until_us && !(w->stood && w->hurry))
    return park(r, until_us);
  if (w->stood)
    return reply_unchanged(r, w);
  request_unavailable(r, "the room could not be read; try again");
  return REQUEST_DONE;
}

static enum request_verdict look(struct request *r, struct cursor_watch *w) {
  const struct service *service = r->worker->service;
  struct cursors_answer answer;
  bool watching = request_watch(r, w->query.room_id);
  if (watching && !tail_current(service->tail, r->worker->id, w->query.room_id, r->arrived_us))
    return loading(r, w);
  watching = watching && request_watch_cursors(r, w->query.room_id);
  bool says = watching && cursors_look(service->cursors, r->worker->id, &w->query, &answer);
  if (!watching || answer.body == NULL) {
    if (!stream_open(r))
      request_unavailable(r, "out of memory; try again");
    return REQUEST_DONE;
  }
  return w->stream ? stream_on(r, w, says, &answer) : poll_on(r, w, says, &answer);
}

static bool parse(struct request *r, struct cursor_watch *w) {
  const struct config *config = r->worker->service->config;
  const char *since = request_query(r, "since"), *wait = request_query(r, "wait_ms");
  const char *user_id = request_query(r, "user_id"); // for whom it watches (http/standing.h)
  const char *problem = user_id != NULL ? ident_problem(user_id, strlen(user_id)) : NULL;
  if (problem != NULL) {
    request_problem(r, 400, "bad_parameter", "user_id", "user_id %s", problem);
    return false;
  }
  int64_t wait_ms = config->longpoll_default_wait_ms;
  w->query.has_since = since != NULL;
  if (since != NULL && !strict_int(since, strlen(since), 0, REVISION_MAX, &w->query.since)) {
    request_problem(r, 400, "bad_parameter", "since", "since must be a seq in plain digits, at most 2^53-1");
    return false;
  }
  if (wait != NULL && (wait[0] == '\0' || wait[strspn(wait, "0123456789")] != '\0')) {
    request_problem(r, 400, "bad_parameter", "wait_ms", "wait_ms must be milliseconds in plain digits");
    return false;
  }
  // However many digits: what is longer than the longest wait is cut to it.
  if (wait != NULL && !strict_int(wait, strlen(wait), 0, config->longpoll_max_wait_ms, &wait_ms))
    wait_ms = config->longpoll_max_wait_ms;
  w->wait_until_us = r->arrived_us + jitter_up(wait_ms, 16) * 1000;
  return true;
}

/// The Last-Event-ID wins over `since`: a browser that reconnects repeats the URL of its first request.
static bool parse_stream(struct request *r, struct cursor_watch *w) {
  bool given;
  int64_t id;
  if (!stream_last_id(r, &given, &id))
    return false;
  if (given) {
    w->query.has_since = true;
    w->query.since = id;
  }
  w->query.stream = w->stream = true;
  if (request_count_waiting(r))
    return true;
  (void)too_many(r);
  return false;
}

enum request_verdict h_cursors_get(struct request *r) {
  struct cursor_watch *w = calloc(1, sizeof *w);
  if (w == NULL) {
    request_unavailable(r, "out of memory; try again");
    return REQUEST_DONE;
  }
  r->state = w;
  r->free_state = free;
  w->query.room_id = r->params[0];
  w->query.fresh = true;
  if (!parse(r, w) || (stream_wanted(r) && !parse_stream(r, w)))
    return REQUEST_DONE;
  return look(r, w);
}
