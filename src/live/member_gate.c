// SPDX-License-Identifier: Apache-2.0
#include "live/member_gate.h"

#include "base/clock.h"
#include "live/tail_private.h"

// Who is turned away by a memory older than this has the room read, so that a lost notification of a new grant does not
// last; for the next attempt, since a grant that was heard of is in memory already.
#define DOUBT_US INT64_C(1000000)

enum standing member_standing(struct tail *tail, const char *room_id, const char *user_id) {
  tail_check_epoch(tail);
  int64_t now_us = clock_mono_us();
  enum standing standing = STANDING_UNKNOWN;
  struct tail_place place = tail_lock(tail, room_id);
  struct tail_room *room = place.room;
  if (room && room->loaded) {
    if (revoked_has(&room->revoked, user_id))
      standing = STANDING_REVOKED;
    else if (!room->revoked.cut)
      standing = STANDING_GOOD;
    if (standing == STANDING_REVOKED && room->reading_since_us == 0 && now_us - room->checked_at_us > DOUBT_US)
      room_mark_dirty(tail, place.shard, room);
  }
  pthread_mutex_unlock(&place.shard->lock);
  return standing;
}
