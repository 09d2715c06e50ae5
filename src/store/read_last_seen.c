// SPDX-License-Identifier: Apache-2.0
// When users were last seen. Always current: the newest of what was written down and of the leases themselves, which a
// renewal brings forward in its own transaction. A lease that ran out and was not ended yet counts too; only `online`
// asks whether it is live.
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "base/strict.h"
#include "store/read.h"

// room_id <> '' is always true and asks for the index by user (sql/0009-lease-user.sql).
//
// The clock is read once, so that every age in a reply is of the same moment.
static const struct db_stmt user_stmt = {
    .name = "read_user_presence",
    .sql = "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now),"
           " l AS MATERIALIZED (SELECT l.room_id, l.renewed_at, l.expires_at > c.now AS live"
           "  FROM c JOIN stillhere.lease l ON l.user_id = $1 AND l.room_id <> ''),"
           " s AS (SELECT GREATEST((SELECT last_seen_at FROM stillhere.user_last_seen WHERE user_id = $1),"
           "  max(renewed_at)) AS seen_at, count(*) FILTER (WHERE live) AS sessions FROM l)"
           " SELECT c.now, s.seen_at, s.sessions, r.room_id FROM c CROSS JOIN s LEFT JOIN"
           " (SELECT DISTINCT room_id FROM l WHERE live ORDER BY room_id LIMIT $2) r ON true ORDER BY r.room_id"};

enum { USER_NOW, USER_SEEN, USER_SESSIONS, USER_ROOM };

static const struct db_stmt users_stmt = {
    .name = "read_last_seen",
    .sql = "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now)"
           " SELECT c.now, i.user_id, GREATEST(s.last_seen_at, l.renewed_at), coalesce(l.live, false)"
           " FROM c CROSS JOIN unnest($1::text[]) WITH ORDINALITY AS i(user_id, n)"
           " LEFT JOIN stillhere.user_last_seen s ON s.user_id = ANY (ARRAY[i.user_id])"
           " LEFT JOIN LATERAL (SELECT max(renewed_at) AS renewed_at, bool_or(expires_at > c.now) AS live"
           "  FROM stillhere.lease WHERE user_id = i.user_id AND room_id <> '') l ON true ORDER BY i.n",
    .distributed = "WITH s AS MATERIALIZED (SELECT s.user_id, s.last_seen_at FROM stillhere.user_last_seen s"
                   "  WHERE s.user_id = ANY($1::text[])),"
                   " l AS MATERIALIZED (SELECT user_id, max(renewed_at) AS renewed_at, max(expires_at) AS expires_at"
                   "  FROM stillhere.lease WHERE user_id = ANY($1::text[]) AND room_id <> '' GROUP BY user_id),"
                   " c AS MATERIALIZED (SELECT clock_timestamp() AS now)"
                   " SELECT c.now, i.user_id, GREATEST(s.last_seen_at, l.renewed_at),"
                   " coalesce(l.expires_at > c.now, false)"
                   " FROM c CROSS JOIN unnest($1::text[]) WITH ORDINALITY AS i(user_id, n)"
                   " LEFT JOIN s ON s.user_id = i.user_id LEFT JOIN l ON l.user_id = i.user_id ORDER BY i.n"};

// Sorted anew each time: an index on a time that every flush changes would cost more than it gives. What somebody has
// set to a time that no cursor can name is listed at the end of those that one can, so that pages come to an end.
static const struct db_stmt room_stmt = {
    .name = "read_room_last_seen",
    .sql =
        "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now),"
        " s AS (SELECT user_id, LEAST(GREATEST(max(seen_at), timestamptz 'epoch'), timestamptz '2200-01-01 00:00:00+00')"
        "   AS seen_at, bool_or(live) AS live FROM"
        "  (SELECT user_id, last_seen_at AS seen_at, false AS live FROM stillhere.room_last_seen WHERE room_id = $1"
        "   UNION ALL SELECT l.user_id, l.renewed_at, l.expires_at > c.now"
        "   FROM c JOIN stillhere.lease l ON l.room_id = $1) x GROUP BY user_id),"
        " a AS (SELECT timestamptz 'epoch' + $2 * interval '1 microsecond' AS seen_at)"
        " SELECT c.now, s.user_id, s.seen_at, s.live FROM c CROSS JOIN s CROSS JOIN a"
        " WHERE $3 IS NULL OR s.seen_at < a.seen_at OR (s.seen_at = a.seen_at AND s.user_id > $3)"
        " ORDER BY s.seen_at DESC, s.user_id LIMIT $4"};

enum { COL_NOW, COL_USER, COL_SEEN, COL_LIVE };

/// `"last_seen_at":…,"last_seen_ago_ms":…`, nulls where nobody was seen.
static void seen_json(struct buf *out, const PGresult *r, int row, int now_col, int seen_col) {
  if (db_null(r, row, seen_col)) {
    jo_kstr(out, "last_seen_at", NULL);
    jo_kstr(out, "last_seen_ago_ms", NULL);
    return;
  }
  int64_t now_us = db_time(r, row, now_col), seen_us = time_bounded(db_time(r, row, seen_col));
  jo_ktime(out, "last_seen_at", seen_us);
  jo_kint(out, "last_seen_ago_ms", seen_us < now_us ? (now_us - seen_us) / 1000 : 0);
}

enum db_status read_user_presence(struct db *db, const char *user_id, struct buf *out) {
  struct db_params p = {0};
  db_p_text(&p, user_id);
  db_p_int8(&p, USER_ROOMS_MAX + 1);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &user_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  int rooms = db_null(r, 0, USER_ROOM) ? 0 : PQntuples(r);
  jo_object(out);
  jo_kstr(out, "user_id", user_id);
  jo_kbool(out, "online", db_int8(r, 0, USER_SESSIONS) > 0);
  jo_key(out, "rooms");
  jo_array(out);
  for (int row = 0; row < rooms && row < USER_ROOMS_MAX; row++)
    jo_str(out, db_text(r, row, USER_ROOM));
  jo_array_end(out);
  if (rooms > USER_ROOMS_MAX)
    jo_kbool(out, "more_rooms", true);
  jo_kint(out, "sessions", db_int8(r, 0, USER_SESSIONS));
  seen_json(out, r, 0, USER_NOW, USER_SEEN);
  jo_ktime(out, "server_time", db_time(r, 0, USER_NOW));
  jo_object_end(out);
  PQclear(r);
  return out->failed ? DB_FAILED : DB_OK;
}

static void users_json(struct buf *out, const PGresult *r, int n) {
  jo_key(out, "users");
  jo_array(out);
  for (int row = 0; row < n; row++) {
    jo_object(out);
    jo_kstr(out, "user_id", db_text(r, row, COL_USER));
    seen_json(out, r, row, COL_NOW, COL_SEEN);
    jo_kbool(out, "online", db_bool(r, row, COL_LIVE));
    jo_object_end(out);
  }
  jo_array_end(out);
}

static const char *nth_id(const void *ids, size_t i) {
  return ((const char *const *)ids)[i];
}

enum db_status read_last_seen(struct db *db, const char *const *user_ids, size_t n, struct buf *out) {
  struct db_params p = {0};
  db_p_text_array(&p, n, nth_id, user_ids);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &users_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  jo_object(out);
  users_json(out, r, PQntuples(r));
  jo_ktime(out, "server_time", PQntuples(r) > 0 ? db_time(r, 0, COL_NOW) : clock_db_us());
  jo_object_end(out);
  PQclear(r);
  return out->failed ? DB_FAILED : DB_OK;
}

// A cursor is the time and the user of the last row, `microseconds-hex`, so that it can be put into a URL as it is and
// says where to go on among many who were seen at the same moment.

static void cursor_json(struct buf *out, const PGresult *r, int row) {
  struct buf text = {0};
  buf_int(&text, db_time(r, row, COL_SEEN));
  buf_putc(&text, '-');
  for (const char *c = db_text(r, row, COL_USER); *c != '\0'; c++)
    buf_printf(&text, "%02x", (unsigned)(unsigned char)*c);
  out->failed = out->failed || text.failed;
  if (!text.failed)
    jo_kstr(out, "next", text.data);
  buf_free(&text);
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool seen_cursor_parse(const char *s, struct seen_cursor *cursor) {
  size_t digits = strcspn(s, "-");
  if (s[digits] == '\0' || !strict_int(s, digits, 0, REVISION_MAX, &cursor->seen_us))
    return false;
  const char *hex = s + digits + 1;
  size_t len = strlen(hex);
  if (len % 2 != 0 || len / 2 > IDENT_MAX)
    return false;
  for (size_t i = 0; i < len / 2; i++) {
    int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
    if (high < 0 || low < 0)
      return false;
    cursor->user_id[i] = (char)(high * 16 + low);
  }
  cursor->user_id[len / 2] = '\0';
  return ident_problem(cursor->user_id, len / 2) == NULL;
}

enum db_status read_room_last_seen(struct db *db, const char *room_id, const struct seen_cursor *after, int limit,
                                   struct buf *out) {
  struct db_params p = {0};
  db_p_text(&p, room_id);
  db_p_int8(&p, after ? after->seen_us : 0);
  db_p_text(&p, after ? after->user_id : NULL);
  db_p_int8(&p, (int64_t)limit + 1);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &room_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  int n = PQntuples(r) > limit ? limit : PQntuples(r);
  jo_object(out);
  jo_kstr(out, "room_id", room_id);
  users_json(out, r, n);
  if (PQntuples(r) > limit)
    cursor_json(out, r, n - 1);
  else
    jo_kstr(out, "next", NULL);
  jo_ktime(out, "server_time", PQntuples(r) > 0 ? db_time(r, 0, COL_NOW) : clock_db_us());
  jo_object_end(out);
  PQclear(r);
  return out->failed ? DB_FAILED : DB_OK;
}
