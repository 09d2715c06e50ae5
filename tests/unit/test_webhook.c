// SPDX-License-Identifier: Apache-2.0
// Webhooks: what may be reached, ids and signatures, what a reply means, and which events a target wants.
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/address.h"
#include "live/webhook.h"
#include "store/webhook.h"

static bool is_public(const char *text) {
  struct sockaddr_in in = {.sin_family = AF_INET};
  struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
  if (inet_pton(AF_INET, text, &in.sin_addr) == 1)
    return address_is_public((const struct sockaddr *)&in);
  assert_int_equal(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
  return address_is_public((const struct sockaddr *)&in6);
}

static void test_addresses(void **state) {
  (void)state;
  static const char *const closed[] = {
      "0.0.0.0",
      "0.1.2.3",
      "10.0.0.1",
      "100.64.0.1",
      "100.127.255.255",
      "127.0.0.1",
      "127.255.1.1",
      "169.254.169.254",
      "172.16.0.1",
      "172.31.9.9",
      "192.0.0.8",
      "192.0.2.1",
      "192.168.1.1",
      "198.18.0.1",
      "198.19.255.255",
      "198.51.100.7",
      "203.0.113.9",
      "224.0.0.1",
      "240.0.0.1",
      "255.255.255.255",
      "::",
      "::1",
      "::7f00:1",
      "::ffff:127.0.0.1",
      "::ffff:10.1.1.1",
      "64:ff9b::7f00:1",
      "2002:7f00:1::",
      "2002:a00:1::1",
      "fe80::1",
      "fec0::1",
      "fc00::1",
      "fd12::1",
      "ff02::1",
      "2001:db8::1",
      "2001::1",
      "100::1",
      "64:ff9b:1::1",
      "3fff::1",
  };
  static const char *const open[] = {
      "1.1.1.1",          "9.255.255.255",   "11.0.0.0",        "100.63.255.255",  "100.128.0.0", "126.1.1.1",
      "128.0.0.1",        "169.253.1.1",     "172.15.255.255",  "172.32.0.0",      "192.0.1.1",   "192.167.1.1",
      "198.17.1.1",       "198.20.0.0",      "223.255.255.255", "2606:4700::1111", "2a00::1",     "::ffff:1.1.1.1",
      "64:ff9b::101:101", "2002:101:101::1", "2001:4860::8888",
  };
  for (size_t i = 0; i < ARRAY_LEN(closed); i++) {
    if (is_public(closed[i]))
      fail_msg("%s is taken for public", closed[i]);
  }
  for (size_t i = 0; i < ARRAY_LEN(open); i++) {
    if (!is_public(open[i]))
      fail_msg("%s is not taken for public", open[i]);
  }
}

static void test_urls(void **state) {
  (void)state;
  static const char *const bad[] = {
      "",          "x",           "/x",          "file:///etc/passwd", "gopher://h/", "ftp://h/",
      "http://",   "http:///x",   "http://u@h/", "http://u:p@h/",      "http://h/#f", "https://h /",
      "dict://h/", "javascript:x"};
  static const char *const good[] = {"http://h", "https://h/x?y=z", "HTTPS://h:8443/", "http://[::1]:9/",
                                     "http://1.2.3.4"};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    if (webhook_url_problem(bad[i]) == NULL)
      fail_msg("%s is taken", bad[i]);
  }
  for (size_t i = 0; i < ARRAY_LEN(good); i++) {
    if (webhook_url_problem(good[i]) != NULL)
      fail_msg("%s is not taken", good[i]);
  }
}

static void test_id(void **state) {
  (void)state;
  struct buf id = {0}, body = {0};
  buf_puts(&body, "abc");
  webhook_id(&id, "0f:a.b/c \xc3\xa9%_-Z9:12", 1, &body);
  assert_string_equal(id.data, "0f:a%2Eb%2Fc%20%C3%A9%25_-Z9:12");
  buf_reset(&id);
  webhook_id(&id, "0f:a:12", 2, &body);
  assert_string_equal(id.data, "0f:a:12-ba7816bf8f01cfea");
  buf_free(&id);
  buf_free(&body);
}

// The example of the specification's own libraries.
static void test_signature(void **state) {
  (void)state;
  static const unsigned char key[] = {0x31, 0xf2, 0x90, 0xf6, 0xbf, 0x06, 0x29, 0x8a, 0xab, 0x4f, 0x08, 0xd4,
                                      0x3c, 0x3f, 0x08, 0x2c, 0xf6, 0x48, 0xa3, 0x62, 0xda, 0x2d, 0xa4, 0xb0};
  struct webhook_target target = {.n_secrets = 1, .secrets = {{.len = sizeof key}}};
  memcpy(target.secrets[0].bytes, key, sizeof key);
  struct buf body = {0}, one = {0}, two = {0};
  buf_puts(&body, "{\"test\": 2432232314}");
  webhook_sign(&one, &target, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, &body);
  assert_false(one.failed);
  assert_string_equal(one.data, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
  target.secrets[target.n_secrets++] = target.secrets[0];
  target.secrets[1].bytes[0] ^= 1;
  webhook_sign(&two, &target, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, &body);
  assert_int_equal(two.len, 2 * one.len + 1);
  assert_memory_equal(two.data, one.data, one.len);
  assert_memory_not_equal(two.data + one.len + 1, one.data, one.len);
  buf_free(&body);
  buf_free(&one);
  buf_free(&two);
}

static void test_verdicts(void **state) {
  (void)state;
  static const long again[] = {0, 100, 301, 302, 307, 408, 425, 429, 500, 503, 599};
  static const long refused[] = {400, 401, 404, 410, 422, 499};
  for (size_t i = 0; i < ARRAY_LEN(again); i++)
    assert_int_equal(webhook_judge(again[i]), WEBHOOK_AGAIN);
  for (size_t i = 0; i < ARRAY_LEN(refused); i++)
    assert_int_equal(webhook_judge(refused[i]), WEBHOOK_REFUSED);
  assert_int_equal(webhook_judge(200), WEBHOOK_OK);
  assert_int_equal(webhook_judge(204), WEBHOOK_OK);
}

static void test_pauses(void **state) {
  (void)state;
  for (int attempts = 0; attempts < 100; attempts++) {
    int64_t whole = attempts >= 12 ? 3600000 : INT64_C(1000) << attempts;
    whole = whole < 3600000 ? whole : 3600000;
    assert_in_range(webhook_pause_ms(attempts, 0), whole / 2, whole);
  }
  assert_int_equal(webhook_pause_ms(0, 7), 7000);
  assert_int_equal(webhook_pause_ms(0, INT64_MAX), 3600000);
}

static void test_wants(void **state) {
  (void)state;
  char *rooms[] = {(char *)(uintptr_t) "a", (char *)(uintptr_t) "b-*"};
  struct webhook_target t = {.kinds = 1u << EVENT_USER_ONLINE, .rooms = rooms, .n_rooms = 2};
  assert_true(webhook_target_wants(&t, "a", EVENT_USER_ONLINE));
  assert_true(webhook_target_wants(&t, "b-", EVENT_USER_ONLINE));
  assert_true(webhook_target_wants(&t, "b-x", EVENT_USER_ONLINE));
  assert_false(webhook_target_wants(&t, "ab", EVENT_USER_ONLINE));
  assert_false(webhook_target_wants(&t, "b", EVENT_USER_ONLINE));
  assert_false(webhook_target_wants(&t, "a", EVENT_USER_OFFLINE));
}

static void test_cursor(void **state) {
  (void)state;
  struct webhook_cursor c;
  assert_true(webhook_cursor_parse("t/a/b/12", &c));
  assert_string_equal(c.target, "t");
  assert_string_equal(c.room_id, "a/b");
  assert_int_equal(c.message, 12);
  static const char *const bad[] = {"", "t", "t/", "t/a", "t//1", "t/a/", "t/a/x", "t/a/-1"};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++)
    assert_false(webhook_cursor_parse(bad[i], &c));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_addresses), cmocka_unit_test(test_urls),     cmocka_unit_test(test_id),
      cmocka_unit_test(test_signature), cmocka_unit_test(test_verdicts), cmocka_unit_test(test_pauses),
      cmocka_unit_test(test_wants),     cmocka_unit_test(test_cursor),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
