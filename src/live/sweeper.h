// SPDX-License-Identifier: Apache-2.0
/// @file
/// The sweeper: a thread that ends overdue leases and graces and prunes what is past its retention. Any number of
/// instances sweep the same database; the conditional delete decides who ends a lease.
#ifndef SH_LIVE_SWEEPER_H
#define SH_LIVE_SWEEPER_H

#include "db/db.h"
#include "live/decision_log.h"
#include "live/tail.h"

struct sweeper_options {
  const struct db_options *db;
  int64_t sweep_interval_ms;
  int64_t ttl_min_ms; ///< no lease that is granted or renewed from now on ends sooner than this
  int64_t ttl_max_ms; ///< none that was live at some moment is live so long after it, if it is not renewed
  int64_t offline_grace_ms;
  int64_t event_retention_ms, event_retention_count, tombstone_retention_ms;
  struct tail *tail;
  struct decision_log *log;
};

/// Longer than sweeps of this interval ever leave the pulse alone (store/pulse.h), milliseconds.
int64_t sweeper_silence_ms(int64_t sweep_interval_ms);

struct sweeper;

/// Starts the thread. @return NULL when that fails. @a options is copied.
struct sweeper *sweeper_start(const struct sweeper_options *options);

/// Ends after the transaction under way, joins and frees.
void sweeper_stop(struct sweeper *sweeper);

#endif
