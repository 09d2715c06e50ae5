// SPDX-License-Identifier: Apache-2.0
#include "live/sweeper.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/metric.h"
#include "live/commit.h"
#include "live/stuck.h"
#include "store/pulse.h"
#include "store/sweep.h"

/// Overdue leases that one look lists at most.
#define LIST_MAX 5000

/// How long one sweep tries to find the culprit in rooms that cannot be ended as a whole; a lock costs 100 ms a try.
#define PATIENCE_US 500000

/// Milliseconds before the next try while the database is away.
#define AWAY_MS 100

/// Milliseconds between two rounds of retention.
#define RETENTION_INTERVAL_MS 5000

/// Where nothing can be due for long, look all the same after this many sweep intervals: somebody may have changed the
/// table by hand.
#define IDLE_INTERVALS 2

/// What may come on top of the longest pause before a pulse counts as late: a transaction under way, a busy machine.
#define LATE_MS 1000

/// While there is much to end the pulse is touched this often.
#define BEAT_US 500000

/// Leases that get their credit in one statement.
#define CREDIT_MAX 5000

/// Connections below which nobody asks where the memory is.
#define CROWD_MIN 1000

/// What cannot be ended is tried again until somebody repairs it (live/stuck.h), and told of so often.
#define STUCK_LINES_BURST 5
#define STUCK_LINES_EVERY_US INT64_C(60000000)

/// Our idea of the database's clock may trail by less than this.
#define CREDIT_SLACK_US INT64_C(60000000)

struct sweeper {
  struct sweeper_options options;
  struct db *db;
  pthread_t thread;
  int64_t retention_due_us; ///< monotonic
  struct stuck *stuck;
  int64_t most_connections; ///< since memory was given back
  int64_t patience_us;      ///< monotonic: until then this sweep takes apart what fails
  int64_t beaten_us;        ///< monotonic: when the pulse was touched
  int64_t outage_us;        ///< when the newest outage that is known ended, database clock

  pthread_mutex_t lock; ///< stopping; a leaf
  pthread_cond_t wake;
  bool stopping;
};

static bool stopping(struct sweeper *s) {
  pthread_mutex_lock(&s->lock);
  bool yes = s->stopping;
  pthread_mutex_unlock(&s->lock);
  return yes;
}

int64_t sweeper_silence_ms(int64_t sweep_interval_ms) {
  return sweep_interval_ms * IDLE_INTERVALS + LATE_MS;
}

/// Touches the pulse. @return false when the database is away
static bool beat(struct sweeper *s) {
  const struct sweeper_options *o = &s->options;
  if (pulse_beat(s->db, sweeper_silence_ms(o->sweep_interval_ms), o->offline_grace_ms, &s->outage_us) != DB_OK) {
    return false;
  }
  s->beaten_us = clock_mono_us();
  return true;
}

/// What has to be known and credited before anything is ended. @return false when the database is away
static bool begin_sweep(struct sweeper *s) {
  if (!beat(s)) {
    return false;
  }
  if (s->outage_us == TIME_MINUS_INFINITY) {
    return true;
  }
  if (pulse_credit_graces(s->db, s->options.offline_grace_ms) != DB_OK) {
    return false;
  }
  // The look goes through all leases, so it ends with the last one that was there when the outage was.
  bool more = clock_db_us() - s->outage_us < s->options.ttl_max_ms * 1000 + CREDIT_SLACK_US;
  while (more && !stopping(s)) {
    if (pulse_credit_leases(s->db, s->outage_us, CREDIT_MAX, &more) != DB_OK) {
      return false;
    }
  }
  return true;
}

/// What a sweep ends: leases, or the graces of users.
enum chore { CHORE_LEASES, CHORE_GRACES };

/// Ends the listed things in one transaction. What was written is told.
static enum db_status end(struct sweeper *s, enum chore chore, const struct overdue *list, size_t n) {
  if (clock_mono_us() - s->beaten_us > BEAT_US && !beat(s)) {
    return DB_LOST;
  }
  struct written written = {0};
  int64_t silence_ms = sweeper_silence_ms(s->options.sweep_interval_ms);
  enum db_status status = chore == CHORE_LEASES
                              ? sweep_expire(s->db, s->options.offline_grace_ms, silence_ms, list, n, &written)
                              : sweep_go_offline(s->db, silence_ms, list, n, &written);
  if (status == DB_OK) {
    commit_tell(s->options.tail, s->options.log, &written);
  }
  written_clear(&written);
  return status;
}

static void complain(struct sweeper *s, enum chore chore, const struct overdue *o) {
  static struct log_limit lines;
  int64_t left_out, next_ms = stuck_note(s->stuck, o, clock_mono_us());
  if (log_limit_take_every(&lines, STUCK_LINES_EVERY_US, STUCK_LINES_BURST, clock_mono_us(), &left_out)) {
    log_warning("sweeper: a %s in room \"%s\" cannot be ended; the next try is in %lld ms; left out before: %lld",
                chore == CHORE_LEASES ? "lease" : "grace", o->room_id, (long long)next_ms, (long long)left_out);
  }
}

/// What is due in one room could not be ended together: a row is broken, or the room or a user is locked. Halves them
/// until the culprit stands alone, as long as there is patience; what is left is left for the next sweep.
/// @return false when the database is away
static bool end_in_parts(struct sweeper *s, enum chore chore, const struct overdue *list, size_t n) {
  if (clock_mono_us() >= s->patience_us) {
    return true;
  }
  switch (end(s, chore, list, n)) {
  case DB_OK:
    return true;
  case DB_LOST:
    return false;
  case DB_FAILED:
    if (n == 1) {
      complain(s, chore, list);
    }
    break;
  case DB_LOCKED:
  case DB_RETRY:
    break;
  }
  return n == 1 || (end_in_parts(s, chore, list, n / 2) && end_in_parts(s, chore, list + n / 2, n - n / 2));
}

/// Ends a batch that failed as a whole room by room, so that a locked room costs the others one wait.
/// @return false when the database is away
static bool end_by_room(struct sweeper *s, enum chore chore, const struct overdue *list, size_t n) {
  for (size_t i = 0, next; i < n; i = next) {
    for (next = i + 1; next < n && strcmp(list[next].room_id, list[i].room_id) == 0; next++) {
    }
    enum db_status status = end(s, chore, list + i, next - i);
    if (status == DB_LOST || (status != DB_OK && !end_in_parts(s, chore, list + i, next - i))) {
      return false;
    }
  }
  return true;
}

static bool end_page(struct sweeper *s, enum chore chore, const struct overdue *list, size_t n) {
  for (size_t i = 0; i < n && !stopping(s); i += SWEEP_BATCH_MAX) {
    size_t batch = n - i < SWEEP_BATCH_MAX ? n - i : SWEEP_BATCH_MAX;
    enum db_status status = end(s, chore, list + i, batch);
    if (status == DB_LOST || (status != DB_OK && !end_by_room(s, chore, list + i, batch))) {
      return false;
    }
  }
  return true;
}

/// Ends a page but for what could not be ended of late: that has its own time.
static bool end_but_stuck(struct sweeper *s, enum chore chore, const struct overdue *list, size_t n) {
  int64_t now_us = clock_mono_us();
  struct overdue *rest = stuck_any(s->stuck, now_us) && n > 0 ? malloc(n * sizeof *rest) : NULL;
  if (rest == NULL) {
    return end_page(s, chore, list, n);
  }
  size_t n_rest = 0;
  for (size_t i = 0; i < n; i++) {
    if (!stuck_waits(s->stuck, &list[i], now_us)) {
      rest[n_rest++] = list[i]; // the strings stay the list's
    }
  }
  bool ok = end_page(s, chore, rest, n_rest);
  free(rest);
  return ok;
}

/// Looks for all that is due, a page at a time, and ends it.
/// @param[out] next_us when the next thing may be due, database clock. @return false when the database is away
static bool sweep(struct sweeper *s, enum chore chore, int64_t *next_us) {
  struct overdue *page = NULL;
  size_t n = 0;
  bool ok = true;
  s->patience_us = clock_mono_us() + PATIENCE_US;
  do {
    struct overdue *next = NULL;
    size_t n_next = 0;
    const struct overdue *after = n > 0 ? &page[n - 1] : NULL;
    ok = (chore == CHORE_LEASES ? sweep_overdue(s->db, LIST_MAX, after, &next, &n_next, next_us)
                                : sweep_offlines(s->db, LIST_MAX, after, &next, &n_next, next_us)) == DB_OK;
    overdue_free(page, n);
    page = next;
    n = n_next;
    ok = ok && end_but_stuck(s, chore, page, n);
  } while (ok && n == LIST_MAX && !stopping(s));
  overdue_free(page, n);
  return ok;
}

/// What a crowd has left behind stays with the process, in the holes between what is still in use: it is given back to
/// the system when most of the crowd has gone. That holds up whoever wants memory for some milliseconds, so it is not
/// done for less.
static void give_memory_back(struct sweeper *s) {
  int64_t now = metric_get(METRIC_CONNECTIONS);
  if (now > s->most_connections) {
    s->most_connections = now;
  }
  if (s->most_connections < CROWD_MIN || now > s->most_connections / 2) {
    return;
  }
  s->most_connections = now;
#ifdef __GLIBC__
  int64_t began_us = clock_mono_us();
  (void)malloc_trim(0);
  log_debug("memory was given back in %lld us", (long long)(clock_mono_us() - began_us));
#endif
}

static void retain(struct sweeper *s) {
  if (clock_mono_us() < s->retention_due_us) {
    return;
  }
  give_memory_back(s);
  bool more = false;
  const struct sweeper_options *o = &s->options;
  enum db_status status =
      sweep_retention(s->db, o->event_retention_ms, o->event_retention_count, o->tombstone_retention_ms, &more);
  if (status != DB_OK || !more) {
    s->retention_due_us = clock_mono_us() + RETENTION_INTERVAL_MS * 1000L;
  }
}

/// How long nothing can be due: until the first expiry that was seen, or that of a lease granted or shortened from now
/// on; but at least the interval, so that a stream of expiries is taken in batches.
static int64_t pause_ms(const struct sweeper *s, int64_t next_us) {
  int64_t interval = s->options.sweep_interval_ms;
  int64_t idle =
      s->options.ttl_min_ms < s->options.offline_grace_ms ? s->options.ttl_min_ms : s->options.offline_grace_ms;
  if (next_us != TIME_INFINITY) {
    int64_t until = (next_us - clock_db_us()) / 1000 + 1;
    idle = until < idle ? until : idle;
  }
  int64_t longest = interval * IDLE_INTERVALS;
  idle = idle < longest ? idle : longest;
  return idle > interval ? idle : interval;
}

static void wait(struct sweeper *s, int64_t ms) {
  int64_t due_us = clock_mono_us() + ms * 1000;
  pthread_mutex_lock(&s->lock);
  while (!s->stopping && clock_mono_us() < due_us) {
    cond_wait_until(&s->wake, &s->lock, due_us);
  }
  pthread_mutex_unlock(&s->lock);
}

static void *sweeper_main(void *arg) {
  struct sweeper *s = arg;
  while (!stopping(s)) {
    int64_t lease_us = TIME_INFINITY, grace_us = TIME_INFINITY;
    bool up = db_connect(s->db) == DB_OK && begin_sweep(s) && sweep(s, CHORE_LEASES, &lease_us) &&
              sweep(s, CHORE_GRACES, &grace_us);
    if (up) {
      retain(s);
    }
    wait(s, up ? pause_ms(s, lease_us < grace_us ? lease_us : grace_us) : AWAY_MS);
  }
  return NULL;
}

struct sweeper *sweeper_start(const struct sweeper_options *options) {
  struct sweeper *s = calloc(1, sizeof *s);
  if (s == NULL || !cond_init(&s->wake)) {
    free(s);
    return NULL;
  }
  s->options = *options;
  s->outage_us = TIME_MINUS_INFINITY;
  s->db = db_new(options->db);
  s->stuck = stuck_new();
  pthread_mutex_init(&s->lock, NULL);
  if (s->db == NULL || s->stuck == NULL || pthread_create(&s->thread, NULL, sweeper_main, s) != 0) {
    db_free(s->db);
    stuck_free(s->stuck);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
  }
  return s;
}

void sweeper_stop(struct sweeper *sweeper) {
  if (sweeper == NULL) {
    return;
  }
  pthread_mutex_lock(&sweeper->lock);
  sweeper->stopping = true;
  pthread_cond_signal(&sweeper->wake);
  pthread_mutex_unlock(&sweeper->lock);
  pthread_join(sweeper->thread, NULL);
  db_free(sweeper->db);
  stuck_free(sweeper->stuck);
  pthread_cond_destroy(&sweeper->wake);
  pthread_mutex_destroy(&sweeper->lock);
  free(sweeper);
}
