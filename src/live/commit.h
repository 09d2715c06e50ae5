// SPDX-License-Identifier: Apache-2.0
/// @file
/// Runs a batch of ops as one transaction and tells everybody who must know: the tail, the decision log, the metrics
/// and, last, those who asked. Used by the writer and its stragglers, each with a connection of its own.
#ifndef SH_LIVE_COMMIT_H
#define SH_LIVE_COMMIT_H

#include "live/writer.h"

/// Renews what is a plain renewal (store/renew_plain.h) and answers it. On DB_OK the refs that are left, in their
/// order, are refs[0] … refs[*n - 1] and want commit_batch(). Otherwise nothing was told to anybody.
enum db_status commit_renewals(const struct writer_options *options, struct db *db, struct op_ref *refs, size_t *n);

/// Runs ops of one kind. On DB_OK they are answered, and the refs must not be used any more. Otherwise they are still
/// the caller's, and nothing was told to anybody.
/// @param[out] shared for DB_LOCKED: whether the lock was on a room or a user rather than on a lease; may be NULL
enum db_status commit_batch(const struct writer_options *options, struct db *db, const struct op_ref *refs, size_t n,
                            bool *shared);

/// Tells the tail, the decision log and the metrics what a committed transaction wrote; the sweeper does so too. The
/// tail takes over the events' strings.
void commit_tell(struct tail *tail, struct decision_log *log, struct written *written);

/// Answers ops undecided (503): the client can try again. The refs must not be used any more.
void commit_give_back(const struct writer_options *options, const struct op_ref *refs, size_t n);

/// Answers one op undecided because what it needs fails (DB_FAILED), so that the client is told so and not of time. The
/// ref must not be used any more.
void commit_refuse(const struct writer_options *options, const struct op_ref *ref);

#endif
