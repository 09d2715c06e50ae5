// SPDX-License-Identifier: Apache-2.0
#include "http/input.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/strict.h"

bool input_refuse(struct input_problem *p, const char *code, const char *field, const char *fmt, ...) {
  p->code = code;
  (void)snprintf(p->field, sizeof p->field, "%s", field != NULL ? field : "");
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(p->detail, sizeof p->detail, fmt, args);
  va_end(args);
  // What was cut, or what jansson quotes of a broken body, may end within a character.
  for (size_t len = strlen(p->detail); !utf8_valid(p->detail, len); len--) {
    p->detail[len - 1] = '\0';
  }
  for (size_t len = strlen(p->field); !utf8_valid(p->field, len); len--) {
    p->field[len - 1] = '\0';
  }
  return false;
}

/// Depth of nesting, and whether there is a number with a fraction anywhere. An object counts as one level.
static int measure(const json_t *value, bool *has_real) {
  int deepest = 0;
  if (json_is_object(value)) {
    const char *key;
    json_t *child;
    json_object_foreach((json_t *)value, key, child) {
      int depth = measure(child, has_real);
      deepest = depth > deepest ? depth : deepest;
    }
  } else if (json_is_array(value)) {
    size_t i;
    json_t *child;
    json_array_foreach(value, i, child) {
      int depth = measure(child, has_real);
      deepest = depth > deepest ? depth : deepest;
    }
  } else {
    *has_real = *has_real || json_is_real(value);
    return 0;
  }
  return deepest + 1;
}

char *input_canonical(const json_t *value, const char *field, size_t max, struct input_problem *problem) {
  bool has_real = false;
  if (measure(value, &has_real) > INPUT_DEPTH_MAX) {
    input_refuse(problem, "bad_field", field, "%s is nested deeper than %d levels", field, INPUT_DEPTH_MAX);
    return NULL;
  }
  // jansson prints with a fixed number of digits: 17 always read back to the same number, but make 1.1 unreadable.
  char *text = NULL;
  for (size_t digits = has_real ? 15 : 17; digits <= 17; digits++) {
    free(text);
    text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(digits));
    if (text == NULL || !has_real) {
      break;
    }
    json_t *back = json_loads(text, 0, NULL);
    bool same = back != NULL && json_equal(back, value);
    json_decref(back);
    if (same) {
      break;
    }
  }
  if (text == NULL) {
    input_refuse(problem, "bad_field", field, "%s cannot be stored", field);
  } else if (strlen(text) > max) {
    input_refuse(problem, "bad_field", field, "%s has %zu bytes as compact JSON; at most %zu are kept", field,
                 strlen(text), max);
    free(text);
    text = NULL;
  }
  return text;
}

const char *input_type_name(const json_t *value) {
  switch (json_typeof(value)) {
  case JSON_OBJECT:
    return "an object";
  case JSON_ARRAY:
    return "an array";
  case JSON_STRING:
    return "a string";
  case JSON_INTEGER:
    return "an integer";
  case JSON_REAL:
    return "a number with a fraction or exponent";
  case JSON_TRUE:
  case JSON_FALSE:
    return "a boolean";
  case JSON_NULL:
    return "null";
  }
  return "something else";
}

bool input_ident(const json_t *value, const char *field, const char **out, struct input_problem *p) {
  if (!json_is_string(value)) {
    return input_refuse(p, "bad_field", field, "%s must be a string, not %s", field, input_type_name(value));
  }
  const char *why = ident_problem(json_string_value(value), json_string_length(value));
  if (why != NULL) {
    return input_refuse(p, "bad_field", field, "%s %s", field, why);
  }
  *out = json_string_value(value);
  return true;
}

bool input_is_json(const char *content_type) {
  static const char json[] = "application/json";
  if (content_type == NULL || strncasecmp(content_type, json, sizeof json - 1) != 0)
    return false;
  char after = content_type[sizeof json - 1];
  return after == '\0' || after == ';' || after == ' ' || after == '\t';
}
