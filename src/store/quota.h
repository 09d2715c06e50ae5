// SPDX-License-Identifier: Apache-2.0
/// @file
/// How many live leases a user, and a room, may have (max_leases_per_user, max_leases_per_room). Whoever begins a stay
/// where a quota is set first takes a lock for the room and one for the user, to the commit, and then counts: so the
/// quotas are exact, whatever many instances grant at once. They are transaction locks of their own (advisory), taken
/// behind those on leases, tombstones and members and before those on users and rooms; ends of leases need none.
#ifndef SH_STORE_QUOTA_H
#define SH_STORE_QUOTA_H

#include <stddef.h>

#include "db/db.h"
#include "store/subject.h"

/// Live leases of one room or one user.
struct quota_count {
  const char *id; ///< borrowed from a subject's key
  int64_t n;
};

/// One side of it: rooms, or users. Sorted by id.
struct quota_side {
  int64_t max; ///< 0: no limit; nothing is counted
  struct quota_count *counts;
  size_t n;
};

struct quota {
  struct quota_side rooms, users;
};

enum quota_room { QUOTA_FREE, QUOTA_ROOM_FULL, QUOTA_USER_FULL };

/// Locks and counts what the subjects that may begin a stay are about: @a fresh all (whose provisional rows do not
/// count), of @a left those that ran out. With both limits off, or nobody to ask for, it does nothing at all.
/// Free with quota_free() in any case.
enum db_status quota_read(struct db *db, struct quota *quota, int64_t max_per_room, int64_t max_per_user,
                          const struct subject *left, size_t n_left, const struct subject *fresh, size_t n_fresh);

/// Whether one lease more fits.
enum quota_room quota_look(const struct quota *quota, const struct lease_key *key);

/// One lease more was granted.
void quota_take(struct quota *quota, const struct lease_key *key);

void quota_free(struct quota *quota);

#endif
