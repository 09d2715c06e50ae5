// SPDX-License-Identifier: Apache-2.0
// The words of explain: which rule decided last, and what comes next.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "store/explain.h"

#define T(s) ((s)*INT64_C(1000000))

static const struct explain_rules open_rules = {.offline_grace_ms = 10000, .tombstone_retention_ms = 60000};
static const struct explain_rules closed_rules = {
    .membership_required = true, .offline_grace_ms = 10000, .tombstone_retention_ms = 60000};

static struct explain_facts nothing(void) {
  return (struct explain_facts){.rules = &open_rules, .now_us = T(100)};
}

static void expect_rule(const struct explain_facts *f, const char *state, const char *part) {
  struct buf words = {0};
  assert_string_equal(explain_state(f), state);
  explain_rule(f, &words);
  if (strstr(words.data, part) == NULL)
    fail_msg("\"%s\" does not say \"%s\"", words.data, part);
  buf_free(&words);
}

/// @param part NULL: nothing is next
static void expect_next(const struct explain_facts *f, const char *part, int64_t at_us) {
  struct buf words = {0};
  int64_t at = -1;
  assert_int_equal(explain_next(f, &words, &at), part != NULL);
  if (part == NULL) {
    assert_int_equal(words.len, 0);
    return;
  }
  assert_int_equal(at, at_us);
  if (strstr(words.data, part) == NULL)
    fail_msg("\"%s\" does not say \"%s\"", words.data, part);
  buf_free(&words);
}

static void never_seen(void **state) {
  (void)state;
  struct explain_facts f = nothing();
  expect_rule(&f, "offline", "no heartbeat of this user was ever accepted");
  expect_next(&f, NULL, 0);
  f.last_seen_us = T(50);
  expect_rule(&f, "offline", "last seen here at 1970-01-01T00:00:50.000Z");
}

static void live_leases(void **state) {
  (void)state;
  struct explain_facts f = nothing();
  f.live = 1;
  f.renewed.session_id = f.first_end.session_id = "tab-1";
  f.renewed.revision = f.first_end.revision = 42;
  f.renewed.at_us = T(90);
  f.first_end.at_us = T(180);
  f.first_end_live = true;
  expect_rule(&f, "online",
              "1 session holds a live lease; the newest heartbeat was that of session \"tab-1\", "
              "revision 42, accepted at 1970-01-01T00:01:30.000Z");
  expect_next(&f, "unless it is renewed before; it is the last one: user.offline follows 10000 ms after it", T(180));
  f.live = 3;
  expect_rule(&f, "online", "3 sessions hold a live lease");
  expect_next(&f, "2 other sessions remain", T(180));
  f.first_end.at_us = TIME_INFINITY;
  expect_next(&f, NULL, 0);
}

static void an_expired_lease_that_was_not_swept(void **state) {
  (void)state;
  struct explain_facts f = nothing();
  f.overdue = 1;
  f.first_end.session_id = "tab-1";
  f.first_end.at_us = T(99);
  expect_rule(&f, "expired", "the lease of session \"tab-1\" ran out at 1970-01-01T00:01:39.000Z");
  expect_next(&f, "with the next sweep; it is the last one", T(99));
  f.live = 1;
  f.renewed.session_id = "tab-2";
  expect_rule(&f, "online", "\"tab-2\"");
  expect_next(&f, "lease.expired of session \"tab-1\", with the next sweep; 1 other session remains", T(99));
}

static void grace(void **state) {
  (void)state;
  struct explain_facts f = nothing();
  f.online_since_us = T(10);
  f.offline_at_us = T(105);
  f.ended.session_id = f.first_gone.session_id = "tab-1";
  f.ended.reason = f.first_gone.reason = "closed";
  f.ended.at_us = f.first_gone.at_us = T(95);
  expect_rule(&f, "grace", "session \"tab-1\" was closed at revision 0 at 1970-01-01T00:01:35.000Z");
  expect_next(&f, "user.offline, unless a session begins before", T(105));
}

static void tombstones(void **state) {
  (void)state;
  struct explain_facts f = nothing();
  f.ended.session_id = "newest";
  f.ended.reason = "expired";
  f.ended.revision = 7;
  f.ended.at_us = T(95);
  f.first_gone.session_id = "oldest";
  f.first_gone.reason = "closed";
  f.first_gone.revision = 3;
  f.first_gone.at_us = T(60);
  expect_rule(&f, "offline", "session \"newest\" was not renewed in time after revision 7");
  expect_next(&f, "session \"oldest\" is forgotten; until then its heartbeats with a revision up to 3", T(120));
}

static void membership(void **state) {
  (void)state;
  struct explain_facts f = nothing();
  static const struct {
    const struct explain_rules *rules;
    bool member, revoked;
    const char *part;
  } table[] = {
      {&open_rules, false, false, "membership=open: heartbeats are accepted"},
      {&open_rules, true, false, "active membership"},
      {&open_rules, true, true, "membership_revoked"},
      {&closed_rules, false, false, "not_a_member"},
      {&closed_rules, true, false, "active membership"},
      {&closed_rules, true, true, "membership_revoked"},
  };
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    struct buf words = {0};
    f.rules = table[i].rules;
    f.member = table[i].member;
    f.revoked_at_us = table[i].revoked ? T(70) : 0;
    explain_membership(&f, &words);
    if (strstr(words.data, table[i].part) == NULL)
      fail_msg("%zu: \"%s\" does not say \"%s\"", i, words.data, table[i].part);
    buf_free(&words);
  }
  // What came last decided: the revocation, or the end of a session before it was granted anew.
  f.rules = &open_rules;
  f.ended.session_id = "s";
  f.ended.reason = "revoked";
  f.ended.at_us = T(70);
  expect_rule(&f, "offline", "the membership was revoked at 1970-01-01T00:01:10.000Z");
  f.ended.reason = "closed";
  f.ended.at_us = T(71);
  expect_rule(&f, "offline", "session \"s\" was closed");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(never_seen),
      cmocka_unit_test(live_leases),
      cmocka_unit_test(an_expired_lease_that_was_not_swept),
      cmocka_unit_test(grace),
      cmocka_unit_test(tombstones),
      cmocka_unit_test(membership),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
