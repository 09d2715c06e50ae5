// SPDX-License-Identifier: Apache-2.0
/// @file
/// Immutable bytes that several threads share: the one reply that a thousand watchers get. Counted by reference.
#ifndef SH_BASE_BODY_H
#define SH_BASE_BODY_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/buf.h"

struct body {
  atomic_uint refs;
  size_t len;
  char *data; ///< never changes once made
};

/// Takes the bytes out of @a b (which is empty afterwards). @return with one reference, or NULL when memory ran out
/// or @a b has `failed`
struct body *body_take(struct buf *b);

/// One more reference. Any thread that holds one.
struct body *body_ref(struct body *body);

/// One reference less; the last one frees it. NULL is fine. Any thread.
void body_unref(struct body *body);

#endif
