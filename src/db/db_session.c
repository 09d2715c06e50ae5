// SPDX-License-Identifier: Apache-2.0
// What a session is set to, and whose it is.
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/util.h"
#include "db/db_internal.h"

/// A role or a database may have other defaults, and a pooler's clients leave behind what they like.
static const struct setting {
  const char *name, *value; ///< value NULL: the timeout of that name, from the options
  bool by_key;              ///< only for who works by key
} settings[] = {
    {"statement_timeout", NULL, false},
    {"lock_timeout", NULL, false},
    {"idle_in_transaction_session_timeout", "10s", false},
    {"TimeZone", "UTC", false},
    {"search_path", "pg_catalog", false},
    {"default_transaction_isolation", "read committed", false},
    {"synchronous_commit", "on", false},
    {"jit", "off", false},
    // Arrays of keys say nothing about how many they are until the plan is made anew each time, and a table that was
    // just made has no statistics. Whoever works by key needs no planner to find out that the index is the way.
    {"plan_cache_mode", "force_generic_plan", true},
    {"enable_hashjoin", "off", true},
    {"enable_mergejoin", "off", true},
    {"enable_seqscan", "off", true},
    {"enable_bitmapscan", "off", true},
};

bool db_shared(const struct db *db) {
  return db->shared;
}

bool db_distributed(const struct db *db) {
  return db->distributed;
}

/// Writes all settings as SQL. @param shared for one transaction, else for the session. @return false: no room
static bool write_settings(const struct db *db, bool shared, char *out, size_t size) {
  const struct db_options *options = db->options;
  size_t len = (size_t)snprintf(out, size, "%s", shared ? "SELECT " : "");
  for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
    const struct setting *s = &settings[i];
    // Citus plans each statement anew, and looks for rows elsewhere.
    if (s->by_key && (!options->by_key || db->distributed))
      continue;
    char number[16];
    int ms = strcmp(s->name, "lock_timeout") == 0 ? options->lock_timeout_ms : options->statement_timeout_ms;
    (void)snprintf(number, sizeof number, "%d", ms);
    const char *value = s->value != NULL ? s->value : number;
    int n = shared ? snprintf(out + len, size - len, "%spg_catalog.set_config('%s', '%s', true)", i == 0 ? "" : ", ",
                              s->name, value)
                   : snprintf(out + len, size - len, "SET %s = '%s'; ", s->name, value);
    if (n < 0 || (size_t)n >= size - len)
      return false;
    len += (size_t)n;
  }
  return true;
}

enum db_status db_by_key(struct db *db) {
  if (db->options->by_key || db->distributed)
    return DB_OK;
  struct buf sql = {0};
  for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
    if (settings[i].by_key)
      buf_printf(&sql, "SET LOCAL %s = '%s'; ", settings[i].name, settings[i].value);
  }
  enum db_status status = sql.failed ? DB_FAILED : db_script(db, sql.data);
  buf_free(&sql);
  return status;
}

/// Citus is there. Whether it has distributed what is stillhere's is another question.
static enum db_status find_out_distributed(struct db *db) {
  static const struct db_stmt stmt = {.name = "distributed",
                                      .sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_partition"
                                             " WHERE logicalrelid = pg_catalog.to_regclass('stillhere.lease'))"};
  PGresult *r;
  enum db_status status = db_run(db, &stmt, NULL, &r);
  if (status != DB_OK)
    return status;
  db->distributed = db_bool(r, 0, 0);
  PQclear(r);
  static atomic_bool told;
  if (db->distributed && !atomic_exchange(&told, true))
    log_info("the tables are distributed by Citus (%s)", db->options->application);
  return DB_OK;
}

/// A pooler makes up the number of the process that it names at the start, since it has none of its own to offer. Asked
/// as if it were one, because the answer is not known yet.
static enum db_status find_out(struct db *db) {
  static const struct db_stmt stmt_pid = {
      .name = "backend",
      .sql = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL"};
  PGresult *r;
  db->shared = true;
  enum db_status status = db_run(db, &stmt_pid, NULL, &r);
  if (status != DB_OK)
    return status;
  bool citus = db_bool(r, 0, 1), shared = db->lost_prepared || db_int8(r, 0, 0) != PQbackendPID(db->conn);
  PQclear(r);
  status = citus ? find_out_distributed(db) : DB_OK;
  if (status != DB_OK)
    return status;
  db->shared = shared;
  static atomic_bool told;
  if (db->shared && !atomic_exchange(&told, true))
    log_info("the database is behind a pooler (%s): each transaction brings its settings along, nothing is prepared",
             db->options->application);
  return DB_OK;
}

enum db_status db_set_up(struct db *db) {
  db->distributed = false;
  if (!write_settings(db, true, db->settings, sizeof db->settings))
    return DB_FAILED;
  enum db_status status = find_out(db);
  if (status == DB_OK && db->distributed && !write_settings(db, true, db->settings, sizeof db->settings))
    status = DB_FAILED;
  if (status != DB_OK || db->shared)
    return status;
  char sql[DB_SETTINGS_MAX];
  return write_settings(db, false, sql, sizeof sql) ? db_script(db, sql) : DB_FAILED;
}
