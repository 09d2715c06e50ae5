// SPDX-License-Identifier: Apache-2.0
/// @file
/// What both forms of `stillhere watch` share: how a room is polled, and how patient they are.
#ifndef SH_CLI_WATCH_H
#define SH_CLI_WATCH_H

#include <stdint.h>

#include "cli/http.h"
#include "cli/options.h"

/// Asked of the server; it may add 1/16 of jitter.
#define WATCH_WAIT_MS 25000
/// How long an answer may take: the wait, its jitter, and what a live connection may be late.
#define WATCH_TIMEOUT_MS (WATCH_WAIT_MS + WATCH_WAIT_MS / 16 + 10000)
#define WATCH_PAUSE_FIRST_MS 500
#define WATCH_PAUSE_MOST_MS 30000
/// Attempts until the first answer; after that it never gives up.
#define WATCH_ATTEMPTS 5
/// An empty answer that comes faster than this is followed by a pause: a server that is stopping answers waits at once.
#define WATCH_HASTY_US 100000

/// The path of a poll of the room. @param since -1: a snapshot. @param epoch, kinds NULL: none
void watch_path(struct buf *path, const char *room, int64_t since, const char *epoch, const char *kinds);

/// The room on a terminal, drawn in place, until a signal. @return the exit code
int watch_live(const struct options *options);

#endif
