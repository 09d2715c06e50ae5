// SPDX-License-Identifier: Apache-2.0
// The length of the window, and the text of streams.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "base/sse.h"
#include "http/fold.h"
#include "live/events_text.h"

static void test_the_window_grows_with_the_watchers(void **state) {
  (void)state;
  for (int n = 0; n <= 10; n++)
    assert_int_equal(fanout_window_ms(n, 5000), 0);
  int64_t before = 0;
  for (int n = 11; n < 2000; n++) {
    int64_t ms = fanout_window_ms(n, 5000);
    assert_in_range(ms, before, 5000);
    assert_true(ms > 0);
    before = ms;
  }
  // A burst of a few seconds at 300 watchers is three or four windows.
  assert_in_range(fanout_window_ms(300, 5000), 2500, 3500);
  assert_int_equal(fanout_window_ms(1000000, 5000), 5000);
  assert_int_equal(fanout_window_ms(1000000, 100), 100);
  assert_int_equal(fanout_window_ms(INT64_MAX / 100, 5000), 5000);
}

static void check(struct buf *b, const char *text) {
  assert_false(b->failed);
  assert_string_equal(b->data, text);
  buf_free(b);
}

static void test_messages(void **state) {
  (void)state;
  struct buf b = {0};
  sse_message(&b, 7, "lease.granted", "{\"a\":1}", 7);
  sse_message(&b, -1, "session", "{}", 2);
  sse_message(&b, 0, NULL, "x", 1);
  sse_id(&b, 9);
  check(&b, "id: 7\nevent: lease.granted\ndata: {\"a\":1}\n\n"
            "event: session\ndata: {}\n\n"
            "id: 0\ndata: x\n\n"
            "id: 9\n\n");
}

static void test_events_as_a_reply_and_as_a_stream(void **state) {
  (void)state;
  for (int stream = 0; stream < 2; stream++) {
    struct events_text text = {.stream = stream};
    events_text_open(&text, "r", "e", 4, 8);
    events_text_add(&text, 5, EVENT_LEASE_GRANTED, "{\"revision\":5}");
    events_text_add(&text, 7, EVENT_SESSION_CLOSED, "{\"revision\":7}");
    events_text_close(&text, false);
    check(&text.out,
          stream ? "id: 5\nevent: lease.granted\ndata: {\"revision\":5}\n\n"
                   "id: 7\nevent: session.closed\ndata: {\"revision\":7}\n\n"
                   "id: 8\n\n"
                 : "{\"room_id\":\"r\",\"epoch\":\"e\",\"mode\":\"events\",\"from\":4,\"revision\":8,\"events\":["
                   "{\"revision\":5},{\"revision\":7}]");
  }
}

static void test_a_stream_names_no_revision_twice(void **state) {
  (void)state;
  struct events_text text = {.stream = true};
  events_text_open(&text, "r", "e", 4, 5);
  events_text_add(&text, 5, EVENT_LEASE_GRANTED, "{}");
  events_text_close(&text, true);
  check(&text.out, "id: 5\nevent: lease.granted\ndata: {}\n\n");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_window_grows_with_the_watchers),
      cmocka_unit_test(test_messages),
      cmocka_unit_test(test_events_as_a_reply_and_as_a_stream),
      cmocka_unit_test(test_a_stream_names_no_revision_twice),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
