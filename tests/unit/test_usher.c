// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "http/usher.h"

static const struct {
  const char *head;
  int may_wait;
} heads[] = {
    {"GET /rooms/class-7/presence?since=3 HTTP/1.1\r\nHost: x\r\n\r\n", 1},
    {"GET /rooms/a%2Fb/presence HTTP/1.1\r\n", 1},
    {"GET /rooms/class-7/cursors?since=0 HTTP/1.1\r\n", 1},
    {"GET /rooms/class-7/leases HTTP/1.1\r\n", 0},
    {"GET /rooms/class-7/present HTTP/1.1\r\n", 0},
    {"GET /rooms/class-7 HTTP/1.1\r\nX: /presence\r\n", 0},
    {"GET /rooms?prefix=a/presence HTTP/1.1\r\n", 0},
    {"GET / HTTP/1.1\r\n", 0},
    {"PUT /leases HTTP/1.1\r\n", 0},
    {"POST /rooms/class-7/cursors HTTP/1.1\r\n", 0},
    {"\x16\x03\x01\x02", 0},
};

/// Byte by byte: once the answer is known it stays, and it is known in the end.
static void test_beginnings(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
    size_t len = strlen(heads[i].head);
    int known = -1;
    for (size_t n = 1; n <= len; n++) {
      int said = usher_may_wait(heads[i].head, n);
      if (known >= 0 && said != known)
        fail_msg("\"%.*s\" is %d after %d", (int)n, heads[i].head, said, known);
      known = said;
    }
    if (known != heads[i].may_wait)
      fail_msg("\"%s\" is %d", heads[i].head, known);
  }
}

static void test_first_bytes(void **state) {
  (void)state;
  for (const char *c = "GgPZ09\r\n!~"; *c != '\0'; c++)
    assert_true(usher_may_begin(*c));
  static const char none[] = {'\0', '\x01', '\x16', '\x7f', '\x80', '\xff', ' ', '\t', '{', '"', '(', '/', ':', '<'};
  for (size_t i = 0; i < sizeof none; i++)
    assert_false(usher_may_begin(none[i]));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_beginnings), cmocka_unit_test(test_first_bytes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
