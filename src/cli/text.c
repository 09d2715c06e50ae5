// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <stdlib.h>
#include <string.h>
#include <wchar.h>

/// Marks on one character that are shown: no script needs more, and a pile of them grows over the lines around.
#define MARKS_MAX 4

/// The character at @a s, which is valid UTF-8 in what servers and shells hand over; a lone byte stands for itself
/// otherwise. @param[out] len its bytes
static unsigned decode(const unsigned char *s, size_t *len) {
  size_t n = *s < 0x80 ? 1 : *s >= 0xf0 ? 4 : *s >= 0xe0 ? 3 : *s >= 0xc0 ? 2 : 0;
  unsigned c = n == 4 ? *s & 0x07u : n == 3 ? *s & 0x0fu : n == 2 ? *s & 0x1fu : *s;
  for (size_t i = 1; i < n; i++) {
    if ((s[i] & 0xc0) != 0x80) {
      n = 0;
      break;
    }
    c = c << 6 | (s[i] & 0x3fu);
  }
  *len = n == 0 ? 1 : n;
  return n == 0 ? 0xfffd : c;
}

/// What a terminal would obey, what would turn the rest of a line around, and what is there and cannot be seen. The
/// two joiners stay: names are written with them.
static bool harmful(unsigned c) {
  static const struct {
    unsigned first, last;
  } ranges[] = {
      {0, 0x1f},        {0x7f, 0x9f},       {0x61c, 0x61c},   {0x180e, 0x180e}, {0x200b, 0x200b},
      {0x200e, 0x200f}, {0x2028, 0x202e},   {0x2060, 0x206f}, {0xd800, 0xdfff}, {0xfeff, 0xfeff},
      {0xfff9, 0xfffd}, {0xe0000, 0xe007f}, {0x110000, ~0u},
  };
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
    if (c <= ranges[i].last)
      return c >= ranges[i].first;
  }
  return false;
}

/// Columns that a character takes; what the C library does not know counts as one.
static size_t columns_of(unsigned c) {
  int n = wcwidth((wchar_t)c);
  return n < 0 ? 1 : (size_t)n;
}

const char *text_clean(char *out, size_t size, const char *text) {
  size_t used = 0, len, marks = 0;
  for (const unsigned char *s = (const unsigned char *)text; *s != '\0'; s += len) {
    unsigned c = decode(s, &len);
    marks = columns_of(c) == 0 ? marks + 1 : 0;
    bool bad = harmful(c) || marks > MARKS_MAX;
    size_t n = bad ? 1 : len;
    if (used + n + 1 > size)
      break;
    if (bad)
      out[used] = '?';
    else
      memcpy(out + used, s, n);
    used += n;
  }
  out[used] = '\0';
  return out;
}

size_t text_columns(const char *text) {
  size_t columns = 0, len;
  for (const unsigned char *s = (const unsigned char *)text; *s != '\0'; s += len)
    columns += columns_of(decode(s, &len));
  return columns;
}

const char *text_cut(char *out, size_t size, const char *text, size_t columns) {
  text_clean(out, size, text);
  if (text_columns(out) <= columns)
    return out;
  size_t used = 0, at = 0, len;
  for (unsigned char *s = (unsigned char *)out; *s != '\0'; s += len, at += len) {
    size_t n = columns_of(decode(s, &len));
    if (used + n + 1 > columns || at + len + sizeof "…" > size)
      break;
    used += n;
  }
  memcpy(out + at, columns == 0 || at + sizeof "…" > size ? "" : "…",
         columns == 0 || at + sizeof "…" > size ? 1 : sizeof "…");
  return out;
}

const char *text_fit(char *out, size_t size, const char *text, size_t columns) {
  text_cut(out, size, text, columns);
  size_t used = text_columns(out), len = strlen(out);
  for (; used < columns && len + 2 <= size; used++)
    out[len++] = ' ';
  out[len] = '\0';
  return out;
}

static const char *ago(char *out, size_t size, int64_t ms, bool brief) {
  static const struct {
    int64_t seconds;
    const char *one, *many, *brief;
  } units[] = {{86400, "day", "days", "d"},
               {3600, "hour", "hours", "h"},
               {60, "minute", "minutes", "min"},
               {1, "second", "seconds", "s"}};
  int64_t seconds = ms / 1000;
  snprintf(out, size, "just now");
  for (size_t i = 0; i < sizeof units / sizeof *units && seconds >= 2; i++) {
    int64_t n = seconds / units[i].seconds;
    if (n == 0)
      continue;
    snprintf(out, size, "%lld %s ago", (long long)n, brief ? units[i].brief : plural(n, units[i].one, units[i].many));
    break;
  }
  return out;
}

const char *text_ago(char *out, size_t size, int64_t ms) {
  return ago(out, size, ms, false);
}

const char *text_ago_short(char *out, size_t size, int64_t ms) {
  return ago(out, size, ms, true);
}

const char *text_of(const json_t *object, const char *key, const char *otherwise) {
  const char *text = json_string_value(json_object_get(object, key));
  return text == NULL ? otherwise : text;
}

int64_t number_of(const json_t *object, const char *key, int64_t otherwise) {
  const json_t *value = json_object_get(object, key);
  return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

/// In JSON text they can only be inside of strings, where an escape means the same.
static void print_escaped(const char *json) {
  size_t len;
  for (const unsigned char *s = (const unsigned char *)json; *s != '\0'; s += len) {
    unsigned c = decode(s, &len);
    if (!harmful(c))
      fwrite(s, 1, len, stdout);
    else if (c < 0x10000)
      printf("\\u%04x", c);
    else
      printf("\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
  }
}

void print_json(const json_t *value) {
  char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
  if (text != NULL)
    print_escaped(text);
  else
    fputs("stillhere: memory ran out\n", stderr);
  free(text);
  putchar('\n');
  fflush(stdout);
}

const char *plural(int64_t n, const char *one, const char *many) {
  return n == 1 ? one : many;
}
