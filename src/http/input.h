// SPDX-License-Identifier: Apache-2.0
/// @file
/// Reading the JSON that clients send: what all bodies have in common. Pure functions.
#ifndef SH_HTTP_INPUT_H
#define SH_HTTP_INPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/util.h"

/// Levels of nesting of what is stored for a client.
#define INPUT_DEPTH_MAX 16

/// Why an input is refused: 400, `code`, naming `field`. "unavailable": memory ran out, which is 503.
struct input_problem {
  const char *code; ///< static
  char field[64];
  char detail[192];
};

/// Fills @a p. @param field NULL: none. @return false
bool input_refuse(struct input_problem *p, const char *code, const char *field, const char *fmt, ...) PRINTF_LIKE(4, 5);

/// What a value is, fit for "not …".
const char *input_type_name(const json_t *value);

/// Reads an identifier, which lives as long as @a value. @return false with @a p filled
bool input_ident(const json_t *value, const char *field, const char **out, struct input_problem *p);

/// The canonical text of a value: compact, sorted keys, numbers as short as they read back. @return allocated; NULL
/// with
/// @a problem filled when it is too deep or has more than @a max bytes, or memory ran out
char *input_canonical(const json_t *value, const char *field, size_t max, struct input_problem *problem);

/// Whether a Content-Type (NULL: none was sent) says JSON, with or without parameters.
bool input_is_json(const char *content_type);

#endif
