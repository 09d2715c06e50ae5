// SPDX-License-Identifier: Apache-2.0
/// @file
/// The folding of event storms: how a watcher of a room keeps to the room's window (watch.c). Worker's thread.
///
/// A worker has one window for each room, so each watcher is woken at most once in it.
#ifndef SH_HTTP_FOLD_H
#define SH_HTTP_FOLD_H

#include "http/request.h"

/// How long the window of a room with so many watchers is, milliseconds; 0: every event goes out at once. Pure.
int64_t fanout_window_ms(int64_t watchers, int64_t max_ms);

/// The watching request has seen everything (or sent it, as a stream) and waits for news: it can wait for the end of a
/// window. Called before request_park().
void request_stand_at_head(struct request *r);

/// The watching request waits for a read, and is woken when that is over, window or not.
void request_await_read(struct request *r);

/// When the window ends that the watched room is in, monotonic; 0 when it is in none, and for a request that has been
/// woken with its room and has not answered since.
int64_t request_hold_until(const struct request *r);

/// The request, which is behind the head, waits for the end of the window. Called before request_park().
void request_hold(struct request *r);

#endif
