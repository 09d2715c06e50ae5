// SPDX-License-Identifier: Apache-2.0
#include "base/sse.h"

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

void sse_message(struct buf *out, int64_t id, const char *event, const char *data, size_t len) {
  sse_open(out, id, event);
  buf_add(out, data, len);
  sse_close(out);
}

void sse_id(struct buf *out, int64_t id) {
  put_id(out, id);
  buf_putc(out, '\n');
}
