// SPDX-License-Identifier: Apache-2.0
#include "store/heartbeat.h"

#include <stdlib.h>
#include <string.h>

#include "store/batch.h"
#include "store/quota.h"
#include "store/renew.h"
#include "store/subject.h"

/// A provisional row whose times are older than this after the statement (it waited for another transaction) is
/// stamped anew, so that no lease begins with part of its time gone.
#define STALE_STAMP_US 50000

/// When a client whose user or room is full may come again: somebody may have left by then.
#define FULL_RETRY_MS 5000

// Used where renew_stmt of renew.c does not fit: the meta changed, or a new stay begins on a row that is there. The
// rows are locked already. OFFSET 0 keeps one reading of the clock for the three columns.
#define UPDATE_AT(now, ends, inside, room, rooms)                                                                      \
  "WITH l AS (UPDATE stillhere.lease x SET revision = i.revision, prior_revision = i.prior,"                           \
  " revision_given = i.given, ttl_ms = i.ttl_ms,"                                                                      \
  " granted_at = CASE WHEN i.granted THEN i.now ELSE x.granted_at END, renewed_at = i.now,"                            \
  " expires_at = " ends ","                                                                                            \
  " meta = CASE WHEN i.granted THEN i.meta::json ELSE coalesce(i.meta::json, x.meta) END,"                             \
  " request_id = i.request_id"                                                                                         \
  " FROM (SELECT u.*, " now " AS now" inside " FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[],"            \
  " $5::int8[], $6::bool[], $7::int4[], $8::bool[], $9::text[], $10::text[])"                                          \
  " AS u(room_id, user_id, session_id, revision, prior, given, ttl_ms, granted, meta, request_id) OFFSET 0) i"         \
  " WHERE x.room_id = " room " AND x.user_id = i.user_id AND x.session_id = i.session_id" rooms                        \
  " RETURNING x.room_id, x.user_id, x.session_id, x.revision, x.prior_revision, x.ttl_ms, x.granted_at,"               \
  " x.renewed_at, x.expires_at, x.meta, x.request_id)"                                                                 \
  " SELECT " LEASE_COLUMNS " FROM l ORDER BY l.room_id, l.user_id, l.session_id"
static const struct db_stmt update_stmt = {
    .name = "leases_update",
    .sql = UPDATE_AT(DB_TIME_PLAIN, "i.now + i.ttl_ms * interval '1 ms'", "", "ANY (ARRAY[i.room_id])", ""),
    .distributed =
        UPDATE_AT(DB_TIME_DISTRIBUTED, "i.ends", ", " DB_TIME_DISTRIBUTED " + u.ttl_ms * interval '1 ms' AS ends",
                  "i.room_id", " AND x.room_id = ANY($1::text[])"),
};

/// An accepted op whose row must still be written by update_stmt.
struct update {
  struct op *op;
  int64_t revision, prior;
  bool granted;
};

/// What a round comes to after its decisions.
struct effects {
  struct update *updates;
  size_t n_updates;
  struct subject *refused; ///< with provisional rows that go again; borrows from the subjects
  size_t n_refused;
  struct subject *unburied; ///< whose tombstones go since the lease lives again; borrows too
  size_t n_unburied;
};

// Getters for update_stmt.
static const struct update *nth(const void *updates, size_t i) {
  return &((const struct update *)updates)[i];
}
static const char *u_room(const void *updates, size_t i) {
  return nth(updates, i)->op->key.room_id;
}
static const char *u_user(const void *updates, size_t i) {
  return nth(updates, i)->op->key.user_id;
}
static const char *u_session(const void *updates, size_t i) {
  return nth(updates, i)->op->key.session_id;
}
static int64_t u_revision(const void *updates, size_t i) {
  return nth(updates, i)->revision;
}
static int64_t u_prior(const void *updates, size_t i) {
  return nth(updates, i)->prior > 0 ? nth(updates, i)->prior : INT64_MIN;
}
static int64_t u_given(const void *updates, size_t i) {
  return nth(updates, i)->op->revision_given;
}
static int64_t u_ttl(const void *updates, size_t i) {
  return nth(updates, i)->op->ttl_ms;
}
static int64_t u_granted(const void *updates, size_t i) {
  return nth(updates, i)->granted;
}
static const char *u_meta(const void *updates, size_t i) {
  return nth(updates, i)->op->meta;
}
static const char *u_request_id(const void *updates, size_t i) {
  return nth(updates, i)->op->request_id;
}

static enum db_status run_updates(struct db *db, const struct update *updates, size_t n) {
  struct db_params p = {0};
  db_p_text_array(&p, n, u_room, updates);
  db_p_text_array(&p, n, u_user, updates);
  db_p_text_array(&p, n, u_session, updates);
  db_p_int8_array(&p, n, u_revision, updates);
  db_p_int8_null_array(&p, n, u_prior, updates);
  db_p_bool_array(&p, n, u_given, updates);
  db_p_int4_array(&p, n, u_ttl, updates);
  db_p_bool_array(&p, n, u_granted, updates);
  db_p_text_array(&p, n, u_meta, updates);
  db_p_text_array(&p, n, u_request_id, updates);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &update_stmt, &p, &r);
  db_params_clear(&p);
  // The rows are locked and there, so each update has its row, in the same order.
  if (status == DB_OK && (size_t)PQntuples(r) != n) {
    status = DB_FAILED;
  }
  for (size_t i = 0; status == DB_OK && i < n; i++) {
    if (!lease_from_row(updates[i].op, r, (int)i)) {
      status = DB_FAILED;
    }
  }
  PQclear(r);
  return status;
}

static enum db_status run_deletes(struct db *db, const struct db_stmt *stmt, const struct subject *list, size_t n) {
  if (n == 0) {
    return DB_OK;
  }
  struct db_params p = {0};
  subjects_key_params(&p, list, n);
  enum db_status status = db_run(db, stmt, &p, NULL);
  db_params_clear(&p);
  return status;
}

/// A new stay on a row that ran out and was not swept: the old one ends first, so that the stream lacks no step.
static bool end_unswept(struct transitions *t, struct subject *s) {
  struct lease *old = &s->op->lease;
  struct transition *x = transitions_add(t, EVENT_LEASE_EXPIRED, &s->op->key);
  if (x == NULL) {
    return false;
  }
  x->lease_revision = old->revision;
  x->renewed_at_us = old->renewed_at_us;
  x->expires_at_us = old->expires_at_us;
  x->request_id = x->owned = old->request_id; // the row's next reading brings its own
  old->request_id = NULL;
  return true;
}

static bool same_meta(const char *stored, const char *given) {
  return given == NULL || strcmp(stored != NULL ? stored : "{}", given) == 0;
}

/// The rules' verdict on one op, with what its limits say.
static struct verdict judge(const struct store_rules *rules, struct subject *s, int64_t now_us, struct quota *quota) {
  struct op *op = s->op;
  enum quota_room room = quota_look(quota, &op->key);
  s->facts.membership_required = rules->membership_required;
  s->facts.full = room != QUOTA_FREE;
  s->facts.renewed_us = now_us - op->lease.renewed_at_us;
  s->facts.renew_min_us = rules->renew_interval_min_ms * 1000;
  struct verdict v = decide_heartbeat(&s->facts, op->revision_given, op->revision);
  if (v.granted) {
    quota_take(quota, &op->key);
  } else if (v.decision == DECISION_TOO_MANY_LEASES) {
    op->user_full = room == QUOTA_USER_FULL;
    op->retry_after_ms = FULL_RETRY_MS;
  } else if (v.decision == DECISION_TOO_SOON) {
    op->retry_after_ms = (s->facts.renew_min_us - s->facts.renewed_us + 999) / 1000;
  }
  return v;
}

/// Decides one op that was no plain renewal and notes what is to be written.
/// @param now_us the database's clock after the round's first statement
static bool decide(struct batch *b, struct subject *s, int64_t now_us, struct quota *quota, struct effects *fx,
                   bool *meta_changed) {
  struct op *op = s->op;
  struct verdict v = judge(b->rules, s, now_us, quota);
  op->decision = v.decision;
  op->granted = v.granted;
  op->prior_revision = s->facts.revision;
  op->stored_revision = v.new_revision;
  *meta_changed = false;
  if (v.decision != DECISION_ACCEPTED) {
    if (!s->has_row) {
      fx->refused[fx->n_refused++] = *s;
    }
    return true;
  }
  if (s->has_row && v.granted && !end_unswept(&b->transitions, s)) {
    return false;
  }
  if (s->has_tombstone) {
    fx->unburied[fx->n_unburied++] = *s;
  }
  *meta_changed = s->has_row && !v.granted && !same_meta(op->lease.meta, op->meta);
  // A provisional row is right as it is, unless it had to count on from its tombstone or waited.
  if (s->has_row || op->lease.revision != v.new_revision || now_us - op->lease.renewed_at_us > STALE_STAMP_US) {
    fx->updates[fx->n_updates++] =
        (struct update){.op = op, .revision = v.new_revision, .prior = s->facts.revision, .granted = v.granted};
  }
  return true;
}

/// Adds the event of an accepted op, once its row is in its final state.
static bool add_event(struct batch *b, struct op *op, enum event_kind kind) {
  struct transition *x = transitions_add(&b->transitions, kind, &op->key);
  if (x == NULL) {
    return false;
  }
  x->lease_revision = op->lease.revision;
  x->request_id = op->request_id;
  x->meta = op->lease.meta;
  x->op = op;
  return true;
}

static enum db_status apply(struct db *db, const struct effects *fx) {
  enum db_status status = DB_OK;
  if (fx->n_updates > 0) {
    status = run_updates(db, fx->updates, fx->n_updates);
  }
  if (status == DB_OK) {
    status = run_deletes(db, &leases_delete_stmt, fx->refused, fx->n_refused);
  }
  if (status == DB_OK) {
    status = run_deletes(db, &tombstones_delete_stmt, fx->unburied, fx->n_unburied);
  }
  return status;
}

/// Decides the subjects and writes their rows; their events are added to the batch.
static enum db_status settle(struct db *db, struct batch *b, struct subject *subjects, size_t n, int64_t now_us,
                             struct quota *quota) {
  struct effects fx = {
      .updates = calloc(n, sizeof *fx.updates),
      .refused = calloc(n, sizeof *fx.refused),
      .unburied = calloc(n, sizeof *fx.unburied),
  };
  bool *meta_changed = calloc(n, sizeof *meta_changed);
  enum db_status status = DB_FAILED;
  if (fx.updates != NULL && fx.refused != NULL && fx.unburied != NULL && meta_changed != NULL) {
    status = DB_OK;
  }
  for (size_t i = 0; status == DB_OK && i < n; i++) {
    if (!decide(b, &subjects[i], now_us, quota, &fx, &meta_changed[i])) {
      status = DB_FAILED;
    }
  }
  if (status == DB_OK) {
    status = apply(db, &fx);
  }
  for (size_t i = 0; status == DB_OK && i < n; i++) {
    struct op *op = subjects[i].op;
    bool renewed = op->decision == DECISION_ACCEPTED && !op->granted;
    if (op->granted && !add_event(b, op, EVENT_LEASE_GRANTED)) {
      status = DB_FAILED;
    } else if (renewed && (meta_changed[i] || b->rules->renewal_events) && !add_event(b, op, EVENT_LEASE_RENEWED)) {
      status = DB_FAILED;
    }
  }
  free(fx.updates);
  free(fx.refused);
  free(fx.unburied);
  free(meta_changed);
  return status;
}

/// Reads what decides the ops that were no plain renewals: @a left have a row, @a fresh have a provisional one.
static enum db_status read_facts(struct db *db, const struct store_rules *rules, struct subject *left, size_t n_left,
                                 struct subject *fresh, size_t n_fresh) {
  enum db_status status = DB_OK;
  if (n_left > 0) {
    status = subjects_lock_leases(db, left, n_left, rules->silence_ms);
  }
  if (status == DB_OK && n_fresh > 0) {
    status = subjects_lock_tombstones(db, fresh, n_fresh);
  }
  if (status == DB_OK && n_fresh > 0) {
    status = subjects_lock_members(db, fresh, n_fresh);
  }
  bool expired = false;
  for (size_t i = 0; i < n_left; i++) {
    if (status == DB_OK && !left[i].has_row) {
      status = DB_RETRY; // it came, and was not locked, and went; only where the tables are distributed
    }
    expired = expired || left[i].facts.state == LEASE_EXPIRED;
  }
  if (status == DB_OK && expired) {
    status = subjects_lock_members(db, left, n_left);
  }
  return status;
}

/// The op was renewed by the fast statement.
static bool finish_renewed(struct batch *b, struct op *op) {
  op->decision = DECISION_ACCEPTED;
  op->prior_revision = op->lease.prior_revision;
  op->stored_revision = op->lease.revision;
  return !b->rules->renewal_events || add_event(b, op, EVENT_LEASE_RENEWED);
}

static enum db_status run_round(struct db *db, struct batch *b, struct op *const *ops, size_t n) {
  int64_t now_us = 0;
  size_t n_left = 0, n_fresh = 0;
  enum renewed *outcome = calloc(n, sizeof *outcome);
  struct subject *left = calloc(n, sizeof *left), *fresh = calloc(n, sizeof *fresh);
  enum db_status status = DB_FAILED;
  if (outcome != NULL && left != NULL && fresh != NULL) {
    status = renew_round(db, ops, n, b->rules->renew_interval_min_ms, outcome, &now_us);
  }
  for (size_t i = 0; status == DB_OK && i < n; i++) {
    if (outcome[i] == RENEW_LEFT) {
      left[n_left++].op = ops[i];
    } else if (outcome[i] == RENEW_INSERTED) {
      fresh[n_fresh++].op = ops[i];
    } else if (!finish_renewed(b, ops[i])) {
      status = DB_FAILED;
    }
  }
  if (status == DB_OK && n_left + n_fresh > 0) {
    struct quota quota = {0};
    status = read_facts(db, b->rules, left, n_left, fresh, n_fresh);
    if (status == DB_OK) {
      status = quota_read(db, &quota, b->rules->max_leases_per_room, b->rules->max_leases_per_user, left, n_left, fresh,
                          n_fresh);
    }
    if (status == DB_OK && n_left > 0) {
      status = settle(db, b, left, n_left, now_us, &quota);
    }
    if (status == DB_OK && n_fresh > 0) {
      status = settle(db, b, fresh, n_fresh, now_us, &quota);
    }
    quota_free(&quota);
  }
  subjects_free(left, n_left);
  subjects_free(fresh, n_fresh);
  free(outcome);
  return status;
}

enum db_status store_heartbeats(struct db *db, const struct store_rules *rules, struct op **ops, size_t n,
                                struct written *written) {
  return batch_run(db, &(struct batch){.rules = rules, .ops = ops, .n = n, .written = written, .round = run_round});
}
