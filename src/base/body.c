// SPDX-License-Identifier: Apache-2.0
#include "base/body.h"

#include <stdlib.h>

#include "base/gzip.h"

struct body *body_take(struct buf *b) {
  // A body without bytes is one all the same: its data points to a NUL.
  (void)buf_reserve(b, 0);
  size_t len;
  char *data = buf_take(b, &len);
  if (data == NULL)
    return NULL;
  struct body *body = malloc(sizeof *body);
  if (body == NULL || pthread_mutex_init(&body->lock, NULL) != 0) {
    free(body);
    free(data);
    return NULL;
  }
  atomic_init(&body->refs, 1);
  body->len = len;
  body->data = data;
  body->gzip = NULL;
  body->gzip_failed = false;
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
  (void)pthread_mutex_destroy(&body->lock);
  free(body->gzip);
  free(body->data);
  free(body);
}

const struct gzip_start *body_gzip(struct body *body) {
  // Whoever comes second waits no longer than it would take to do the same work again.
  pthread_mutex_lock(&body->lock);
  if (body->gzip == NULL && !body->gzip_failed) {
    body->gzip = gzip_begin(body->data, body->len, GZIP_SHARED);
    body->gzip_failed = body->gzip == NULL;
  }
  const struct gzip_start *gzip = body->gzip;
  pthread_mutex_unlock(&body->lock);
  return gzip;
}
