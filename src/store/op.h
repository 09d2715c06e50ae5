// SPDX-License-Identifier: Apache-2.0
/// @file
/// One thing that a client asks of one lease, and what came of it. Handlers fill the first half, the store the second.
#ifndef SH_STORE_OP_H
#define SH_STORE_OP_H

#include "store/lease.h"

enum op_kind { OP_HEARTBEAT, OP_CLOSE };

/// Zero-initialise. Input strings belong to the caller and live until the op is done; results belong to the op.
struct op {
  enum op_kind kind;
  struct lease_key key;
  bool revision_given;
  int64_t revision;        ///< meaningful when revision_given
  int32_t ttl_ms;          ///< heartbeat: already defaulted and bounded
  const char *meta;        ///< heartbeat: canonical JSON text, NULL = keep what is stored
  const char *request_id;  ///< never NULL
  const char *client_time; ///< as the client sent it, for the decision log only; may be NULL
  const char *by;          ///< the name of the caller's credential, for the decision log only; NULL: none

  // Results.
  enum decision decision;
  bool granted;            ///< the lease began with this heartbeat
  int64_t prior_revision;  ///< what was stored before: of the lease or its tombstone; 0 = nothing
  int64_t stored_revision; ///< what is stored now; 0 = nothing
  struct lease lease;      ///< for accepted and already applied heartbeats; its key points to the op's key
  int64_t room_revision;   ///< the room's revision: after the op's own event, or as of its transaction
  int64_t retry_after_ms;  ///< too soon, too many leases: after how long it is worth to try again
  bool user_full;          ///< too many leases: of the user; otherwise of the room
  bool failed;             ///< undecided (DECISION_NONE) because it failed (DB_FAILED), not for want of time
  char *event_id; ///< of the event that the op wrote or, for a repeated close, that once ended the lease; or NULL
};

/// Releases the results and zeroes them, so that the op can be tried again.
void op_clear_results(struct op *op);

#endif
