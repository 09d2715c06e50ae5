// SPDX-License-Identifier: Apache-2.0
/// @file
/// The epoch: a name for the incarnation of the database (CONTRACT §1). It is derived, not stored, from the cluster's
/// system identifier, its timeline, the database's oid and the oid of the table `stillhere.room`; so a restore into
/// another database or cluster, a promotion, or dropping and restoring the schema changes it without anybody's help.
#ifndef SH_DB_EPOCH_H
#define SH_DB_EPOCH_H

#include <stdbool.h>

/// 16 hex digits and the NUL.
#define EPOCH_SIZE 17

/// Copies the current epoch; an empty string before the first connection. Any thread.
void epoch_get(char out[EPOCH_SIZE]);

/// Called by db_connect() with what a new connection read, and by the migrations. @return true when it differs from
/// the one before (and there was one). Any thread.
bool epoch_set(const char *epoch);

/// Counts the changes: a cheap check whether memory was filled under another epoch. Any thread.
unsigned epoch_generation(void);

#endif
