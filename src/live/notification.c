// SPDX-License-Identifier: Apache-2.0
#include <jansson.h>

#include "base/util.h"
#include "live/listener.h"

static bool is_pair(const json_t *room_id, const json_t *revision) {
  size_t len = json_string_length(room_id); // 0 for what is not a string
  return len >= 1 && len <= IDENT_MAX && json_is_integer(revision) && json_integer_value(revision) >= 0 &&
         json_integer_value(revision) <= REVISION_MAX;
}

bool notification_parse(const char *payload, void (*each)(void *ctx, const char *room_id, int64_t revision),
                        void *ctx) {
  json_t *list = json_loads(payload, 0, NULL);
  size_t n = json_array_size(list); // 0 for what is not an array
  bool good = json_is_array(list) && n % 2 == 0;
  for (size_t i = 0; good && i < n; i += 2)
    good = is_pair(json_array_get(list, i), json_array_get(list, i + 1));
  for (size_t i = 0; good && i < n; i += 2)
    each(ctx, json_string_value(json_array_get(list, i)), json_integer_value(json_array_get(list, i + 1)));
  json_decref(list);
  return good;
}
