// SPDX-License-Identifier: Apache-2.0
// The room tail: what makes a room fresh or stale, who is woken, and what is forgotten.
#include "tail_fixture.h"

#include <poll.h>
#include <pthread.h>

static void test_a_cold_room_is_read(void **state) {
  (void)state;
  expect(3, TAIL_LOADING);
  assert_int_equal(f.rung, 1);
  expect(3, TAIL_LOADING);
  assert_int_equal(f.rung, 1);
  int64_t after = 0;
  assert_int_equal(take_dirty(&after), 1);
  assert_true(after == INT64_MIN);
  expect(3, TAIL_LOADING); // the read under way will do
  assert_int_equal(take_dirty(NULL), 0);
  fill(0, 3);
  deliver();
  assert_int_equal(f.woken[0], 1);
  assert_int_equal(f.woken[1], 0);
  expect(3, TAIL_AT_HEAD);
  struct presence_query query = since(1);
  expect_events(&query, 3, 2, 2, false);
}

static void test_an_empty_room_has_a_head_to_wait_at(void **state) {
  (void)state;
  load(0, 0);
  expect(0, TAIL_AT_HEAD);
}

static void test_publish_wakes_once(void **state) {
  (void)state;
  load(0, 3);
  expect(3, TAIL_AT_HEAD);
  publish(ROOM, 4, 5, EVENT_LEASE_EXPIRED);
  publish("another", 1, 1, EVENT_LEASE_EXPIRED);
  deliver();
  assert_int_equal(f.woken[0], 1); // two changes before it looked again are one wake
  assert_int_equal(f.woken[1], 0);
  assert_int_equal(f.others, 0);
  struct presence_query query = since(3);
  expect_events(&query, 5, 4, 2, false);
  publish(ROOM, 6, 6, EVENT_LEASE_EXPIRED);
  deliver();
  assert_int_equal(f.woken[0], 1); // nobody has been at the head since
  expect(6, TAIL_AT_HEAD);
  tail_unwatch(f.tail, 0, ROOM);
  publish(ROOM, 7, 7, EVENT_LEASE_EXPIRED);
  deliver();
  assert_int_equal(f.woken[0], 1);
}

static void test_publish_of_what_is_known_changes_nothing(void **state) {
  (void)state;
  load(0, 3);
  expect(3, TAIL_AT_HEAD);
  publish(ROOM, 2, 3, EVENT_LEASE_EXPIRED);
  deliver();
  assert_int_equal(f.woken[0], 0);
  assert_int_equal(take_dirty(NULL), 0);
  expect(3, TAIL_AT_HEAD);
}

static void test_a_gap_is_read(void **state) {
  (void)state;
  load(0, 3);
  publish(ROOM, 5, 5, EVENT_LEASE_EXPIRED);
  expect(3, TAIL_LOADING);
  int64_t after = 0;
  assert_int_equal(take_dirty(&after), 1);
  assert_int_equal(after, 3);
  fill(3, 5);
  struct presence_query query = since(3);
  expect_events(&query, 5, 4, 2, false);
}

static void test_what_was_published_during_the_first_read_is_not_missed(void **state) {
  (void)state;
  expect(0, TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  int64_t asked_us = clock_mono_us();
  publish(ROOM, 4, 4, EVENT_LEASE_EXPIRED);
  fill_at(asked_us, 0, 3, 0);            // the read did not see it yet
  assert_int_equal(take_dirty(NULL), 1); // nobody has to look for that
  expect(3, TAIL_LOADING);
  fill(3, 4);
  struct presence_query query = since(3);
  expect_events(&query, 4, 4, 1, false);
}

static void test_an_old_read_does_not_turn_the_head_back(void **state) {
  (void)state;
  load(0, 3);
  int64_t asked_us = clock_mono_us();
  publish(ROOM, 4, 4, EVENT_LEASE_EXPIRED);
  fill_at(asked_us, 3, 3, 0);
  expect(4, TAIL_AT_HEAD);
}

static void test_a_head_that_went_back_is_believed(void **state) {
  (void)state;
  load(0, 5);
  fill_at(clock_mono_us() + 10, 2, 2, 0);
  struct presence_query query = since(2);
  struct tail_answer answer;
  assert_int_equal(look(&query, &answer), TAIL_AT_HEAD);
  assert_int_equal(answer.revision, 2);
}

static void test_a_hint_makes_the_room_stale_until_it_is_read(void **state) {
  (void)state;
  load(0, 3);
  tail_hint(f.tail, ROOM, 3);
  assert_int_equal(take_dirty(NULL), 0);
  expect(3, TAIL_AT_HEAD);
  tail_hint(f.tail, ROOM, 4);
  int64_t after = 0;
  assert_int_equal(take_dirty(&after), 1);
  assert_int_equal(after, 3);
  expect(3, TAIL_LOADING);
  fill(3, 4);
  deliver();
  assert_int_equal(f.woken[0], 1);
  struct presence_query query = since(3);
  expect_events(&query, 4, 4, 1, false);
}

static void test_news_that_are_pruned_already(void **state) {
  (void)state;
  load(0, 3);
  tail_hint(f.tail, ROOM, 9);
  assert_int_equal(take_dirty(NULL), 1);
  fill_at(clock_mono_us(), 9, 9, 9);
  expect(9, TAIL_AT_HEAD);
  expect(3, TAIL_READ_SNAPSHOT);
}

static void test_a_wrong_hint_is_forgotten(void **state) {
  (void)state;
  load(0, 3);
  tail_hint(f.tail, ROOM, 1000);
  assert_int_equal(take_dirty(NULL), 1);
  fill_at(clock_mono_us() + 10, 3, 3, 0);
  assert_int_equal(take_dirty(NULL), 0);
  expect(3, TAIL_AT_HEAD);
}

static void test_a_failed_read_is_tried_again(void **state) {
  (void)state;
  expect(3, TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  tail_read_failed(f.tail, ROOM, true);
  assert_int_equal(f.rung, 2);
  assert_int_equal(take_dirty(NULL), 1);
  tail_read_failed(f.tail, ROOM, false);
  assert_int_equal(take_dirty(NULL), 0);
  expect(3, TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  deliver();
  assert_int_equal(f.woken[0], 0);
}

static void test_without_listen_every_request_reads(void **state) {
  (void)state;
  tail_set_listening(f.tail, false);
  load(0, 3);
  struct presence_query early = since(3);
  struct tail_answer answer;
  assert_int_equal(look(&early, &answer), TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  fill(3, 3);
  assert_int_equal(look(&early, &answer), TAIL_AT_HEAD);
  while (clock_mono_us() <= early.asked_us + 1000)
    continue;
  expect(3, TAIL_LOADING); // asked after that read
  assert_int_equal(take_dirty(NULL), 1);
  fill(3, 3);
  assert_int_equal(look(&early, &answer), TAIL_AT_HEAD); // the early one still has its answer
}

static void test_without_listen_the_waiting_are_not_woken_by_the_reads_of_others(void **state) {
  (void)state;
  load(0, 3);
  expect(3, TAIL_AT_HEAD);
  tail_set_listening(f.tail, false);
  struct presence_query query = since(3);
  struct tail_answer answer;
  assert_int_equal(tail_look(f.tail, 1, &query, &answer), TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  fill(3, 3);
  deliver();
  assert_int_equal(f.woken[1], 1);
  assert_int_equal(f.woken[0], 0);
}

static void test_listening_again_reads_everything(void **state) {
  (void)state;
  load(0, 3);
  struct presence_query early = since(3);
  struct tail_answer answer;
  assert_int_equal(look(&early, &answer), TAIL_AT_HEAD);
  tail_set_listening(f.tail, false);
  assert_false(tail_listening(f.tail));
  tail_set_listening(f.tail, true);
  assert_true(tail_listening(f.tail));
  assert_int_equal(take_dirty(NULL), 1);
  expect(3, TAIL_LOADING);
  fill(3, 3);
  expect(3, TAIL_AT_HEAD);
  expect(3, TAIL_AT_HEAD);
}

static void test_a_read_with_more_than_was_asked_for(void **state) {
  (void)state;
  load(0, 3);
  tail_hint(f.tail, ROOM, 100);
  assert_int_equal(take_dirty(NULL), 1);
  fill(70, 100); // only the newest 30
  expect(3, TAIL_READ_EVENTS);
  expect(69, TAIL_READ_EVENTS);
  struct presence_query query = since(70);
  expect_events(&query, 100, 71, 30, false);
  fill(100, 120);
  query = since(110);
  expect_events(&query, 120, 111, 10, false);
}

static void test_another_epoch_throws_everything_away(void **state) {
  (void)state;
  load(0, 3);
  expect(3, TAIL_AT_HEAD);
  int64_t old_us = clock_mono_us();
  assert_true(epoch_set("aaaaaaaaaaaaaaaa"));
  char **ids = NULL;
  assert_int_equal(tail_watched(f.tail, &ids), 0);
  free(ids);
  deliver();
  assert_int_equal(f.woken[0], 1);
  expect(3, TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  fill_at(old_us - 1, 0, 3, 0); // read before
  expect(3, TAIL_LOADING);
  fill(0, 2);
  struct presence_query query = since(1);
  expect_events(&query, 2, 2, 1, false);
}

static void test_idle_rooms_are_forgotten(void **state) {
  (void)state;
  tear_down(NULL);
  set_up_with(&(struct tail_options){.replay_limit = 100, .events_per_room = 50, .idle_ms = 0, .rooms_max = 1000});
  load(0, 3);
  expect(3, TAIL_AT_HEAD);
  int64_t start_us = clock_mono_us();
  while (clock_mono_us() <= start_us + 10)
    continue;
  tail_evict(f.tail); // somebody waits
  char **ids = NULL;
  assert_int_equal(tail_watched(f.tail, &ids), 1);
  assert_string_equal(ids[0], ROOM);
  free(ids[0]);
  free(ids);
  tail_unwatch(f.tail, 0, ROOM);
  tail_evict(f.tail);
  ids = NULL;
  assert_int_equal(tail_watched(f.tail, &ids), 0);
  free(ids);
}

static void test_many_rooms_are_bounded(void **state) {
  (void)state;
  load(0, 3);
  expect(3, TAIL_AT_HEAD);
  for (int i = 0; i < 5000; i++) {
    char room_id[32];
    snprintf(room_id, sizeof room_id, "room-%d", i);
    struct presence_query query = since(0);
    struct tail_answer answer;
    query.room_id = room_id;
    assert_int_equal(look(&query, &answer), TAIL_LOADING);
    tail_unwatch(f.tail, 0, room_id);
  }
  char **ids = NULL;
  size_t n = tail_watched(f.tail, &ids);
  bool kept = false;
  for (size_t i = 0; i < n; i++) {
    kept = kept || strcmp(ids[i], ROOM) == 0;
    free(ids[i]);
  }
  free(ids);
  assert_in_range(n, 900, 1016);
  assert_true(kept); // the oldest, but somebody waits in it
}

// -- threads -------------------------------------------------------------------------------------------------------

#define STRESS_EVENTS 3000

static void *publisher(void *arg) {
  (void)arg;
  for (int64_t revision = 1; revision <= STRESS_EVENTS; revision++) {
    struct event e = event_at(ROOM, revision, EVENT_LEASE_GRANTED);
    tail_publish(f.tail, &e, 1);
  }
  return NULL;
}

static void *catcher(void *arg) {
  volatile bool *stop = arg;
  while (!__atomic_load_n(stop, __ATOMIC_ACQUIRE)) {
    char *ids[10], **watched = NULL;
    int64_t after[10];
    size_t n = tail_take_dirty(f.tail, ids, after, 10);
    for (size_t i = 0; i < n; i++) {
      tail_read_failed(f.tail, ids[i], true);
      free(ids[i]);
    }
    n = tail_watched(f.tail, &watched);
    for (size_t i = 0; i < n; i++)
      free(watched[i]);
    free(watched);
    tail_evict(f.tail);
  }
  return NULL;
}

// Whoever waits at the head is woken by the next change: a reader that only ever acts on wakes sees every event.
static void test_no_wake_is_lost(void **state) {
  (void)state;
  load(0, 0);
  pthread_t writer, other;
  bool stop = false;
  assert_int_equal(pthread_create(&other, NULL, catcher, &stop), 0);
  assert_int_equal(pthread_create(&writer, NULL, publisher, NULL), 0);
  int64_t seen = 0;
  while (seen < STRESS_EVENTS) {
    struct presence_query query = since(seen);
    struct tail_answer answer;
    enum tail_verdict verdict = look(&query, &answer);
    body_unref(answer.body);
    if (verdict == TAIL_REPLY) {
      assert_true(answer.revision > seen);
      seen = answer.revision;
    } else if (verdict == TAIL_AT_HEAD) {
      struct pollfd p = {.fd = f.box[0].fd, .events = POLLIN};
      assert_int_equal(poll(&p, 1, 5000), 1);
      mailbox_deliver(&f.box[0]);
    } else {
      seen++; // it fell behind what is kept
    }
  }
  __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
  pthread_join(writer, NULL);
  pthread_join(other, NULL);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      T(test_a_cold_room_is_read),
      T(test_an_empty_room_has_a_head_to_wait_at),
      T(test_publish_wakes_once),
      T(test_publish_of_what_is_known_changes_nothing),
      T(test_a_gap_is_read),
      T(test_what_was_published_during_the_first_read_is_not_missed),
      T(test_an_old_read_does_not_turn_the_head_back),
      T(test_a_head_that_went_back_is_believed),
      T(test_a_hint_makes_the_room_stale_until_it_is_read),
      T(test_news_that_are_pruned_already),
      T(test_a_wrong_hint_is_forgotten),
      T(test_a_failed_read_is_tried_again),
      T(test_without_listen_every_request_reads),
      T(test_without_listen_the_waiting_are_not_woken_by_the_reads_of_others),
      T(test_listening_again_reads_everything),
      T(test_a_read_with_more_than_was_asked_for),
      T(test_another_epoch_throws_everything_away),
      T(test_idle_rooms_are_forgotten),
      T(test_many_rooms_are_bounded),
      T(test_no_wake_is_lost),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
