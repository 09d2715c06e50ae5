// SPDX-License-Identifier: Apache-2.0
/// @file
/// Outages are not silence (CONTRACT §3). One row is touched by every instance with each sweep. Where it stood still
/// for longer than sweeps ever pause, nobody could renew: whoever finds that first writes the gap down as an outage. A
/// lease that was live when an outage began ends so much later, once for each renewal: whoever judges a lease that is
/// past its expires_at asks for CREDITED_END, and the sweeper writes it into expires_at. Where a database is slow
/// rather than away, outages follow each other without a break, each as long as a sweep takes.
#ifndef SH_STORE_PULSE_H
#define SH_STORE_PULSE_H

#include <stdbool.h>

#include "db/db.h"

/// When a lease l would end without any credit.
#define UNCREDITED_END "LEAST(l.expires_at, l.renewed_at + l.ttl_ms * interval '1 ms')"

/// When a lease l ends, one outage counted in: the longest of those that began before it would have ended without. So
/// restart after restart gives no second credit, and a short gap just before a long one takes nothing away. Who renewed
/// between the last pulse and the true beginning of an outage gets what is left of the gap. Outages do not overlap, so
/// none that began before the last one before the renewal matters; that keeps the look short where there are many.
#define CREDITED_END                                                                                                   \
  "GREATEST(l.expires_at, " UNCREDITED_END " + (SELECT max(o.ended_at - GREATEST(o.began_at, l.renewed_at))"           \
  " FROM stillhere.outage o WHERE o.began_at < " UNCREDITED_END " AND o.ended_at > l.renewed_at AND o.began_at >="     \
  " coalesce((SELECT max(p.began_at) FROM stillhere.outage p WHERE p.began_at <= l.renewed_at), '-infinity')))"

/// Touches the row. Where it stood still for more than @a silence_ms an outage is written down; where it lies in the
/// future the clock was set back, and what would last too long for that is cut to its full length from now. One
/// statement when all is well. Not inside a transaction. The sweeper's thread.
/// @param[out] outage_us when the newest outage that is known ended, Unix microseconds; TIME_MINUS_INFINITY: none
enum db_status pulse_beat(struct db *db, int64_t silence_ms, int64_t grace_ms, int64_t *outage_us);

/// Inside a transaction that has judged leases or graces to be over: whether that may be wrong, since the pulse has
/// stood still for more than @a silence_ms or an outage was found after the transaction began, or up to @a before_ms
/// earlier: it can be seen only after its own transaction has committed. Whoever has touched the pulse before needs
/// none.
enum db_status pulse_doubt(struct db *db, int64_t silence_ms, int64_t before_ms, bool *doubt);

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
