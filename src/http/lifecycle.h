// SPDX-License-Identifier: Apache-2.0
/// @file
/// The state of the process and what /readyz says of it. Atomics, any thread.
#ifndef SH_HTTP_LIFECYCLE_H
#define SH_HTTP_LIFECYCLE_H

#include <stdatomic.h>
#include <stdbool.h>

struct lifecycle {
  atomic_bool migrated;   ///< the schema is up to date
  atomic_bool draining;   ///< SIGTERM came
  atomic_int connections; ///< open ones, counted by the acceptor and the workers
  atomic_int waiting;     ///< parked polls
};

#endif
