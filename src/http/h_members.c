// SPDX-License-Identifier: Apache-2.0
// PUT, DELETE and GET /rooms/{room}/members/{user}, and GET /rooms/{room}/members (CONTRACT §6).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "base/strict.h"
#include "http/change.h"
#include "http/handlers.h"
#include "http/json_read.h"
#include "http/member_input.h"
#include "live/commit.h"
#include "store/member.h"
#include "store/revoke.h"

#define LIST_DEFAULT 100
#define LIST_MAX 1000

/// From a revocation's commit to its answer: longer than any instance believes that a session may still send cursors
/// (live/cursors_gate.c).
#define REVOKED_HOLD_US INT64_C(350000)

/// A request about one membership.
struct member_change {
  struct change change;
  char room_id[IDENT_MAX + 1], user_id[IDENT_MAX + 1];
  bool role_given;
  char role[ROLE_MAX + 1];
  // Results.
  bool found;
  struct member member;
  struct revocation revocation;
};

static struct member_change *member_of(struct change *c) {
  return CONTAINER_OF(c, struct member_change, change);
}

static void member_free(struct change *c) {
  revocation_clear(&member_of(c)->revocation);
  free(member_of(c));
}

/// A job about the member that the path names. @return NULL when memory ran out
static struct member_change *member_new(const struct request *r) {
  struct member_change *m = calloc(1, sizeof *m);
  if (m == NULL)
    return NULL;
  m->change.free = member_free;
  (void)snprintf(m->room_id, sizeof m->room_id, "%s", r->params[0]);
  (void)snprintf(m->user_id, sizeof m->user_id, "%s", r->params[1]);
  return m;
}

static struct change *change_of(struct member_change *m) {
  return m != NULL ? &m->change : NULL;
}

static void answer_row(struct request *r, struct change *c) {
  struct buf text = {0};
  member_json(&text, &member_of(c)->member);
  request_reply_json(r, 200, &text, NULL);
}

static struct membership_line line_of(struct member_change *m, const char *what, const char *decision) {
  return (struct membership_line){.what = what,
                                  .key = {.room_id = m->room_id, .user_id = m->user_id},
                                  .decision = decision,
                                  .request_id = m->change.request_id,
                                  .by = change_by(&m->change)};
}

// -- PUT -----------------------------------------------------------------------------------------------------------

static enum db_status run_grant(struct db *db, struct change *c) {
  struct member_change *m = member_of(c);
  bool changed;
  enum db_status status = store_grant(db, m->room_id, m->user_id, m->role_given ? m->role : NULL, &m->member, &changed);
  if (status != DB_OK)
    return status;
  if (changed)
    tail_granted(c->service->tail, m->room_id, m->user_id);
  struct decision_lines lines = {0};
  struct membership_line line = line_of(m, "membership", changed ? "granted" : "already_applied");
  decision_lines_membership(c->service->decisions, &lines, &line);
  decision_log_write(c->service->decisions, &lines);
  return DB_OK;
}

static enum request_verdict grant(struct request *r, const struct member_input *in) {
  struct member_change *m = member_new(r);
  if (m != NULL) {
    m->role_given = in->role != NULL;
    (void)snprintf(m->role, sizeof m->role, "%s", in->role != NULL ? in->role : "");
    m->change.run = run_grant;
    m->change.answer = answer_row;
  }
  return change_start(change_of(m), r, r->worker->service->changers);
}

enum request_verdict h_member_put(struct request *r) {
  struct member_input in;
  struct input_problem problem;
  enum request_verdict verdict = REQUEST_DONE;
  if (member_input_read(&in, r->body.data, r->body.len, &problem))
    verdict = grant(r, &in);
  else
    request_bad_input(r, &problem);
  member_input_free(&in);
  return verdict;
}

// -- DELETE --------------------------------------------------------------------------------------------------------

/// The revocation's own line, then one for each lease that ended with it. Those that had run out have theirs.
static void log_revocation(struct member_change *m) {
  struct decision_log *log = m->change.service->decisions;
  const struct revocation *x = &m->revocation;
  struct decision_lines lines = {0};
  struct membership_line line = line_of(m, "membership", x->applied ? "revoked" : "already_applied");
  line.event_id = x->event_id;
  decision_lines_membership(log, &lines, &line);
  for (size_t i = 0; i < x->n_leases; i++) {
    line = line_of(m, "revocation", "revoked");
    line.key.session_id = x->leases[i].session_id;
    line.event_id = x->leases[i].event_id;
    line.revision = x->leases[i].revision;
    decision_lines_membership(log, &lines, &line);
  }
  decision_log_write(log, &lines);
}

static enum db_status run_revoke(struct db *db, struct change *c) {
  struct member_change *m = member_of(c);
  struct written written = {0};
  enum db_status status = store_revoke(db, m->room_id, m->user_id, c->request_id, c->service->config->offline_grace_ms,
                                       &m->revocation, &written);
  if (status == DB_OK) {
    commit_tell(c->service->tail, c->service->decisions, &written);
    log_revocation(m);
  }
  written_clear(&written);
  return status;
}

static void answer_revoke(struct request *r, struct change *c) {
  const struct revocation *x = &member_of(c)->revocation;
  struct buf text = {0};
  jo_object(&text);
  jo_kstr(&text, "decision", x->applied ? "accepted" : "already_applied");
  jo_key(&text, "event_ids");
  jo_array(&text);
  for (size_t i = 0; i < x->n_leases; i++)
    jo_str(&text, x->leases[i].event_id);
  if (x->event_id != NULL)
    jo_str(&text, x->event_id);
  jo_array_end(&text);
  jo_key(&text, "revoked");
  member_json(&text, &x->member);
  change_end_json(&text, c);
  request_reply_json(r, 200, &text, NULL);
}

enum request_verdict h_member_delete(struct request *r) {
  struct member_change *m = member_new(r);
  if (m != NULL) {
    m->change.run = run_revoke;
    m->change.answer = answer_revoke;
    // Also where it was revoked already: that may be a moment ago.
    m->change.hold_us = REVOKED_HOLD_US;
  }
  return change_start(change_of(m), r, r->worker->service->changers);
}

// -- GET -----------------------------------------------------------------------------------------------------------

static enum db_status run_read(struct db *db, struct change *c) {
  struct member_change *m = member_of(c);
  return read_member(db, m->room_id, m->user_id, &m->member, &m->found);
}

static void answer_read(struct request *r, struct change *c) {
  if (member_of(c)->found)
    answer_row(r, c);
  else
    request_problem(r, 404, "not_a_member", NULL, "the user has no active membership of this room");
}

enum request_verdict h_member_get(struct request *r) {
  struct member_change *m = member_new(r);
  if (m != NULL) {
    m->change.run = run_read;
    m->change.answer = answer_read;
  }
  return change_start(change_of(m), r, r->worker->service->readers);
}

struct list_args {
  int limit;
  char room_id[IDENT_MAX + 1], after[IDENT_MAX + 1];
};

static enum db_status query_list(struct db *db, const void *args, struct buf *out) {
  const struct list_args *list = args;
  enum db_status status = read_members(db, list->room_id, list->after, list->limit, out);
  jo_ktime(out, "server_time", clock_db_us());
  jo_object_end(out);
  return status;
}

enum request_verdict h_members_get(struct request *r) {
  const char *limit_text = request_query(r, "limit"), *after = request_query(r, "after");
  const char *problem;
  int64_t limit = LIST_DEFAULT;
  if (after != NULL && (problem = ident_problem(after, strlen(after))) != NULL) {
    request_problem(r, 400, "bad_parameter", "after", "after %s", problem);
    return REQUEST_DONE;
  }
  if (limit_text != NULL && !strict_int(limit_text, strlen(limit_text), 1, LIST_MAX, &limit)) {
    request_problem(r, 400, "bad_parameter", "limit", "limit must be between 1 and %d", LIST_MAX);
    return REQUEST_DONE;
  }
  struct list_args *list = calloc(1, sizeof *list);
  if (list != NULL) {
    list->limit = (int)limit;
    (void)snprintf(list->room_id, sizeof list->room_id, "%s", r->params[0]);
    (void)snprintf(list->after, sizeof list->after, "%s", after != NULL ? after : "");
  }
  return json_read(r, query_list, list);
}
