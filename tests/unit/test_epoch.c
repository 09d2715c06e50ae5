// SPDX-License-Identifier: Apache-2.0
// The epoch that the process knows, how far its log is, and which timeline is the newest.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "db/epoch.h"

// One process has one epoch, so the tests go on from each other.

static void test_changes(void **state) {
  (void)state;
  char epoch[EPOCH_SIZE];
  unsigned generation = epoch_generation();
  epoch_get(epoch);
  assert_string_equal(epoch, "");
  assert_false(epoch_set("0123456789abcdef")); // the first is no change
  assert_false(epoch_set("0123456789abcdef"));
  assert_int_equal(epoch_generation(), generation);
  assert_true(epoch_set("fedcba9876543210"));
  assert_int_equal(epoch_generation(), generation + 1);
  epoch_get(epoch);
  assert_string_equal(epoch, "fedcba9876543210");
}

static void test_mark(void **state) {
  (void)state;
  struct epoch_mark mark;
  epoch_saw("fedcba9876543210", 1000);
  epoch_saw("fedcba9876543210", 900); // a slower thread
  epoch_saw("0123456789abcdef", 5000);
  epoch_mark(&mark);
  assert_string_equal(mark.epoch, "fedcba9876543210");
  assert_int_equal(mark.flushed, 1000);
  assert_true(epoch_set("0123456789abcdef"));
  epoch_mark(&mark);
  assert_int_equal(mark.flushed, 0);
}

static void test_timeline(void **state) {
  (void)state;
  const int64_t one = INT64_MAX, other = INT64_MIN;
  assert_true(epoch_timeline(one, 1));
  assert_true(epoch_timeline(one, 1));
  assert_true(epoch_timeline(one, 3));
  assert_false(epoch_timeline(one, 2));
  assert_false(epoch_timeline(one, 1));
  assert_true(epoch_timeline(one, 3));   // which a refusal has not forgotten
  assert_true(epoch_timeline(other, 1)); // another cluster: a restore elsewhere
  assert_true(epoch_timeline(one, 2));   // moved back on purpose; what was seen last counts
  assert_false(epoch_timeline(one, 1));
  assert_true(epoch_timeline(one, UINT32_MAX));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_changes),
      cmocka_unit_test(test_mark),
      cmocka_unit_test(test_timeline),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
