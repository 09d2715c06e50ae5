// SPDX-License-Identifier: Apache-2.0
/// @file
/// The fast way of nearly every heartbeat: one statement, which is a transaction of its own, renews each lease that is
/// live, at an older revision and keeps its meta. It writes one row each and nothing else. Whatever else a heartbeat
/// may come to (a new stay, a repetition, a late message, another meta, too soon, a lock) is left to heartbeat.c.
#ifndef SH_STORE_RENEW_PLAIN_H
#define SH_STORE_RENEW_PLAIN_H

#include "db/db.h"
#include "store/heartbeat.h"

/// Runs @a ops, all OP_HEARTBEAT, at most STORE_BATCH_MAX. The writer's thread.
///
/// On DB_OK those that were renewed have DECISION_ACCEPTED and are committed; the others, still DECISION_NONE, are for
/// store_heartbeats(), in the same order. Of several for one lease only the first can be among the renewed. Otherwise
/// no op has a decision and nothing happened (DB_LOST: unknown; it is safe to run the same ops again).
///
/// A lease is judged, and its times begin, when the statement comes to its row. Where it then waits for another
/// transaction, lock_timeout at most, both are done again if that one has changed the row; if it has not, the times are
/// from before that wait.
///
/// Not for rules with renewal_events: there a renewal writes more than its row.
enum db_status store_renew_plain(struct db *db, const struct store_rules *rules, struct op *const *ops, size_t n);

#endif
