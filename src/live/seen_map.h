// SPDX-License-Identifier: Apache-2.0
/// @file
/// The newest heartbeat of each user in each room that is not written down yet: a bounded map in memory. No lock, no
/// clock, no I/O; for the last-seen writer (live/last_seen.h).
#ifndef SH_LIVE_SEEN_MAP_H
#define SH_LIVE_SEEN_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// Zero-initialised is empty.
struct seen_map {
  struct seen *entries;
  int64_t oldest_us; ///< monotonic: nothing in it was noted earlier; meaningless while it is empty
};

/// One entry. Lives until its map is cleared.
struct seen;

/// Notes a sighting. A newer time replaces an older one, an older one changes nothing. @param noted_us now, monotonic
/// @param max a new entry is refused when there are so many
/// @return false when there was no room or no memory
bool seen_map_put(struct seen_map *map, const char *room_id, const char *user_id, int64_t seen_us, int64_t noted_us,
                  size_t max);

size_t seen_map_count(const struct seen_map *map);

/// Puts all entries of @a from into @a into, as far as they fit, and clears @a from. @return how many did not fit
size_t seen_map_merge(struct seen_map *into, struct seen_map *from, size_t max);

/// The entries in no order. NULL begins, NULL ends.
struct seen *seen_map_next(const struct seen_map *map, const struct seen *after);

const char *seen_room(const struct seen *seen);
const char *seen_user(const struct seen *seen);
int64_t seen_at(const struct seen *seen);

/// Frees all entries.
void seen_map_clear(struct seen_map *map);

#endif
