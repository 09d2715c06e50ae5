// SPDX-License-Identifier: Apache-2.0
// How an event reads as JSON.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>

#include "store/event_json.h"

static void check(const struct event_columns *columns, const char *expected) {
  struct buf out = {0};
  event_json(&out, columns);
  assert_false(out.failed);
  assert_string_equal(out.data, expected);
  buf_free(&out);
}

static void test_all_columns(void **state) {
  (void)state;
  check(&(struct event_columns){.event_id = "6f1c:class-7:18",
                                .revision = 18,
                                .kind = EVENT_LEASE_EXPIRED,
                                .at_us = INT64_C(1796050800123456),
                                .user_id = "an",
                                .session_id = "tab-1",
                                .lease_revision = 42,
                                .user_sessions = 0,
                                .request_id = "r-1",
                                .overdue_ms = 412},
        "{\"event_id\":\"6f1c:class-7:18\",\"revision\":18,\"kind\":\"lease.expired\","
        "\"at\":\"2026-11-30T15:00:00.123Z\",\"user_id\":\"an\",\"session_id\":\"tab-1\",\"lease_revision\":42,"
        "\"user_sessions\":0,\"request_id\":\"r-1\",\"overdue_ms\":412}");
}

static void test_nulls_are_left_out(void **state) {
  (void)state;
  check(&(struct event_columns){.event_id = "e",
                                .revision = 1,
                                .kind = EVENT_MEMBERSHIP_REVOKED,
                                .user_id = "an",
                                .lease_revision = INT64_MIN,
                                .user_sessions = 0,
                                .overdue_ms = INT64_MIN},
        "{\"event_id\":\"e\",\"revision\":1,\"kind\":\"membership.revoked\",\"at\":\"1970-01-01T00:00:00.000Z\","
        "\"user_id\":\"an\",\"user_sessions\":0}");
}

static void test_meta_of_a_grant(void **state) {
  (void)state;
  struct event_columns e = {.event_id = "e",
                            .revision = 1,
                            .kind = EVENT_LEASE_GRANTED,
                            .user_id = "a\"n",
                            .session_id = "s",
                            .lease_revision = 1,
                            .user_sessions = 1,
                            .overdue_ms = INT64_MIN,
                            .meta = "{\"a\":[1,2]}"};
  check(&e, "{\"event_id\":\"e\",\"revision\":1,\"kind\":\"lease.granted\",\"at\":\"1970-01-01T00:00:00.000Z\","
            "\"user_id\":\"a\\\"n\",\"session_id\":\"s\",\"lease_revision\":1,\"user_sessions\":1,"
            "\"meta\":{\"a\":[1,2]}}");
  e.kind = EVENT_LEASE_RENEWED;
  e.meta = NULL;
  check(&e, "{\"event_id\":\"e\",\"revision\":1,\"kind\":\"lease.renewed\",\"at\":\"1970-01-01T00:00:00.000Z\","
            "\"user_id\":\"a\\\"n\",\"session_id\":\"s\",\"lease_revision\":1,\"user_sessions\":1,\"meta\":{}}");
  e.kind = EVENT_SESSION_CLOSED;
  e.meta = "{\"never\":\"shown\"}";
  check(&e, "{\"event_id\":\"e\",\"revision\":1,\"kind\":\"session.closed\",\"at\":\"1970-01-01T00:00:00.000Z\","
            "\"user_id\":\"a\\\"n\",\"session_id\":\"s\",\"lease_revision\":1,\"user_sessions\":1}");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_columns),
      cmocka_unit_test(test_nulls_are_left_out),
      cmocka_unit_test(test_meta_of_a_grant),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
