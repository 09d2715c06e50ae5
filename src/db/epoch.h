// SPDX-License-Identifier: Apache-2.0
/// @file
/// The epoch: a name for the incarnation of the database (CONTRACT §1). It is derived from the cluster's system
/// identifier, its timeline, the database's oid and the oid of the table `stillhere.room`; so a restore into another
/// database or cluster, a promotion, or dropping and restoring the schema changes it without anybody's help. Where a
/// data directory was put back to an earlier state nothing of this differs: whoever notices that (src/db/incarnation.c)
/// puts a word into `stillhere.incarnation`, which is a part of the epoch too.
#ifndef SH_DB_EPOCH_H
#define SH_DB_EPOCH_H

#include <stdbool.h>
#include <stdint.h>

/// 16 hex digits and the NUL.
#define EPOCH_SIZE 17

/// Copies the current epoch; an empty string before the first connection. Any thread.
void epoch_get(char out[EPOCH_SIZE]);

/// Called by db_greet() with what a connection read. @return true when it differs from
/// the one before (and there was one). Any thread.
bool epoch_set(const char *epoch);

/// How far the database's log was on disk, at least, when an epoch was read: a position that never gets smaller while
/// the epoch is the same.
struct epoch_mark {
  char epoch[EPOCH_SIZE]; ///< empty before the first connection
  int64_t flushed;        ///< bytes; 0 when nothing is known
};

/// Notes how far the log is. Of no effect when @a epoch is not the current one. Any thread.
void epoch_saw(const char *epoch, int64_t position);

/// The current epoch with what epoch_saw() has noted of it. Any thread.
void epoch_mark(struct epoch_mark *mark);

/// Notes on which timeline a server is that takes writes. A promotion makes a new one with a higher number, so a server
/// of the same cluster with a lower one than was seen before is what the promotion has left behind: whatever is written
/// there is lost. Known for as long as the process lives. Any thread.
/// @param system the cluster's system identifier
/// @return false: left behind, and must not be used
bool epoch_timeline(int64_t system, int64_t timeline);

/// Counts the changes: a cheap check whether memory was filled under another epoch. Any thread.
unsigned epoch_generation(void);

#endif
