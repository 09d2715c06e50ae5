// SPDX-License-Identifier: Apache-2.0
#include "base/sse.h"

#include <string.h>

static void put_id(struct buf *out, int64_t id) {
  buf_puts(out, "id: ");
  buf_int(out, id);
  buf_putc(out, '\n');
}

void sse_open(struct buf *out, int64_t id, const char *event) {
  if (id >= 0)
    put_id(out, id);
  if (event != NULL) {
    buf_puts(out, "event: ");
    buf_puts(out, event);
    buf_putc(out, '\n');
  }
  buf_puts(out, "data: ");
}

void sse_close(struct buf *out) {
  buf_puts(out, "\n\n");
}

/// Where the first line of @a data ends: at a line feed, a carriage return, or the end.
static size_t line_end(const char *data, size_t len) {
  const char *end = memchr(data, '\n', len);
  size_t n = end != NULL ? (size_t)(end - data) : len;
  end = memchr(data, '\r', n);
  return end != NULL ? (size_t)(end - data) : n;
}

void sse_message(struct buf *out, int64_t id, const char *event, const char *data, size_t len) {
  sse_open(out, id, event);
  size_t at = 0;
  for (size_t n; (n = line_end(data + at, len - at)) < len - at;) {
    buf_add(out, data + at, n);
    buf_puts(out, "\ndata: ");
    at += n + 1;
    if (data[at - 1] == '\r' && at < len && data[at] == '\n')
      at++; // both together are one end of a line
  }
  buf_add(out, data + at, len - at);
  sse_close(out);
}

void sse_id(struct buf *out, int64_t id) {
  put_id(out, id);
  buf_putc(out, '\n');
}
