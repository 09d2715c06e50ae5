// SPDX-License-Identifier: Apache-2.0
/// @file
/// The SQL of the sweeper: what is overdue now, ending it by exact revision, and retention.
#ifndef SH_STORE_SWEEP_H
#define SH_STORE_SWEEP_H

#include "db/db.h"
#include "store/heartbeat.h"

/// Most leases ended in one transaction.
#define SWEEP_BATCH_MAX 500

/// A lease that was seen past its expiry, at the revision that was seen.
struct overdue {
  char *room_id, *user_id, *session_id;
  int64_t revision;
};

/// Lists what is overdue on the database's clock, at most @a max, ordered by key and after @a after (NULL: from the
/// first), so that leases that cannot be ended do not hide those behind them.
/// @param[out] list the caller frees it with overdue_free()
/// @param[out] next_us when the next of the leases that are live now will expire, Unix microseconds, if none is
///   renewed; TIME_INFINITY when there is none. A hint for pacing, never a decision.
enum db_status sweep_overdue(struct db *db, size_t max, const struct overdue *after, struct overdue **list, size_t *n,
                             int64_t *next_us);
void overdue_free(struct overdue *list, size_t n);

/// Claims each by a conditional delete on its exact revision and `expires_at <= clock_timestamp()`; for those won, the
/// delete, the tombstone, the room revision, the event and last-seen are one transaction. Rows that others hold locked
/// or have renewed, deleted or ended meanwhile are passed over.
/// A lease that has an outage to its credit (store/pulse.h) is passed over too.
/// @param silence_ms where the pulse is older than this in the end, nothing has happened and it is DB_LOST
/// @param[out] written the events, and an expiry for each lease that ended here
enum db_status sweep_expire(struct db *db, int64_t offline_grace_ms, int64_t silence_ms, const struct overdue *list,
                            size_t n, struct written *written);

/// Lists the users whose grace is over on the database's clock, at most @a max, ordered and after @a after as above;
/// session_id is NULL in them, and revision 0.
/// @param[out] next_us when the next grace will be over, Unix microseconds; TIME_INFINITY when there is none
enum db_status sweep_offlines(struct db *db, size_t max, const struct overdue *after, struct overdue **list, size_t *n,
                              int64_t *next_us);

/// Carries the listed offlines out, those that still stand under the lock of their room, in one transaction.
/// @a silence_ms as above.
enum db_status sweep_go_offline(struct db *db, int64_t silence_ms, const struct overdue *list, size_t n,
                                struct written *written);

/// Prunes events older than @a max_age_ms or beyond the newest @a max_count of their room, raising the room's
/// pruned_revision in the same transaction; and tombstones older than @a tombstone_age_ms. Bounded work a call.
/// @param[out] more whether there is more to do
enum db_status sweep_retention(struct db *db, int64_t max_age_ms, int64_t max_count, int64_t tombstone_age_ms,
                               bool *more);

#endif
