// SPDX-License-Identifier: Apache-2.0
#include "http/etag.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void etag_format(char out[ETAG_SIZE], const char *epoch, int64_t revision) {
  snprintf(out, ETAG_SIZE, "\"%s-%" PRId64 "\"", epoch, revision);
}

bool etag_listed(const char *if_none_match, const char *etag) {
  if (!if_none_match)
    return false;
  size_t len = strlen(etag);
  const char *s = if_none_match + strspn(if_none_match, " \t");
  if (s[0] == '*')
    return s[1 + strspn(s + 1, " \t")] == '\0';
  for (;;) {
    s += strspn(s, " \t,");
    if (strncmp(s, "W/", 2) == 0)
      s += 2;
    const char *end = s[0] == '"' ? strchr(s + 1, '"') : NULL;
    if (!end)
      return false; // the end of the list, or no list at all
    bool same = (size_t)(end + 1 - s) == len && memcmp(s, etag, len) == 0;
    s = end + 1 + strspn(end + 1, " \t");
    if (*s != ',' && *s != '\0')
      return false;
    if (same)
      return true;
  }
}
