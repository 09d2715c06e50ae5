// SPDX-License-Identifier: Apache-2.0
// The parts of the store that need no database: rounds of a batch and notification payloads.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>

#include "base/util.h"
#include "store/notify.h"
#include "store/rounds.h"

static void rounds_split_equal_keys(void **state) {
  (void)state;
  struct op list[6] = {
      {.key = {"b", "u", "s"}}, {.key = {"a", "u", "s"}}, {.key = {"b", "u", "s"}},
      {.key = {"a", "u", "r"}}, {.key = {"b", "u", "s"}}, {.key = {"c", "u", "s"}},
  };
  struct op *ops[6];
  for (size_t i = 0; i < 6; i++) {
    ops[i] = &list[i];
  }
  struct rounds rounds;
  assert_true(rounds_make(&rounds, ops, 6));
  assert_int_equal(rounds.n, 3);
  assert_int_equal(rounds.ends[0], 4);
  assert_int_equal(rounds.ends[1], 5);
  assert_int_equal(rounds.ends[2], 6);
  // Sorted within the round, and the equals in the order in which they came.
  const struct op *want[6] = {&list[3], &list[1], &list[0], &list[5], &list[2], &list[4]};
  for (size_t i = 0; i < 6; i++) {
    assert_ptr_equal(rounds.ops[i], want[i]);
  }
  rounds_free(&rounds);
}

static void rounds_keep_a_thousand_equals_in_order(void **state) {
  (void)state;
  enum { N = 1000 };
  struct op *list = calloc(N, sizeof *list);
  struct op *ops[N];
  assert_non_null(list);
  for (size_t i = 0; i < N; i++) {
    list[i].key = (struct lease_key){"r", "u", "s"};
    ops[i] = &list[i];
  }
  struct rounds rounds;
  assert_true(rounds_make(&rounds, ops, N));
  assert_int_equal(rounds.n, N);
  for (size_t i = 0; i < N; i++) {
    assert_ptr_equal(rounds.ops[i], &list[i]);
    assert_int_equal(rounds.ends[i], i + 1);
  }
  rounds_free(&rounds);
  free(list);
}

static void results_are_matched_in_one_walk(void **state) {
  (void)state;
  struct op list[3] = {{.key = {"a", "u", "s"}}, {.key = {"b", "u", "s"}}, {.key = {"c", "u", "s"}}};
  struct op *ops[3] = {&list[0], &list[1], &list[2]};
  size_t from = 0;
  assert_ptr_equal(ops_find_next(ops, 3, &from, &(struct lease_key){"b", "u", "s"}), &list[1]);
  assert_int_equal(from, 2);
  assert_null(ops_find_next(ops, 3, &from, &(struct lease_key){"a", "u", "s"}));
  assert_null(ops_find_next(ops, 3, &from, &(struct lease_key){"bb", "u", "s"}));
  assert_int_equal(from, 2);
  assert_ptr_equal(ops_find_next(ops, 3, &from, &(struct lease_key){"c", "u", "s"}), &list[2]);
}

static void payloads_hold_every_room_and_stay_short(void **state) {
  (void)state;
  enum { N = 500 };
  struct room_head heads[N];
  char names[N][IDENT_MAX + 1];
  for (size_t i = 0; i < N; i++) {
    // The longest names, of characters that JSON doubles.
    memset(names[i], '"', IDENT_MAX);
    names[i][IDENT_MAX] = '\0';
    (void)snprintf(names[i], 8, "%07zu", i);
    names[i][7] = '\\';
    heads[i] = (struct room_head){names[i], REVISION_MAX - (int64_t)i};
  }
  struct payloads payloads;
  assert_true(payloads_make(&payloads, heads, N));
  assert_true(payloads.n > 1);
  size_t seen = 0;
  for (size_t i = 0; i < payloads.n; i++) {
    assert_true(strlen(payloads.list[i]) <= NOTIFY_PAYLOAD_MAX);
    json_t *list = json_loads(payloads.list[i], 0, NULL);
    assert_non_null(list);
    assert_int_equal(json_array_size(list) % 2, 0);
    for (size_t j = 0; j < json_array_size(list); j += 2, seen++) {
      assert_string_equal(json_string_value(json_array_get(list, j)), names[seen]);
      assert_int_equal(json_integer_value(json_array_get(list, j + 1)), REVISION_MAX - (int64_t)seen);
    }
    json_decref(list);
  }
  assert_int_equal(seen, N);
  payloads_free(&payloads);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rounds_split_equal_keys),
      cmocka_unit_test(rounds_keep_a_thousand_equals_in_order),
      cmocka_unit_test(results_are_matched_in_one_walk),
      cmocka_unit_test(payloads_hold_every_room_and_stay_short),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
