// SPDX-License-Identifier: Apache-2.0
// API keys: lines, errors with their number, and finding a key by its hash.
#include <setjmp.h> // cmocka.h wants these four in front
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "auth/api_keys.h"
#include "auth_fixture.h"
#include "base/buf.h"
#include "base/util.h"

#define H1 "e7cf3ef4f17c3999a94f2c6f612e8a888e5b1026878e4e19398b23bd38ec221a" // of "Password"
#define H2 "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // of "abc"

static char error[CONFIG_ERROR_SIZE];

static struct api_keys *load(const char *text) {
  struct memory_file f = memory_text(text);
  struct api_keys *keys = api_keys_load(f.path, error);
  memory_close(&f);
  return keys;
}

static const struct credential *find(const struct api_keys *keys, const char *key) {
  unsigned char digest[SHA256_BYTES];
  assert_int_equal(gnutls_hash_fast(GNUTLS_DIG_SHA256, key, strlen(key), digest), 0);
  return api_keys_find(keys, digest);
}

static void expect_error(const char *text, int line, const char *word) {
  struct memory_file f = memory_text(text);
  struct api_keys *keys = api_keys_load(f.path, error);
  char where[80];
  (void)snprintf(where, sizeof where, "%s:%d: ", f.path, line);
  if (keys != NULL)
    fail_msg("was accepted: %s", text);
  if (strncmp(error, where, strlen(where)) != 0 || strstr(error, word) == NULL || strchr(error, '\n') != NULL)
    fail_msg("'%s' is not '%s…%s'", error, where, word);
  memory_close(&f);
}

static void test_file(void **state) {
  (void)state;
  struct api_keys *keys = load("# servers\n\n  \t\ndashboard " H1 " presence:read *\r\n"
                               "\tgw\t" H2 "  gateway,presence:read   class-*,lab\n#end");
  if (keys == NULL)
    fail_msg("%s", error);
  assert_int_equal(api_keys_count(keys), 2);
  const struct credential *c = find(keys, "Password");
  assert_non_null(c);
  assert_int_equal(c->kind, CREDENTIAL_API_KEY);
  assert_string_equal(c->name, "dashboard");
  assert_null(c->sub);
  assert_null(c->sid);
  assert_int_equal(c->scopes, SCOPE_READ);
  assert_int_equal(c->n_rooms, 1);
  assert_string_equal(c->rooms[0], "*");
  assert_true(c->expires_us == INT64_MAX);
  assert_false(credential_is_user(c, "dashboard")); // a name is not a user
  const struct credential *gw = find(keys, "abc");
  assert_non_null(gw);
  assert_string_equal(gw->name, "gw");
  assert_int_equal(gw->scopes, SCOPE_GATEWAY | SCOPE_READ);
  assert_int_equal(gw->n_rooms, 2);
  assert_true(credential_is_user(gw, "anybody"));
  assert_null(find(keys, "ab"));
  assert_null(find(keys, ""));
  assert_null(find(keys, H1)); // the hash is not the key
  api_keys_free(keys);
  assert_string_equal(c->name, "dashboard"); // given out, it lives on
  credential_unref(c);
  credential_unref(gw);
}

static void test_no_keys(void **state) {
  (void)state;
  static const char *const texts[] = {"", "\n\n", "# none\n"};
  for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
    struct api_keys *keys = load(texts[i]);
    assert_non_null(keys);
    assert_int_equal(api_keys_count(keys), 0);
    assert_null(find(keys, "abc"));
    api_keys_free(keys);
  }
  struct api_keys *keys = api_keys_load("", error);
  assert_non_null(keys);
  assert_int_equal(api_keys_count(keys), 0);
  api_keys_free(keys);
  api_keys_free(NULL);
}

static void test_capital_hex(void **state) {
  (void)state;
  struct api_keys *keys = load("a BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD admin *");
  assert_non_null(keys);
  const struct credential *c = find(keys, "abc");
  assert_non_null(c);
  credential_unref(c);
  api_keys_free(keys);
}

static void test_errors(void **state) {
  (void)state;
  expect_error("a " H1 " admin\n", 1, "four words");
  expect_error("a " H1 " admin * x\n", 1, "four words");
  expect_error("a " H1 " admin *  # mine\n", 1, "four words");
  expect_error("\n#\na\n", 3, "four words");
  expect_error("a e7cf admin *\n", 1, "64 hexadecimal");
  expect_error("a " H1 "0 admin *\n", 1, "64 hexadecimal");
  expect_error("a x7cf3ef4f17c3999a94f2c6f612e8a888e5b1026878e4e19398b23bd38ec221a admin *\n", 1, "64 hexadecimal");
  expect_error("a " H1 " admim *\n", 1, "scopes");
  expect_error("a " H1 " admin, *\n", 1, "scopes");
  expect_error("a " H1 " ,admin *\n", 1, "scopes");
  expect_error("a " H1 " Admin *\n", 1, "scopes");
  expect_error("a " H1 " admin a*b\n", 1, "rooms");
  expect_error("a " H1 " admin a,\n", 1, "rooms");
  expect_error("a " H1 " admin a,..\n", 1, "rooms");
  expect_error("a\xff " H1 " admin *\n", 1, "name");
  expect_error("a " H1 " admin *\na " H2 " admin *\n", 2, "this name");
  expect_error("a " H1 " admin *\nb " H1 " admin *\n", 2, "this hash");
  // A good line before a bad one does not count either, and nothing of a line is repeated.
  expect_error("a " H1 " admin *\nhunter2\n", 2, "four words");
  assert_null(strstr(error, "hunter2"));
  assert_null(api_keys_load("/nonexistent/keys", error));
  assert_non_null(strstr(error, "/nonexistent/keys: "));
  struct memory_file f = memory_file("a\0b", 3);
  assert_null(api_keys_load(f.path, error));
  assert_non_null(strstr(error, "text file"));
  memory_close(&f);
}

static void test_bounds(void **state) {
  (void)state;
  struct buf text = {0};
  for (int i = 0; i < 1000; i++)
    buf_printf(&text, "key-%d %064x presence:read *\n", i, (unsigned)i);
  struct api_keys *keys = load(text.data);
  assert_non_null(keys);
  assert_int_equal(api_keys_count(keys), 1000);
  unsigned char digest[SHA256_BYTES] = {0};
  digest[30] = 999 >> 8;
  digest[31] = 999 & 255;
  const struct credential *c = api_keys_find(keys, digest);
  assert_non_null(c);
  assert_string_equal(c->name, "key-999");
  credential_unref(c);
  api_keys_free(keys);
  buf_puts(&text, "one-more " H1 " presence:read *\n");
  expect_error(text.data, 1001, "more than 1000 keys");
  buf_reset(&text);
  buf_puts(&text, "a " H1 " admin r");
  for (int i = 1; i < 1000; i++)
    buf_puts(&text, ",r");
  keys = load(text.data);
  assert_non_null(keys);
  api_keys_free(keys);
  buf_puts(&text, ",r");
  expect_error(text.data, 1, "more than 1000 rooms");
  buf_free(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_file),   cmocka_unit_test(test_no_keys), cmocka_unit_test(test_capital_hex),
      cmocka_unit_test(test_errors), cmocka_unit_test(test_bounds),
  };
  return cmocka_run_group_tests_name("api_keys", tests, NULL, NULL);
}
