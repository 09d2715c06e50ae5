// SPDX-License-Identifier: Apache-2.0
/// @file
/// Small things that every room of the house uses.
#ifndef SH_BASE_UTIL_H
#define SH_BASE_UTIL_H

#include <stddef.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/// The struct that contains @a member at @a ptr.
#define CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/// Lets the compiler check format strings: @a fmt and @a args are parameter numbers from 1.
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/// Bytes of an identifier (room, user, session), without the terminating NUL (CONTRACT §1).
#define IDENT_MAX 128

/// Bytes of a request id, without the NUL.
#define REQUEST_ID_MAX 64

/// The largest revision, 2^53-1: what a JavaScript number holds exactly (CONTRACT §1).
#define REVISION_MAX INT64_C(9007199254740991)

#endif
