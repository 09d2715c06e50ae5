// SPDX-License-Identifier: Apache-2.0
#include "store/member.h"

#include <stdio.h>
#include <string.h>

#include "base/jsonout.h"
#include "store/room.h"

// The row is locked before it is judged, so what is compared is what is there.
static const struct db_stmt look_stmt = {
    .name = "member_look",
    .sql = "SELECT " MEMBER_COLUMNS " FROM stillhere.member m WHERE m.room_id = $1 AND m.user_id = $2 FOR UPDATE",
};

static const struct db_stmt grant_stmt = {
    .name = "member_grant",
    .sql = "INSERT INTO stillhere.member AS m (room_id, user_id, role, granted_at)"
           " VALUES ($1, $2, coalesce($3, ''), clock_timestamp()) ON CONFLICT (room_id, user_id) DO UPDATE SET"
           " role = coalesce($3, m.role), revoked_at = NULL,"
           " granted_at = CASE WHEN m.revoked_at IS NULL THEN coalesce(m.granted_at, excluded.granted_at)"
           " ELSE excluded.granted_at END"
           " RETURNING " MEMBER_COLUMNS,
};

static const struct db_stmt one_stmt = {
    .name = "member_read",
    .sql = "SELECT " MEMBER_COLUMNS " FROM stillhere.member m WHERE m.room_id = $1 AND m.user_id = $2"
           " AND m.revoked_at IS NULL",
};

static const struct db_stmt list_stmt = {
    .name = "member_list",
    .sql = "SELECT " MEMBER_COLUMNS " FROM stillhere.member m WHERE m.room_id = $1 AND m.user_id > $2"
           " AND m.revoked_at IS NULL ORDER BY m.user_id LIMIT $3",
};

enum { COL_ROOM, COL_USER, COL_ROLE, COL_GRANTED, COL_REVOKED };

void member_from_row(struct member *m, const PGresult *r, int row) {
  (void)snprintf(m->room_id, sizeof m->room_id, "%s", db_text(r, row, COL_ROOM));
  (void)snprintf(m->user_id, sizeof m->user_id, "%s", db_text(r, row, COL_USER));
  (void)snprintf(m->role, sizeof m->role, "%s", db_text(r, row, COL_ROLE));
  m->granted_at_us = db_null(r, row, COL_GRANTED) ? 0 : db_time(r, row, COL_GRANTED);
  m->revoked_at_us = db_null(r, row, COL_REVOKED) ? 0 : db_time(r, row, COL_REVOKED);
}

static void time_json(struct buf *out, const char *key, int64_t at_us) {
  jo_key(out, key);
  if (at_us != 0)
    jo_time(out, at_us);
  else
    jo_null(out);
}

void member_json(struct buf *out, const struct member *m) {
  jo_object(out);
  jo_kstr(out, "room_id", m->room_id);
  jo_kstr(out, "user_id", m->user_id);
  jo_kstr(out, "role", m->role);
  time_json(out, "granted_at", m->granted_at_us);
  time_json(out, "revoked_at", m->revoked_at_us);
  jo_object_end(out);
}

struct grant {
  const char *room_id, *user_id, *role;
  struct member *member;
  bool changed;
};

/// Reads at most one row. @param[out] found whether there was one; @a m is filled then
static enum db_status read_row(struct db *db, const struct db_stmt *stmt, const struct db_params *p, struct member *m,
                               bool *found) {
  PGresult *r = NULL;
  enum db_status status = db_run(db, stmt, p, &r);
  if (status != DB_OK)
    return status;
  *found = PQntuples(r) > 0;
  if (*found)
    member_from_row(m, r, 0);
  PQclear(r);
  return DB_OK;
}

static enum db_status grant_work(struct db *db, void *ctx) {
  struct grant *g = ctx;
  struct db_params p = {0};
  db_p_text(&p, g->room_id);
  db_p_text(&p, g->user_id);
  bool there = false, found = false;
  g->changed = false;
  enum db_status status = read_row(db, &look_stmt, &p, g->member, &there);
  bool revoked = there && g->member->revoked_at_us != 0;
  if (status == DB_OK && there && !revoked && (g->role == NULL || strcmp(g->role, g->member->role) == 0)) {
    db_params_clear(&p);
    return DB_OK;
  }
  if (status == DB_OK) {
    db_p_text(&p, g->role);
    status = read_row(db, &grant_stmt, &p, g->member, &found);
    g->changed = true;
  }
  db_params_clear(&p);
  if (status == DB_OK && !found)
    status = DB_FAILED;
  // Also where no row was seen: one that was revoked meanwhile may have come between the two statements.
  if (status == DB_OK)
    status = room_refresh(db, g->room_id);
  return status;
}

enum db_status store_grant(struct db *db, const char *room_id, const char *user_id, const char *role,
                           struct member *member, bool *changed) {
  struct grant g = {.room_id = room_id, .user_id = user_id, .role = role, .member = member};
  enum db_status status = db_transaction(db, grant_work, &g);
  *changed = g.changed;
  return status;
}

enum db_status read_member(struct db *db, const char *room_id, const char *user_id, struct member *member,
                           bool *found) {
  struct db_params p = {0};
  db_p_text(&p, room_id);
  db_p_text(&p, user_id);
  enum db_status status = read_row(db, &one_stmt, &p, member, found);
  db_params_clear(&p);
  return status;
}

enum db_status read_members(struct db *db, const char *room_id, const char *after, int limit, struct buf *out) {
  struct db_params p = {0};
  db_p_text(&p, room_id);
  db_p_text(&p, after);
  db_p_int8(&p, (int64_t)limit + 1);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &list_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  int n = PQntuples(r) > limit ? limit : PQntuples(r);
  jo_object(out);
  jo_kstr(out, "room_id", room_id);
  jo_key(out, "members");
  jo_array(out);
  for (int row = 0; row < n; row++) {
    struct member m = {0};
    member_from_row(&m, r, row);
    member_json(out, &m);
  }
  jo_array_end(out);
  jo_kstr(out, "next", PQntuples(r) > n && n > 0 ? db_text(r, n - 1, COL_USER) : NULL);
  PQclear(r);
  return out->failed ? DB_FAILED : DB_OK;
}
