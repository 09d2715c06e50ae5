// SPDX-License-Identifier: Apache-2.0
/// @file
/// Attendance (CONTRACT §6): a record of explicit sign-ins and sign-outs that only grows. Never derived from leases.
#ifndef SH_STORE_ATTENDANCE_H
#define SH_STORE_ATTENDANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "db/db.h"
#include "store/heartbeat.h"

/// Bytes of a note and of an idempotency key at most.
#define NOTE_MAX 1024
#define IDEMPOTENCY_KEY_MAX 128

/// A row of stillhere.attendance. Strings are somebody else's; NULL is null.
struct attendance {
  int64_t id;                                 ///< 0: not stored yet
  const char *room_id, *user_id, *session_id; ///< session_id may be NULL
  const char *action;                         ///< "sign_in" or "sign_out"
  const char *note, *key, *request_id, *by;   ///< each may be NULL; a key counts for its user in its room
  int64_t at_us;                              ///< Unix microseconds on the database's clock
};

enum attendance_outcome {
  ATTENDANCE_ADDED,
  ATTENDANCE_REPEATED, ///< the key was there with the same content: nothing was written
  ATTENDANCE_CONFLICT, ///< the key was there with other content: nothing was written
  ATTENDANCE_REVOKED,  ///< who was revoked cannot sign in by themselves: nothing was written
};

struct attendance_result {
  enum attendance_outcome outcome;
  struct buf row; ///< the stored row as a JSON object, unless in conflict; the caller frees it
  bool in_doubt;  ///< with DB_LOST: it may have been committed all the same
  struct op op;   ///< for a sign-out with a session: the close; op_clear_results() is the caller's
};

/// Adds a row, and for a sign-out with a session closes that session's lease where there is one, in one transaction.
/// @param for_oneself not by a keeper of the room: a user whose membership is revoked cannot sign in so, but sign out
/// @param entry without id and at_us; its strings live until the result is cleared
/// @param[in,out] result zero-initialised; also after a failure the caller frees what is in it
/// @param[out] written the close's events, for commit_tell(); the caller clears it
enum db_status store_attendance(struct db *db, const struct store_rules *rules, const struct attendance *entry,
                                bool for_oneself, struct attendance_result *result, struct written *written);

enum attendance_format {
  ATTENDANCE_JSON,  ///< the reply up to, but without, `server_time` and the closing `}`
  ATTENDANCE_JSONL, ///< a JSON object a line
  ATTENDANCE_CSV,   ///< RFC 4180 with a header line
};

/// Reads a page of a room's rows in the order of their ids, after @a after, and appends it to @a out.
/// @param user_id NULL: of everybody
enum db_status read_attendance(struct db *db, const char *room_id, const char *user_id, int64_t after, int limit,
                               enum attendance_format format, struct buf *out);

// Pure functions: how a row is written (attendance_text.c).

void attendance_json(struct buf *out, const struct attendance *row);

/// The header line of the CSV form, and a row's line. A cell that a spreadsheet would take for a formula gets a `'` in
/// front.
void attendance_csv_head(struct buf *out);
void attendance_csv(struct buf *out, const struct attendance *row);

#endif
