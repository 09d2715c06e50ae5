// SPDX-License-Identifier: Apache-2.0
#include "http/presence_stream.h"

#include "base/sse.h"
#include "http/stream.h"

/// Events that are made into one piece of text at most.
#define PAGE_EVENTS 1000

static enum request_verdict resumed(struct request *r, enum wake_reason reason);
static enum request_verdict caught_up(struct request *r, enum wake_reason reason);

static bool send_session(struct request *r, struct presence *p) {
  struct buf text = {0};
  sse_message(&text, -1, "session", p->session.data, p->session.len);
  buf_reset(&p->session); // a snapshot need not say it again
  return stream_send(r, &text, NULL, NULL);
}

static bool send_snapshot(struct request *r, struct presence *p) {
  struct buf prefix = {0}, suffix = {0};
  sse_open(&prefix, p->answer.revision, "snapshot");
  presence_suffix(p, &suffix);
  sse_close(&suffix);
  return stream_send(r, &prefix, p->answer.body, &suffix);
}

/// Sends the answer. @return false when the stream is over
static bool send_answer(struct request *r, struct presence *p) {
  switch (p->answer.mode) {
  case MODE_SNAPSHOT:
    presence_count(p);
    if (!send_snapshot(r, p))
      return false;
    break;
  case MODE_EVENTS:
    presence_count(p);
    if (!stream_send(r, NULL, p->answer.body, NULL))
      return false;
    break;
  case MODE_UNCHANGED:
    break;
  }
  return stream_keepalive(r, p->answer.revision);
}

static bool begin(struct request *r, struct presence *p) {
  if (stream_open(r))
    return true;
  if (!stream_begin(r, NULL)) {
    if (!r->replied)
      request_unavailable(r, "out of memory; try again");
    return false;
  }
  return p->session.len == 0 || send_session(r, p);
}

/// Nothing can be said now. A stream ends here; its client comes back to where it was.
static enum request_verdict give_up(struct request *r, enum presence_step step) {
  if (stream_open(r))
    return REQUEST_DONE;
  if (step == PRESENCE_TOO_MANY_WAITING)
    request_too_many_waiting(r);
  else
    request_unavailable(r, "the room could not be read; try again");
  return REQUEST_DONE;
}

static enum request_verdict go_on(struct request *r, struct presence *p, enum presence_step step) {
  while (step == PRESENCE_READY) {
    if (!begin(r, p) || !send_answer(r, p) || p->hurry)
      return REQUEST_DONE;
    if (stream_behind(r) || (p->answer.mode == MODE_EVENTS && p->answer.more)) {
      stream_park_behind(r, caught_up);
      return REQUEST_PARKED;
    }
    step = presence_next(p, stream_keepalive_due(r));
  }
  return step == PRESENCE_WAITING ? REQUEST_PARKED : give_up(r, step);
}

static bool leaving(enum wake_reason reason) {
  return reason == WAKE_GONE || reason == WAKE_DRAINING;
}

/// What was queued is on its way: room for more.
static enum request_verdict caught_up(struct request *r, enum wake_reason reason) {
  struct presence *p = r->state;
  if (reason == WAKE_DEADLINE || leaving(reason))
    return REQUEST_DONE;
  return go_on(r, p, presence_next(p, stream_keepalive_due(r)));
}

static enum request_verdict resumed(struct request *r, enum wake_reason reason) {
  struct presence *p = r->state;
  // What has come meanwhile is for the next stream, which begins where this one ends.
  if (stream_open(r) && leaving(reason))
    return REQUEST_DONE;
  return go_on(r, p, presence_resume(p, reason));
}

enum request_verdict presence_stream(struct request *r, struct presence *p) {
  bool given;
  int64_t id;
  if (!stream_last_id(r, &given, &id))
    return REQUEST_DONE;
  if (given) {
    p->query.has_since = true;
    p->query.since = id;
  }
  if (!request_count_waiting(r))
    return give_up(r, PRESENCE_TOO_MANY_WAITING);
  p->counted = true;
  p->query.stream = true;
  p->query.limit = PAGE_EVENTS;
  p->wait_until_us = 0; // the first answer is for now: it says 503, or begins the stream
  p->resumed = resumed;
  return go_on(r, p, presence_begin(p));
}
