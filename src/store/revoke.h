// SPDX-License-Identifier: Apache-2.0
/// @file
/// The revocation of a membership (CONTRACT §6): the member's row, the end of all leases of the user in the room, their
/// tombstones and events, and user.offline, in one transaction.
#ifndef SH_STORE_REVOKE_H
#define SH_STORE_REVOKE_H

#include "store/member.h"
#include "store/written.h"

/// A lease that a revocation has ended. Strings are its own.
struct revoked_lease {
  char *session_id, *event_id;
  int64_t revision;
};

/// What came of it. Zero-initialise; clear with revocation_clear().
struct revocation {
  bool applied; ///< false: it had been revoked before and no lease was left: nothing was written
  struct member member;
  struct revoked_lease *leases;
  size_t n_leases;
  char *event_id; ///< of the event without a session, where no lease was ended; else NULL
};

void revocation_clear(struct revocation *x);

/// Revokes, also where there was no record. A lease that has run out and was not ended yet ends as expired. On anything
/// but DB_OK nothing was written (DB_LOST: unknown; it is safe to run it again).
/// @param[out] written the events and expiries, for commit_tell(); the caller clears it
enum db_status store_revoke(struct db *db, const char *room_id, const char *user_id, const char *request_id,
                            int64_t offline_grace_ms, struct revocation *result, struct written *written);

#endif
