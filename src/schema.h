// SPDX-License-Identifier: Apache-2.0
/// @file
/// Waits for the database and brings its schema up to date: for the daemon's start and for `stillhered --migrate`.
#ifndef SH_SCHEMA_H
#define SH_SCHEMA_H

#include <stdatomic.h>

#include "config/config.h"
#include "db/db.h"

/// Tries until the schema is up to date, or until @a stopping is set. Any one thread.
/// @return DB_OK; DB_LOST when it was stopped; DB_FAILED for what waiting cannot cure (logged)
enum db_status schema_wait(const struct db_options *options, const atomic_bool *stopping);

/// `--migrate`: the same with a bounded patience, then a word on what is left to do. Main's thread.
/// @return whether the schema is up to date; if not, why not has been logged
bool schema_migrate(const struct config *config);

#endif
