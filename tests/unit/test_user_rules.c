// SPDX-License-Identifier: Apache-2.0
// One state for each person: online with the first session, offline when the grace after the last one is over.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/user_rules.h"

#define GRACE_MS 10000
#define AT(seconds) (INT64_C(1000000) * (seconds))

static int apply(struct user_state *s, enum event_kind kind, int seconds) {
  return user_state_apply(s, kind, true, AT(seconds), GRACE_MS);
}

static void three_tabs(void **state) {
  (void)state;
  struct user_state s = {0};
  assert_int_equal(apply(&s, EVENT_LEASE_GRANTED, 1), EVENT_USER_ONLINE);
  assert_int_equal(apply(&s, EVENT_LEASE_GRANTED, 2), -1);
  assert_int_equal(apply(&s, EVENT_LEASE_GRANTED, 3), -1);
  assert_int_equal(s.sessions, 3);
  assert_int_equal(s.online_since_us, AT(1));
  assert_int_equal(apply(&s, EVENT_SESSION_CLOSED, 4), -1);
  assert_int_equal(apply(&s, EVENT_LEASE_EXPIRED, 5), -1);
  assert_int_equal(s.offline_at_us, 0);
  assert_int_equal(apply(&s, EVENT_SESSION_CLOSED, 6), -1);
  assert_true(s.online);
  assert_int_equal(s.offline_at_us, AT(16));
  assert_false(user_state_grace_over(&s, AT(16) - 1));
  assert_true(user_state_grace_over(&s, AT(16)));
  assert_false(s.online);
  assert_false(user_state_grace_over(&s, AT(17)));
}

static void a_new_session_ends_the_grace(void **state) {
  (void)state;
  struct user_state s = {.sessions = 1, .online = true, .online_since_us = AT(1)};
  assert_int_equal(apply(&s, EVENT_LEASE_EXPIRED, 2), -1);
  s.changed = false;
  assert_int_equal(apply(&s, EVENT_LEASE_GRANTED, 11), -1);
  assert_true(s.changed);
  assert_int_equal(s.offline_at_us, 0);
  assert_int_equal(s.online_since_us, AT(1));
  assert_false(user_state_grace_over(&s, AT(100)));
}

static void a_second_tab_changes_no_row(void **state) {
  (void)state;
  struct user_state s = {.sessions = 1, .online = true, .online_since_us = AT(1)};
  assert_int_equal(apply(&s, EVENT_LEASE_GRANTED, 2), -1);
  assert_int_equal(apply(&s, EVENT_LEASE_RENEWED, 3), -1);
  assert_int_equal(apply(&s, EVENT_SESSION_CLOSED, 4), -1);
  assert_false(s.changed);
}

static void revocation_is_at_once(void **state) {
  (void)state;
  struct user_state s = {.sessions = 2, .online = true, .online_since_us = AT(1)};
  assert_int_equal(apply(&s, EVENT_MEMBERSHIP_REVOKED, 2), -1);
  assert_int_equal(apply(&s, EVENT_MEMBERSHIP_REVOKED, 2), EVENT_USER_OFFLINE);
  assert_false(s.online);
  // In grace, without a session, as well.
  struct user_state grace = {.online = true, .offline_at_us = AT(9)};
  assert_int_equal(user_state_apply(&grace, EVENT_MEMBERSHIP_REVOKED, false, AT(2), GRACE_MS), EVENT_USER_OFFLINE);
  struct user_state away = {0};
  assert_int_equal(user_state_apply(&away, EVENT_MEMBERSHIP_REVOKED, false, AT(2), GRACE_MS), -1);
  assert_false(away.changed);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(three_tabs),
      cmocka_unit_test(a_new_session_ends_the_grace),
      cmocka_unit_test(a_second_tab_changes_no_row),
      cmocka_unit_test(revocation_is_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
