// SPDX-License-Identifier: Apache-2.0
#include "live/listener.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/metric.h"
#include "base/rand.h"
#include "live/cursor_payload.h"
#include "store/notify.h"

#define TICK_US INT64_C(1000000)
#define PROBE_EVERY_US INT64_C(10000000)
#define PROBE_HEARD_US INT64_C(2000000) // a probe that is not heard for so long is lost
#define EVICT_TICKS 5
#define PAUSE_MS 100       // after a failure
#define DEAF_PAUSE_MS 3000 // before a connection on which nothing was heard is made again

// Rooms read by one query, and newest events of a room that is behind: what both allow fits into memory easily.
#define DIRTY_MAX 200
#define NEWEST_MAX 256
// The same where all rooms are known: what has happened since is little, except in a storm, and then it is wanted.
#define NEWEST_IN_STORM 1024
#define HEADS_MAX 1000

struct listener {
  struct tail *tail;
  struct cursors *cursors;
  struct db *listen_db; // the listening thread's own
  struct db *query_db;  // the catching-up thread's own
  pthread_t threads[2]; // the listening one, the catching-up one
  int n_threads;
  int stop_fd; // readable once the threads are to end
  int work_fd; // there are dirty rooms, or a probe is wanted
  char probe_channel[48];

  // Probes have numbers. The catching-up thread sends them, the listening thread judges.
  atomic_bool probe_wanted;
  atomic_bool stands;      // LISTEN has been said on a connection that is still there
  atomic_uint probe_begun; // the newest that may have been sent
  atomic_uint probe_sent;  // the newest that was sent for certain
  _Atomic int64_t probe_sent_us;

  // The listening thread's own.
  unsigned probe_base;  // probes up to here were sent before LISTEN stood
  unsigned probe_heard; // the newest that was heard
  bool deaf_logged;

  // The catching-up thread's own.
  int64_t next_tick_us, next_probe_us;
  unsigned ticks;
  int64_t room_table; // the oid of the table of rooms
};

static void ring(void *ctx) {
  struct listener *l = ctx;
  uint64_t one = 1;
  ssize_t n = write(l->work_fd, &one, sizeof one);
  (void)n; // full means that it is readable already
}

// Waits for the threads' end. Returns whether it has come.
static bool stop_within(const struct listener *l, int ms) {
  struct pollfd p = {.fd = l->stop_fd, .events = POLLIN};
  return poll(&p, 1, ms) > 0;
}

// -- the listening thread ------------------------------------------------------------------------------------------

static void hint(void *ctx, const char *room_id, int64_t revision) {
  if (revision == NOTIFY_REFRESH)
    tail_refresh(ctx, room_id);
  else
    tail_hint(ctx, room_id, revision);
}

static void hear_probe(struct listener *l, const char *payload) {
  l->probe_heard = (unsigned)strtoul(payload, NULL, 10);
  if (l->probe_heard <= l->probe_base || tail_listening(l->tail))
    return;
  if (l->deaf_logged)
    log_info("notifications arrive again");
  l->deaf_logged = false;
  tail_set_listening(l->tail, true);
}

static void hear(struct listener *l, const PGnotify *note) {
  if (strcmp(note->relname, l->probe_channel) == 0) {
    hear_probe(l, note->extra);
    return;
  }
  metric_add(METRIC_NOTIFICATIONS, 1);
  bool of_cursors = strcmp(note->relname, CURSOR_CHANNEL) == 0;
  if (of_cursors ? cursors_hear(l->cursors, note->extra) : notification_parse(note->extra, hint, l->tail))
    return;
  // Whoever may connect to the database may notify, as often as they like.
  static struct log_limit lines;
  int64_t left_out;
  if (log_limit_take(&lines, clock_mono_us(), &left_out))
    log_warning("a notification with a malformed payload was passed over; left out before: %lld", (long long)left_out);
}

static void stop_listening(struct listener *l) {
  atomic_store(&l->stands, false);
  tail_set_listening(l->tail, false);
  // The session goes to the pooler's next client; as far as we still reach it, without what we have asked of it.
  if (db_shared(l->listen_db) && db_connected(l->listen_db))
    (void)db_script(l->listen_db, "UNLISTEN *");
  db_drop(l->listen_db);
}

// Connects and says LISTEN. What is heard counts from the first probe on that was sent after that.
static bool begin_listening(struct listener *l) {
  if (db_connect(l->listen_db) != DB_OK)
    return false;
  char sql[160];
  snprintf(sql, sizeof sql, "LISTEN " NOTIFY_CHANNEL "; LISTEN " CURSOR_CHANNEL "; LISTEN \"%s\"", l->probe_channel);
  if (db_script(l->listen_db, sql) != DB_OK) {
    db_drop(l->listen_db);
    return false;
  }
  l->probe_base = atomic_load(&l->probe_begun);
  atomic_store(&l->stands, true);
  cursors_ask_others(l->cursors);
  atomic_store(&l->probe_wanted, true);
  ring(l);
  return true;
}

// Takes what has come. Returns false when the connection is gone.
static bool take_notifications(struct listener *l) {
  PGconn *conn = db_raw(l->listen_db);
  if (!conn || PQconsumeInput(conn) == 0)
    return false;
  for (PGnotify *note; (note = PQnotifies(conn)) != NULL; PQfreemem(note))
    hear(l, note);
  return db_connected(l->listen_db);
}

// Whether a probe was sent that should have been heard by now.
static bool is_deaf(const struct listener *l) {
  unsigned sent = atomic_load(&l->probe_sent);
  return sent > l->probe_base && sent > l->probe_heard &&
         clock_mono_us() - atomic_load(&l->probe_sent_us) > PROBE_HEARD_US;
}

static void listen_turn(struct listener *l) {
  struct pollfd p[] = {{.fd = db_socket(l->listen_db), .events = POLLIN}, {.fd = l->stop_fd, .events = POLLIN}};
  (void)poll(p, ARRAY_LEN(p), 250);
  if (!take_notifications(l)) {
    log_warning("the connection for notifications was lost");
    stop_listening(l);
  } else if (is_deaf(l)) {
    if (!l->deaf_logged)
      log_error("LISTEN does not work on its connection: no notification arrives. Set database_listen_url to a direct "
                "connection to the primary. Changes by other instances are polled for until then");
    l->deaf_logged = true;
    stop_listening(l);
    (void)stop_within(l, DEAF_PAUSE_MS);
  }
}

static void *listen_main(void *arg) {
  struct listener *l = arg;
  while (!stop_within(l, 0)) {
    if (atomic_load(&l->stands) || begin_listening(l))
      listen_turn(l);
    else
      (void)stop_within(l, PAUSE_MS);
  }
  stop_listening(l);
  return NULL;
}

// -- the catching-up thread ----------------------------------------------------------------------------------------

static int newest(const int64_t *after, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (after[i] == INT64_MIN)
      return NEWEST_MAX;
  return NEWEST_IN_STORM;
}

// Reads rooms and puts them into memory. Where the query fails for a reason of its own the half with the bad room is
// found, so that the others are not held up by it.
static enum db_status read_dirty(struct listener *l, char **room_ids, const int64_t *after, size_t n) {
  struct room_news news[DIRTY_MAX];
  int64_t asked_us = clock_mono_us();
  enum db_status status = db_connect(l->query_db);
  if (status == DB_OK)
    status = read_rooms(l->query_db, (const char *const *)room_ids, after, n, newest(after, n), news);
  if (status == DB_OK) {
    for (size_t i = 0; i < n; i++)
      tail_fill(l->tail, room_ids[i], asked_us, &news[i]);
    room_news_free(news, n);
    return DB_OK;
  }
  if (status == DB_FAILED && n > 1) {
    enum db_status one = read_dirty(l, room_ids, after, n / 2);
    enum db_status other = read_dirty(l, room_ids + n / 2, after + n / 2, n - n / 2);
    return one == DB_OK ? other : one;
  }
  for (size_t i = 0; i < n; i++)
    tail_read_failed(l->tail, room_ids[i], status != DB_FAILED);
  return status;
}

// Reads all that is dirty.
static void catch_up(struct listener *l) {
  char *room_ids[DIRTY_MAX];
  int64_t after[DIRTY_MAX];
  size_t n;
  do {
    n = tail_take_dirty(l->tail, room_ids, after, DIRTY_MAX);
    if (n == 0)
      return;
    enum db_status status = read_dirty(l, room_ids, after, n);
    for (size_t i = 0; i < n; i++)
      free(room_ids[i]);
    if (status != DB_OK && stop_within(l, PAUSE_MS))
      return;
  } while (n == DIRTY_MAX);
}

// The oid of a table says whether it is still the one that memory was filled from: an open connection outlives a
// schema that is dropped and restored. Another instance may have begun a new epoch, so it is read again as well; with
// it comes how far the log is, which tells later whether the database was put back.
static const struct db_stmt pulse_stmt = {
    .name = "pulse",
    .sql = "SELECT clock_timestamp(), coalesce(to_regclass('stillhere.room')::oid::bigint, 0),"
           " (pg_notification_queue_usage() * 1e9)::bigint"};

static enum db_status pulse(struct listener *l) {
  PGresult *r = NULL;
  int64_t sent_us = clock_mono_us();
  enum db_status status = db_run(l->query_db, &pulse_stmt, NULL, &r);
  if (status != DB_OK)
    return status;
  clock_db_sample(db_time(r, 0, 0), sent_us, clock_mono_us());
  int64_t before = l->room_table, now = db_int8(r, 0, 1);
  metric_notification_queue(db_int8(r, 0, 2));
  PQclear(r);
  if (now == 0) { // dropped; what comes in its place has another oid
    tail_set_listening(l->tail, false);
    return DB_LOST;
  }
  l->room_table = now;
  if (before == 0 || before == now)
    return db_greet(l->query_db);
  db_drop(l->query_db);
  return db_connect(l->query_db);
}

static enum db_status poll_heads(struct listener *l, char **room_ids, size_t n) {
  int64_t heads[HEADS_MAX] = {0}, pruned[HEADS_MAX] = {0};
  int64_t asked_us = clock_mono_us();
  enum db_status status = read_heads(l->query_db, (const char *const *)room_ids, n, heads, pruned);
  for (size_t i = 0; i < n && status == DB_OK; i++) {
    tail_polled(l->tail, room_ids[i], asked_us, heads[i]);
    tail_pruned(l->tail, room_ids[i], pruned[i]);
  }
  return status;
}

static void slow_poll(struct listener *l) {
  char **room_ids = NULL;
  size_t n = tail_watched(l->tail, &room_ids);
  enum db_status status = db_connect(l->query_db);
  if (status == DB_OK)
    status = pulse(l);
  for (size_t i = 0; i < n && status == DB_OK; i += HEADS_MAX)
    status = poll_heads(l, room_ids + i, n - i < HEADS_MAX ? n - i : HEADS_MAX);
  for (size_t i = 0; i < n; i++)
    free(room_ids[i]);
  free(room_ids);
}

static const struct db_stmt probe_stmt = {.name = "probe", .sql = "SELECT pg_notify($1, $2)"};

// Sends a probe over the other connection: over the one that listens even a pooler would deliver it.
static void send_probe(struct listener *l) {
  atomic_store(&l->probe_wanted, false); // before its number is taken: who asks from now on gets another
  unsigned number = atomic_fetch_add(&l->probe_begun, 1) + 1;
  char payload[16];
  snprintf(payload, sizeof payload, "%u", number);
  struct db_params p = {0};
  db_p_text(&p, l->probe_channel);
  db_p_text(&p, payload);
  if (db_connect(l->query_db) == DB_OK && db_run(l->query_db, &probe_stmt, &p, NULL) == DB_OK) {
    atomic_store(&l->probe_sent_us, clock_mono_us());
    atomic_store(&l->probe_sent, number);
    l->next_probe_us = clock_mono_us() + PROBE_EVERY_US;
  } else {
    atomic_store(&l->probe_wanted, true);
  }
  db_params_clear(&p);
}

static void *catch_up_main(void *arg) {
  struct listener *l = arg;
  for (;;) {
    int64_t left_us = l->next_tick_us - clock_mono_us();
    struct pollfd p[] = {{.fd = l->work_fd, .events = POLLIN}, {.fd = l->stop_fd, .events = POLLIN}};
    if (left_us > 0)
      (void)poll(p, ARRAY_LEN(p), (int)((left_us + 999) / 1000));
    if (stop_within(l, 0))
      return NULL;
    uint64_t count;
    ssize_t rung = read(l->work_fd, &count, sizeof count);
    (void)rung; // all is looked at in either case
    catch_up(l);
    int64_t now_us = clock_mono_us();
    if (now_us >= l->next_tick_us) {
      l->next_tick_us = now_us + TICK_US;
      slow_poll(l);
      if (++l->ticks % EVICT_TICKS == 0)
        tail_evict(l->tail);
    }
    if (atomic_load(&l->stands) && (atomic_load(&l->probe_wanted) || now_us >= l->next_probe_us))
      send_probe(l);
  }
}

// -- start and stop ------------------------------------------------------------------------------------------------

static void listener_free(struct listener *l) {
  db_free(l->listen_db);
  db_free(l->query_db);
  if (l->stop_fd >= 0)
    close(l->stop_fd);
  if (l->work_fd >= 0)
    close(l->work_fd);
  free(l);
}

struct listener *listener_start(const struct db_options *listen_db, const struct db_options *query_db,
                                struct tail *tail, struct cursors *cursors) {
  struct listener *l = calloc(1, sizeof *l);
  if (!l)
    return NULL;
  l->tail = tail;
  l->cursors = cursors;
  l->listen_db = db_new(listen_db);
  l->query_db = db_new(query_db);
  l->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  l->work_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  char id[21];
  request_id_make(id);
  snprintf(l->probe_channel, sizeof l->probe_channel, "stillhere_probe_%s", id);
  if (!l->listen_db || !l->query_db || l->stop_fd < 0 || l->work_fd < 0) {
    listener_free(l);
    return NULL;
  }
  tail_on_dirty(tail, ring, l);
  l->n_threads += pthread_create(&l->threads[0], NULL, listen_main, l) == 0;
  if (l->n_threads == 1)
    l->n_threads += pthread_create(&l->threads[1], NULL, catch_up_main, l) == 0;
  if (l->n_threads < 2) {
    listener_stop(l);
    return NULL;
  }
  return l;
}

void listener_stop(struct listener *l) {
  if (!l)
    return;
  uint64_t one = 1;
  ssize_t n = write(l->stop_fd, &one, sizeof one);
  (void)n; // a counter of 0 always has room for 1
  for (int i = 0; i < l->n_threads; i++)
    pthread_join(l->threads[i], NULL);
  tail_on_dirty(l->tail, NULL, NULL);
  listener_free(l);
}
