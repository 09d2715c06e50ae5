// SPDX-License-Identifier: Apache-2.0
/// @file
/// What a heartbeat or a close decides: the table of CONTRACT §2 and the rules of §3 as pure functions. The store calls
/// them with the rows locked. (The plain renewal of a live lease is decided by the same rule inside one SQL statement,
/// store/renew.c, since it happens a thousand times as often.)
#ifndef SH_STORE_LEASE_RULES_H
#define SH_STORE_LEASE_RULES_H

#include "store/op.h"

/// What the database says of one (room, user, session) at the moment of the decision, all under lock.
enum lease_state {
  LEASE_UNKNOWN, ///< neither lease nor tombstone
  LEASE_LIVE,
  LEASE_EXPIRED, ///< past its expiry, swept or not
  LEASE_CLOSED,
  LEASE_REVOKED, ///< ended by a revocation
};

enum member_state { MEMBER_NONE, MEMBER_ACTIVE, MEMBER_REVOKED };

struct lease_facts {
  enum lease_state state;
  int64_t revision;         ///< of the lease or tombstone; 0 for LEASE_UNKNOWN
  enum member_state member; ///< not looked at for LEASE_LIVE: revoking deletes the row
  bool membership_required;
  bool full;            ///< the user, or the room, has as many leases as it may; not looked at for LEASE_LIVE
  int64_t renewed_us;   ///< LEASE_LIVE: how long ago it was renewed, microseconds; below 0 after a step of the clock
  int64_t renew_min_us; ///< the shortest time between two renewals; 0: any
};

struct verdict {
  enum decision decision;
  int64_t new_revision; ///< what the lease or tombstone has afterwards; 0 = nothing stored
  bool granted;         ///< accepted as a new stay
};

struct verdict decide_heartbeat(const struct lease_facts *facts, bool revision_given, int64_t revision);

struct verdict decide_close(const struct lease_facts *facts, bool revision_given, int64_t revision);

#endif
