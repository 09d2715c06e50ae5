// SPDX-License-Identifier: Apache-2.0
/// @file
/// The members of a room (CONTRACT §6): granting and reading them. Revoking is store/revoke.h. Threads with a
/// connection of their own.
#ifndef SH_STORE_MEMBER_H
#define SH_STORE_MEMBER_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/util.h"
#include "db/db.h"

/// Bytes of a role at most.
#define ROLE_MAX 128

/// A row of stillhere.member. Times are Unix microseconds on the database's clock, 0 for null.
struct member {
  char room_id[IDENT_MAX + 1], user_id[IDENT_MAX + 1], role[ROLE_MAX + 1];
  int64_t granted_at_us, revoked_at_us;
};

/// Fills @a m from five columns of a row: MEMBER_COLUMNS of a table that is called m.
void member_from_row(struct member *m, const PGresult *r, int row);
#define MEMBER_COLUMNS "m.room_id, m.user_id, m.role, m.granted_at, m.revoked_at"

/// Writes it as a JSON object.
void member_json(struct buf *out, const struct member *m);

/// Grants a membership, or grants it again after a revocation; then all instances are told to read the room anew. What
/// is so already is not written. One transaction.
/// @param role NULL: as it is, or empty for a new one
/// @param[out] changed whether anything was written
enum db_status store_grant(struct db *db, const char *room_id, const char *user_id, const char *role,
                           struct member *member, bool *changed);

/// Reads one membership. @param[out] found whether there is an active one
enum db_status read_member(struct db *db, const char *room_id, const char *user_id, struct member *member, bool *found);

/// The JSON reply of GET /rooms/{room}/members, without `server_time` and the closing `}`: active memberships by user.
/// @param after a user_id, "": from the start
enum db_status read_members(struct db *db, const char *room_id, const char *after, int limit, struct buf *out);

#endif
