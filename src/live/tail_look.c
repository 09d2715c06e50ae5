// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "live/events_text.h"
#include "live/tail_private.h"

// What one look needs at hand.
struct look {
  struct tail *tail;
  struct tail_shard *shard;
  struct tail_room *room;
  const struct presence_query *query;
  struct tail_answer *answer;
  int64_t now_us;
};

// Lets the listener read the room, unless a read that will do is under way.
static void ask_for_read(const struct look *k) {
  struct tail_room *room = k->room;
  int64_t need_us = k->query->asked_us;
  if (atomic_load(&k->tail->listening) && atomic_load(&k->tail->listening_since_us) < need_us)
    need_us = atomic_load(&k->tail->listening_since_us);
  if (room->reading_since_us == 0 || room->reading_since_us < need_us)
    room_mark_dirty(k->tail, k->shard, room);
}

static enum tail_verdict reply(const struct look *k, struct body *body, enum presence_mode mode, int64_t revision) {
  k->answer->body = body_ref(body);
  k->answer->mode = mode;
  k->answer->revision = revision;
  return TAIL_REPLY;
}

static enum tail_verdict look_snapshot(const struct look *k, enum snapshot_reason reason, bool fresh) {
  struct tail_room *room = k->room;
  struct snapshot_slot *slot = &room->snapshots[k->query->view];
  k->answer->reason = reason;
  if (slot->body && (slot->asked_us >= k->query->snapshot_us || (fresh && slot->revision == room->head)))
    return reply(k, slot->body, MODE_SNAPSHOT, slot->revision);
  // With the head known, the next one like this costs no query.
  if (!fresh && atomic_load(&k->tail->listening))
    ask_for_read(k);
  if (slot->loading_since_us != 0 && k->now_us - slot->loading_since_us < TAIL_SNAPSHOT_LOST_US)
    return TAIL_LOADING;
  slot->loading_since_us = k->now_us;
  return TAIL_READ_SNAPSHOT;
}

static const struct reply_slot *find_reply(const struct look *k) {
  for (size_t i = 0; i < TAIL_REPLIES; i++) {
    const struct reply_slot *slot = &k->room->replies[i];
    if (slot->body && slot->since == k->query->since && slot->kinds == k->query->kinds &&
        slot->limit == k->query->limit && slot->stream == k->query->stream)
      return slot;
  }
  return NULL;
}

static void keep_reply(const struct look *k, struct body *body, int64_t revision, bool more) {
  struct reply_slot *slot = &k->room->replies[k->room->next_reply++ % TAIL_REPLIES];
  body_unref(slot->body);
  *slot = (struct reply_slot){.body = body,
                              .since = k->query->since,
                              .revision = revision,
                              .kinds = k->query->kinds,
                              .limit = k->query->limit,
                              .stream = k->query->stream,
                              .more = more};
}

static bool wanted(const struct look *k, int64_t revision) {
  return (k->query->kinds & (1u << room_event(k->room, revision)->kind)) != 0;
}

// Makes the reply with the events of (from, last] that are wanted; it covers everything up to `revision`.
static struct body *make_reply(const struct look *k, int64_t from, int64_t last, int64_t revision, bool more) {
  struct events_text text = {.stream = k->query->stream};
  events_text_open(&text, k->room->id, k->answer->epoch, k->query->since, revision);
  for (int64_t i = from + 1; i <= last; i++) {
    if (wanted(k, i))
      events_text_add(&text, i, room_event(k->room, i)->kind, room_event(k->room, i)->json);
  }
  events_text_close(&text, more);
  return body_take(&text.out);
}

static enum tail_verdict look_events(const struct look *k, int64_t from) {
  const struct reply_slot *kept = find_reply(k);
  if (kept) {
    k->answer->more = kept->more;
    return reply(k, kept->body, MODE_EVENTS, kept->revision);
  }
  if (from < room_floor(k->room))
    return TAIL_READ_EVENTS;
  int64_t last = from;
  int found = 0;
  bool more = false;
  for (int64_t i = from + 1; i <= k->room->head && !more; i++) {
    if (!wanted(k, i))
      continue;
    more = found == k->query->limit;
    if (!more) {
      found++;
      last = i;
    }
  }
  if (found == 0) {
    k->answer->revision = k->room->head;
    return TAIL_AT_HEAD;
  }
  int64_t revision = more ? last : k->room->head;
  struct body *body = make_reply(k, from, last, revision, more);
  if (!body)
    return TAIL_LOADING;
  keep_reply(k, body, revision, more);
  k->answer->more = more;
  return reply(k, body, MODE_EVENTS, revision);
}

// The order of the questions is that of CONTRACT §4.
static enum tail_verdict look(const struct look *k) {
  const struct presence_query *query = k->query;
  struct tail_room *room = k->room;
  bool fresh = room_fresh(k->tail, room, query->asked_us);
  if (!query->has_since)
    return look_snapshot(k, REASON_REQUESTED, fresh);
  if (!fresh) {
    ask_for_read(k);
    return TAIL_LOADING;
  }
  if (query->epoch && strcmp(query->epoch, k->answer->epoch) != 0)
    return look_snapshot(k, REASON_EPOCH, fresh);
  int64_t from = query->covered > query->since ? query->covered : query->since;
  if (from > room->head) {
    // Memory may trail; only the database can say that a cursor is from nowhere.
    if (room->checked_at_us >= query->asked_us)
      return look_snapshot(k, REASON_AHEAD, fresh);
    room_mark_dirty(k->tail, k->shard, room);
    return TAIL_LOADING;
  }
  if (from < room->pruned)
    return look_snapshot(k, REASON_PRUNED, fresh);
  if (room->head - from > k->tail->options.replay_limit)
    return look_snapshot(k, REASON_TOO_MANY, fresh);
  k->answer->revision = room->head;
  if (from == room->head)
    return TAIL_AT_HEAD;
  return look_events(k, from);
}

// Marks the room as asked for now.
static void touch(struct tail_shard *shard, struct tail_room *room, int64_t now_us) {
  if (!room_polled(room, now_us))
    room->checked_at_us = 0; // nobody polled it meanwhile: a lost notification would not have been noticed
  room->asked_us = now_us;
  DL_DELETE2(shard->lru, room, lru_prev, lru_next);
  DL_APPEND2(shard->lru, room, lru_prev, lru_next);
}

enum tail_verdict tail_look(struct tail *tail, unsigned worker, const struct presence_query *query,
                            struct tail_answer *answer) {
  tail_check_epoch(tail);
  memset(answer, 0, sizeof *answer);
  epoch_get(answer->epoch);
  struct look k = {.tail = tail, .query = query, .answer = answer, .now_us = clock_mono_us()};
  struct tail_place place = tail_lock(tail, query->room_id);
  k.shard = place.shard;
  k.room = place.room ? place.room : room_create(tail, &place, query->room_id, k.now_us);
  enum tail_verdict verdict = TAIL_LOADING;
  if (k.room) {
    touch(k.shard, k.room, k.now_us);
    verdict = look(&k);
    if (verdict == TAIL_AT_HEAD)
      k.room->watch |= UINT32_C(1) << worker;
    else if (verdict == TAIL_LOADING || verdict == TAIL_READ_SNAPSHOT)
      k.room->load_watch |= UINT32_C(1) << worker;
  }
  pthread_mutex_unlock(&place.shard->lock);
  return verdict;
}

bool tail_fresh_head(struct tail *tail, const struct presence_query *query, int64_t *head, char epoch[EPOCH_SIZE]) {
  tail_check_epoch(tail);
  epoch_get(epoch);
  struct tail_place place = tail_lock(tail, query->room_id);
  bool fresh = false;
  if (place.room) {
    touch(place.shard, place.room, clock_mono_us());
    fresh = room_fresh(tail, place.room, query->asked_us);
    *head = place.room->head;
  }
  pthread_mutex_unlock(&place.shard->lock);
  return fresh;
}

// Finds or makes the room and has it read unless it is fresh. The shard stays locked.
static struct tail_place bring_in(struct tail *tail, const char *room_id, int64_t asked_us, bool *fresh) {
  tail_check_epoch(tail);
  int64_t now_us = clock_mono_us();
  const struct presence_query query = {.room_id = room_id, .asked_us = asked_us};
  struct look k = {.tail = tail, .query = &query, .now_us = now_us};
  struct tail_place place = tail_lock(tail, room_id);
  k.shard = place.shard;
  k.room = place.room ? place.room : room_create(tail, &place, room_id, now_us);
  *fresh = false;
  if (k.room) {
    touch(k.shard, k.room, now_us);
    *fresh = room_fresh(tail, k.room, asked_us);
    if (!*fresh)
      ask_for_read(&k);
  }
  return place;
}

bool tail_current(struct tail *tail, unsigned worker, const char *room_id, int64_t asked_us) {
  bool fresh;
  struct tail_place place = bring_in(tail, room_id, asked_us, &fresh);
  if (place.room && !fresh)
    place.room->load_watch |= UINT32_C(1) << worker;
  pthread_mutex_unlock(&place.shard->lock);
  return fresh;
}

void tail_keep(struct tail *tail, const char *room_id) {
  bool fresh;
  struct tail_place place = bring_in(tail, room_id, clock_mono_us(), &fresh);
  pthread_mutex_unlock(&place.shard->lock);
}

int64_t tail_head(struct tail *tail, const char *room_id) {
  struct tail_place place = tail_lock(tail, room_id);
  int64_t head = place.room && place.room->loaded ? place.room->head : -1;
  pthread_mutex_unlock(&place.shard->lock);
  return head;
}
