// SPDX-License-Identifier: Apache-2.0
#include "http/member_input.h"

#include <string.h>

#include "store/attendance.h"
#include "store/member.h"

/// Loads a body that must be a JSON object. @return NULL with @a p filled
static json_t *load(const char *body, size_t len, struct input_problem *p) {
  json_error_t error;
  json_t *root = json_loadb(len > 0 ? body : "", len, JSON_REJECT_DUPLICATES, &error);
  if (root == NULL) {
    input_refuse(p, "bad_json", NULL, "the body is not JSON: %s (line %d, column %d)", error.text, error.line,
                 error.column);
  } else if (!json_is_object(root)) {
    input_refuse(p, "bad_json", NULL, "the body must be a JSON object, not %s", input_type_name(root));
    json_decref(root);
    root = NULL;
  }
  return root;
}

/// Reads free text of at most @a max bytes.
static bool read_text(const json_t *value, const char *field, size_t max, const char **out, struct input_problem *p) {
  if (!json_is_string(value))
    return input_refuse(p, "bad_field", field, "%s must be a string, not %s", field, input_type_name(value));
  if (json_string_length(value) > max)
    return input_refuse(p, "bad_field", field, "%s has %zu bytes; at most %zu are kept", field,
                        json_string_length(value), max);
  *out = json_string_value(value);
  return true;
}

bool member_input_read(struct member_input *in, const char *body, size_t len, struct input_problem *problem) {
  // Everything is optional, so that a PUT without a body grants.
  *in = (struct member_input){.root = len > 0 ? load(body, len, problem) : json_object()};
  if (in->root == NULL)
    return len > 0 ? false : input_refuse(problem, "unavailable", NULL, "out of memory; try again");
  const char *key;
  json_t *value;
  json_object_foreach(in->root, key, value) {
    if (strcmp(key, "role") != 0)
      return input_refuse(problem, "unknown_field", key, "there is no field \"%.64s\" in a membership", key);
    if (!read_text(value, key, ROLE_MAX, &in->role, problem))
      return false;
    for (const char *c = in->role; *c != '\0'; c++)
      if ((unsigned char)*c < 0x20 || *c == 0x7f)
        return input_refuse(problem, "bad_field", key, "role contains a control character");
  }
  return true;
}

void member_input_free(struct member_input *in) {
  json_decref(in->root);
  *in = (struct member_input){0};
}

static bool read_action(const json_t *value, struct attendance_input *in, struct input_problem *p) {
  const char *action = json_string_value(value); // NULL for what is no string
  bool known = action != NULL && (strcmp(action, "sign_in") == 0 || strcmp(action, "sign_out") == 0);
  in->action = action;
  return known || input_refuse(p, "bad_field", "action", "action must be \"sign_in\" or \"sign_out\"");
}

static bool read_field(struct attendance_input *in, const char *key, const json_t *value, struct input_problem *p) {
  if (strcmp(key, "user_id") == 0)
    return input_ident(value, key, &in->user_id, p);
  if (strcmp(key, "session_id") == 0)
    return input_ident(value, key, &in->session_id, p);
  if (strcmp(key, "action") == 0)
    return read_action(value, in, p);
  if (strcmp(key, "note") == 0)
    return read_text(value, key, NOTE_MAX, &in->note, p);
  return input_refuse(p, "unknown_field", key, "there is no field \"%.64s\" in attendance", key);
}

bool attendance_input_read(struct attendance_input *in, const char *body, size_t len, struct input_problem *problem) {
  *in = (struct attendance_input){.root = load(body, len, problem)};
  if (in->root == NULL)
    return false;
  const char *key;
  json_t *value;
  json_object_foreach(in->root, key, value) {
    if (!read_field(in, key, value, problem))
      return false;
  }
  const char *missing = in->user_id == NULL ? "user_id" : in->action == NULL ? "action" : NULL;
  return missing == NULL || input_refuse(problem, "missing_field", missing, "%s is missing", missing);
}

void attendance_input_free(struct attendance_input *in) {
  json_decref(in->root);
  *in = (struct attendance_input){0};
}

bool idempotency_key_good(const char *key) {
  size_t len = strlen(key);
  for (const char *c = key; *c != '\0'; c++)
    if (*c < 0x21 || *c > 0x7e)
      return false;
  return len >= 1 && len <= IDEMPOTENCY_KEY_MAX;
}
