// SPDX-License-Identifier: Apache-2.0
/// @file
/// When a user is online and offline in a room (CONTRACT §4): one state for each person, however many tabs. Pure
/// functions over what the room's row protects; the store calls them for each session event of a transaction, in order.
#ifndef SH_STORE_USER_RULES_H
#define SH_STORE_USER_RULES_H

#include "store/lease.h"

/// A user in a room. Times are Unix microseconds on the database's clock.
struct user_state {
  int64_t sessions;        ///< leases of the user in the room
  bool online;             ///< there is a row of room_user
  int64_t online_since_us; ///< meaningful while online
  int64_t offline_at_us;   ///< end of the grace; 0: a session is there
  bool changed;            ///< the row must be written or deleted
};

/// What a session event does to the number of its user's sessions: 1, -1 or 0.
/// @param has_session whether the event names a session (a revocation need not)
int user_sessions_delta(enum event_kind kind, bool has_session);

/// Applies an event at @a at_us and says what else happens in the same transaction: EVENT_USER_ONLINE,
/// EVENT_USER_OFFLINE, or -1 for nothing. Not for those two kinds themselves.
int user_state_apply(struct user_state *s, enum event_kind kind, bool has_session, int64_t at_us,
                     int64_t offline_grace_ms);

/// Whether the grace is over at @a at_us; if so the user is offline from here on. A session that came meanwhile has
/// ended the grace, so the answer is no.
bool user_state_grace_over(struct user_state *s, int64_t at_us);

#endif
