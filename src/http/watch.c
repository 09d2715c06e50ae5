// SPDX-License-Identifier: Apache-2.0
// Who watches which room, and how a storm of events becomes few wakes (CONTRACT §4). A wake that finds a quiet room
// goes through at once and begins a window; what comes inside the window, wakes as well as polls that return behind the
// head, waits for its end. The window grows with the number of watchers, so that the replies that an event costs stay
// bounded: a thousand events at a thousand watchers are a few thousand replies and not a million.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/metric.h"
#include "http/fold.h"
#include "http/inside.h"
#include "live/cursors.h"

/// Up to so many watchers a room has no window: every event goes out at once.
#define WATCHERS_AT_ONCE 10
/// What each watcher beyond them adds to the window.
#define WINDOW_MS_EACH 10

/// Nobody shall need a snapshot because of a window: it ends early when half of what a reader may be behind has come.
/// How often that is looked at.
#define LOOK_US 50000

/// The watchers of a room on all workers, so that the window does not depend on how they are spread. By the hash of the
/// room's id: two rooms can share a count, which is why it is only believed up to what a worker's own watchers suggest.
#define COUNTS_BITS 14
static atomic_int watcher_counts[1 << COUNTS_BITS];

/// Begins the names of those who watch a room's cursors; no room's own name begins so. They have no window here: the
/// cursors have one of their own.
#define CURSORS_OF '\1'
#define CURSORS_NAME_SIZE (IDENT_MAX + 2)

struct room_watch {
  struct request *first;
  unsigned n;              ///< requests in the list
  unsigned counted;        ///< how many of them are in `count`
  atomic_int *count;       ///< the room's, over all workers
  struct heap_node window; ///< in loop->windows while there is a window, which outlives the watchers
  int64_t end_us;          ///< when it ends
  int64_t base;            ///< the room's head when it began; -1: unknown
  bool pending;            ///< somebody waits for its end
  UT_hash_handle hh;
  char room_id[];
};

static bool in_window(const struct room_watch *watch) {
  return watch->window.slot != 0;
}

/// Those who were answered are expected back: they count until the window ends. Without that, a worker that wakes its
/// watchers a moment later than another would find half of the room gone.
static void count_again(struct room_watch *watch) {
  unsigned now = in_window(watch) && watch->counted > watch->n ? watch->counted : watch->n;
  atomic_fetch_add_explicit(watch->count, (int)now - (int)watch->counted, memory_order_relaxed);
  watch->counted = now;
}

static void watch_free(struct worker_loop *loop, struct room_watch *watch) {
  heap_remove(&loop->windows, &watch->window);
  count_again(watch);
  HASH_DEL(loop->rooms, watch);
  free(watch);
}

void watch_free_all(struct worker_loop *loop) {
  struct room_watch *watch, *tmp;
  HASH_ITER(hh, loop->rooms, watch, tmp)
  watch_free(loop, watch);
}

static struct room_watch *watch_make(struct worker_loop *loop, const char *room_id, size_t len) {
  struct room_watch *watch = calloc(1, sizeof *watch + len + 1);
  if (watch == NULL)
    return NULL;
  memcpy(watch->room_id, room_id, len + 1);
  unsigned hash;
  HASH_VALUE(watch->room_id, len, hash);
  watch->count = &watcher_counts[hash >> (32 - COUNTS_BITS)];
  HASH_ADD_KEYPTR(hh, loop->rooms, watch->room_id, len, watch);
  if (watch->hh.tbl != NULL)
    return watch;
  free(watch); // the map had no memory for it
  return NULL;
}

bool request_watch(struct request *r, const char *room_id) {
  struct worker_loop *loop = r->conn->loop;
  if (r->watch != NULL && strcmp(r->watch->room_id, room_id) == 0)
    return true;
  request_unwatch(r);
  size_t len = strlen(room_id);
  struct room_watch *watch;
  HASH_FIND(hh, loop->rooms, room_id, len, watch);
  if (watch == NULL)
    watch = watch_make(loop, room_id, len);
  if (watch == NULL)
    return false;
  DL_APPEND2(watch->first, r, watch_prev, watch_next);
  watch->n++;
  count_again(watch);
  r->watch = watch;
  r->patient = r->its_turn = false;
  return true;
}

static void cursors_name(char name[CURSORS_NAME_SIZE], const char *room_id) {
  (void)snprintf(name, CURSORS_NAME_SIZE, "%c%s", CURSORS_OF, room_id);
}

bool request_watch_cursors(struct request *r, const char *room_id) {
  char name[CURSORS_NAME_SIZE];
  cursors_name(name, room_id);
  return request_watch(r, name);
}

void watch_cursors_woken(void *ctx, const char *room_id) {
  struct worker *worker = ctx;
  char name[CURSORS_NAME_SIZE];
  cursors_name(name, room_id);
  struct room_watch *watch;
  HASH_FIND_STR(worker->loop->rooms, name, watch);
  if (watch == NULL)
    return;
  struct request *r;
  DL_FOREACH2(watch->first, r, watch_next)
  request_wake(r, WAKE_ROOM);
}

void request_unwatch(struct request *r) {
  struct room_watch *watch = r->watch;
  if (watch == NULL)
    return;
  struct worker_loop *loop = r->conn->loop;
  r->watch = NULL;
  DL_DELETE2(watch->first, r, watch_prev, watch_next);
  watch->n--;
  count_again(watch);
  if (watch->first != NULL)
    return;
  const struct service *service = loop->worker->service;
  if (watch->room_id[0] == CURSORS_OF)
    cursors_unwatch(service->cursors, loop->worker->id, watch->room_id + 1);
  else
    tail_unwatch(service->tail, loop->worker->id, watch->room_id);
  if (!in_window(watch))
    watch_free(loop, watch);
}

// -- windows -------------------------------------------------------------------------------------------------------

static int64_t window_ms(const struct worker_loop *loop, const struct room_watch *watch) {
  const struct service *service = loop->worker->service;
  int64_t all = atomic_load_explicit(watch->count, memory_order_relaxed);
  int64_t spread_evenly = (int64_t)watch->n * (int64_t)service->n_watched;
  return fanout_window_ms(all < spread_evenly ? all : spread_evenly, service->config->fanout_window_max_ms);
}

int64_t fanout_window_ms(int64_t watchers, int64_t max_ms) {
  int64_t ms = (watchers - WATCHERS_AT_ONCE) * WINDOW_MS_EACH;
  if (ms < 0)
    return 0;
  return ms < max_ms ? ms : max_ms;
}

/// Without memory for it there is no window, and every wake goes through.
static void schedule(struct worker_loop *loop, struct room_watch *watch, int64_t due_us) {
  heap_remove(&loop->windows, &watch->window);
  (void)heap_add(&loop->windows, &watch->window, due_us);
}

/// Somebody waits for the end of the window.
static void await_end(struct worker_loop *loop, struct room_watch *watch) {
  metric_add(METRIC_WAKES_FOLDED, 1);
  if (watch->pending)
    return;
  watch->pending = true;
  int64_t look_us = clock_mono_us() + LOOK_US;
  if (look_us < watch->end_us)
    schedule(loop, watch, look_us);
}

static bool too_far_behind(const struct worker_loop *loop, const struct room_watch *watch) {
  const struct service *service = loop->worker->service;
  int64_t head = tail_head(service->tail, watch->room_id);
  return watch->base >= 0 && head - watch->base > service->config->replay_limit / 2;
}

/// Wakes all watchers and begins the next window.
static void wake_watchers(struct worker_loop *loop, struct room_watch *watch) {
  metric_add(METRIC_WAKES, 1);
  watch->pending = false;
  watch->base = tail_head(loop->worker->service->tail, watch->room_id);
  heap_remove(&loop->windows, &watch->window);
  count_again(watch);
  int64_t ms = window_ms(loop, watch);
  watch->end_us = clock_mono_us() + ms * 1000;
  if (ms > 0)
    schedule(loop, watch, watch->end_us);
  struct request *r;
  DL_FOREACH2(watch->first, r, watch_next) {
    r->its_turn = true;
    request_wake(r, WAKE_ROOM);
  }
}

void watch_room_woken(void *ctx, const char *room_id, bool news) {
  struct worker *worker = ctx;
  struct worker_loop *loop = worker->loop;
  struct room_watch *watch;
  HASH_FIND_STR(loop->rooms, room_id, watch);
  if (watch == NULL)
    return;
  if (news && !in_window(watch)) {
    wake_watchers(loop, watch);
    return;
  }
  // Those who wait for a read are not made to wait for more.
  struct request *r;
  DL_FOREACH2(watch->first, r, watch_next) {
    if (!r->patient)
      request_wake(r, WAKE_ROOM);
  }
  if (news)
    await_end(loop, watch);
}

static void end_window(struct worker_loop *loop, struct room_watch *watch) {
  heap_remove(&loop->windows, &watch->window);
  count_again(watch);
  if (watch->first == NULL)
    watch_free(loop, watch);
  else if (watch->pending)
    wake_watchers(loop, watch);
}

void watch_expire(struct worker_loop *loop, int64_t now_us) {
  struct heap_node *node;
  while ((node = heap_first(&loop->windows)) != NULL && node->due_us <= now_us) {
    struct room_watch *watch = CONTAINER_OF(node, struct room_watch, window);
    if (now_us >= watch->end_us || (watch->pending && too_far_behind(loop, watch)))
      end_window(loop, watch);
    else
      schedule(loop, watch, now_us + LOOK_US < watch->end_us ? now_us + LOOK_US : watch->end_us);
  }
}

void request_stand_at_head(struct request *r) {
  r->patient = true;
  r->its_turn = false;
}

void request_await_read(struct request *r) {
  r->patient = false;
}

int64_t request_hold_until(const struct request *r) {
  return r->watch != NULL && in_window(r->watch) && !r->its_turn ? r->watch->end_us : 0;
}

void request_hold(struct request *r) {
  r->patient = true;
  await_end(r->conn->loop, r->watch);
}
