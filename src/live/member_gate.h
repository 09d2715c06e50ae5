// SPDX-License-Identifier: Apache-2.0
/// @file
/// Whether a user's membership of a room stands, for those who watch: asked when a poll or a stream begins and each
/// time that it wakes.
#ifndef SH_LIVE_MEMBER_GATE_H
#define SH_LIVE_MEMBER_GATE_H

#include "live/tail.h"

enum standing {
  STANDING_GOOD,
  STANDING_REVOKED,
  STANDING_UNKNOWN, ///< memory does not have the room (yet): the database has to be asked
};

/// What memory says of @a user_id in @a room_id, at most a second behind the database while the listener is connected.
/// Worker threads.
enum standing member_standing(struct tail *tail, const char *room_id, const char *user_id);

#endif
