// SPDX-License-Identifier: Apache-2.0
#include "http/cursor_input.h"

#include <stdlib.h>
#include <string.h>

#include "live/cursors.h"

static bool read_field(struct cursor_input *in, const char *key, const json_t *value, struct input_problem *p) {
  if (strcmp(key, "user_id") == 0)
    return input_ident(value, key, &in->user_id, p);
  if (strcmp(key, "session_id") == 0)
    return input_ident(value, key, &in->session_id, p);
  if (strcmp(key, "data") != 0)
    return input_refuse(p, "unknown_field", key, "there is no field \"%.64s\" in a cursor", key);
  if (!json_is_object(value))
    return input_refuse(p, "bad_field", key, "data must be an object, not %s", input_type_name(value));
  in->data = input_canonical(value, key, CURSOR_DATA_MAX, p);
  return in->data != NULL;
}

bool cursor_input_read(struct cursor_input *in, const char *body, size_t len, struct input_problem *problem) {
  *in = (struct cursor_input){0};
  json_error_t error;
  in->root = json_loadb(len > 0 ? body : "", len, JSON_REJECT_DUPLICATES, &error);
  if (in->root == NULL)
    return input_refuse(problem, "bad_json", NULL, "the body is not JSON: %s (line %d, column %d)", error.text,
                        error.line, error.column);
  if (!json_is_object(in->root))
    return input_refuse(problem, "bad_json", NULL, "the body must be a JSON object, not %s", input_type_name(in->root));
  const char *key;
  json_t *value;
  json_object_foreach(in->root, key, value) {
    if (!read_field(in, key, value, problem))
      return false;
  }
  const char *missing = in->user_id == NULL      ? "user_id"
                        : in->session_id == NULL ? "session_id"
                        : in->data == NULL       ? "data"
                                                 : NULL;
  return missing == NULL || input_refuse(problem, "missing_field", missing, "%s is missing", missing);
}

void cursor_input_free(struct cursor_input *in) {
  free(in->data);
  json_decref(in->root);
  *in = (struct cursor_input){0};
}
