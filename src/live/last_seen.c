// SPDX-License-Identifier: Apache-2.0
#include "live/last_seen.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/rand.h"
#include "live/seen_map.h"
#include "store/last_seen.h"

/// After a flush that left something behind the next one comes so soon, or after the usual time if that is shorter.
#define RETRY_US INT64_C(2000000)
/// How often the gauge of the lag is renewed.
#define TICK_US INT64_C(500000)
/// Longest flush: locked rows cost a lock timeout each time they are met. The rest waits for the next one.
#define FLUSH_US INT64_C(10000000)

struct last_seen {
  struct db *db;
  int64_t interval_us;
  pthread_t thread;

  pthread_mutex_t lock; ///< what follows; a leaf
  pthread_cond_t wake;
  struct seen_map map;
  size_t in_flight; ///< entries that a flush has taken and may put back
  bool stopping;
  int64_t stop_us; ///< monotonic: the last flush begins nothing after that
};

void last_seen_note(struct last_seen *ls, struct op *const *ops, size_t n) {
  if (ls == NULL) {
    return;
  }
  int64_t now_us = clock_mono_us();
  size_t refused = 0;
  pthread_mutex_lock(&ls->lock);
  for (size_t i = 0; i < n; i++) {
    const struct op *op = ops[i];
    if (op->kind == OP_HEARTBEAT && op->decision == DECISION_ACCEPTED &&
        !seen_map_put(&ls->map, op->key.room_id, op->key.user_id, op->lease.renewed_at_us, now_us,
                      LAST_SEEN_MAX - ls->in_flight)) {
      refused++;
    }
  }
  pthread_mutex_unlock(&ls->lock);
  if (refused > 0) {
    metric_add(METRIC_LAST_SEEN_OVERFLOW, (int64_t)refused);
  }
}

/// A flush under way. Owned by the thread.
struct flush {
  struct last_seen *ls;
  struct seen_map kept; ///< to be tried again
  int64_t oldest_us;
  int64_t deadline_us;
  bool away; ///< the database is: the rest is kept without trying
};

static void keep(struct flush *f, const struct sighting *list, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (!seen_map_put(&f->kept, list[i].room_id, list[i].user_id, list[i].seen_us, f->oldest_us, LAST_SEEN_MAX)) {
      metric_add(METRIC_LAST_SEEN_OVERFLOW, 1);
    }
  }
}

/// Whether nothing more is to be begun.
static bool over(struct flush *f) {
  int64_t now_us = clock_mono_us();
  pthread_mutex_lock(&f->ls->lock);
  bool late = now_us >= f->deadline_us || (f->ls->stopping && now_us >= f->ls->stop_us);
  pthread_mutex_unlock(&f->ls->lock);
  return f->away || late;
}

/// Writes a part of the flush. What cannot be written in one transaction (a locked row, a broken one) is halved until
/// the culprit stands alone, so that it holds up nobody else.
static void write_part(struct flush *f, const struct sighting *list, size_t n) {
  if (over(f)) {
    keep(f, list, n);
    return;
  }
  enum db_status status = last_seen_write(f->ls->db, list, n);
  if (status == DB_OK) {
    metric_add(METRIC_LAST_SEEN_FLUSHES, 1);
    return;
  }
  metric_add(METRIC_LAST_SEEN_FAILURES, 1);
  if (status == DB_LOST) {
    f->away = true;
    keep(f, list, n);
  } else if (n > 1) {
    write_part(f, list, n / 2);
    write_part(f, list + n / 2, n - n / 2);
  } else if (status == DB_FAILED) {
    // It would fail for ever. The lease has the time, and its end writes it once more.
    log_warning("last seen: the time of user \"%s\" in room \"%s\" cannot be written", list->user_id, list->room_id);
  } else {
    keep(f, list, n);
  }
}

/// Sorted; the strings are the map's. @return NULL when memory ran out
static struct sighting *list_of(const struct seen_map *map) {
  struct sighting *list = calloc(seen_map_count(map), sizeof *list);
  size_t n = 0;
  for (struct seen *e = seen_map_next(map, NULL); list != NULL && e != NULL; e = seen_map_next(map, e)) {
    list[n++] = (struct sighting){seen_room(e), seen_user(e), seen_at(e)};
  }
  if (list != NULL) {
    qsort(list, n, sizeof *list, sighting_compare);
  }
  return list;
}

/// Writes all that is there. @return false when something is to be tried again
static bool flush(struct last_seen *ls) {
  pthread_mutex_lock(&ls->lock);
  struct seen_map taken = ls->map;
  ls->map = (struct seen_map){0};
  size_t n = ls->in_flight = seen_map_count(&taken);
  pthread_mutex_unlock(&ls->lock);
  if (n == 0) {
    return true;
  }
  struct flush f = {.ls = ls, .oldest_us = taken.oldest_us, .deadline_us = clock_mono_us() + FLUSH_US};
  struct sighting *list = list_of(&taken);
  if (list == NULL) {
    f.kept = taken;
    taken = (struct seen_map){0};
  }
  for (size_t i = 0; list != NULL && i < n; i += LAST_SEEN_BATCH_MAX) {
    write_part(&f, list + i, n - i < LAST_SEEN_BATCH_MAX ? n - i : LAST_SEEN_BATCH_MAX);
  }
  free(list);
  seen_map_clear(&taken);
  bool done = seen_map_count(&f.kept) == 0;
  pthread_mutex_lock(&ls->lock);
  size_t lost = seen_map_merge(&ls->map, &f.kept, LAST_SEEN_MAX);
  ls->in_flight = 0;
  pthread_mutex_unlock(&ls->lock);
  metric_add(METRIC_LAST_SEEN_OVERFLOW, (int64_t)lost);
  return done;
}

/// With the lock held.
static void set_lag(const struct last_seen *ls) {
  int64_t now_us = clock_mono_us(), oldest_us = now_us;
  if (seen_map_count(&ls->map) > 0) {
    oldest_us = ls->map.oldest_us;
  }
  metric_last_seen_lag((now_us - oldest_us) / 1000);
}

/// Waits until then, or until it is to stop. @return whether it is
static bool wait_until(struct last_seen *ls, int64_t due_us) {
  pthread_mutex_lock(&ls->lock);
  for (;;) {
    set_lag(ls);
    int64_t now_us = clock_mono_us();
    if (ls->stopping || now_us >= due_us) {
      break;
    }
    int64_t until_us = due_us < now_us + TICK_US ? due_us : now_us + TICK_US;
    cond_wait_until(&ls->wake, &ls->lock, until_us);
  }
  bool yes = ls->stopping;
  pthread_mutex_unlock(&ls->lock);
  return yes;
}

static void *last_seen_main(void *arg) {
  struct last_seen *ls = arg;
  // Instances that were started together need not write together.
  int64_t due_us = clock_mono_us() + (int64_t)rand_below((uint64_t)ls->interval_us) + 1;
  while (!wait_until(ls, due_us)) {
    int64_t began_us = clock_mono_us();
    bool done = flush(ls);
    int64_t pause_us = done || ls->interval_us < RETRY_US ? ls->interval_us : RETRY_US;
    due_us = began_us + pause_us;
    if (due_us < clock_mono_us()) {
      due_us = clock_mono_us() + pause_us;
    }
  }
  if (!flush(ls)) {
    pthread_mutex_lock(&ls->lock);
    size_t left = seen_map_count(&ls->map);
    pthread_mutex_unlock(&ls->lock);
    log_warning("last seen: %zu times could not be written before the stop; their leases carry them", left);
  }
  return NULL;
}

struct last_seen *last_seen_start(const struct db_options *db, int64_t flush_ms) {
  struct last_seen *ls = calloc(1, sizeof *ls);
  if (ls == NULL || !cond_init(&ls->wake)) {
    free(ls);
    return NULL;
  }
  ls->interval_us = flush_ms * 1000;
  pthread_mutex_init(&ls->lock, NULL);
  ls->db = db_new(db);
  if (ls->db == NULL || pthread_create(&ls->thread, NULL, last_seen_main, ls) != 0) {
    db_free(ls->db);
    pthread_cond_destroy(&ls->wake);
    pthread_mutex_destroy(&ls->lock);
    free(ls);
    return NULL;
  }
  return ls;
}

void last_seen_stop(struct last_seen *ls, int grace_ms) {
  if (ls == NULL) {
    return;
  }
  pthread_mutex_lock(&ls->lock);
  ls->stopping = true;
  ls->stop_us = clock_mono_us() + (int64_t)grace_ms * 1000;
  pthread_cond_signal(&ls->wake);
  pthread_mutex_unlock(&ls->lock);
  pthread_join(ls->thread, NULL);
  seen_map_clear(&ls->map);
  db_free(ls->db);
  pthread_cond_destroy(&ls->wake);
  pthread_mutex_destroy(&ls->lock);
  free(ls);
}
