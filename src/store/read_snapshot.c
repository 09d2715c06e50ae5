// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "base/jsonout.h"
#include "db/epoch.h"
#include "store/read.h"

// Each statement returns at least one row, so that the room's revision is there where nobody is. Who is online, with
// sessions or in grace, is a row of room_user; a grace that is over stays until its event is written, as a lease does.
static const struct db_stmt sessions_stmt = {
    .name = "read_snapshot_sessions",
    .sql =
        "SELECT coalesce(r.revision, 0), u.user_id, u.online_since, u.offline_at, l.session_id, l.revision, l.granted_at,"
        " l.meta::text"
        " FROM (SELECT $1::text AS room_id) q"
        " LEFT JOIN stillhere.room r ON r.room_id = q.room_id"
        " LEFT JOIN stillhere.room_user u ON u.room_id = q.room_id"
        " LEFT JOIN LATERAL (SELECT * FROM stillhere.lease WHERE room_id = u.room_id AND user_id = u.user_id OFFSET 0) l"
        " ON true"
        " ORDER BY u.user_id, l.session_id",
    .distributed =
        "SELECT coalesce(r.revision, 0), u.user_id, u.online_since, u.offline_at, l.session_id, l.revision, l.granted_at,"
        " l.meta::text"
        " FROM (SELECT $1::text AS room_id) q"
        " LEFT JOIN stillhere.room r ON r.room_id = q.room_id"
        " LEFT JOIN stillhere.room_user u ON u.room_id = q.room_id"
        " LEFT JOIN stillhere.lease l ON l.room_id = u.room_id AND l.user_id = u.user_id"
        " ORDER BY u.user_id, l.session_id"};

static const struct db_stmt users_stmt = {
    .name = "read_snapshot_users",
    .sql = "SELECT coalesce(r.revision, 0), u.user_id, u.online_since, u.offline_at,"
           " (SELECT count(*) FROM stillhere.lease l WHERE l.room_id = u.room_id AND l.user_id = u.user_id)"
           " FROM (SELECT $1::text AS room_id) q"
           " LEFT JOIN stillhere.room r ON r.room_id = q.room_id"
           " LEFT JOIN stillhere.room_user u ON u.room_id = q.room_id"
           " ORDER BY u.user_id",
    .distributed =
        "SELECT coalesce(r.revision, 0), u.user_id, u.online_since, u.offline_at, coalesce(l.n, 0)"
        " FROM (SELECT $1::text AS room_id) q"
        " LEFT JOIN stillhere.room r ON r.room_id = q.room_id"
        " LEFT JOIN stillhere.room_user u ON u.room_id = q.room_id"
        " LEFT JOIN (SELECT user_id, count(*) AS n FROM stillhere.lease WHERE room_id = $1 GROUP BY user_id) l"
        " ON l.user_id = u.user_id ORDER BY u.user_id"};

static const struct db_stmt count_stmt = {
    .name = "read_snapshot_count",
    .sql = "SELECT coalesce((SELECT revision FROM stillhere.room WHERE room_id = $1), 0),"
           " (SELECT count(*) FROM stillhere.room_user WHERE room_id = $1),"
           " (SELECT count(*) FROM stillhere.lease WHERE room_id = $1)"};

static const struct db_stmt *const view_stmts[VIEW_KINDS] = {
    [VIEW_SESSIONS] = &sessions_stmt, [VIEW_USERS] = &users_stmt, [VIEW_COUNT] = &count_stmt};

enum { COL_HEAD, COL_USER, COL_ONLINE, COL_OFFLINE, COL_SESSION, COL_REVISION, COL_GRANTED, COL_META };
enum { COL_USER_SESSIONS = COL_SESSION };         // of users_stmt
enum { COL_COUNT_USERS = 1, COL_COUNT_SESSIONS }; // of count_stmt

struct counts {
  int64_t users, sessions;
};

static void session_json(struct buf *out, const PGresult *r, int row) {
  jo_object(out);
  jo_kstr(out, "session_id", db_text(r, row, COL_SESSION));
  jo_kint(out, "revision", db_int8(r, row, COL_REVISION));
  jo_ktime(out, "granted_at", db_time(r, row, COL_GRANTED));
  const char *meta = db_null(r, row, COL_META) ? "{}" : db_text(r, row, COL_META);
  jo_key(out, "meta");
  jo_raw(out, meta, strlen(meta));
  jo_object_end(out);
}

// The first row after `row` that is about another user.
static int user_end(const PGresult *r, int row) {
  int end = row + 1;
  while (end < PQntuples(r) && strcmp(db_text(r, end, COL_USER), db_text(r, row, COL_USER)) == 0)
    end++;
  return end;
}

// What a user's object begins with.
static void user_open(struct buf *out, const PGresult *r, int row) {
  jo_object(out);
  jo_kstr(out, "user_id", db_text(r, row, COL_USER));
  jo_ktime(out, "online_since", db_time(r, row, COL_ONLINE));
  if (!db_null(r, row, COL_OFFLINE))
    jo_ktime(out, "offline_at", db_time(r, row, COL_OFFLINE));
}

static void sessions_json(struct buf *out, const PGresult *r, struct counts *counts) {
  for (int row = 0, end; row < PQntuples(r); row = end) {
    end = user_end(r, row);
    user_open(out, r, row);
    jo_key(out, "sessions");
    jo_array(out);
    for (int i = row; i < end; i++) {
      if (db_null(r, i, COL_SESSION))
        continue; // in grace: the one row is the user's own
      session_json(out, r, i);
      counts->sessions++;
    }
    jo_array_end(out);
    jo_object_end(out);
    counts->users++;
  }
}

static void users_json(struct buf *out, const PGresult *r, struct counts *counts) {
  for (int row = 0; row < PQntuples(r); row++) {
    user_open(out, r, row);
    jo_object_end(out);
    counts->users++;
    counts->sessions += db_int8(r, row, COL_USER_SESSIONS);
  }
}

static void snapshot_json(struct buf *out, const char *room_id, enum view view, const PGresult *r) {
  char epoch[EPOCH_SIZE];
  epoch_get(epoch);
  struct counts counts = {0};
  jo_object(out);
  jo_kstr(out, "room_id", room_id);
  jo_kstr(out, "epoch", epoch);
  jo_kstr(out, "mode", "snapshot");
  jo_kint(out, "revision", db_int8(r, 0, COL_HEAD));
  if (view == VIEW_COUNT) {
    counts = (struct counts){db_int8(r, 0, COL_COUNT_USERS), db_int8(r, 0, COL_COUNT_SESSIONS)};
  } else {
    jo_key(out, "users");
    jo_array(out);
    if (db_null(r, 0, COL_USER)) {
      // Nobody: the one row is there for the revision.
    } else if (view == VIEW_SESSIONS) {
      sessions_json(out, r, &counts);
    } else {
      users_json(out, r, &counts);
    }
    jo_array_end(out);
  }
  jo_key(out, "counts");
  jo_object(out);
  jo_kint(out, "users", counts.users);
  jo_kint(out, "sessions", counts.sessions);
  jo_object_end(out);
}

enum db_status read_snapshot(struct db *db, const char *room_id, enum view view, struct body **body,
                             int64_t *revision) {
  struct db_params p = {0};
  db_p_text(&p, room_id);
  PGresult *r = NULL;
  enum db_status status = db_run(db, view_stmts[view], &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  struct buf text = {0};
  snapshot_json(&text, room_id, view, r);
  *revision = db_int8(r, 0, COL_HEAD);
  PQclear(r);
  *body = body_take(&text);
  return *body ? DB_OK : DB_FAILED;
}
