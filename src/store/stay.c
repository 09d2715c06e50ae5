// SPDX-License-Identifier: Apache-2.0
#include "store/stay.h"

#include "base/clock.h"
#include "db/epoch.h"

// A member who was granted again and has not come back yet is not revoked, though the tombstone says so.
static const struct db_stmt stays_stmt = {
    .name = "read_stays",
    .sql = "SELECT q.i, l.granted_at, l.expires_at, coalesce(l.expires_at > clock_timestamp(), false),"
           " coalesce(m.revoked_at IS NOT NULL, false), m.room_id IS NULL AND coalesce(t.reason = 'revoked', false),"
           " coalesce(r.revision, 0)"
           " FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS q(room_id, user_id, session_id, i)"
           " LEFT JOIN stillhere.lease l"
           " ON l.room_id = ANY (ARRAY[q.room_id]) AND l.user_id = q.user_id AND l.session_id = q.session_id"
           " LEFT JOIN stillhere.tombstone t"
           " ON t.room_id = ANY (ARRAY[q.room_id]) AND t.user_id = q.user_id AND t.session_id = q.session_id"
           " LEFT JOIN stillhere.member m ON m.room_id = ANY (ARRAY[q.room_id]) AND m.user_id = q.user_id"
           " LEFT JOIN stillhere.room r ON r.room_id = ANY (ARRAY[q.room_id])",
    // All of a room by one join on its node, for the moment; the rest is for rooms that are not there.
    .distributed =
        "WITH x AS MATERIALIZED (SELECT q.i, l.granted_at, l.expires_at, m.revoked_at IS NOT NULL AS member_revoked,"
        " m.room_id IS NULL AND coalesce(t.reason = 'revoked', false) AS lease_revoked, r.revision"
        " FROM stillhere.room r"
        " JOIN unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS q(room_id, user_id, session_id, i)"
        " ON r.room_id = q.room_id AND r.room_id = ANY($1::text[])"
        " LEFT JOIN stillhere.lease l"
        " ON l.room_id = r.room_id AND l.user_id = q.user_id AND l.session_id = q.session_id"
        " LEFT JOIN stillhere.tombstone t"
        " ON t.room_id = r.room_id AND t.user_id = q.user_id AND t.session_id = q.session_id"
        " LEFT JOIN stillhere.member m ON m.room_id = r.room_id AND m.user_id = q.user_id)"
        " SELECT q.i, x.granted_at, x.expires_at, coalesce(x.expires_at > clock_timestamp(), false),"
        " coalesce(x.member_revoked, false), coalesce(x.lease_revoked, false), coalesce(x.revision, 0)"
        " FROM unnest($1::text[]) WITH ORDINALITY AS q(room_id, i) LEFT JOIN x ON x.i = q.i"};

enum { COL_INDEX, COL_GRANTED, COL_EXPIRES, COL_UNEXPIRED, COL_MEMBER_REVOKED, COL_LEASE_REVOKED, COL_ROOM_REVISION };

static const char *at_room(const void *keys, size_t i) {
  return ((const struct lease_key *)keys)[i].room_id;
}

static const char *at_user(const void *keys, size_t i) {
  return ((const struct lease_key *)keys)[i].user_id;
}

static const char *at_session(const void *keys, size_t i) {
  return ((const struct lease_key *)keys)[i].session_id;
}

static struct stay stay_from_row(const PGresult *r, int row) {
  bool member_revoked = db_bool(r, row, COL_MEMBER_REVOKED);
  struct stay stay = {.live = db_bool(r, row, COL_UNEXPIRED) && !member_revoked,
                      .room_revision = db_int8(r, row, COL_ROOM_REVISION)};
  if (stay.live) {
    stay.granted_at_us = db_time(r, row, COL_GRANTED);
    stay.expires_at_us = db_time(r, row, COL_EXPIRES);
  } else {
    stay.revoked = member_revoked || (db_null(r, row, COL_GRANTED) && db_bool(r, row, COL_LEASE_REVOKED));
  }
  return stay;
}

enum db_status read_stays(struct db *db, const struct lease_key *keys, size_t n, struct stay *stays) {
  if (n == 0)
    return DB_OK;
  unsigned generation = epoch_generation();
  int64_t asked_us = clock_mono_us();
  struct db_params p = {0};
  db_p_text_array(&p, n, at_room, keys);
  db_p_text_array(&p, n, at_user, keys);
  db_p_text_array(&p, n, at_session, keys);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &stays_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  if (PQntuples(r) != (int)n)
    status = DB_FAILED;
  for (int row = 0; status == DB_OK && row < PQntuples(r); row++) {
    struct stay *stay = &stays[db_int8(r, row, COL_INDEX) - 1];
    *stay = stay_from_row(r, row);
    stay->generation = generation;
    stay->asked_us = asked_us;
  }
  PQclear(r);
  return status;
}
