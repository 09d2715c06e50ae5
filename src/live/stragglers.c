// SPDX-License-Identifier: Apache-2.0
#include "live/stragglers.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"

/// Pause after a pass in which every op met a lock or the database was away.
#define PASS_PAUSE_MS 20

struct straggler {
  struct op_ref ref;
  bool locked; ///< its lease, or something it needs, was locked when it was tried
  struct straggler *prev, *next;
};

struct stragglers {
  const struct writer_options *options;
  pthread_t thread;

  pthread_mutex_t lock; ///< what follows; a leaf
  pthread_cond_t more;
  struct straggler *list; ///< in the order of arrival
  bool stopping;
  int64_t stop_us;
};

/// With the lock held. @return false when memory ran out
static bool append(struct stragglers *s, const struct op_ref *ref) {
  struct straggler *new = calloc(1, sizeof *new);
  if (new == NULL) {
    return false;
  }
  new->ref = *ref;
  DL_APPEND(s->list, new);
  return true;
}

void stragglers_take(struct stragglers *s, const struct op_ref *refs, size_t n) {
  for (size_t i = 0; i < n; i++) {
    pthread_mutex_lock(&s->lock);
    bool taken = append(s, &refs[i]);
    pthread_mutex_unlock(&s->lock);
    if (!taken) {
      commit_give_back(s->options, &refs[i], 1);
    }
  }
  pthread_mutex_lock(&s->lock);
  pthread_cond_signal(&s->more);
  pthread_mutex_unlock(&s->lock);
}

bool stragglers_take_locked(struct stragglers *s, const struct op_ref *ref) {
  bool taken = false;
  pthread_mutex_lock(&s->lock);
  struct straggler *x;
  DL_FOREACH(s->list, x) {
    if (x->locked && lease_key_compare(&x->ref.op->key, &ref->op->key) == 0) {
      taken = append(s, ref);
      break;
    }
  }
  pthread_mutex_unlock(&s->lock);
  return taken;
}

/// Whether an op on the same lease stands before @a x: it must not be overtaken. With the lock held.
static bool has_elder(const struct stragglers *s, const struct straggler *x) {
  for (const struct straggler *e = s->list; e != x; e = e->next) {
    if (lease_key_compare(&e->ref.op->key, &x->ref.op->key) == 0) {
      return true;
    }
  }
  return false;
}

/// Tries one op. @return whether it is done with (answered) and may be taken off the list
static bool try_one(struct stragglers *s, struct db *db, struct straggler *x, bool *locked) {
  *locked = false;
  if (x->ref.job->deadline_us <= clock_mono_us()) {
    commit_give_back(s->options, &x->ref, 1);
    return true;
  }
  switch (commit_batch(s->options, db, &x->ref, 1)) {
  case DB_OK:
    return true;
  case DB_FAILED:
    commit_give_back(s->options, &x->ref, 1);
    return true;
  case DB_LOCKED:
    *locked = true;
    return false;
  case DB_RETRY:
  case DB_LOST:
    return false;
  }
  return false;
}

/// Goes over the list once. Only this thread takes off it, so an element stays valid while the lock is let go.
/// @return whether anything was done
static bool pass(struct stragglers *s, struct db *db) {
  bool any = false;
  pthread_mutex_lock(&s->lock);
  struct straggler *x = s->list;
  while (x != NULL) {
    bool skip = has_elder(s, x);
    pthread_mutex_unlock(&s->lock);
    bool locked = false;
    bool done = !skip && try_one(s, db, x, &locked);
    pthread_mutex_lock(&s->lock);
    x->locked = x->locked || locked;
    struct straggler *next = x->next;
    if (done) {
      DL_DELETE(s->list, x);
      free(x);
      any = true;
    }
    x = next;
  }
  pthread_mutex_unlock(&s->lock);
  return any;
}

static void give_back_all(struct stragglers *s) {
  struct straggler *x, *next;
  DL_FOREACH_SAFE(s->list, x, next) {
    commit_give_back(s->options, &x->ref, 1);
    DL_DELETE(s->list, x);
    free(x);
  }
}

static void *stragglers_main(void *arg) {
  struct stragglers *s = arg;
  struct db *db = db_new(s->options->db);
  if (db == NULL) {
    log_error("stragglers: out of memory");
    abort();
  }
  for (;;) {
    pthread_mutex_lock(&s->lock);
    while (s->list == NULL && !s->stopping) {
      pthread_cond_wait(&s->more, &s->lock);
    }
    bool over = s->stopping && (s->list == NULL || clock_mono_us() >= s->stop_us);
    pthread_mutex_unlock(&s->lock);
    if (over) {
      break;
    }
    if (!pass(s, db)) {
      nanosleep(&(struct timespec){.tv_nsec = PASS_PAUSE_MS * 1000000L}, NULL);
    }
  }
  give_back_all(s);
  db_free(db);
  return NULL;
}

struct stragglers *stragglers_start(const struct writer_options *options) {
  struct stragglers *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return NULL;
  }
  s->options = options;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->more, NULL);
  if (pthread_create(&s->thread, NULL, stragglers_main, s) != 0) {
    pthread_cond_destroy(&s->more);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
  }
  return s;
}

void stragglers_stop(struct stragglers *s, int grace_ms) {
  if (s == NULL) {
    return;
  }
  pthread_mutex_lock(&s->lock);
  s->stopping = true;
  s->stop_us = clock_mono_us() + (int64_t)grace_ms * 1000;
  pthread_cond_signal(&s->more);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  pthread_cond_destroy(&s->more);
  pthread_mutex_destroy(&s->lock);
  free(s);
}
