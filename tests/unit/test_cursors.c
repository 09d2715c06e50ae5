// SPDX-License-Identifier: Apache-2.0
// Who may have a cursor, how changes are numbered and told, and what is sent to other instances.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "db/epoch.h"
#include "live/cursor_payload.h"
#include "live/cursors.h"

#define ROOM "class-7"
#define MINUTE_US INT64_C(60000000)

static struct cursors *c;
static struct mailbox box;
static int woken;

static void on_woken(void *ctx, const char *room_id) {
  assert_string_equal(room_id, ROOM);
  (*(int *)ctx)++;
}

static void on_work(void *ctx) {
  (void)ctx;
}

static int set_up(void **state) {
  (void)state;
  epoch_set("0123456789abcdef");
  int64_t now_us = clock_mono_us();
  clock_db_sample(INT64_C(1800000000000000), now_us, now_us + 1);
  c = cursors_new(&(struct cursors_options){.room_max = 3, .total_max = 5});
  assert_non_null(c);
  assert_true(mailbox_init(&box));
  woken = 0;
  cursors_add_worker(c, 0, &box, on_woken, &woken);
  cursors_on_work(c, on_work, NULL);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  mailbox_deliver(&box);
  cursors_free(c);
  mailbox_destroy(&box);
  return 0;
}

// -- what others do ------------------------------------------------------------------------------------------------

static struct cursor_packet packet_of(const char *room_id, const char *session_id, const char *data) {
  return (struct cursor_packet){.key = {room_id, "u", session_id}, .data = data, .len = strlen(data)};
}

// A lease that began at `granted`, as the database shows it at a room revision.
static struct stay live(int64_t granted, int64_t revision) {
  return (struct stay){.live = true,
                       .granted_at_us = granted,
                       .expires_at_us = clock_db_us() + MINUTE_US,
                       .room_revision = revision,
                       .generation = epoch_generation(),
                       .asked_us = clock_mono_us()};
}

static void sleep_ms(long ms) {
  nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static struct stay not_live(int64_t revision) {
  return (struct stay){.room_revision = revision, .generation = epoch_generation()};
}

static enum cursors_put put(const char *room_id, const char *session_id, const char *data, const struct stay *stay) {
  struct cursor_packet packet = packet_of(room_id, session_id, data);
  int64_t seq = 0;
  enum cursors_put result = cursors_put(c, &packet, &seq);
  if (result == CURSOR_CHECK && stay)
    result = cursors_checked(c, &packet, stay, &seq);
  if (result == CURSOR_CHECK)
    cursors_give_up(c, &packet.key);
  return result;
}

static void move(const char *session_id, const char *data) {
  struct stay stay = live(1, 10);
  assert_int_equal(put(ROOM, session_id, data, &stay), CURSOR_TAKEN);
}

static void event(int64_t revision, enum event_kind kind, const char *session_id) {
  char json[200];
  if (session_id)
    snprintf(json, sizeof json, "{\"user_id\":\"u\",\"session_id\":\"%s\"}", session_id);
  else
    snprintf(json, sizeof json, "{\"user_id\":\"u\"}");
  cursors_event(c, ROOM, revision, kind, json);
}

static void hear(const char *session_id, int64_t stay_us, int64_t at_us, const char *data) {
  struct buf text = {0}, item = {0};
  struct cursor_packet packet = packet_of(ROOM, session_id, data);
  packet.at_us = at_us;
  cursor_payload_open(&text, "0123456789abcdef", "another", false);
  cursor_payload_item(&item, &packet, stay_us);
  buf_add(&text, item.data, item.len);
  cursor_payload_close(&text);
  assert_true(cursors_hear(c, text.data));
  buf_free(&text);
  buf_free(&item);
}

// What the bus does once: each lease that is to be seen is as `stay` says. Returns how many.
static size_t see(const struct stay *stay) {
  struct lease_key keys[10];
  size_t n = cursors_take_unverified(c, keys, 10);
  for (size_t i = 0; i < n; i++)
    cursors_verified(c, &keys[i], stay);
  cursors_keys_free(keys, n);
  return n;
}

// -- looking -------------------------------------------------------------------------------------------------------

static int64_t seq; // of the newest look

// "session=data …" of the cursors, then "-session" of those that are gone, then "!" for a reset; "?" for nothing to
// say.
static void expect_from(bool has_since, int64_t since, const char *expected) {
  const struct cursors_query query = {.room_id = ROOM, .has_since = has_since, .since = since};
  struct cursors_answer answer;
  bool says = cursors_look(c, 0, &query, &answer);
  assert_non_null(answer.body);
  struct buf text = {0}, seen = {0};
  buf_add(&text, answer.body->data, answer.body->len);
  buf_puts(&text, "}");
  json_t *reply = json_loads(text.data, JSON_REJECT_DUPLICATES, NULL);
  assert_non_null(reply);
  assert_int_equal(json_integer_value(json_object_get(reply, "seq")), answer.seq);
  buf_puts(&seen, says ? "" : "?");
  size_t i;
  json_t *item;
  json_array_foreach(json_object_get(reply, "cursors"), i, item) {
    char *data = json_dumps(json_object_get(item, "data"), JSON_COMPACT);
    buf_printf(&seen, "%s=%s ", json_string_value(json_object_get(item, "session_id")), data);
    free(data);
  }
  json_array_foreach(json_object_get(reply, "gone"), i, item) {
    buf_printf(&seen, "-%s ", json_string_value(json_object_get(item, "session_id")));
  }
  if (json_is_true(json_object_get(reply, "reset")))
    buf_puts(&seen, "!");
  assert_string_equal(seen.data, expected);
  seq = answer.seq;
  json_decref(reply);
  buf_free(&text);
  buf_free(&seen);
  body_unref(answer.body);
}

static void expect(const char *expected) {
  expect_from(false, 0, expected);
}

static void expect_since(int64_t since, const char *expected) {
  expect_from(true, since, expected);
}

// -- the gate ------------------------------------------------------------------------------------------------------

static void test_a_lease_is_asked_for_once(void **state) {
  (void)state;
  struct stay stay = live(1, 10);
  assert_int_equal(put(ROOM, "a", "{}", NULL), CURSOR_CHECK);
  assert_int_equal(put(ROOM, "a", "{}", &stay), CURSOR_TAKEN);
  assert_int_equal(put(ROOM, "a", "{\"n\":2}", NULL), CURSOR_TAKEN);
  expect("a={\"n\":2} ");
}

static void test_a_lease_is_believed_for_300_ms(void **state) {
  (void)state;
  move("a", "{}");
  sleep_ms(320);
  assert_int_equal(put(ROOM, "a", "{\"n\":2}", NULL), CURSOR_CHECK);
  expect("a={} ");
}

static void test_a_read_that_took_too_long_is_done_again(void **state) {
  (void)state;
  struct stay stay = live(1, 10);
  stay.asked_us -= 300000;
  assert_int_equal(put(ROOM, "a", "{}", &stay), CURSOR_CHECK);
  expect("");
  stay.asked_us += 200000;
  assert_int_equal(put(ROOM, "a", "{}", &stay), CURSOR_TAKEN);
  sleep_ms(210); // counted from when it was asked, not from when it came back
  assert_int_equal(put(ROOM, "a", "{}", NULL), CURSOR_CHECK);
}

static void test_the_belief_is_renewed_before_it_lapses(void **state) {
  (void)state;
  move("a", "{}");
  sleep_ms(210);
  assert_int_equal(put(ROOM, "a", "{\"n\":2}", NULL), CURSOR_TAKEN);
  struct stay stay = live(1, 10);
  assert_int_equal(see(&stay), 1);
  assert_int_equal(see(&stay), 0);
  sleep_ms(150);
  assert_int_equal(put(ROOM, "a", "{\"n\":3}", NULL), CURSOR_TAKEN);
  assert_int_equal(see(&stay), 0); // it was seen short ago
}

static void test_without_a_lease(void **state) {
  (void)state;
  struct stay stay = not_live(10);
  assert_int_equal(put(ROOM, "a", "{}", &stay), CURSOR_NOT_LIVE);
  stay.revoked = true;
  assert_int_equal(put(ROOM, "a", "{}", &stay), CURSOR_REVOKED);
  expect("");
}

static void test_what_was_read_before_the_end_is_refused(void **state) {
  (void)state;
  struct cursor_packet packet = packet_of(ROOM, "a", "{}");
  int64_t number;
  assert_int_equal(cursors_put(c, &packet, &number), CURSOR_CHECK);
  event(11, EVENT_SESSION_CLOSED, "a");
  struct stay before = live(1, 10), after = live(2, 12);
  assert_int_equal(cursors_checked(c, &packet, &before, &number), CURSOR_CHECK);
  expect("");
  assert_int_equal(cursors_checked(c, &packet, &after, &number), CURSOR_TAKEN);
  expect("a={} ");
}

static void test_an_end_takes_the_cursor_and_shuts_the_gate(void **state) {
  (void)state;
  const enum event_kind kinds[] = {EVENT_LEASE_EXPIRED, EVENT_SESSION_CLOSED, EVENT_MEMBERSHIP_REVOKED};
  for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
    struct stay stay = live((int64_t)i + 1, 10 + (int64_t)i);
    assert_int_equal(put(ROOM, "a", "{}", &stay), CURSOR_TAKEN);
    move("b", "{}");
    event(11 + (int64_t)i, kinds[i], "a");
    assert_int_equal(put(ROOM, "a", "{}", NULL), CURSOR_CHECK);
    expect("b={} ");
  }
}

static void test_other_events_end_nothing(void **state) {
  (void)state;
  move("a", "{}");
  event(11, EVENT_LEASE_RENEWED, "a");
  event(12, EVENT_LEASE_GRANTED, "a");
  event(13, EVENT_SESSION_CLOSED, "b");
  event(10, EVENT_SESSION_CLOSED, "a"); // the lease was seen live after that
  cursors_event(c, "other", 14, EVENT_SESSION_CLOSED, "{\"user_id\":\"u\",\"session_id\":\"a\"}");
  expect("a={} ");
}

static void test_a_revocation_without_a_session_ends_all_of_the_user(void **state) {
  (void)state;
  move("a", "{}");
  move("b", "{}");
  event(11, EVENT_MEMBERSHIP_REVOKED, NULL);
  expect("");
}

static void test_past_the_known_expiry_it_is_hidden(void **state) {
  (void)state;
  struct stay stay = live(1, 10);
  stay.expires_at_us = clock_db_us() + 20000;
  assert_int_equal(put(ROOM, "a", "{}", &stay), CURSOR_TAKEN);
  expect("a={} ");
  int64_t before = seq;
  nanosleep(&(struct timespec){.tv_nsec = 60000000}, NULL);
  expect("");
  assert_int_equal(put(ROOM, "a", "{}", NULL), CURSOR_CHECK);
  stay = live(1, 10);
  assert_int_equal(see(&stay), 1);
  expect("a={} ");
  expect_since(before, "a={} "); // for those who came while it was hidden
}

static void test_missed_events_hide_until_the_lease_was_seen(void **state) {
  (void)state;
  move("a", "{}");
  cursors_event(c, ROOM, 10, EVENT_KIND_COUNT, NULL);
  expect("a={} ");
  cursors_event(c, ROOM, 20, EVENT_KIND_COUNT, NULL);
  expect("");
  struct stay before = live(1, 19), after = live(1, 20);
  assert_int_equal(see(&before), 1);
  expect("");
  assert_int_equal(see(&after), 1);
  expect("a={} ");
  cursors_event(c, ROOM, INT64_MAX, EVENT_KIND_COUNT, NULL); // the past has changed
  expect("");
  before = live(1, 3);
  assert_int_equal(see(&before), 1);
  expect("a={} ");
}

static void test_a_new_epoch_forgets_all(void **state) {
  (void)state;
  move("a", "{}");
  expect("a={} ");
  int64_t before = seq;
  struct cursor_packet packet = packet_of(ROOM, "b", "{}");
  struct stay stay = live(1, 10);
  int64_t number;
  assert_int_equal(cursors_put(c, &packet, &number), CURSOR_CHECK);
  epoch_set("fedcba9876543210");
  expect_since(before, "!");
  assert_int_equal(cursors_checked(c, &packet, &stay, &number), CURSOR_CHECK);
  cursors_give_up(c, &packet.key);
}

static void test_caps(void **state) {
  (void)state;
  struct stay stay = live(1, 10);
  move("a", "{}");
  move("b", "{}");
  move("c", "{}");
  assert_int_equal(put(ROOM, "d", "{}", &stay), CURSOR_FULL);
  move("a", "{}");
  assert_int_equal(put("r2", "a", "{}", &stay), CURSOR_TAKEN);
  assert_int_equal(put("r2", "b", "{}", &stay), CURSOR_TAKEN);
  assert_int_equal(put("r2", "c", "{}", &stay), CURSOR_FULL);
  hear("e", 1, clock_db_us(), "{}");
  assert_int_equal(see(&stay), 0);
  event(11, EVENT_SESSION_CLOSED, "a");
  assert_int_equal(put("r2", "c", "{}", &stay), CURSOR_TAKEN);
}

// -- numbers -------------------------------------------------------------------------------------------------------

static void test_since(void **state) {
  (void)state;
  expect("");
  int64_t empty = seq;
  move("a", "{}");
  expect("a={} ");
  int64_t first = seq;
  assert_true(first > empty && first <= REVISION_MAX);
  expect_since(first, "?");
  expect_since(empty, "a={} ");
  move("b", "{}");
  move("a", "{\"n\":1}");
  expect_since(first, "b={} a={\"n\":1} ");
  expect_since(first + 1, "a={\"n\":1} ");
  expect_since(0, "b={} a={\"n\":1} ");
  expect_since(1, "b={} a={\"n\":1} !");
  expect_since(seq + 1, "b={} a={\"n\":1} !");
  expect_since(REVISION_MAX, "b={} a={\"n\":1} !");
}

static void test_gone(void **state) {
  (void)state;
  move("a", "{}");
  move("b", "{}");
  expect("a={} b={} ");
  int64_t before = seq;
  event(11, EVENT_SESSION_CLOSED, "a");
  expect_since(before, "-a ");
  int64_t after = seq;
  expect_since(after, "?");
  struct stay again = live(2, 12);
  assert_int_equal(put(ROOM, "a", "{}", &again), CURSOR_TAKEN);
  expect_since(before, "a={} ");
}

static void test_more_are_gone_than_are_remembered(void **state) {
  (void)state;
  move("b", "{}");
  expect("b={} ");
  int64_t before = seq;
  for (int64_t i = 0; i < 65; i++) {
    struct stay stay = live(i + 1, 10 + i);
    assert_int_equal(put(ROOM, "a", "{}", &stay), CURSOR_TAKEN);
    event(11 + i, EVENT_SESSION_CLOSED, "a");
  }
  expect_since(before, "b={} !");
}

static void test_wakes_are_folded(void **state) {
  (void)state;
  expect_since(0, "?");
  move("a", "{}");
  assert_int_equal(mailbox_deliver(&box), 1);
  assert_int_equal(woken, 1);
  expect_since(0, "a={} ");
  struct cursors_query query = {.room_id = ROOM, .has_since = true, .since = seq, .fresh = true};
  struct cursors_answer answer;
  move("a", "{}");
  // Inside the window: neither an answer nor a wake, but a time to look again.
  assert_false(cursors_look(c, 0, &query, &answer));
  body_unref(answer.body);
  assert_true(answer.not_before > clock_mono_us() && answer.not_before <= clock_mono_us() + CURSORS_WINDOW_US);
  move("a", "{}");
  assert_int_equal(mailbox_deliver(&box), 0);
  query.fresh = false;
  assert_true(cursors_look(c, 0, &query, &answer));
  body_unref(answer.body);
}

// -- other instances -----------------------------------------------------------------------------------------------

static void test_a_packet_is_shown_once_its_lease_was_seen(void **state) {
  (void)state;
  int64_t now_us = clock_db_us();
  struct stay stay = live(7, 10);
  hear("a", 7, now_us, "{\"n\":1}");
  expect("");
  assert_int_equal(see(&stay), 1);
  expect("a={\"n\":1} ");
  hear("a", 7, now_us + 1, "{\"n\":2}");
  expect("a={\"n\":2} ");
  hear("a", 7, now_us, "{\"n\":3}");     // overtaken
  hear("a", 6, now_us + 2, "{\"n\":4}"); // of an earlier stay
  hear("a", 7, now_us + MINUTE_US, "{\"n\":5}");
  expect("a={\"n\":2} ");
  struct stay ended = not_live(11);
  hear("b", 7, now_us, "{}");
  assert_int_equal(see(&ended), 1);
  expect("a={\"n\":2} ");
}

static void test_a_packet_of_a_later_stay_waits_for_the_lease(void **state) {
  (void)state;
  struct stay first = live(7, 10), second = live(8, 12);
  hear("a", 7, clock_db_us(), "{\"n\":1}");
  assert_int_equal(see(&first), 1);
  hear("a", 8, clock_db_us() + 1, "{\"n\":2}");
  hear("a", 7, clock_db_us() + 2, "{\"n\":3}");
  expect("");
  event(11, EVENT_SESSION_CLOSED, "a");
  assert_int_equal(see(&second), 1);
  expect("a={\"n\":2} ");
}

static void test_late_packets_bring_nothing_back(void **state) {
  (void)state;
  struct stay first = live(7, 10), second = live(8, 12), none = not_live(11);
  hear("a", 7, clock_db_us(), "{}");
  assert_int_equal(see(&first), 1);
  event(11, EVENT_LEASE_EXPIRED, "a");
  hear("a", 7, clock_db_us(), "{}");
  expect("");
  assert_int_equal(see(&none), 1);
  hear("a", 7, clock_db_us(), "{}");
  assert_int_equal(see(&second), 1); // a lease is there, but of another stay
  expect("");
}

static void test_a_read_that_failed_is_done_again(void **state) {
  (void)state;
  hear("a", 7, clock_db_us(), "{}");
  assert_int_equal(see(NULL), 1);
  expect("");
  assert_int_equal(see(NULL), 0); // not at once
  nanosleep(&(struct timespec){.tv_nsec = 350000000}, NULL);
  struct stay stay = live(7, 10);
  assert_int_equal(see(&stay), 1);
  expect("a={} ");
}

// Takes what is to be sent and returns "session=data" of each packet.
static void expect_sent(size_t max, const char *expected) {
  struct payloads payloads;
  struct buf seen = {0};
  buf_puts(&seen, "");
  size_t n = cursors_take_payloads(c, max, &payloads), found = 0;
  for (size_t i = 0; i < payloads.n; i++) {
    assert_true(strlen(payloads.list[i]) <= NOTIFY_PAYLOAD_MAX);
    json_t *payload = json_loads(payloads.list[i], 0, NULL), *item;
    size_t k;
    json_array_foreach(json_object_get(payload, "cursors"), k, item) {
      buf_printf(&seen, "%s=%s ", json_string_value(json_array_get(item, 2)),
                 json_string_value(json_array_get(item, 5)));
      found++;
    }
    json_decref(payload);
  }
  assert_int_equal(n, found);
  if (expected)
    assert_string_equal(seen.data, expected);
  buf_free(&seen);
  payloads_free(&payloads);
}

static void test_the_newest_of_each_is_sent_in_turn(void **state) {
  (void)state;
  move("a", "{\"n\":1}");
  move("b", "{\"n\":2}");
  move("a", "{\"n\":3}");
  move("c", "{\"n\":4}");
  expect_sent(0, "");
  expect_sent(1, "a={\"n\":3} ");
  move("a", "{\"n\":5}");
  expect_sent(2, "b={\"n\":2} c={\"n\":4} ");
  expect_sent(10, "a={\"n\":5} ");
  expect_sent(10, "");
  move("b", "{\"n\":6}");
  event(11, EVENT_SESSION_CLOSED, "b");
  expect_sent(10, "");
}

static void test_all_is_sent_again_when_asked(void **state) {
  (void)state;
  move("a", "{}");
  expect_sent(10, "a={} ");
  struct stay stay = live(7, 10);
  hear("b", 7, clock_db_us(), "{}");
  assert_int_equal(see(&stay), 1);
  assert_true(cursors_hear(c, "{\"epoch\":\"0123456789abcdef\",\"from\":\"another\",\"hello\":true,\"cursors\":[]}"));
  expect_sent(10, "a={} "); // what others posted is theirs to send
  cursors_send_failed(c);
  expect_sent(10, ""); // not at once
}

static void test_payloads_are_split(void **state) {
  (void)state;
  char data[CURSOR_DATA_MAX + 1] = "{\"x\":\"";
  memset(data + 6, '\\', CURSOR_DATA_MAX - 8);
  memcpy(data + CURSOR_DATA_MAX - 2, "\"}", 3);
  cursors_free(c);
  c = cursors_new(&(struct cursors_options){.room_max = 100, .total_max = 100});
  char session[IDENT_MAX + 1];
  for (int i = 0; i < 20; i++) {
    snprintf(session, sizeof session, "%03d", i);
    memset(session + 3, '"', IDENT_MAX - 3);
    session[IDENT_MAX] = '\0';
    move(session, data);
  }
  expect_sent(100, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_a_lease_is_asked_for_once),
      TEST(test_a_lease_is_believed_for_300_ms),
      TEST(test_a_read_that_took_too_long_is_done_again),
      TEST(test_the_belief_is_renewed_before_it_lapses),
      TEST(test_without_a_lease),
      TEST(test_what_was_read_before_the_end_is_refused),
      TEST(test_an_end_takes_the_cursor_and_shuts_the_gate),
      TEST(test_other_events_end_nothing),
      TEST(test_a_revocation_without_a_session_ends_all_of_the_user),
      TEST(test_past_the_known_expiry_it_is_hidden),
      TEST(test_missed_events_hide_until_the_lease_was_seen),
      TEST(test_a_new_epoch_forgets_all),
      TEST(test_caps),
      TEST(test_since),
      TEST(test_gone),
      TEST(test_more_are_gone_than_are_remembered),
      TEST(test_wakes_are_folded),
      TEST(test_a_packet_is_shown_once_its_lease_was_seen),
      TEST(test_a_packet_of_a_later_stay_waits_for_the_lease),
      TEST(test_late_packets_bring_nothing_back),
      TEST(test_a_read_that_failed_is_done_again),
      TEST(test_the_newest_of_each_is_sent_in_turn),
      TEST(test_all_is_sent_again_when_asked),
      TEST(test_payloads_are_split),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
