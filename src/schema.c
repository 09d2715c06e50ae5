// SPDX-License-Identifier: Apache-2.0
#include "schema.h"

#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "db/migrate.h"

#define RETRY_MS 100

/// How long `--migrate` waits for a database that is away or that another one migrates.
#define PATIENCE_MS 10000

/// Tables and views that the runtime role of sql/roles.sql cannot read yet, in a database where that file was run.
static const struct db_stmt stmt_ungranted = {
    .name = "schema_ungranted",
    .sql = "SELECT count(*) FROM pg_roles a, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
           " WHERE a.rolname = 'stillhere_app' AND n.nspname = 'stillhere' AND c.relkind IN ('r', 'p', 'v')"
           " AND has_schema_privilege(a.oid, n.oid, 'USAGE')"
           " AND NOT has_table_privilege(a.oid, c.oid, 'SELECT')"};

static void sleep_ms(long ms) {
  struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  (void)nanosleep(&t, NULL);
}

/// @param stopping may be NULL
/// @param until_us monotonic: no new attempt after that
static enum db_status wait_for(struct db *db, const atomic_bool *stopping, int64_t until_us) {
  bool said = false;
  for (;;) {
    if (stopping != NULL && atomic_load(stopping))
      return DB_LOST;
    enum db_status status = migrate(db);
    if (status != DB_LOST || clock_mono_us() >= until_us)
      return status;
    if (!said)
      log_warning("the database is not there yet; waiting for it");
    said = true;
    sleep_ms(RETRY_MS);
  }
}

enum db_status schema_wait(const struct db_options *options, const atomic_bool *stopping) {
  struct db *db = db_new(options);
  if (db == NULL) {
    log_error("the schema cannot be looked at: out of memory");
    return DB_FAILED;
  }
  enum db_status status = wait_for(db, stopping, INT64_MAX);
  db_free(db);
  return status;
}

/// Says it when the grants are older than the tables.
static void say_ungranted(struct db *db) {
  PGresult *r;
  if (db_run(db, &stmt_ungranted, NULL, &r) != DB_OK)
    return;
  if (db_int8(r, 0, 0) > 0)
    log_warning("the role stillhere_app has no rights yet on %lld of the tables: run sql/roles.sql once more",
                (long long)db_int8(r, 0, 0));
  PQclear(r);
}

bool schema_migrate(const struct config *config) {
  const struct db_options options = {config->database_url, "stillhered migrate", 3000, 10000, 5000, false};
  struct db *db = db_new(&options);
  enum db_status status = DB_FAILED;
  if (db == NULL)
    log_error("the schema cannot be looked at: out of memory");
  else
    status = wait_for(db, NULL, clock_mono_us() + PATIENCE_MS * INT64_C(1000));
  if (status == DB_OK) {
    log_info("the schema is up to date");
    say_ungranted(db);
  } else if (status == DB_LOST) {
    log_error("the schema is not up to date: the database is not reached, or another one is migrating it");
  }
  db_free(db);
  return status == DB_OK;
}
