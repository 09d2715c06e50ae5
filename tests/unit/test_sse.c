// SPDX-License-Identifier: Apache-2.0
// Server-sent events as text, and JSON from elsewhere that goes into them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/jsonout.h"
#include "base/sse.h"

static void check_message(const char *data, const char *expected) {
  struct buf out = {0};
  sse_message(&out, 7, "kind", data, strlen(data));
  assert_false(out.failed);
  assert_string_equal(out.data, expected);
  buf_free(&out);
}

static void test_a_message(void **state) {
  (void)state;
  check_message("{\"a\":1}", "id: 7\nevent: kind\ndata: {\"a\":1}\n\n");
  check_message("", "id: 7\nevent: kind\ndata: \n\n");
}

static void test_no_line_break_ends_a_message(void **state) {
  (void)state;
  check_message("a\nb", "id: 7\nevent: kind\ndata: a\ndata: b\n\n");
  check_message("a\n\nb", "id: 7\nevent: kind\ndata: a\ndata: \ndata: b\n\n");
  check_message("a\rb", "id: 7\nevent: kind\ndata: a\ndata: b\n\n");
  check_message("a\r\nb", "id: 7\nevent: kind\ndata: a\ndata: b\n\n");
  check_message("a\n\rb", "id: 7\nevent: kind\ndata: a\ndata: \ndata: b\n\n");
  check_message("a\r\r\n\nb\n", "id: 7\nevent: kind\ndata: a\ndata: \ndata: \ndata: b\ndata: \n\n");
  check_message("\r", "id: 7\nevent: kind\ndata: \ndata: \n\n");
}

static void test_an_id_alone(void **state) {
  (void)state;
  struct buf out = {0};
  sse_id(&out, 9);
  assert_string_equal(out.data, "id: 9\n\n");
  buf_free(&out);
}

static void check_raw(const char *json, const char *expected) {
  struct buf out = {0};
  jo_object(&out);
  jo_key(&out, "meta");
  jo_raw(&out, json, strlen(json));
  jo_object_end(&out);
  assert_string_equal(out.data, expected);
  buf_free(&out);
}

static void test_json_from_elsewhere_is_one_line(void **state) {
  (void)state;
  check_raw("{\"a\": 1}", "{\"meta\":{\"a\": 1}}");
  check_raw("{\"a\":\n\n1}", "{\"meta\":{\"a\":  1}}");
  check_raw("\r\n{\"a\\n\"\r:\t1}\n", "{\"meta\":  {\"a\\n\" :\t1} }");
}

/// Only what is added is looked at: the line breaks between messages stay.
static void test_what_stood_before_stays(void **state) {
  (void)state;
  struct buf out = {0};
  sse_open(&out, 1, NULL);
  buf_puts(&out, "[");
  jo_raw(&out, "{\n}", 3);
  jo_raw(&out, "\n2", 2);
  jo_raw(&out, "", 0);
  assert_string_equal(out.data, "id: 1\ndata: [{ }, 2,");
  buf_free(&out);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_message),
      cmocka_unit_test(test_no_line_break_ends_a_message),
      cmocka_unit_test(test_an_id_alone),
      cmocka_unit_test(test_json_from_elsewhere_is_one_line),
      cmocka_unit_test(test_what_stood_before_stays),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
