// SPDX-License-Identifier: Apache-2.0
/// @file
/// The fast way of a heartbeat: one statement renews every lease of a round that is live, at an older revision and
/// keeps its meta, and puts a provisional row where there is none. What it does not give back is decided row by row in
/// heartbeat.c; it is locked all the same.
#ifndef SH_STORE_RENEW_H
#define SH_STORE_RENEW_H

#include "db/db.h"
#include "store/op.h"

/// What the statement did with an op.
enum renewed {
  RENEW_LEFT,     ///< a row is there (and locked), but this is no plain renewal
  RENEW_DONE,     ///< renewed; the op's lease is filled in
  RENEW_INSERTED, ///< there was no row: a provisional one is, at the op's lease, until its tombstone is looked at
};

/// Runs one round: @a ops sorted by key, every key once. Inside a transaction; together with its BEGIN one round trip.
/// @param renew_min_ms a lease that was renewed less than so long ago is left; 0: none is
/// @param[out] outcome one for each op
/// @param[out] now_us the database's clock after the statement
enum db_status renew_round(struct db *db, struct op *const *ops, size_t n, int64_t renew_min_ms, enum renewed *outcome,
                           int64_t *now_us);

/// Copies a row (columns in the order of LEASE_COLUMNS) into the op's lease. @return false when memory ran out
bool lease_from_row(struct op *op, const PGresult *r, int row);

/// What lease_from_row() reads, of a table that is called l. The first three name the row.
#define LEASE_COLUMNS_ENDING(end)                                                                                      \
  "l.room_id, l.user_id, l.session_id, l.revision, l.prior_revision, l.ttl_ms, l.granted_at, l.renewed_at, " end       \
  ", l.meta, l.request_id"
#define LEASE_COLUMNS LEASE_COLUMNS_ENDING("l.expires_at")
#define LEASE_COLUMN_COUNT 11

#endif
