// SPDX-License-Identifier: Apache-2.0
// The table of CONTRACT §2 and the rules of §3, each row by name.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/util.h"
#include "store/lease_rules.h"

enum { OMITTED = -1 };

struct row {
  const char *name;
  enum lease_state state;
  int64_t stored;
  enum member_state member;
  bool required;
  int64_t revision; ///< OMITTED: none given
  enum decision want;
  int64_t want_revision;
  bool want_granted;
};

static const struct row heartbeat_rows[] = {
    {"nothing there, named", LEASE_UNKNOWN, 0, MEMBER_NONE, false, 7, DECISION_ACCEPTED, 7, true},
    {"nothing there, omitted", LEASE_UNKNOWN, 0, MEMBER_NONE, false, OMITTED, DECISION_ACCEPTED, 1, true},
    {"nothing there, largest", LEASE_UNKNOWN, 0, MEMBER_NONE, false, REVISION_MAX, DECISION_ACCEPTED, REVISION_MAX,
     true},
    {"live, newer", LEASE_LIVE, 41, MEMBER_NONE, false, 42, DECISION_ACCEPTED, 42, false},
    {"live, much newer", LEASE_LIVE, 41, MEMBER_NONE, false, 4100, DECISION_ACCEPTED, 4100, false},
    {"live, omitted", LEASE_LIVE, 41, MEMBER_NONE, false, OMITTED, DECISION_ACCEPTED, 42, false},
    {"live, equal", LEASE_LIVE, 41, MEMBER_NONE, false, 41, DECISION_ALREADY_APPLIED, 41, false},
    {"live, older", LEASE_LIVE, 41, MEMBER_NONE, false, 40, DECISION_IGNORED_OLD_REVISION, 41, false},
    {"live at the end, omitted", LEASE_LIVE, REVISION_MAX, MEMBER_NONE, false, OMITTED, DECISION_IGNORED_OLD_REVISION,
     REVISION_MAX, false},
    {"live just before the end, omitted", LEASE_LIVE, REVISION_MAX - 1, MEMBER_NONE, false, OMITTED, DECISION_ACCEPTED,
     REVISION_MAX, false},
    {"expired, equal", LEASE_EXPIRED, 41, MEMBER_NONE, false, 41, DECISION_IGNORED_OLD_REVISION, 41, false},
    {"expired, older", LEASE_EXPIRED, 41, MEMBER_NONE, false, 1, DECISION_IGNORED_OLD_REVISION, 41, false},
    {"expired, newer", LEASE_EXPIRED, 41, MEMBER_NONE, false, 42, DECISION_ACCEPTED, 42, true},
    {"expired, omitted", LEASE_EXPIRED, 41, MEMBER_NONE, false, OMITTED, DECISION_ACCEPTED, 42, true},
    {"expired at the end, omitted", LEASE_EXPIRED, REVISION_MAX, MEMBER_NONE, false, OMITTED,
     DECISION_IGNORED_OLD_REVISION, REVISION_MAX, false},
    {"closed, newer", LEASE_CLOSED, 41, MEMBER_NONE, false, 42, DECISION_ACCEPTED, 42, true},
    {"closed, equal", LEASE_CLOSED, 41, MEMBER_NONE, false, 41, DECISION_IGNORED_OLD_REVISION, 41, false},
    {"closed, older", LEASE_CLOSED, 41, MEMBER_NONE, false, 40, DECISION_IGNORED_OLD_REVISION, 41, false},
    {"closed, omitted", LEASE_CLOSED, 41, MEMBER_NONE, false, OMITTED, DECISION_SESSION_CLOSED, 41, false},
    {"revoked, newer", LEASE_REVOKED, 41, MEMBER_REVOKED, false, 42, DECISION_MEMBERSHIP_REVOKED, 41, false},
    {"revoked, omitted", LEASE_REVOKED, 41, MEMBER_REVOKED, false, OMITTED, DECISION_MEMBERSHIP_REVOKED, 41, false},
    {"revoked before any lease", LEASE_UNKNOWN, 0, MEMBER_REVOKED, false, 1, DECISION_MEMBERSHIP_REVOKED, 0, false},
    {"expired and revoked since", LEASE_EXPIRED, 41, MEMBER_REVOKED, false, 42, DECISION_MEMBERSHIP_REVOKED, 41, false},
    {"granted again, omitted", LEASE_REVOKED, 41, MEMBER_ACTIVE, false, OMITTED, DECISION_ACCEPTED, 42, true},
    {"granted again, older", LEASE_REVOKED, 41, MEMBER_ACTIVE, false, 41, DECISION_IGNORED_OLD_REVISION, 41, false},
    {"required and none", LEASE_UNKNOWN, 0, MEMBER_NONE, true, 1, DECISION_NOT_A_MEMBER, 0, false},
    {"required and active", LEASE_UNKNOWN, 0, MEMBER_ACTIVE, true, 1, DECISION_ACCEPTED, 1, true},
    {"required and revoked", LEASE_UNKNOWN, 0, MEMBER_REVOKED, true, 1, DECISION_MEMBERSHIP_REVOKED, 0, false},
    {"required, live needs no look", LEASE_LIVE, 41, MEMBER_NONE, true, 42, DECISION_ACCEPTED, 42, false},
};

static const struct row close_rows[] = {
    {"never existed", LEASE_UNKNOWN, 0, MEMBER_NONE, false, OMITTED, DECISION_NOT_FOUND, 0, false},
    {"never existed, named", LEASE_UNKNOWN, 0, MEMBER_NONE, false, 9, DECISION_NOT_FOUND, 0, false},
    {"live", LEASE_LIVE, 41, MEMBER_NONE, false, OMITTED, DECISION_ACCEPTED, 41, false},
    {"live, equal", LEASE_LIVE, 41, MEMBER_NONE, false, 41, DECISION_ACCEPTED, 41, false},
    {"live, newer", LEASE_LIVE, 41, MEMBER_NONE, false, 50, DECISION_ACCEPTED, 50, false},
    {"live, older", LEASE_LIVE, 41, MEMBER_NONE, false, 40, DECISION_IGNORED_OLD_REVISION, 41, false},
    {"closed again", LEASE_CLOSED, 41, MEMBER_NONE, false, OMITTED, DECISION_ALREADY_APPLIED, 41, false},
    {"closed again, newer", LEASE_CLOSED, 41, MEMBER_NONE, false, 50, DECISION_ALREADY_APPLIED, 50, false},
    {"closed again, older", LEASE_CLOSED, 41, MEMBER_NONE, false, 40, DECISION_IGNORED_OLD_REVISION, 41, false},
    {"expired", LEASE_EXPIRED, 41, MEMBER_NONE, false, OMITTED, DECISION_ALREADY_APPLIED, 41, false},
    {"expired, older", LEASE_EXPIRED, 41, MEMBER_NONE, false, 3, DECISION_IGNORED_OLD_REVISION, 41, false},
    {"revoked", LEASE_REVOKED, 41, MEMBER_REVOKED, false, OMITTED, DECISION_ALREADY_APPLIED, 41, false},
};

static void check(const struct row *rows, size_t n,
                  struct verdict (*decide)(const struct lease_facts *, bool, int64_t)) {
  for (size_t i = 0; i < n; i++) {
    const struct row *row = &rows[i];
    struct lease_facts facts = {
        .state = row->state, .revision = row->stored, .member = row->member, .membership_required = row->required};
    struct verdict v = decide(&facts, row->revision != OMITTED, row->revision);
    if (v.decision != row->want || v.new_revision != row->want_revision || v.granted != row->want_granted) {
      fail_msg("%s: got %s, revision %lld, granted %d", row->name, decision_name(v.decision), (long long)v.new_revision,
               v.granted);
    }
  }
}

static void heartbeats(void **state) {
  (void)state;
  check(heartbeat_rows, ARRAY_LEN(heartbeat_rows), decide_heartbeat);
}

static void closes(void **state) {
  (void)state;
  check(close_rows, ARRAY_LEN(close_rows), decide_close);
}

/// A full user or room keeps out new stays and nothing else.
static void full(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"nothing there", LEASE_UNKNOWN, 0, MEMBER_NONE, false, 7, DECISION_TOO_MANY_LEASES, 0, false},
      {"nothing there, omitted", LEASE_UNKNOWN, 0, MEMBER_NONE, false, OMITTED, DECISION_TOO_MANY_LEASES, 0, false},
      {"expired, newer", LEASE_EXPIRED, 41, MEMBER_NONE, false, 42, DECISION_TOO_MANY_LEASES, 41, false},
      {"expired, omitted", LEASE_EXPIRED, 41, MEMBER_NONE, false, OMITTED, DECISION_TOO_MANY_LEASES, 41, false},
      {"expired, older", LEASE_EXPIRED, 41, MEMBER_NONE, false, 40, DECISION_IGNORED_OLD_REVISION, 41, false},
      {"closed, newer", LEASE_CLOSED, 41, MEMBER_NONE, false, 42, DECISION_TOO_MANY_LEASES, 41, false},
      {"closed, omitted", LEASE_CLOSED, 41, MEMBER_NONE, false, OMITTED, DECISION_SESSION_CLOSED, 41, false},
      {"revoked", LEASE_UNKNOWN, 0, MEMBER_REVOKED, false, 1, DECISION_MEMBERSHIP_REVOKED, 0, false},
      {"not a member", LEASE_UNKNOWN, 0, MEMBER_NONE, true, 1, DECISION_NOT_A_MEMBER, 0, false},
      {"live", LEASE_LIVE, 41, MEMBER_NONE, false, 42, DECISION_ACCEPTED, 42, false},
  };
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
    const struct row *row = &rows[i];
    struct lease_facts facts = {.state = row->state,
                                .revision = row->stored,
                                .member = row->member,
                                .membership_required = row->required,
                                .full = true};
    struct verdict v = decide_heartbeat(&facts, row->revision != OMITTED, row->revision);
    if (v.decision != row->want || v.new_revision != row->want_revision || v.granted != row->want_granted) {
      fail_msg("%s: got %s, revision %lld, granted %d", row->name, decision_name(v.decision), (long long)v.new_revision,
               v.granted);
    }
  }
}

/// A renewal that comes too soon after the last; what would change nothing, or is no renewal, is free of it.
static void too_soon(void **state) {
  (void)state;
  struct lease_facts facts = {.state = LEASE_LIVE, .revision = 41, .renewed_us = 999, .renew_min_us = 1000};
  struct verdict v = decide_heartbeat(&facts, true, 42);
  assert_int_equal(v.decision, DECISION_TOO_SOON);
  assert_int_equal(v.new_revision, 41);
  assert_int_equal(decide_heartbeat(&facts, false, 0).decision, DECISION_TOO_SOON);
  assert_int_equal(decide_heartbeat(&facts, true, 41).decision, DECISION_ALREADY_APPLIED);
  assert_int_equal(decide_heartbeat(&facts, true, 40).decision, DECISION_IGNORED_OLD_REVISION);
  facts.renewed_us = 1000;
  assert_int_equal(decide_heartbeat(&facts, true, 42).decision, DECISION_ACCEPTED);
  facts.renewed_us = -1; // the clock was set back: nobody waits for it to catch up
  assert_int_equal(decide_heartbeat(&facts, true, 42).decision, DECISION_ACCEPTED);
  facts.renewed_us = 0;
  facts.renew_min_us = 0;
  assert_int_equal(decide_heartbeat(&facts, true, 42).decision, DECISION_ACCEPTED);
  facts = (struct lease_facts){.state = LEASE_EXPIRED, .revision = 41, .renewed_us = 1, .renew_min_us = 1000};
  assert_int_equal(decide_heartbeat(&facts, true, 42).decision, DECISION_ACCEPTED);
}

static void statuses(void **state) {
  (void)state;
  assert_int_equal(decision_status(DECISION_ACCEPTED), 200);
  assert_int_equal(decision_status(DECISION_ALREADY_APPLIED), 200);
  assert_int_equal(decision_status(DECISION_IGNORED_OLD_REVISION), 409);
  assert_int_equal(decision_status(DECISION_SESSION_CLOSED), 410);
  assert_int_equal(decision_status(DECISION_MEMBERSHIP_REVOKED), 403);
  assert_int_equal(decision_status(DECISION_NOT_A_MEMBER), 403);
  assert_int_equal(decision_status(DECISION_NOT_FOUND), 404);
  assert_int_equal(decision_status(DECISION_TOO_SOON), 429);
  assert_int_equal(decision_status(DECISION_TOO_MANY_LEASES), 429);
  assert_int_equal(decision_status(DECISION_NONE), 503);
}

static void keys_sort_by_bytes(void **state) {
  (void)state;
  struct lease_key a = {"r", "u", "Z"}, b = {"r", "u", "a"}, c = {"r", "u", "\xc3\xa9"}, d = {"r0", "a", "a"};
  assert_true(lease_key_compare(&a, &b) < 0);
  assert_true(lease_key_compare(&b, &c) < 0);
  assert_true(lease_key_compare(&c, &d) < 0);
  assert_int_equal(lease_key_compare(&c, &c), 0);
}

static void kinds(void **state) {
  (void)state;
  for (int i = 0; i < EVENT_KIND_COUNT; i++) {
    assert_int_equal(event_kind_parse(event_kind_name((enum event_kind)i)), i);
  }
  assert_int_equal(event_kind_parse("lease.grante"), -1);
  assert_int_equal(event_kind_parse(""), -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(heartbeats), cmocka_unit_test(closes),   cmocka_unit_test(full),
      cmocka_unit_test(too_soon),   cmocka_unit_test(statuses), cmocka_unit_test(keys_sort_by_bytes),
      cmocka_unit_test(kinds),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
