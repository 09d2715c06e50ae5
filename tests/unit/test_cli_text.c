// SPDX-License-Identifier: Apache-2.0
// What the command prints of foreign text: nothing that steers a terminal, never wider than asked for.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "cli/text.h"

static void test_what_a_terminal_would_obey(void **state) {
  (void)state;
  static const struct {
    const char *text, *clean;
  } cases[] = {
      {"an", "an"},
      {"Zoë 名前", "Zoë 名前"},
      {"\033[2J\a\r\n\t\x7f", "?[2J?????"},
      {"\xc2\x9b"
       "31m",
       "?31m"},
      {"\xe2\x80\xae"
       "evil\xe2\x81\xa9",
       "?evil?"},
      {"\xd8\x9c\xe2\x80\x8b\xe2\x80\xa8\xef\xbb\xbf\xef\xbf\xb9", "?????"},
      {"\xf3\xa0\x81\x81", "?"},                                // a tag
      {"\xe2\x80\x8d\xe2\x80\x8c", "\xe2\x80\x8d\xe2\x80\x8c"}, // the joiners
      {"\xc0\x9b\xff\x80\xed\xa0\x80", "????"},                 // no UTF-8, an escape written long, half a pair
      {"e\xcc\x81\xcc\x81\xcc\x81\xcc\x81\xcc\x81\xcc\x81x", "e\xcc\x81\xcc\x81\xcc\x81\xcc\x81??x"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char out[64];
    assert_string_equal(text_clean(out, sizeof out, cases[i].text), cases[i].clean);
  }
}

static void test_it_is_cut_between_characters(void **state) {
  (void)state;
  char out[64];
  assert_string_equal(text_clean(out, 6, "名前名前"), "名");
  assert_string_equal(text_clean(out, 1, "an"), "");
  assert_int_equal(text_columns("名前 e\xcc\x81"), 6);
  assert_string_equal(text_cut(out, sizeof out, "classroom", 9), "classroom");
  assert_string_equal(text_cut(out, sizeof out, "classroom", 6), "class…");
  assert_string_equal(text_cut(out, sizeof out, "名前名前", 5), "名前…");
  assert_string_equal(text_cut(out, sizeof out, "名前名前", 4), "名…");
  assert_string_equal(text_cut(out, sizeof out, "an", 0), "");
  assert_string_equal(text_fit(out, sizeof out, "名前名前", 4), "名… ");
  assert_string_equal(text_fit(out, sizeof out, "an", 5), "an   ");
}

/// However small the memory and the columns: whole characters, and no more of either than there is room for.
static void test_never_more_than_there_is_room_for(void **state) {
  (void)state;
  static const char text[] = "a\xcc\x81\xcc\x81名\xf0\x9f\x98\x80\xe2\x80\xae\xc0z…";
  for (size_t size = 1; size < sizeof text + 8; size++) {
    for (size_t columns = 0; columns < 16; columns++) {
      char *out = malloc(size);
      assert_non_null(out);
      assert_true(strlen(text_cut(out, size, text, columns)) < size);
      assert_true(text_columns(out) <= columns);
      assert_true(strlen(text_fit(out, size, text, columns)) < size);
      assert_true(text_columns(out) <= columns);
      free(out);
    }
  }
}

static void test_how_long_ago(void **state) {
  (void)state;
  static const struct {
    int64_t ms;
    const char *text, *brief;
  } cases[] = {
      {-5, "just now", "just now"},         {1999, "just now", "just now"},         {2000, "2 seconds ago", "2 s ago"},
      {60000, "1 minute ago", "1 min ago"}, {179999, "2 minutes ago", "2 min ago"}, {3600000, "1 hour ago", "1 h ago"},
      {172800000, "2 days ago", "2 d ago"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char out[48];
    assert_string_equal(text_ago(out, sizeof out, cases[i].ms), cases[i].text);
    assert_string_equal(text_ago_short(out, sizeof out, cases[i].ms), cases[i].brief);
  }
}

int main(void) {
  if (setlocale(LC_CTYPE, "C.UTF-8") == NULL)
    return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_a_terminal_would_obey),
      cmocka_unit_test(test_it_is_cut_between_characters),
      cmocka_unit_test(test_never_more_than_there_is_room_for),
      cmocka_unit_test(test_how_long_ago),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
