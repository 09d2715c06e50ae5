// SPDX-License-Identifier: Apache-2.0
/// @file
/// What the sweeper could not end though nobody was in its way: a row that somebody has broken by hand, or a room that
/// can count no further. Each is tried again after 1 s, then after pauses that double up to two minutes, so that the
/// logs are not filled until somebody sees to it; once it is mended it ends within the pause. Not thread-safe: the
/// sweeper's own.
#ifndef SH_LIVE_STUCK_H
#define SH_LIVE_STUCK_H

#include <stdbool.h>
#include <stdint.h>

#include "store/sweep.h"

/// So many are remembered; what is beyond is tried with every sweep.
#define STUCK_MAX 512

struct stuck;

/// @return NULL when memory ran out
struct stuck *stuck_new(void);
void stuck_free(struct stuck *stuck);

/// @a o could not be ended. @param now_us monotonic @return the pause in milliseconds; 0 when there is no room for it
int64_t stuck_note(struct stuck *stuck, const struct overdue *o, int64_t now_us);

/// Whether anything waits, so that it is worth asking for each.
bool stuck_any(const struct stuck *stuck, int64_t now_us);

/// Whether @a o is not to be tried yet. With another revision it is another.
bool stuck_waits(const struct stuck *stuck, const struct overdue *o, int64_t now_us);

#endif
