// SPDX-License-Identifier: Apache-2.0
// The bytes of binary parameters, without a database. (tests/integration/test_db.c sends them there and back.)
#include <setjmp.h> // cmocka.h wants these four in front
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/util.h"
#include "db/db_internal.h"

static void expect(const struct db_params *p, int i, Oid type, const void *bytes, size_t len) {
  assert_true(i < p->n);
  assert_int_equal(p->types[i], type);
  assert_int_equal(p->lengths[i], len);
  assert_non_null(p->values[i]);
  assert_memory_equal(p->values[i], bytes, len);
}

static void test_scalars(void **state) {
  (void)state;
  struct db_params p = {0};
  db_p_text(&p, "abc");
  db_p_text(&p, "");
  db_p_text(&p, NULL);
  db_p_int8(&p, INT64_C(0x0102030405060708));
  db_p_int8(&p, INT64_MIN);
  db_p_int4(&p, -2);
  db_p_bool(&p, true);
  db_p_bool(&p, false);
  assert_false(p.failed);
  assert_int_equal(p.n, 8);
  expect(&p, 0, 25, "abc", 3);
  expect(&p, 1, 25, "", 0);
  assert_int_equal(p.types[2], 25);
  assert_null(p.values[2]);
  expect(&p, 3, 20, "\1\2\3\4\5\6\7\10", 8);
  expect(&p, 4, 20, "\x80\0\0\0\0\0\0\0", 8);
  expect(&p, 5, 23, "\xff\xff\xff\xfe", 4);
  expect(&p, 6, 16, "\1", 1);
  expect(&p, 7, 16, "\0", 1);
  db_params_clear(&p);
  assert_int_equal(p.n, 0);
  db_params_clear(&p); // twice is fine
}

static const char *text_at(const void *ctx, size_t i) {
  return ((const char *const *)ctx)[i];
}

static int64_t number_at(const void *ctx, size_t i) {
  return ((const int64_t *)ctx)[i];
}

static void test_arrays(void **state) {
  (void)state;
  struct db_params p = {0};
  const char *texts[] = {"hi", NULL, ""};
  db_p_text_array(&p, 3, text_at, texts);
  static const char text_bytes[] = "\0\0\0\1"
                                   "\0\0\0\1"
                                   "\0\0\0\x19"
                                   "\0\0\0\3"
                                   "\0\0\0\1"
                                   "\0\0\0\2hi"
                                   "\xff\xff\xff\xff"
                                   "\0\0\0\0";
  expect(&p, 0, 1009, text_bytes, sizeof text_bytes - 1);

  const int64_t numbers[] = {1, INT64_MIN};
  db_p_int8_array(&p, 2, number_at, numbers);
  static const char int8_bytes[] = "\0\0\0\1"
                                   "\0\0\0\0"
                                   "\0\0\0\x14"
                                   "\0\0\0\2"
                                   "\0\0\0\1"
                                   "\0\0\0\x08"
                                   "\0\0\0\0\0\0\0\1"
                                   "\0\0\0\x08"
                                   "\x80\0\0\0\0\0\0\0";
  expect(&p, 1, 1016, int8_bytes, sizeof int8_bytes - 1);

  db_p_int8_null_array(&p, 2, number_at, numbers);
  static const char null_bytes[] = "\0\0\0\1"
                                   "\0\0\0\1"
                                   "\0\0\0\x14"
                                   "\0\0\0\2"
                                   "\0\0\0\1"
                                   "\0\0\0\x08"
                                   "\0\0\0\0\0\0\0\1"
                                   "\xff\xff\xff\xff";
  expect(&p, 2, 1016, null_bytes, sizeof null_bytes - 1);

  const int64_t small[] = {-1, 0};
  db_p_int4_array(&p, 2, number_at, small);
  static const char int4_bytes[] = "\0\0\0\1"
                                   "\0\0\0\0"
                                   "\0\0\0\x17"
                                   "\0\0\0\2"
                                   "\0\0\0\1"
                                   "\0\0\0\4"
                                   "\xff\xff\xff\xff"
                                   "\0\0\0\4"
                                   "\0\0\0\0";
  expect(&p, 3, 1007, int4_bytes, sizeof int4_bytes - 1);

  db_p_bool_array(&p, 2, number_at, small);
  static const char bool_bytes[] = "\0\0\0\1"
                                   "\0\0\0\0"
                                   "\0\0\0\x10"
                                   "\0\0\0\2"
                                   "\0\0\0\1"
                                   "\0\0\0\1\1"
                                   "\0\0\0\1\0";
  expect(&p, 4, 1000, bool_bytes, sizeof bool_bytes - 1);

  db_p_text_array(&p, 0, text_at, NULL);
  expect(&p, 5, 1009,
         "\0\0\0\0"
         "\0\0\0\0"
         "\0\0\0\x19",
         12);
  assert_false(p.failed);
  db_params_clear(&p);
}

static void test_too_many_and_too_large(void **state) {
  (void)state;
  struct db_params p = {0};
  for (int i = 0; i < DB_PARAMS_MAX; i++)
    db_p_int8(&p, i);
  assert_false(p.failed);
  db_p_int8(&p, 0);
  assert_true(p.failed);
  assert_int_equal(p.n, DB_PARAMS_MAX);
  db_params_clear(&p);
  assert_false(p.failed);

  const int64_t beyond[] = {INT64_C(2147483648)};
  db_p_int4_array(&p, 1, number_at, beyond); // never another number than was meant
  assert_true(p.failed);
  db_p_text(&p, "after");
  assert_int_equal(p.n, 0); // what failed stays failed
  db_params_clear(&p);
}

static void test_judge(void **state) {
  (void)state;
  static const struct {
    const char *sqlstate, *severity, *function;
    enum db_status status;
    bool drop;
  } cases[] = {
      {"40001", "ERROR", "x", DB_RETRY, false},
      {"40P01", "ERROR", NULL, DB_RETRY, false},
      {"55P03", "ERROR", NULL, DB_LOCKED, false},
      {"26000", "ERROR", NULL, DB_RETRY, true},
      {"0A000", "ERROR", "RevalidateCachedQuery", DB_RETRY, true},
      {"0A000", "ERROR", "somewhere_else", DB_FAILED, false},
      {"0A000", "ERROR", NULL, DB_FAILED, false},
      {"08000", "ERROR", NULL, DB_LOST, true},
      {"08P01", "ERROR", NULL, DB_LOST, true},
      {"57P01", "FATAL", NULL, DB_LOST, true},
      {"57P02", "ERROR", NULL, DB_LOST, true},
      {"57P03", "ERROR", NULL, DB_LOST, true},
      {"57P04", "ERROR", NULL, DB_LOST, true},
      {"57P05", "ERROR", NULL, DB_LOST, true},
      {"57014", "ERROR", NULL, DB_LOST, true},
      {"25006", "ERROR", NULL, DB_LOST, true},
      {"25P03", "ERROR", NULL, DB_LOST, true},
      {"25P02", "ERROR", NULL, DB_FAILED, false},
      {"53100", "ERROR", NULL, DB_LOST, true},
      {"58030", "ERROR", NULL, DB_LOST, true},
      {"XX000", "ERROR", NULL, DB_LOST, true},
      {"23505", "ERROR", NULL, DB_FAILED, false},
      {"23505", "FATAL", NULL, DB_LOST, true}, // the session is over, whatever the reason
      {"23505", "PANIC", NULL, DB_LOST, true},
      {"22021", NULL, NULL, DB_FAILED, false},
      {NULL, NULL, NULL, DB_LOST, true},
      {"", NULL, NULL, DB_LOST, true},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    bool drop = !cases[i].drop;
    assert_int_equal(db_judge(cases[i].sqlstate, cases[i].severity, cases[i].function, &drop), cases[i].status);
    assert_int_equal(drop, cases[i].drop);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_scalars),
      cmocka_unit_test(test_arrays),
      cmocka_unit_test(test_too_many_and_too_large),
      cmocka_unit_test(test_judge),
  };
  return cmocka_run_group_tests_name("db_params", tests, NULL, NULL);
}
