// SPDX-License-Identifier: Apache-2.0
// Attendance as text: JSON, and CSV that no spreadsheet runs.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "store/attendance.h"

static const struct attendance whole = {.id = 42,
                                        .room_id = "class-7",
                                        .user_id = "an",
                                        .session_id = "tab-1",
                                        .action = "sign_in",
                                        .note = "in \"time\"",
                                        .key = "k,1",
                                        .request_id = "r-1",
                                        .by = "office",
                                        .at_us = INT64_C(1796050800123000)};

static const struct attendance bare = {.id = 1, .room_id = "r", .user_id = "u", .action = "sign_out"};

static void as_json(void **state) {
  (void)state;
  struct buf b = {0};
  attendance_json(&b, &whole);
  assert_string_equal(b.data, "{\"id\":42,\"room_id\":\"class-7\",\"user_id\":\"an\",\"session_id\":\"tab-1\","
                              "\"action\":\"sign_in\",\"note\":\"in \\\"time\\\"\",\"idempotency_key\":\"k,1\","
                              "\"request_id\":\"r-1\",\"by\":\"office\",\"at\":\"2026-11-30T15:00:00.123Z\"}");
  buf_reset(&b);
  attendance_json(&b, &bare);
  assert_string_equal(b.data, "{\"id\":1,\"room_id\":\"r\",\"user_id\":\"u\",\"session_id\":null,"
                              "\"action\":\"sign_out\",\"note\":null,\"idempotency_key\":null,"
                              "\"request_id\":null,\"by\":null,\"at\":\"1970-01-01T00:00:00.000Z\"}");
  buf_free(&b);
}

static void as_csv(void **state) {
  (void)state;
  struct buf b = {0};
  attendance_csv_head(&b);
  attendance_csv(&b, &whole);
  attendance_csv(&b, &bare);
  assert_string_equal(b.data,
                      "id,room_id,user_id,session_id,action,note,idempotency_key,request_id,by,at\r\n"
                      "42,\"class-7\",\"an\",\"tab-1\",\"sign_in\",\"in \"\"time\"\"\",\"k,1\",\"r-1\",\"office\","
                      "2026-11-30T15:00:00.123Z\r\n"
                      "1,\"r\",\"u\",,\"sign_out\",,,,,1970-01-01T00:00:00.000Z\r\n");
  buf_free(&b);
}

static void formulas(void **state) {
  (void)state;
  static const struct {
    const char *note, *cell;
  } cases[] = {
      {"", ""},
      {"a=1", "a=1"},
      {"=1", "'=1"},
      {"+1", "'+1"},
      {"-1", "'-1"},
      {"@x", "'@x"},
      {"=a,b", "'=a,b"},
      {"=\"x\"", "'=\"\"x\"\""},
      {"  =1", "'  =1"},
      {"\t=1", "'\t=1"},
      {"\r=1", "'\r=1"},
      {"\n=1", "'\n=1"},
      {" \t=1", "' \t=1"},
      {"\x0b=1", "'\x0b=1"},
      {"\u00a0=1", "'\u00a0=1"},
      {"\u3000=1", "'\u3000=1"},
      {"\u200b=1", "'\u200b=1"},
      {"\ufeff=1", "'\ufeff=1"},
      {"\uff1d1+1", "'\uff1d1+1"},
      {"\u00e9=1", "\u00e9=1"},
      {"x;=1", "x;=1"},
      {"'=1", "'=1"},
      {" ", " "},
      {"x ", "x "},
      {"a\nb", "a\nb"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct attendance row = bare;
    row.note = cases[i].note;
    struct buf b = {0}, expected = {0};
    attendance_csv(&b, &row);
    buf_printf(&expected, "1,\"r\",\"u\",,\"sign_out\",\"%s\",,,,1970-01-01T00:00:00.000Z\r\n", cases[i].cell);
    assert_string_equal(b.data, expected.data);
    buf_free(&b);
    buf_free(&expected);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(as_json),
      cmocka_unit_test(as_csv),
      cmocka_unit_test(formulas),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
