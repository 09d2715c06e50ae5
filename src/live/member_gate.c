// SPDX-License-Identifier: Apache-2.0
#include "live/member_gate.h"

enum standing member_standing(struct tail *tail, const char *room_id, const char *user_id) {
  (void)tail;
  (void)room_id;
  (void)user_id;
  return STANDING_GOOD;
}
