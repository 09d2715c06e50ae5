// SPDX-License-Identifier: Apache-2.0
#include "http/presence.h"

#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "base/metric.h"
#include "base/rand.h"
#include "base/strict.h"
#include "http/fold.h"
#include "http/presence_read.h"
#include "http/worker.h"
#include "live/events_text.h"

// Reads that one request may begin before it gives up; each that succeeds brings it nearer to an answer.
#define READS_MAX 5

// When a client that got an answer should ask again, if it does not long-poll.
#define NEXT_POLL_MS 30000

bool presence_parse_cursor(struct request *r, struct presence_query *query) {
  const char *since = request_query(r, "since"), *epoch = request_query(r, "epoch");
  query->has_since = since != NULL;
  if (since && !strict_int(since, strlen(since), 0, REVISION_MAX, &query->since)) {
    request_problem(r, 400, "bad_parameter", "since", "since must be a room revision in plain digits, at most 2^53-1");
    return false;
  }
  if (epoch && !request_id_sane(epoch, strlen(epoch))) {
    request_problem(r, 400, "bad_parameter", "epoch", "epoch must be the word that an earlier reply gave");
    return false;
  }
  query->epoch = epoch;
  return true;
}

static struct tail *tail_of(const struct presence *p) {
  return p->request->worker->service->tail;
}

static enum presence_step park(struct presence *p, int64_t until_us) {
  request_park(p->request, until_us, p->resumed);
  return PRESENCE_WAITING;
}

static void drop_read(struct presence *p) {
  request_read_drop(p->read);
  p->read = NULL;
}

// The reply stands; what is left is the session's state, where it was asked for.
static enum presence_step answered(struct presence *p) {
  request_unwatch(p->request);
  if (!p->session_id)
    return PRESENCE_READY;
  p->deadline_us = clock_mono_us() + PRESENCE_LOAD_US;
  p->stage = PRESENCE_READING_SESSION;
  p->read = presence_read_session(p);
  return p->read ? park(p, p->deadline_us) : PRESENCE_UNAVAILABLE;
}

static enum presence_step unchanged(struct presence *p) {
  struct buf text = {0};
  if (!p->query.stream)
    unchanged_text(&text, p->query.room_id, p->epoch, p->query.since, p->head);
  p->answer.body = body_take(&text);
  p->answer.mode = MODE_UNCHANGED;
  p->answer.revision = p->head;
  memcpy(p->answer.epoch, p->epoch, EPOCH_SIZE);
  return p->answer.body ? answered(p) : PRESENCE_UNAVAILABLE;
}

static enum presence_step at_head(struct presence *p) {
  struct request *r = p->request;
  p->head = p->query.covered = p->answer.revision;
  p->reads = 0;
  // From here on the cursor belongs to this epoch, whether the client named it or not.
  memcpy(p->epoch, p->answer.epoch, EPOCH_SIZE);
  p->query.epoch = p->epoch;
  if (p->hurry || r->head_only || clock_mono_us() >= p->wait_until_us)
    return unchanged(p);
  if (!p->counted && !request_count_waiting(r)) {
    request_unwatch(r);
    return PRESENCE_TOO_MANY_WAITING;
  }
  p->counted = true;
  request_stand_at_head(r);
  return park(p, p->wait_until_us);
}

// There are events, but the room is in a storm and has had its wake: whether the request is to wait for the end of the
// window. Not one that must not wait, or is far behind, or has had only the first of more.
static bool hold(struct presence *p) {
  struct request *r = p->request;
  const struct tail_answer *answer = &p->answer;
  int64_t until_us = request_hold_until(r);
  if (until_us == 0 || answer->mode != MODE_EVENTS || answer->more || p->hurry || r->head_only)
    return false;
  if (!p->query.stream && p->wait_until_us < until_us)
    until_us = p->wait_until_us;
  const struct config *config = r->worker->service->config;
  bool far_behind = answer->revision - p->query.since > config->replay_limit / 2;
  if (p->wait_until_us == 0 || far_behind || clock_mono_us() >= until_us)
    return false;
  p->counted = p->counted || request_count_waiting(r);
  if (!p->counted)
    return false;
  body_unref(p->answer.body);
  p->answer.body = NULL;
  p->deadline_us = until_us + PRESENCE_LOAD_US;
  request_hold(r);
  request_park(r, until_us, p->resumed);
  return true;
}

// The room is being read. One that stood at the head before keeps its place until its time is over, and then has an
// answer all the same: what it knows was true, and the next poll goes on from there.
static enum presence_step loading(struct presence *p) {
  bool knows = p->head >= 0;
  int64_t until_us = knows ? p->wait_until_us : p->deadline_us;
  if ((knows && p->hurry) || clock_mono_us() >= until_us)
    return knows ? unchanged(p) : PRESENCE_UNAVAILABLE;
  request_await_read(p->request);
  return park(p, until_us);
}

// Begins a read; `deadline_us` is the load deadline, or for one that has waited at the head as long from now.
static bool may_read(struct presence *p) {
  if (p->head >= 0)
    p->deadline_us = clock_mono_us() + PRESENCE_LOAD_US;
  return ++p->reads <= READS_MAX;
}

static enum presence_step read_own_events(struct presence *p) {
  request_unwatch(p->request);
  p->stage = PRESENCE_READING_EVENTS;
  p->read = may_read(p) ? presence_read_events(p) : NULL;
  return p->read ? park(p, p->deadline_us) : PRESENCE_UNAVAILABLE;
}

static enum presence_step read_snapshot_for_all(struct presence *p) {
  if (!may_read(p)) {
    tail_snapshot_failed(tail_of(p), p->query.room_id, p->query.view);
    return PRESENCE_UNAVAILABLE;
  }
  return presence_read_snapshot(p) ? loading(p) : PRESENCE_UNAVAILABLE;
}

static enum presence_step look(struct presence *p) {
  p->stage = PRESENCE_LOOKING;
  if (!request_watch(p->request, p->query.room_id))
    return PRESENCE_UNAVAILABLE;
  switch (tail_look(tail_of(p), p->request->worker->id, &p->query, &p->answer)) {
  case TAIL_REPLY:
    return hold(p) ? PRESENCE_WAITING : answered(p);
  case TAIL_AT_HEAD:
    return at_head(p);
  case TAIL_READ_SNAPSHOT:
    return read_snapshot_for_all(p);
  case TAIL_READ_EVENTS:
    return read_own_events(p);
  case TAIL_LOADING:
    break;
  }
  return loading(p);
}

static enum presence_step take_events(struct presence *p) {
  struct events_read *read = CONTAINER_OF(p->read, struct events_read, read);
  if (read->read.job.status != DB_OK)
    return PRESENCE_UNAVAILABLE;
  if (read->from < read->pruned)
    tail_pruned(tail_of(p), p->query.room_id, read->pruned);
  else if (!read->body)
    p->query.covered = read->head;
  bool usable = read->from >= read->pruned && strcmp(read->epoch, p->answer.epoch) == 0;
  if (!usable || !read->body) {
    drop_read(p);
    return look(p);
  }
  // It may be ahead of memory, and nothing older than what was said here may be said elsewhere.
  tail_hint(tail_of(p), p->query.room_id, read->head);
  p->answer.body = body_ref(read->body);
  p->answer.mode = MODE_EVENTS;
  p->answer.revision = read->revision;
  p->answer.more = read->more;
  drop_read(p);
  return answered(p);
}

static enum presence_step take_session(struct presence *p) {
  struct session_read *read = CONTAINER_OF(p->read, struct session_read, read);
  if (read->read.job.status != DB_OK)
    return PRESENCE_UNAVAILABLE;
  p->session = read->text;
  read->text = (struct buf){0};
  drop_read(p);
  return PRESENCE_READY;
}

enum presence_step presence_begin(struct presence *p) {
  p->head = -1;
  p->query.covered = 0;
  p->query.snapshot_us = p->query.asked_us;
  p->deadline_us = p->request->arrived_us + PRESENCE_LOAD_US;
  return look(p);
}

enum presence_step presence_next(struct presence *p, int64_t wait_until_us) {
  body_unref(p->answer.body);
  p->answer.body = NULL;
  buf_reset(&p->session);
  p->session_id = p->user_id = NULL;
  memcpy(p->epoch, p->answer.epoch, EPOCH_SIZE);
  p->head = p->query.since = p->answer.revision;
  p->query.has_since = true;
  p->query.epoch = p->epoch;
  p->query.covered = 0;
  p->query.asked_us = p->query.snapshot_us = clock_mono_us();
  p->wait_until_us = wait_until_us;
  p->reads = 0;
  return look(p);
}

enum presence_step presence_resume(struct presence *p, enum wake_reason reason) {
  if (reason == WAKE_GONE || reason == WAKE_DRAINING)
    p->hurry = true;
  if (p->stage == PRESENCE_LOOKING) {
    if (p->head >= 0 && p->reads == 0)
      p->query.snapshot_us = clock_mono_us();
    return look(p);
  }
  if (!p->read->done) {
    if (clock_mono_us() < p->deadline_us)
      return park(p, p->deadline_us);
    drop_read(p);
    return PRESENCE_UNAVAILABLE;
  }
  return p->stage == PRESENCE_READING_EVENTS ? take_events(p) : take_session(p);
}

struct body *presence_take_body(struct presence *p) {
  struct body *body = p->answer.body;
  p->answer.body = NULL;
  return body;
}

static const char *reason_word(enum snapshot_reason reason) {
  switch (reason) {
  case REASON_REQUESTED:
    return "requested";
  case REASON_PRUNED:
    return "pruned";
  case REASON_TOO_MANY:
    return "too_many";
  case REASON_AHEAD:
    return "ahead";
  case REASON_EPOCH:
    break;
  }
  return "epoch";
}

void presence_suffix(const struct presence *p, struct buf *out) {
  // The first key's comma is written here, since the body is in another buffer.
  buf_puts(out, ",\"server_time\":");
  jo_time(out, clock_db_us());
  jo_kint(out, "next_poll_ms", jitter_down(NEXT_POLL_MS, 5));
  if (p->answer.mode == MODE_SNAPSHOT)
    jo_kstr(out, "reason", reason_word(p->answer.reason));
  if (p->session.len > 0) {
    jo_key(out, "session");
    jo_raw(out, p->session.data, p->session.len);
  }
  jo_object_end(out);
}

void presence_count(const struct presence *p) {
  static const enum metric by_reason[] = {[REASON_REQUESTED] = METRIC_REPLY_SNAPSHOT_REQUESTED,
                                          [REASON_PRUNED] = METRIC_REPLY_SNAPSHOT_PRUNED,
                                          [REASON_TOO_MANY] = METRIC_REPLY_SNAPSHOT_TOO_MANY,
                                          [REASON_AHEAD] = METRIC_REPLY_SNAPSHOT_AHEAD,
                                          [REASON_EPOCH] = METRIC_REPLY_SNAPSHOT_EPOCH};
  switch (p->answer.mode) {
  case MODE_EVENTS:
    metric_add(METRIC_REPLY_EVENTS, 1);
    break;
  case MODE_UNCHANGED:
    metric_add(METRIC_REPLY_UNCHANGED, 1);
    break;
  case MODE_SNAPSHOT:
    metric_add(by_reason[p->answer.reason], 1);
    break;
  }
}

void presence_clear(struct presence *p) {
  drop_read(p);
  body_unref(p->answer.body);
  p->answer.body = NULL;
  buf_free(&p->session);
}
