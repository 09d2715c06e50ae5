// SPDX-License-Identifier: Apache-2.0
#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/// The first allocation; most replies fit into it.
#define BUF_FIRST 256

void buf_free(struct buf *b) {
  free(b->data);
  *b = (struct buf){0};
}

void buf_reset(struct buf *b) {
  b->len = 0;
  b->failed = false;
  if (b->data != NULL)
    b->data[0] = '\0';
}

bool buf_reserve(struct buf *b, size_t extra) {
  if (b->failed)
    return false;
  if (extra >= SIZE_MAX - b->len) {
    b->failed = true;
    return false;
  }
  size_t need = b->len + extra + 1;
  if (need <= b->cap)
    return true;
  size_t cap = b->cap < BUF_FIRST ? BUF_FIRST : b->cap;
  while (cap < need)
    cap = cap > SIZE_MAX / 2 ? need : cap * 2;
  char *data = realloc(b->data, cap);
  if (data == NULL) {
    b->failed = true;
    return false;
  }
  b->data = data;
  b->cap = cap;
  b->data[b->len] = '\0';
  return true;
}

void buf_add(struct buf *b, const void *bytes, size_t len) {
  if (!buf_reserve(b, len))
    return;
  if (len > 0)
    memcpy(b->data + b->len, bytes, len);
  b->len += len;
  b->data[b->len] = '\0';
}

void buf_puts(struct buf *b, const char *s) {
  buf_add(b, s, strlen(s));
}

void buf_putc(struct buf *b, char c) {
  if (!buf_reserve(b, 1))
    return;
  b->data[b->len++] = c;
  b->data[b->len] = '\0';
}

void buf_printf(struct buf *b, const char *fmt, ...) {
  if (!buf_reserve(b, 1))
    return;
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  size_t room = b->cap - b->len;
  int n = vsnprintf(b->data + b->len, room, fmt, args);
  va_end(args);
  if (n < 0) {
    b->data[b->len] = '\0';
    b->failed = true;
  } else if ((size_t)n < room) {
    b->len += (size_t)n;
  } else {
    b->data[b->len] = '\0';
    if (buf_reserve(b, (size_t)n)) {
      (void)vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
      b->len += (size_t)n;
    }
  }
  va_end(again);
}

void buf_int(struct buf *b, int64_t v) {
  char digits[20]; // 19 digits and a sign
  size_t at = sizeof digits;
  uint64_t rest = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
  do {
    digits[--at] = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest > 0);
  if (v < 0)
    digits[--at] = '-';
  buf_add(b, digits + at, sizeof digits - at);
}

char *buf_take(struct buf *b, size_t *len) {
  if (b->failed)
    buf_free(b);
  char *data = b->data;
  if (len != NULL)
    *len = b->len;
  *b = (struct buf){0};
  return data;
}
