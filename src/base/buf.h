// SPDX-License-Identifier: Apache-2.0
/// @file
/// A growing byte buffer that remembers a failed allocation, so that a writer of many parts checks once at the end.
/// Not thread-safe: one owner.
#ifndef SH_BASE_BUF_H
#define SH_BASE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util.h"

/// Zero-initialised is empty and valid.
struct buf {
  char *data;  ///< the bytes, always followed by a NUL once anything was added; NULL while nothing was
  size_t len;  ///< bytes used, without that NUL
  size_t cap;  ///< bytes allocated
  bool failed; ///< an allocation failed: every later call does nothing; the content is not to be used
};

/// Releases the memory; @a b is empty and valid again.
void buf_free(struct buf *b);

/// Empties @a b, keeps its memory and clears `failed`.
void buf_reset(struct buf *b);

/// Makes room for @a extra more bytes and the NUL. @return false when memory ran out (also remembered).
bool buf_reserve(struct buf *b, size_t extra);

/// Appends @a len bytes.
void buf_add(struct buf *b, const void *bytes, size_t len);

/// Appends a NUL-terminated string.
void buf_puts(struct buf *b, const char *s);

/// Appends one byte.
void buf_putc(struct buf *b, char c);

/// Appends formatted text.
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);

/// Appends a decimal integer; faster than buf_printf().
void buf_int(struct buf *b, int64_t v);

/// Hands the bytes over: the caller frees them with free(). @a b is empty afterwards.
/// @return NULL when `failed` is set (then the memory is released) or nothing was ever added
char *buf_take(struct buf *b, size_t *len);

#endif
