// SPDX-License-Identifier: Apache-2.0
/// @file
/// The listener keeps the room tail up to date, with two threads, so that a connection that hangs never holds up the
/// other's work. One holds LISTEN on a direct connection; the other reads all dirty rooms with one query, and polls the
/// watched rooms every second in case a notification was lost. It also sends a probe now and then, on a channel of
/// its own: where that is not heard, LISTEN does not work (a pooler, a standby) and nobody relies on it.
#ifndef SH_LIVE_LISTENER_H
#define SH_LIVE_LISTENER_H

#include "db/db.h"
#include "live/cursors.h"
#include "live/tail.h"

struct listener;

/// Starts the threads. @a listen_db is the direct connection, @a query_db may go through a pooler. @a cursors are given
/// what is heard on their channel. @return NULL when that fails
struct listener *listener_start(const struct db_options *listen_db, const struct db_options *query_db,
                                struct tail *tail, struct cursors *cursors);

/// Joins and frees. Main thread, once nobody else uses the tail any more.
void listener_stop(struct listener *listener);

/// Reads a notification's payload, a JSON array `["room",revision,"room",revision…]`, and calls @a each.
/// @return false when it is malformed (nothing is called then)
bool notification_parse(const char *payload, void (*each)(void *ctx, const char *room_id, int64_t revision), void *ctx);

#endif
