// SPDX-License-Identifier: Apache-2.0
/// @file
/// Writes visible changes inside the transaction that made them: room revisions, events, who is online, tombstones,
/// last-seen and the notification. Heartbeats, closes and the sweeper all end here, so a change and its event cannot
/// part, and whether a user comes online or begins a grace is decided under the row of the room.
///
/// Locks, after the caller's locks on leases and tombstones: users by id, then rooms by id, held to the commit.
#ifndef SH_STORE_TRANSITION_H
#define SH_STORE_TRANSITION_H

#include <stddef.h>

#include "db/db.h"
#include "store/op.h"
#include "store/written.h"

/// One change of one session, or EVENT_USER_OFFLINE: the end of a user's grace, which is judged again under the lock
/// and left out where a session came meanwhile. Input strings live until transitions_write() returns.
struct transition {
  enum event_kind kind;
  struct lease_key key; ///< session_id is NULL where the event is not about one
  int64_t lease_revision;
  int64_t tombstone_revision; ///< where it is higher than lease_revision; else 0
  const char *request_id;     ///< may be NULL
  const char *meta;           ///< granted, renewed: JSON text or NULL
  int64_t renewed_at_us;      ///< of an ended lease: the user was last seen then
  int64_t expires_at_us;      ///< expired: when it ran out
  bool bury;                  ///< writes a tombstone (an ended lease, unless it begins again at once)
  struct op *op;              ///< told its event_id and room_revision; may be NULL
  char *owned;                ///< a string above that is nobody else's; freed with the list
  // Results.
  int64_t revision;   ///< of the room
  int64_t overdue_ms; ///< expired only
  char *event_id;     ///< freed by transitions_free()
  int64_t user_sessions;
};

/// A growing list. Zero-initialised is empty.
struct transitions {
  struct transition *list;
  size_t n, cap;
  bool failed; ///< memory ran out
};

/// Appends a zeroed transition and returns it, or NULL (and `failed`) when memory ran out. Pointers into the list move.
struct transition *transitions_add(struct transitions *t, enum event_kind kind, const struct lease_key *key);
void transitions_free(struct transitions *t);

/// Writes all of them, in the list's order within each room, with the user.online and user.offline that follow from
/// them, and adds the events to @a written. The list then has these events too. The rows of lease must be in their
/// final state already: sessions are counted under the room's lock. Inside a transaction.
/// @return DB_RETRY also where a session begins for a user whose membership was revoked since it was looked at
enum db_status transitions_write(struct db *db, int64_t offline_grace_ms, struct transitions *t,
                                 struct written *written);

#endif
