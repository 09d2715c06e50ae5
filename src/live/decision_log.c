// SPDX-License-Identifier: Apache-2.0
#include "live/decision_log.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/jsonout.h"
#include "base/log.h"
#include "base/metric.h"

/// Bytes that wait to be written at most; some 3000 lines for each MiB.
#define PENDING_MAX (4u << 20)

/// Longest wait for a reader in one poll(2), so that a stop is noticed.
#define POLL_MS 100

/// After a write the next one comes so much later at the earliest: under load a thread that is woken and a write for
/// each batch would cost more than the lines themselves.
#define PAUSE_US INT64_C(5000)

struct decision_log {
  int fd;
  enum decision_log_level level;
  char *instance;
  size_t chunk; ///< bytes in one write(2): what a pipe takes without blocking once poll(2) says it is writable
  pthread_t thread;

  pthread_mutex_t lock; ///< what follows; a leaf
  pthread_cond_t more;
  struct buf pending;
  bool asleep;      ///< the thread waits for something to be pending
  uint64_t dropped; ///< lines since the last one that says so
  bool stopping;
  int64_t stop_us; ///< monotonic: what is not written by then is lost
};

static void add_revision(struct buf *b, const char *key, int64_t revision) {
  jo_key(b, key);
  if (revision > 0) {
    jo_int(b, revision);
  } else {
    jo_null(b);
  }
}

/// The lines of a batch have one time: they were committed together.
static void begin_line(const struct decision_log *log, struct decision_lines *lines, const char *what,
                       const struct lease_key *key) {
  struct buf *b = &lines->text;
  if (lines->n == 0) {
    lines->now_us = clock_db_us();
  }
  buf_puts(b, "{\"time\":"); // not jo_object(): it would put a comma behind the line before
  jo_time(b, lines->now_us);
  jo_kstr(b, "instance", log->instance);
  jo_kstr(b, "what", what);
  jo_kstr(b, "room_id", key->room_id);
  jo_kstr(b, "user_id", key->user_id);
  jo_kstr(b, "session_id", key->session_id);
}

static void end_line(struct decision_lines *lines) {
  jo_object_end(&lines->text);
  buf_putc(&lines->text, '\n');
  lines->n++;
}

void decision_log_write(struct decision_log *log, struct decision_lines *lines) {
  if (lines->n == 0) {
    return;
  }
  pthread_mutex_lock(&log->lock);
  bool fits = !lines->text.failed && log->pending.len + lines->text.len <= PENDING_MAX;
  if (fits) {
    buf_add(&log->pending, lines->text.data, lines->text.len);
    fits = !log->pending.failed;
  }
  if (!fits) {
    log->dropped += lines->n;
  }
  if (log->asleep) {
    pthread_cond_signal(&log->more);
  }
  pthread_mutex_unlock(&log->lock);
  if (!fits) {
    metric_add(METRIC_DECISION_LOG_DROPPED, lines->n);
  }
  buf_free(&lines->text);
  lines->n = 0;
}

static bool is_plain_renewal(const struct op *op) {
  return op->kind == OP_HEARTBEAT && op->decision == DECISION_ACCEPTED && op->event_id == NULL;
}

void decision_lines_op(const struct decision_log *log, struct decision_lines *lines, const struct op *op) {
  if (log->level == DECISION_LOG_OFF || (log->level == DECISION_LOG_TRANSITIONS && is_plain_renewal(op))) {
    return;
  }
  struct buf *b = &lines->text;
  begin_line(log, lines, op->kind == OP_HEARTBEAT ? "heartbeat" : "close", &op->key);
  jo_kstr(b, "event_id", op->event_id);
  add_revision(b, "prior_revision", op->prior_revision);
  add_revision(b, "new_revision", op->stored_revision);
  jo_kstr(b, "decision", decision_name(op->decision));
  jo_kbool(b, "granted", op->granted);
  jo_kstr(b, "request_id", op->request_id);
  jo_kstr(b, "by", op->by);
  if (op->client_time != NULL) {
    jo_kstr(b, "client_time", op->client_time);
  }
  end_line(lines);
}

void decision_lines_expiry(const struct decision_log *log, struct decision_lines *lines, const struct expiry *e) {
  if (log->level == DECISION_LOG_OFF) {
    return;
  }
  struct buf *b = &lines->text;
  begin_line(log, lines, "expiry", &(struct lease_key){e->room_id, e->user_id, e->session_id});
  jo_kstr(b, "event_id", e->event_id);
  add_revision(b, "prior_revision", e->revision);
  add_revision(b, "new_revision", e->revision);
  jo_kstr(b, "decision", "expired");
  jo_kstr(b, "request_id", e->request_id);
  jo_kint(b, "overdue_ms", e->overdue_ms);
  end_line(lines);
}

void decision_lines_membership(const struct decision_log *log, struct decision_lines *lines,
                               const struct membership_line *line) {
  if (log->level == DECISION_LOG_OFF) {
    return;
  }
  struct buf *b = &lines->text;
  begin_line(log, lines, line->what, &line->key);
  jo_kstr(b, "event_id", line->event_id);
  add_revision(b, "prior_revision", line->revision);
  add_revision(b, "new_revision", line->revision);
  jo_kstr(b, "decision", line->decision);
  jo_kstr(b, "request_id", line->request_id);
  jo_kstr(b, "by", line->by);
  end_line(lines);
}

static bool too_late(struct decision_log *log) {
  pthread_mutex_lock(&log->lock);
  bool late = log->stopping && clock_mono_us() >= log->stop_us;
  pthread_mutex_unlock(&log->lock);
  return late;
}

/// Writes all of it, or as much as the reader takes before the log must stop. @return false when nobody will read on
static bool write_out(struct decision_log *log, const char *data, size_t len) {
  while (len > 0) {
    struct pollfd p = {.fd = log->fd, .events = POLLOUT};
    int ready = poll(&p, 1, POLL_MS);
    if (ready == 0 || (ready < 0 && errno == EINTR)) {
      if (too_late(log)) {
        return false;
      }
      continue;
    }
    ssize_t n = write(log->fd, data, len < log->chunk ? len : log->chunk);
    if (n < 0 && errno != EINTR && errno != EAGAIN) {
      return false;
    }
    if (n > 0) {
      data += n;
      len -= (size_t)n;
    }
  }
  return true;
}

/// The line that says how many are missing.
static void add_dropped(struct buf *b, const char *instance, uint64_t dropped) {
  struct buf line = {0};
  jo_object(&line);
  jo_ktime(&line, "time", clock_db_us());
  jo_kstr(&line, "instance", instance);
  jo_kstr(&line, "what", "dropped");
  jo_kint(&line, "lines", (int64_t)dropped);
  jo_object_end(&line);
  buf_putc(&line, '\n');
  if (!line.failed) {
    buf_add(b, line.data, line.len);
  }
  buf_free(&line);
}

/// Waits until there is something to write and it is time for it. With the lock held.
static void await_lines(struct decision_log *log, int64_t not_before_us) {
  while (log->pending.len == 0 && log->dropped == 0 && !log->stopping) {
    log->asleep = true;
    pthread_cond_wait(&log->more, &log->lock);
    log->asleep = false;
  }
  while (!log->stopping && clock_mono_us() < not_before_us) {
    cond_wait_until(&log->more, &log->lock, not_before_us);
  }
}

static void *log_main(void *arg) {
  struct decision_log *log = arg;
  bool readable = true;
  int64_t not_before_us = 0;
  for (;;) {
    pthread_mutex_lock(&log->lock);
    await_lines(log, not_before_us);
    struct buf batch = log->pending;
    log->pending = (struct buf){0};
    uint64_t dropped = log->dropped;
    log->dropped = 0;
    bool over = log->stopping && batch.len == 0 && dropped == 0;
    pthread_mutex_unlock(&log->lock);
    if (over) {
      break;
    }
    if (dropped > 0) {
      add_dropped(&batch, log->instance, dropped);
    }
    if (readable && !batch.failed && !write_out(log, batch.data, batch.len)) {
      readable = false;
      if (!too_late(log)) {
        log_warning("decision log: nobody reads it any more (%s); it is off from now on", strerror(errno));
      }
    }
    buf_free(&batch);
    not_before_us = clock_mono_us() + PAUSE_US;
  }
  return NULL;
}

struct decision_log *decision_log_start(int fd, enum decision_log_level level, const char *instance) {
  struct decision_log *log = calloc(1, sizeof *log);
  if (log == NULL || !cond_init(&log->more)) {
    free(log);
    return NULL;
  }
  struct stat st;
  log->fd = fd;
  log->level = level;
  log->chunk = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? PENDING_MAX : PIPE_BUF;
  log->instance = strdup(instance);
  pthread_mutex_init(&log->lock, NULL);
  if (log->instance == NULL || pthread_create(&log->thread, NULL, log_main, log) != 0) {
    pthread_cond_destroy(&log->more);
    pthread_mutex_destroy(&log->lock);
    free(log->instance);
    free(log);
    return NULL;
  }
  return log;
}

void decision_log_stop(struct decision_log *log, int grace_ms) {
  if (log == NULL) {
    return;
  }
  pthread_mutex_lock(&log->lock);
  log->stopping = true;
  log->stop_us = clock_mono_us() + (int64_t)grace_ms * 1000;
  pthread_cond_signal(&log->more);
  pthread_mutex_unlock(&log->lock);
  pthread_join(log->thread, NULL);
  pthread_cond_destroy(&log->more);
  pthread_mutex_destroy(&log->lock);
  buf_free(&log->pending);
  free(log->instance);
  free(log);
}
