// SPDX-License-Identifier: Apache-2.0
/// @file
/// Limits on how often and how many at a time, for each address and for each credential, in memory that is bounded
/// however many of them there are. Counted by this instance alone, on the monotonic clock. Any thread.
#ifndef SH_LIVE_LIMITS_H
#define SH_LIVE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "auth/credential.h"
#include "config/config.h"

// -- how often: token buckets --------------------------------------------------------------------------------------

/// A bucket that holds `burst` tokens when full and gets `rate` a second.
struct bucket {
  int64_t micro;  ///< millionths of a token in it; below 0: in debt
  int64_t now_us; ///< monotonic, when that was so
};

/// How fast and how large.
struct bucket_size {
  int64_t rate; ///< tokens a second, at least 1
  int64_t burst;
};

/// Takes @a cost tokens where @a need of them are there. With a cost above the need the bucket may be left in debt.
/// @return 0, or after how many milliseconds it is worth to try again (nothing was taken then). Pure.
int64_t bucket_take(struct bucket *bucket, const struct bucket_size *size, int64_t cost, int64_t need, int64_t now_us);

struct limits;

/// @return NULL when memory ran out
struct limits *limits_new(const struct config *config);
void limits_free(struct limits *limits);

/// Takes @a cost tokens from the bucket of an address (an IPv6 address by its /64; a unix socket has none).
/// @return 0, or after how many milliseconds it is worth to try again (nothing was taken then; counted in the metrics)
int64_t limits_address(struct limits *limits, const struct sockaddr *addr, int64_t cost);

/// The same for a credential, by its kind and name; 0 for NULL.
int64_t limits_credential(struct limits *limits, const struct credential *credential, int64_t cost);

/// Likewise what a request costs beyond the first token, which was taken at its head. A cost that no bucket holds is
/// taken when the bucket is full but for that one, and leaves it in debt: a large batch is paid for later, rather than
/// refused for ever.
int64_t limits_credential_rest(struct limits *limits, const struct credential *credential, int64_t cost);

// -- how many at a time: waiting polls and streams -----------------------------------------------------------------

/// Counts one waiter more for the credential or, where there is none, for the address.
/// @return false when longpoll_max_per_credential wait already, or memory ran out; not counted then
bool limits_wait(struct limits *limits, const struct credential *credential, const struct sockaddr *addr);

/// It waits no more: the same two as then.
void limits_wait_over(struct limits *limits, const struct credential *credential, const struct sockaddr *addr);

#endif
