// SPDX-License-Identifier: Apache-2.0
/// @file
/// What the two halves of the test of src/db share.
#ifndef TEST_DB_H
#define TEST_DB_H

#include "db/db.h"

extern struct db_options options;

extern const struct db_stmt stmt_read, stmt_add, stmt_divide;

struct db *open_db(void);

/// Runs a statement with one int parameter. @a out may be NULL.
enum db_status run_int(struct db *db, const struct db_stmt *stmt, int32_t param, int64_t *out);

int32_t pid_of(struct db *db);

/// The number in row @a id of db_test.counter.
int64_t counter(struct db *db, int32_t id);

void kill_backend(int32_t pid);

/// The tests of what goes wrong. @return how many failed
int run_fault_tests(int (*set_up)(void **state), int (*tear_down)(void **state));

#endif
