// SPDX-License-Identifier: Apache-2.0
// The room tail: what a look answers, in events and snapshots.
#include "tail_fixture.h"

static void test_kinds(void **state) {
  (void)state;
  load(0, 3); // granted
  publish(ROOM, 4, 5, EVENT_LEASE_EXPIRED);
  struct presence_query query = since(0);
  query.kinds = 1u << EVENT_SESSION_CLOSED;
  struct tail_answer answer;
  assert_int_equal(look(&query, &answer), TAIL_AT_HEAD);
  assert_int_equal(answer.revision, 5);
  query.kinds = 1u << EVENT_LEASE_EXPIRED;
  expect_events(&query, 5, 4, 2, false);
  query.kinds = 1u << EVENT_LEASE_GRANTED;
  expect_events(&query, 5, 1, 3, false); // covers the others too
  // What was covered already is not looked at again, and does not run out of the replay limit.
  query.kinds = 1u << EVENT_LEASE_EXPIRED;
  query.covered = 5;
  assert_int_equal(look(&query, &answer), TAIL_AT_HEAD);
}

static void test_covered_keeps_a_filtered_cursor_alive(void **state) {
  (void)state;
  load(0, 0);
  publish(ROOM, 1, 150, EVENT_LEASE_RENEWED);
  publish(ROOM, 151, 151, EVENT_LEASE_EXPIRED);
  struct presence_query query = since(0);
  query.kinds = 1u << EVENT_LEASE_EXPIRED;
  struct tail_answer answer;
  assert_int_equal(look(&query, &answer), TAIL_READ_SNAPSHOT);
  assert_int_equal(answer.reason, REASON_TOO_MANY);
  query.covered = 150;
  expect_events(&query, 151, 151, 1, false);
}

static void test_limit(void **state) {
  (void)state;
  load(0, 5);
  struct presence_query query = since(1);
  query.limit = 2;
  expect_events(&query, 3, 2, 2, true);
  query.limit = 4;
  expect_events(&query, 5, 2, 4, false);
}

static void expect_reason(const struct presence_query *query, enum snapshot_reason reason) {
  struct tail_answer answer;
  enum tail_verdict verdict = look(query, &answer);
  assert_true(verdict == TAIL_READ_SNAPSHOT || verdict == TAIL_LOADING);
  assert_int_equal(answer.reason, reason);
  assert_int_equal(verdict, TAIL_READ_SNAPSHOT);
  tail_snapshot_failed(f.tail, ROOM, query->view);
}

static void test_reasons(void **state) {
  (void)state;
  expect(0, TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  fill_at(clock_mono_us(), 80, 200, 80);
  struct presence_query query = snapshot_query();
  expect_reason(&query, REASON_REQUESTED);
  query = since(199);
  query.epoch = "fedcba9876543210";
  expect_reason(&query, REASON_EPOCH);
  query.epoch = "0123456789abcdef";
  struct tail_answer answer;
  assert_int_equal(look(&query, &answer), TAIL_REPLY);
  body_unref(answer.body);
  query = since(79);
  expect_reason(&query, REASON_PRUNED);
  query = since(80); // 120 events
  expect_reason(&query, REASON_TOO_MANY);
  tail_pruned(f.tail, ROOM, 150);
  query = since(149);
  expect_reason(&query, REASON_PRUNED);
  query = since(150);
  assert_int_equal(look(&query, &answer), TAIL_REPLY);
  body_unref(answer.body);
}

static void test_only_the_database_says_ahead(void **state) {
  (void)state;
  load(0, 3);
  struct presence_query query = since(4);
  struct tail_answer answer;
  assert_int_equal(look(&query, &answer), TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  fill(3, 4); // memory trailed
  assert_int_equal(look(&query, &answer), TAIL_AT_HEAD);
  for (int64_t us = clock_mono_us(); clock_mono_us() == us;) // asked after that read, by the clock too
    continue;
  query = since(5);
  assert_int_equal(look(&query, &answer), TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  fill(4, 4);
  expect_reason(&query, REASON_AHEAD);
}

static struct body *fake_body(void) {
  struct buf text = {0};
  buf_puts(&text, "{\"mode\":\"snapshot\"");
  struct body *body = body_take(&text);
  assert_non_null(body);
  return body;
}

static void fill_snapshot(enum view view, int64_t revision) {
  struct body *body = fake_body();
  tail_fill_snapshot(f.tail, ROOM, view, clock_mono_us(), body, revision);
  body_unref(body);
}

static void test_one_snapshot_read_serves_all(void **state) {
  (void)state;
  load(0, 3);
  struct presence_query one = snapshot_query(), two = snapshot_query(), count = snapshot_query();
  count.view = VIEW_COUNT;
  struct tail_answer a, b;
  assert_int_equal(look(&one, &a), TAIL_READ_SNAPSHOT);
  assert_int_equal(tail_look(f.tail, 1, &two, &b), TAIL_LOADING);
  assert_int_equal(look(&count, &a), TAIL_READ_SNAPSHOT); // another view is another read
  fill_snapshot(VIEW_SESSIONS, 3);
  deliver();
  assert_int_equal(f.woken[0], 1);
  assert_int_equal(f.woken[1], 1);
  assert_int_equal(look(&one, &a), TAIL_REPLY);
  assert_int_equal(look(&two, &b), TAIL_REPLY);
  assert_int_equal(a.mode, MODE_SNAPSHOT);
  assert_int_equal(a.revision, 3);
  assert_ptr_equal(a.body, b.body);
  body_unref(a.body);
  body_unref(b.body);
  // It is the head's: later requests are served without a read.
  struct presence_query later = snapshot_query();
  assert_int_equal(look(&later, &a), TAIL_REPLY);
  body_unref(a.body);
  publish(ROOM, 4, 4, EVENT_LEASE_EXPIRED);
  later = snapshot_query();
  later.asked_us = later.snapshot_us += 1;
  assert_int_equal(look(&later, &a), TAIL_READ_SNAPSHOT);
}

static void test_a_failed_snapshot_read_goes_to_the_next(void **state) {
  (void)state;
  load(0, 3);
  struct presence_query one = snapshot_query(), two = snapshot_query();
  struct tail_answer answer;
  assert_int_equal(look(&one, &answer), TAIL_READ_SNAPSHOT);
  assert_int_equal(tail_look(f.tail, 1, &two, &answer), TAIL_LOADING);
  tail_snapshot_failed(f.tail, ROOM, VIEW_SESSIONS);
  deliver();
  assert_int_equal(f.woken[1], 1);
  assert_int_equal(tail_look(f.tail, 1, &two, &answer), TAIL_READ_SNAPSHOT);
}

static void test_a_snapshot_that_is_ahead_of_memory(void **state) {
  (void)state;
  load(0, 3);
  struct presence_query query = snapshot_query();
  struct tail_answer answer;
  assert_int_equal(look(&query, &answer), TAIL_READ_SNAPSHOT);
  fill_snapshot(VIEW_SESSIONS, 5);
  assert_int_equal(take_dirty(NULL), 1);
  assert_int_equal(look(&query, &answer), TAIL_REPLY);
  assert_int_equal(answer.revision, 5);
  body_unref(answer.body);
  expect(3, TAIL_LOADING); // memory is known to be behind
}

static void test_a_snapshot_from_before_the_wake_will_not_do(void **state) {
  (void)state;
  load(0, 3);
  struct presence_query waiting = since(3), other = snapshot_query();
  struct tail_answer answer;
  assert_int_equal(look(&waiting, &answer), TAIL_AT_HEAD);
  assert_int_equal(look(&other, &answer), TAIL_READ_SNAPSHOT);
  fill_snapshot(VIEW_SESSIONS, 3);
  publish(ROOM, 4, 300, EVENT_LEASE_EXPIRED);
  waiting.snapshot_us = clock_mono_us() + 1;
  assert_int_equal(look(&waiting, &answer), TAIL_READ_SNAPSHOT);
  assert_int_equal(answer.reason, REASON_TOO_MANY);
}

static void test_fresh_head(void **state) {
  (void)state;
  struct presence_query query = snapshot_query();
  int64_t head = 0;
  char epoch[EPOCH_SIZE];
  assert_false(tail_fresh_head(f.tail, &query, &head, epoch));
  load(0, 3);
  assert_true(tail_fresh_head(f.tail, &query, &head, epoch));
  assert_int_equal(head, 3);
  assert_string_equal(epoch, "0123456789abcdef");
  tail_hint(f.tail, ROOM, 4);
  assert_false(tail_fresh_head(f.tail, &query, &head, epoch));
}

static void test_memory_keeps_the_newest(void **state) {
  (void)state;
  load(0, 3);
  publish(ROOM, 4, 60, EVENT_LEASE_EXPIRED); // 50 are kept
  expect(9, TAIL_READ_EVENTS);
  struct presence_query query = since(10);
  expect_events(&query, 60, 11, 50, false);
  publish(ROOM, 61, 90, EVENT_LEASE_EXPIRED);
  query = since(50);
  expect_events(&query, 90, 51, 40, false);
}

static void test_a_thousand_watchers_share_one_body(void **state) {
  (void)state;
  load(0, 3);
  struct presence_query one = since(1), two = since(1), other = since(2);
  struct tail_answer a, b, c;
  assert_int_equal(look(&one, &a), TAIL_REPLY);
  assert_int_equal(look(&other, &c), TAIL_REPLY);
  assert_int_equal(look(&two, &b), TAIL_REPLY);
  assert_ptr_equal(a.body, b.body);
  assert_ptr_not_equal(a.body, c.body);
  body_unref(b.body);
  publish(ROOM, 4, 4, EVENT_LEASE_EXPIRED);
  assert_int_equal(look(&two, &b), TAIL_REPLY);
  assert_int_equal(b.revision, 4);
  body_unref(a.body);
  body_unref(b.body);
  body_unref(c.body);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      T(test_kinds),
      T(test_covered_keeps_a_filtered_cursor_alive),
      T(test_limit),
      T(test_reasons),
      T(test_only_the_database_says_ahead),
      T(test_one_snapshot_read_serves_all),
      T(test_a_failed_snapshot_read_goes_to_the_next),
      T(test_a_snapshot_that_is_ahead_of_memory),
      T(test_a_snapshot_from_before_the_wake_will_not_do),
      T(test_fresh_head),
      T(test_memory_keeps_the_newest),
      T(test_a_thousand_watchers_share_one_body),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
