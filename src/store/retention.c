// SPDX-License-Identifier: Apache-2.0
#include "store/sweep.h"

/// Rows pruned in one statement at most (of one room, for the count), so that no transaction grows long.
#define PRUNE_MAX 5000

// Raising the floor and deleting below it are one statement, so no reader sees one without the other. Rooms that a
// writer holds are passed over until the next time.
#define PRUNE_BELOW_FLOOR                                                                                              \
  " locked AS (SELECT r.room_id, old.floor FROM stillhere.room r JOIN old ON r.room_id = ANY (ARRAY[old.room_id])"     \
  " ORDER BY r.room_id FOR UPDATE OF r SKIP LOCKED),"                                                                  \
  " raised AS (UPDATE stillhere.room r SET pruned_revision = GREATEST(r.pruned_revision, locked.floor)"                \
  " FROM locked WHERE r.room_id = ANY (ARRAY[locked.room_id]) RETURNING r.room_id, r.pruned_revision),"                \
  " gone AS (DELETE FROM stillhere.event e USING raised WHERE e.room_id = ANY (ARRAY[raised.room_id])"                 \
  " AND e.revision <= raised.pruned_revision RETURNING 1)"                                                             \
  " SELECT count(*) FROM gone"

// Where the tables are distributed rooms are waited for, and what is chosen is looked at again when it is changed.
#define DISTRIBUTED_BELOW_FLOOR                                                                                        \
  " raised AS MATERIALIZED (UPDATE stillhere.room r SET pruned_revision = GREATEST(r.pruned_revision, old.floor)"      \
  " FROM old WHERE r.room_id = old.room_id RETURNING r.room_id, r.pruned_revision),"                                   \
  " gone AS MATERIALIZED (DELETE FROM stillhere.event e USING raised WHERE e.room_id = raised.room_id"                 \
  " AND e.revision <= raised.pruned_revision RETURNING 1 AS one)"                                                      \
  " SELECT count(*) FROM gone"

// now() rather than clock_timestamp(), which an index cannot be asked for: what is not old yet would all be read.
static const struct db_stmt by_age_stmt = {
    .name = "prune_events_by_age",
    .sql = "WITH old AS (SELECT e.room_id, max(e.revision) AS floor"
           " FROM (SELECT room_id, revision FROM stillhere.event"
           " WHERE at < now() - $1 * interval '1 ms' ORDER BY at LIMIT $2) e GROUP BY e.room_id)," PRUNE_BELOW_FLOOR,
    .distributed = "WITH o AS MATERIALIZED (SELECT room_id, revision FROM stillhere.event"
                   " WHERE at < now() - $1 * interval '1 ms' ORDER BY at LIMIT $2),"
                   " old AS MATERIALIZED (SELECT room_id, max(revision) AS floor FROM o"
                   " GROUP BY room_id)," DISTRIBUTED_BELOW_FLOOR,
};

static const struct db_stmt by_count_stmt = {
    .name = "prune_events_by_count",
    .sql = "WITH old AS (SELECT room_id, LEAST(revision - $1, pruned_revision + $2) AS floor FROM stillhere.room"
           " WHERE revision - pruned_revision > $1 ORDER BY room_id LIMIT 100)," PRUNE_BELOW_FLOOR,
    .distributed =
        "WITH old AS MATERIALIZED (SELECT room_id, LEAST(revision - $1, pruned_revision + $2) AS floor"
        " FROM stillhere.room WHERE revision - pruned_revision > $1 ORDER BY room_id LIMIT 100)," DISTRIBUTED_BELOW_FLOOR,
};

static const struct db_stmt tombstones_stmt = {
    .name = "prune_tombstones",
    .sql = "WITH old AS (SELECT room_id, user_id, session_id FROM stillhere.tombstone"
           " WHERE ended_at < now() - $1 * interval '1 ms' ORDER BY ended_at LIMIT $2"
           " FOR UPDATE SKIP LOCKED),"
           " gone AS (DELETE FROM stillhere.tombstone t USING old WHERE t.room_id = ANY (ARRAY[old.room_id])"
           " AND t.user_id = old.user_id AND t.session_id = old.session_id RETURNING 1)"
           " SELECT count(*) FROM gone",
    .distributed = "WITH old AS MATERIALIZED (SELECT room_id, user_id, session_id FROM stillhere.tombstone"
                   " WHERE ended_at < now() - $1 * interval '1 ms' ORDER BY ended_at LIMIT $2),"
                   " gone AS MATERIALIZED (DELETE FROM stillhere.tombstone t USING old WHERE t.room_id = old.room_id"
                   " AND t.user_id = old.user_id AND t.session_id = old.session_id"
                   " AND t.ended_at < " DB_TIME_DISTRIBUTED " - $1 * interval '1 ms' RETURNING 1 AS one)"
                   " SELECT count(*) FROM gone",
};

/// Runs one of them with @a bound. @param[out] more set when it may have left something
static enum db_status prune(struct db *db, const struct db_stmt *stmt, int64_t bound, bool *more) {
  struct db_params p = {0};
  PGresult *r = NULL;
  db_p_int8(&p, bound);
  db_p_int8(&p, PRUNE_MAX);
  enum db_status status = db_run(db, stmt, &p, &r);
  db_params_clear(&p);
  if (status == DB_OK) {
    *more = *more || db_int8(r, 0, 0) >= PRUNE_MAX;
    PQclear(r);
  }
  return status;
}

enum db_status sweep_retention(struct db *db, int64_t max_age_ms, int64_t max_count, int64_t tombstone_age_ms,
                               bool *more) {
  *more = false;
  enum db_status status = prune(db, &by_age_stmt, max_age_ms, more);
  if (status == DB_OK) {
    status = prune(db, &by_count_stmt, max_count, more);
  }
  if (status == DB_OK) {
    status = prune(db, &tombstones_stmt, tombstone_age_ms, more);
  }
  return status;
}
