// SPDX-License-Identifier: Apache-2.0
/// @file
/// Plain words for the state of one user in one room: what decided last, and when it will change by itself. Pure
/// functions of what the tables say.
#ifndef SH_STORE_EXPLAIN_H
#define SH_STORE_EXPLAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "store/read.h"

/// What the tables say at one moment. Times are Unix microseconds on the database's clock; 0: there is none. Strings
/// live as long as the result that they come from; NULL where there is nothing.
struct explain_facts {
  const struct explain_rules *rules;
  int64_t now_us;
  int64_t last_seen_us;
  int64_t online_since_us, offline_at_us; ///< of the row in room_user
  int live, overdue;                      ///< leases that hold, and that ran out but were not ended yet
  /// The live lease that was renewed last, and of all leases the one that runs out first.
  struct {
    const char *session_id;
    int64_t revision, at_us;
  } renewed, first_end;
  bool first_end_live;
  /// The tombstone that is the newest, and the one that goes first.
  struct {
    const char *session_id, *reason;
    int64_t revision, at_us;
  } ended, first_gone;
  bool member; ///< there is a row in member
  int64_t granted_at_us, revoked_at_us;
};

/// `online`: a live lease. `expired`: only leases that ran out and are about to be ended. `grace`: no lease, and
/// user.offline is pending. `offline`: none of these.
const char *explain_state(const struct explain_facts *f);

/// One sentence: which rule decided last. Appended to @a out
void explain_rule(const struct explain_facts *f, struct buf *out);

/// One sentence: what the membership table means for the user's next heartbeat.
void explain_membership(const struct explain_facts *f, struct buf *out);

/// What will change by itself, if nobody does anything. @param[out] at_us when
/// @return false, and nothing is appended, when nothing will
bool explain_next(const struct explain_facts *f, struct buf *out, int64_t *at_us);

#endif
