// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "store/batch.h"
#include "store/subject.h"

// A repeated close with a newer revision: only newer heartbeats than that may begin again (CONTRACT §3).
static const struct db_stmt raise_stmt = {
    .name = "tombstone_raise",
    .sql = "UPDATE stillhere.tombstone SET revision = GREATEST(revision, $4)"
           " WHERE room_id = $1 AND user_id = $2 AND session_id = $3",
};

static const struct db_stmt any_lease_stmt = {
    .name = "any_lease",
    .sql = "SELECT count(*) FROM stillhere.lease l JOIN unnest($1::text[], $2::text[], $3::text[])"
           " AS i(room_id, user_id, session_id)"
           " ON l.room_id = ANY (ARRAY[i.room_id]) AND l.user_id = i.user_id AND l.session_id = i.session_id",
    .distributed = "SELECT count(*) FROM stillhere.lease l JOIN unnest($1::text[], $2::text[], $3::text[])"
                   " AS i(room_id, user_id, session_id)"
                   " ON l.room_id = i.room_id AND l.user_id = i.user_id AND l.session_id = i.session_id"
                   " WHERE l.room_id = ANY($1::text[])",
};

static enum db_status raise_tombstone(struct db *db, const struct lease_key *key, int64_t revision) {
  struct db_params p = {0};
  db_p_text(&p, key->room_id);
  db_p_text(&p, key->user_id);
  db_p_text(&p, key->session_id);
  db_p_int8(&p, revision);
  enum db_status status = db_run(db, &raise_stmt, &p, NULL);
  db_params_clear(&p);
  return status;
}

/// Neither a lease nor a tombstone was seen; but the tombstone may have gone, for a new lease, between the two looks.
/// @return DB_RETRY then: the whole transaction looks again
static enum db_status check_unknown(struct db *db, const struct subject *unknown, size_t n) {
  struct db_params p = {0};
  PGresult *r = NULL;
  subjects_key_params(&p, unknown, n);
  enum db_status status = db_run(db, &any_lease_stmt, &p, &r);
  db_params_clear(&p);
  if (status == DB_OK && db_int8(r, 0, 0) > 0) {
    status = DB_RETRY;
  }
  PQclear(r);
  return status;
}

/// Decides one close and notes how its lease ends: closed, or, where it had run out and was not swept, expired.
static enum db_status decide(struct db *db, struct batch *b, struct subject *s) {
  struct op *op = s->op;
  struct verdict v = decide_close(&s->facts, op->revision_given, op->revision);
  op->decision = v.decision;
  op->prior_revision = s->facts.revision;
  op->stored_revision = v.new_revision;
  bool ends = v.decision == DECISION_ACCEPTED || v.decision == DECISION_ALREADY_APPLIED;
  if (ends && s->has_row) {
    bool closed = v.decision == DECISION_ACCEPTED;
    struct transition *x =
        transitions_add(&b->transitions, closed ? EVENT_SESSION_CLOSED : EVENT_LEASE_EXPIRED, &op->key);
    if (x == NULL) {
      return DB_FAILED;
    }
    // What the lease never had is for the tombstone alone, unless this close is what brings it.
    x->lease_revision = closed ? v.new_revision : s->facts.revision;
    x->tombstone_revision = v.new_revision;
    x->renewed_at_us = op->lease.renewed_at_us;
    x->expires_at_us = op->lease.expires_at_us;
    x->request_id = closed ? op->request_id : op->lease.request_id;
    x->bury = true;
    x->op = op;
    return DB_OK;
  }
  if (ends) {
    op->event_id = s->event_id;
    s->event_id = NULL;
    return v.new_revision > s->facts.revision ? raise_tombstone(db, &op->key, v.new_revision) : DB_OK;
  }
  return DB_OK;
}

/// The subjects without a row, or those that end a row, moved to the front of @a to.
static size_t pick(const struct subject *from, size_t n, bool (*want)(const struct subject *), struct subject *to) {
  size_t kept = 0;
  for (size_t i = 0; i < n; i++) {
    if (want(&from[i])) {
      to[kept++] = from[i];
    }
  }
  return kept;
}

static bool is_unknown(const struct subject *s) {
  return s->facts.state == LEASE_UNKNOWN;
}

static bool ends_row(const struct subject *s) {
  return s->has_row && (s->op->decision == DECISION_ACCEPTED || s->op->decision == DECISION_ALREADY_APPLIED);
}

static enum db_status run_round(struct db *db, struct batch *b, struct op *const *ops, size_t n) {
  struct subject *subjects = calloc(n, sizeof *subjects), *some = calloc(n, sizeof *some);
  enum db_status status = subjects == NULL || some == NULL ? DB_FAILED : DB_OK;
  for (size_t i = 0; status == DB_OK && i < n; i++) {
    subjects[i].op = ops[i];
  }
  if (status == DB_OK) {
    status = subjects_lock_leases(db, subjects, n, b->rules->silence_ms);
  }
  if (status == DB_OK) {
    status = subjects_lock_tombstones(db, subjects, n);
  }
  size_t picked = status == DB_OK ? pick(subjects, n, is_unknown, some) : 0;
  if (picked > 0) {
    status = check_unknown(db, some, picked);
  }
  for (size_t i = 0; status == DB_OK && i < n; i++) {
    status = decide(db, b, &subjects[i]);
  }
  picked = status == DB_OK ? pick(subjects, n, ends_row, some) : 0;
  if (picked > 0) {
    struct db_params p = {0};
    subjects_key_params(&p, some, picked);
    status = db_run(db, &leases_delete_stmt, &p, NULL);
    db_params_clear(&p);
  }
  free(some);
  subjects_free(subjects, n);
  return status;
}

enum db_status store_closes(struct db *db, const struct store_rules *rules, struct op **ops, size_t n,
                            struct written *written) {
  // A second close of the same lease looks for the first one's tombstone, so each round is written before the next.
  return batch_run(
      db, &(struct batch){
              .rules = rules, .ops = ops, .n = n, .written = written, .round = run_round, .write_each_round = true});
}

enum db_status store_close_within(struct db *db, const struct store_rules *rules, struct op *op,
                                  struct written *written) {
  return batch_run_within(db,
                          &(struct batch){.rules = rules, .ops = &op, .n = 1, .written = written, .round = run_round});
}
