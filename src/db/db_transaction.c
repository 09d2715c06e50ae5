// SPDX-License-Identifier: Apache-2.0
// What a SQLSTATE means, and the one place where a transaction is tried again.
#include <assert.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/metric.h"
#include "base/rand.h"
#include "base/util.h"
#include "db/db_internal.h"

#define TRIES_MAX 10
#define PAUSE_MIN_US 1000
#define PAUSE_MAX_US 20000

/// Codes (five characters) and classes (two). The first that fits decides; what is not here is our mistake.
static const struct {
  const char *prefix;
  enum db_status status;
  bool drop;
} meanings[] = {
    {"40001", DB_RETRY, false},  // serialization_failure
    {"40P01", DB_RETRY, false},  // deadlock_detected
    {"40003", DB_LOST, true},    // statement_completion_unknown
    {"26000", DB_RETRY, true},   // a prepared statement is gone: somebody else's hands are on this session
    {"42P05", DB_RETRY, true},   // or there is one that we have not made: likewise
    {"55P03", DB_LOCKED, false}, // lock_not_available
    {"08", DB_LOST, true},       // connection exceptions
    {"25006", DB_LOST, true},    // read_only_sql_transaction: a demoted server
    {"25P03", DB_LOST, true},    // idle_in_transaction_session_timeout
    {"53", DB_LOST, true},       // insufficient resources
    {"57P0", DB_LOST, true},     // shutdown, crash, starting up, dropped database, idle too long
    {"57014", DB_LOST, true},    // query_canceled: statement_timeout, or an administrator
    {"58", DB_LOST, true},       // system errors
    {"XX000", DB_LOST, true},    // internal error
};

enum db_status db_judge(const char *sqlstate, const char *severity, const char *source_function, bool *drop) {
  *drop = true;
  if (sqlstate == NULL || sqlstate[0] == '\0')
    return DB_LOST;
  if (severity != NULL && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0))
    return DB_LOST;
  // "cached plan must not change result type": a table was altered. Known by where it comes from, since the text is
  // translated and the code is shared with others.
  if (strcmp(sqlstate, "0A000") == 0 && source_function != NULL &&
      strcmp(source_function, "RevalidateCachedQuery") == 0)
    return DB_RETRY;
  for (size_t i = 0; i < ARRAY_LEN(meanings); i++) {
    if (strncmp(sqlstate, meanings[i].prefix, strlen(meanings[i].prefix)) == 0) {
      *drop = meanings[i].drop;
      return meanings[i].status;
    }
  }
  *drop = false;
  return DB_FAILED;
}

static const char *field(const PGresult *result, int code) {
  const char *text = PQresultErrorField(result, code);
  return text == NULL ? "" : text;
}

/// A statement that fails is often tried again, by the sweeper or by clients, and fails again until somebody repairs
/// what it meets. The same statement with the same code is told of so often; a few share a place by chance.
#define FAILED_BURST 20
#define FAILED_EVERY_US INT64_C(10000000)
#define FAILED_KINDS 64

/// Tells of a statement that failed. The detail may hold what clients sent, so it is only for those who ask for
/// everything.
static void log_failed(const PGresult *result, const char *what, const char *sqlstate, const char *message) {
  static struct log_limit limits[FAILED_KINDS];
  unsigned kind = 0;
  for (const char *c = what; *c != '\0'; c++)
    kind = kind * 31 + (unsigned char)*c;
  for (const char *c = sqlstate; *c != '\0'; c++)
    kind = kind * 31 + (unsigned char)*c;
  int64_t left_out;
  if (log_limit_take_every(&limits[kind % FAILED_KINDS], FAILED_EVERY_US, FAILED_BURST, clock_mono_us(), &left_out)) {
    const char *constraint = field(result, PG_DIAG_CONSTRAINT_NAME);
    log_error("statement %s failed: %s %s%s%s; left out before: %lld", what, sqlstate, message,
              constraint[0] == '\0' ? "" : ", constraint ", constraint, (long long)left_out);
  }
  log_debug("statement %s, detail: %s; context: %s", what, field(result, PG_DIAG_MESSAGE_DETAIL),
            field(result, PG_DIAG_CONTEXT));
}

enum db_status db_error(struct db *db, const PGresult *result, const char *what) {
  const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  bool drop;
  enum db_status status = db_judge(sqlstate, PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED),
                                   PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION), &drop);
  if (PQstatus(db->conn) != CONNECTION_OK && status != DB_LOST) {
    drop = true;
    status = DB_LOST;
  }
  const char *message = field(result, PG_DIAG_MESSAGE_PRIMARY);
  if (message[0] == '\0')
    message = PQresultErrorMessage(result);
  if (status == DB_FAILED) {
    log_failed(result, what, sqlstate, message);
  } else if (status == DB_LOST) {
    char why[256];
    (void)snprintf(why, sizeof why, "%s %s", sqlstate == NULL ? "" : sqlstate, message);
    return db_broke(db, what, why);
  } else {
    log_debug("statement %s: %s %s", what, sqlstate, message);
  }
  if (sqlstate != NULL && (strcmp(sqlstate, "26000") == 0 || strcmp(sqlstate, "42P05") == 0))
    db->lost_prepared = true;
  if (drop)
    db_drop(db);
  return status;
}

/// @return DB_OK only when the server says that it has committed
static enum db_status commit(struct db *db) {
  static const struct db_stmt stmt_commit = {.name = "commit", .sql = "COMMIT"};
  PGresult *result;
  enum db_status status = db_run(db, &stmt_commit, NULL, &result);
  if (status != DB_OK)
    return status;
  // COMMIT of a transaction that failed before is answered with ROLLBACK, and is no error for the server.
  if (strcmp(PQcmdStatus(result), "COMMIT") != 0) {
    log_error("a transaction was to be committed after one of its statements had failed");
    status = DB_FAILED;
  }
  PQclear(result);
  return status;
}

/// Leaves no transaction open, at the price of the connection if need be.
static void roll_back(struct db *db) {
  if (!db_connected(db) || PQtransactionStatus(db->conn) == PQTRANS_IDLE)
    return;
  if (db_script(db, "ROLLBACK") != DB_OK || PQtransactionStatus(db->conn) != PQTRANS_IDLE)
    db_drop(db);
}

static enum db_status try_once(struct db *db, enum db_status (*work)(struct db *db, void *ctx), void *ctx) {
  enum db_status status = db_connect(db);
  if (status != DB_OK)
    return status;
  assert(PQtransactionStatus(db->conn) == PQTRANS_IDLE);
  db->in_transaction = db->begin_pending = true;
  status = work(db, ctx);
  if (status == DB_OK && !db->begin_pending)
    status = commit(db);
  db->begin_pending = false;
  if (status != DB_OK)
    roll_back(db);
  db->in_transaction = false;
  assert(!db_connected(db) || PQtransactionStatus(db->conn) == PQTRANS_IDLE);
  return status;
}

/// The longer the more often it was tried, and never twice the same, so that two who met part.
static void pause_before(int try) {
  int64_t longest_us = (int64_t)PAUSE_MIN_US << (try < 5 ? try : 5);
  if (longest_us > PAUSE_MAX_US)
    longest_us = PAUSE_MAX_US;
  int64_t us = PAUSE_MIN_US + (int64_t)rand_below((uint64_t)(longest_us - PAUSE_MIN_US) + 1);
  struct timespec pause = {.tv_nsec = us * 1000};
  (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL); // cut short by a signal is fine
}

/// The one retry place.
static enum db_status try_again_and_again(struct db *db, enum db_status (*once)(struct db *db, void *ctx), void *ctx) {
  assert(!db->in_transaction);
  enum db_status status = DB_RETRY;
  for (int try = 1; try <= TRIES_MAX && status == DB_RETRY; try++) {
    if (try > 1) {
      metric_add(METRIC_TRANSACTION_RETRIES, 1);
      pause_before(try);
    }
    status = once(db, ctx);
  }
  return status;
}

struct transaction {
  enum db_status (*work)(struct db *db, void *ctx);
  void *ctx;
};

static enum db_status transaction_once(struct db *db, void *ctx) {
  const struct transaction *t = ctx;
  return try_once(db, t->work, t->ctx);
}

enum db_status db_transaction(struct db *db, enum db_status (*work)(struct db *db, void *ctx), void *ctx) {
  return try_again_and_again(db, transaction_once, &(struct transaction){work, ctx});
}

struct alone {
  struct db_step step;
  PGresult *result;
};

static enum db_status alone_once(struct db *db, void *ctx) {
  struct alone *a = ctx;
  enum db_status status = db_connect(db);
  // The server commits when it comes to the end of the pipeline, and says so: no OK without that.
  return status == DB_OK ? db_pipeline(db, &a->step, 1, &a->result) : status;
}

enum db_status db_alone(struct db *db, const struct db_stmt *stmt, const struct db_params *params, PGresult **result) {
  struct alone alone = {.step = {stmt, params}};
  enum db_status status = try_again_and_again(db, alone_once, &alone);
  if (status == DB_OK)
    *result = alone.result;
  return status;
}
