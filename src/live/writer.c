// SPDX-License-Identifier: Apache-2.0
// The queue in front of the writer and the thread that empties it. Which of it makes a batch is in fair.c, what a batch
// comes to in commit.c; ops that run into a lock that somebody holds for long are handed to the stragglers
// (stragglers.c), so that one locked row holds up nobody else.
#include "live/writer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "live/commit.h"
#include "live/fair.h"
#include "live/stragglers.h"

/// Pause before a batch is tried again while the database is away. db_connect() paces the attempts themselves.
#define AWAY_PAUSE_MS 50

struct queue {
  struct write_job *first, **last;
};

struct writer {
  struct writer_options options;
  struct stragglers *stragglers;
  pthread_t thread;
  bool runs;
  int64_t away_us;      ///< the thread's: monotonic, when it last found the database away
  struct fair *fair[2]; ///< the thread's, by enum op_kind: what it has taken up

  atomic_size_t taken;  ///< ops in outboxes, in the queues and in `fair`
  atomic_bool stopping; ///< set with the lock held

  pthread_mutex_t lock; ///< what follows; a leaf
  pthread_cond_t more;
  struct queue queues[2]; ///< by enum op_kind
  int64_t stop_us;        ///< monotonic: what is not begun by then is given back
};

/// A batch that is being put together and run. Owned by the writer's thread.
struct batch {
  struct op_ref refs[STORE_BATCH_MAX];
  size_t n;
  int64_t since_us; ///< monotonic: since when the oldest of those has waited whose turn this is
};

bool writer_submit(struct writer *writer, struct write_outbox *outbox, struct write_job *job) {
  if (job->n_ops > STORE_BATCH_MAX || atomic_load(&writer->stopping)) {
    return false;
  }
  // A quarter is kept for small requests, which a few large ones would otherwise leave no room.
  size_t max = writer->options.max_queued;
  max -= job->n_ops > FAIR_SMALL_OPS ? max / 4 : 0;
  if (atomic_fetch_add(&writer->taken, job->n_ops) + job->n_ops > max) {
    atomic_fetch_sub(&writer->taken, job->n_ops);
    return false;
  }
  job->next = NULL;
  job->submitted_us = clock_mono_us();
  atomic_init(&job->undone, job->n_ops);
  if (outbox->first == NULL) {
    outbox->first = job;
  } else {
    outbox->last->next = job;
  }
  outbox->last = job;
  return true;
}

static void give_back(struct writer *w, struct write_job *list) {
  while (list != NULL) {
    struct write_job *job = list;
    list = job->next;
    size_t n = job->n_ops; // with the last op the job is its owner's
    struct op **ops = job->ops;
    atomic_fetch_sub(&w->taken, n);
    for (size_t i = 0; i < n; i++) {
      commit_give_back(&w->options, &(struct op_ref){job, ops[i]}, 1);
    }
  }
}

void writer_send(struct writer *writer, struct write_outbox *outbox) {
  struct write_job *list = outbox->first;
  *outbox = (struct write_outbox){0};
  if (list == NULL) {
    return;
  }
  pthread_mutex_lock(&writer->lock);
  bool open = !atomic_load(&writer->stopping);
  for (struct write_job *next; open && list != NULL; list = next) {
    next = list->next;
    list->next = NULL;
    struct queue *q = &writer->queues[list->ops[0]->kind];
    *q->last = list;
    q->last = &list->next;
  }
  if (open) {
    pthread_cond_signal(&writer->more);
  }
  pthread_mutex_unlock(&writer->lock);
  give_back(writer, list);
}

/// Puts aside what is past its deadline (given back undecided) and what waits for a row that is known to be locked.
static void filter(struct writer *w, struct batch *batch) {
  int64_t now_us = clock_mono_us();
  size_t kept = 0;
  for (size_t i = 0; i < batch->n; i++) {
    struct op_ref *ref = &batch->refs[i];
    if (ref->job->deadline_us <= now_us) {
      commit_give_back(&w->options, ref, 1);
    } else if (!stragglers_take_locked(w->stragglers, ref)) {
      batch->refs[kept++] = *ref;
    }
  }
  batch->n = kept;
}

/// Commits the batch: what is a plain renewal by itself, and the rest, where there is one, as one transaction.
static enum db_status commit(struct writer *w, struct db *db, struct batch *batch) {
  if (batch->refs[0].op->kind == OP_HEARTBEAT && !w->options.rules.renewal_events) {
    enum db_status status = commit_renewals(&w->options, db, batch->refs, &batch->n);
    if (status != DB_OK || batch->n == 0) {
      return status;
    }
  }
  return commit_batch(&w->options, db, batch->refs, batch->n, NULL);
}

/// Whether the time is up in which what is left is finished before the end.
static bool is_over(struct writer *w) {
  if (!atomic_load(&w->stopping)) {
    return false;
  }
  pthread_mutex_lock(&w->lock);
  bool over = clock_mono_us() >= w->stop_us;
  pthread_mutex_unlock(&w->lock);
  return over;
}

/// Runs a batch to its end: committed, handed to the stragglers, or given back.
static void run(struct writer *w, struct db *db, struct batch *batch) {
  for (;;) {
    filter(w, batch);
    if (batch->n == 0) {
      return;
    }
    // Only waiting for a database that was there counts.
    int64_t since_us = batch->since_us > w->away_us ? batch->since_us : w->away_us;
    enum db_status status = commit(w, db, batch);
    switch (status) {
    case DB_OK: {
      int64_t now_us = clock_mono_us();
      metric_batch_wait(now_us - since_us);
      if (w->options.load != NULL) {
        load_note(w->options.load, now_us - since_us, now_us);
      }
      return;
    }
    case DB_LOCKED:
    case DB_FAILED:
      // One op in it is the reason; singly the others are done at once.
      stragglers_take(w->stragglers, batch->refs, batch->n);
      return;
    case DB_RETRY:
      break;
    case DB_LOST:
      w->away_us = clock_mono_us();
      break;
    }
    if (is_over(w)) {
      commit_give_back(&w->options, batch->refs, batch->n);
      return;
    }
    nanosleep(&(struct timespec){.tv_nsec = AWAY_PAUSE_MS * 1000000L}, NULL);
  }
}

/// Takes up a queue that was emptied.
static void take_up(struct writer *w, enum op_kind kind, struct write_job *list) {
  while (list != NULL) {
    struct write_job *job = list;
    list = job->next;
    job->next = NULL;
    if (!fair_add(w->fair[kind], job)) {
      give_back(w, job);
    }
  }
}

/// Waits for work and takes up all that is there. @return false when stopping and nothing is left
static bool gather(struct writer *w) {
  bool idle = fair_empty(w->fair[OP_HEARTBEAT]) && fair_empty(w->fair[OP_CLOSE]);
  struct write_job *lists[2];
  pthread_mutex_lock(&w->lock);
  while (idle && w->queues[OP_HEARTBEAT].first == NULL && w->queues[OP_CLOSE].first == NULL &&
         !atomic_load(&w->stopping)) {
    pthread_cond_wait(&w->more, &w->lock);
  }
  for (int i = 0; i < 2; i++) {
    lists[i] = w->queues[i].first;
    w->queues[i] = (struct queue){.last = &w->queues[i].first};
    idle = idle && lists[i] == NULL;
  }
  pthread_mutex_unlock(&w->lock);
  take_up(w, OP_HEARTBEAT, lists[OP_HEARTBEAT]);
  take_up(w, OP_CLOSE, lists[OP_CLOSE]);
  return !idle;
}

/// Runs the next batch of one kind: heartbeats and closes take turns.
static void run_next(struct writer *w, struct db *db, enum op_kind kind, struct batch *batch) {
  bool over = is_over(w);
  batch->since_us = clock_mono_us();
  // When it is over everything is past its deadline.
  batch->n = fair_next(w->fair[kind], batch->refs, over ? INT64_MAX : batch->since_us, &batch->since_us);
  atomic_fetch_sub(&w->taken, batch->n);
  if (over) {
    commit_give_back(&w->options, batch->refs, batch->n);
  } else {
    run(w, db, batch);
  }
}

static void *writer_main(void *arg) {
  struct writer *w = arg;
  struct db *db = db_new(w->options.db);
  struct batch *batch = calloc(1, sizeof *batch);
  if (db == NULL || batch == NULL) {
    log_error("writer: out of memory");
    abort();
  }
  while (gather(w)) {
    run_next(w, db, OP_HEARTBEAT, batch);
    run_next(w, db, OP_CLOSE, batch);
  }
  free(batch);
  db_free(db);
  return NULL;
}

struct writer *writer_start(const struct writer_options *options) {
  struct writer *w = calloc(1, sizeof *w);
  if (w == NULL) {
    return NULL;
  }
  w->options = *options;
  for (int i = 0; i < 2; i++) {
    w->queues[i].last = &w->queues[i].first;
    w->fair[i] = fair_new();
  }
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->more, NULL);
  w->stragglers = stragglers_start(&w->options);
  w->runs = w->stragglers != NULL && w->fair[OP_HEARTBEAT] != NULL && w->fair[OP_CLOSE] != NULL &&
            pthread_create(&w->thread, NULL, writer_main, w) == 0;
  if (!w->runs) {
    writer_stop(w, 0);
    writer_free(w);
    return NULL;
  }
  return w;
}

void writer_stop(struct writer *writer, int grace_ms) {
  pthread_mutex_lock(&writer->lock);
  writer->stop_us = clock_mono_us() + (int64_t)grace_ms * 1000;
  atomic_store(&writer->stopping, true);
  pthread_cond_signal(&writer->more);
  pthread_mutex_unlock(&writer->lock);
  if (writer->runs) {
    pthread_join(writer->thread, NULL);
  }
  stragglers_stop(writer->stragglers, grace_ms);
  writer->stragglers = NULL;
}

void writer_free(struct writer *writer) {
  if (writer == NULL) {
    return;
  }
  pthread_cond_destroy(&writer->more);
  pthread_mutex_destroy(&writer->lock);
  for (int i = 0; i < 2; i++) {
    fair_free(writer->fair[i]);
  }
  free(writer);
}
