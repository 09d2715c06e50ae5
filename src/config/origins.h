// SPDX-License-Identifier: Apache-2.0
/// @file
/// The value of `cors_origins`: origins as browsers write them, separated by commas, or `*` alone.
#ifndef SH_CONFIG_ORIGINS_H
#define SH_CONFIG_ORIGINS_H

#include <stdbool.h>
#include <stddef.h>

/// @return NULL when the list is fine (an empty one is), else what is accepted
const char *origins_problem(const char *list);

/// Whether the list is `*`.
bool origins_any(const char *list);

/// Whether @a origin is in the list, byte for byte. Not for `*`.
bool origins_have(const char *list, const char *origin);

#endif
