// SPDX-License-Identifier: Apache-2.0
#include "base/gzip.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define PLAIN_MAX ((size_t)1 << 31)
/// Bytes of one stored block at most.
#define STORED_MAX 65535
/// What Z_SYNC_FLUSH adds beyond deflateBound(), and room to see that nothing is left.
#define FLUSH_ROOM 32

/// Magic, deflate, no flags, no time, no extra flags, Unix.
static const unsigned char header[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3};

/// Compresses into @a out behind the header. @return bytes written; 0 when it did not work out
static size_t compress_into(unsigned char *out, size_t cap, const char *bytes, size_t len, int level) {
  z_stream z = {.next_in = (Bytef *)(uintptr_t)bytes, .avail_in = (uInt)len, .next_out = out, .avail_out = (uInt)cap};
  if (deflateInit2(&z, level, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    return 0;
  // The flush ends at a byte boundary with an empty block, after which other blocks may follow.
  bool whole = deflate(&z, Z_SYNC_FLUSH) == Z_OK && z.avail_in == 0 && z.avail_out > 0;
  size_t written = cap - z.avail_out;
  (void)deflateEnd(&z);
  return whole ? written : 0;
}

struct gzip_start *gzip_begin(const char *bytes, size_t len, int level) {
  if (len > PLAIN_MAX)
    return NULL;
  size_t cap = (size_t)compressBound((uLong)len) + FLUSH_ROOM;
  struct gzip_start *start = malloc(sizeof *start + sizeof header + cap);
  if (start == NULL)
    return NULL;
  memcpy(start->data, header, sizeof header);
  size_t written = compress_into(start->data + sizeof header, cap, bytes, len, level);
  if (written == 0) {
    free(start);
    return NULL;
  }
  start->crc = (uint32_t)crc32(crc32(0, NULL, 0), (const Bytef *)bytes, (uInt)len);
  start->plain = (uint32_t)len;
  start->len = sizeof header + written;
  // It is kept for as long as the body: give back what compression saved.
  struct gzip_start *fitted = realloc(start, sizeof *start + start->len);
  if (fitted != NULL)
    start = fitted;
  return start;
}

static void put_le(struct buf *out, uint32_t value, int bytes) {
  for (int i = 0; i < bytes; i++)
    buf_putc(out, (char)(unsigned char)(value >> (8 * i)));
}

void gzip_end(const struct gzip_start *start, const char *bytes, size_t len, struct buf *out) {
  uint32_t crc = start->crc;
  size_t left = len;
  do {
    size_t n = left < STORED_MAX ? left : STORED_MAX;
    buf_putc(out, n == left); // the last block says so
    put_le(out, (uint32_t)n, 2);
    put_le(out, ~(uint32_t)n, 2);
    buf_add(out, bytes, n);
    if (n > 0)
      crc = (uint32_t)crc32(crc, (const Bytef *)bytes, (uInt)n);
    bytes = n > 0 ? bytes + n : bytes;
    left -= n;
  } while (left > 0);
  put_le(out, crc, 4);
  put_le(out, start->plain + (uint32_t)len, 4);
}
