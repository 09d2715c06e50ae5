// SPDX-License-Identifier: Apache-2.0
#include "db/migrate.h"

#include <stdio.h>

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

static const char create_schema[] =
    "CREATE SCHEMA stillhere;"
    "COMMENT ON SCHEMA stillhere IS 'Presence: who is still here. Owned and migrated by stillhered.';";

static const char create_ledger[] =
    "CREATE TABLE stillhere.schema_migration ("
    " number integer NOT NULL PRIMARY KEY CHECK (number > 0),"
    " name text NOT NULL,"
    " applied_at timestamptz NOT NULL DEFAULT clock_timestamp());"
    "COMMENT ON TABLE stillhere.schema_migration IS 'The migrations that this database has seen.';"
    "COMMENT ON COLUMN stillhere.schema_migration.number IS 'Number in the file name, from 1.';"
    "COMMENT ON COLUMN stillhere.schema_migration.name IS 'File name.';"
    "COMMENT ON COLUMN stillhere.schema_migration.applied_at IS 'When it was applied, on the database clock.';";

/// What is there, and what this role may do with it. Reads only what every role may read. Not to_regclass(): it trusts
/// this session's cache, which may not yet know what another has just committed.
static const struct db_stmt stmt_look = {
    .name = "migrate_look",
    .sql = "SELECT n.oid IS NOT NULL, c.oid IS NOT NULL,"
           " coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), false),"
           " CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')"
           "  ELSE has_schema_privilege(n.oid, 'CREATE') AND (c.oid IS NULL OR pg_has_role(c.relowner, 'USAGE')) END,"
           " current_user::text"
           " FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = 'stillhere'"
           " LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'schema_migration'"};

/// Tables and views that this role may not even read. Whoever works on them may read them all, so such a one is newer
/// than the grants.
static const struct db_stmt stmt_closed = {.name = "migrate_closed",
                                           .sql = "SELECT min(c.relname::text), current_user::text FROM pg_class c"
                                                  " JOIN pg_namespace n ON n.oid = c.relnamespace"
                                                  " WHERE n.nspname = 'stillhere' AND c.relkind IN ('r', 'p', 'v')"
                                                  " AND NOT has_table_privilege(c.oid, 'SELECT')"};

static const struct db_stmt stmt_newest = {.name = "migrate_newest",
                                           .sql = "SELECT coalesce(max(number), 0) FROM stillhere.schema_migration"};

static const struct db_stmt stmt_applied = {
    .name = "migrate_applied", .sql = "SELECT EXISTS (SELECT FROM stillhere.schema_migration WHERE number = $1)"};

static const struct db_stmt stmt_record = {
    .name = "migrate_record", .sql = "INSERT INTO stillhere.schema_migration (number, name) VALUES ($1, $2)"};

/// What stmt_look has found.
struct look {
  bool schema, ledger; ///< they exist
  bool may_read, may_migrate;
  char role[128];
};

static enum db_status look(struct db *db, struct look *found) {
  PGresult *r;
  enum db_status status = db_run(db, &stmt_look, NULL, &r);
  if (status != DB_OK)
    return status;
  *found = (struct look){db_bool(r, 0, 0), db_bool(r, 0, 1), db_bool(r, 0, 2), db_bool(r, 0, 3), ""};
  (void)snprintf(found->role, sizeof found->role, "%s", db_text(r, 0, 4));
  PQclear(r);
  return DB_OK;
}

/// Creates what is missing. Looks first, since a role may be allowed to use it but not to create it.
static enum db_status open_ledger(struct db *db) {
  struct look found;
  enum db_status status = look(db, &found);
  if (status == DB_OK && !found.schema)
    status = db_script(db, create_schema);
  if (status == DB_OK && !found.ledger)
    status = db_script(db, create_ledger);
  return status;
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

/// Whether there is anything to do. Only reads, so that it needs no lock and no more rights than the daily work.
/// @param[out] due DB_OK: whether a migration is to be applied. DB_FAILED has been logged
static enum db_status find_due(struct db *db, bool *due) {
  struct look found;
  enum db_status status = look(db, &found);
  if (status != DB_OK)
    return status;
  const struct migration *missing = migration_count == 0 ? NULL : &migrations[0];
  if (found.ledger && !found.may_read && !found.may_migrate) {
    log_error("the role %s may not use the schema stillhere: run sql/roles.sql, and connect as stillhere_app",
              found.role);
    return DB_FAILED;
  }
  if (found.ledger)
    status = find_missing(db, &missing);
  if (status != DB_OK)
    return status;
  *due = missing != NULL;
  if (*due && !found.may_migrate) {
    log_error("the database lacks migration %s, and the role %s may not apply it: run stillhered --migrate with a"
              " database_url of the schema's owner, then sql/roles.sql once more",
              missing->name, found.role);
    return DB_FAILED;
  }
  return DB_OK;
}

/// The schema is up to date; whether this role may also use all of it.
static enum db_status check_grants(struct db *db) {
  PGresult *r;
  enum db_status status = db_run(db, &stmt_closed, NULL, &r);
  if (status != DB_OK)
    return status;
  if (!db_null(r, 0, 0)) {
    log_error("the role %s may not read stillhere.%s: run sql/roles.sql once more", db_text(r, 0, 1), db_text(r, 0, 0));
    status = DB_FAILED;
  }
  PQclear(r);
  return status;
}

enum db_status migrate(struct db *db) {
  enum db_status status = db_connect(db);
  bool due = false;
  if (status == DB_OK)
    status = find_due(db, &due);
  const struct migration *applied = NULL;
  while (status == DB_OK && due) {
    status = db_transaction(db, apply_next, &applied);
    due = applied != NULL;
    if (status == DB_OK && due)
      log_info("migration %s applied", applied->name);
  }
  if (status == DB_OK)
    status = check_grants(db);
  if (status == DB_OK)
    status = db_greet(db);
  // Another instance's turn took long, or readers kept a table: not a fault, only not yet.
  return status == DB_LOCKED || status == DB_RETRY ? DB_LOST : status;
}
