// SPDX-License-Identifier: Apache-2.0
/// @file
/// Whether sessions are here right now: what a cursor's sender must be (CONTRACT §7). One statement, so one MVCC
/// snapshot: the end of a stay that is read as live has a room revision above `room_revision`.
#ifndef SH_STORE_STAY_H
#define SH_STORE_STAY_H

#include <stddef.h>

#include "db/db.h"
#include "store/lease.h"

/// A stay is the time from a lease's `granted_at` to its end; another one of the same session has another granted_at.
struct stay {
  bool live;             ///< there is a lease that has not expired, and the member is not revoked
  bool revoked;          ///< not live, and a revocation is the reason
  int64_t granted_at_us; ///< of a live one, Unix microseconds on the database's clock
  int64_t expires_at_us; ///< likewise
  int64_t room_revision; ///< as of when this was read; 0 when the room does not exist
  unsigned generation;   ///< epoch_generation() before it was read
  int64_t asked_us;      ///< monotonic, before it was read: what was committed before then is in it
};

/// Reads @a n stays with one query. Reader threads and the cursor bus.
enum db_status read_stays(struct db *db, const struct lease_key *keys, size_t n, struct stay *stays);

#endif
