// SPDX-License-Identifier: Apache-2.0
/// @file
/// Outages are not silence (CONTRACT §3). One row is touched by every instance with each sweep. Where it stood still
/// for longer than sweeps ever pause, nobody could renew: whoever finds that first writes the gap down as an outage. A
/// lease that was live when an outage began ends so much later, once for each renewal: whoever judges a lease that is
/// past its expires_at asks for CREDITED_END, and the sweeper writes it into expires_at.
#ifndef SH_STORE_PULSE_H
#define SH_STORE_PULSE_H

#include <stdbool.h>

#include "db/db.h"

/// When a lease l ends, the first outage since its renewal counted in. A lease that has its credit already is known by
/// an end that is later than its renewal and its ttl, so restart after restart gives it no second one. Who renewed
/// between the last pulse and the true beginning of an outage gets what is left of the gap.
#define CREDITED_END                                                                                                   \
  "(CASE WHEN l.expires_at > l.renewed_at + l.ttl_ms * interval '1 ms' + interval '1 ms' THEN l.expires_at"            \
  " ELSE coalesce((SELECT l.expires_at + (o.ended_at - greatest(o.began_at, l.renewed_at)) FROM stillhere.outage o"    \
  " WHERE o.began_at < l.expires_at AND o.ended_at > l.renewed_at ORDER BY o.began_at LIMIT 1), l.expires_at) END)"

/// Touches the row. Where it stood still for more than @a silence_ms an outage is written down; where it lies in the
/// future the clock was set back, and what would last too long for that is cut to its full length from now. One
/// statement when all is well. Not inside a transaction. The sweeper's thread.
/// @param[out] outage_us when the newest outage that is known ended, Unix microseconds; TIME_MINUS_INFINITY: none
enum db_status pulse_beat(struct db *db, int64_t silence_ms, int64_t grace_ms, int64_t *outage_us);

/// Inside a transaction that has judged leases or graces to be over: whether that may be wrong, since the pulse has
/// stood still for more than @a silence_ms or an outage was written down after the transaction began.
enum db_status pulse_doubt(struct db *db, int64_t silence_ms, bool *doubt);

/// Inside a transaction, as the first step before it judges anew: writes down what pulse_doubt() has found. Takes the
/// pulse's row, and no other.
enum db_status pulse_settle(struct db *db, int64_t silence_ms);

/// Writes the credit of up to @a max leases that are over, or will be within seconds, into their expires_at.
/// @param outage_us from pulse_beat(), where there was one. @param[out] more whether there are more; set on DB_OK
enum db_status pulse_credit_leases(struct db *db, int64_t outage_us, size_t max, bool *more);

/// Gives users who were about to go offline when an outage began its length, once. Before graces are ended.
/// @param grace_ms how long a grace is, by which those are known that began after the outage
enum db_status pulse_credit_graces(struct db *db, int64_t grace_ms);

#endif
