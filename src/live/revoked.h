// SPDX-License-Identifier: Apache-2.0
/// @file
/// A set of users whose membership of one room is revoked, as memory knows it: what was read from the database at some
/// revision of the room, and what events have told since. Not thread-safe: part of a room of the tail.
#ifndef SH_LIVE_REVOKED_H
#define SH_LIVE_REVOKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct revoked_user {
  char *id;
  int64_t revision; ///< the room's revision that told of it; 0: it was read
};

/// Zero-initialise; free with revoked_clear().
struct revoked_set {
  struct revoked_user *users; ///< in byte order
  size_t n, cap;
  bool cut; ///< there may be others
};

enum revoked_added { REVOKED_ADDED, REVOKED_KNOWN, REVOKED_NO_MEMORY };

void revoked_clear(struct revoked_set *set);

/// Fills an empty set from @a text: a user a line, in byte order; NULL: none. @return false when memory ran out
bool revoked_parse(struct revoked_set *set, const char *text);

bool revoked_has(const struct revoked_set *set, const char *user_id);

/// An event at @a revision said that the user was revoked.
enum revoked_added revoked_add(struct revoked_set *set, const char *user_id, int64_t revision);

/// The user is a member again. @return whether it was in the set
bool revoked_remove(struct revoked_set *set, const char *user_id);

/// Puts @a fresh, which was read when the room was at @a revision, in the place of @a set; what events after that have
/// told is kept. @a fresh then holds what was replaced: the caller clears it.
/// @param[out] grew whether somebody is in the set who was not
/// @return false when memory ran out: some may be missing, and the set is marked as cut
bool revoked_replace(struct revoked_set *set, struct revoked_set *fresh, int64_t revision, bool *grew);

#endif
