// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log_limit.h"

static int burst_at(struct log_limit *limit, int64_t now_us, int tries) {
  int taken = 0;
  int64_t left_out;
  for (int i = 0; i < tries; i++)
    taken += log_limit_take(limit, now_us, &left_out) ? 1 : 0;
  return taken;
}

static void test_a_burst_and_no_more(void **state) {
  (void)state;
  struct log_limit limit = {0};
  assert_int_equal(burst_at(&limit, 5000000, 100), LOG_LIMIT_BURST);
}

static void test_a_few_each_second_after_it(void **state) {
  (void)state;
  struct log_limit limit = {0};
  (void)burst_at(&limit, 5000000, 100);
  assert_int_equal(burst_at(&limit, 6000000, 100), LOG_LIMIT_PER_S);
  assert_int_equal(burst_at(&limit, 6000001, 100), 0);
  assert_int_equal(burst_at(&limit, 600000000, 100), LOG_LIMIT_BURST);
}

static void test_says_how_many_were_left_out(void **state) {
  (void)state;
  struct log_limit limit = {0};
  (void)burst_at(&limit, 5000000, LOG_LIMIT_BURST + 7);
  int64_t left_out = -1;
  assert_true(log_limit_take(&limit, 9000000, &left_out));
  assert_int_equal(left_out, 7);
  assert_true(log_limit_take(&limit, 9000000, &left_out));
  assert_int_equal(left_out, 0);
}

static void test_seldom_for_what_repeats_by_itself(void **state) {
  (void)state;
  struct log_limit limit = {0};
  int64_t now_us = 5000000, left_out, told = 0;
  for (int i = 0; i < 600; i++, now_us += 1000000) // ten minutes, each second
    told += log_limit_take_every(&limit, 60000000, 3, now_us, &left_out) ? 1 : 0;
  assert_in_range(told, 12, 13); // three at once, then one a minute
  assert_true(log_limit_take_every(&limit, 60000000, 3, now_us + 60000000, &left_out));
  assert_in_range(left_out, 1, 60);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_burst_and_no_more),
      cmocka_unit_test(test_a_few_each_second_after_it),
      cmocka_unit_test(test_says_how_many_were_left_out),
      cmocka_unit_test(test_seldom_for_what_repeats_by_itself),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
