// SPDX-License-Identifier: Apache-2.0
/// @file
/// The readers: a few threads with a connection each that run queries for suspended requests. A bounded queue. A second
/// such pool runs the changes that are not the writer's: what meets a lock there is tried again, behind the others,
/// until its deadline.
#ifndef SH_LIVE_READER_H
#define SH_LIVE_READER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/mailbox.h"
#include "db/db.h"

struct reader_pool;

/// One query. The submitter allocates it as part of its own struct; `mail.deliver` is called in the submitter's thread
/// when it is done, and frees it.
struct read_job {
  struct mail mail;
  struct mailbox *reply_to; ///< the submitter's
  int64_t deadline_us;      ///< monotonic; what has not begun by then is not begun
  enum db_status status;    ///< what `run` returned, or DB_LOST
  /// Runs in a reader thread with a connected database; stores what it finds in the job.
  enum db_status (*run)(struct db *db, struct read_job *job);
  struct read_job *next; ///< the pool's own
};

/// Starts @a threads threads. @return NULL when that fails
struct reader_pool *reader_start(const struct db_options *db, int threads, size_t max_queued);

/// Any thread. @return false when the queue is full or the pool is stopping (503); the job is then still the caller's
bool reader_submit(struct reader_pool *pool, struct read_job *job);

/// Gives back what is queued (DB_LOST) and joins; from then on reader_submit() refuses. Main thread. NULL is fine.
void reader_stop(struct reader_pool *pool);

/// Frees a stopped pool, when nobody can submit any more. NULL is fine.
void reader_free(struct reader_pool *pool);

#endif
