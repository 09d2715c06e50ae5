// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/util.h"
#include "live/stuck.h"

#define S INT64_C(1000000)

static struct overdue lease(char *room, char *session, int64_t revision) {
  static char user[] = "u";
  return (struct overdue){.room_id = room, .user_id = user, .session_id = session, .revision = revision};
}

static void pauses_double_up_to_two_minutes(void **state) {
  (void)state;
  static const int64_t expected_s[] = {1, 2, 4, 8, 16, 32, 64, 120, 120, 120};
  struct stuck *stuck = stuck_new();
  struct overdue o = lease("r", "s", 7);
  int64_t now = 5 * S;
  assert_false(stuck_any(stuck, now));
  assert_false(stuck_waits(stuck, &o, now));
  for (size_t i = 0; i < ARRAY_LEN(expected_s); i++) {
    assert_int_equal(stuck_note(stuck, &o, now), expected_s[i] * 1000);
    assert_true(stuck_any(stuck, now));
    assert_true(stuck_waits(stuck, &o, now + expected_s[i] * S - 1));
    now += expected_s[i] * S;
    assert_false(stuck_waits(stuck, &o, now));
    assert_false(stuck_any(stuck, now));
  }
  // What has not been met for a minute has ended.
  assert_int_equal(stuck_note(stuck, &o, now + 60 * S), 1000);
  stuck_free(stuck);
}

static void others_are_others(void **state) {
  (void)state;
  struct stuck *stuck = stuck_new();
  struct overdue it = lease("r", "s", 7), others[] = {lease("r", "s", 8), lease("r", "t", 7), lease("q", "s", 7),
                                                      lease("r", NULL, 7), lease("r", "", 7)};
  struct overdue grace = lease("r", NULL, 0);
  (void)stuck_note(stuck, &it, S);
  for (size_t i = 0; i < ARRAY_LEN(others); i++)
    assert_false(stuck_waits(stuck, &others[i], S));
  assert_true(stuck_waits(stuck, &it, S));
  (void)stuck_note(stuck, &grace, S);
  assert_true(stuck_waits(stuck, &grace, S));
  stuck_free(stuck);
}

static void a_full_table_takes_no_more_until_some_are_over(void **state) {
  (void)state;
  struct stuck *stuck = stuck_new();
  char rooms[STUCK_MAX + 1][8];
  for (int i = 0; i <= STUCK_MAX; i++)
    (void)snprintf(rooms[i], sizeof rooms[i], "%d", i);
  for (int i = 0; i < STUCK_MAX; i++) {
    struct overdue o = lease(rooms[i], "s", 1);
    assert_int_equal(stuck_note(stuck, &o, i), 1000);
  }
  struct overdue first = lease(rooms[0], "s", 1), late = lease(rooms[STUCK_MAX], "s", 1);
  assert_int_equal(stuck_note(stuck, &late, S), 0);
  assert_false(stuck_waits(stuck, &late, S));
  assert_int_equal(stuck_note(stuck, &first, S), 2000);
  assert_int_equal(stuck_note(stuck, &late, 62 * S), 1000);
  assert_true(stuck_waits(stuck, &late, 62 * S));
  stuck_free(stuck);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pauses_double_up_to_two_minutes),
      cmocka_unit_test(others_are_others),
      cmocka_unit_test(a_full_table_takes_no_more_until_some_are_over),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
