// SPDX-License-Identifier: Apache-2.0
/// @file
/// Applies the numbered files of sql/ that a database has not seen, each in one transaction, under an advisory lock so
/// that several instances may start at once. The files are built into the program (migrations_data.h, generated).
#ifndef SH_DB_MIGRATE_H
#define SH_DB_MIGRATE_H

#include "db/db.h"

struct migration {
  int number;       ///< 1, 2, 3 …
  const char *name; ///< file name without directory, "0001-tables.sql"
  const char *sql;
};

/// Generated: all of them in order, and their count.
extern const struct migration migrations[];
extern const int migration_count;

/// Brings the schema `stillhere` up to date. Creates it and `stillhere.schema_migration` where they are missing. Where
/// nothing is missing it only reads: a role that may not migrate is enough then, and no lock is taken.
/// @return DB_OK; DB_LOST (try again later); DB_FAILED when a file fails, the database is newer than this program, or
/// the role lacks a right, with one line in the log that says what to do
enum db_status migrate(struct db *db);

#endif
