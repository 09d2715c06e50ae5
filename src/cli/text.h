// SPDX-License-Identifier: Apache-2.0
/// @file
/// What the commands print: members of JSON objects, and foreign text made harmless for a terminal.
#ifndef SH_CLI_TEXT_H
#define SH_CLI_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/// Copies @a text, cut to @a size, with what a terminal would obey (control characters, U+0080–009F), what would turn a
/// line around (marks of direction, U+2028, U+2029), what cannot be seen, and the rest of a pile of combining marks as
/// `?`. @return @a out
const char *text_clean(char *out, size_t size, const char *text);

/// The columns of a terminal that clean text takes.
size_t text_columns(const char *text);

/// Like text_clean(), cut to @a columns, with an ellipsis where something is missing.
const char *text_cut(char *out, size_t size, const char *text, size_t columns);

/// Like text_cut(), filled up with blanks to @a columns.
const char *text_fit(char *out, size_t size, const char *text, size_t columns);

/// "just now", "2 minutes ago": how long @a ms is, in its largest unit. @return @a out
const char *text_ago(char *out, size_t size, int64_t ms);

/// The same with short units: "2 min ago".
const char *text_ago_short(char *out, size_t size, int64_t ms);

/// The string member @a key of @a object, or @a otherwise (also when @a object is NULL).
const char *text_of(const json_t *object, const char *key, const char *otherwise);

/// The integer member @a key of @a object, or @a otherwise.
int64_t number_of(const json_t *object, const char *key, int64_t otherwise);

/// Prints @a value as one compact line. What text_clean() replaces is escaped.
void print_json(const json_t *value);

/// "1 person", "2 people".
const char *plural(int64_t n, const char *one, const char *many);

#endif
