// SPDX-License-Identifier: Apache-2.0
/// @file
/// The words of a lease: keys, rows, operations and decisions. Plain data, no I/O.
#ifndef SH_STORE_LEASE_H
#define SH_STORE_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/metric.h"

/// Names one session in one room. Strings are NUL-terminated, checked identifiers, owned by whoever holds the struct.
struct lease_key {
  const char *room_id, *user_id, *session_id;
};

/// Byte order of (room, user, session): the order of every lock on leases, the same as SQL's COLLATE "C".
int lease_key_compare(const struct lease_key *a, const struct lease_key *b);

/// A lease as it stands in the database. Times are Unix microseconds on the database's clock.
struct lease {
  struct lease_key key;
  int64_t revision;
  int64_t prior_revision; ///< 0 when there was none
  int32_t ttl_ms;
  int64_t granted_at_us, renewed_at_us, expires_at_us;
  char *meta;       ///< JSON text, or NULL where none was ever given
  char *request_id; ///< of the newest accepted heartbeat; may be NULL
};

/// What a heartbeat or a close came to (CONTRACT §2, §3).
enum decision {
  DECISION_NONE,                 ///< not decided: the database was away or the time ran out (503)
  DECISION_ACCEPTED,             ///< 200
  DECISION_ALREADY_APPLIED,      ///< 200
  DECISION_IGNORED_OLD_REVISION, ///< 409
  DECISION_SESSION_CLOSED,       ///< 410
  DECISION_MEMBERSHIP_REVOKED,   ///< 403
  DECISION_NOT_A_MEMBER,         ///< 403
  DECISION_NOT_FOUND,            ///< 404, close only
  DECISION_TOO_SOON,             ///< 429: renewed less than renew_interval_min_ms ago
  DECISION_TOO_MANY_LEASES,      ///< 429: its user, or its room, has as many leases as it may
};

/// The word of CONTRACT §2 ("accepted"), static; "unavailable" for DECISION_NONE.
const char *decision_name(enum decision d);

/// Its HTTP status.
int decision_status(enum decision d);

/// Event kinds, in the order of CONTRACT §4. Bit 1 << kind in a kinds mask.
enum event_kind {
  EVENT_LEASE_GRANTED,
  EVENT_LEASE_RENEWED,
  EVENT_LEASE_EXPIRED,
  EVENT_SESSION_CLOSED,
  EVENT_MEMBERSHIP_REVOKED,
  EVENT_USER_ONLINE,
  EVENT_USER_OFFLINE,
  EVENT_KIND_COUNT
};
#define EVENT_KINDS_ALL ((1u << EVENT_KIND_COUNT) - 1)

const char *event_kind_name(enum event_kind kind);

/// @return -1 for an unknown name
int event_kind_parse(const char *name);

/// An event as it was written. Strings are owned by the struct (event_clear()).
struct event {
  char *room_id;
  int64_t revision;
  enum event_kind kind;
  char *json; ///< the event object of CONTRACT §4 as JSON text
};

void event_clear(struct event *e);

#endif
