// SPDX-License-Identifier: Apache-2.0
// A beginning compressed once and an end of one's own are one gzip member, as zlib reads it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/body.h"
#include "base/gzip.h"

/// Reads exactly one member that ends with the last byte, and checks its content; zlib checks CRC and length.
static void check_member(const struct buf *packed, const char *plain, size_t len) {
  z_stream z = {.next_in = (Bytef *)packed->data, .avail_in = (uInt)packed->len};
  char *out = malloc(len + 1);
  assert_non_null(out);
  z.next_out = (Bytef *)out;
  z.avail_out = (uInt)len + 1;
  assert_int_equal(inflateInit2(&z, MAX_WBITS + 16), Z_OK); // gzip only
  assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
  assert_int_equal(z.avail_in, 0);
  assert_int_equal(z.total_out, len);
  assert_memory_equal(out, plain, len);
  inflateEnd(&z);
  free(out);
}

static char *some_text(size_t len) {
  char *text = malloc(len + 1);
  assert_non_null(text);
  for (size_t i = 0; i < len; i++)
    text[i] = (char)(i % 7 == 0 ? i * 2654435761u >> 13 : 'a' + i % 11);
  text[len] = '\0';
  return text;
}

static void test_start_and_end(void **state) {
  (void)state;
  static const size_t starts[] = {0, 1, 100, 1025, 70000, 1000000};
  static const size_t ends[] = {0, 1, 80, 65534, 65535, 65536, 131070, 200000};
  static const int levels[] = {GZIP_ONCE, GZIP_SHARED};
  for (size_t l = 0; l < 2; l++) {
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
      for (size_t j = 0; j < sizeof ends / sizeof *ends; j++) {
        size_t len = starts[i] + ends[j];
        char *text = some_text(len);
        struct gzip_start *start = gzip_begin(text, starts[i], levels[l]);
        assert_non_null(start);
        struct buf packed = {0};
        buf_add(&packed, start->data, start->len);
        gzip_end(start, text + starts[i], ends[j], &packed);
        assert_false(packed.failed);
        check_member(&packed, text, len);
        buf_free(&packed);
        free(start);
        free(text);
      }
    }
  }
}

static void test_it_compresses(void **state) {
  (void)state;
  struct buf text = {0};
  for (int i = 0; i < 500; i++)
    buf_printf(&text, "{\"event_id\":\"6f1c:class-7:%d\",\"revision\":%d,\"kind\":\"lease.granted\"}", i, i);
  struct gzip_start *start = gzip_begin(text.data, text.len, GZIP_SHARED);
  assert_non_null(start);
  assert_true(start->len < text.len / 8);
  free(start);
  buf_free(&text);
}

static void test_one_start_many_ends(void **state) {
  (void)state;
  struct buf b = {0};
  buf_puts(&b, "{\"events\":[1,2,3]");
  struct body *body = body_take(&b);
  const struct gzip_start *start = body_gzip(body);
  assert_ptr_equal(body_gzip(body), start);
  for (int i = 0; i < 3; i++) {
    struct buf plain = {0}, packed = {0};
    buf_printf(&plain, ",\"server_time\":%d}", i);
    buf_add(&packed, start->data, start->len);
    gzip_end(start, plain.data, plain.len, &packed);
    struct buf whole = {0};
    buf_add(&whole, body->data, body->len);
    buf_add(&whole, plain.data, plain.len);
    check_member(&packed, whole.data, whole.len);
    buf_free(&plain);
    buf_free(&packed);
    buf_free(&whole);
  }
  body_unref(body);
}

#define THREADS 8

static void *ask(void *arg) {
  return (void *)(uintptr_t)body_gzip(arg);
}

static void test_made_once_by_many_threads(void **state) {
  (void)state;
  struct buf b = {0};
  char *text = some_text(300000);
  buf_add(&b, text, 300000);
  free(text);
  struct body *body = body_take(&b);
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, ask, body), 0);
  for (int i = 0; i < THREADS; i++) {
    void *start;
    assert_int_equal(pthread_join(threads[i], &start), 0);
    assert_ptr_equal(start, body_gzip(body));
  }
  body_unref(body);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_start_and_end),
      cmocka_unit_test(test_it_compresses),
      cmocka_unit_test(test_one_start_many_ends),
      cmocka_unit_test(test_made_once_by_many_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
