// SPDX-License-Identifier: Apache-2.0
/// @file
/// Immutable bytes that several threads share: the one reply that a thousand watchers get. Counted by reference.
#ifndef SH_BASE_BODY_H
#define SH_BASE_BODY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

struct gzip_start;

struct body {
  atomic_uint refs;
  size_t len;
  char *data; ///< never changes once made

  // Private to body.c.
  pthread_mutex_t lock; ///< for the compressed form; a leaf
  struct gzip_start *gzip;
  bool gzip_failed;
};

/// Takes the bytes out of @a b (which is empty afterwards). @return with one reference, or NULL when memory ran out
/// or @a b has `failed`
struct body *body_take(struct buf *b);

/// One more reference. Any thread that holds one.
struct body *body_ref(struct body *body);

/// One reference less; the last one frees it. NULL is fine. Any thread.
void body_unref(struct body *body);

/// The bytes as the beginning of a gzip member (base/gzip.h), made when first asked for and kept with the body: it
/// lives as long. @return NULL when memory ran out. Any thread that holds a reference
const struct gzip_start *body_gzip(struct body *body);

#endif
