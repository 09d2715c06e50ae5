// SPDX-License-Identifier: Apache-2.0
#include "store/attendance.h"

#include <string.h>

#include "base/jsonout.h"

#define COLUMNS                                                                                                        \
  "a.id, a.room_id, a.user_id, a.session_id, a.action, a.note, a.idempotency_key, a.request_id, a.by, a.at"

enum {
  COL_ID,
  COL_ROOM,
  COL_USER,
  COL_SESSION,
  COL_ACTION,
  COL_NOTE,
  COL_KEY,
  COL_REQUEST_ID,
  COL_BY,
  COL_AT,
};

// An id is taken from a sequence before its row is visible, so without a lock the row with 12 could be read before the
// one with 11 has committed, and a reader who goes on after 12 would never see 11. All who add to a room therefore do
// so one after the other, from before the id to the commit. An advisory lock, since there is no row to lock that others
// do not need; the first of all locks, so that whoever waits for it holds nothing ("atte" in ASCII names its kind;
// rooms with the same hash wait for each other, which is all that happens).
static const struct db_stmt lock_stmt = {
    .name = "attendance_lock",
    .sql = "SELECT pg_advisory_xact_lock(1635021925, hashtext($1))",
};

// Writes nothing but a message into the write-ahead log, which nobody reads. A commit that has written nothing waits
// for no standby, and so would acknowledge a row whose own wait for it was cut short.
static const struct db_stmt again_stmt = {
    .name = "attendance_again",
    .sql = "SELECT pg_logical_emit_message(true, 'stillhere', ''::text)",
};

static const struct db_stmt by_key_stmt = {
    .name = "attendance_by_key",
    .sql = "SELECT " COLUMNS " FROM stillhere.attendance a WHERE a.room_id = $1 AND a.user_id = $2"
           " AND a.idempotency_key = $3",
};

// Locked to the commit: a revocation that is under way is waited for.
static const struct db_stmt revoked_stmt = {
    .name = "attendance_revoked",
    .sql = "SELECT m.revoked_at IS NOT NULL FROM stillhere.member m WHERE m.room_id = $1 AND m.user_id = $2 FOR SHARE",
};

static const struct db_stmt add_stmt = {
    .name = "attendance_add",
    .sql = "INSERT INTO stillhere.attendance AS a (room_id, user_id, session_id, action, note, idempotency_key,"
           " request_id, by) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING " COLUMNS,
};

static const struct db_stmt list_stmt = {
    .name = "attendance_list",
    .sql = "SELECT " COLUMNS " FROM stillhere.attendance a WHERE a.room_id = $1 AND a.id > $2 ORDER BY a.id LIMIT $3",
};

static const struct db_stmt list_user_stmt = {
    .name = "attendance_list_user",
    .sql = "SELECT " COLUMNS " FROM stillhere.attendance a WHERE a.room_id = $1 AND a.user_id = $4 AND a.id > $2"
           " ORDER BY a.id LIMIT $3",
};

static const char *text_or_null(const PGresult *r, int row, int col) {
  return db_null(r, row, col) ? NULL : db_text(r, row, col);
}

/// The row's strings live as long as the result.
static struct attendance from_row(const PGresult *r, int row) {
  return (struct attendance){
      .id = db_int8(r, row, COL_ID),
      .room_id = db_text(r, row, COL_ROOM),
      .user_id = db_text(r, row, COL_USER),
      .session_id = text_or_null(r, row, COL_SESSION),
      .action = db_text(r, row, COL_ACTION),
      .note = text_or_null(r, row, COL_NOTE),
      .key = text_or_null(r, row, COL_KEY),
      .request_id = text_or_null(r, row, COL_REQUEST_ID),
      .by = text_or_null(r, row, COL_BY),
      .at_us = db_time(r, row, COL_AT),
  };
}

struct adding {
  const struct store_rules *rules;
  const struct attendance *entry;
  bool for_oneself;
  struct attendance_result *result;
  struct written *written;
};

static bool same_text(const char *a, const char *b) {
  return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool same_content(const struct attendance *a, const struct attendance *b) {
  return same_text(a->user_id, b->user_id) && same_text(a->session_id, b->session_id) &&
         same_text(a->action, b->action) && same_text(a->note, b->note);
}

/// Looks for the key under the lock. @param[out] found whether it was there; the outcome is set then
static enum db_status look_up(struct db *db, struct adding *a, bool *found) {
  const struct attendance *entry = a->entry;
  struct db_params p = {0}, q = {0};
  PGresult *results[2] = {0};
  db_p_text(&p, entry->room_id);
  db_p_text(&q, entry->room_id);
  db_p_text(&q, entry->user_id);
  db_p_text(&q, entry->key);
  const struct db_step steps[] = {{&lock_stmt, &p}, {&by_key_stmt, &q}};
  enum db_status status = db_pipeline(db, steps, entry->key != NULL ? 2 : 1, results);
  *found = status == DB_OK && entry->key != NULL && PQntuples(results[1]) > 0;
  if (*found) {
    struct attendance stored = from_row(results[1], 0);
    a->result->outcome = same_content(&stored, entry) ? ATTENDANCE_REPEATED : ATTENDANCE_CONFLICT;
    attendance_json(&a->result->row, &stored);
  }
  PQclear(results[0]);
  PQclear(results[1]);
  db_params_clear(&p);
  db_params_clear(&q);
  return status;
}

/// Whether the user may not sign in. Leaving is recorded in any case.
static enum db_status look_at_member(struct db *db, const struct adding *a, bool *revoked) {
  *revoked = false;
  if (!a->for_oneself || strcmp(a->entry->action, "sign_in") != 0)
    return DB_OK;
  struct db_params p = {0};
  db_p_text(&p, a->entry->room_id);
  db_p_text(&p, a->entry->user_id);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &revoked_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  *revoked = PQntuples(r) > 0 && db_bool(r, 0, 0);
  PQclear(r);
  return DB_OK;
}

static enum db_status add(struct db *db, struct adding *a) {
  const struct attendance *entry = a->entry;
  struct db_params p = {0};
  PGresult *r = NULL;
  const char *values[] = {entry->room_id, entry->user_id, entry->session_id, entry->action,
                          entry->note,    entry->key,     entry->request_id, entry->by};
  for (size_t i = 0; i < ARRAY_LEN(values); i++)
    db_p_text(&p, values[i]);
  enum db_status status = db_run(db, &add_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  struct attendance stored = from_row(r, 0);
  a->result->outcome = ATTENDANCE_ADDED;
  attendance_json(&a->result->row, &stored);
  PQclear(r);
  return DB_OK;
}

/// Ends the lease of the session that signs out. There need not be one.
static enum db_status close_session(struct db *db, struct adding *a) {
  const struct attendance *entry = a->entry;
  if (entry->session_id == NULL || strcmp(entry->action, "sign_out") != 0)
    return DB_OK;
  struct op *op = &a->result->op;
  op->kind = OP_CLOSE;
  op->key = (struct lease_key){entry->room_id, entry->user_id, entry->session_id};
  op->request_id = entry->request_id;
  op->by = entry->by;
  return store_close_within(db, a->rules, op, a->written);
}

static enum db_status work(struct db *db, void *ctx) {
  struct adding *a = ctx;
  written_clear(a->written);
  op_clear_results(&a->result->op);
  buf_reset(&a->result->row);
  a->result->in_doubt = false;
  bool found = false;
  enum db_status status = look_up(db, a, &found);
  if (status == DB_OK && found)
    return db_run(db, &again_stmt, NULL, NULL);
  if (status != DB_OK)
    return status;
  bool revoked;
  status = look_at_member(db, a, &revoked);
  if (status == DB_OK && revoked) {
    a->result->outcome = ATTENDANCE_REVOKED;
    return DB_OK;
  }
  if (status == DB_OK)
    status = add(db, a);
  if (status == DB_OK)
    status = close_session(db, a);
  if (status == DB_OK && a->result->row.failed)
    status = DB_FAILED;
  // From here on only the commit is left, and when that is lost nobody knows what became of it.
  a->result->in_doubt = status == DB_OK;
  return status;
}

enum db_status store_attendance(struct db *db, const struct store_rules *rules, const struct attendance *entry,
                                bool for_oneself, struct attendance_result *result, struct written *written) {
  struct adding a = {.rules = rules, .entry = entry, .for_oneself = for_oneself, .result = result, .written = written};
  enum db_status status = db_transaction(db, work, &a);
  if (status != DB_OK)
    written_clear(written);
  return status;
}

static void rows_json(struct buf *out, const char *room_id, const PGresult *r, int n) {
  jo_object(out);
  jo_kstr(out, "room_id", room_id);
  jo_key(out, "attendance");
  jo_array(out);
  for (int i = 0; i < n; i++) {
    struct attendance row = from_row(r, i);
    attendance_json(out, &row);
  }
  jo_array_end(out);
  jo_key(out, "next");
  if (PQntuples(r) > n && n > 0)
    jo_int(out, db_int8(r, n - 1, COL_ID));
  else
    jo_null(out);
}

/// In a buffer of its own: behind another object there would be a comma.
static void line(struct buf *out, const struct attendance *row) {
  struct buf text = {0};
  attendance_json(&text, row);
  buf_putc(&text, '\n');
  if (text.failed)
    out->failed = true;
  else
    buf_add(out, text.data, text.len);
  buf_free(&text);
}

static void rows_lines(struct buf *out, const PGresult *r, int n, enum attendance_format format) {
  if (format == ATTENDANCE_CSV)
    attendance_csv_head(out);
  for (int i = 0; i < n; i++) {
    struct attendance row = from_row(r, i);
    if (format == ATTENDANCE_CSV)
      attendance_csv(out, &row);
    else
      line(out, &row);
  }
}

enum db_status read_attendance(struct db *db, const char *room_id, const char *user_id, int64_t after, int limit,
                               enum attendance_format format, struct buf *out) {
  struct db_params p = {0};
  db_p_text(&p, room_id);
  db_p_int8(&p, after);
  db_p_int8(&p, (int64_t)limit + 1);
  if (user_id != NULL)
    db_p_text(&p, user_id);
  PGresult *r = NULL;
  enum db_status status = db_run(db, user_id != NULL ? &list_user_stmt : &list_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  int n = PQntuples(r) > limit ? limit : PQntuples(r);
  if (format == ATTENDANCE_JSON)
    rows_json(out, room_id, r, n);
  else
    rows_lines(out, r, n, format);
  PQclear(r);
  return out->failed ? DB_FAILED : DB_OK;
}
