// SPDX-License-Identifier: Apache-2.0
#include "config/origins.h"

#include <stdint.h>
#include <string.h>

#include "base/strict.h"

#define DIGITS "0123456789"
#define LETTERS "abcdefghijklmnopqrstuvwxyz"

/// Takes the next entry, without the blanks around it. @return false at the end of the list
static bool next(const char **list, const char **entry, size_t *len) {
  if (*list == NULL)
    return false;
  const char *from = *list + strspn(*list, " "), *comma = strchr(from, ',');
  const char *to = comma != NULL ? comma : from + strlen(from);
  *list = comma != NULL ? comma + 1 : NULL;
  while (to > from && to[-1] == ' ')
    to--;
  *entry = from;
  *len = (size_t)(to - from);
  return true;
}

/// Whether all of the text is of these characters, and it is not empty.
static bool consists_of(const char *text, size_t len, const char *characters) {
  for (size_t i = 0; i < len; i++) {
    if (text[i] == '\0' || strchr(characters, text[i]) == NULL)
      return false;
  }
  return len > 0;
}

/// Browsers leave a scheme's own port out, so that it would never be met.
static bool is_own_port(const char *scheme, size_t len, int64_t port) {
  return (len == 4 && memcmp(scheme, "http", 4) == 0 && port == 80) ||
         (len == 5 && memcmp(scheme, "https", 5) == 0 && port == 443);
}

/// scheme://host[:port], as browsers send it: no capitals, nothing behind it.
static bool is_origin(const char *entry, size_t len) {
  const char *end = entry + len, *separator = memmem(entry, len, "://", 3);
  if (separator == NULL || !consists_of(entry, 1, LETTERS) ||
      !consists_of(entry, (size_t)(separator - entry), LETTERS DIGITS "+-."))
    return false;
  const char *host = separator + 3, *host_end = host;
  bool bracketed = host < end && *host == '[';
  while (host_end < end && (bracketed ? host_end == host || host_end[-1] != ']' : *host_end != ':'))
    host_end++;
  size_t host_len = (size_t)(host_end - host);
  if (bracketed ? host_len < 4 || host_end[-1] != ']' || !consists_of(host + 1, host_len - 2, DIGITS "abcdef:.")
                : !consists_of(host, host_len, LETTERS DIGITS "-._"))
    return false;
  if (host_end == end)
    return true;
  int64_t port;
  return *host_end == ':' && strict_int(host_end + 1, (size_t)(end - host_end - 1), 1, 65535, &port) &&
         !is_own_port(entry, (size_t)(separator - entry), port);
}

bool origins_any(const char *list) {
  return strcmp(list, "*") == 0;
}

const char *origins_problem(const char *list) {
  if (list[0] == '\0' || origins_any(list))
    return NULL;
  const char *entry;
  size_t len;
  while (next(&list, &entry, &len)) {
    if (!is_origin(entry, len))
      return "must be origins as browsers write them, separated by commas, such as https://app.example.org (no capitals, "
             "no path, no slash at the end, no default port), or * alone";
  }
  return NULL;
}

bool origins_have(const char *list, const char *origin) {
  const char *entry;
  size_t len, origin_len = strlen(origin);
  if (origin_len == 0)
    return false;
  while (next(&list, &entry, &len)) {
    if (len == origin_len && memcmp(entry, origin, len) == 0)
      return true;
  }
  return false;
}
