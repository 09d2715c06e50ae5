// SPDX-License-Identifier: Apache-2.0
/// @file
/// The writer: one thread with one connection that commits what has queued up while the requests wait suspended: plain
/// renewals as one statement, the rest as one transaction. Group commit without a delay: while one batch commits, the
/// next one gathers.
#ifndef SH_LIVE_WRITER_H
#define SH_LIVE_WRITER_H

#include <stdatomic.h>

#include "base/mailbox.h"
#include "db/db.h"
#include "live/decision_log.h"
#include "live/last_seen.h"
#include "live/load.h"
#include "live/tail.h"
#include "store/heartbeat.h"

struct writer;

/// What one request asks for: 1 to 1000 ops. The submitter allocates it; `mail.deliver` is called in the submitter's
/// thread when every op has its decision (DECISION_NONE: the database was away), and frees it.
struct write_job {
  struct mail mail;
  struct mailbox *reply_to; ///< the submitter's
  struct op **ops;          ///< of one kind
  size_t n_ops;
  int64_t submitted_us; ///< monotonic; set by writer_submit()
  int64_t deadline_us;  ///< monotonic; what has not been begun by then is given back undecided
  // The writer's own.
  struct write_job *next;
  atomic_size_t undone; ///< ops without an answer; whoever answers the last one sends the mail
  unsigned turn;        ///< fair.c's: the batch that `share` is about
  size_t share;         ///< and how many of its ops are in it
  bool begun;           ///< one of them was in a batch already
};

/// One op and the job that it is part of.
struct op_ref {
  struct write_job *job;
  struct op *op;
};

struct writer_options {
  const struct db_options *db;            ///< its lock_timeout is how long a batch waits for a lock
  const struct db_options *stragglers_db; ///< likewise for one op of the slow lane
  struct store_rules rules;
  size_t max_queued; ///< ops; beyond it writer_submit() refuses
  struct tail *tail; ///< told of what was committed before the jobs are given back
  struct decision_log *log;
  struct last_seen *last_seen; ///< told of accepted heartbeats; may be NULL
  struct load *load;           ///< told how long heartbeats waited; may be NULL
};

/// Starts the thread. @return NULL when that fails. @a options is copied.
struct writer *writer_start(const struct writer_options *options);

/// Jobs of one thread that are on their way to the writer. Zero-initialise.
struct write_outbox {
  struct write_job *first, *last;
};

/// Takes a job into the caller's outbox, which goes to the writer with writer_send(). Any thread, each with an outbox
/// of its own. @return false when as many ops are queued as may be (three quarters of it for a request of many ops), or
/// the writer is stopping (503); the job is then still the caller's
bool writer_submit(struct writer *writer, struct write_outbox *outbox, struct write_job *job);

/// Hands over all jobs of the outbox at once, so that what a thread takes up in one turn of its loop becomes one batch
/// and wakes the writer once. An empty outbox costs nothing. When the writer has stopped meanwhile the jobs come back
/// undecided. The thread of the outbox.
void writer_send(struct writer *writer, struct write_outbox *outbox);

/// Finishes what is queued, for at most @a grace_ms, gives the rest back undecided, and joins. Main thread.
void writer_stop(struct writer *writer, int grace_ms);

/// Frees a writer that has been stopped, when nobody can submit any more. NULL is fine.
void writer_free(struct writer *writer);

#endif
