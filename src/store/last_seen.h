// SPDX-License-Identifier: Apache-2.0
/// @file
/// Writes when users were last seen, many at once: user_last_seen (anywhere) and room_last_seen (in a room).
#ifndef SH_STORE_LAST_SEEN_H
#define SH_STORE_LAST_SEEN_H

#include <stddef.h>
#include <stdint.h>

#include "db/db.h"

/// Most sightings in one transaction, so that it holds its row locks for a moment only: a lease of the same user that
/// ends meanwhile waits for them.
#define LAST_SEEN_BATCH_MAX 4000

/// A user's newest accepted heartbeat in a room.
struct sighting {
  const char *room_id, *user_id;
  int64_t seen_us; ///< Unix microseconds, database clock
};

/// Byte order of (user, room): what belongs to one user lies together.
int sighting_compare(const void *a, const void *b);

/// Writes them as one transaction with one statement for each table, users before rooms, each in the order of its key.
/// What is stored only ever moves forward. @param list sorted by sighting_compare(), each user and room once, at most
/// LAST_SEEN_BATCH_MAX. A DB_LOST may have committed: writing the same again is harmless.
enum db_status last_seen_write(struct db *db, const struct sighting *list, size_t n);

#endif
