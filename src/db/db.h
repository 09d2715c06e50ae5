// SPDX-License-Identifier: Apache-2.0
/// @file
/// One connection to PostgreSQL with deadlines. Statements take and give binary values. A connection belongs to one
/// thread. Every libpq result is checked here, and here alone a SQLSTATE becomes a status.
#ifndef SH_DB_DB_H
#define SH_DB_DB_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// What became of a statement or transaction.
enum db_status {
  DB_OK = 0,
  DB_RETRY,  ///< 40001, 40P01: nothing happened, the same again may work; db_transaction() does so by itself
  DB_LOCKED, ///< 55P03: a lock was not to be had in time; nothing happened
  DB_LOST,   ///< no connection, or it broke, or the server is read-only, starting, stopping, full or too slow
             ///< (08xxx, 57Pxx, 25006, 53xxx, 57014, our own deadline). The connection has been dropped. If it came
             ///< from COMMIT the outcome is unknown.
  DB_FAILED, ///< anything else: our mistake or a broken row; logged in full
};

/// A statement. Static, so that its address names it; prepared once on each connection that uses it.
struct db_stmt {
  const char *name; ///< unique; the name that it is prepared under
  const char *sql;

  /// The same for tables that Citus has distributed by room, which it takes or does well; NULL: the same text. The same
  /// parameters and columns, further ones at most behind. What it may not have: a lock or a LIMIT for each row over
  /// many rooms, a volatile function in a change, a lookup for each element of an array.
  const char *distributed;
};

/// The time for a change, under the locks that it takes itself.
#define DB_TIME_PLAIN "clock_timestamp()"

/// Stands in changes of distributed tables for clock_timestamp(). Citus reads it on the coordinator before it sends the
/// change. PostgreSQL sets it with each Parse, Bind and Execute, and reads the next of these when it is done with the
/// last, also in a pipeline: a lock that an earlier statement waited for is held.
#define DB_TIME_DISTRIBUTED "statement_timestamp()"

/// Parameters of one execution, filled by the db_p functions in the statement's order. The bytes of text parameters
/// are not copied: they must live until the execution returns.
#define DB_PARAMS_MAX 24
struct db_params {
  int n;
  bool failed; ///< memory ran out or too many: the execution returns DB_FAILED
  Oid types[DB_PARAMS_MAX];
  const char *values[DB_PARAMS_MAX];
  int lengths[DB_PARAMS_MAX];
  char *owned[DB_PARAMS_MAX]; ///< freed by db_params_clear()
};

void db_params_clear(struct db_params *p);
void db_p_text(struct db_params *p, const char *s); ///< NULL is SQL null
void db_p_int8(struct db_params *p, int64_t v);
void db_p_int4(struct db_params *p, int32_t v);
void db_p_bool(struct db_params *p, bool v);
/// Arrays for unnest(). An element getter is called with @a ctx for 0 … n-1.
void db_p_text_array(struct db_params *p, size_t n, const char *(*at)(const void *ctx, size_t i), const void *ctx);
void db_p_int8_array(struct db_params *p, size_t n, int64_t (*at)(const void *ctx, size_t i), const void *ctx);
void db_p_int4_array(struct db_params *p, size_t n, int64_t (*at)(const void *ctx, size_t i), const void *ctx);
void db_p_bool_array(struct db_params *p, size_t n, int64_t (*at)(const void *ctx, size_t i), const void *ctx);
/// An int8 array in which INT64_MIN stands for null.
void db_p_int8_null_array(struct db_params *p, size_t n, int64_t (*at)(const void *ctx, size_t i), const void *ctx);

/// Values out of a binary result. The type of the column is checked by length; a wrong one is an assertion.
bool db_null(const PGresult *r, int row, int col);
int64_t db_int8(const PGresult *r, int row, int col); ///< int2, int4 or int8
bool db_bool(const PGresult *r, int row, int col);
const char *db_text(const PGresult *r, int row, int col); ///< NUL-terminated, lives as long as the result; "" for null
int db_text_len(const PGresult *r, int row, int col);
/// timestamptz as Unix microseconds; infinity as TIME_INFINITY.
int64_t db_time(const PGresult *r, int row, int col);

/// What all connections of the process share. Set once before threads start.
struct db_options {
  const char *url;          ///< libpq URI or key=value string; never logged
  const char *application;  ///< application_name, e.g. "stillhered writer"
  int connect_timeout_ms;   ///< for one attempt
  int statement_timeout_ms; ///< set on the server and watched here with a little more
  int lock_timeout_ms;      ///< set on the server
  bool by_key;              ///< the session reaches rows through indexes, in the order in which they are asked for
};

struct db;

/// Makes a connection object, not yet connected. @a options (and what it points to) must outlive it.
/// @return NULL when memory ran out
struct db *db_new(const struct db_options *options);

/// Disconnects and frees. NULL is fine.
void db_free(struct db *db);

/// Connects if there is no live connection. Waits at most connect_timeout_ms. After a failed attempt it refuses at
/// once until a short back-off (100 ms, doubling to 2 s, jittered) is over, so that callers need no pacing of their
/// own. On success the epoch has been read (db/epoch.h). @return DB_OK or DB_LOST
enum db_status db_connect(struct db *db);

/// Reads the database's clock and, when the tables are there, the epoch (db/epoch.h). A part of db_connect(); a
/// connection that lives long asks again. Connected, and not inside a transaction. @return DB_LOST from a standby too
enum db_status db_greet(struct db *db);

/// Whether there is a connection that has not been seen broken.
bool db_connected(const struct db *db);

/// Whether a pooler is between us and the session of the newest connection. Statements work as ever then, but what
/// belongs to a session (LISTEN) may not.
bool db_shared(const struct db *db);

/// Whether the rooms' tables were distributed by Citus when the newest connection was made: statements have their texts
/// for that then.
bool db_distributed(const struct db *db);

/// Inside a transaction, before its other statements: what follows reaches rows by key (by_key of the options).
enum db_status db_by_key(struct db *db);

/// Drops the connection; the next db_connect() makes a new one.
void db_drop(struct db *db);

/// Runs one prepared statement and waits for its end. @a result may be NULL; on DB_OK it is set and the caller frees
/// it with PQclear(), otherwise it is untouched.
enum db_status db_run(struct db *db, const struct db_stmt *stmt, const struct db_params *params, PGresult **result);

/// Up to DB_PIPELINE_MAX statements in one round trip (libpq pipeline mode), all or none counted as run: on DB_OK each
/// results[i] is set. Use inside a transaction, or for reads.
#define DB_PIPELINE_MAX 8
struct db_step {
  const struct db_stmt *stmt;
  const struct db_params *params; ///< NULL: none
};
enum db_status db_pipeline(struct db *db, const struct db_step *steps, int n, PGresult **results);

/// Runs plain SQL text of one or more statements without parameters (migrations, LISTEN).
enum db_status db_script(struct db *db, const char *sql);

/// The one retry place: connects if need be, BEGIN, @a work, COMMIT; ROLLBACK when @a work says otherwise. On DB_RETRY
/// it starts over after a jittered pause, up to 10 times; other states are handed back. @a work must be able to run
/// again from the start. BEGIN is sent together with the first statement of @a work.
/// A DB_LOST may have committed: callers retry only what is safe to do twice.
enum db_status db_transaction(struct db *db, enum db_status (*work)(struct db *db, void *ctx), void *ctx);

/// One statement that is a transaction of its own: nothing else goes over the wire. Connects and retries as
/// db_transaction() does, which it is not to be called in. On DB_OK it is committed, @a result is set, and the caller
/// frees it with PQclear(); otherwise it is untouched. DB_LOST may have committed.
enum db_status db_alone(struct db *db, const struct db_stmt *stmt, const struct db_params *params, PGresult **result);

/// The socket, for poll(); -1 when not connected. And the raw connection, for LISTEN only.
int db_socket(const struct db *db);
PGconn *db_raw(struct db *db);

#endif
