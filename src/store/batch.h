// SPDX-License-Identifier: Apache-2.0
/// @file
/// How a batch of ops becomes one transaction, heartbeats and closes alike: rounds in which every lease comes once,
/// then what they wrote; from the start again after a conflict; nothing left over after a failure.
#ifndef SH_STORE_BATCH_H
#define SH_STORE_BATCH_H

#include "db/db.h"
#include "store/heartbeat.h"
#include "store/transition.h"

struct batch {
  const struct store_rules *rules;
  struct op *const *ops;
  size_t n;
  struct written *written;
  struct transitions transitions; ///< what the rounds so far have decided and not yet written

  /// Decides one round, @a ops sorted by key, and adds to `transitions`. Inside the transaction.
  enum db_status (*round)(struct db *db, struct batch *b, struct op *const *ops, size_t n);
  /// Whether each round's transitions are written before the next round, since that looks at them. Otherwise all are
  /// written at the end.
  bool write_each_round;
};

/// Runs the batch. On DB_OK all is committed; otherwise the ops' results and what was written are cleared, but for
/// written->past_leases.
enum db_status batch_run(struct db *db, struct batch *b);

/// The same inside the caller's transaction, and without clearing anything after a failure.
enum db_status batch_run_within(struct db *db, struct batch *b);

#endif
