// SPDX-License-Identifier: Apache-2.0
// POST /rooms/{room}/attendance: an explicit sign-in or sign-out (CONTRACT §6).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "http/access.h"
#include "http/change.h"
#include "http/handlers.h"
#include "http/member_input.h"
#include "live/commit.h"
#include "live/sweeper.h"
#include "store/attendance.h"

struct attendance_post {
  struct change change;
  struct attendance_input input;
  bool for_oneself; ///< the caller does not keep the room
  char room_id[IDENT_MAX + 1], key[IDEMPOTENCY_KEY_MAX + 1];
  struct attendance_result result;
};

static struct attendance_post *post_of(struct change *c) {
  return CONTAINER_OF(c, struct attendance_post, change);
}

static void post_free(struct change *c) {
  struct attendance_post *post = post_of(c);
  op_clear_results(&post->result.op);
  buf_free(&post->result.row);
  attendance_input_free(&post->input);
  free(post);
}

/// What was recorded belongs to the story of a user as much as the leases do.
static void add_line(const struct attendance_post *post, const struct attendance *entry, struct decision_lines *lines) {
  if (post->result.outcome == ATTENDANCE_CONFLICT || post->result.outcome == ATTENDANCE_REVOKED)
    return;
  const struct membership_line line = {.what = "attendance",
                                       .key = {entry->room_id, entry->user_id, entry->session_id},
                                       .decision =
                                           post->result.outcome == ATTENDANCE_ADDED ? entry->action : "already_applied",
                                       .request_id = entry->request_id,
                                       .by = entry->by};
  decision_lines_membership(post->change.service->decisions, lines, &line);
}

static enum db_status run(struct db *db, struct change *c) {
  struct attendance_post *post = post_of(c);
  const struct attendance_input *in = &post->input;
  const struct attendance entry = {.room_id = post->room_id,
                                   .user_id = in->user_id,
                                   .session_id = in->session_id,
                                   .action = in->action,
                                   .note = in->note,
                                   .key = post->key[0] != '\0' ? post->key : NULL,
                                   .request_id = c->request_id,
                                   .by = change_by(c)};
  const struct config *config = c->service->config;
  const struct store_rules rules = {.offline_grace_ms = config->offline_grace_ms,
                                    .silence_ms = sweeper_silence_ms(config->sweep_interval_ms)};
  struct written written = {0};
  enum db_status status = store_attendance(db, &rules, &entry, post->for_oneself, &post->result, &written);
  if (status == DB_OK) {
    commit_tell(c->service->tail, c->service->decisions, &written);
    struct decision_lines lines = {0};
    add_line(post, &entry, &lines);
    if (post->result.op.decision != DECISION_NONE)
      decision_lines_op(c->service->decisions, &lines, &post->result.op);
    decision_log_write(c->service->decisions, &lines);
  }
  written_clear(&written);
  // Tried again it could be there twice; only a key shows that it is.
  c->in_doubt = status == DB_LOST && post->result.in_doubt && entry.key == NULL;
  return c->in_doubt ? DB_FAILED : status;
}

static void answer(struct request *r, struct change *c) {
  struct attendance_result *result = &post_of(c)->result;
  if (result->outcome == ATTENDANCE_CONFLICT)
    request_problem(r, 409, "idempotency_conflict", "Idempotency-Key",
                    "the Idempotency-Key was used for this user in this room with other content");
  else if (result->outcome == ATTENDANCE_REVOKED)
    request_problem(r, 403, "membership_revoked", NULL, "the user's membership of this room was revoked");
  else
    request_reply_json(r, result->outcome == ATTENDANCE_ADDED ? 201 : 200, &result->row, NULL);
}

/// A keeper of the room writes for everybody, others for themselves.
static const struct refusal *refusal_of(const struct request *r, const struct attendance_input *in) {
  const struct refusal *refusal = access_write(r, r->params[0], in->user_id, in->session_id);
  return refusal != NULL && access_members(r, r->params[0]) == NULL ? NULL : refusal;
}

/// The Idempotency-Key headers of a request.
struct given {
  int count;
  const char *value;
};

static enum MHD_Result gather(void *cls, enum MHD_ValueKind kind, const char *name, const char *value) {
  (void)kind;
  struct given *given = cls;
  if (strcasecmp(name, "Idempotency-Key") == 0) {
    given->count++;
    given->value = value;
  }
  return MHD_YES;
}

/// Takes the Idempotency-Key, if there is one. @return false when refused
static bool take_key(struct request *r, char key[IDEMPOTENCY_KEY_MAX + 1]) {
  struct given given = {0};
  (void)MHD_get_connection_values(r->connection, MHD_HEADER_KIND, gather, &given);
  // White space behind a field's value is no part of it; libmicrohttpd leaves it there.
  size_t len = given.value != NULL ? strlen(given.value) : 0;
  while (len > 0 && (given.value[len - 1] == ' ' || given.value[len - 1] == '\t'))
    len--;
  bool good = given.count <= 1 && len <= IDEMPOTENCY_KEY_MAX;
  (void)snprintf(key, IDEMPOTENCY_KEY_MAX + 1, "%.*s", good ? (int)len : 0, given.value != NULL ? given.value : "");
  if (good && (given.count == 0 || idempotency_key_good(key)))
    return true;
  request_problem(r, 400, "bad_header", "Idempotency-Key",
                  "Idempotency-Key must be 1 to %d visible ASCII characters, given once", IDEMPOTENCY_KEY_MAX);
  return false;
}

/// Takes over what was read. @return NULL when memory ran out
static struct change *post_new(const struct request *r, struct attendance_input *in, const char *key) {
  struct attendance_post *post = calloc(1, sizeof *post);
  if (post == NULL)
    return NULL;
  post->input = *in;
  *in = (struct attendance_input){0};
  (void)snprintf(post->room_id, sizeof post->room_id, "%s", r->params[0]);
  (void)snprintf(post->key, sizeof post->key, "%s", key);
  post->for_oneself = access_members(r, r->params[0]) != NULL;
  post->change.run = run;
  post->change.answer = answer;
  post->change.free = post_free;
  return &post->change;
}

enum request_verdict h_attendance_post(struct request *r) {
  if (!input_is_json(MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE))) {
    request_problem(r, 415, "unsupported_media_type", "Content-Type", "Content-Type must be application/json");
    return REQUEST_DONE;
  }
  char key[IDEMPOTENCY_KEY_MAX + 1];
  if (!take_key(r, key))
    return REQUEST_DONE;
  struct attendance_input in;
  struct input_problem problem;
  const struct refusal *refusal = NULL;
  enum request_verdict verdict = REQUEST_DONE;
  if (!attendance_input_read(&in, r->body.data, r->body.len, &problem))
    request_bad_input(r, &problem);
  else if ((refusal = refusal_of(r, &in)) != NULL)
    request_refused(r, refusal);
  else
    verdict = change_start(post_new(r, &in, key), r, r->worker->service->changers);
  attendance_input_free(&in);
  return verdict;
}
