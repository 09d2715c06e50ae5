// SPDX-License-Identifier: Apache-2.0
/// @file
/// Renewing where the tables are distributed. A statement cannot read the clock there while it holds the locks that it
/// takes itself (DB_TIME_DISTRIBUTED), so the leases are locked by a statement before.
#ifndef SH_STORE_RENEW_HELD_H
#define SH_STORE_RENEW_HELD_H

#include "db/db.h"

/// Locks the leases with the keys in $1 to $3 that are there, and changes nothing.
extern const struct db_stmt leases_hold_stmt;

/// renew_round() of renew.h in two steps, after leases_hold_stmt, with the parameters of its statement: what is live is
/// renewed, and a provisional row is put where there is none. Both give back rows as that one does.
extern const struct db_stmt renew_held_stmt, renew_insert_stmt;

/// Runs leases_hold_stmt with @a keys and then @a stmt with @a params as one transaction.
/// @param[out] result of @a stmt; on DB_OK it is committed, and the caller frees it
enum db_status renew_after_hold(struct db *db, const struct db_params *keys, const struct db_stmt *stmt,
                                const struct db_params *params, PGresult **result);

#endif
