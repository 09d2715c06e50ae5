// SPDX-License-Identifier: Apache-2.0
#include "base/jsonout.h"

#include <string.h>

#include "base/clock.h"

/// The comma that is due before the next key, value or element, if one is.
static bool needs_comma(const struct buf *b) {
  if (b->len == 0)
    return false;
  char last = b->data[b->len - 1];
  return last != '{' && last != '[' && last != ':';
}

static void separate(struct buf *b) {
  if (needs_comma(b))
    buf_putc(b, ',');
}

/// The letter after the backslash where JSON has a short form, else NUL.
static char short_escape(unsigned char c) {
  switch (c) {
  case '"':
  case '\\':
    return (char)c;
  case '\b':
    return 'b';
  case '\f':
    return 'f';
  case '\n':
    return 'n';
  case '\r':
    return 'r';
  case '\t':
    return 't';
  default:
    return '\0';
  }
}

void jo_object(struct buf *b) {
  separate(b);
  buf_putc(b, '{');
}

void jo_object_end(struct buf *b) {
  buf_putc(b, '}');
}

void jo_array(struct buf *b) {
  separate(b);
  buf_putc(b, '[');
}

void jo_array_end(struct buf *b) {
  buf_putc(b, ']');
}

/// Makes room for a string of @a len bytes without escapes, the comma in front of it, its quotes and one byte more, and
/// writes what stands before the first byte. @return where that goes, NULL when memory ran out
static char *open_quoted(struct buf *b, size_t len) {
  if (len > SIZE_MAX - 4)
    b->failed = true;
  if (!buf_reserve(b, b->failed ? 0 : len + 4))
    return NULL;
  char *at = b->data + b->len;
  if (needs_comma(b))
    *at++ = ',';
  *at++ = '"';
  return at;
}

/// Everything before @a at has been written.
static void close_at(struct buf *b, char *at) {
  *at = '\0';
  b->len = (size_t)(at - b->data);
}

void jo_key(struct buf *b, const char *key) {
  size_t len = strlen(key);
  char *at = open_quoted(b, len);
  if (at == NULL)
    return;
  at = mempcpy(at, key, len);
  *at++ = '"';
  *at++ = ':';
  close_at(b, at);
}

void jo_str(struct buf *b, const char *s) {
  if (s == NULL)
    jo_null(b);
  else
    jo_strn(b, s, strlen(s));
}

static bool is_plain(unsigned char c) {
  return c >= 0x20 && c != '"' && c != '\\';
}

/// The rest of a string from the first byte that needs an escape, and the closing quote.
static void escape_rest(struct buf *b, const char *s, size_t len) {
  size_t plain = 0; // where the run of bytes that need no escape began
  for (size_t i = 0; i < len; i++) {
    unsigned char c = (unsigned char)s[i];
    if (is_plain(c))
      continue;
    buf_add(b, s + plain, i - plain);
    plain = i + 1;
    char letter = short_escape(c);
    if (letter != '\0') {
      buf_putc(b, '\\');
      buf_putc(b, letter);
    } else {
      buf_printf(b, "\\u%04x", c);
    }
  }
  buf_add(b, s + plain, len - plain);
  buf_putc(b, '"');
}

void jo_strn(struct buf *b, const char *s, size_t len) {
  // Replies are made of short strings without escapes: room for one is made once, and it is copied while it is looked
  // at.
  char *at = open_quoted(b, len);
  if (at == NULL)
    return;
  size_t i = 0;
  while (i < len && is_plain((unsigned char)s[i]))
    *at++ = s[i++];
  if (i == len)
    *at++ = '"';
  close_at(b, at);
  if (i < len)
    escape_rest(b, s + i, len - i);
}

void jo_int(struct buf *b, int64_t v) {
  separate(b);
  buf_int(b, v);
}

void jo_bool(struct buf *b, bool v) {
  separate(b);
  buf_puts(b, v ? "true" : "false");
}

void jo_null(struct buf *b) {
  separate(b);
  buf_puts(b, "null");
}

/// Makes each @a byte of what was added since @a from a blank.
static void blank(struct buf *b, size_t from, char byte) {
  for (char *c; (c = memchr(b->data + from, byte, b->len - from)) != NULL; from = (size_t)(c - b->data))
    *c = ' ';
}

void jo_raw(struct buf *b, const char *json, size_t len) {
  separate(b);
  size_t from = b->len;
  buf_add(b, json, len);
  if (b->failed || len == 0)
    return;
  blank(b, from, '\n');
  blank(b, from, '\r');
}

void jo_time(struct buf *b, int64_t unix_us) {
  char text[RFC3339_SIZE];
  rfc3339_format(text, unix_us);
  jo_strn(b, text, RFC3339_SIZE - 1);
}

void jo_kstr(struct buf *b, const char *key, const char *s) {
  jo_key(b, key);
  jo_str(b, s);
}

void jo_kint(struct buf *b, const char *key, int64_t v) {
  jo_key(b, key);
  jo_int(b, v);
}

void jo_kbool(struct buf *b, const char *key, bool v) {
  jo_key(b, key);
  jo_bool(b, v);
}

void jo_ktime(struct buf *b, const char *key, int64_t unix_us) {
  jo_key(b, key);
  jo_time(b, unix_us);
}
