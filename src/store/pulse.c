// SPDX-License-Identifier: Apache-2.0
#include "store/pulse.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"

/// Outages are forgotten after this long; no lease lives from before it.
#define OUTAGES_KEPT "interval '2 days'"

/// Leases that end within this time have their credit written down already, so that lists show them as live throughout.
#define AHEAD "interval '5 s'"

// No row when the pulse has stood still for too long, or lies in the future.
static const struct db_stmt beat_stmt = {
    .name = "pulse_beat",
    .sql = "UPDATE stillhere.pulse SET alive_at = clock_timestamp() WHERE one AND alive_at BETWEEN clock_timestamp() -"
           " $1 * interval '1 ms' AND clock_timestamp() RETURNING (SELECT max(ended_at) FROM stillhere.outage)",
};

// Nothing is less than the empty name; every shard is asked for it.
static const struct db_stmt nodes_stmt = {
    .name = "pulse_nodes",
    .sql = "SELECT count(*) FROM stillhere.room WHERE room_id < ''",
};

static const struct db_stmt lock_stmt = {.name = "pulse_lock",
                                         .sql = "SELECT 1 FROM stillhere.pulse WHERE one FOR UPDATE"};

// Somebody has taken the row away. From when on nobody could renew is not known then.
static const struct db_stmt begin_stmt = {
    .name = "pulse_begin",
    .sql = "INSERT INTO stillhere.pulse (alive_at) VALUES (clock_timestamp()) ON CONFLICT DO NOTHING",
};

// The clock is read with the row locked. A pulse that is not late, since somebody else was here first, writes nothing,
// nor does one that somebody has set to no time at all.
static const struct db_stmt record_stmt = {
    .name = "pulse_record",
    .sql = "WITH p AS (SELECT CASE WHEN isfinite(alive_at) THEN alive_at ELSE t.now END AS alive_at, t.now"
           " FROM stillhere.pulse, (SELECT clock_timestamp() AS now OFFSET 0) t WHERE one),"
           " o AS (INSERT INTO stillhere.outage (began_at, ended_at) SELECT alive_at, now FROM p"
           " WHERE now - alive_at > $1 * interval '1 ms' ON CONFLICT DO NOTHING RETURNING began_at, ended_at),"
           " u AS (UPDATE stillhere.pulse SET alive_at = p.now FROM p WHERE one)"
           " SELECT coalesce((SELECT extract(epoch FROM ended_at - began_at) * 1000 FROM o)::int8, 0),"
           " p.alive_at > p.now FROM p",
};

// The clock was set back: what was renewed in what is now the future counts from now.
static const struct db_stmt shorten_stmt = {
    .name = "pulse_shorten",
    .sql = "UPDATE stillhere.lease SET renewed_at = t.now, expires_at = t.now + ttl_ms * interval '1 ms'"
           " FROM (SELECT clock_timestamp() AS now OFFSET 0) t WHERE renewed_at > t.now",
    .distributed = "WITH l AS MATERIALIZED (SELECT x.room_id, x.user_id, x.session_id, x.revision, t.now,"
                   " t.now + x.ttl_ms * interval '1 ms' AS ends"
                   " FROM stillhere.lease x, (SELECT " DB_TIME_DISTRIBUTED " AS now OFFSET 0) t"
                   " WHERE x.renewed_at > t.now)"
                   " UPDATE stillhere.lease x SET renewed_at = l.now, expires_at = l.ends FROM l"
                   " WHERE x.room_id = l.room_id AND x.user_id = l.user_id AND x.session_id = l.session_id"
                   " AND x.revision = l.revision",
};

#define SHORTEN_GRACES(now)                                                                                            \
  "UPDATE stillhere.room_user SET offline_at = t.latest FROM (SELECT " now " + $1 * interval '1 ms'"                   \
  " AS latest OFFSET 0) t WHERE offline_at > t.latest"
static const struct db_stmt shorten_graces_stmt = {
    .name = "pulse_shorten_graces",
    .sql = SHORTEN_GRACES(DB_TIME_PLAIN),
    .distributed = SHORTEN_GRACES(DB_TIME_DISTRIBUTED),
};

static const struct db_stmt forget_stmt = {
    .name = "outages_forget",
    .sql = "DELETE FROM stillhere.outage WHERE ended_at NOT BETWEEN clock_timestamp() - " OUTAGES_KEPT
           " AND clock_timestamp()",
};

static const struct db_stmt newest_stmt = {.name = "outage_newest",
                                           .sql = "SELECT max(ended_at) FROM stillhere.outage"};

// now() is the beginning of the transaction. An outage bears the time at which it was found, and is seen a moment
// later, when that has been committed: perhaps after somebody who began in between has judged.
static const struct db_stmt doubt_stmt = {
    .name = "pulse_doubt",
    .sql = "SELECT p.alive_at < clock_timestamp() - $1 * interval '1 ms'"
           " OR EXISTS (SELECT FROM stillhere.outage o WHERE o.ended_at >= now() - $2 * interval '1 ms')"
           " FROM stillhere.pulse p WHERE p.one",
};

static const struct db_stmt credit_stmt = {
    .name = "pulse_credit",
    .sql = "WITH due AS (SELECT l.room_id, l.user_id, l.session_id, " CREDITED_END " AS until FROM stillhere.lease l"
           " WHERE l.expires_at <= clock_timestamp() + " AHEAD
           " AND l.renewed_at < timestamptz 'epoch' + $2 * interval '1 microsecond'"
           " AND l.expires_at < " CREDITED_END
           " ORDER BY l.room_id, l.user_id, l.session_id LIMIT $1 FOR UPDATE OF l SKIP LOCKED)"
           " UPDATE stillhere.lease l SET expires_at = due.until FROM due WHERE l.room_id = ANY (ARRAY[due.room_id])"
           " AND l.user_id = due.user_id AND l.session_id = due.session_id RETURNING 1",
    // What was renewed meanwhile has another revision.
    .distributed = "WITH l AS MATERIALIZED (SELECT l.room_id, l.user_id, l.session_id, l.revision, l.expires_at,"
                   " l.renewed_at, l.ttl_ms FROM stillhere.lease l WHERE l.expires_at <= clock_timestamp() + " AHEAD
                   " AND l.renewed_at < timestamptz 'epoch' + $2 * interval '1 microsecond'),"
                   " due AS MATERIALIZED (SELECT l.room_id, l.user_id, l.session_id, l.revision, " CREDITED_END
                   " AS until FROM l WHERE l.expires_at < " CREDITED_END " LIMIT $1)"
                   " UPDATE stillhere.lease l SET expires_at = due.until FROM due WHERE l.room_id = due.room_id"
                   " AND l.user_id = due.user_id AND l.session_id = due.session_id AND l.revision = due.revision"
                   " RETURNING 1",
};

static const struct db_stmt credit_graces_stmt = {
    .name = "pulse_credit_graces",
    .sql =
        "WITH o AS (UPDATE stillhere.outage SET graces_credited = true WHERE NOT graces_credited"
        " RETURNING began_at, ended_at)"
        " UPDATE stillhere.room_user u SET offline_at = u.offline_at + gap.length"
        " FROM (SELECT min(began_at) AS began_at, max(ended_at) AS ended_at, sum(ended_at - began_at) AS length FROM o)"
        " gap WHERE u.offline_at > gap.began_at AND u.offline_at - $1 * interval '1 ms' < gap.ended_at",
    .distributed =
        "WITH o AS MATERIALIZED (UPDATE stillhere.outage SET graces_credited = true WHERE NOT graces_credited"
        " RETURNING began_at, ended_at),"
        " gap AS MATERIALIZED (SELECT min(began_at) AS began_at, max(ended_at) AS ended_at,"
        " sum(ended_at - began_at) AS length FROM o),"
        " due AS MATERIALIZED (SELECT u.room_id, u.user_id, u.offline_at, u.offline_at + gap.length AS until"
        " FROM stillhere.room_user u, gap"
        " WHERE u.offline_at > gap.began_at AND u.offline_at - $1 * interval '1 ms' < gap.ended_at)"
        " UPDATE stillhere.room_user u SET offline_at = due.until FROM due"
        " WHERE u.room_id = due.room_id AND u.user_id = due.user_id AND u.offline_at = due.offline_at",
};

static enum db_status run_int8(struct db *db, const struct db_stmt *stmt, int64_t param, PGresult **r) {
  struct db_params p = {0};
  db_p_int8(&p, param);
  enum db_status status = db_run(db, stmt, &p, r);
  db_params_clear(&p);
  return status;
}

/// @param[out] back whether the pulse lay in the future
static enum db_status record(struct db *db, int64_t silence_ms, bool *back) {
  PGresult *r = NULL;
  enum db_status status = db_run(db, &lock_stmt, NULL, &r);
  bool gone = status == DB_OK && PQntuples(r) == 0;
  if (status == DB_OK) {
    PQclear(r);
    r = NULL;
  }
  if (gone) {
    log_warning("the row of stillhere.pulse is gone: outages from before now are not known");
    status = db_run(db, &begin_stmt, NULL, NULL);
  }
  if (status == DB_OK) {
    status = run_int8(db, &record_stmt, silence_ms, &r);
  }
  if (status != DB_OK) {
    return status;
  }
  int64_t gap_ms = db_int8(r, 0, 0);
  *back = db_bool(r, 0, 1);
  PQclear(r);
  if (gap_ms > 0) {
    log_warning("nobody could renew for %lld ms: the leases that were live then get that time", (long long)gap_ms);
    metric_add(METRIC_OUTAGE_CREDIT_MS, gap_ms);
  }
  return DB_OK;
}

struct beat {
  int64_t silence_ms, grace_ms;
  int64_t *outage_us;
};

static enum db_status record_work(struct db *db, void *ctx) {
  const struct beat *beat = ctx;
  bool back = false;
  enum db_status status = record(db, beat->silence_ms, &back);
  if (status == DB_OK && back) {
    log_warning("the clock of the database was set back: leases of what is now the future count from now");
    status = db_run(db, &shorten_stmt, NULL, NULL);
    if (status == DB_OK) {
      status = run_int8(db, &shorten_graces_stmt, beat->grace_ms, NULL);
    }
  }
  if (status == DB_OK) {
    status = db_run(db, &forget_stmt, NULL, NULL);
  }
  PGresult *r = NULL;
  if (status == DB_OK) {
    status = db_run(db, &newest_stmt, NULL, &r);
  }
  if (status == DB_OK) {
    *beat->outage_us = db_null(r, 0, 0) ? TIME_MINUS_INFINITY : db_time(r, 0, 0);
    PQclear(r);
  }
  return status;
}

/// The pulse itself is on the coordinator. While a node is away nobody can renew in its rooms, and so it stands still.
static enum db_status ask_all_nodes(struct db *db) {
  enum db_status status = db_connect(db);
  if (status != DB_OK || !db_distributed(db)) {
    return status;
  }
  PGresult *r = NULL;
  status = db_alone(db, &nodes_stmt, NULL, &r);
  PQclear(r);
  return status;
}

enum db_status pulse_beat(struct db *db, int64_t silence_ms, int64_t grace_ms, int64_t *outage_us) {
  enum db_status there = ask_all_nodes(db);
  if (there != DB_OK) {
    return there;
  }
  struct db_params p = {0};
  PGresult *r = NULL;
  db_p_int8(&p, silence_ms);
  enum db_status status = db_alone(db, &beat_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK) {
    return status;
  }
  bool beaten = PQntuples(r) > 0;
  if (beaten) {
    *outage_us = db_null(r, 0, 0) ? TIME_MINUS_INFINITY : db_time(r, 0, 0);
  }
  PQclear(r);
  struct beat beat = {.silence_ms = silence_ms, .grace_ms = grace_ms, .outage_us = outage_us};
  return beaten ? DB_OK : db_transaction(db, record_work, &beat);
}

enum db_status pulse_doubt(struct db *db, int64_t silence_ms, int64_t before_ms, bool *doubt) {
  struct db_params p = {0};
  PGresult *r = NULL;
  db_p_int8(&p, silence_ms);
  db_p_int8(&p, before_ms);
  enum db_status status = db_run(db, &doubt_stmt, &p, &r);
  db_params_clear(&p);
  if (status == DB_OK) {
    *doubt = PQntuples(r) > 0 && db_bool(r, 0, 0);
    PQclear(r);
  }
  return status;
}

enum db_status pulse_settle(struct db *db, int64_t silence_ms) {
  bool back;
  return record(db, silence_ms, &back);
}

enum db_status pulse_credit_leases(struct db *db, int64_t outage_us, size_t max, bool *more) {
  struct db_params p = {0};
  PGresult *r = NULL;
  db_p_int8(&p, (int64_t)max);
  db_p_int8(&p, outage_us);
  enum db_status status = db_alone(db, &credit_stmt, &p, &r);
  db_params_clear(&p);
  if (status == DB_OK) {
    *more = (size_t)PQntuples(r) >= max;
    PQclear(r);
  }
  return status;
}

enum db_status pulse_credit_graces(struct db *db, int64_t grace_ms) {
  struct db_params p = {0};
  PGresult *r = NULL;
  db_p_int8(&p, grace_ms);
  enum db_status status = db_alone(db, &credit_graces_stmt, &p, &r);
  db_params_clear(&p);
  PQclear(r);
  return status;
}
