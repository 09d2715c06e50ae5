// SPDX-License-Identifier: Apache-2.0
/// @file
/// The state of the process and what /readyz says of it. Atomics, any thread.
#ifndef SH_HTTP_LIFECYCLE_H
#define SH_HTTP_LIFECYCLE_H

#include <stdatomic.h>
#include <stdbool.h>

struct peers;

struct lifecycle {
  atomic_bool migrated;   ///< the schema is up to date
  atomic_bool draining;   ///< SIGTERM came
  atomic_int connections; ///< open ones, counted by the acceptor and the workers
  atomic_int requests;    ///< begun and not yet answered to the last byte
  atomic_int waiting;     ///< parked polls
  struct peers *peers;    ///< connections by address (http/peers.h); NULL: not counted
};

#endif
