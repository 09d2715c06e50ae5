// SPDX-License-Identifier: Apache-2.0
/// @file
/// gzip in two steps: a beginning that many replies share is compressed once, and each reply adds an end of its own,
/// cheaply. Both together are one gzip member. Any thread.
#ifndef SH_BASE_GZIP_H
#define SH_BASE_GZIP_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/// The beginning of a gzip member: its header, and deflate blocks up to a byte boundary.
struct gzip_start {
  uint32_t crc;   ///< of the plain bytes
  uint32_t plain; ///< how many those are, modulo 2^32
  size_t len;     ///< bytes of `data`
  unsigned char data[];
};

/// How hard to try: for what is compressed once and sent often, and for what is sent once.
#define GZIP_SHARED 6
#define GZIP_ONCE 1

/// @return the compressed beginning, freed with free(); NULL when memory ran out or @a len is beyond 2^31
struct gzip_start *gzip_begin(const char *bytes, size_t len, int level);

/// Appends what follows `start->data` so that the member is whole: @a len more plain bytes, stored as they are, and the
/// trailer.
void gzip_end(const struct gzip_start *start, const char *bytes, size_t len, struct buf *out);

#endif
