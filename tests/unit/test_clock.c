// SPDX-License-Identifier: Apache-2.0
// RFC 3339 and the estimate of the database's clock.
#include <setjmp.h> // cmocka.h wants these four in front
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/util.h"

#define SECOND INT64_C(1000000)

static void expect_format(int64_t unix_us, const char *expected) {
  char text[RFC3339_SIZE];
  memset(text, '#', sizeof text);
  rfc3339_format(text, unix_us);
  assert_string_equal(text, expected);
}

static void test_format(void **state) {
  (void)state;
  expect_format(0, "1970-01-01T00:00:00.000Z");
  expect_format(999, "1970-01-01T00:00:00.000Z");
  expect_format(1999, "1970-01-01T00:00:00.001Z");
  expect_format(-1, "1969-12-31T23:59:59.999Z"); // down, also before 1970
  expect_format(-1001, "1969-12-31T23:59:59.998Z");
  expect_format(INT64_C(1796050800) * SECOND + 999999, "2026-11-30T15:00:00.999Z");
  expect_format(INT64_C(951782400) * SECOND, "2000-02-29T00:00:00.000Z");
  expect_format(INT64_C(4107542400) * SECOND, "2100-03-01T00:00:00.000Z"); // no leap day in 2100
  expect_format(INT64_C(4107542399) * SECOND, "2100-02-28T23:59:59.000Z");
}

static void test_format_is_clamped(void **state) {
  (void)state;
  expect_format(TIME_INFINITY, "9999-12-31T23:59:59.999Z");
  expect_format(TIME_MINUS_INFINITY, "0001-01-01T00:00:00.000Z");
  expect_format(INT64_C(253402300799) * SECOND + 999999, "9999-12-31T23:59:59.999Z");
  expect_format(INT64_C(253402300800) * SECOND, "9999-12-31T23:59:59.999Z");
  expect_format(INT64_C(-62135596800) * SECOND, "0001-01-01T00:00:00.000Z");
  expect_format(INT64_C(-62135596800) * SECOND - 1, "0001-01-01T00:00:00.000Z");
}

/// Every day of four centuries and more, against the C library.
static void test_bounded_times(void **state) {
  (void)state;
  assert_true(time_bounded(0) == 0);
  assert_true(time_bounded(INT64_C(1796249805899000)) == INT64_C(1796249805899000));
  assert_true(time_bounded(INT64_C(253402300799999999)) == INT64_C(253402300799999999));
  assert_true(time_bounded(INT64_C(253402300800000000)) == INT64_C(253402300799999999));
  assert_true(time_bounded(TIME_INFINITY) == INT64_C(253402300799999999));
  assert_true(time_bounded(INT64_C(-62135596800000000)) == INT64_C(-62135596800000000));
  assert_true(time_bounded(TIME_MINUS_INFINITY) == INT64_C(-62135596800000000));
}

static void test_format_agrees_with_libc(void **state) {
  (void)state;
  for (int64_t day = -200000; day < 200000; day++) {
    time_t seconds = (time_t)(day * 86400 + 45296);
    struct tm tm;
    char expected[RFC3339_SIZE + 8];
    assert_non_null(gmtime_r(&seconds, &tm));
    assert_true(strftime(expected, sizeof expected, "%Y-%m-%dT%H:%M:%S.000Z", &tm) > 0);
    expect_format((int64_t)seconds * SECOND, expected);
    int64_t back;
    assert_true(rfc3339_parse(expected, &back));
    assert_true(back == (int64_t)seconds * SECOND);
  }
}

static void test_parse(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int64_t unix_us;
  } good[] = {
      {"1970-01-01T00:00:00Z", 0},
      {"1970-01-01t00:00:00z", 0},
      {"1970-01-01T01:00:00+01:00", 0},
      {"1969-12-31T14:30:00-09:30", 0},
      {"1970-01-01T00:00:00-00:00", 0},
      {"1970-01-01T00:00:00.1Z", 100000},
      {"1970-01-01T00:00:00.000001Z", 1},
      {"1970-01-01T00:00:00.000000999Z", 0},
      {"1970-01-01T00:00:00.123456789Z", 123456},
      {"2026-11-30T15:00:00.000Z", INT64_C(1796050800) * SECOND},
      {"2000-02-29T00:00:00Z", INT64_C(951782400) * SECOND},
      {"2016-12-31T23:59:60Z", INT64_C(1483228800) * SECOND}, // a leap second
      {"2016-12-31T15:59:60.5-08:00", INT64_C(1483228800) * SECOND + 500000},
      {"9999-12-31T23:59:59.999999Z", INT64_C(253402300799) * SECOND + 999999},
      {"0001-01-01T00:00:00Z", INT64_C(-62135596800) * SECOND},
  };
  for (size_t i = 0; i < ARRAY_LEN(good); i++) {
    int64_t got = 1;
    if (!rfc3339_parse(good[i].text, &got) || got != good[i].unix_us)
      fail_msg("%s was read as %lld", good[i].text, (long long)got);
  }
}

static void test_parse_refuses(void **state) {
  (void)state;
  static const char *const bad[] = {
      "",
      "now",
      "2026-11-30",
      "2026-11-30T15:00:00",  // no offset
      "2026-11-30 15:00:00Z", // no T
      "2026-11-30T15:00Z",
      "2026-1-30T15:00:00Z",
      "26-11-30T15:00:00Z",
      "02026-11-30T15:00:00Z",
      "2026-00-30T15:00:00Z",
      "2026-13-30T15:00:00Z",
      "2026-11-00T15:00:00Z",
      "2026-11-31T15:00:00Z", // November has 30
      "2026-02-29T15:00:00Z", // no leap year
      "2100-02-29T15:00:00Z", // a century without
      "2024-02-30T15:00:00Z",
      "2026-11-30T24:00:00Z",
      "2026-11-30T15:60:00Z",
      "2026-11-30T15:00:61Z",
      "2026-11-30T15:00:60Z",      // not the end of a day
      "2026-11-30T23:59:60+01:00", // not in UTC
      "2026-11-30T15:00:00.Z",
      "2026-11-30T15:00:00.1234567890Z",
      "2026-11-30T15:00:00,5Z",
      "2026-11-30T15:00:00+24:00",
      "2026-11-30T15:00:00+01:60",
      "2026-11-30T15:00:00+0100",
      "2026-11-30T15:00:00+01",
      "2026-11-30T15:00:00Zulu",
      "2026-11-30T15:00:00Z ",
      " 2026-11-30T15:00:00Z",
      "-026-11-30T15:00:00Z",
      "2026-11-30T-1:00:00Z",
  };
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    int64_t untouched = 42;
    if (rfc3339_parse(bad[i], &untouched))
      fail_msg("'%s' was taken for a time", bad[i]);
    assert_int_equal(untouched, 42);
  }
}

static void test_monotonic(void **state) {
  (void)state;
  int64_t before = clock_mono_us();
  struct timespec pause = {.tv_nsec = 2000000};
  (void)nanosleep(&pause, NULL);
  int64_t passed = clock_mono_us() - before;
  assert_in_range(passed, 2000, 2000000);
}

/// How far the estimate is from what the database's clock would show, if it were @a offset ahead of the monotonic one.
static int64_t error_of(int64_t offset) {
  return clock_db_us() - (clock_mono_us() + offset);
}

static void expect_offset(int64_t offset, int64_t tolerance) {
  int64_t error = error_of(offset);
  if (error < -tolerance - 50000 || error > tolerance)
    fail_msg("off by %lld us", (long long)error);
}

static void test_estimate(void **state) {
  (void)state;
  int64_t offset = INT64_C(1796050800) * SECOND;
  assert_true(clock_db_us() == 0); // nothing known

  int64_t now = clock_mono_us();
  clock_db_sample(now + offset, now + 1, now); // received before it was sent: not a sample
  clock_db_sample(TIME_INFINITY, now, now);
  assert_true(clock_db_us() == 0);

  // A sample that took a second, taken at its very end: half a second wrong, within its doubt.
  clock_db_sample(now + offset, now - SECOND, now);
  expect_offset(offset + SECOND / 2, 10);
  // A quick one knows better; time does not go back meanwhile.
  int64_t before = clock_db_us();
  now = clock_mono_us();
  clock_db_sample(now + offset, now - 20, now);
  int64_t after = clock_db_us();
  assert_true(after >= before);
  assert_true(after - before < SECOND / 10); // it waits for the clock to catch up
  // A slow one that agrees with it, within its own doubt, changes nothing.
  now = clock_mono_us();
  clock_db_sample(now + offset - SECOND / 4, now - 2 * SECOND, now);
  before = clock_db_us();
  assert_true(before >= after);

  // A real step, also backwards, is believed at once.
  offset -= 3600 * SECOND;
  now = clock_mono_us();
  clock_db_sample(now + offset, now - 20, now);
  expect_offset(offset, 100);
  offset += 7200 * SECOND;
  now = clock_mono_us();
  clock_db_sample(now + offset, now - 20, now);
  expect_offset(offset, 100);
}

static void test_slow_samples_do_not_move_it(void **state) {
  (void)state;
  int64_t offset = INT64_C(1800000000) * SECOND;
  int64_t now = clock_mono_us();
  clock_db_sample(now + offset, now - 20, now);
  for (int i = 0; i < 100; i++) {
    now = clock_mono_us();
    clock_db_sample(now + offset, now - SECOND, now); // would say half a second more
  }
  expect_offset(offset, 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_format),
      cmocka_unit_test(test_format_is_clamped),
      cmocka_unit_test(test_bounded_times),
      cmocka_unit_test(test_format_agrees_with_libc),
      cmocka_unit_test(test_parse),
      cmocka_unit_test(test_parse_refuses),
      cmocka_unit_test(test_monotonic),
      cmocka_unit_test(test_estimate), // the first to give samples
      cmocka_unit_test(test_slow_samples_do_not_move_it),
  };
  return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
