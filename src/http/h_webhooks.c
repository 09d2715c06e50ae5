// SPDX-License-Identifier: Apache-2.0
// GET /webhooks, GET /webhooks/dead and POST /webhooks/replay: what webhooks have still to tell, what was given up, and
// sending it again.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "base/strict.h"
#include "http/change.h"
#include "http/handlers.h"
#include "http/input.h"
#include "http/json_read.h"
#include "store/webhook.h"

#define LIST_DEFAULT 100
#define LIST_MAX 1000
/// A replay takes no further portion after so much of its request's time.
#define REPLAY_US INT64_C(3000000)

static void end(struct buf *out) {
  jo_ktime(out, "server_time", clock_db_us());
  jo_object_end(out);
}

// -- GET
// ---------------------------------------------------------------------------------------------------------------

static enum db_status query_targets(struct db *db, const void *args, struct buf *out) {
  (void)args;
  static const struct webhook_targets none;
  struct webhook_targets *set = webhook_targets_get();
  enum db_status status = read_webhooks(db, set != NULL ? set : &none, out);
  webhook_targets_put(set);
  end(out);
  return status;
}

enum request_verdict h_webhooks_get(struct request *r) {
  return json_read(r, query_targets, calloc(1, 1));
}

struct dead_args {
  char target[WEBHOOK_NAME_MAX + 1]; ///< empty: all
  bool from_start;
  struct webhook_cursor after;
  int limit;
};

static enum db_status query_dead(struct db *db, const void *args, struct buf *out) {
  const struct dead_args *a = args;
  enum db_status status =
      read_webhooks_dead(db, a->target[0] != '\0' ? a->target : NULL, a->from_start ? NULL : &a->after, a->limit, out);
  end(out);
  return status;
}

/// The names of targets that there may be. Whether one is configured does not matter: what is dead outlives it.
static bool good_target(const char *name) {
  size_t len = strlen(name);
  return len >= 1 && len <= WEBHOOK_NAME_MAX && ident_problem(name, len) == NULL;
}

enum request_verdict h_webhooks_dead_get(struct request *r) {
  const char *target = request_query(r, "target"), *after = request_query(r, "after");
  const char *limit_text = request_query(r, "limit");
  struct dead_args a = {.from_start = after == NULL};
  int64_t limit = LIST_DEFAULT;
  if (target != NULL && !good_target(target)) {
    request_problem(r, 400, "bad_parameter", "target", "target must be the name of a target");
    return REQUEST_DONE;
  }
  if (after != NULL && !webhook_cursor_parse(after, &a.after)) {
    request_problem(r, 400, "bad_parameter", "after", "after must be what next said");
    return REQUEST_DONE;
  }
  if (limit_text != NULL && !strict_int(limit_text, strlen(limit_text), 1, LIST_MAX, &limit)) {
    request_problem(r, 400, "bad_parameter", "limit", "limit must be between 1 and %d", LIST_MAX);
    return REQUEST_DONE;
  }
  a.limit = (int)limit;
  (void)snprintf(a.target, sizeof a.target, "%s", target != NULL ? target : "");
  struct dead_args *args = malloc(sizeof *args);
  if (args != NULL)
    *args = a;
  return json_read(r, query_dead, args);
}

// -- POST
// --------------------------------------------------------------------------------------------------------------

struct replay {
  struct change change;
  char target[WEBHOOK_NAME_MAX + 1], room_id[IDENT_MAX + 1]; ///< room_id empty: all rooms
  bool known;
  int64_t until_us; ///< monotonic: no portion begins later, so that the answer comes in time
  struct webhook_replay replay;
};

static struct replay *replay_of(struct change *c) {
  return CONTAINER_OF(c, struct replay, change);
}

static void replay_free(struct change *c) {
  free(replay_of(c));
}

static enum db_status run(struct db *db, struct change *c) {
  struct replay *a = replay_of(c);
  enum db_status status = webhook_known(db, a->target, &a->known);
  if (status != DB_OK || !a->known)
    return status;
  a->replay.target = a->target;
  a->replay.room_id = a->room_id[0] != '\0' ? a->room_id : NULL;
  do
    status = webhook_replay(db, &a->replay);
  while (status == DB_OK && a->replay.more && clock_mono_us() < a->until_us);
  // Tried again, it would not count what was done.
  c->in_doubt = status == DB_LOST && a->replay.in_doubt;
  return c->in_doubt ? DB_FAILED : status;
}

static void answer(struct request *r, struct change *c) {
  const struct replay *a = replay_of(c);
  if (!a->known) {
    request_problem(r, 404, "not_found", "target",
                    "there is no such target: it is not configured, and nothing is left of it");
    return;
  }
  struct buf text = {0}, next = {0};
  if (a->replay.more)
    buf_printf(&next, "%s/%s/%lld", a->target, a->replay.after.room_id, (long long)a->replay.after.message);
  jo_object(&text);
  jo_kint(&text, "replayed_events", a->replay.n);
  jo_kstr(&text, "next", next.data);
  text.failed |= next.failed;
  buf_free(&next);
  change_end_json(&text, c);
  request_reply_json(r, 200, &text, NULL);
}

static bool read_member(struct replay *a, const char *key, const json_t *value, struct input_problem *p) {
  const char *text;
  if (strcmp(key, "target") == 0) {
    if (!input_ident(value, key, &text, p))
      return false;
    if (!good_target(text))
      return input_refuse(p, "bad_field", key, "target must be the name of a target");
    (void)snprintf(a->target, sizeof a->target, "%s", text);
    return true;
  }
  if (strcmp(key, "room_id") == 0) {
    if (!input_ident(value, key, &text, p))
      return false;
    (void)snprintf(a->room_id, sizeof a->room_id, "%s", text);
    return true;
  }
  if (strcmp(key, "after") == 0) {
    if (!json_is_string(value) || !webhook_cursor_parse(json_string_value(value), &a->replay.after) ||
        a->replay.after.target[0] == '\0')
      return input_refuse(p, "bad_field", key, "after must be what next said");
    return true;
  }
  if (strcmp(key, "message") != 0)
    return input_refuse(p, "unknown_field", key, "there is no field \"%.64s\" in a replay", key);
  a->replay.message = json_is_integer(value) ? json_integer_value(value) : 0;
  if (a->replay.message < 1 || a->replay.message > REVISION_MAX)
    return input_refuse(p, "bad_field", key, "message must be a number that GET /webhooks/dead shows");
  return true;
}

/// What the members must be together.
static bool fit_together(const struct replay *a, struct input_problem *p) {
  if (a->target[0] == '\0')
    return input_refuse(p, "missing_field", "target", "target is missing");
  // A message is a revision of its room.
  if (a->replay.message > 0 && a->room_id[0] == '\0')
    return input_refuse(p, "missing_field", "room_id", "room_id is missing: a message is one of a room");
  const struct webhook_cursor *after = &a->replay.after;
  bool same =
      strcmp(after->target, a->target) == 0 && (a->room_id[0] == '\0' || strcmp(after->room_id, a->room_id) == 0);
  if (after->target[0] != '\0' && !same)
    return input_refuse(p, "bad_field", "after", "after must be what next said for the same target and room");
  return true;
}

static bool read_replay(struct replay *a, const json_t *root, struct input_problem *p) {
  if (!json_is_object(root))
    return input_refuse(p, "bad_json", NULL, "the body must be a JSON object");
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)root, key, value) {
    if (!read_member(a, key, value, p))
      return false;
  }
  return fit_together(a, p);
}

enum request_verdict h_webhooks_replay(struct request *r) {
  if (!input_is_json(MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE))) {
    request_problem(r, 415, "unsupported_media_type", "Content-Type", "Content-Type must be application/json");
    return REQUEST_DONE;
  }
  struct replay *a = calloc(1, sizeof *a);
  if (a == NULL)
    return change_start(NULL, r, NULL);
  a->change.run = run;
  a->change.answer = answer;
  a->change.free = replay_free;
  a->until_us = r->arrived_us + REPLAY_US;
  struct input_problem problem;
  json_t *root = json_loadb(r->body.len > 0 ? r->body.data : "", r->body.len, JSON_REJECT_DUPLICATES, NULL);
  bool good =
      root != NULL ? read_replay(a, root, &problem) : input_refuse(&problem, "bad_json", NULL, "the body is not JSON");
  json_decref(root);
  if (good)
    return change_start(&a->change, r, r->worker->service->changers);
  request_bad_input(r, &problem);
  replay_free(&a->change);
  return REQUEST_DONE;
}
