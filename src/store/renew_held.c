// SPDX-License-Identifier: Apache-2.0
#include "store/renew_held.h"

#include "store/renew.h"

// Says again what the join says, so that Citus asks no shard that has none of the rooms: a batch for one room is one
// node's business, also when it commits.
#define OF_ROOMS " AND l.room_id = ANY($1::text[])"

const struct db_stmt leases_hold_stmt = {
    .name = "leases_hold",
    .sql = "UPDATE stillhere.lease AS l SET revision = l.revision"
           " FROM unnest($1::text[], $2::text[], $3::text[]) AS i(room_id, user_id, session_id)"
           " WHERE l.room_id = i.room_id AND l.user_id = i.user_id AND l.session_id = i.session_id" OF_ROOMS,
};

#define GIVEN                                                                                                          \
  " FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::bool[], $6::int4[], $7::text[], $8::text[])"       \
  " AS i(room_id, user_id, session_id, revision, given, ttl_ms, meta, request_id)"
#define IN_ORDER(inserted)                                                                                             \
  " RETURNING " LEASE_COLUMNS ") SELECT " LEASE_COLUMNS ", " inserted                                                  \
  " FROM l ORDER BY l.room_id COLLATE \"C\", l.user_id COLLATE \"C\", l.session_id COLLATE \"C\""

// What is reckoned from the time and a row of the arrays stands in a subquery, where Citus does not mind. The WHERE is
// decide_live() of lease_rules.c for the answer `accepted`, in SQL.
const struct db_stmt renew_held_stmt = {
    .name = "renew_held",
    .sql = "WITH l AS MATERIALIZED (UPDATE stillhere.lease AS l SET"
           " revision = CASE WHEN i.given THEN i.revision ELSE l.revision + 1 END, prior_revision = l.revision,"
           " revision_given = i.given, ttl_ms = i.ttl_ms, renewed_at = i.now, expires_at = i.ends,"
           " request_id = i.request_id FROM (SELECT i.*, " DB_TIME_DISTRIBUTED " AS now, " DB_TIME_DISTRIBUTED
           " + i.ttl_ms * interval '1 ms' AS ends" GIVEN " OFFSET 0) i"
           " WHERE l.room_id = i.room_id AND l.user_id = i.user_id AND l.session_id = i.session_id" OF_ROOMS
           " AND l.expires_at > " DB_TIME_DISTRIBUTED
           " AND CASE WHEN i.given THEN i.revision > l.revision ELSE l.revision < 9007199254740991 END"
           " AND (i.meta IS NULL OR i.meta = l.meta::text)"
           " AND ($9::int8 = 0 OR " DB_TIME_DISTRIBUTED
           " - l.renewed_at NOT BETWEEN interval '0' AND $9::int8 * interval '1 ms')" IN_ORDER("false"),
};

// What came since the locks were taken is in the way, and left to be decided with the others.
const struct db_stmt renew_insert_stmt = {
    .name = "renew_insert",
    .sql = "WITH l AS MATERIALIZED (INSERT INTO stillhere.lease AS l (room_id, user_id, session_id, revision,"
           " revision_given, ttl_ms, granted_at, renewed_at, expires_at, meta, request_id)"
           " SELECT i.room_id, i.user_id, i.session_id, i.revision, i.given, i.ttl_ms, " DB_TIME_DISTRIBUTED
           ", " DB_TIME_DISTRIBUTED ", " DB_TIME_DISTRIBUTED
           " + i.ttl_ms * interval '1 ms', i.meta::json, i.request_id" GIVEN
           " ON CONFLICT (room_id, user_id, session_id) DO NOTHING" IN_ORDER("true"),
};

struct held {
  const struct db_step *steps;
  PGresult *results[2];
};

static enum db_status work(struct db *db, void *ctx) {
  struct held *held = ctx;
  for (int i = 0; i < 2; i++) { // of an attempt before
    PQclear(held->results[i]);
    held->results[i] = NULL;
  }
  return db_pipeline(db, held->steps, 2, held->results);
}

enum db_status renew_after_hold(struct db *db, const struct db_params *keys, const struct db_stmt *stmt,
                                const struct db_params *params, PGresult **result) {
  const struct db_step steps[] = {{&leases_hold_stmt, keys}, {stmt, params}};
  struct held held = {.steps = steps};
  enum db_status status = db_transaction(db, work, &held);
  PQclear(held.results[0]);
  if (status == DB_OK)
    *result = held.results[1];
  else
    PQclear(held.results[1]);
  return status;
}
