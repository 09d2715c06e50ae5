// SPDX-License-Identifier: Apache-2.0
/// @file
/// What the database says of the leases that a batch is about, read and locked in the global order: leases by key,
/// tombstones by key, members by (room, user).
#ifndef SH_STORE_SUBJECT_H
#define SH_STORE_SUBJECT_H

#include <stddef.h>

#include "db/db.h"
#include "store/lease_rules.h"

/// One op with the facts that decide it. Arrays of subjects are sorted by the op's key, every key once.
struct subject {
  struct op *op;
  struct lease_facts facts;
  bool has_row;       ///< a row of lease is there; the op's lease holds it
  bool has_tombstone; ///< one is there
  char *event_id;     ///< of the tombstone
};

void subjects_free(struct subject *subjects, size_t n);

/// Locks the rows of lease and fills in state, revision and the op's lease, whose expires_at has the credit for an
/// outage in it (store/pulse.h).
/// @param silence_ms for pulse_doubt(); 0: it is not asked
enum db_status subjects_lock_leases(struct db *db, struct subject *subjects, size_t n, int64_t silence_ms);

/// Locks the tombstones. State and revision come from them where there is no row of lease.
enum db_status subjects_lock_tombstones(struct db *db, struct subject *subjects, size_t n);

/// Reads the memberships and holds them against a change until the commit.
enum db_status subjects_lock_members(struct db *db, struct subject *subjects, size_t n);

/// Sends the keys as three text arrays.
void subjects_key_params(struct db_params *p, const struct subject *subjects, size_t n);

/// Deletes the rows of lease, or the tombstones; they are locked already.
extern const struct db_stmt leases_delete_stmt, tombstones_delete_stmt;

#endif
