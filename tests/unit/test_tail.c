// SPDX-License-Identifier: Apache-2.0
// The room tail without a database: what a look says, who is woken, and what counts as fresh.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "live/tail.h"

#define WORKERS 2
#define ROOM "class-7"

struct fixture {
  struct tail *tail;
  struct mailbox box[WORKERS];
  int woken[WORKERS]; // for ROOM
  int others;         // for other rooms
  int rung;           // calls for dirty rooms
};

static struct fixture f;

static void woken(void *ctx, const char *room_id) {
  if (strcmp(room_id, ROOM) == 0)
    (*(int *)ctx)++;
  else
    f.others++;
}

static void rung(void *ctx) {
  (*(int *)ctx)++;
}

static void set_up_with(const struct tail_options *options) {
  memset(&f, 0, sizeof f);
  f.tail = tail_new(options);
  assert_non_null(f.tail);
  for (unsigned i = 0; i < WORKERS; i++) {
    assert_true(mailbox_init(&f.box[i]));
    tail_add_worker(f.tail, i, &f.box[i], woken, &f.woken[i]);
  }
  tail_on_dirty(f.tail, rung, &f.rung);
  epoch_set("0123456789abcdef");
  tail_set_listening(f.tail, true);
}

static int set_up(void **state) {
  (void)state;
  set_up_with(&(struct tail_options){.replay_limit = 100, .events_per_room = 50, .idle_ms = 60000, .rooms_max = 1000});
  return 0;
}

static void deliver(void) {
  for (int i = 0; i < WORKERS; i++)
    mailbox_deliver(&f.box[i]);
}

static int tear_down(void **state) {
  (void)state;
  deliver();
  tail_free(f.tail);
  for (int i = 0; i < WORKERS; i++)
    mailbox_destroy(&f.box[i]);
  return 0;
}

// -- what others do ------------------------------------------------------------------------------------------------

static struct event event_at(const char *room_id, int64_t revision, enum event_kind kind) {
  char json[64];
  snprintf(json, sizeof json, "{\"revision\":%" PRId64 "}", revision);
  return (struct event){
      .room_id = room_id ? strdup(room_id) : NULL, .revision = revision, .kind = kind, .json = strdup(json)};
}

static void publish(const char *room_id, int64_t from, int64_t to, enum event_kind kind) {
  for (int64_t revision = from; revision <= to; revision++) {
    struct event e = event_at(room_id, revision, kind);
    tail_publish(f.tail, &e, 1);
    assert_null(e.json);
    assert_null(e.room_id);
  }
}

// A read that found the room at `head`, with the events (after, head].
static void fill_at(int64_t asked_us, int64_t after, int64_t head, int64_t pruned) {
  struct room_news news = {.head = head, .pruned = pruned, .n_events = (size_t)(head - after)};
  news.events = calloc(news.n_events + 1, sizeof *news.events);
  for (size_t i = 0; i < news.n_events; i++)
    news.events[i] = event_at(NULL, after + 1 + (int64_t)i, EVENT_LEASE_GRANTED);
  tail_fill(f.tail, ROOM, asked_us, &news);
  room_news_free(&news, 1);
}

static void fill(int64_t after, int64_t head) {
  fill_at(clock_mono_us(), after, head, 0);
}

static size_t take_dirty(int64_t *after) {
  char *ids[10];
  int64_t heads[10];
  size_t n = tail_take_dirty(f.tail, ids, heads, 10);
  for (size_t i = 0; i < n; i++)
    free(ids[i]);
  if (n > 0 && after)
    *after = heads[0];
  return n;
}

// -- asking --------------------------------------------------------------------------------------------------------

static struct presence_query since(int64_t revision) {
  int64_t now_us = clock_mono_us();
  return (struct presence_query){.room_id = ROOM,
                                 .has_since = true,
                                 .since = revision,
                                 .kinds = EVENT_KINDS_ALL,
                                 .limit = 1000,
                                 .asked_us = now_us,
                                 .snapshot_us = now_us};
}

static struct presence_query snapshot_query(void) {
  struct presence_query query = since(0);
  query.has_since = false;
  return query;
}

static enum tail_verdict look(const struct presence_query *query, struct tail_answer *answer) {
  return tail_look(f.tail, 0, query, answer);
}

static void expect(int64_t revision, enum tail_verdict verdict) {
  struct presence_query query = since(revision);
  struct tail_answer answer;
  assert_int_equal(look(&query, &answer), verdict);
  body_unref(answer.body);
}

// The room is in memory with the events (after, head].
static void load(int64_t after, int64_t head) {
  expect(head, TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  fill(after, head);
  deliver();
  f.woken[0] = f.woken[1] = 0;
}

static void expect_events(const struct presence_query *query, int64_t revision, int64_t first, int n, bool more) {
  struct tail_answer answer;
  assert_int_equal(look(query, &answer), TAIL_REPLY);
  assert_int_equal(answer.mode, MODE_EVENTS);
  assert_int_equal(answer.revision, revision);
  char *text = malloc(answer.body->len + 2);
  memcpy(text, answer.body->data, answer.body->len);
  memcpy(text + answer.body->len, "}", 2);
  json_t *reply = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
  assert_non_null(reply);
  assert_string_equal(json_string_value(json_object_get(reply, "room_id")), ROOM);
  assert_string_equal(json_string_value(json_object_get(reply, "epoch")), answer.epoch);
  assert_string_equal(json_string_value(json_object_get(reply, "mode")), "events");
  assert_int_equal(json_integer_value(json_object_get(reply, "from")), query->since);
  assert_int_equal(json_integer_value(json_object_get(reply, "revision")), revision);
  assert_int_equal(json_is_true(json_object_get(reply, "more")), more);
  json_t *events = json_object_get(reply, "events");
  assert_int_equal(json_array_size(events), n);
  assert_int_equal(json_integer_value(json_object_get(json_array_get(events, 0), "revision")), first);
  json_decref(reply);
  free(text);
  body_unref(answer.body);
}

// -- tests ---------------------------------------------------------------------------------------------------------

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
  fill_at(asked_us, 0, 3, 0); // the read did not see it yet
  expect(3, TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
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
  query = since(5);
  assert_int_equal(look(&query, &answer), TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  fill(4, 4);
  expect_reason(&query, REASON_AHEAD);
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

static void test_a_read_with_more_than_was_asked_for(void **state) {
  (void)state;
  load(0, 3);
  tail_hint(f.tail, ROOM, 100);
  assert_int_equal(take_dirty(NULL), 1);
  fill(70, 100); // only the newest 30
  expect(3, TAIL_READ_EVENTS);
  struct presence_query query = since(70);
  expect_events(&query, 100, 71, 30, false);
  fill(100, 120);
  query = since(110);
  expect_events(&query, 120, 111, 10, false);
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
      T(test_a_wrong_hint_is_forgotten),
      T(test_a_failed_read_is_tried_again),
      T(test_kinds),
      T(test_covered_keeps_a_filtered_cursor_alive),
      T(test_limit),
      T(test_reasons),
      T(test_only_the_database_says_ahead),
      T(test_without_listen_every_request_reads),
      T(test_without_listen_the_waiting_are_not_woken_by_the_reads_of_others),
      T(test_listening_again_reads_everything),
      T(test_one_snapshot_read_serves_all),
      T(test_a_failed_snapshot_read_goes_to_the_next),
      T(test_a_snapshot_that_is_ahead_of_memory),
      T(test_a_snapshot_from_before_the_wake_will_not_do),
      T(test_fresh_head),
      T(test_memory_keeps_the_newest),
      T(test_a_read_with_more_than_was_asked_for),
      T(test_a_thousand_watchers_share_one_body),
      T(test_another_epoch_throws_everything_away),
      T(test_idle_rooms_are_forgotten),
      T(test_many_rooms_are_bounded),
      T(test_no_wake_is_lost),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
