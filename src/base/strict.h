// SPDX-License-Identifier: Apache-2.0
/// @file
/// Reading what strangers send: numbers, identifiers, percent-encoding. Pure functions, any thread.
#ifndef SH_BASE_STRICT_H
#define SH_BASE_STRICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// Plain digits only (no sign, space, plus or hex; leading zeros are fine), no overflow, within [@a min, @a max].
/// @return false otherwise; @a out is then untouched
bool strict_int(const char *s, size_t len, int64_t min, int64_t max, int64_t *out);

/// An identifier of CONTRACT §1: 1 to IDENT_MAX bytes of valid UTF-8 without control characters (U+0000–001F, 007F),
/// and neither `.` nor `..`.
/// @return NULL when it is one, else a static phrase why not, fit to follow the field's name ("is empty")
const char *ident_problem(const char *s, size_t len);

/// A request id that is taken from a client: 1 to REQUEST_ID_MAX of [A-Za-z0-9._:/+=@-].
bool request_id_sane(const char *s, size_t len);

/// Decodes %XX once, in place or not (@a out may be @a in and needs @a len + 1 bytes), `+` stays `+`; adds a NUL.
/// @return the decoded length, or -1 for a bad escape or a decoded NUL
long percent_decode(const char *in, size_t len, char *out);

/// Whether @a s is valid UTF-8 (no surrogates, no overlong forms).
bool utf8_valid(const char *s, size_t len);

#endif
