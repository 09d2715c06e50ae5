// SPDX-License-Identifier: Apache-2.0
// The map behind the last-seen writer, its cursor, and the order in which rows are written.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "live/seen_map.h"
#include "store/last_seen.h"
#include "store/read.h"

#define NONE INT64_MIN

static int64_t seen(const struct seen_map *map, const char *room_id, const char *user_id) {
  for (struct seen *e = seen_map_next(map, NULL); e != NULL; e = seen_map_next(map, e))
    if (strcmp(seen_room(e), room_id) == 0 && strcmp(seen_user(e), user_id) == 0)
      return seen_at(e);
  return NONE;
}

static void the_newest_time_wins(void **state) {
  (void)state;
  struct seen_map map = {0};
  assert_true(seen_map_put(&map, "r", "u", 20, 100, 10));
  assert_true(seen_map_put(&map, "r", "u", 10, 101, 10));
  assert_int_equal(seen(&map, "r", "u"), 20);
  assert_true(seen_map_put(&map, "r", "u", 30, 102, 10));
  assert_int_equal(seen(&map, "r", "u"), 30);
  assert_int_equal(seen_map_count(&map), 1);
  seen_map_clear(&map);
  assert_int_equal(seen_map_count(&map), 0);
  assert_null(seen_map_next(&map, NULL));
}

static void keys_are_room_and_user(void **state) {
  (void)state;
  struct seen_map map = {0};
  assert_true(seen_map_put(&map, "ab", "c", 1, 0, 10));
  assert_true(seen_map_put(&map, "a", "bc", 2, 0, 10));
  assert_true(seen_map_put(&map, "c", "ab", 3, 0, 10));
  assert_int_equal(seen_map_count(&map), 3);
  assert_int_equal(seen(&map, "ab", "c"), 1);
  assert_int_equal(seen(&map, "a", "bc"), 2);
  assert_int_equal(seen(&map, "c", "ab"), 3);
  char longest[IDENT_MAX + 2];
  memset(longest, 'x', sizeof longest);
  longest[IDENT_MAX + 1] = '\0';
  assert_false(seen_map_put(&map, longest, "u", 1, 0, 10));
  longest[IDENT_MAX] = '\0';
  assert_true(seen_map_put(&map, longest, longest, 4, 0, 10));
  assert_int_equal(seen(&map, longest, longest), 4);
  seen_map_clear(&map);
}

static void it_is_bounded(void **state) {
  (void)state;
  struct seen_map map = {0};
  assert_true(seen_map_put(&map, "r", "a", 1, 0, 2));
  assert_true(seen_map_put(&map, "r", "b", 1, 0, 2));
  assert_false(seen_map_put(&map, "r", "c", 1, 0, 2));
  assert_true(seen_map_put(&map, "r", "b", 2, 0, 2)); // known ones go on
  assert_int_equal(seen_map_count(&map), 2);
  assert_int_equal(seen(&map, "r", "b"), 2);
  assert_int_equal(seen(&map, "r", "c"), NONE);
  seen_map_clear(&map);
}

static void a_failed_flush_is_merged_back(void **state) {
  (void)state;
  struct seen_map now = {0}, kept = {0};
  assert_true(seen_map_put(&kept, "r", "newer-now", 10, 5, 10));
  assert_true(seen_map_put(&kept, "r", "newer-kept", 40, 5, 10));
  assert_true(seen_map_put(&kept, "r", "only-kept", 15, 5, 10));
  assert_true(seen_map_put(&now, "r", "newer-now", 20, 50, 10));
  assert_true(seen_map_put(&now, "r", "newer-kept", 20, 50, 10));
  assert_int_equal(seen_map_merge(&now, &kept, 10), 0);
  assert_int_equal(seen_map_count(&kept), 0);
  assert_int_equal(seen_map_count(&now), 3);
  assert_int_equal(seen(&now, "r", "newer-now"), 20);
  assert_int_equal(seen(&now, "r", "newer-kept"), 40);
  assert_int_equal(seen(&now, "r", "only-kept"), 15);
  assert_int_equal(now.oldest_us, 5); // the lag goes on
  for (int i = 0; i < 3; i++) {
    char user[16];
    (void)snprintf(user, sizeof user, "late-%d", i);
    assert_true(seen_map_put(&kept, "r", user, 1, 6, 10));
  }
  assert_int_equal(seen_map_merge(&now, &kept, 4), 2); // and how many did not fit
  assert_int_equal(seen_map_count(&now), 4);
  seen_map_clear(&now);
}

static void the_oldest_is_known(void **state) {
  (void)state;
  struct seen_map map = {0};
  assert_true(seen_map_put(&map, "r", "a", 1, 70, 10));
  assert_true(seen_map_put(&map, "r", "b", 1, 80, 10));
  assert_true(seen_map_put(&map, "r", "a", 2, 90, 10));
  assert_int_equal(map.oldest_us, 70);
  seen_map_clear(&map);
  assert_true(seen_map_put(&map, "r", "a", 1, 95, 10));
  assert_int_equal(map.oldest_us, 95);
  seen_map_clear(&map);
}

static void sightings_are_in_byte_order(void **state) {
  (void)state;
  const struct sighting a = {"r2", "B", 0}, b = {"r1", "a", 0}, c = {"r2", "a", 0}, d = {"r1", "\xc3\xa9", 0};
  assert_true(sighting_compare(&a, &b) < 0);
  assert_true(sighting_compare(&b, &c) < 0);
  assert_true(sighting_compare(&c, &d) < 0);
  assert_int_equal(sighting_compare(&b, &b), 0);
}

static void cursors(void **state) {
  (void)state;
  struct seen_cursor cursor;
  assert_true(seen_cursor_parse("1796070959742749-616e", &cursor));
  assert_int_equal(cursor.seen_us, INT64_C(1796070959742749));
  assert_string_equal(cursor.user_id, "an");
  static const char *const bad[] = {
      "",     "-",      "1-",      "-616e",   "1",       "1-6",     "1-616",
      "1-6g", "1-00",   "1-616E",  "x-616e",  "+1-616e", "1 -616e", "1-2e",
      "1-ff", "1-610a", "-1-616e", "1-61-61", "1616e",   "1--616e", "99999999999999999999-616e"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    if (seen_cursor_parse(bad[i], &cursor))
      fail_msg("\"%s\" is taken for a cursor", bad[i]);
  char text[300] = "1-";
  for (int i = 0; i < IDENT_MAX; i++)
    (void)snprintf(text + 2 + 2 * (size_t)i, 3, "61");
  assert_true(seen_cursor_parse(text, &cursor));
  (void)snprintf(text + 2 + 2 * (size_t)IDENT_MAX, 3, "61");
  assert_false(seen_cursor_parse(text, &cursor));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_newest_time_wins),
      cmocka_unit_test(keys_are_room_and_user),
      cmocka_unit_test(it_is_bounded),
      cmocka_unit_test(a_failed_flush_is_merged_back),
      cmocka_unit_test(the_oldest_is_known),
      cmocka_unit_test(sightings_are_in_byte_order),
      cmocka_unit_test(cursors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
