// SPDX-License-Identifier: Apache-2.0
/// @file
/// Whether a user's membership of a room stands, for those who watch: asked when a poll or a stream begins and each
/// time that it wakes. The tail keeps each room's revoked users: read with the room's events and of the same moment,
/// added to by each membership.revoked event before anybody can be answered with it, and read anew when a member is
/// granted again. Whoever waits need not ask: when a set grows, the tail tells all workers.
#ifndef SH_LIVE_MEMBER_GATE_H
#define SH_LIVE_MEMBER_GATE_H

#include "live/tail.h"

enum standing {
  STANDING_GOOD,
  STANDING_REVOKED,
  STANDING_UNKNOWN, ///< memory does not have the room, or it has more revoked users than are kept in memory
                    ///< (ROOM_REVOKED_MAX): the database has to be asked
};

/// What memory says of @a user_id in @a room_id, at most a second behind the database while the listener is connected:
/// for a request that begins, after tail_current(). Worker threads.
enum standing member_standing(struct tail *tail, const char *room_id, const char *user_id);

#endif
