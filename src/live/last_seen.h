// SPDX-License-Identifier: Apache-2.0
/// @file
/// The last-seen writer: a thread that brings the tables user_last_seen and room_last_seen up to date every
/// last_seen_flush_ms, for dashboards that read SQL. Heartbeats only leave their time in memory here.
///
/// Nothing depends on it: a live lease has its renewed_at, and the end of a lease writes the time in its own
/// transaction. So what does not fit into memory, or is lost by a crash, comes into the tables a little later, and
/// replies over HTTP never lack it.
#ifndef SH_LIVE_LAST_SEEN_H
#define SH_LIVE_LAST_SEEN_H

#include "db/db.h"
#include "store/op.h"

/// Users in rooms that are remembered at most, some 40 MB.
#define LAST_SEEN_MAX ((size_t)200000)

struct last_seen;

/// Starts the thread. @param db outlives it; its lock timeout should be short, its statement timeout some seconds.
/// @return NULL when that fails
struct last_seen *last_seen_start(const struct db_options *db, int64_t flush_ms);

/// Notes the accepted heartbeats among decided ops, under one lock for all. Any thread. @a ls NULL: does nothing
void last_seen_note(struct last_seen *ls, struct op *const *ops, size_t n);

/// Writes what is there, for about @a grace_ms at most, then joins and frees. Whoever notes must have ended before.
/// Main thread. NULL is fine.
void last_seen_stop(struct last_seen *ls, int grace_ms);

#endif
