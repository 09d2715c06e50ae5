// SPDX-License-Identifier: Apache-2.0
#include "store/renew_plain.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "store/renew_held.h"
#include "store/rounds.h"

// What makes it fast, with figures in doc/performance.md:
//   * UPDATE writes one WAL record a row where ON CONFLICT DO UPDATE, which locks it first, writes two.
//   * It gives back numbers and what only the row knows; a row is matched by its place in the arrays, not by its key.
//   * It needs no BEGIN, no COMMIT and no second look.
// Rows are reached through the primary key in the order of the arrays, which are sorted, so that two batches never lock
// in opposite orders. The writer's session forbids other plans; but with three plain equalities the planner could still
// go through a whole index and look each row up in the arrays, and does where VACUUM has last seen the table empty. An
// equality with an array of one is the same condition, and not one that it turns round; and the index by user is not
// for who does not ask for it (sql/0009-lease-user.sql). Comparisons of rows would have one plan as well, but
// PostgreSQL 15 reads on from a row that it found to the end of its room. The WHERE is decide_live() of lease_rules.c
// for the answer `accepted`, in SQL. All of it in tests/integration/test_plans.py.
static const struct db_stmt renew_plain_stmt = {
    .name = "renew_plain",
    .sql = "UPDATE stillhere.lease AS l SET revision = coalesce(i.revision, l.revision + 1),"
           " prior_revision = l.revision, revision_given = i.revision IS NOT NULL, ttl_ms = i.ttl_ms,"
           " (renewed_at, expires_at) = (SELECT t.now, t.now + i.ttl_ms * interval '1 ms'"
           " FROM clock_timestamp() AS t(now)), request_id = i.request_id"
           " FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::int4[],"
           " $6::text[], $7::text[]) WITH ORDINALITY"
           " AS i(room_id, user_id, session_id, revision, ttl_ms, meta, request_id, place)"
           " WHERE l.room_id = ANY (ARRAY[i.room_id]) AND l.user_id = i.user_id AND l.session_id = i.session_id"
           " AND l.expires_at > clock_timestamp()"
           " AND coalesce(i.revision > l.revision, l.revision < 9007199254740991)"
           " AND (i.meta IS NULL OR i.meta = l.meta::text)"
           " AND ($8::int8 = 0"
           " OR clock_timestamp() - l.renewed_at NOT BETWEEN interval '0' AND $8::int8 * interval '1 ms')"
           " RETURNING i.place, l.revision, l.prior_revision, l.granted_at, l.renewed_at, l.meta,"
           " (SELECT r.revision FROM stillhere.room r WHERE r.room_id = l.room_id)",
    // With the leases locked before. One whose room has no row is left to be decided row by row.
    .distributed =
        "UPDATE stillhere.lease AS l SET revision = coalesce(i.revision, l.revision + 1),"
        " prior_revision = l.revision, revision_given = i.revision IS NOT NULL, ttl_ms = i.ttl_ms,"
        " renewed_at = i.now, expires_at = i.ends, request_id = i.request_id"
        " FROM (SELECT u.*, " DB_TIME_DISTRIBUTED " AS now, " DB_TIME_DISTRIBUTED
        " + u.ttl_ms * interval '1 ms' AS ends FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::int4[],"
        " $6::text[], $7::text[]) WITH ORDINALITY"
        " AS u(room_id, user_id, session_id, revision, ttl_ms, meta, request_id, place) OFFSET 0) i, stillhere.room r"
        " WHERE l.room_id = i.room_id AND l.user_id = i.user_id AND l.session_id = i.session_id"
        " AND l.room_id = ANY($1::text[]) AND r.room_id = l.room_id AND l.expires_at > " DB_TIME_DISTRIBUTED
        " AND coalesce(i.revision > l.revision, l.revision < 9007199254740991)"
        " AND (i.meta IS NULL OR i.meta = l.meta::text) AND ($8::int8 = 0 OR " DB_TIME_DISTRIBUTED
        " - l.renewed_at NOT BETWEEN interval '0' AND $8::int8 * interval '1 ms')"
        " RETURNING i.place, l.revision, l.prior_revision, l.granted_at, l.renewed_at, l.meta, r.revision",
};

static int64_t op_at_revision(const void *ops, size_t i) {
  const struct op *op = ((struct op *const *)ops)[i];
  return op->revision_given ? op->revision : INT64_MIN;
}

/// How many elements of the array of metas are worth sending: all, or none where nobody gives one. unnest() fills up.
static size_t metas(struct op *const *ops, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (ops[i]->meta != NULL) {
      return n;
    }
  }
  return 0;
}

/// Fills in what the row says. @return false when memory ran out
static bool take_row(struct op *op, const PGresult *r, int row) {
  struct lease *l = &op->lease;
  l->key = op->key;
  l->revision = db_int8(r, row, 1);
  l->prior_revision = db_int8(r, row, 2);
  l->ttl_ms = op->ttl_ms;
  l->granted_at_us = db_time(r, row, 3);
  l->renewed_at_us = db_time(r, row, 4);
  l->expires_at_us = l->renewed_at_us + (int64_t)op->ttl_ms * 1000;
  if (!db_null(r, row, 5)) {
    l->meta = strdup(db_text(r, row, 5));
    if (l->meta == NULL) {
      return false;
    }
  }
  op->room_revision = db_int8(r, row, 6);
  op->prior_revision = l->prior_revision;
  op->stored_revision = l->revision;
  op->decision = DECISION_ACCEPTED;
  return true;
}

/// Committed already: an op whose row cannot be kept for want of memory is left undecided, and repeating it is safe.
static void take_rows(struct op *const *ops, size_t n, const PGresult *r) {
  for (int row = 0; row < PQntuples(r); row++) {
    int64_t place = db_int8(r, row, 0);
    assert(place >= 1 && (uint64_t)place <= n);
    struct op *op = ops[place - 1];
    if (!take_row(op, r, row)) {
      op_clear_results(op);
    }
  }
}

static enum db_status renew_distributed(struct db *db, struct op *const *ops, size_t n, const struct db_params *p,
                                        PGresult **r) {
  struct db_params keys = {0};
  db_p_text_array(&keys, n, op_at_room, ops);
  db_p_text_array(&keys, n, op_at_user, ops);
  db_p_text_array(&keys, n, op_at_session, ops);
  enum db_status status = renew_after_hold(db, &keys, &renew_plain_stmt, p, r);
  db_params_clear(&keys);
  return status;
}

enum db_status store_renew_plain(struct db *db, const struct store_rules *rules, struct op *const *ops, size_t n) {
  assert(!rules->renewal_events);
  for (size_t i = 0; i < n; i++) {
    op_clear_results(ops[i]);
  }
  struct rounds rounds;
  if (!rounds_make(&rounds, ops, n)) {
    rounds_free(&rounds);
    return DB_FAILED;
  }
  n = rounds.ends[0];
  struct db_params p = {0};
  db_p_text_array(&p, n, op_at_room, rounds.ops);
  db_p_text_array(&p, n, op_at_user, rounds.ops);
  db_p_text_array(&p, n, op_at_session, rounds.ops);
  db_p_int8_null_array(&p, n, op_at_revision, rounds.ops);
  db_p_int4_array(&p, n, op_at_ttl, rounds.ops);
  db_p_text_array(&p, metas(rounds.ops, n), op_at_meta, rounds.ops);
  db_p_text_array(&p, n, op_at_request_id, rounds.ops);
  db_p_int8(&p, rules->renew_interval_min_ms);
  PGresult *r = NULL;
  enum db_status status = db_connect(db);
  if (status == DB_OK) {
    status =
        db_distributed(db) ? renew_distributed(db, rounds.ops, n, &p, &r) : db_alone(db, &renew_plain_stmt, &p, &r);
  }
  if (status == DB_OK) {
    take_rows(rounds.ops, n, r);
  }
  PQclear(r);
  db_params_clear(&p);
  rounds_free(&rounds);
  return status;
}
