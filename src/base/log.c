// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strict.h"

/// A write of up to this many bytes into a pipe is never torn apart.
#define LINE_MAX_BYTES PIPE_BUF

static atomic_int lowest = LOG_INFO;
static atomic_int form = LOG_TEXT;

static const char *const level_names[] = {"error", "warning", "info", "debug"};

/// A line in the making. No heap, so that running out of memory can be logged too.
struct line {
  char bytes[LINE_MAX_BYTES];
  size_t len;
  size_t limit; // what may be used, the end of the line being kept free
};

void log_setup(enum log_level level, enum log_format format) {
  atomic_store_explicit(&lowest, (int)level, memory_order_relaxed);
  atomic_store_explicit(&form, (int)format, memory_order_relaxed);
}

/// The wall clock of this host. It is read here and nowhere else: a log line must have a time when there is no database
/// as well, and nothing is ever decided by it.
static void timestamp(char out[RFC3339_SIZE]) {
  struct timespec ts;
  (void)clock_gettime(CLOCK_REALTIME, &ts);
  rfc3339_format(out, (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000);
}

/// @return false when it does not fit (nothing is written then)
static bool add(struct line *line, const char *bytes, size_t len) {
  if (len > line->limit - line->len)
    return false;
  memcpy(line->bytes + line->len, bytes, len);
  line->len += len;
  return true;
}

/// Bytes of the UTF-8 sequence that begins with @a lead, in text that is known to be valid.
static size_t sequence_length(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/// Adds text with its control characters, C1 as well, escaped; for JSON also quotes and backslashes. Stops where the
/// line is full.
static void add_escaped(struct line *line, const char *text, bool json) {
  size_t len = strlen(text);
  bool valid = utf8_valid(text, len);
  for (size_t i = 0; i < len;) {
    unsigned char c = (unsigned char)text[i];
    size_t step = valid ? sequence_length(c) : 1;
    unsigned control = c < 0x20 || c == 0x7f ? c : 0;
    if (valid && c == 0xc2 && (unsigned char)text[i + 1] < 0xa0)
      control = (unsigned char)text[i + 1];
    char escape[8];
    bool fits;
    if (control != 0) {
      int n = snprintf(escape, sizeof escape, "\\u%04x", control);
      fits = add(line, escape, (size_t)n);
    } else if (!valid && c >= 0x80) {
      fits = add(line, "?", 1);
    } else if (json && (c == '"' || c == '\\')) {
      escape[0] = '\\';
      escape[1] = (char)c;
      fits = add(line, escape, 2);
    } else {
      fits = add(line, text + i, step);
    }
    if (!fits)
      return;
    i += step;
  }
}

void log_write(enum log_level level, const char *fmt, ...) {
  if ((int)level > atomic_load_explicit(&lowest, memory_order_relaxed))
    return;
  int saved = errno;
  char message[LINE_MAX_BYTES];
  va_list args;
  va_start(args, fmt);
  int n = vsnprintf(message, sizeof message, fmt, args);
  va_end(args);
  if (n < 0)
    message[0] = '\0';
  // Cut in the middle of a character? Then the character goes too.
  if ((size_t)n >= sizeof message) {
    size_t len = sizeof message - 1;
    for (int i = 0; i < 3 && !utf8_valid(message, len); i++)
      message[--len] = '\0';
  }

  bool json = atomic_load_explicit(&form, memory_order_relaxed) == LOG_JSON;
  char time[RFC3339_SIZE];
  timestamp(time);
  struct line line = {.limit = LINE_MAX_BYTES - 3};
  int head = snprintf(line.bytes, line.limit,
                      json ? "{\"time\":\"%s\",\"level\":\"%s\",\"message\":\"" : "%s %s: ", time, level_names[level]);
  line.len = head > 0 ? (size_t)head : 0;
  add_escaped(&line, message, json);
  line.limit = LINE_MAX_BYTES;
  (void)add(&line, json ? "\"}\n" : "\n", json ? 3 : 1);
  // A log that nobody can take is dropped: there is nowhere to complain.
  while (write(STDERR_FILENO, line.bytes, line.len) < 0 && errno == EINTR)
    continue;
  errno = saved;
}
