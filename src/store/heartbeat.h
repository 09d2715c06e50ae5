// SPDX-License-Identifier: Apache-2.0
/// @file
/// Decides and stores many heartbeats, or many closes, as one transaction. The decisions are made under the rows'
/// locks, in one global lock order: leases by key, tombstones by key, users, rooms (doc/threads.md).
#ifndef SH_STORE_HEARTBEAT_H
#define SH_STORE_HEARTBEAT_H

#include <stddef.h>

#include "db/db.h"
#include "store/op.h"
#include "store/written.h"

/// Most ops in one transaction.
#define STORE_BATCH_MAX 1024

struct store_rules {
  bool membership_required;
  bool renewal_events;           ///< every accepted renewal is an event
  int64_t renew_interval_min_ms; ///< a renewal that comes sooner is refused; 0: none is
  int64_t max_leases_per_user;   ///< live ones; a stay beyond it does not begin; 0: no limit
  int64_t max_leases_per_room;   ///< likewise
  int64_t offline_grace_ms;      ///< how long a user stays online after the last session has ended
  int64_t silence_ms;            ///< a pulse that is older means an outage (store/pulse.h); 0: nobody asks
};

/// Runs @a ops (all OP_HEARTBEAT; at most STORE_BATCH_MAX; the same lease may come twice and is decided in order).
/// On DB_OK each op has its decision and everything is committed. Otherwise nothing is (DB_LOST: unknown; it is safe to
/// run the same ops again), and the ops' results are cleared. Reorders the array of pointers.
enum db_status store_heartbeats(struct db *db, const struct store_rules *rules, struct op **ops, size_t n,
                                struct written *written);

/// The same for OP_CLOSE.
enum db_status store_closes(struct db *db, const struct store_rules *rules, struct op **ops, size_t n,
                            struct written *written);

/// One OP_CLOSE inside the caller's transaction, which runs all of it again after a DB_RETRY. The op and @a written are
/// cleared first, and not after a failure.
enum db_status store_close_within(struct db *db, const struct store_rules *rules, struct op *op,
                                  struct written *written);

#endif
