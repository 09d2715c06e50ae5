// SPDX-License-Identifier: Apache-2.0
#include "base/body.h"

#include <stdlib.h>

struct body *body_take(struct buf *b) {
  // A body without bytes is one all the same: its data points to a NUL.
  (void)buf_reserve(b, 0);
  size_t len;
  char *data = buf_take(b, &len);
  if (data == NULL)
    return NULL;
  struct body *body = malloc(sizeof *body);
  if (body == NULL) {
    free(data);
    return NULL;
  }
  atomic_init(&body->refs, 1);
  body->len = len;
  body->data = data;
  return body;
}

struct body *body_ref(struct body *body) {
  atomic_fetch_add_explicit(&body->refs, 1, memory_order_relaxed);
  return body;
}

void body_unref(struct body *body) {
  // Release, then acquire: whatever other owners did with the bytes comes before they are freed.
  if (body == NULL || atomic_fetch_sub_explicit(&body->refs, 1, memory_order_acq_rel) != 1)
    return;
  free(body->data);
  free(body);
}
