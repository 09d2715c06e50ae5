// SPDX-License-Identifier: Apache-2.0
// Running statements: sent without blocking, waited for with a deadline, judged in one place.
#include "db/db.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/util.h"
#include "db/db_internal.h"

/// One command of a pipeline, in the order of its results.
struct sent {
  const struct db_stmt *stmt; ///< NULL: BEGIN, or the settings of a transaction
  int step;                   ///< whose result it is; -1: of a preparation, BEGIN or settings
};

bool db_wait(struct db *db, int64_t deadline_us, const char *what) {
  for (;;) {
    int unsent = PQflush(db->conn);
    if (unsent < 0) {
      // The server may have said goodbye, and why, before it closed.
      (void)PQconsumeInput(db->conn);
      (void)db_broke(db, what, PQerrorMessage(db->conn));
      return false;
    }
    if (!PQisBusy(db->conn))
      return true;
    int64_t left_us = deadline_us - clock_mono_us();
    struct pollfd p = {.fd = PQsocket(db->conn), .events = (short)(POLLIN | (unsent > 0 ? POLLOUT : 0))};
    int ready = left_us <= 0 ? 0 : poll(&p, 1, (int)((left_us + 999) / 1000));
    if (ready == 0 || (ready < 0 && errno != EINTR)) {
      (void)db_broke(db, what, ready == 0 ? "no answer in time" : strerror(errno));
      return false;
    }
    // A failure shows in the result that is ready after it.
    if (ready > 0 && (p.revents & (POLLIN | POLLHUP | POLLERR)) != 0)
      (void)PQconsumeInput(db->conn);
  }
}

static bool succeeded(const PGresult *result) {
  ExecStatusType status = PQresultStatus(result);
  return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK || status == PGRES_EMPTY_QUERY;
}

/// Whether an error is one after which nothing sensible comes from this connection.
static bool is_end(const struct db *db, const PGresult *result) {
  bool drop = false;
  if (!succeeded(result) && PQresultStatus(result) != PGRES_PIPELINE_ABORTED)
    (void)db_judge(PQresultErrorField(result, PG_DIAG_SQLSTATE),
                   PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED),
                   PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION), &drop);
  return drop || PQstatus(db->conn) != CONNECTION_OK;
}

static int64_t own_deadline(const struct db *db) {
  return clock_mono_us() + ((int64_t)db->options->statement_timeout_ms + DB_DEADLINE_EXTRA_MS) * 1000;
}

static bool is_prepared(const struct db *db, const struct db_stmt *stmt) {
  for (int i = 0; i < db->n_prepared; i++) {
    if (db->prepared[i] == stmt)
      return true;
  }
  return false;
}

static bool already_sent(const struct sent *sent, int n, const struct db_stmt *stmt) {
  for (int i = 0; i < n; i++) {
    if (sent[i].stmt == stmt)
      return true;
  }
  return false;
}

static const char *text_of(const struct db *db, const struct db_stmt *stmt) {
  return db->distributed && stmt->distributed != NULL ? stmt->distributed : stmt->sql;
}

/// Queues one statement, prepared or not. @return false when libpq refused it
static bool send_step(struct db *db, const struct db_stmt *stmt, const struct db_params *p) {
  int formats[DB_PARAMS_MAX];
  for (int k = 0; k < p->n; k++)
    formats[k] = 1;
  if (db->shared)
    return PQsendQueryParams(db->conn, text_of(db, stmt), p->n, p->types, p->values, p->lengths, formats, 1) != 0;
  return PQsendQueryPrepared(db->conn, stmt->name, p->n, p->values, p->lengths, formats, 1) != 0;
}

/// Queues what comes before the first statement of a transaction. Without a BEGIN the whole pipeline is one transaction
/// for the server, so that settings for one transaction hold to its end. @return how many commands, -1: refused
static int send_beginning(struct db *db, struct sent *sent) {
  bool first = db->begin_pending || !db->in_transaction;
  int count = 0;
  if (db->begin_pending) {
    if (PQsendQueryParams(db->conn, db->shared ? DB_BEGIN_SHARED : "BEGIN", 0, NULL, NULL, NULL, NULL, 1) == 0)
      return -1;
    sent[count++] = (struct sent){NULL, -1};
  }
  if (first && db->shared) {
    if (PQsendQueryParams(db->conn, db->settings, 0, NULL, NULL, NULL, NULL, 1) == 0)
      return -1;
    sent[count++] = (struct sent){NULL, -1};
  }
  return count;
}

/// Queues everything and the sync behind it. @return how many commands, -1 when libpq refused one
static int send_steps(struct db *db, const struct db_step *steps, int n, struct sent *sent) {
  static const struct db_params none;
  if (PQenterPipelineMode(db->conn) == 0)
    return -1;
  int count = send_beginning(db, sent);
  if (count < 0)
    return -1;
  for (int i = 0; i < n; i++) {
    const struct db_stmt *stmt = steps[i].stmt;
    const struct db_params *p = steps[i].params != NULL ? steps[i].params : &none;
    if (!db->shared && !is_prepared(db, stmt) && !already_sent(sent, count, stmt)) {
      if (PQsendPrepare(db->conn, stmt->name, text_of(db, stmt), p->n, p->types) == 0)
        return -1;
      sent[count++] = (struct sent){stmt, -1};
    }
    if (!send_step(db, stmt, p))
      return -1;
    sent[count++] = (struct sent){stmt, i};
  }
  return PQpipelineSync(db->conn) == 0 ? -1 : count;
}

/// Reads the result of one command and the NULL that ends it. @return NULL when the connection broke (and was dropped)
static PGresult *read_result(struct db *db, int64_t deadline_us, const char *what) {
  if (!db_wait(db, deadline_us, what))
    return NULL;
  PGresult *result = PQgetResult(db->conn);
  if (result == NULL) {
    (void)db_broke(db, what, "no result");
    return NULL;
  }
  if (is_end(db, result))
    return result; // its last words
  if (!db_wait(db, deadline_us, what)) {
    PQclear(result);
    return NULL;
  }
  PGresult *more = PQgetResult(db->conn);
  if (more != NULL) {
    PQclear(more);
    PQclear(result);
    (void)db_broke(db, what, "more than one result");
    return NULL;
  }
  return result;
}

/// Reads the end of a pipeline and leaves pipeline mode.
static enum db_status read_sync(struct db *db, int64_t deadline_us) {
  if (!db_wait(db, deadline_us, "sync"))
    return DB_LOST;
  PGresult *result = PQgetResult(db->conn);
  bool synced = result != NULL && PQresultStatus(result) == PGRES_PIPELINE_SYNC;
  PQclear(result);
  if (!synced || PQexitPipelineMode(db->conn) == 0)
    return db_broke(db, "sync", PQerrorMessage(db->conn));
  return DB_OK;
}

/// Reads all results of a pipeline. What came before an error is thrown away.
static enum db_status read_steps(struct db *db, const struct sent *sent, int count, PGresult **results) {
  int64_t deadline_us = own_deadline(db);
  PGresult *error = NULL;
  const char *culprit = "";
  for (int i = 0; i < count; i++) {
    const char *what = sent[i].stmt == NULL ? "BEGIN" : sent[i].stmt->name;
    PGresult *result = read_result(db, deadline_us, what);
    if (result == NULL) {
      PQclear(error);
      return DB_LOST;
    }
    if (!succeeded(result)) {
      if (error == NULL) {
        error = result;
        culprit = what;
      } else {
        PQclear(result); // passed over because of the first
      }
      if (is_end(db, error))
        break;
    } else if (sent[i].step >= 0) {
      results[sent[i].step] = result;
    } else {
      if (sent[i].stmt == NULL)
        db->begin_pending = false;
      else
        db->prepared[db->n_prepared++] = sent[i].stmt;
      PQclear(result);
    }
  }
  enum db_status status = error != NULL && is_end(db, error) ? DB_OK : read_sync(db, deadline_us);
  if (error != NULL && status == DB_OK)
    status = db_error(db, error, culprit);
  PQclear(error);
  return status;
}

enum db_status db_pipeline(struct db *db, const struct db_step *steps, int n, PGresult **results) {
  assert(n > 0 && n <= DB_PIPELINE_MAX);
  if (!db_connected(db))
    return DB_LOST;
  for (int i = 0; i < n; i++) {
    if (steps[i].params != NULL && steps[i].params->failed) {
      log_error("the parameters of statement %s could not be made", steps[i].stmt->name);
      return DB_FAILED;
    }
  }
  if (db->n_prepared + n > DB_PREPARED_MAX) {
    log_error("too many different statements on one connection");
    return DB_FAILED;
  }
  PGresult *got[DB_PIPELINE_MAX] = {0};
  struct sent sent[2 * DB_PIPELINE_MAX + 2];
  int count = send_steps(db, steps, n, sent);
  enum db_status status =
      count < 0 ? db_broke(db, steps[0].stmt->name, PQerrorMessage(db->conn)) : read_steps(db, sent, count, got);
  if (status == DB_OK && db->unreplicated) // what this was is on one machine only: nobody may be told that it is done
    status = db_broke(db, steps[0].stmt->name, "a commit did not wait for the standby");
  for (int i = 0; i < n; i++) {
    if (status == DB_OK)
      results[i] = got[i];
    else
      PQclear(got[i]);
  }
  return status;
}

enum db_status db_run(struct db *db, const struct db_stmt *stmt, const struct db_params *params, PGresult **result) {
  struct db_step step = {stmt, params};
  PGresult *got;
  enum db_status status = db_pipeline(db, &step, 1, &got);
  if (status != DB_OK)
    return status;
  if (result != NULL)
    *result = got;
  else
    PQclear(got);
  return DB_OK;
}

static enum db_status run_text(struct db *db, const char *sql, int64_t deadline_us) {
  if (PQsendQuery(db->conn, sql) == 0)
    return db_broke(db, "script", PQerrorMessage(db->conn));
  PGresult *error = NULL;
  for (;;) {
    if (!db_wait(db, deadline_us, "script")) {
      PQclear(error);
      return DB_LOST;
    }
    PGresult *result = PQgetResult(db->conn);
    if (result == NULL)
      break;
    ExecStatusType kind = PQresultStatus(result);
    if (kind == PGRES_COPY_IN || kind == PGRES_COPY_OUT || kind == PGRES_COPY_BOTH) {
      PQclear(result);
      PQclear(error);
      (void)db_broke(db, "script", "COPY is not for scripts");
      return DB_FAILED;
    }
    if (!succeeded(result) && error == NULL) {
      error = result;
      if (is_end(db, error))
        break;
    } else {
      PQclear(result);
    }
  }
  enum db_status status = error == NULL ? DB_OK : db_error(db, error, "script");
  PQclear(error);
  return status;
}

enum db_status db_script_within(struct db *db, const char *sql, int timeout_ms) {
  if (!db_connected(db))
    return DB_LOST;
  int64_t deadline_us = clock_mono_us() + (int64_t)timeout_ms * 1000;
  if (db->begin_pending) {
    enum db_status status = run_text(db, db->shared ? DB_BEGIN_SHARED : "BEGIN", deadline_us);
    if (status == DB_OK && db->shared)
      status = run_text(db, db->settings, deadline_us);
    if (status != DB_OK)
      return status;
    db->begin_pending = false;
  }
  return run_text(db, sql, deadline_us);
}

enum db_status db_script(struct db *db, const char *sql) {
  return db_script_within(db, sql, db->options->statement_timeout_ms + DB_DEADLINE_EXTRA_MS);
}
