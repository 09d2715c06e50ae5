// SPDX-License-Identifier: Apache-2.0
// Two lists. Fresh ops are tried in the order of their arrival. One that meets a lock goes to the waiting ones and is
// tried again in a while, and so do, untried, those that would meet the same lock: the next op of the same lease, which
// must not overtake; and, where it was a room's or a user's row, every op of that room or user. So a lock costs one
// attempt now and then, however many ops stand behind it, and everybody else is through at once.
#include "live/stragglers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"
#include "base/util.h"

/// When an op that met a lock is tried again, and when anything is after the database went away.
#define RETRY_US INT64_C(100000)
#define AWAY_US INT64_C(50000)

struct straggler {
  struct op_ref ref;
  bool met_lock;    ///< it was tried and met a lock; otherwise it waits behind one that did
  bool shared;      ///< that lock was not on its lease but on what it shares with others: its room or its user
  int64_t retry_us; ///< monotonic
  struct straggler *prev, *next;
};

/// A lease's key, for whoever must not look at the op. No session: of none.
struct key_copy {
  char room_id[IDENT_MAX + 1], user_id[IDENT_MAX + 1], session_id[IDENT_MAX + 1];
};

struct stragglers {
  const struct writer_options *options;
  pthread_t thread;

  atomic_size_t n_held; ///< in the lists or being tried; changed with the lock held

  pthread_mutex_t lock; ///< what follows; a leaf. Only the thread takes off the lists
  pthread_cond_t more;
  struct straggler *fresh, *waiting;
  struct key_copy tried; ///< the lease of the op that is being tried, whose own strings may go with its answer
  bool stopping;
  int64_t stop_us;
};

/// With the lock held. @return false when memory ran out
static bool append_fresh(struct stragglers *s, const struct op_ref *ref) {
  struct straggler *new = calloc(1, sizeof *new);
  if (new == NULL) {
    return false;
  }
  new->ref = *ref;
  DL_APPEND(s->fresh, new);
  atomic_fetch_add(&s->n_held, 1);
  return true;
}

void stragglers_take(struct stragglers *s, const struct op_ref *refs, size_t n) {
  for (size_t i = 0; i < n; i++) {
    pthread_mutex_lock(&s->lock);
    bool taken = append_fresh(s, &refs[i]);
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    if (!taken) {
      commit_give_back(s->options, &refs[i], 1);
    }
  }
}

static bool same_key(const struct straggler *x, const struct op *op) {
  return lease_key_compare(&x->ref.op->key, &op->key) == 0;
}

/// Whether @a op would meet the lock that @a x met.
static bool blocks(const struct straggler *x, const struct op *op) {
  const struct lease_key *a = &x->ref.op->key, *b = &op->key;
  return same_key(x, op) ||
         (x->met_lock && x->shared && (strcmp(a->room_id, b->room_id) == 0 || strcmp(a->user_id, b->user_id) == 0));
}

/// The waiting straggler that @a op has to stand behind, or NULL. With the lock held.
static const struct straggler *blocker(const struct stragglers *s, const struct op *op) {
  const struct straggler *x;
  DL_FOREACH(s->waiting, x) {
    if (blocks(x, op)) {
      return x;
    }
  }
  return NULL;
}

/// Whether an op of the same lease is here and has met no lock so far. With the lock held.
static bool is_held(const struct stragglers *s, const struct op *op) {
  const struct straggler *x;
  DL_FOREACH(s->fresh, x) {
    if (same_key(x, op)) {
      return true;
    }
  }
  const struct lease_key tried = {s->tried.room_id, s->tried.user_id, s->tried.session_id};
  return lease_key_compare(&tried, &op->key) == 0;
}

bool stragglers_take_locked(struct stragglers *s, const struct op_ref *ref) {
  if (atomic_load(&s->n_held) == 0) {
    return false; // nearly always
  }
  pthread_mutex_lock(&s->lock);
  bool taken = (blocker(s, ref->op) != NULL || is_held(s, ref->op)) && append_fresh(s, ref);
  if (taken) {
    pthread_cond_signal(&s->more);
  }
  pthread_mutex_unlock(&s->lock);
  return taken;
}

/// Whether an op of the same lease waits before @a x. With the lock held.
static bool has_elder(const struct stragglers *s, const struct straggler *x) {
  for (const struct straggler *e = s->waiting; e != x; e = e->next) {
    if (same_key(e, x->ref.op)) {
      return true;
    }
  }
  return false;
}

/// Takes the next op to be tried off its list: a fresh one that nothing stands before, else a waiting one whose time
/// has come. @return NULL when there is none; *wake_us then says when there may be. With the lock held
static struct straggler *pick(struct stragglers *s, int64_t now_us, int64_t *wake_us) {
  while (s->fresh != NULL) {
    struct straggler *x = s->fresh;
    DL_DELETE(s->fresh, x);
    const struct straggler *before = blocker(s, x->ref.op);
    if (before == NULL) {
      return x;
    }
    x->retry_us = before->retry_us;
    DL_APPEND(s->waiting, x);
  }
  *wake_us = INT64_MAX;
  struct straggler *x;
  DL_FOREACH(s->waiting, x) {
    // Past its deadline it is picked in order to be given back.
    int64_t due_us = x->retry_us < x->ref.job->deadline_us ? x->retry_us : x->ref.job->deadline_us;
    if (due_us > now_us) {
      *wake_us = due_us < *wake_us ? due_us : *wake_us;
    } else if (!has_elder(s, x)) {
      DL_DELETE(s->waiting, x);
      return x;
    }
  }
  return NULL;
}

/// Puts an op that met a lock, or found the database away, with the waiting ones, in front so that it stays the elder.
static void put_back(struct stragglers *s, struct straggler *x, bool met_lock, bool shared) {
  int64_t retry_us = clock_mono_us() + (met_lock ? RETRY_US : AWAY_US);
  x->met_lock = met_lock;
  x->shared = shared;
  x->retry_us = retry_us;
  pthread_mutex_lock(&s->lock);
  struct straggler *other;
  DL_FOREACH(s->waiting, other) {
    if (!met_lock || blocks(x, other->ref.op)) {
      other->retry_us = retry_us; // it would meet the same
    }
  }
  DL_PREPEND(s->waiting, x);
  s->tried.session_id[0] = '\0';
  pthread_mutex_unlock(&s->lock);
}

/// Lets go of an op that was answered.
static void let_go(struct stragglers *s, struct straggler *x) {
  pthread_mutex_lock(&s->lock);
  s->tried.session_id[0] = '\0';
  atomic_fetch_sub(&s->n_held, 1);
  pthread_mutex_unlock(&s->lock);
  free(x);
}

static void try_one(struct stragglers *s, struct db *db, struct straggler *x) {
  if (x->ref.job->deadline_us <= clock_mono_us()) {
    commit_give_back(s->options, &x->ref, 1);
    let_go(s, x);
    return;
  }
  bool shared = false;
  enum db_status status = commit_batch(s->options, db, &x->ref, 1, &shared);
  switch (status) {
  case DB_LOCKED:
  case DB_RETRY:
  case DB_LOST:
    put_back(s, x, status == DB_LOCKED, shared);
    return;
  case DB_FAILED:
    commit_refuse(s->options, &x->ref);
    break;
  case DB_OK:
    break;
  }
  let_go(s, x);
}

static void give_back_all(struct stragglers *s, struct straggler **list) {
  struct straggler *x, *next;
  DL_FOREACH_SAFE(*list, x, next) {
    commit_give_back(s->options, &x->ref, 1);
    DL_DELETE(*list, x);
    free(x);
  }
}

static void note_tried(struct stragglers *s, const struct straggler *x) {
  const struct lease_key *key = &x->ref.op->key;
  (void)snprintf(s->tried.room_id, sizeof s->tried.room_id, "%s", key->room_id);
  (void)snprintf(s->tried.user_id, sizeof s->tried.user_id, "%s", key->user_id);
  (void)snprintf(s->tried.session_id, sizeof s->tried.session_id, "%s", key->session_id);
}

/// Waits for the next op. @return NULL when it is time to end
static struct straggler *next_straggler(struct stragglers *s) {
  struct straggler *x = NULL;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    int64_t now_us = clock_mono_us(), wake_us;
    bool empty = s->fresh == NULL && s->waiting == NULL;
    if (s->stopping && (empty || now_us >= s->stop_us)) {
      break;
    }
    x = pick(s, now_us, &wake_us);
    if (x != NULL) {
      note_tried(s, x);
      break;
    }
    wake_us = s->stopping && s->stop_us < wake_us ? s->stop_us : wake_us;
    if (wake_us == INT64_MAX) {
      pthread_cond_wait(&s->more, &s->lock);
    } else {
      cond_wait_until(&s->more, &s->lock, wake_us);
    }
  }
  pthread_mutex_unlock(&s->lock);
  return x;
}

static void *stragglers_main(void *arg) {
  struct stragglers *s = arg;
  struct db *db = db_new(s->options->stragglers_db);
  if (db == NULL) {
    log_error("stragglers: out of memory");
    abort();
  }
  struct straggler *x;
  while ((x = next_straggler(s)) != NULL) {
    try_one(s, db, x);
  }
  // The writer has ended before: nobody adds any more.
  give_back_all(s, &s->fresh);
  give_back_all(s, &s->waiting);
  db_free(db);
  return NULL;
}

struct stragglers *stragglers_start(const struct writer_options *options) {
  struct stragglers *s = calloc(1, sizeof *s);
  if (s == NULL || !cond_init(&s->more)) {
    free(s);
    return NULL;
  }
  s->options = options;
  pthread_mutex_init(&s->lock, NULL);
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
