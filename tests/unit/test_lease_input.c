// SPDX-License-Identifier: Apache-2.0
// The body of PUT /leases: what is taken, what is refused, and that the refusal names the culprit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/util.h"
#include "http/lease_input.h"

#define BATCH_MAX 30

static const struct config config = {
    .ttl_default_ms = 90000, .ttl_min_ms = 5000, .ttl_max_ms = 3600000, .max_batch_leases = BATCH_MAX};

static bool parse(struct lease_input *in, const char *body, struct input_problem *problem) {
  return lease_input_read(in, body, strlen(body), &config, "req-1", problem);
}

static void whole_lease(void **state) {
  (void)state;
  struct lease_input in;
  struct input_problem problem;
  assert_true(parse(&in,
                    "{\"room_id\":\"class-7\",\"user_id\":\"an\",\"session_id\":\"tab-1\",\"revision\":42,"
                    "\"ttl_ms\":60000,\"meta\":{\"b\":1.1,\"a\":[true,null]},"
                    "\"client_time\":\"2026-11-30T15:00:00.000Z\"}",
                    &problem));
  assert_false(in.batch);
  assert_int_equal(in.n, 1);
  const struct op *op = &in.items[0].op;
  assert_string_equal(op->key.room_id, "class-7");
  assert_string_equal(op->key.user_id, "an");
  assert_string_equal(op->key.session_id, "tab-1");
  assert_true(op->revision_given);
  assert_int_equal(op->revision, 42);
  assert_int_equal(op->ttl_ms, 60000);
  assert_string_equal(op->meta, "{\"a\":[true,null],\"b\":1.1}");
  assert_string_equal(op->client_time, "2026-11-30T15:00:00.000Z");
  assert_string_equal(op->request_id, "req-1");
  lease_input_free(&in);
}

static void defaults(void **state) {
  (void)state;
  struct lease_input in;
  struct input_problem problem;
  assert_true(parse(&in, "{\"room_id\":\"r\",\"user_id\":\"u\",\"session_id\":\"s\"}", &problem));
  assert_false(in.items[0].op.revision_given);
  assert_int_equal(in.items[0].op.ttl_ms, 90000);
  assert_null(in.items[0].op.meta);
  lease_input_free(&in);
}

#define WITH(member) "{\"room_id\":\"r\",\"user_id\":\"u\",\"session_id\":\"s\"," member "}"

static const struct {
  const char *body, *code, *field;
} refusals[] = {
    {"", "bad_json", ""},
    {"[]", "bad_json", ""},
    {"\"x\"", "bad_json", ""},
    {"5", "bad_json", ""},
    {"null", "bad_json", ""},
    {"{}{}", "bad_json", ""},
    {"{\"room_id\":\"r\",}", "bad_json", ""},
    {"{'room_id':'r'}", "bad_json", ""},
    {"\xef\xbb\xbf{}", "bad_json", ""},
    {WITH("\"revision\":1,\"revision\":2"), "bad_json", ""},
    {WITH("\"revision\":1,\"\\u0072evision\":2"), "bad_json", ""},
    {WITH("\"revision\":NaN"), "bad_json", ""},
    {WITH("\"revision\":9223372036854775808"), "bad_json", ""},
    {WITH("\"meta\":{\"a\":\"\\u0000\"}"), "bad_json", ""},
    {WITH("\"meta\":{\"a\":\"\\ud800\"}"), "bad_json", ""},
    {WITH("\"meta\":{\"a\":\"\xff\"}"), "bad_json", ""},
    {WITH("\"meta\":{\"a\":1e400}"), "bad_json", ""},
    {"{}", "missing_field", "room_id"},
    {"{\"room_id\":\"r\"}", "missing_field", "user_id"},
    {"{\"room_id\":\"r\",\"user_id\":\"u\"}", "missing_field", "session_id"},
    {"{\"room_id\":5}", "bad_field", "room_id"},
    {"{\"room_id\":null}", "bad_field", "room_id"},
    {"{\"room_id\":[]}", "bad_field", "room_id"},
    {"{\"room_id\":\"\"}", "bad_field", "room_id"},
    {"{\"room_id\":\".\"}", "bad_field", "room_id"},
    {"{\"user_id\":\"..\"}", "bad_field", "user_id"},
    {"{\"session_id\":\"a\\u001fb\"}", "bad_field", "session_id"},
    {"{\"session_id\":\"a\\u007fb\"}", "bad_field", "session_id"},
    {WITH("\"revision\":0"), "bad_field", "revision"},
    {WITH("\"revision\":-1"), "bad_field", "revision"},
    {WITH("\"revision\":-0"), "bad_field", "revision"},
    {WITH("\"revision\":1.0"), "bad_field", "revision"},
    {WITH("\"revision\":1e3"), "bad_field", "revision"},
    {WITH("\"revision\":\"1\""), "bad_field", "revision"},
    {WITH("\"revision\":true"), "bad_field", "revision"},
    {WITH("\"revision\":null"), "bad_field", "revision"},
    {WITH("\"revision\":9007199254740992"), "bad_field", "revision"},
    {WITH("\"ttl_ms\":0"), "bad_field", "ttl_ms"},
    {WITH("\"ttl_ms\":4999"), "bad_field", "ttl_ms"},
    {WITH("\"ttl_ms\":3600001"), "bad_field", "ttl_ms"},
    {WITH("\"ttl_ms\":2147483648"), "bad_field", "ttl_ms"},
    {WITH("\"ttl_ms\":9223372036854775807"), "bad_field", "ttl_ms"},
    {WITH("\"ttl_ms\":1.5"), "bad_field", "ttl_ms"},
    {WITH("\"ttl_ms\":\"15000\""), "bad_field", "ttl_ms"},
    {WITH("\"meta\":[]"), "bad_field", "meta"},
    {WITH("\"meta\":\"x\""), "bad_field", "meta"},
    {WITH("\"meta\":null"), "bad_field", "meta"},
    {WITH("\"client_time\":5"), "bad_field", "client_time"},
    {WITH("\"client_time\":\"yesterday\""), "bad_field", "client_time"},
    {WITH("\"revison\":1"), "unknown_field", "revison"},
    {WITH("\"last_seen\":\"2099-01-01T00:00:00Z\""), "unknown_field", "last_seen"},
    {"{\"leases\":{}}", "bad_field", "leases"},
    {"{\"leases\":[],\"room_id\":\"r\"}", "unknown_field", "room_id"},
};

static void refused(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
    struct lease_input in;
    struct input_problem problem = {0};
    if (parse(&in, refusals[i].body, &problem)) {
      fail_msg("taken: %s", refusals[i].body);
    }
    if (strcmp(problem.code, refusals[i].code) != 0 || strcmp(problem.field, refusals[i].field) != 0) {
      fail_msg("%s: got %s naming \"%s\" (%s)", refusals[i].body, problem.code, problem.field, problem.detail);
    }
    if (problem.field[0] != '\0') {
      assert_non_null(strstr(problem.detail, problem.field));
    }
    lease_input_free(&in);
  }
}

/// A meta of @a depth nested objects, the outer one included.
static json_t *nested(int depth) {
  json_t *value = json_object();
  for (int i = 1; i < depth; i++) {
    json_t *outer = json_object();
    json_object_set_new(outer, "a", value);
    value = outer;
  }
  return value;
}

static void meta_bounds(void **state) {
  (void)state;
  struct input_problem problem;
  json_t *meta = nested(INPUT_DEPTH_MAX);
  char *text = meta_canonical(meta, &problem);
  assert_non_null(text);
  free(text);
  json_decref(meta);
  meta = nested(INPUT_DEPTH_MAX + 1);
  assert_null(meta_canonical(meta, &problem));
  json_decref(meta);

  // {"a":"xx…"} is 8 bytes and the string.
  char fill[META_MAX];
  memset(fill, 'x', sizeof fill);
  meta = json_object();
  json_object_set_new(meta, "a", json_stringn(fill, META_MAX - 8));
  text = meta_canonical(meta, &problem);
  assert_non_null(text);
  assert_int_equal(strlen(text), META_MAX);
  free(text);
  json_object_set_new(meta, "a", json_stringn(fill, META_MAX - 7));
  assert_null(meta_canonical(meta, &problem));
  json_decref(meta);
}

static void meta_numbers(void **state) {
  (void)state;
  static const struct {
    const char *in, *out;
  } numbers[] = {
      {"{\"x\":1.1}", "{\"x\":1.1}"},
      {"{\"x\":0.1}", "{\"x\":0.1}"},
      {"{\"x\":9007199254740993}", "{\"x\":9007199254740993}"},
      {"{\"x\":0.30000000000000004}", "{\"x\":0.30000000000000004}"},
      {"{\"x\":-1.5e-7}", "{\"x\":-1.5e-7}"},
  };
  for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
    struct input_problem problem;
    json_t *meta = json_loads(numbers[i].in, 0, NULL);
    assert_non_null(meta);
    char *text = meta_canonical(meta, &problem);
    assert_string_equal(text, numbers[i].out);
    free(text);
    json_decref(meta);
  }
}

static void batch_items_fail_alone(void **state) {
  (void)state;
  struct lease_input in;
  struct input_problem problem;
  assert_true(
      parse(&in,
            "{\"leases\":[{\"room_id\":\"r\",\"user_id\":\"u\",\"session_id\":\"s\"},7,"
            "{\"room_id\":\"r\",\"user_id\":\"u\"},{\"room_id\":\"r\",\"user_id\":\"v\",\"session_id\":\"s\"}]}",
            &problem));
  assert_true(in.batch);
  assert_int_equal(in.n, 4);
  assert_true(in.items[0].ok);
  assert_false(in.items[1].ok);
  assert_false(in.items[2].ok);
  assert_string_equal(in.items[2].problem.field, "session_id");
  assert_true(in.items[3].ok);
  lease_input_free(&in);
}

static void batch_size(void **state) {
  (void)state;
  for (int n = BATCH_MAX; n <= BATCH_MAX + 1; n++) {
    struct buf b = {0};
    buf_puts(&b, "{\"leases\":[");
    for (int i = 0; i < n; i++) {
      buf_puts(&b, i > 0 ? ",{}" : "{}");
    }
    buf_puts(&b, "]}");
    struct lease_input in;
    struct input_problem problem;
    assert_int_equal(parse(&in, b.data, &problem), n == BATCH_MAX);
    lease_input_free(&in);
    buf_free(&b);
  }
}

static void hostile_nesting(void **state) {
  (void)state;
  size_t n = 100000;
  char *body = malloc(n + 1);
  assert_non_null(body);
  memset(body, '[', n);
  body[n] = '\0';
  struct lease_input in;
  struct input_problem problem;
  assert_false(parse(&in, body, &problem));
  assert_string_equal(problem.code, "bad_json");
  lease_input_free(&in);
  free(body);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(whole_lease), cmocka_unit_test(defaults),        cmocka_unit_test(refused),
      cmocka_unit_test(meta_bounds), cmocka_unit_test(meta_numbers),    cmocka_unit_test(batch_items_fail_alone),
      cmocka_unit_test(batch_size),  cmocka_unit_test(hostile_nesting),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
