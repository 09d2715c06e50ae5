// SPDX-License-Identifier: Apache-2.0
/// @file
/// Limits on how often: a token bucket for each address and for each credential, in memory that is bounded however many
/// of them there are. Counted by this instance alone. Any thread.
#ifndef SH_LIVE_LIMITS_H
#define SH_LIVE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "config/config.h"

struct limits;

/// @return NULL when memory ran out
struct limits *limits_new(const struct config *config);
void limits_free(struct limits *limits);

/// Takes @a cost tokens from the bucket of an address (an IPv6 address by its /64; a unix socket has none).
/// @return 0, or after how many milliseconds it is worth to try again (nothing was taken then)
int64_t limits_address(struct limits *limits, const struct sockaddr *addr, int64_t cost);

/// The same for a credential, by its kind and name.
int64_t limits_credential(struct limits *limits, const char *name, int64_t cost);

#endif
