// SPDX-License-Identifier: Apache-2.0
// Numbers, identifiers, percent-encoding and UTF-8 from strangers.
#include <setjmp.h> // cmocka.h wants these four in front
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/strict.h"
#include "base/util.h"

static bool number(const char *s, int64_t min, int64_t max, int64_t *out) {
  return strict_int(s, strlen(s), min, max, out);
}

static void test_numbers(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int64_t value;
  } good[] = {
      {"0", 0},
      {"7", 7},
      {"007", 7},
      {"00000000000000000000000000000000000000001", 1},
      {"9007199254740991", REVISION_MAX},
      {"9223372036854775807", INT64_MAX},
  };
  for (size_t i = 0; i < ARRAY_LEN(good); i++) {
    int64_t got = -1;
    assert_true(number(good[i].text, 0, INT64_MAX, &got));
    assert_true(got == good[i].value);
  }
  static const char *const bad[] = {
      "",
      "-1",
      "+1",
      " 1",
      "1 ",
      "1.0",
      "1e3",
      "0x10",
      "1_000",
      "1,000",
      "９",
      "\t1",
      "1\n",
      "NaN",
      "9223372036854775808",  // 2^63
      "18446744073709551617", // 2^64 + 1: a wrap would make it 1
      "92233720368547758070",
      "99999999999999999999999999999",
  };
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    int64_t untouched = 42;
    if (number(bad[i], INT64_MIN, INT64_MAX, &untouched))
      fail_msg("'%s' was taken for a number", bad[i]);
    assert_int_equal(untouched, 42);
  }
  int64_t got = 42;
  assert_false(strict_int("1\0002", 3, 0, 100, &got));
  assert_true(strict_int("123", 2, 0, 100, &got)); // only as far as the length says
  assert_int_equal(got, 12);
}

static void test_number_bounds(void **state) {
  (void)state;
  int64_t got = 42;
  assert_false(number("9007199254740992", 1, REVISION_MAX, &got)); // 2^53
  assert_false(number("0", 1, REVISION_MAX, &got));
  assert_false(number("11", 1, 10, &got));
  assert_int_equal(got, 42);
  assert_true(number("1", 1, 10, &got));
  assert_true(number("10", 1, 10, &got));
  assert_int_equal(got, 10);
}

static const char *problem(const char *s) {
  return ident_problem(s, strlen(s));
}

static void test_identifiers(void **state) {
  (void)state;
  char text[IDENT_MAX + 2];
  memset(text, 'a', sizeof text);
  assert_null(ident_problem(text, 1));
  assert_null(ident_problem(text, IDENT_MAX));
  assert_string_equal(ident_problem(text, IDENT_MAX + 1), "is longer than 128 bytes");
  assert_string_equal(problem(""), "is empty");
  for (size_t i = 0; i < IDENT_MAX; i += 4)
    memcpy(text + i, "\xf0\x9f\x98\x80", 4); // bytes are counted, not characters
  assert_null(ident_problem(text, IDENT_MAX));

  static const char *const good[] = {"a/b", "a:b",   " ",           "a b",          "%",       "...", ".a", "..a",
                                     "a.",  "'\"\\", "caf\xc3\xa9", "cafe\xcc\x81", "\xc2\x80" /* C1 */};
  for (size_t i = 0; i < ARRAY_LEN(good); i++)
    assert_null(problem(good[i]));
  assert_string_equal(problem("."), "is '.' or '..'");
  assert_string_equal(problem(".."), "is '.' or '..'");

  for (int c = 0; c < 0x20; c++) {
    char with[] = {'a', (char)c, 'b'};
    assert_string_equal(ident_problem(with, sizeof with), "contains a control character");
  }
  assert_string_equal(problem("a\x7f"), "contains a control character");
  assert_string_equal(ident_problem("\0", 1), "contains a control character");
  assert_string_equal(problem("\xff"), "is not valid UTF-8");
  assert_string_equal(problem("a\xc3"), "is not valid UTF-8");
}

static void test_utf8(void **state) {
  (void)state;
  static const char *const good[] = {"",
                                     "a",
                                     "\xc2\x80",
                                     "\xdf\xbf",
                                     "\xe0\xa0\x80",
                                     "\xed\x9f\xbf",
                                     "\xee\x80\x80",
                                     "\xef\xbf\xbf",
                                     "\xf0\x90\x80\x80",
                                     "\xf4\x8f\xbf\xbf"};
  for (size_t i = 0; i < ARRAY_LEN(good); i++)
    assert_true(utf8_valid(good[i], strlen(good[i])));
  static const char *const bad[] = {
      "\x80",                     // a continuation alone
      "\xc0\xaf",                 // overlong '/'
      "\xc1\xbf",                 // overlong
      "\xe0\x80\xaf",             // overlong '/'
      "\xe0\x9f\xbf",             // overlong
      "\xf0\x80\x80\xaf",         // overlong '/'
      "\xf0\x8f\xbf\xbf",         // overlong
      "\xed\xa0\x80",             // first surrogate
      "\xed\xbf\xbf",             // last surrogate
      "\xed\xa0\xbd\xed\xb8\x80", // a pair of them
      "\xf4\x90\x80\x80",         // beyond U+10FFFF
      "\xf5\x80\x80\x80",
      "\xf8\x88\x80\x80\x80",
      "\xfe",
      "\xff",
      "\xe2\x82", // cut short
      "\xe2\x28\xa1",
      "a\xf0\x9f\x98",
  };
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    if (utf8_valid(bad[i], strlen(bad[i])))
      fail_msg("case %zu passed as UTF-8", i);
  }
}

static void test_request_ids(void **state) {
  (void)state;
  char text[REQUEST_ID_MAX + 1];
  memset(text, 'x', sizeof text);
  assert_true(request_id_sane(text, 1));
  assert_true(request_id_sane(text, REQUEST_ID_MAX));
  assert_false(request_id_sane(text, REQUEST_ID_MAX + 1));
  assert_false(request_id_sane("", 0));
  static const char all[] = "ABCZabcz019._:/+=@-";
  assert_true(request_id_sane(all, sizeof all - 1));
  unsigned sane = 0;
  for (int c = 0; c < 256; c++) {
    char one = (char)c;
    sane += request_id_sane(&one, 1);
  }
  assert_int_equal(sane, 26 + 26 + 10 + 8);
}

static long decoded(const char *in, char out[64]) {
  return percent_decode(in, strlen(in), out);
}

static void test_percent(void **state) {
  (void)state;
  static const struct {
    const char *in, *out;
  } good[] = {
      {"", ""},         {"plain", "plain"}, {"a%20b", "a b"},       {"a+b", "a+b"}, {"%2F", "/"},    {"%2f", "/"},
      {"%252F", "%2F"}, {"%2e%2E", ".."},   {"%c3%A9", "\xc3\xa9"}, {"%25", "%"},   {"%ff", "\xff"}, // whether it is
                                                                                                     // UTF-8 is asked
                                                                                                     // later
  };
  char out[64];
  for (size_t i = 0; i < ARRAY_LEN(good); i++) {
    assert_int_equal(decoded(good[i].in, out), strlen(good[i].out));
    assert_string_equal(out, good[i].out);
  }
  static const char *const bad[] = {"%", "%2", "a%", "a%2", "%zz", "%2g", "%g2", "%%20", "%00", "a%00b", "% 2", "%+2"};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    if (decoded(bad[i], out) != -1)
      fail_msg("'%s' was decoded", bad[i]);
  }
  assert_int_equal(percent_decode("a\0b", 3, out), -1);
  assert_int_equal(percent_decode("%20", 2, out), -1); // the third byte is not ours

  char in_place[] = "%41%42c%44";
  assert_int_equal(percent_decode(in_place, strlen(in_place), in_place), 4);
  assert_string_equal(in_place, "ABcD");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_numbers), cmocka_unit_test(test_number_bounds), cmocka_unit_test(test_identifiers),
      cmocka_unit_test(test_utf8),    cmocka_unit_test(test_request_ids),   cmocka_unit_test(test_percent),
  };
  return cmocka_run_group_tests_name("strict", tests, NULL, NULL);
}
