// SPDX-License-Identifier: Apache-2.0
/// @file
/// The listener: a thread that keeps the room tail up to date. It holds LISTEN on a direct connection, reads all dirty
/// rooms with one query, and polls the watched rooms every second in case a notification was lost.
#ifndef SH_LIVE_LISTENER_H
#define SH_LIVE_LISTENER_H

#include "db/db.h"
#include "live/tail.h"

/// The one notification channel.
#define NOTIFY_CHANNEL "stillhere_rooms"

struct listener;

/// Starts the thread. @a listen_db is the direct connection, @a query_db may go through a pooler.
/// @return NULL when that fails
struct listener *listener_start(const struct db_options *listen_db, const struct db_options *query_db,
                                struct tail *tail);

void listener_stop(struct listener *listener);

/// Reads a notification's payload, a JSON array `["room",revision,"room",revision…]`, and calls @a each.
/// @return false when it is malformed (nothing more is called then)
bool notification_parse(const char *payload, void (*each)(void *ctx, const char *room_id, int64_t revision), void *ctx);

#endif
