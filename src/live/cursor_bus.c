// SPDX-License-Identifier: Apache-2.0
#include "live/cursor_bus.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/metric.h"
#include "base/util.h"
#include "live/cursor_payload.h"

// Leases seen by one query, and rooms told to the tail in one round.
#define KEYS_MAX 500
#define ROOMS_MAX 200

// After a failure of the database.
#define PAUSE_US INT64_C(200000)

struct cursor_bus {
  struct db *db; // the thread's own
  struct cursors *cursors;
  struct tail *tail;
  pthread_t thread;
  int stop_fd; // readable once the thread is to end
  int work_fd; // there is work
  // The thread's own.
  double tokens;      // packets that may be sent now
  int64_t tokens_us;  // when they were counted
  int64_t not_before; // the next round
};

// The transaction writes nothing but the notification: its commit need not reach the disk.
static const struct db_stmt send_stmt = {
    .name = "notify_cursors",
    .sql = "SELECT set_config('synchronous_commit', 'off', true), pg_notify('" CURSOR_CHANNEL "', p)"
           " FROM unnest($1::text[]) AS p"};

static void ring(void *ctx) {
  struct cursor_bus *bus = ctx;
  uint64_t one = 1;
  ssize_t n = write(bus->work_fd, &one, sizeof one);
  (void)n; // full means that it is readable already
}

static size_t count_tokens(struct cursor_bus *bus) {
  int64_t now_us = clock_mono_us();
  bus->tokens += (double)(now_us - bus->tokens_us) * CURSOR_RATE / 1e6;
  bus->tokens_us = now_us;
  if (bus->tokens > CURSOR_BURST)
    bus->tokens = CURSOR_BURST;
  return (size_t)bus->tokens;
}

static enum db_status send_packets(struct cursor_bus *bus) {
  struct payloads payloads;
  size_t n = cursors_take_payloads(bus->cursors, count_tokens(bus), &payloads);
  bus->tokens -= (double)n;
  enum db_status status = DB_OK;
  if (payloads.n > 0) {
    struct db_params p = {0};
    notify_params(&p, &payloads);
    status = db_run(bus->db, &send_stmt, &p, NULL);
    db_params_clear(&p);
  }
  if (status != DB_OK)
    cursors_send_failed(bus->cursors);
  else
    metric_add(METRIC_CURSOR_SENT, (int64_t)n);
  payloads_free(&payloads);
  return status;
}

static enum db_status see_leases(struct cursor_bus *bus) {
  struct lease_key keys[KEYS_MAX];
  struct stay stays[KEYS_MAX];
  size_t n = cursors_take_unverified(bus->cursors, keys, KEYS_MAX);
  enum db_status status = read_stays(bus->db, keys, n, stays);
  for (size_t i = 0; i < n; i++)
    cursors_verified(bus->cursors, &keys[i], status == DB_OK ? &stays[i] : NULL);
  cursors_keys_free(keys, n);
  return status;
}

static void keep_rooms(struct cursor_bus *bus) {
  char *room_ids[ROOMS_MAX];
  size_t n = cursors_take_rooms(bus->cursors, room_ids, ROOMS_MAX);
  for (size_t i = 0; i < n; i++) {
    tail_keep(bus->tail, room_ids[i]);
    free(room_ids[i]);
  }
}

// Returns whether the thread is to end.
static bool wait_for_work(struct cursor_bus *bus) {
  struct pollfd p[] = {{.fd = bus->stop_fd, .events = POLLIN}, {.fd = bus->work_fd, .events = POLLIN}};
  int64_t left_us = bus->not_before - clock_mono_us();
  if (left_us > 0)
    (void)poll(p, 1, (int)((left_us + 999) / 1000)); // whatever comes waits for the next round
  left_us = cursors_next_work(bus->cursors) - clock_mono_us();
  if (left_us > 0 && p[0].revents == 0)
    (void)poll(p, ARRAY_LEN(p), (int)((left_us + 999) / 1000));
  uint64_t count;
  ssize_t rung = read(bus->work_fd, &count, sizeof count);
  (void)rung; // all is looked at in either case
  return p[0].revents != 0;
}

static void *bus_main(void *arg) {
  struct cursor_bus *bus = arg;
  while (!wait_for_work(bus)) {
    bus->not_before = clock_mono_us() + CURSOR_ROUND_US;
    keep_rooms(bus);
    enum db_status status = db_connect(bus->db);
    if (status == DB_OK)
      status = see_leases(bus);
    if (status == DB_OK)
      status = send_packets(bus);
    if (status != DB_OK)
      bus->not_before = clock_mono_us() + PAUSE_US;
  }
  return NULL;
}

static void bus_free(struct cursor_bus *bus) {
  db_free(bus->db);
  if (bus->stop_fd >= 0)
    close(bus->stop_fd);
  if (bus->work_fd >= 0)
    close(bus->work_fd);
  free(bus);
}

struct cursor_bus *cursor_bus_start(const struct db_options *db, struct cursors *cursors, struct tail *tail) {
  struct cursor_bus *bus = calloc(1, sizeof *bus);
  if (!bus)
    return NULL;
  bus->cursors = cursors;
  bus->tail = tail;
  bus->tokens_us = clock_mono_us();
  bus->tokens = CURSOR_BURST;
  bus->db = db_new(db);
  bus->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  bus->work_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (!bus->db || bus->stop_fd < 0 || bus->work_fd < 0) {
    bus_free(bus);
    return NULL;
  }
  cursors_on_work(cursors, ring, bus);
  if (pthread_create(&bus->thread, NULL, bus_main, bus) != 0) {
    cursors_on_work(cursors, NULL, NULL);
    bus_free(bus);
    return NULL;
  }
  return bus;
}

void cursor_bus_stop(struct cursor_bus *bus) {
  if (!bus)
    return;
  uint64_t one = 1;
  ssize_t n = write(bus->stop_fd, &one, sizeof one);
  (void)n; // a counter of 0 always has room for 1
  pthread_join(bus->thread, NULL);
  cursors_on_work(bus->cursors, NULL, NULL);
  bus_free(bus);
}
