// SPDX-License-Identifier: Apache-2.0
/// @file
/// The cursor bus: one thread with one connection that does for the cursors what takes the database. It sends what was
/// posted here to the other instances, sees leases again whose known expiry is near, sees the leases of what other
/// instances sent, and lets the room tail keep the rooms.
///
/// Sending is batched: one statement in CURSOR_ROUND_US at most, with as many notifications as the packets of that time
/// need. And it is capped: CURSOR_RATE packets a second, after a quiet time CURSOR_BURST at once. Above that the
/// sessions wait in a queue, in which each has one place and its newest packet: watchers on other instances see fewer
/// steps, and each session's latest one when its turn comes. Watchers on this instance are not affected. Where a
/// notification could not be sent everything of this instance is sent again once it can.
#ifndef SH_LIVE_CURSOR_BUS_H
#define SH_LIVE_CURSOR_BUS_H

#include "db/db.h"
#include "live/cursors.h"
#include "live/tail.h"

#define CURSOR_ROUND_US INT64_C(50000)
#define CURSOR_RATE 500
#define CURSOR_BURST 100

struct cursor_bus;

/// Starts the thread. @return NULL when that fails
struct cursor_bus *cursor_bus_start(const struct db_options *db, struct cursors *cursors, struct tail *tail);

/// Joins and frees. Main thread, before the workers' mailboxes go. NULL is fine.
void cursor_bus_stop(struct cursor_bus *bus);

#endif
