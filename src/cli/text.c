// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

const char *text_clean(char *out, size_t size, const char *text) {
  size_t len = 0;
  const unsigned char *c = (const unsigned char *)text;
  for (; *c != '\0' && len + 2 < size; c++) {
    if (*c < 0x20 || *c == 0x7f) {
      out[len++] = '?';
    } else if (*c == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f) {
      out[len++] = '?';
      c++;
    } else {
      out[len++] = (char)*c;
    }
  }
  if (*c != '\0') {
    // Cut: not in the middle of a character.
    while (len > 0 && ((unsigned char)out[len - 1] & 0xc0) == 0x80)
      len--;
    if (len > 0 && (unsigned char)out[len - 1] >= 0xc0)
      len--;
  }
  out[len] = '\0';
  return out;
}

const char *text_of(const json_t *object, const char *key, const char *otherwise) {
  const char *text = json_string_value(json_object_get(object, key));
  return text == NULL ? otherwise : text;
}

int64_t number_of(const json_t *object, const char *key, int64_t otherwise) {
  const json_t *value = json_object_get(object, key);
  return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

void print_json(const json_t *value) {
  json_dumpf(value, stdout, JSON_COMPACT | JSON_ENCODE_ANY);
  putchar('\n');
  fflush(stdout);
}

const char *plural(int64_t n, const char *one, const char *many) {
  return n == 1 ? one : many;
}
