// SPDX-License-Identifier: Apache-2.0
// src/db against a real PostgreSQL: TEST_DATABASE_URL names an empty database whose owner or superuser we are.
#include <setjmp.h> // cmocka.h wants these four in front
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/metric.h"
#include "base/util.h"
#include "db/db.h"
#include "db/epoch.h"
#include "db/migrate.h"
#include "test_db.h"

struct db_options options = {
    .application = "test_db",
    .connect_timeout_ms = 3000,
    .statement_timeout_ms = 3000,
    .lock_timeout_ms = 300,
};

static const struct db_stmt stmt_pid = {.name = "pid", .sql = "SELECT pg_backend_pid()"};
static const struct db_stmt stmt_kill = {.name = "kill", .sql = "SELECT pg_terminate_backend($1, 1000)"};
const struct db_stmt stmt_read = {.name = "read", .sql = "SELECT n FROM db_test.counter WHERE id = $1"};
const struct db_stmt stmt_add = {
    .name = "add", .sql = "UPDATE db_test.counter SET n = n + 1 WHERE id = $1 RETURNING n, pg_backend_pid()"};
const struct db_stmt stmt_divide = {.name = "divide", .sql = "SELECT 1 / $1"};
static const struct db_stmt stmt_syntax = {.name = "syntax", .sql = "SELEKT 1"};

struct db *open_db(void) {
  struct db *db = db_new(&options);
  assert_non_null(db);
  assert_int_equal(db_connect(db), DB_OK);
  return db;
}

enum db_status run_int(struct db *db, const struct db_stmt *stmt, int32_t param, int64_t *out) {
  struct db_params p = {0};
  db_p_int4(&p, param);
  PGresult *r;
  enum db_status status = db_run(db, stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  if (out != NULL)
    *out = PQntuples(r) > 0 && PQgetlength(r, 0, 0) > 1 ? db_int8(r, 0, 0) : 0;
  PQclear(r);
  return DB_OK;
}

int32_t pid_of(struct db *db) {
  PGresult *r;
  assert_int_equal(db_run(db, &stmt_pid, NULL, &r), DB_OK);
  int32_t pid = (int32_t)db_int8(r, 0, 0);
  PQclear(r);
  return pid;
}

int64_t counter(struct db *db, int32_t id) {
  int64_t n;
  assert_int_equal(run_int(db, &stmt_read, id, &n), DB_OK);
  return n;
}

void kill_backend(int32_t pid) {
  struct db *other = open_db();
  assert_int_equal(run_int(other, &stmt_kill, pid, NULL), DB_OK);
  db_free(other);
}

static void text_of(struct db *db, const char *sql, char out[64]) {
  PGresult *r = PQexec(db_raw(db), sql);
  assert_int_equal(PQresultStatus(r), PGRES_TUPLES_OK);
  (void)snprintf(out, 64, "%s", PQgetvalue(r, 0, 0));
  PQclear(r);
}

/// Only an empty database, or what an earlier run of this test left behind.
static enum db_status make_tables(struct db *db) {
  char text[64];
  text_of(db,
          "SELECT count(*) FILTER (WHERE nspname = 'stillhere') > count(*) FILTER (WHERE nspname = 'db_test')"
          " FROM pg_namespace",
          text);
  if (strcmp(text, "f") != 0) {
    (void)fputs("test_db: TEST_DATABASE_URL names a database that is in use: it has a schema stillhere\n", stderr);
    return DB_FAILED;
  }
  return db_script(db, "DROP SCHEMA IF EXISTS db_test CASCADE; DROP SCHEMA IF EXISTS stillhere CASCADE;"
                       "CREATE SCHEMA db_test;"
                       "CREATE TABLE db_test.counter (id int PRIMARY KEY, n bigint NOT NULL);"
                       "INSERT INTO db_test.counter SELECT i, 0 FROM generate_series(1, 9) i");
}

static bool ready; ///< the database is ours to clean up

static int set_up(void **state) {
  (void)state;
  options.url = getenv("TEST_DATABASE_URL");
  if (options.url == NULL || options.url[0] == '\0') {
    (void)fputs("test_db: TEST_DATABASE_URL is not set; it names an empty database for this test\n", stderr);
    return -1;
  }
  struct db *db = db_new(&options);
  ready = db != NULL && db_connect(db) == DB_OK && make_tables(db) == DB_OK;
  db_free(db);
  return ready ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  if (!ready)
    return 0;
  struct db *db = db_new(&options);
  enum db_status status = db == NULL ? DB_FAILED : db_connect(db);
  if (status == DB_OK)
    status = db_script(db, "DROP SCHEMA db_test CASCADE; DROP SCHEMA IF EXISTS stillhere CASCADE");
  db_free(db);
  return status == DB_OK ? 0 : -1;
}

// -- connecting ----------------------------------------------------------------------------------------------------

static void test_session_settings(void **state) {
  (void)state;
  struct db *db = open_db();
  assert_true(db_connected(db));
  assert_true(db_socket(db) >= 0);
  char text[64];
  text_of(db, "SELECT current_setting('statement_timeout')", text);
  assert_string_equal(text, "3s");
  db_drop(db);
  assert_false(db_connected(db));
  assert_int_equal(db_socket(db), -1);
  assert_int_equal(db_connect(db), DB_OK);
  text_of(db,
          "SELECT concat_ws('/', current_setting('lock_timeout'), current_setting('TimeZone'),"
          " current_setting('search_path'), current_setting('synchronous_commit'),"
          " current_setting('idle_in_transaction_session_timeout'))",
          text);
  assert_string_equal(text, "300ms/UTC/pg_catalog/on/10s");
  text_of(db, "SELECT concat_ws('/', current_setting('application_name'), current_setting('client_encoding'))", text);
  assert_string_equal(text, "test_db/UTF8");
  assert_int_equal(metric_get(METRIC_DATABASE_UP), 1);
  int64_t now = clock_db_us(); // seconds since 1970 say that it is a sensible time
  assert_true(now > INT64_C(1700000000000000));
  db_free(db);
  db_free(NULL);
}

static void test_refusal_and_back_off(void **state) {
  (void)state;
  struct db_options nowhere = options;
  nowhere.url = "postgresql://127.0.0.1:1/none?password=hunter2";
  struct db *db = db_new(&nowhere);
  assert_non_null(db);
  assert_int_equal(db_connect(db), DB_LOST);
  assert_int_equal(metric_get(METRIC_DATABASE_UP), 0);
  int64_t start = clock_mono_us();
  assert_int_equal(db_connect(db), DB_LOST); // within the back-off, at once
  assert_true(clock_mono_us() - start < 20000);
  PGresult *untouched = NULL;
  assert_int_equal(db_run(db, &stmt_pid, NULL, &untouched), DB_LOST);
  assert_null(untouched);
  assert_int_equal(db_script(db, "SELECT 1"), DB_LOST);
  db_free(db);
}

/// A listener that never answers, and the real server behind it in the list of hosts.
static void test_silent_host_gives_way(void **state) {
  (void)state;
  struct db *probe = open_db();
  char host[256], url[1024];
  const char *directory = PQhost(db_raw(probe));
  (void)snprintf(host, sizeof host, "%s", directory);
  int silent = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof at;
  assert_int_equal(bind(silent, (struct sockaddr *)&at, len), 0);
  assert_int_equal(listen(silent, 8), 0);
  assert_int_equal(getsockname(silent, (struct sockaddr *)&at, &len), 0);
  (void)snprintf(url, sizeof url, "host=127.0.0.1,%s port=%d,%s user=%s dbname=%s password='%s' sslmode=disable", host,
                 ntohs(at.sin_port), PQport(db_raw(probe)), PQuser(db_raw(probe)), PQdb(db_raw(probe)),
                 PQpass(db_raw(probe)));
  db_free(probe);

  struct db_options two = options;
  two.url = url;
  two.connect_timeout_ms = 300;
  struct db *db = db_new(&two);
  assert_non_null(db);
  int64_t start = clock_mono_us();
  assert_int_equal(db_connect(db), DB_LOST);
  int64_t took = clock_mono_us() - start;
  assert_in_range(took, 290000, 1000000);
  usleep(150000);
  assert_int_equal(db_connect(db), DB_OK); // begins with the second host
  db_free(db);
  (void)close(silent);
}

// -- statements ----------------------------------------------------------------------------------------------------

static void test_pipeline(void **state) {
  (void)state;
  struct db *db = open_db();
  for (int round = 0; round < 3; round++) { // prepared in the first, then only executed
    struct db_params p = {0}, q = {0};
    db_p_int4(&p, 2);
    db_p_int4(&q, 3);
    struct db_step steps[] = {{&stmt_add, &p}, {&stmt_add, &q}, {&stmt_read, &p}, {&stmt_pid, NULL}};
    PGresult *r[4];
    assert_int_equal(db_pipeline(db, steps, 4, r), DB_OK);
    assert_int_equal(db_int8(r[0], 0, 0), round + 1);
    assert_int_equal(db_int8(r[1], 0, 0), round + 1);
    assert_int_equal(db_int8(r[2], 0, 0), round + 1);
    assert_int_equal(db_int8(r[3], 0, 0), db_int8(r[0], 0, 1));
    for (int i = 0; i < 4; i++)
      PQclear(r[i]);
    db_params_clear(&p);
    db_params_clear(&q);
  }
  db_free(db);
}

static void test_pipeline_is_all_or_nothing(void **state) {
  (void)state;
  struct db *db = open_db();
  int64_t before = counter(db, 4);
  struct db_params p = {0}, zero = {0};
  db_p_int4(&p, 4);
  db_p_int4(&zero, 0);
  struct db_step steps[] = {{&stmt_add, &p}, {&stmt_divide, &zero}, {&stmt_add, &p}};
  PGresult *r[3] = {0};
  assert_int_equal(db_pipeline(db, steps, 3, r), DB_FAILED);
  for (int i = 0; i < 3; i++)
    assert_null(r[i]);
  assert_true(db_connected(db)); // our mistake is no reason to drop it
  assert_int_equal(counter(db, 4), before);
  assert_int_equal(db_run(db, &stmt_syntax, NULL, NULL), DB_FAILED);
  assert_int_equal(run_int(db, &stmt_add, 4, NULL), DB_OK);
  assert_int_equal(counter(db, 4), before + 1);
  db_params_clear(&p);
  db_params_clear(&zero);

  struct db_params broken = {.failed = true};
  assert_int_equal(db_run(db, &stmt_add, &broken, NULL), DB_FAILED);
  db_free(db);
}

/// More than the socket buffers hold, both ways at once: sending and reading must take turns.
static void test_large_values(void **state) {
  (void)state;
  static const struct db_stmt echo = {.name = "echo", .sql = "SELECT $1::text"};
  struct db *db = open_db();
  size_t len = 1000 * 1000;
  char *big = malloc(len + 1);
  assert_non_null(big);
  memset(big, 'x', len);
  big[len] = '\0';
  struct db_params p = {0};
  db_p_text(&p, big);
  struct db_step steps[] = {{&echo, &p}, {&echo, &p}, {&echo, &p}};
  PGresult *r[3];
  assert_int_equal(db_pipeline(db, steps, 3, r), DB_OK);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(db_text_len(r[i], 0, 0), len);
    assert_int_equal(strcmp(db_text(r[i], 0, 0), big), 0);
    PQclear(r[i]);
  }
  db_params_clear(&p);
  free(big);
  db_free(db);
}

static const char *name_at(const void *ctx, size_t i) {
  return ((const char *const *)ctx)[i];
}

static int64_t number_at(const void *ctx, size_t i) {
  return ((const int64_t *)ctx)[i];
}

static void test_values_there_and_back(void **state) {
  (void)state;
  static const struct db_stmt stmt = {
      .name = "values",
      .sql =
          "SELECT t, a, b, c, d, a IS NULL, t IS NULL FROM"
          " unnest($1::text[], $2::bigint[], $3::int[], $4::boolean[], $5::bigint[]) WITH ORDINALITY AS u(t, a, b, c, d, o)"
          " ORDER BY o"};
  const char *names[] = {"caf\xc3\xa9", NULL, ""};
  int64_t nullable[] = {INT64_MIN, INT64_MAX, 0}, ints[] = {INT32_MIN, INT32_MAX, -1}, bools[] = {1, 0, 7},
          longs[] = {INT64_MIN, INT64_MAX, 5};
  struct db *db = open_db();
  struct db_params p = {0};
  db_p_text_array(&p, 3, name_at, names);
  db_p_int8_null_array(&p, 3, number_at, nullable);
  db_p_int4_array(&p, 3, number_at, ints);
  db_p_bool_array(&p, 3, number_at, bools);
  db_p_int8_array(&p, 3, number_at, longs);
  PGresult *r;
  assert_int_equal(db_run(db, &stmt, &p, &r), DB_OK);
  db_params_clear(&p);
  assert_int_equal(PQntuples(r), 3);
  assert_string_equal(db_text(r, 0, 0), "caf\xc3\xa9");
  assert_true(db_null(r, 1, 0) && db_bool(r, 1, 6));
  assert_string_equal(db_text(r, 1, 0), "");
  assert_true(!db_null(r, 2, 0) && db_text_len(r, 2, 0) == 0);
  assert_true(db_null(r, 0, 1) && db_bool(r, 0, 5));
  assert_true(db_int8(r, 1, 1) == INT64_MAX && db_int8(r, 2, 1) == 0);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(db_int8(r, i, 2), ints[i]);
    assert_int_equal(db_bool(r, i, 3), bools[i] != 0);
    assert_true(db_int8(r, i, 4) == longs[i]);
  }
  PQclear(r);

  static const struct db_stmt empty = {.name = "empty",
                                       .sql = "SELECT cardinality($1::text[]), cardinality($2::bigint[])"};
  db_p_text_array(&p, 0, name_at, NULL);
  db_p_int8_array(&p, 0, number_at, NULL);
  assert_int_equal(db_run(db, &empty, &p, &r), DB_OK);
  assert_int_equal(db_int8(r, 0, 0), 0);
  assert_int_equal(db_int8(r, 0, 1), 0);
  PQclear(r);
  db_params_clear(&p);
  db_free(db);
}

static void test_times(void **state) {
  (void)state;
  static const struct db_stmt stmt = {
      .name = "times",
      .sql = "SELECT 'infinity'::timestamptz, '-infinity'::timestamptz, '1970-01-01 00:00:00.000001+00'::timestamptz,"
             " '294276-12-31 23:59:59+00'::timestamptz, '1999-12-31 23:59:59.999+00'::timestamptz, 7::smallint"};
  struct db *db = open_db();
  PGresult *r;
  assert_int_equal(db_run(db, &stmt, NULL, &r), DB_OK);
  assert_true(db_time(r, 0, 0) == TIME_INFINITY);
  assert_true(db_time(r, 0, 1) == TIME_MINUS_INFINITY);
  assert_true(db_time(r, 0, 2) == 1);
  assert_true(db_time(r, 0, 3) > INT64_C(9000000000000000000));
  assert_true(db_time(r, 0, 4) == INT64_C(946684799999000));
  assert_int_equal(db_int8(r, 0, 5), 7);
  PQclear(r);
  db_free(db);
}

// -- migrations ----------------------------------------------------------------------------------------------------

static void *migrate_thread(void *ctx) {
  struct db *db = db_new(&options);
  enum db_status *status = ctx;
  *status = DB_FAILED;
  if (db != NULL) {
    while ((*status = migrate(db)) == DB_LOST)
      usleep(50000);
  }
  db_free(db);
  return NULL;
}

static int64_t applied_count(struct db *db) {
  static const struct db_stmt stmt = {.name = "applied", .sql = "SELECT count(*) FROM stillhere.schema_migration"};
  PGresult *r;
  assert_int_equal(db_run(db, &stmt, NULL, &r), DB_OK);
  int64_t n = db_int8(r, 0, 0);
  PQclear(r);
  return n;
}

static void test_migrate(void **state) {
  (void)state;
  char none[EPOCH_SIZE], first[EPOCH_SIZE], again[EPOCH_SIZE], other[EPOCH_SIZE];
  struct db *db = open_db();
  epoch_get(none);
  assert_string_equal(none, ""); // no tables, no epoch
  enum { THREADS = 4 };
  pthread_t threads[THREADS];
  enum db_status got[THREADS];
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, migrate_thread, &got[i]), 0);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(got[i], DB_OK);
  }
  assert_int_equal(applied_count(db), migration_count);
  epoch_get(first);
  assert_int_equal(strlen(first), 16);
  assert_int_equal(strspn(first, "0123456789abcdef"), 16);

  assert_int_equal(migrate(db), DB_OK); // a second time changes nothing
  assert_int_equal(applied_count(db), migration_count);
  db_drop(db);
  assert_int_equal(db_connect(db), DB_OK);
  epoch_get(again);
  assert_string_equal(again, first);
  unsigned generation = epoch_generation();

  // Dropped and made anew: the past has changed, and so must the epoch.
  assert_int_equal(db_script(db, "DROP SCHEMA stillhere CASCADE"), DB_OK);
  assert_int_equal(migrate(db), DB_OK);
  epoch_get(other);
  assert_string_not_equal(other, first);
  assert_int_equal(epoch_generation(), generation + 1);
  db_free(db);
}

static void test_migrate_refuses_a_newer_database(void **state) {
  (void)state;
  struct db *db = open_db();
  assert_int_equal(migrate(db), DB_OK);
  assert_int_equal(db_script(db, "INSERT INTO stillhere.schema_migration VALUES (9999, '9999-future.sql')"), DB_OK);
  assert_int_equal(migrate(db), DB_FAILED);
  assert_int_equal(db_script(db, "DELETE FROM stillhere.schema_migration WHERE number = 9999"), DB_OK);
  assert_int_equal(migrate(db), DB_OK);
  db_free(db);
}

static void test_every_column_has_a_comment(void **state) {
  (void)state;
  static const struct db_stmt stmt = {
      .name = "comments",
      .sql = "SELECT coalesce(string_agg(concat_ws('.', c.relname, a.attname), ', '), '') FROM pg_class c"
             " LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
             " WHERE c.relnamespace = 'stillhere'::regnamespace AND c.relkind IN ('r', 'p')"
             " AND (obj_description(c.oid, 'pg_class') IS NULL OR col_description(c.oid, a.attnum) IS NULL)"};
  struct db *db = open_db();
  assert_int_equal(migrate(db), DB_OK);
  PGresult *r;
  assert_int_equal(db_run(db, &stmt, NULL, &r), DB_OK);
  assert_string_equal(db_text(r, 0, 0), "");
  PQclear(r);
  db_free(db);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_migrate), // first: it sees a process without an epoch
      cmocka_unit_test(test_migrate_refuses_a_newer_database),
      cmocka_unit_test(test_every_column_has_a_comment),
      cmocka_unit_test(test_session_settings),
      cmocka_unit_test(test_refusal_and_back_off),
      cmocka_unit_test(test_silent_host_gives_way),
      cmocka_unit_test(test_pipeline),
      cmocka_unit_test(test_pipeline_is_all_or_nothing),
      cmocka_unit_test(test_large_values),
      cmocka_unit_test(test_values_there_and_back),
      cmocka_unit_test(test_times),
  };
  int failed = cmocka_run_group_tests_name("db", tests, set_up, tear_down);
  return failed != 0 ? failed : run_fault_tests(set_up, tear_down);
}
