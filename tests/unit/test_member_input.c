// SPDX-License-Identifier: Apache-2.0
// The bodies of members and attendance: what is taken, what is refused, and that the refusal names the culprit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "http/member_input.h"

static void members(void **state) {
  (void)state;
  struct member_input in;
  struct input_problem problem;
  const char *body = "{\"role\":\"student\"}";
  assert_true(member_input_read(&in, body, strlen(body), &problem));
  assert_string_equal(in.role, "student");
  member_input_free(&in);
  assert_true(member_input_read(&in, "{}", 2, &problem));
  assert_null(in.role);
  member_input_free(&in);
  assert_true(member_input_read(&in, NULL, 0, &problem));
  assert_null(in.role);
  member_input_free(&in);
}

static void attendance(void **state) {
  (void)state;
  struct attendance_input in;
  struct input_problem problem;
  const char *body = "{\"user_id\":\"an\",\"action\":\"sign_out\",\"session_id\":\"tab-1\",\"note\":\"a\\nb\"}";
  assert_true(attendance_input_read(&in, body, strlen(body), &problem));
  assert_string_equal(in.user_id, "an");
  assert_string_equal(in.action, "sign_out");
  assert_string_equal(in.session_id, "tab-1");
  assert_string_equal(in.note, "a\nb");
  attendance_input_free(&in);
}

static const struct {
  const char *body, *code, *field;
} bad_members[] = {
    {" ", "bad_json", ""},
    {"null", "bad_json", ""},
    {"[]", "bad_json", ""},
    {"{}x", "bad_json", ""},
    {"{\"role\":\"a\",\"role\":\"b\"}", "bad_json", ""},
    {"{\"role\":\"a\",\"r\\u006fle\":\"b\"}", "bad_json", ""},
    {"{\"role\":\"\\u0000\"}", "bad_json", ""},
    {"{\"role\":null}", "bad_field", "role"},
    {"{\"role\":[\"x\"]}", "bad_field", "role"},
    {"{\"role\":\"a\\tb\"}", "bad_field", "role"},
    {"{\"role\":\"\\u007f\"}", "bad_field", "role"},
    {"{\"user_id\":\"an\"}", "unknown_field", "user_id"},
};

static const struct {
  const char *body, *code, *field;
} bad_attendance[] = {
    {"", "bad_json", ""},
    {"\"x\"", "bad_json", ""},
    {"{}", "missing_field", "user_id"},
    {"{\"user_id\":\"an\"}", "missing_field", "action"},
    {"{\"action\":\"sign_in\"}", "missing_field", "user_id"},
    {"{\"user_id\":\".\",\"action\":\"sign_in\"}", "bad_field", "user_id"},
    {"{\"user_id\":1,\"action\":\"sign_in\"}", "bad_field", "user_id"},
    {"{\"user_id\":\"an\",\"action\":\"signin\"}", "bad_field", "action"},
    {"{\"user_id\":\"an\",\"action\":true}", "bad_field", "action"},
    {"{\"user_id\":\"an\",\"action\":\"sign_in\",\"session_id\":\"\"}", "bad_field", "session_id"},
    {"{\"user_id\":\"an\",\"action\":\"sign_in\",\"note\":{}}", "bad_field", "note"},
    {"{\"user_id\":\"an\",\"action\":\"sign_in\",\"room_id\":\"r\"}", "unknown_field", "room_id"},
};

static void refusals(void **state) {
  (void)state;
  struct input_problem problem;
  for (size_t i = 0; i < sizeof bad_members / sizeof bad_members[0]; i++) {
    struct member_input in;
    assert_false(member_input_read(&in, bad_members[i].body, strlen(bad_members[i].body), &problem));
    assert_string_equal(problem.code, bad_members[i].code);
    assert_string_equal(problem.field, bad_members[i].field);
    member_input_free(&in);
  }
  for (size_t i = 0; i < sizeof bad_attendance / sizeof bad_attendance[0]; i++) {
    struct attendance_input in;
    assert_false(attendance_input_read(&in, bad_attendance[i].body, strlen(bad_attendance[i].body), &problem));
    assert_string_equal(problem.code, bad_attendance[i].code);
    assert_string_equal(problem.field, bad_attendance[i].field);
    attendance_input_free(&in);
  }
}

static void keys(void **state) {
  (void)state;
  char longest[130];
  memset(longest, 'x', sizeof longest);
  longest[129] = '\0';
  assert_false(idempotency_key_good(longest));
  longest[128] = '\0';
  assert_true(idempotency_key_good(longest));
  assert_true(idempotency_key_good("!~"));
  assert_false(idempotency_key_good(""));
  assert_false(idempotency_key_good("a b"));
  assert_false(idempotency_key_good("a\x7f"));
  assert_false(idempotency_key_good("\xc3\xa9"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(members),
      cmocka_unit_test(attendance),
      cmocka_unit_test(refusals),
      cmocka_unit_test(keys),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
