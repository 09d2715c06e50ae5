// SPDX-License-Identifier: Apache-2.0
#include "live/tail.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "live/tail_private.h"

// A snapshot that is no longer the head's is of use only to those who asked before it was read.
#define SNAPSHOT_USEFUL_US INT64_C(10000000)

struct tail *tail_new(const struct tail_options *options) {
  struct tail *tail = calloc(1, sizeof *tail);
  if (!tail)
    return NULL;
  tail->options = *options;
  if (tail->options.events_per_room < 1)
    tail->options.events_per_room = 1;
  if (tail->options.events_in_storm < tail->options.events_per_room)
    tail->options.events_in_storm = tail->options.events_per_room;
  for (size_t i = 0; i < TAIL_SHARDS; i++)
    pthread_mutex_init(&tail->shards[i].lock, NULL);
  atomic_store(&tail->generation, epoch_generation());
  return tail;
}

void tail_free(struct tail *tail) {
  if (!tail)
    return;
  for (size_t i = 0; i < TAIL_SHARDS; i++) {
    struct tail_shard *shard = &tail->shards[i];
    while (shard->lru)
      room_destroy(tail, shard, shard->lru);
    pthread_mutex_destroy(&shard->lock);
  }
  free(tail);
}

void tail_add_worker(struct tail *tail, unsigned id, struct mailbox *mailbox,
                     void (*woken)(void *ctx, const char *room_id, bool news), void *ctx) {
  tail->workers[id] = (struct tail_worker){.mailbox = mailbox, .woken = woken, .ctx = ctx};
}

void tail_on_dirty(struct tail *tail, void (*dirty)(void *ctx), void *ctx) {
  tail->dirty = dirty;
  tail->dirty_ctx = ctx;
}

void tail_on_event(struct tail *tail,
                   void (*event)(void *ctx, const char *room_id, int64_t revision, enum event_kind kind,
                                 const char *json),
                   void *ctx) {
  tail->event = event;
  tail->event_ctx = ctx;
}

void tail_check_epoch(struct tail *tail) {
  unsigned now = epoch_generation();
  unsigned before = atomic_load(&tail->generation);
  // Of several threads that see the change one clears; what the others put in meanwhile is lost, which does no harm.
  if (now != before && atomic_compare_exchange_strong(&tail->generation, &before, now))
    tail_reset(tail);
}

void tail_reset(struct tail *tail) {
  for (size_t i = 0; i < TAIL_SHARDS; i++) {
    struct tail_shard *shard = &tail->shards[i];
    pthread_mutex_lock(&shard->lock);
    for (struct tail_room *room = shard->lru, *next; room; room = next) {
      next = room->lru_next;
      room_wake_all(tail, room);
      room_destroy(tail, shard, room);
    }
    pthread_mutex_unlock(&shard->lock);
  }
}

// One event of a room that is in memory.
static void publish_one(struct tail *tail, struct tail_place *place, struct event *event, int64_t now_us) {
  struct tail_room *room = place->room;
  room_raise_known(room, event->revision, now_us);
  if (event->revision > room->head)
    room->known_at_us = now_us; // also where a hint came first: no read from before now is the last word
  if (!room->loaded)
    return; // it is dirty or being read; `known` says what that read must reach
  if (event->kind == EVENT_MEMBERSHIP_REVOKED && event->revision > room->head)
    room_revoke(tail, place->shard, room, event);
  if (event->revision == room->head + 1) {
    room_push(tail, room, event->kind, event->json);
    event->json = NULL;
  } else if (event->revision > room->head) {
    room_mark_dirty(tail, place->shard, room);
  } else if (!room_has(room, event)) {
    room->loaded = false; // another event had this revision: the past has changed
    room_tell(tail, room->id, INT64_MAX, EVENT_KIND_COUNT, NULL);
    room_mark_dirty(tail, place->shard, room);
  }
}

void tail_publish(struct tail *tail, struct event *events, size_t n) {
  tail_check_epoch(tail);
  int64_t now_us = clock_mono_us();
  for (size_t i = 0; i < n;) {
    const char *room_id = events[i].room_id;
    struct tail_place place = tail_lock(tail, room_id);
    int64_t old_head = place.room ? place.room->head : 0;
    size_t end = i;
    for (; end < n && strcmp(events[end].room_id, room_id) == 0; end++) {
      room_tell(tail, room_id, events[end].revision, events[end].kind, events[end].json);
      if (place.room)
        publish_one(tail, &place, &events[end], now_us);
    }
    if (place.room && place.room->head != old_head)
      room_wake_all(tail, place.room);
    pthread_mutex_unlock(&place.shard->lock);
    i = end;
  }
  for (size_t i = 0; i < n; i++)
    event_clear(&events[i]);
}

void tail_hint(struct tail *tail, const char *room_id, int64_t revision) {
  tail_check_epoch(tail);
  int64_t now_us = clock_mono_us();
  struct tail_place place = tail_lock(tail, room_id);
  if (place.room) {
    room_raise_known(place.room, revision, now_us);
    if (place.room->loaded && revision > place.room->head)
      room_mark_dirty(tail, place.shard, place.room);
  }
  pthread_mutex_unlock(&place.shard->lock);
}

void tail_polled(struct tail *tail, const char *room_id, int64_t asked_us, int64_t head) {
  tail_hint(tail, room_id, head);
  struct tail_place place = tail_lock(tail, room_id);
  if (place.room && place.room->loaded && head < place.room->head && asked_us > place.room->known_at_us)
    room_mark_dirty(tail, place.shard, place.room);
  pthread_mutex_unlock(&place.shard->lock);
}

void tail_pruned(struct tail *tail, const char *room_id, int64_t pruned) {
  struct tail_place place = tail_lock(tail, room_id);
  if (place.room && place.room->loaded && pruned > place.room->pruned)
    place.room->pruned = pruned;
  pthread_mutex_unlock(&place.shard->lock);
}

size_t tail_take_dirty(struct tail *tail, char **room_ids, int64_t *after, size_t max) {
  tail_check_epoch(tail);
  size_t n = 0;
  unsigned start = atomic_fetch_add(&tail->next_shard, 1);
  for (unsigned i = 0; i < TAIL_SHARDS && n < max && atomic_load(&tail->n_dirty) > 0; i++) {
    struct tail_shard *shard = &tail->shards[(start + i) % TAIL_SHARDS];
    pthread_mutex_lock(&shard->lock);
    while (n < max && shard->dirty) {
      struct tail_room *room = shard->dirty;
      room_ids[n] = strdup(room->id);
      if (!room_ids[n])
        break;
      room_unmark_dirty(tail, shard, room);
      room->reading_since_us = clock_mono_us();
      after[n++] = room->loaded ? room->head : INT64_MIN;
    }
    pthread_mutex_unlock(&shard->lock);
  }
  return n;
}

static void fill_room(struct tail *tail, struct tail_place *place, int64_t asked_us, struct room_news *news,
                      struct revoked_set *revoked) {
  struct tail_room *room = place->room;
  bool was_loaded = room->loaded;
  int64_t old_head = room->head;
  room->reading_since_us = 0;
  // Read after the last that was heard of the room: what it says is all there is. A hint that was wrong is forgotten,
  // and a head that went back means that the past has changed.
  bool last_word = asked_us > room->known_at_us;
  if (last_word && news->head < room->head) {
    room->loaded = false;
    room_tell(tail, room->id, INT64_MAX, EVENT_KIND_COUNT, NULL);
  }
  if (last_word)
    room->known = news->head;
  room_take_revoked(tail, place->shard, room, revoked, last_word ? INT64_MAX : news->head, asked_us);
  room_apply(tail, room, news);
  if (room->known < room->head)
    room->known = room->head;
  if (news->pruned > room->pruned || !was_loaded || last_word)
    room->pruned = news->pruned;
  if (asked_us > room->checked_at_us)
    room->checked_at_us = asked_us;
  if (room->head < room->known)
    room_mark_dirty(tail, place->shard, room);
  if (was_loaded && room->head == old_head)
    room_wake_loaders(tail, room);
  else
    room_wake_all(tail, room);
}

void tail_fill(struct tail *tail, const char *room_id, int64_t asked_us, struct room_news *news) {
  tail_check_epoch(tail);
  struct revoked_set revoked = {.cut = news->revoked_cut};
  if (!revoked_parse(&revoked, news->revoked))
    revoked.cut = true; // no memory for it: the database is asked for the others
  struct tail_place place = tail_lock(tail, room_id);
  if (place.room && asked_us >= place.room->born_us)
    fill_room(tail, &place, asked_us, news, &revoked);
  pthread_mutex_unlock(&place.shard->lock);
  revoked_clear(&revoked);
}

void tail_fill_snapshot(struct tail *tail, const char *room_id, enum view view, int64_t asked_us, struct body *body,
                        int64_t revision) {
  tail_check_epoch(tail);
  int64_t now_us = clock_mono_us();
  struct tail_place place = tail_lock(tail, room_id);
  struct tail_room *room = place.room;
  if (room && asked_us >= room->born_us) {
    struct snapshot_slot *slot = &room->snapshots[view];
    slot->loading_since_us = 0;
    if (!slot->body || asked_us >= slot->asked_us) {
      body_unref(slot->body);
      *slot = (struct snapshot_slot){.body = body_ref(body), .revision = revision, .asked_us = asked_us};
    }
    room_raise_known(room, revision, now_us);
    if (room->loaded && revision > room->head)
      room_mark_dirty(tail, place.shard, room);
    room_wake_loaders(tail, room);
  }
  pthread_mutex_unlock(&place.shard->lock);
}

void tail_snapshot_failed(struct tail *tail, const char *room_id, enum view view) {
  struct tail_place place = tail_lock(tail, room_id);
  if (place.room) {
    place.room->snapshots[view].loading_since_us = 0;
    room_wake_loaders(tail, place.room);
  }
  pthread_mutex_unlock(&place.shard->lock);
}

void tail_read_failed(struct tail *tail, const char *room_id, bool again) {
  struct tail_place place = tail_lock(tail, room_id);
  if (place.room) {
    place.room->reading_since_us = 0;
    if (again)
      room_mark_dirty(tail, place.shard, place.room);
  }
  pthread_mutex_unlock(&place.shard->lock);
}

size_t tail_watched(struct tail *tail, char ***room_ids) {
  tail_check_epoch(tail);
  int64_t now_us = clock_mono_us();
  char **ids = NULL;
  size_t n = 0;
  for (size_t i = 0; i < TAIL_SHARDS; i++) {
    struct tail_shard *shard = &tail->shards[i];
    pthread_mutex_lock(&shard->lock);
    char **more = shard->n > 0 ? realloc(ids, (n + shard->n) * sizeof *ids) : NULL;
    if (more)
      ids = more;
    for (struct tail_room *room = shard->lru; room; room = room->lru_next) {
      room_wake_lost(tail, room);
      room_tell_revoked(tail, room);
      if (more && room_polled(room, now_us) && (ids[n] = strdup(room->id)) != NULL)
        n++;
    }
    pthread_mutex_unlock(&shard->lock);
  }
  *room_ids = ids;
  return n;
}

void tail_set_listening(struct tail *tail, bool listening) {
  if (!listening) {
    atomic_store(&tail->listening, false);
    return;
  }
  atomic_store(&tail->listening_since_us, clock_mono_us());
  atomic_store(&tail->listening, true);
  for (size_t i = 0; i < TAIL_SHARDS; i++) {
    struct tail_shard *shard = &tail->shards[i];
    pthread_mutex_lock(&shard->lock);
    for (struct tail_room *room = shard->lru; room; room = room->lru_next)
      room_mark_dirty(tail, shard, room);
    pthread_mutex_unlock(&shard->lock);
  }
}

bool tail_listening(const struct tail *tail) {
  return atomic_load(&tail->listening);
}

static void drop_old_snapshots(struct tail_room *room, int64_t now_us) {
  for (int view = 0; view < VIEW_KINDS; view++) {
    struct snapshot_slot *slot = &room->snapshots[view];
    if (slot->body && slot->revision != room->head && now_us - slot->asked_us > SNAPSHOT_USEFUL_US) {
      body_unref(slot->body);
      slot->body = NULL;
    }
  }
}

void tail_evict(struct tail *tail) {
  int64_t now_us = clock_mono_us();
  for (size_t i = 0; i < TAIL_SHARDS; i++) {
    struct tail_shard *shard = &tail->shards[i];
    pthread_mutex_lock(&shard->lock);
    for (struct tail_room *room = shard->lru, *next; room; room = next) {
      next = room->lru_next;
      if (now_us - room->asked_us > tail->options.idle_ms * 1000 && !room_watched(room))
        room_destroy(tail, shard, room);
      else
        drop_old_snapshots(room, now_us);
    }
    pthread_mutex_unlock(&shard->lock);
  }
}

void tail_unwatch(struct tail *tail, unsigned worker, const char *room_id) {
  struct tail_place place = tail_lock(tail, room_id);
  if (place.room) {
    uint32_t others = ~(UINT32_C(1) << worker);
    place.room->watch &= others;
    place.room->load_watch &= others;
    place.room->wake_lost &= others;
  }
  pthread_mutex_unlock(&place.shard->lock);
}
