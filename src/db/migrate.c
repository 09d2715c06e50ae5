// SPDX-License-Identifier: Apache-2.0
#include "db/migrate.h"

#include "base/log.h"
#include "db/db_internal.h"

/// The advisory lock, held by a transaction and so never left behind: "shmigr" in ASCII.
#define LOCK_TAKE "SELECT pg_advisory_xact_lock(126892349417330)"

/// How long to wait for another instance that migrates, and for tables in use. Short enough that a stop is not held up:
/// who meets it comes back.
#define LOCK_WAIT "SET LOCAL lock_timeout = '4s'"
#define LOCK_WAIT_MS 5000

/// A migration may have a large table to go through.
#define APPLY_MAX_MS 3600000

static const char create_ledger[] =
    "CREATE SCHEMA IF NOT EXISTS stillhere;"
    "COMMENT ON SCHEMA stillhere IS 'Presence: who is still here. Owned and migrated by stillhered.';"
    "CREATE TABLE stillhere.schema_migration ("
    " number integer NOT NULL PRIMARY KEY CHECK (number > 0),"
    " name text NOT NULL,"
    " applied_at timestamptz NOT NULL DEFAULT clock_timestamp());"
    "COMMENT ON TABLE stillhere.schema_migration IS 'The migrations that this database has seen.';"
    "COMMENT ON COLUMN stillhere.schema_migration.number IS 'Number in the file name, from 1.';"
    "COMMENT ON COLUMN stillhere.schema_migration.name IS 'File name.';"
    "COMMENT ON COLUMN stillhere.schema_migration.applied_at IS 'When it was applied, on the database clock.';";

/// Not to_regclass(): it trusts this session's cache, which may not yet know what another has just committed.
static const struct db_stmt stmt_has_ledger = {
    "migrate_has_ledger", "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                          " WHERE n.nspname = 'stillhere' AND c.relname = 'schema_migration')"};

static const struct db_stmt stmt_newest = {"migrate_newest",
                                           "SELECT coalesce(max(number), 0) FROM stillhere.schema_migration"};

static const struct db_stmt stmt_applied = {"migrate_applied",
                                            "SELECT EXISTS (SELECT FROM stillhere.schema_migration WHERE number = $1)"};

static const struct db_stmt stmt_record = {"migrate_record",
                                           "INSERT INTO stillhere.schema_migration (number, name) VALUES ($1, $2)"};

/// Creates the ledger where it is missing. Looks first, since a role may be allowed to use it but not to create it.
static enum db_status open_ledger(struct db *db) {
  PGresult *r;
  enum db_status status = db_run(db, &stmt_has_ledger, NULL, &r);
  if (status != DB_OK)
    return status;
  bool there = db_bool(r, 0, 0);
  PQclear(r);
  return there ? DB_OK : db_script(db, create_ledger);
}

/// @param[out] missing the first migration that is not applied, NULL when there is none
static enum db_status find_missing(struct db *db, const struct migration **missing) {
  *missing = NULL;
  PGresult *r;
  enum db_status status = db_run(db, &stmt_newest, NULL, &r);
  if (status != DB_OK)
    return status;
  int64_t newest = db_int8(r, 0, 0);
  PQclear(r);
  int known = migration_count == 0 ? 0 : migrations[migration_count - 1].number;
  if (newest > known) {
    log_error("the database has migration %lld, but this program knows only those up to %d: it is too old for it",
              (long long)newest, known);
    return DB_FAILED;
  }
  for (int i = 0; i < migration_count && *missing == NULL; i++) {
    struct db_params p = {0};
    db_p_int4(&p, migrations[i].number);
    status = db_run(db, &stmt_applied, &p, &r);
    db_params_clear(&p);
    if (status != DB_OK)
      return status;
    if (!db_bool(r, 0, 0))
      *missing = &migrations[i];
    PQclear(r);
  }
  return DB_OK;
}

/// One transaction: waits for its turn, finds the first migration that is missing, applies and records it.
/// @param ctx a `const struct migration *` that is set to it, NULL when there was none
static enum db_status apply_next(struct db *db, void *ctx) {
  const struct migration **applied = ctx;
  enum db_status status =
      db_script_within(db, "SET LOCAL statement_timeout = 0; " LOCK_WAIT "; " LOCK_TAKE, LOCK_WAIT_MS);
  if (status == DB_OK)
    status = open_ledger(db);
  if (status == DB_OK)
    status = find_missing(db, applied);
  if (status != DB_OK || *applied == NULL)
    return status;
  status = db_script_within(db, (*applied)->sql, APPLY_MAX_MS);
  if (status != DB_OK) {
    log_warning("migration %s was not applied", (*applied)->name);
    return status;
  }
  struct db_params p = {0};
  db_p_int4(&p, (*applied)->number);
  db_p_text(&p, (*applied)->name);
  status = db_run(db, &stmt_record, &p, NULL);
  db_params_clear(&p);
  return status;
}

enum db_status migrate(struct db *db) {
  enum db_status status = db_connect(db);
  const struct migration *applied = NULL;
  while (status == DB_OK) {
    status = db_transaction(db, apply_next, &applied);
    if (status != DB_OK || applied == NULL)
      break;
    log_info("migration %s applied", applied->name);
  }
  // Another instance's turn took long, or readers kept a table: not a fault, only not yet.
  if (status == DB_LOCKED || status == DB_RETRY)
    return DB_LOST;
  return status == DB_OK ? db_greet(db) : status;
}
