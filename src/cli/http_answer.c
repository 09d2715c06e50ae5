// SPDX-License-Identifier: Apache-2.0
// Whether an answer is one of a stillhere server: a proxy's page or a captive portal says 200 too.
#include <string.h>

#include "base/util.h"
#include "cli/http.h"

/// What a good answer has. Requests that are not in the table are answered as they please.
static const struct need {
  const char *method;
  const char *path; ///< a * stands for one segment
  const char *member;
  json_type type;
  const char *otherwise; ///< an object that may be there instead, or NULL
} needs[] = {
    {"PUT", "/leases", "results", JSON_ARRAY, "lease"},
    {"GET", "/rooms", "rooms", JSON_ARRAY, NULL},
    {"GET", "/rooms/*/leases", "leases", JSON_ARRAY, NULL},
    {"DELETE", "/rooms/*/leases/*/*", "decision", JSON_STRING, NULL},
    {"GET", "/rooms/*/presence", "mode", JSON_STRING, NULL},
    {"GET", "/rooms/*/users/*/explain", "state", JSON_STRING, NULL},
    {"GET", "/last-seen", "users", JSON_ARRAY, NULL},
    {"GET", "/rooms/*/last-seen", "users", JSON_ARRAY, NULL},
    {"GET", "/rooms/*/members", "members", JSON_ARRAY, NULL},
    {"GET", "/rooms/*/members/*", "user_id", JSON_STRING, NULL},
    {"PUT", "/rooms/*/members/*", "user_id", JSON_STRING, NULL},
    {"DELETE", "/rooms/*/members/*", "decision", JSON_STRING, NULL},
    {"GET", "/rooms/*/cursors", "cursors", JSON_ARRAY, NULL},
    {"POST", "/rooms/*/cursors", "seq", JSON_INTEGER, NULL},
    {"GET", "/webhooks", "targets", JSON_ARRAY, NULL},
    {"GET", "/webhooks/dead", "dead", JSON_ARRAY, NULL},
    {"POST", "/webhooks/replay", "replayed_events", JSON_INTEGER, NULL},
};

/// Whether @a path, up to its query, is @a pattern.
static bool matches(const char *pattern, const char *path) {
  while (*pattern != '\0') {
    if (*pattern == '*') {
      size_t len = strcspn(path, "/?");
      if (len == 0)
        return false;
      path += len;
      pattern++;
    } else if (*pattern++ != *path++) {
      return false;
    }
  }
  return *path == '\0' || *path == '?';
}

const struct need *http_need(const char *method, const char *path) {
  for (size_t i = 0; i < ARRAY_LEN(needs); i++) {
    if (strcmp(needs[i].method, method) == 0 && matches(needs[i].path, path))
      return &needs[i];
  }
  return NULL;
}

bool http_need_met(const struct need *need, const json_t *json) {
  if (need == NULL)
    return true;
  const json_t *member = json_object_get(json, need->member);
  if (member != NULL)
    return json_typeof(member) == need->type;
  return need->otherwise != NULL && json_is_object(json_object_get(json, need->otherwise));
}
