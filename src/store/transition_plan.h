// SPDX-License-Identifier: Apache-2.0
/// @file
/// What transition.c (what happens) and transition_sql.c (how it is read and written) share: the rooms, users and users
/// in rooms that a list of transitions is about, each once and sorted in the lock order. Nobody else includes it.
#ifndef SH_STORE_TRANSITION_PLAN_H
#define SH_STORE_TRANSITION_PLAN_H

#include "store/transition.h"
#include "store/user_rules.h"

struct planned_user {
  const char *user_id;
  int64_t seen_us; ///< newest renewal of the leases that end here
};

struct planned_room {
  const char *room_id;
  int64_t head; ///< its revision: as read under its lock, then counted up by the events
  int64_t n_events;
};

/// A user in a room.
struct planned_pair {
  const char *room_id, *user_id;
  bool ended;      ///< a lease of the user ends here: last-seen is written
  int64_t seen_us; ///< newest renewal of those
  int64_t delta;   ///< what the transitions add to the sessions, all in all
  struct user_state state;
  bool revoked; ///< the membership is: read under the room's lock
};

struct plan {
  struct planned_user *users; ///< of leases that end
  struct planned_room *rooms;
  struct planned_pair *pairs;
  size_t n_users, n_rooms, n_pairs;
  int64_t at_us; ///< when all of it happens: read under the locks
};

/// Locks users and rooms, and reads heads, session counts and user states under those locks. One round trip.
enum db_status plan_lock(struct db *db, struct plan *plan);

/// Writes events, tombstones, rooms, user states and the notification. One round trip.
enum db_status plan_write(struct db *db, const struct plan *plan, const struct transitions *events);

struct planned_room *plan_room(const struct plan *plan, const char *room_id);
struct planned_pair *plan_pair(const struct plan *plan, const char *room_id, const char *user_id);

/// Whether an event of this kind ends a lease.
bool ends_lease(enum event_kind kind);

/// The meta that goes with an event, or NULL.
const char *transition_meta(const struct transition *x);

#endif
