// SPDX-License-Identifier: Apache-2.0
#include "base/strict.h"

#include <string.h>
#include <unistr.h>

#include "base/util.h"

bool strict_int(const char *s, size_t len, int64_t min, int64_t max, int64_t *out) {
  if (len == 0)
    return false;
  int64_t value = 0;
  for (size_t i = 0; i < len; i++) {
    if (s[i] < '0' || s[i] > '9')
      return false;
    if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, s[i] - '0', &value))
      return false;
  }
  if (value < min || value > max)
    return false;
  *out = value;
  return true;
}

bool utf8_valid(const char *s, size_t len) {
  return len == 0 || u8_check((const uint8_t *)s, len) == NULL;
}

const char *ident_problem(const char *s, size_t len) {
  if (len == 0)
    return "is empty";
  if (len > IDENT_MAX)
    return "is longer than 128 bytes";
  for (size_t i = 0; i < len; i++) {
    unsigned char c = (unsigned char)s[i];
    if (c < 0x20 || c == 0x7f)
      return "contains a control character";
  }
  if (!utf8_valid(s, len))
    return "is not valid UTF-8";
  if ((len == 1 && s[0] == '.') || (len == 2 && s[0] == '.' && s[1] == '.'))
    return "is '.' or '..'";
  return NULL;
}

bool request_id_sane(const char *s, size_t len) {
  if (len == 0 || len > REQUEST_ID_MAX)
    return false;
  for (size_t i = 0; i < len; i++) {
    char c = s[i];
    bool alphanumeric = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (!alphanumeric && (c == '\0' || strchr("._:/+=@-", c) == NULL))
      return false;
  }
  return true;
}

/// @return -1 when @a c is no hex digit
static int hex_value(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  if (c >= 'A' && c <= 'F')
    return c - 'A' + 10;
  return -1;
}

long percent_decode(const char *in, size_t len, char *out) {
  size_t used = 0;
  for (size_t i = 0; i < len; i++) {
    char c = in[i];
    if (c == '%') {
      if (len - i < 3)
        return -1;
      int high = hex_value(in[i + 1]), low = hex_value(in[i + 2]);
      if (high < 0 || low < 0)
        return -1;
      c = (char)(high * 16 + low);
      i += 2;
    }
    if (c == '\0')
      return -1;
    out[used++] = c;
  }
  out[used] = '\0';
  return (long)used;
}
