// SPDX-License-Identifier: Apache-2.0
/// @file
/// The row of a single room, for what is no batch of leases.
#ifndef SH_STORE_ROOM_H
#define SH_STORE_ROOM_H

#include "db/db.h"

/// Makes the room's row where there is none and locks it until the commit: nothing of the room's can commit before us
/// any more, and what a later statement reads of it is all there is. Step 5 of the lock order (doc/threads.md): a
/// user's last-seen comes before. Inside a transaction.
enum db_status room_lock(struct db *db, const char *room_id);

/// Tells all instances to read the room anew: its members have changed without an event. Inside a transaction; sent
/// with its commit.
enum db_status room_refresh(struct db *db, const char *room_id);

#endif
