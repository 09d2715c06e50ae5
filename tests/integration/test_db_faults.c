// SPDX-License-Identifier: Apache-2.0
// src/db when something goes wrong: connections killed, timeouts, locks, deadlocks, altered tables.
#include <setjmp.h> // cmocka.h wants these four in front
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/metric.h"
#include "base/util.h"
#include "test_db.h"

static const struct db_stmt stmt_lock = {.name = "lock",
                                         .sql = "SELECT n FROM db_test.counter WHERE id = $1 FOR UPDATE"};
static const struct db_stmt stmt_sleep = {.name = "sleep", .sql = "SELECT pg_sleep(5)"};

static void test_killed_while_idle(void **state) {
  (void)state;
  struct db *db = open_db();
  int32_t first = pid_of(db);
  kill_backend(first);
  usleep(1100000); // longer than a short life, so that there is no pause before the next attempt
  assert_int_equal(db_connect(db), DB_OK);
  assert_int_not_equal(pid_of(db), first);
  db_free(db);
}

struct killed {
  int32_t pid;
  int tries;
};

static enum db_status work_killed(struct db *db, void *ctx) {
  struct killed *k = ctx;
  k->tries++;
  enum db_status status = run_int(db, &stmt_add, 1, NULL);
  if (status != DB_OK)
    return status;
  if (k->tries == 1) {
    k->pid = pid_of(db);
    kill_backend(k->pid);
  }
  status = run_int(db, &stmt_add, 1, NULL);
  // A new connection in the middle of a transaction would break it in two.
  if (status == DB_LOST)
    assert_int_equal(db_connect(db), DB_LOST);
  return status;
}

static void test_killed_in_transaction(void **state) {
  (void)state;
  struct db *db = open_db();
  int64_t before = counter(db, 1);
  struct killed k = {0};
  assert_int_equal(db_transaction(db, work_killed, &k), DB_LOST);
  assert_int_equal(k.tries, 1);
  assert_false(db_connected(db));
  usleep(150000);
  assert_int_equal(db_transaction(db, work_killed, &k), DB_OK); // connects by itself
  assert_int_not_equal(pid_of(db), k.pid);
  assert_int_equal(counter(db, 1), before + 2);
  db_free(db);
}

static void test_statement_timeout(void **state) {
  (void)state;
  struct db_options hasty = options;
  hasty.statement_timeout_ms = 200;
  struct db *db = db_new(&hasty);
  assert_non_null(db);
  assert_int_equal(db_connect(db), DB_OK);
  int64_t start = clock_mono_us();
  assert_int_equal(db_run(db, &stmt_sleep, NULL, NULL), DB_LOST); // the server's word, 57014
  assert_in_range(clock_mono_us() - start, 190000, 600000);
  assert_false(db_connected(db));
  usleep(150000);
  // A server that does not keep to it is given up by our own deadline.
  assert_int_equal(db_connect(db), DB_OK);
  assert_int_equal(db_script(db, "SET statement_timeout = 0"), DB_OK);
  start = clock_mono_us();
  assert_int_equal(db_run(db, &stmt_sleep, NULL, NULL), DB_LOST);
  assert_in_range(clock_mono_us() - start, 690000, 1500000);
  assert_false(db_connected(db));
  usleep(250000);
  assert_int_equal(db_connect(db), DB_OK);
  assert_true(pid_of(db) > 0);
  db_free(db);
}

static enum db_status work_add_5(struct db *db, void *ctx) {
  ++*(int *)ctx;
  enum db_status status = run_int(db, &stmt_add, 6, NULL);
  return status == DB_OK ? run_int(db, &stmt_add, 5, NULL) : status;
}

static void test_lock_timeout(void **state) {
  (void)state;
  struct db *holder = open_db(), *db = open_db();
  assert_int_equal(db_script(holder, "BEGIN"), DB_OK);
  assert_int_equal(run_int(holder, &stmt_lock, 5, NULL), DB_OK);
  int64_t before = counter(db, 6);
  int tries = 0;
  assert_int_equal(db_transaction(db, work_add_5, &tries), DB_LOCKED);
  assert_int_equal(tries, 1);
  assert_true(db_connected(db));
  assert_int_equal(PQtransactionStatus(db_raw(db)), PQTRANS_IDLE); // rolled back, not left open
  assert_int_equal(counter(db, 6), before);
  assert_int_equal(db_script(holder, "ROLLBACK"), DB_OK);
  assert_int_equal(db_transaction(db, work_add_5, &tries), DB_OK);
  assert_int_equal(counter(db, 6), before + 1);
  db_free(db);
  db_free(holder);
}

static enum db_status add_alone(struct db *db, int32_t id, int64_t *n) {
  struct db_params p = {0};
  db_p_int4(&p, id);
  PGresult *r = NULL;
  enum db_status status = db_alone(db, &stmt_add, &p, &r);
  db_params_clear(&p);
  assert_true((status == DB_OK) == (r != NULL));
  if (r != NULL)
    *n = db_int8(r, 0, 0);
  PQclear(r);
  return status;
}

static void test_one_statement_alone(void **state) {
  (void)state;
  struct db *db = db_new(&options), *other = open_db();
  assert_non_null(db);
  int64_t before = counter(other, 5), n = 0;
  assert_int_equal(add_alone(db, 5, &n), DB_OK); // connects by itself
  assert_int_equal(n, before + 1);
  assert_int_equal(PQtransactionStatus(db_raw(db)), PQTRANS_IDLE);
  assert_int_equal(counter(other, 5), before + 1); // committed: others see it
  assert_int_equal(db_script(other, "BEGIN"), DB_OK);
  assert_int_equal(run_int(other, &stmt_lock, 5, NULL), DB_OK);
  assert_int_equal(add_alone(db, 5, &n), DB_LOCKED);
  assert_int_equal(PQtransactionStatus(db_raw(db)), PQTRANS_IDLE);
  assert_int_equal(db_script(other, "ROLLBACK"), DB_OK);
  assert_int_equal(counter(other, 5), before + 1);
  kill_backend(pid_of(db));
  assert_int_equal(add_alone(db, 5, &n), DB_LOST); // a connection that broke so soon is not made anew at once
  assert_int_equal(counter(other, 5), before + 1);
  db_free(db);
  db_free(other);
}

static void test_alone_is_committed_or_not_ok(void **state) {
  (void)state;
  // Fails when it commits, after the statement itself has given its row.
  static const struct db_stmt stmt = {.name = "late", .sql = "INSERT INTO db_test.late VALUES (1) RETURNING id"};
  struct db *db = open_db(), *other = open_db();
  assert_int_equal(db_script(db, "CREATE TABLE db_test.late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED);"
                                 " INSERT INTO db_test.late VALUES (1)"),
                   DB_OK);
  PGresult *untouched = NULL;
  assert_int_not_equal(db_alone(db, &stmt, NULL, &untouched), DB_OK);
  assert_null(untouched);
  assert_int_equal(db_script(other, "DROP TABLE db_test.late"), DB_OK);
  db_free(db);
  db_free(other);
}

struct duel {
  struct db *db;
  int32_t first, second;
  int tries;
  enum db_status status;
  pthread_barrier_t *both;
};

static enum db_status work_duel(struct db *db, void *ctx) {
  struct duel *d = ctx;
  enum db_status status = run_int(db, &stmt_add, d->first, NULL);
  if (d->tries++ == 0)
    (void)pthread_barrier_wait(d->both); // each holds one row and wants the other
  return status == DB_OK ? run_int(db, &stmt_add, d->second, NULL) : status;
}

static void *duel_thread(void *ctx) {
  struct duel *d = ctx;
  d->status = db_transaction(d->db, work_duel, d);
  return NULL;
}

static void test_deadlock_is_tried_again(void **state) {
  (void)state;
  struct db_options patient = options;
  patient.lock_timeout_ms = 2800; // longer than the server's deadlock_timeout
  pthread_barrier_t both;
  assert_int_equal(pthread_barrier_init(&both, NULL, 2), 0);
  struct duel d[2] = {{.first = 7, .second = 8, .both = &both}, {.first = 8, .second = 7, .both = &both}};
  pthread_t threads[2];
  struct db *db = open_db();
  int64_t seven = counter(db, 7), eight = counter(db, 8), retries = metric_get(METRIC_TRANSACTION_RETRIES);
  for (int i = 0; i < 2; i++) {
    d[i].db = db_new(&patient);
    assert_non_null(d[i].db);
    assert_int_equal(pthread_create(&threads[i], NULL, duel_thread, &d[i]), 0);
  }
  for (int i = 0; i < 2; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(d[i].status, DB_OK);
    db_free(d[i].db);
  }
  assert_true(d[0].tries + d[1].tries > 2);
  assert_true(metric_get(METRIC_TRANSACTION_RETRIES) > retries);
  assert_int_equal(counter(db, 7), seven + 2);
  assert_int_equal(counter(db, 8), eight + 2);
  db_free(db);
  (void)pthread_barrier_destroy(&both);
}

static enum db_status work_always_unserializable(struct db *db, void *ctx) {
  ++*(int *)ctx;
  assert_int_equal(run_int(db, &stmt_add, 9, NULL), DB_OK);
  return db_script(db, "DO $$BEGIN RAISE SQLSTATE '40001'; END$$");
}

static void test_retries_end(void **state) {
  (void)state;
  struct db *db = open_db();
  int64_t before = counter(db, 9);
  int tries = 0;
  assert_int_equal(db_transaction(db, work_always_unserializable, &tries), DB_RETRY);
  assert_int_equal(tries, 10);
  assert_int_equal(counter(db, 9), before);
  db_free(db);
}

static enum db_status work_ignores_failure(struct db *db, void *ctx) {
  (void)ctx;
  assert_int_equal(run_int(db, &stmt_add, 9, NULL), DB_OK);
  assert_int_equal(run_int(db, &stmt_divide, 0, NULL), DB_FAILED);
  return DB_OK;
}

static enum db_status work_nothing(struct db *db, void *ctx) {
  (void)db;
  return *(enum db_status *)ctx;
}

static void test_no_false_commit(void **state) {
  (void)state;
  struct db *db = open_db();
  int64_t before = counter(db, 9);
  assert_int_equal(db_transaction(db, work_ignores_failure, NULL), DB_FAILED);
  assert_int_equal(counter(db, 9), before);
  enum db_status said = DB_OK;
  assert_int_equal(db_transaction(db, work_nothing, &said), DB_OK);
  said = DB_FAILED;
  assert_int_equal(db_transaction(db, work_nothing, &said), DB_FAILED);
  assert_int_equal(PQtransactionStatus(db_raw(db)), PQTRANS_IDLE);
  db_free(db);
}

static void test_judgement(void **state) {
  (void)state;
  struct db *db = open_db();
  static const struct {
    const char *sqlstate;
    enum db_status status;
    bool stays;
  } cases[] = {
      {"40001", DB_RETRY, true},  {"40P01", DB_RETRY, true},  {"26000", DB_RETRY, false}, {"55P03", DB_LOCKED, true},
      {"08006", DB_LOST, false},  {"57P03", DB_LOST, false},  {"57014", DB_LOST, false},  {"25006", DB_LOST, false},
      {"53300", DB_LOST, false},  {"58030", DB_LOST, false},  {"XX000", DB_LOST, false},  {"23505", DB_FAILED, true},
      {"22P02", DB_FAILED, true}, {"42501", DB_FAILED, true}, {"XX001", DB_FAILED, true}, {"0A000", DB_FAILED, true},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    char sql[100];
    (void)snprintf(sql, sizeof sql, "DO $$BEGIN RAISE SQLSTATE '%s'; END$$", cases[i].sqlstate);
    while (db_connect(db) != DB_OK)
      usleep(20000);
    enum db_status status = db_script(db, sql);
    if (status != cases[i].status || db_connected(db) != cases[i].stays)
      fail_msg("%s gave %d, connection %s", cases[i].sqlstate, status, db_connected(db) ? "kept" : "dropped");
  }
  db_free(db);
}

static void test_altered_table(void **state) {
  (void)state;
  static const struct db_stmt stmt = {.name = "altered", .sql = "SELECT x FROM db_test.altered"};
  struct db *db = open_db(), *other = open_db();
  assert_int_equal(db_script(other, "CREATE TABLE db_test.altered (x int)"), DB_OK);
  assert_int_equal(db_run(db, &stmt, NULL, NULL), DB_OK);
  assert_int_equal(db_script(other, "ALTER TABLE db_test.altered ALTER COLUMN x TYPE bigint"), DB_OK);
  assert_int_equal(db_run(db, &stmt, NULL, NULL), DB_RETRY);
  assert_false(db_connected(db));
  assert_int_equal(db_connect(db), DB_OK); // at once
  assert_int_equal(db_run(db, &stmt, NULL, NULL), DB_OK);
  db_free(other);
  db_free(db);
}

static void test_read_only(void **state) {
  (void)state;
  struct db *db = open_db();
  assert_int_equal(db_script(db, "SET default_transaction_read_only = on"), DB_OK);
  assert_int_equal(run_int(db, &stmt_add, 9, NULL), DB_LOST);
  assert_false(db_connected(db));
  db_free(db);
}

int run_fault_tests(int (*set_up)(void **state), int (*tear_down)(void **state)) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_killed_while_idle),       cmocka_unit_test(test_killed_in_transaction),
      cmocka_unit_test(test_statement_timeout),       cmocka_unit_test(test_lock_timeout),
      cmocka_unit_test(test_one_statement_alone),     cmocka_unit_test(test_alone_is_committed_or_not_ok),
      cmocka_unit_test(test_deadlock_is_tried_again), cmocka_unit_test(test_retries_end),
      cmocka_unit_test(test_no_false_commit),         cmocka_unit_test(test_judgement),
      cmocka_unit_test(test_altered_table),           cmocka_unit_test(test_read_only),
  };
  return cmocka_run_group_tests_name("db faults", tests, set_up, tear_down);
}
