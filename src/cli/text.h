// SPDX-License-Identifier: Apache-2.0
/// @file
/// What the commands print: members of JSON objects, and foreign text made harmless for a terminal.
#ifndef SH_CLI_TEXT_H
#define SH_CLI_TEXT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/// Copies @a text, cut to @a size, with control characters (also U+0080–009F, which terminals obey) as `?`.
/// @return @a out
const char *text_clean(char *out, size_t size, const char *text);

/// The string member @a key of @a object, or @a otherwise (also when @a object is NULL).
const char *text_of(const json_t *object, const char *key, const char *otherwise);

/// The integer member @a key of @a object, or @a otherwise.
int64_t number_of(const json_t *object, const char *key, int64_t otherwise);

/// Prints @a value as one compact line.
void print_json(const json_t *value);

/// "1 person", "2 people".
const char *plural(int64_t n, const char *one, const char *many);

#endif
