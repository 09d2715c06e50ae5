// SPDX-License-Identifier: Apache-2.0
/// @file
/// Writes JSON text straight into a buffer, for replies made thousands of times a second. Requests are read with
/// jansson. Each call writes what it says and, between members or elements, the comma that is due: a comma goes in
/// front unless the last byte written is `{`, `[`, `:` or the buffer is empty.
#ifndef SH_BASE_JSONOUT_H
#define SH_BASE_JSONOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/// Opens an object or array, as a value (after jo_key()) or element; closes it.
void jo_object(struct buf *b);
void jo_object_end(struct buf *b);
void jo_array(struct buf *b);
void jo_array_end(struct buf *b);

/// `"key":`. @a key is ours and needs no escaping.
void jo_key(struct buf *b, const char *key);

/// A string value, escaped; NULL writes `null`. The bytes are valid UTF-8 (checked at the door).
void jo_str(struct buf *b, const char *s);
void jo_strn(struct buf *b, const char *s, size_t len);

void jo_int(struct buf *b, int64_t v);
void jo_bool(struct buf *b, bool v);
void jo_null(struct buf *b);

/// Text that is JSON already (a stored meta), taken as it is, but on one line: a column of type json keeps the line
/// breaks that somebody wrote by hand. They stand outside of strings, where a blank means the same.
void jo_raw(struct buf *b, const char *json, size_t len);

/// A time in Unix microseconds as an RFC 3339 string with milliseconds.
void jo_time(struct buf *b, int64_t unix_us);

/// Key and value in one call.
void jo_kstr(struct buf *b, const char *key, const char *s);
void jo_kint(struct buf *b, const char *key, int64_t v);
void jo_kbool(struct buf *b, const char *key, bool v);
void jo_ktime(struct buf *b, const char *key, int64_t unix_us);

#endif
