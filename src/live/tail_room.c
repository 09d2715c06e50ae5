// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "live/tail_private.h"

#define RING_FIRST_CAP 16

// A full shard looks at so many of its longest unasked rooms for one that nobody waits in.
#define EVICT_TRIES 8

struct tail_place tail_lock(struct tail *tail, const char *room_id) {
  struct tail_place place = {0};
  unsigned len = (unsigned)strlen(room_id);
  HASH_VALUE(room_id, len, place.hash);
  // The high bits: the low ones choose the bucket inside the shard.
  place.shard = &tail->shards[place.hash >> (32 - TAIL_SHARD_BITS)];
  pthread_mutex_lock(&place.shard->lock);
  HASH_FIND_BYHASHVALUE(hh, place.shard->rooms, room_id, len, place.hash, place.room);
  return place;
}

bool room_watched(const struct tail_room *room) {
  return (room->watch | room->load_watch) != 0;
}

bool room_polled(const struct tail_room *room, int64_t now_us) {
  return room_watched(room) || now_us - room->asked_us < TAIL_POLLED_US;
}

// Room for one more in a full shard. Where all who were looked at are waited in, the shard may grow: the number of
// waiting polls is bounded elsewhere.
static void make_space(struct tail *tail, struct tail_shard *shard) {
  size_t max = tail->options.rooms_max / TAIL_SHARDS + 1;
  if (shard->n < max)
    return;
  struct tail_room *room = shard->lru;
  for (int tries = EVICT_TRIES; room && tries > 0; tries--) {
    if (!room_watched(room)) {
      room_destroy(tail, shard, room);
      return;
    }
    room = room->lru_next;
  }
}

struct tail_room *room_create(struct tail *tail, struct tail_place *place, const char *room_id, int64_t now_us) {
  struct tail_shard *shard = place->shard;
  make_space(tail, shard);
  size_t len = strlen(room_id);
  struct tail_room *room = calloc(1, sizeof *room + len + 1);
  if (!room)
    return NULL;
  memcpy(room->id, room_id, len + 1);
  room->born_us = room->asked_us = now_us;
  HASH_ADD_KEYPTR_BYHASHVALUE(hh, shard->rooms, room->id, (unsigned)len, place->hash, room);
  if (!room->hh.tbl) {
    free(room);
    return NULL;
  }
  DL_APPEND2(shard->lru, room, lru_prev, lru_next);
  shard->n++;
  place->room = room;
  return room;
}

static void drop_replies(struct tail_room *room) {
  for (size_t i = 0; i < TAIL_REPLIES; i++) {
    body_unref(room->replies[i].body);
    room->replies[i].body = NULL;
  }
}

static void clear_ring(struct tail_room *room) {
  for (size_t i = 0; i < room->count; i++)
    free(room->ring[(room->first + i) % room->cap].json);
  room->first = room->count = 0;
}

void room_destroy(struct tail *tail, struct tail_shard *shard, struct tail_room *room) {
  room_unmark_dirty(tail, shard, room);
  HASH_DELETE(hh, shard->rooms, room);
  DL_DELETE2(shard->lru, room, lru_prev, lru_next);
  shard->n--;
  drop_replies(room);
  for (int view = 0; view < VIEW_KINDS; view++)
    body_unref(room->snapshots[view].body);
  clear_ring(room);
  free(room->ring);
  revoked_clear(&room->revoked);
  free(room);
}

void room_mark_dirty(struct tail *tail, struct tail_shard *shard, struct tail_room *room) {
  if (room->dirty)
    return;
  room->dirty = true;
  DL_APPEND2(shard->dirty, room, dirty_prev, dirty_next);
  if (atomic_fetch_add(&tail->n_dirty, 1) == 0 && tail->dirty)
    tail->dirty(tail->dirty_ctx);
}

void room_unmark_dirty(struct tail *tail, struct tail_shard *shard, struct tail_room *room) {
  if (!room->dirty)
    return;
  room->dirty = false;
  DL_DELETE2(shard->dirty, room, dirty_prev, dirty_next);
  atomic_fetch_sub(&tail->n_dirty, 1);
}

struct wake_mail {
  struct mail mail;
  const struct tail_worker *worker;
  bool news;
  char room_id[];
};

static void wake_deliver(struct mail *mail) {
  struct wake_mail *wake = CONTAINER_OF(mail, struct wake_mail, mail);
  wake->worker->woken(wake->worker->ctx, wake->room_id, wake->news);
  free(wake);
}

// Wakes those who stand at the head (`news`) and those who wait for a read, as far as they are in the sets.
static void wake_workers(struct tail *tail, struct tail_room *room, uint32_t news, uint32_t loaders) {
  size_t size = strlen(room->id) + 1;
  for (unsigned id = 0; id < TAIL_WORKERS_MAX && (news | loaders) != 0; id++) {
    uint32_t bit = UINT32_C(1) << id;
    if (!((news | loaders) & bit))
      continue;
    struct wake_mail *wake = malloc(sizeof *wake + size);
    if (!wake) {
      room->wake_lost |= bit; // stays registered; tail_watched() tries again
      continue;
    }
    *wake = (struct wake_mail){.mail.deliver = wake_deliver, .worker = &tail->workers[id], .news = (news & bit) != 0};
    memcpy(wake->room_id, room->id, size);
    room->watch &= ~(news & bit);
    room->load_watch &= ~bit;
    room->wake_lost &= ~bit;
    mailbox_post(tail->workers[id].mailbox, &wake->mail);
  }
}

void room_wake_all(struct tail *tail, struct tail_room *room) {
  wake_workers(tail, room, room->watch, room->load_watch);
}

void room_wake_loaders(struct tail *tail, struct tail_room *room) {
  wake_workers(tail, room, 0, room->load_watch);
}

void room_wake_lost(struct tail *tail, struct tail_room *room) {
  wake_workers(tail, room, room->watch & room->wake_lost, room->load_watch & room->wake_lost);
}

void room_raise_known(struct tail_room *room, int64_t revision, int64_t now_us) {
  if (revision <= room->known)
    return;
  room->known = revision;
  room->known_at_us = now_us;
}

int64_t room_floor(const struct tail_room *room) {
  return room->head - (int64_t)room->count;
}

const struct ring_event *room_event(const struct tail_room *room, int64_t revision) {
  size_t i = (size_t)(revision - room_floor(room) - 1);
  return &room->ring[(room->first + i) % room->cap];
}

bool room_has(const struct tail_room *room, const struct event *event) {
  return event->revision <= room_floor(room) || strcmp(room_event(room, event->revision)->json, event->json) == 0;
}

void room_restart(struct tail_room *room, int64_t head) {
  clear_ring(room);
  drop_replies(room);
  room->head = head;
}

static bool ring_grow(struct tail_room *room) {
  size_t cap = room->cap ? room->cap * 2 : RING_FIRST_CAP;
  struct ring_event *ring = calloc(cap, sizeof *ring);
  if (!ring)
    return false;
  for (size_t i = 0; i < room->count; i++)
    ring[i] = room->ring[(room->first + i) % room->cap];
  free(room->ring);
  room->ring = ring;
  room->cap = cap;
  room->first = 0;
  return true;
}

// Drops what there is no more place for. After a storm this is more than the one that comes in its stead.
static void drop_oldest(const struct tail *tail, struct tail_room *room, int64_t now_us) {
  const struct tail_options *options = &tail->options;
  while (room->count >= (size_t)options->events_per_room) {
    struct ring_event *oldest = &room->ring[room->first];
    if (room->count < (size_t)options->events_in_storm && now_us - oldest->at_us < TAIL_STORM_US)
      return;
    free(oldest->json);
    room->first = (room->first + 1) % room->cap;
    room->count--;
  }
}

void room_push(const struct tail *tail, struct tail_room *room, enum event_kind kind, char *json) {
  int64_t now_us = clock_mono_us();
  drop_replies(room);
  drop_oldest(tail, room, now_us);
  if (room->count == room->cap && !ring_grow(room)) {
    free(json);
    room_restart(room, room->head + 1);
    return;
  }
  room->ring[(room->first + room->count) % room->cap] =
      (struct ring_event){.json = json, .kind = kind, .at_us = now_us};
  room->count++;
  room->head++;
}

void room_tell(const struct tail *tail, const char *room_id, int64_t revision, enum event_kind kind, const char *json) {
  if (tail->event)
    tail->event(tail->event_ctx, room_id, revision, kind, json);
}

// Memory goes on after `head`; what lies before that may have been missed.
static void skip_to(const struct tail *tail, struct tail_room *room, int64_t head) {
  room_restart(room, head);
  room_tell(tail, room->id, head, EVENT_KIND_COUNT, NULL);
}

void room_apply(const struct tail *tail, struct tail_room *room, struct room_news *news) {
  if (!room->loaded) {
    skip_to(tail, room, news->n_events > 0 ? news->events[0].revision - 1 : news->head);
    room->loaded = true;
  }
  for (size_t i = 0; i < news->n_events; i++) {
    struct event *e = &news->events[i];
    if (e->revision <= room->head)
      continue; // it came by another way meanwhile
    if (e->revision > room->head + 1)
      skip_to(tail, room, e->revision - 1); // more than was asked for lies between
    room_tell(tail, room->id, e->revision, e->kind, e->json);
    room_push(tail, room, e->kind, e->json);
    e->json = NULL;
  }
  if (room->head < news->head)
    skip_to(tail, room, news->head); // the events are pruned already
}

bool room_fresh(const struct tail *tail, const struct tail_room *room, int64_t asked_us) {
  if (!room->loaded || room->head < room->known)
    return false;
  if (room->checked_at_us >= asked_us)
    return true;
  return atomic_load(&tail->listening) && room->checked_at_us >= atomic_load(&tail->listening_since_us);
}
