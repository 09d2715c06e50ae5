// SPDX-License-Identifier: Apache-2.0
// What a notification's payload may be.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "live/listener.h"
#include "store/notify.h"

static void note(void *ctx, const char *room_id, int64_t revision) {
  buf_printf(ctx, "%s=%" PRId64 ";", room_id, revision);
}

static void check(const char *payload, bool good, const char *calls) {
  struct buf seen = {0};
  buf_puts(&seen, "");
  assert_int_equal(notification_parse(payload, note, &seen), good);
  assert_string_equal(seen.data, calls);
  buf_free(&seen);
}

static void test_good(void **state) {
  (void)state;
  check("[]", true, "");
  check("[\"class-7\",17]", true, "class-7=17;");
  check("[\"a\",0,\"b\",9007199254740991]", true, "a=0;b=9007199254740991;");
  check("[\"\\u00e9\\\"\",3]", true, "\xC3\xA9\"=3;");
}

static void test_malformed_calls_nothing(void **state) {
  (void)state;
  const char *const bad[] = {"",
                             "x",
                             "{}",
                             "\"a\"",
                             "17",
                             "null",
                             "[\"a\"]",
                             "[17,\"a\"]",
                             "[\"a\",\"17\"]",
                             "[\"a\",1.0]",
                             "[\"a\",-1]",
                             "[\"a\",9007199254740992]",
                             "[\"a\",9223372036854775808]",
                             "[\"\",1]",
                             "[null,1]",
                             "[\"a\\u0000b\",1]",
                             "[\"a\",1",
                             "[\"a\",1]x",
                             "[\"good\",1,\"bad\",null]",
                             "[\"good\",1,\"alone\"]"};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++)
    check(bad[i], false, "");
}

static void test_too_long_an_identifier(void **state) {
  (void)state;
  char payload[IDENT_MAX + 16];
  snprintf(payload, sizeof payload, "[\"%0*d\",1]", IDENT_MAX + 1, 0);
  check(payload, false, "");
}

static void test_reads_what_the_writer_sends(void **state) {
  (void)state;
  const struct room_head heads[] = {{"a", 1}, {"b \"\\ c", 2}, {"\xF0\x9F\x98\x80", 3}};
  struct payloads payloads;
  assert_true(payloads_make(&payloads, heads, ARRAY_LEN(heads)));
  assert_int_equal(payloads.n, 1);
  check(payloads.list[0], true, "a=1;b \"\\ c=2;\xF0\x9F\x98\x80=3;");
  payloads_free(&payloads);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_good),
      cmocka_unit_test(test_malformed_calls_nothing),
      cmocka_unit_test(test_too_long_an_identifier),
      cmocka_unit_test(test_reads_what_the_writer_sends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
