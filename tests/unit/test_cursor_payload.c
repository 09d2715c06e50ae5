// SPDX-License-Identifier: Apache-2.0
// What instances tell each other of cursors.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>
#include <string.h>

#include "live/cursor_payload.h"

static void collect(void *ctx, const struct cursor_packet *packet, int64_t stay_us) {
  buf_printf(ctx, "%s/%s/%s %" PRId64 " %" PRId64 " %.*s;", packet->key.room_id, packet->key.user_id,
             packet->key.session_id, stay_us, packet->at_us, (int)packet->len, packet->data);
}

static void test_a_payload_is_read_as_it_was_written(void **state) {
  (void)state;
  struct buf text = {0}, item = {0}, seen = {0};
  const struct cursor_packet packet = {
      .key = {"r\"", "\xC3\xA9", "s\\"}, .data = "{\"a\":\"\\n\"}", .len = 10, .at_us = 5};
  cursor_payload_open(&text, "e", "o", true);
  cursor_payload_item(&item, &packet, 3);
  buf_add(&text, item.data, item.len);
  cursor_payload_close(&text);
  struct cursor_payload in;
  assert_true(cursor_payload_parse(&in, text.data));
  assert_string_equal(in.epoch, "e");
  assert_string_equal(in.origin, "o");
  assert_true(in.hello);
  cursor_payload_each(&in, collect, &seen);
  assert_string_equal(seen.data, "r\"/\xC3\xA9/s\\ 3 5 {\"a\":\"\\n\"};");
  cursor_payload_free(&in);
  buf_free(&text);
  buf_free(&item);
  buf_free(&seen);
}

#define ITEM(text) "{\"epoch\":\"e\",\"from\":\"o\",\"cursors\":[[\"r\",\"u\",\"s\",1,1,\"{}\"]," text "]}"

static void test_malformed_payloads(void **state) {
  (void)state;
  const char *const bad[] = {
      "",
      "x",
      "[]",
      "null",
      "{}",
      "{\"epoch\":\"e\",\"from\":\"o\"}",
      "{\"epoch\":7,\"from\":\"o\",\"cursors\":[]}",
      "{\"epoch\":\"e\",\"cursors\":[]}",
      "{\"epoch\":\"e\",\"from\":\"o\",\"cursors\":{}}",
      "{\"epoch\":\"e\",\"epoch\":\"e\",\"from\":\"o\",\"cursors\":[]}",
      "{\"epoch\":\"\xff\",\"from\":\"o\",\"cursors\":[]}",
      ITEM("7"),
      ITEM("[]"),
      ITEM("[\"r\",\"u\",\"s\",1,1]"),
      ITEM("[\"r\",\"u\",\"s\",1,1,\"{}\",1]"),
      ITEM("[\"\",\"u\",\"s\",1,1,\"{}\"]"),
      ITEM("[\"r\",\"..\",\"s\",1,1,\"{}\"]"),
      ITEM("[\"r\",\"u\",\"a\\u0007\",1,1,\"{}\"]"),
      ITEM("[\"r\",\"u\",\"s\",0,1,\"{}\"]"),
      ITEM("[\"r\",\"u\",\"s\",1,9007199254740992,\"{}\"]"),
      ITEM("[\"r\",\"u\",\"s\",1.5,1,\"{}\"]"),
      ITEM("[\"r\",\"u\",\"s\",1,1,{}]"),
      ITEM("[\"r\",\"u\",\"s\",1,1,\"\"]"),
      ITEM("[\"r\",\"u\",\"s\",1,1,\"[]\"]"),
      ITEM("[\"r\",\"u\",\"s\",1,1,\"{}x\"]"),
      ITEM("[\"r\",\"u\",\"s\",1,1,\"{\\n}\"]"),
      ITEM("[\"r\",\"u\",\"s\",1,1,\"{\\\"a\\\":1,\\\"a\\\":2}\"]"),
  };
  struct cursor_payload in;
  for (size_t i = 0; i < ARRAY_LEN(bad); i++)
    assert_false(cursor_payload_parse(&in, bad[i]));
}

static void test_data_may_not_be_too_long(void **state) {
  (void)state;
  char spaces[CURSOR_DATA_MAX + 2];
  for (size_t len = CURSOR_DATA_MAX; len <= CURSOR_DATA_MAX + 1; len++) {
    memset(spaces, ' ', len);
    memcpy(spaces, "{", 1);
    spaces[len - 1] = '}';
    spaces[len] = '\0';
    struct buf text = {0};
    buf_printf(&text, "{\"epoch\":\"e\",\"from\":\"o\",\"cursors\":[[\"r\",\"u\",\"s\",1,1,\"%s\"]]}", spaces);
    struct cursor_payload in;
    assert_int_equal(cursor_payload_parse(&in, text.data), len <= CURSOR_DATA_MAX);
    if (len <= CURSOR_DATA_MAX)
      cursor_payload_free(&in);
    buf_free(&text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_payload_is_read_as_it_was_written),
      cmocka_unit_test(test_malformed_payloads),
      cmocka_unit_test(test_data_may_not_be_too_long),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
