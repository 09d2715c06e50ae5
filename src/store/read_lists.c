// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "store/read.h"

// One reading of the clock for all rows: what is listed and what remains are judged at the same moment.
static const struct db_stmt leases_stmt = {
    .name = "read_leases",
    .sql = "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now)"
           " SELECT c.now, l.user_id, l.session_id, l.revision, l.ttl_ms, l.granted_at, l.renewed_at, l.expires_at,"
           " l.meta::text FROM c JOIN stillhere.lease l ON l.room_id = $1 AND l.expires_at > c.now"
           " ORDER BY l.user_id, l.session_id"};

enum { COL_NOW, COL_USER, COL_SESSION, COL_REVISION, COL_TTL, COL_GRANTED, COL_RENEWED, COL_EXPIRES, COL_META };

// The rooms are cut to the page before their leases are counted.
static const struct db_stmt room_list_stmt = {
    .name = "read_room_list",
    .sql = "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now),"
           " page AS MATERIALIZED (SELECT room_id, revision, changed_at FROM stillhere.room"
           "  WHERE room_id > $1 AND room_id >= $2 AND room_id <= $3 ORDER BY room_id LIMIT $4)"
           " SELECT page.room_id, page.revision, n.users, n.sessions, page.changed_at"
           " FROM c CROSS JOIN page CROSS JOIN LATERAL (SELECT count(DISTINCT l.user_id) AS users, count(*) AS sessions"
           "  FROM stillhere.lease l WHERE l.room_id = page.room_id AND l.expires_at > c.now) n"
           " ORDER BY page.room_id",
    .distributed =
        "WITH page AS MATERIALIZED (SELECT room_id, revision, changed_at FROM stillhere.room"
        "  WHERE room_id > $1 AND room_id >= $2 AND room_id <= $3 ORDER BY room_id LIMIT $4),"
        " n AS MATERIALIZED (SELECT l.room_id, count(DISTINCT l.user_id) AS users, count(*) AS sessions"
        "  FROM stillhere.lease l JOIN page ON l.room_id = page.room_id WHERE l.expires_at > clock_timestamp()"
        "  GROUP BY l.room_id)"
        " SELECT page.room_id, page.revision, coalesce(n.users, 0), coalesce(n.sessions, 0), page.changed_at"
        " FROM page LEFT JOIN n ON n.room_id = page.room_id ORDER BY page.room_id COLLATE \"C\""};

enum { COL_ROOM, COL_HEAD, COL_USERS, COL_SESSIONS, COL_CHANGED };

// Milliseconds from `now` on, never negative, and within what a JSON reader takes exactly: expires_at may be infinite.
static int64_t remaining_ms(int64_t now_us, int64_t expires_at_us) {
  if (expires_at_us <= now_us)
    return 0;
  int64_t left_ms = expires_at_us / 1000 - now_us / 1000;
  return left_ms < REVISION_MAX ? left_ms : REVISION_MAX;
}

static void lease_json(struct buf *out, const char *room_id, const PGresult *r, int row) {
  jo_object(out);
  jo_kstr(out, "room_id", room_id);
  jo_kstr(out, "user_id", db_text(r, row, COL_USER));
  jo_kstr(out, "session_id", db_text(r, row, COL_SESSION));
  jo_kint(out, "revision", db_int8(r, row, COL_REVISION));
  jo_kint(out, "ttl_ms", db_int8(r, row, COL_TTL));
  jo_ktime(out, "granted_at", db_time(r, row, COL_GRANTED));
  jo_ktime(out, "renewed_at", db_time(r, row, COL_RENEWED));
  jo_ktime(out, "expires_at", db_time(r, row, COL_EXPIRES));
  const char *meta = db_null(r, row, COL_META) ? "{}" : db_text(r, row, COL_META);
  jo_key(out, "meta");
  jo_raw(out, meta, strlen(meta));
  jo_kint(out, "remaining_ms", remaining_ms(db_time(r, row, COL_NOW), db_time(r, row, COL_EXPIRES)));
  jo_object_end(out);
}

enum db_status read_leases(struct db *db, const char *room_id, struct buf *out) {
  struct db_params p = {0};
  db_p_text(&p, room_id);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &leases_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  jo_object(out);
  jo_kstr(out, "room_id", room_id);
  jo_key(out, "leases");
  jo_array(out);
  for (int row = 0; row < PQntuples(r); row++)
    lease_json(out, room_id, r, row);
  jo_array_end(out);
  PQclear(r);
  return out->failed ? DB_FAILED : DB_OK;
}

static void room_json(struct buf *out, const PGresult *r, int row) {
  jo_object(out);
  jo_kstr(out, "room_id", db_text(r, row, COL_ROOM));
  jo_kint(out, "revision", db_int8(r, row, COL_HEAD));
  jo_kint(out, "users", db_int8(r, row, COL_USERS));
  jo_kint(out, "sessions", db_int8(r, row, COL_SESSIONS));
  jo_ktime(out, "changed_at", db_time(r, row, COL_CHANGED));
  jo_object_end(out);
}

// The largest identifier that can begin with `prefix`: bytes compare as code points, and no more than IDENT_MAX / 4 of
// the largest code point can follow. A range instead of a pattern, so that the scan of the primary key ends there.
static void range_end(struct buf *out, const char *prefix) {
  buf_puts(out, prefix);
  for (int i = 0; i < IDENT_MAX / 4; i++)
    buf_puts(out, "\xF4\x8F\xBF\xBF");
}

enum db_status read_room_list(struct db *db, const char *prefix, const char *after, int limit, struct buf *out) {
  struct buf end = {0};
  range_end(&end, prefix ? prefix : "");
  if (end.failed)
    return DB_FAILED;
  struct db_params p = {0};
  db_p_text(&p, after ? after : "");
  db_p_text(&p, prefix ? prefix : "");
  db_p_text(&p, end.data);
  db_p_int8(&p, (int64_t)limit + 1);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &room_list_stmt, &p, &r);
  db_params_clear(&p);
  buf_free(&end);
  if (status != DB_OK)
    return status;
  int n = PQntuples(r) > limit ? limit : PQntuples(r);
  jo_object(out);
  jo_key(out, "rooms");
  jo_array(out);
  for (int row = 0; row < n; row++)
    room_json(out, r, row);
  jo_array_end(out);
  jo_kstr(out, "next", PQntuples(r) > limit && n > 0 ? db_text(r, n - 1, COL_ROOM) : NULL);
  PQclear(r);
  return out->failed ? DB_FAILED : DB_OK;
}
