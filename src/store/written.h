// SPDX-License-Identifier: Apache-2.0
/// @file
/// What a transaction wrote, for those who learn of it after the commit: the tail in memory and the decision log.
#ifndef SH_STORE_WRITTEN_H
#define SH_STORE_WRITTEN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "store/lease.h"

/// A lease that ran out, for the decision log. Strings are its own.
struct expiry {
  char *room_id, *user_id, *session_id;
  int64_t revision;
  char *event_id;
  char *request_id; ///< of the last renewal; may be NULL
  int64_t overdue_ms;
};

/// Zero-initialise; clear with written_clear().
struct written {
  struct event *events; ///< in order of their revisions within each room
  size_t n_events;
  struct expiry *expiries;
  size_t n_expiries;
  bool past_leases; ///< the transaction had all its leases: a lock that stopped it was a user's or a room's
};

void written_clear(struct written *w);

/// Makes room for @a n more events and as many expiries. @return false when memory ran out
bool written_reserve(struct written *w, size_t n);

/// Adds one, after written_reserve(). Copies the strings; takes the bytes of @a json. @return false when memory ran out
bool written_event(struct written *w, const char *room_id, int64_t revision, enum event_kind kind, struct buf *json);
bool written_expiry(struct written *w, const struct lease_key *key, int64_t revision, const char *event_id,
                    const char *request_id, int64_t overdue_ms);

#endif
