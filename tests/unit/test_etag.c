// SPDX-License-Identifier: Apache-2.0
// Entity tags and If-None-Match.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "http/etag.h"

static const char tag[] = "\"6f1c-17\"";

static void test_format(void **state) {
  (void)state;
  char out[ETAG_SIZE];
  etag_format(out, "0123456789abcdef", INT64_C(9007199254740991));
  assert_string_equal(out, "\"0123456789abcdef-9007199254740991\"");
}

static void test_listed(void **state) {
  (void)state;
  assert_true(etag_listed("\"6f1c-17\"", tag));
  assert_true(etag_listed("  \"6f1c-17\"  ", tag));
  assert_true(etag_listed("W/\"6f1c-17\"", tag));
  assert_true(etag_listed("\"zzz\", W/\"6f1c-17\"", tag));
  assert_true(etag_listed("\"a,b\" ,,\t\"6f1c-17\"", tag));
  assert_true(etag_listed("*", tag));
  assert_true(etag_listed(" * ", tag));
}

static void test_not_listed(void **state) {
  (void)state;
  assert_false(etag_listed(NULL, tag));
  assert_false(etag_listed("", tag));
  assert_false(etag_listed("\"6f1c-18\"", tag));
  assert_false(etag_listed("\"6f1c-1\"", tag));
  assert_false(etag_listed("\"6f1c-17", tag));
  assert_false(etag_listed("6f1c-17", tag));
  assert_false(etag_listed("\"x\"\"", tag));
  assert_false(etag_listed("\"6f1c-17\"x", tag));
  assert_false(etag_listed("\"x\" \"6f1c-17\"", tag));
  assert_false(etag_listed("*x", tag));
  assert_false(etag_listed("w/\"6f1c-17\"", tag));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_format),
      cmocka_unit_test(test_listed),
      cmocka_unit_test(test_not_listed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
