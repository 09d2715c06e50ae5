// SPDX-License-Identifier: Apache-2.0
/// @file
/// A room tail without a database, for the tests of it: two workers' mailboxes, and what writers, the listener and
/// readers do, as one call each.
#ifndef SH_TESTS_TAIL_FIXTURE_H
#define SH_TESTS_TAIL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>
#include <jansson.h>
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
  int loads;          // of all wakes, those that say only that a read is over
  int others;         // for other rooms
  int rung;           // calls for dirty rooms
};

static struct fixture f;

static inline void woken(void *ctx, const char *room_id, bool news) {
  f.loads += !news;
  if (strcmp(room_id, ROOM) == 0)
    (*(int *)ctx)++;
  else
    f.others++;
}

static inline void rung(void *ctx) {
  (*(int *)ctx)++;
}

static inline void set_up_with(const struct tail_options *options) {
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

static inline int set_up(void **state) {
  (void)state;
  set_up_with(&(struct tail_options){.replay_limit = 100, .events_per_room = 50, .idle_ms = 60000, .rooms_max = 1000});
  return 0;
}

static inline void deliver(void) {
  for (int i = 0; i < WORKERS; i++)
    mailbox_deliver(&f.box[i]);
}

static inline int tear_down(void **state) {
  (void)state;
  deliver();
  tail_free(f.tail);
  for (int i = 0; i < WORKERS; i++)
    mailbox_destroy(&f.box[i]);
  return 0;
}

// -- what others do ------------------------------------------------------------------------------------------------

static inline struct event event_at(const char *room_id, int64_t revision, enum event_kind kind) {
  char json[64];
  snprintf(json, sizeof json, "{\"revision\":%" PRId64 "}", revision);
  return (struct event){
      .room_id = room_id ? strdup(room_id) : NULL, .revision = revision, .kind = kind, .json = strdup(json)};
}

static inline void publish(const char *room_id, int64_t from, int64_t to, enum event_kind kind) {
  for (int64_t revision = from; revision <= to; revision++) {
    struct event e = event_at(room_id, revision, kind);
    tail_publish(f.tail, &e, 1);
    assert_null(e.json);
    assert_null(e.room_id);
  }
}

// A read that found the room at `head`, with the events (after, head].
static inline void fill_at(int64_t asked_us, int64_t after, int64_t head, int64_t pruned) {
  struct room_news news = {.head = head, .pruned = pruned, .n_events = (size_t)(head - after)};
  news.events = calloc(news.n_events + 1, sizeof *news.events);
  for (size_t i = 0; i < news.n_events; i++)
    news.events[i] = event_at(NULL, after + 1 + (int64_t)i, EVENT_LEASE_GRANTED);
  tail_fill(f.tail, ROOM, asked_us, &news);
  room_news_free(&news, 1);
}

static inline void fill(int64_t after, int64_t head) {
  fill_at(clock_mono_us(), after, head, 0);
}

static inline size_t take_dirty(int64_t *after) {
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

static inline struct presence_query since(int64_t revision) {
  int64_t now_us = clock_mono_us();
  return (struct presence_query){.room_id = ROOM,
                                 .has_since = true,
                                 .since = revision,
                                 .kinds = EVENT_KINDS_ALL,
                                 .limit = 1000,
                                 .asked_us = now_us,
                                 .snapshot_us = now_us};
}

static inline struct presence_query snapshot_query(void) {
  struct presence_query query = since(0);
  query.has_since = false;
  return query;
}

static inline enum tail_verdict look(const struct presence_query *query, struct tail_answer *answer) {
  return tail_look(f.tail, 0, query, answer);
}

static inline void expect(int64_t revision, enum tail_verdict verdict) {
  struct presence_query query = since(revision);
  struct tail_answer answer;
  assert_int_equal(look(&query, &answer), verdict);
  body_unref(answer.body);
}

// The room is in memory with the events (after, head].
static inline void load(int64_t after, int64_t head) {
  expect(head, TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  fill(after, head);
  deliver();
  f.woken[0] = f.woken[1] = 0;
}

static inline void expect_events(const struct presence_query *query, int64_t revision, int64_t first, int n,
                                 bool more) {
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

#endif
