// SPDX-License-Identifier: Apache-2.0
#include "live/reader.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"

// How long a job waits before it asks again for a connection.
#define RECONNECT_US INT64_C(100000)

struct reader_pool {
  const struct db_options *db;
  pthread_mutex_t lock; // a leaf
  pthread_cond_t changed;
  struct read_job *first, **last;
  size_t n_queued, max_queued;
  bool stopping;
  int n_threads;
  pthread_t threads[];
};

// Waits until then, or until the pool stops. Returns whether it stops.
static bool pause_until(struct reader_pool *pool, int64_t due_us) {
  pthread_mutex_lock(&pool->lock);
  while (!pool->stopping && clock_mono_us() < due_us)
    cond_wait_until(&pool->changed, &pool->lock, due_us);
  bool stopping = pool->stopping;
  pthread_mutex_unlock(&pool->lock);
  return stopping;
}

// A lost connection is tried again until the deadline, since nothing has been asked yet; a query that broke once.
static enum db_status run_job(struct reader_pool *pool, struct db *db, struct read_job *job) {
  bool again = true;
  for (;;) {
    int64_t now_us = clock_mono_us();
    if (now_us >= job->deadline_us)
      return DB_LOST;
    if (db_connect(db) == DB_OK) {
      enum db_status status = job->run(db, job);
      if ((status != DB_RETRY && status != DB_LOST) || !again)
        return status;
      again = false;
      continue;
    }
    if (now_us + RECONNECT_US >= job->deadline_us || pause_until(pool, now_us + RECONNECT_US))
      return DB_LOST;
  }
}

// Returns NULL when the pool stops.
static struct read_job *next_job(struct reader_pool *pool) {
  pthread_mutex_lock(&pool->lock);
  while (!pool->stopping && !pool->first)
    pthread_cond_wait(&pool->changed, &pool->lock);
  struct read_job *job = pool->stopping ? NULL : pool->first;
  if (job) {
    pool->first = job->next;
    if (!pool->first)
      pool->last = &pool->first;
    pool->n_queued--;
  }
  pthread_mutex_unlock(&pool->lock);
  return job;
}

// Puts a job that met a lock behind the others. Returns false when its time is over or the pool stops.
static bool put_back(struct reader_pool *pool, struct read_job *job) {
  if (clock_mono_us() >= job->deadline_us)
    return false;
  pthread_mutex_lock(&pool->lock);
  bool taken = !pool->stopping;
  if (taken) {
    job->next = NULL;
    *pool->last = job;
    pool->last = &job->next;
    pool->n_queued++;
    pthread_cond_broadcast(&pool->changed);
  }
  pthread_mutex_unlock(&pool->lock);
  return taken;
}

static void *reader_main(void *arg) {
  struct reader_pool *pool = arg;
  struct db *db = db_new(pool->db);
  if (!db)
    log_error("a reader has no memory for its connection");
  struct read_job *job;
  while ((job = next_job(pool)) != NULL) {
    job->status = db ? run_job(pool, db, job) : DB_LOST;
    if (job->status == DB_LOCKED && put_back(pool, job))
      continue;
    mailbox_post(job->reply_to, &job->mail);
  }
  db_free(db);
  return NULL;
}

struct reader_pool *reader_start(const struct db_options *db, int threads, size_t max_queued) {
  struct reader_pool *pool = calloc(1, sizeof *pool + (size_t)threads * sizeof pool->threads[0]);
  if (!pool || !cond_init(&pool->changed)) {
    free(pool);
    return NULL;
  }
  pthread_mutex_init(&pool->lock, NULL);
  pool->db = db;
  pool->max_queued = max_queued;
  pool->last = &pool->first;
  for (; pool->n_threads < threads; pool->n_threads++) {
    if (pthread_create(&pool->threads[pool->n_threads], NULL, reader_main, pool) != 0) {
      log_error("a reader thread could not be started");
      reader_stop(pool);
      reader_free(pool);
      return NULL;
    }
  }
  return pool;
}

bool reader_submit(struct reader_pool *pool, struct read_job *job) {
  pthread_mutex_lock(&pool->lock);
  bool taken = !pool->stopping && pool->n_queued < pool->max_queued;
  if (taken) {
    job->next = NULL;
    *pool->last = job;
    pool->last = &job->next;
    pool->n_queued++;
    // Those who pause between two attempts wait for the same condition: all are woken, or the wake could be theirs.
    pthread_cond_broadcast(&pool->changed);
  }
  pthread_mutex_unlock(&pool->lock);
  return taken;
}

void reader_stop(struct reader_pool *pool) {
  if (!pool)
    return;
  pthread_mutex_lock(&pool->lock);
  pool->stopping = true;
  pthread_cond_broadcast(&pool->changed);
  pthread_mutex_unlock(&pool->lock);
  for (int i = 0; i < pool->n_threads; i++)
    pthread_join(pool->threads[i], NULL);
  while (pool->first) {
    struct read_job *job = pool->first;
    pool->first = job->next;
    job->status = DB_LOST;
    mailbox_post(job->reply_to, &job->mail);
  }
}

void reader_free(struct reader_pool *pool) {
  if (!pool)
    return;
  pthread_cond_destroy(&pool->changed);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}
