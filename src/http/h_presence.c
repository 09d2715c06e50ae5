// SPDX-License-Identifier: Apache-2.0
// GET /rooms/{room}/presence: the parameters, the entity tag, the reply. How it is answered is in presence.c.
#include <stdlib.h>
#include <string.h>

#include "base/metric.h"
#include "base/rand.h"
#include "base/strict.h"
#include "http/etag.h"
#include "http/handlers.h"
#include "http/presence.h"
#include "http/presence_stream.h"
#include "http/stream.h"
#include "http/worker.h"

#define LIMIT_MAX 1000

static bool bad(struct request *r, const char *name, const char *must) {
  request_problem(r, 400, "bad_parameter", name, "%s %s", name, must);
  return false;
}

// Reads an integer parameter that may be missing; `*out` keeps its value then.
static bool parse_int(struct request *r, const char *name, int64_t min, int64_t max, int64_t *out, const char *must) {
  const char *value = request_query(r, name);
  return !value || strict_int(value, strlen(value), min, max, out) || bad(r, name, must);
}

static bool parse_kinds(struct request *r, unsigned *kinds) {
  const char *s = request_query(r, "kinds");
  *kinds = s ? 0 : EVENT_KINDS_ALL;
  while (s) {
    char name[32];
    size_t len = strcspn(s, ",");
    if (len >= sizeof name)
      return bad(r, "kinds", "names an unknown kind of event");
    memcpy(name, s, len);
    name[len] = '\0';
    int kind = event_kind_parse(name);
    if (kind < 0)
      return bad(r, "kinds", "names an unknown kind of event");
    if (*kinds & (1u << kind))
      return bad(r, "kinds", "names a kind of event twice");
    *kinds |= 1u << kind;
    s = s[len] == ',' ? s + len + 1 : NULL;
  }
  return true;
}

static bool parse_view(struct request *r, enum view *view) {
  static const char *const names[VIEW_KINDS] = {
      [VIEW_SESSIONS] = "sessions", [VIEW_USERS] = "users", [VIEW_COUNT] = "count"};
  const char *value = request_query(r, "view");
  *view = VIEW_SESSIONS;
  if (!value)
    return true;
  for (int i = 0; i < VIEW_KINDS; i++) {
    if (strcmp(value, names[i]) == 0) {
      *view = (enum view)i;
      return true;
    }
  }
  return bad(r, "view", "must be sessions, users or count");
}

static bool parse_ident(struct request *r, const char *name, const char **out) {
  *out = request_query(r, name);
  const char *problem = *out ? ident_problem(*out, strlen(*out)) : NULL;
  return !problem || bad(r, name, problem);
}

static bool parse_session(struct request *r, struct presence *p) {
  if (!parse_ident(r, "session_id", &p->session_id) || !parse_ident(r, "user_id", &p->user_id))
    return false;
  if (p->session_id && !p->user_id)
    return bad(r, "user_id", "is needed with session_id");
  if (p->user_id && !p->session_id)
    return bad(r, "session_id", "is needed with user_id");
  return true;
}

// However many digits: what is longer than the longest wait is cut to it.
static bool parse_wait(struct request *r, const struct config *config, int64_t *wait_ms) {
  const char *value = request_query(r, "wait_ms");
  *wait_ms = config->longpoll_default_wait_ms;
  if (!value)
    return true;
  if (value[0] == '\0' || value[strspn(value, "0123456789")] != '\0')
    return bad(r, "wait_ms", "must be milliseconds in plain digits");
  if (!strict_int(value, strlen(value), 0, config->longpoll_max_wait_ms, wait_ms))
    *wait_ms = config->longpoll_max_wait_ms;
  return true;
}

static bool parse(struct request *r, struct presence *p) {
  const struct config *config = r->worker->service->config;
  int64_t wait_ms, limit = LIMIT_MAX;
  if (!presence_parse_cursor(r, &p->query) || !parse_wait(r, config, &wait_ms) ||
      !parse_int(r, "limit", 1, LIMIT_MAX, &limit, "must be between 1 and 1000") || !parse_kinds(r, &p->query.kinds) ||
      !parse_view(r, &p->query.view) || !parse_session(r, p))
    return false;
  p->query.limit = (int)limit;
  p->wait_until_us = r->arrived_us + jitter_up(wait_ms, 16) * 1000;
  return true;
}

static const char *if_none_match(const struct request *r) {
  return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_IF_NONE_MATCH);
}

static enum request_verdict not_modified(struct request *r, const char *etag) {
  metric_add(METRIC_REPLY_NOT_MODIFIED, 1);
  request_reply_empty(r, 304, &(struct reply_headers){.etag = etag});
  return REQUEST_DONE;
}

static enum request_verdict reply(struct request *r, struct presence *p) {
  char etag[ETAG_SIZE];
  etag_format(etag, p->answer.epoch, p->answer.revision);
  // The state of a session moves without the room's revision: a reply with one has no tag.
  const struct reply_headers headers = {.etag = p->session_id ? NULL : etag};
  // A snapshot that answers a bad cursor is news, whatever the client has: 304 would leave it with that cursor.
  bool corrects = p->answer.mode == MODE_SNAPSHOT && p->answer.reason != REASON_REQUESTED;
  if (headers.etag && !corrects && etag_listed(if_none_match(r), etag))
    return not_modified(r, etag);
  presence_count(p);
  struct buf suffix = {0};
  presence_suffix(p, &suffix);
  request_reply_shared(r, 200, presence_take_body(p), &suffix, &headers);
  return REQUEST_DONE;
}

static enum request_verdict go_on(struct request *r, enum presence_step step) {
  switch (step) {
  case PRESENCE_WAITING:
    return REQUEST_PARKED;
  case PRESENCE_READY:
    return reply(r, r->state);
  case PRESENCE_UNAVAILABLE:
    request_unavailable(r, "the room could not be read; try again");
    break;
  case PRESENCE_TOO_MANY_WAITING:
    request_too_many_waiting(r);
    break;
  }
  return REQUEST_DONE;
}

static enum request_verdict resumed(struct request *r, enum wake_reason reason) {
  return go_on(r, presence_resume(r->state, reason));
}

static void free_state(void *state) {
  presence_clear(state);
  free(state);
}

enum request_verdict h_presence_get(struct request *r) {
  struct presence *p = calloc(1, sizeof *p);
  if (!p) {
    request_unavailable(r, "out of memory; try again");
    return REQUEST_DONE;
  }
  r->state = p;
  r->free_state = free_state;
  p->request = r;
  p->resumed = resumed;
  p->query.room_id = r->params[0];
  p->query.asked_us = r->arrived_us;
  if (!parse(r, p))
    return REQUEST_DONE;
  if (stream_wanted(r))
    return presence_stream(r, p);
  // A snapshot that the client has already is known by the head alone.
  char epoch[EPOCH_SIZE], etag[ETAG_SIZE];
  int64_t head;
  if (!p->query.has_since && !p->session_id && if_none_match(r) &&
      tail_fresh_head(r->worker->service->tail, &p->query, &head, epoch)) {
    etag_format(etag, epoch, head);
    if (etag_listed(if_none_match(r), etag))
      return not_modified(r, etag);
  }
  return go_on(r, presence_begin(p));
}
