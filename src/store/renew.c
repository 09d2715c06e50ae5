// SPDX-License-Identifier: Apache-2.0
#include "store/renew.h"

#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "store/renew_held.h"
#include "store/rounds.h"

// How this one statement keeps its promises:
//   * Rows are taken in the order of the arrays, which are sorted, so two batches never lock in opposite orders.
//   * ON CONFLICT locks the row before it judges WHERE and computes SET, so every clock_timestamp() in there is read
//     with the lock held, and a row that is left alone stays locked for the decision that follows.
//   * renewed_at and expires_at come from one reading of the clock.
//   * A new row's xmax is 0; an updated one carries the lock of ON CONFLICT.
// The WHERE is decide_live() of lease_rules.c for the answer `accepted`, in SQL.
static const struct db_stmt renew_stmt = {
    .name = "renew_round",
    .sql =
        "INSERT INTO stillhere.lease AS l (room_id, user_id, session_id, revision, revision_given, ttl_ms, granted_at,"
        " renewed_at, expires_at, meta, request_id)"
        " SELECT i.room_id, i.user_id, i.session_id, i.revision, i.given, i.ttl_ms, t.now, t.now,"
        " t.now + i.ttl_ms * interval '1 ms', i.meta::json, i.request_id"
        " FROM clock_timestamp() AS t(now), unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::bool[],"
        " $6::int4[], $7::text[], $8::text[])"
        " AS i(room_id, user_id, session_id, revision, given, ttl_ms, meta, request_id)"
        " ON CONFLICT (room_id, user_id, session_id) DO UPDATE SET"
        " revision = CASE WHEN excluded.revision_given THEN excluded.revision ELSE l.revision + 1 END,"
        " prior_revision = l.revision, revision_given = excluded.revision_given, ttl_ms = excluded.ttl_ms,"
        " (renewed_at, expires_at) = (SELECT t.now, t.now + excluded.ttl_ms * interval '1 ms'"
        " FROM clock_timestamp() AS t(now)),"
        " request_id = excluded.request_id"
        " WHERE l.expires_at > clock_timestamp()"
        " AND CASE WHEN excluded.revision_given THEN excluded.revision > l.revision"
        " ELSE l.revision < 9007199254740991 END"
        " AND (excluded.meta IS NULL OR excluded.meta::text = l.meta::text)"
        " AND ($9::int8 = 0"
        " OR clock_timestamp() - l.renewed_at NOT BETWEEN interval '0' AND $9::int8 * interval '1 ms')"
        " RETURNING " LEASE_COLUMNS ", l.xmax = 0",
};

static const struct db_stmt room_revisions_stmt = {
    .name = "room_revisions",
    .sql = "SELECT room_id, revision FROM stillhere.room WHERE room_id = ANY($1::text[]) ORDER BY room_id",
};

static const struct db_stmt now_stmt = {.name = "now", .sql = "SELECT clock_timestamp()"};

static int64_t op_at_revision(const void *ops, size_t i) {
  const struct op *op = ((struct op *const *)ops)[i];
  return op->revision_given ? op->revision : 1;
}

static int64_t op_at_given(const void *ops, size_t i) {
  return ((struct op *const *)ops)[i]->revision_given;
}

static const char *string_at(const void *list, size_t i) {
  return ((const char *const *)list)[i];
}

/// A copy of a text column; false when memory ran out.
static bool copy_text(char **to, const PGresult *r, int row, int col) {
  free(*to);
  *to = db_null(r, row, col) ? NULL : strdup(db_text(r, row, col));
  return *to != NULL || db_null(r, row, col);
}

bool lease_from_row(struct op *op, const PGresult *r, int row) {
  struct lease *l = &op->lease;
  l->key = op->key;
  l->revision = db_int8(r, row, 3);
  l->prior_revision = db_null(r, row, 4) ? 0 : db_int8(r, row, 4);
  l->ttl_ms = (int32_t)db_int8(r, row, 5);
  l->granted_at_us = db_time(r, row, 6);
  l->renewed_at_us = db_time(r, row, 7);
  l->expires_at_us = db_time(r, row, 8);
  return copy_text(&l->meta, r, row, 9) && copy_text(&l->request_id, r, row, 10);
}

/// The distinct rooms of sorted ops. @return how many, in @a rooms
static size_t distinct_rooms(struct op *const *ops, size_t n, const char **rooms) {
  size_t n_rooms = 0;
  for (size_t i = 0; i < n; i++) {
    if (n_rooms == 0 || strcmp(rooms[n_rooms - 1], ops[i]->key.room_id) != 0) {
      rooms[n_rooms++] = ops[i]->key.room_id;
    }
  }
  return n_rooms;
}

/// Gives each op the revision that its room has. Both are sorted by room.
static void take_room_revisions(struct op *const *ops, size_t n, const PGresult *r) {
  int row = 0;
  for (size_t i = 0; i < n; i++) {
    while (row < PQntuples(r) && strcmp(db_text(r, row, 0), ops[i]->key.room_id) < 0) {
      row++;
    }
    bool found = row < PQntuples(r) && strcmp(db_text(r, row, 0), ops[i]->key.room_id) == 0;
    ops[i]->room_revision = found ? db_int8(r, row, 1) : 0;
  }
}

static enum db_status take_rows(struct op *const *ops, size_t n, const PGresult *r, enum renewed *outcome) {
  size_t from = 0;
  for (int row = 0; row < PQntuples(r); row++) {
    struct lease_key key = {db_text(r, row, 0), db_text(r, row, 1), db_text(r, row, 2)};
    struct op *op = ops_find_next(ops, n, &from, &key);
    if (op == NULL || !lease_from_row(op, r, row)) {
      return DB_FAILED;
    }
    outcome[from - 1] = db_bool(r, row, LEASE_COLUMN_COUNT) ? RENEW_INSERTED : RENEW_DONE;
  }
  return DB_OK;
}

#define RENEW_STEPS_MAX 3

/// The statements of a round that give back leases, with their parameters: one, or three where the tables are
/// distributed. @return how many
static int renew_steps(struct db_step steps[RENEW_STEPS_MAX], bool distributed, const struct db_params *keys,
                       const struct db_params *p) {
  if (!distributed) {
    steps[0] = (struct db_step){&renew_stmt, p};
    return 1;
  }
  steps[0] = (struct db_step){&leases_hold_stmt, keys};
  steps[1] = (struct db_step){&renew_held_stmt, p};
  steps[2] = (struct db_step){&renew_insert_stmt, p};
  return 3;
}

static void key_params(struct db_params *p, struct op *const *ops, size_t n) {
  db_p_text_array(p, n, op_at_room, ops);
  db_p_text_array(p, n, op_at_user, ops);
  db_p_text_array(p, n, op_at_session, ops);
}

enum db_status renew_round(struct db *db, struct op *const *ops, size_t n, int64_t renew_min_ms, enum renewed *outcome,
                           int64_t *now_us) {
  const char **rooms = calloc(n, sizeof *rooms);
  if (rooms == NULL) {
    return DB_FAILED;
  }
  struct db_params keys = {0}, p = {0}, q = {0};
  key_params(&keys, ops, n);
  key_params(&p, ops, n);
  db_p_int8_array(&p, n, op_at_revision, ops);
  db_p_bool_array(&p, n, op_at_given, ops);
  db_p_int4_array(&p, n, op_at_ttl, ops);
  db_p_text_array(&p, n, op_at_meta, ops);
  db_p_text_array(&p, n, op_at_request_id, ops);
  db_p_int8(&p, renew_min_ms);
  db_p_text_array(&q, distinct_rooms(ops, n, rooms), string_at, rooms);
  struct db_step steps[RENEW_STEPS_MAX + 2];
  int n_renew = renew_steps(steps, db_distributed(db), &keys, &p);
  steps[n_renew] = (struct db_step){&room_revisions_stmt, &q};
  steps[n_renew + 1] = (struct db_step){&now_stmt, NULL};
  PGresult *results[ARRAY_LEN(steps)] = {0};
  enum db_status status = db_pipeline(db, steps, n_renew + 2, results);
  if (status == DB_OK) {
    for (size_t i = 0; i < n; i++) {
      outcome[i] = RENEW_LEFT;
    }
    for (int i = 0; i < n_renew && status == DB_OK; i++) {
      status = take_rows(ops, n, results[i], outcome);
    }
    take_room_revisions(ops, n, results[n_renew]);
    *now_us = db_time(results[n_renew + 1], 0, 0);
  }
  for (int i = 0; i < n_renew + 2; i++) {
    PQclear(results[i]);
  }
  db_params_clear(&keys);
  db_params_clear(&p);
  db_params_clear(&q);
  free(rooms);
  return status;
}
