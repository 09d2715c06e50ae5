// SPDX-License-Identifier: Apache-2.0
/// @file
/// What the files of src/db share among themselves. Nobody else includes it.
#ifndef SH_DB_DB_INTERNAL_H
#define SH_DB_DB_INTERNAL_H

#include "db/db.h"

/// Different statements that one connection may use.
#define DB_PREPARED_MAX 128

/// BEGIN of a shared session: somebody may have left another level there.
#define DB_BEGIN_SHARED "BEGIN ISOLATION LEVEL READ COMMITTED"

/// Room for the settings of a session as one SQL text.
#define DB_SETTINGS_MAX 1024

/// How much later than the server our own deadline of a statement ends, so that the server's word comes first.
#define DB_DEADLINE_EXTRA_MS 500

struct db {
  const struct db_options *options;
  PGconn *conn; ///< NULL: none
  const struct db_stmt *prepared[DB_PREPARED_MAX];
  int n_prepared;

  /// The session is not ours from one transaction to the next: a pooler is in between. Then nothing is prepared, and
  /// each transaction brings its settings along.
  bool shared;
  bool distributed;               ///< see db_distributed()
  bool lost_prepared;             ///< what had been prepared was once gone: taken as shared from then on
  char settings[DB_SETTINGS_MAX]; ///< the statement that makes them, for one transaction; only where shared

  /// The server has said that it committed without the standby that it was to wait for.
  bool unreplicated;

  bool in_transaction; ///< inside db_transaction()
  bool begin_pending;  ///< BEGIN goes out with the next statement

  int64_t connected_us;    ///< monotonic time of the newest connection
  int64_t refuse_until_us; ///< no attempt before that
  int64_t backoff_ms;      ///< the next pause, 0 = none was due lately
  unsigned timeouts;       ///< attempts that timed out or met a server left behind; turns the list of hosts
};

/// What an error result means. Pure.
/// @param sqlstate NULL or empty: libpq's own error, so the connection is broken
/// @param severity not localized ("FATAL"); may be NULL
/// @param source_function the server function that raised it; may be NULL
/// @param[out] drop whether the connection must not be used any more
enum db_status db_judge(const char *sqlstate, const char *severity, const char *source_function, bool *drop);

/// Judges and logs a result that is not a success, and drops the connection where that is due.
/// @param what the statement's name, for the log
enum db_status db_error(struct db *db, const PGresult *result, const char *what);

/// The connection broke under us: logs, drops, and delays the next attempt if it had not lived long.
enum db_status db_broke(struct db *db, const char *what, const char *why);

/// Waits until PQgetResult() will not block, sending what is unsent meanwhile. @return false: broken or too late; the
/// connection has been dropped then
bool db_wait(struct db *db, int64_t deadline_us, const char *what);

/// db_script() with a deadline of its own.
enum db_status db_script_within(struct db *db, const char *sql, int timeout_ms);

/// Finds out whether the session of a new connection is shared, and sets it up: now where it is ours, with each
/// transaction where it is not.
enum db_status db_set_up(struct db *db);

#endif
