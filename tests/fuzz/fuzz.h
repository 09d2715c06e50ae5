// SPDX-License-Identifier: Apache-2.0
/// @file
/// What the fuzz targets share: a check that ends the program, exact copies of the input, and a second opinion about
/// identifiers and UTF-8 that has no line in common with the code that is tested.
///
/// A target is one function in one file. It is linked with libFuzzer by `make fuzz`, and with replay.c, which hands it
/// the files of its corpus, by `make check`.
#ifndef SH_TESTS_FUZZ_H
#define SH_TESTS_FUZZ_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/util.h"

/// The target. @return 0, as libFuzzer wants it
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/// Called by libFuzzer and replay.c once, before the first input. Optional.
int LLVMFuzzerInitialize(int *argc, char ***argv);

/// What must be true of every input.
#define MUST(condition)                                                                                                \
  ((condition) ? (void)0 : (fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition), abort()))

/// A copy of exactly so many bytes, so that a sanitizer sees whoever reads behind them. Freed by the caller.
static inline char *fuzz_copy(const uint8_t *data, size_t size) {
  char *copy = malloc(size > 0 ? size : 1);
  MUST(copy != NULL);
  if (size > 0)
    memcpy(copy, data, size);
  return copy;
}

/// The same as a string, which ends at the first NUL of the input. Freed by the caller.
static inline char *fuzz_string(const uint8_t *data, size_t size) {
  char *copy = strndup((const char *)data, size);
  MUST(copy != NULL);
  return copy;
}

/// Splits an input at its first @a at: "GET /path". Without one, all of it is the second part and the first is empty.
static inline void fuzz_split(const uint8_t *data, size_t size, char at, char **first, char **second) {
  const uint8_t *found = size > 0 ? memchr(data, at, size) : NULL;
  size_t len = found != NULL ? (size_t)(found - data) : 0;
  *first = fuzz_string(data, len);
  *second = found != NULL ? fuzz_string(found + 1, size - len - 1) : fuzz_string(data, size);
}

/// Valid UTF-8 by the table of RFC 3629, section 4.
static inline bool fuzz_is_utf8(const char *text, size_t len) {
  const unsigned char *s = (const unsigned char *)text, *end = s + len;
  while (s < end) {
    unsigned char c = *s++, low = 0x80, high = 0xbf;
    int more = c < 0x80 ? 0 : c >= 0xc2 && c <= 0xdf ? 1 : c >= 0xe0 && c <= 0xef ? 2 : c >= 0xf0 && c <= 0xf4 ? 3 : -1;
    if (more < 0)
      return false;
    low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : low;
    high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : high;
    for (; more > 0; more--, low = 0x80, high = 0xbf)
      if (s == end || *s < low || *s++ > high)
        return false;
  }
  return true;
}

static inline bool fuzz_is_ident(const char *s) {
  size_t len = strlen(s);
  for (size_t i = 0; i < len; i++)
    if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
      return false;
  return len >= 1 && len <= 128 && strcmp(s, ".") != 0 && strcmp(s, "..") != 0 && fuzz_is_utf8(s, len);
}

/// Appends @a s with everything but letters and digits as %XX.
static inline void fuzz_percent(struct buf *out, const char *s) {
  for (; *s != '\0'; s++) {
    unsigned char c = (unsigned char)*s;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
      buf_putc(out, (char)c);
    else
      buf_printf(out, "%%%02X", c);
  }
}

/// Whether both are NULL or the same text.
static inline bool fuzz_same(const char *a, const char *b) {
  return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/// Text that is to be JSON, and an object. @return it, for the caller to free
static inline json_t *fuzz_object(const char *text, size_t len) {
  MUST(text != NULL);
  json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
  MUST(json_is_object(root));
  return root;
}

#endif
