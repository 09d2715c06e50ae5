// SPDX-License-Identifier: Apache-2.0
// The tail's memory of who may not be in a room any more.
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "live/tail_private.h"

// Events may add to what was read until it is this many; then it is read again, which keeps the newest.
#define REVOKED_TOO_MANY ((size_t)2 * ROOM_REVOKED_MAX)

struct told_mail {
  struct mail mail;
  struct tail *tail;
  unsigned worker;
  char room_id[];
};

static void told_deliver(struct mail *mail) {
  struct told_mail *told = CONTAINER_OF(mail, struct told_mail, mail);
  const struct tail_worker *worker = &told->tail->workers[told->worker];
  // From here on another revocation is told by another mail: what this one finds may be all there is until now.
  struct tail_place place = tail_lock(told->tail, told->room_id);
  if (place.room)
    place.room->told &= ~(UINT32_C(1) << told->worker);
  pthread_mutex_unlock(&place.shard->lock);
  worker->revoked(worker->ctx, told->room_id);
  free(told);
}

void room_tell_revoked(struct tail *tail, struct tail_room *room) {
  size_t size = strlen(room->id) + 1;
  for (unsigned id = 0; id < TAIL_WORKERS_MAX && room->to_tell != 0; id++) {
    uint32_t bit = UINT32_C(1) << id;
    if (!(room->to_tell & bit))
      continue;
    struct told_mail *told = room->told & bit ? NULL : malloc(sizeof *told + size);
    if (told) {
      *told = (struct told_mail){.mail.deliver = told_deliver, .tail = tail, .worker = id};
      memcpy(told->room_id, room->id, size);
      mailbox_post(tail->workers[id].mailbox, &told->mail);
    } else if (!(room->told & bit)) {
      continue; // no memory; tail_watched() tries again
    }
    room->told |= bit;
    room->to_tell &= ~bit;
  }
}

// Somebody is in the set who was not. All workers: those who wait for the end of a window, for a read, or for cursors
// are not registered with the room.
static void tell_all(struct tail *tail, struct tail_room *room) {
  for (unsigned id = 0; id < TAIL_WORKERS_MAX; id++)
    if (tail->workers[id].mailbox && tail->workers[id].revoked)
      room->to_tell |= UINT32_C(1) << id;
  room_tell_revoked(tail, room);
}

void room_revoke(struct tail *tail, struct tail_shard *shard, struct tail_room *room, const struct event *event) {
  json_t *json = event->json ? json_loads(event->json, 0, NULL) : NULL;
  const char *user_id = json_string_value(json_object_get(json, "user_id"));
  enum revoked_added added = user_id ? revoked_add(&room->revoked, user_id, event->revision) : REVOKED_NO_MEMORY;
  if (added == REVOKED_NO_MEMORY) {
    room->revoked.cut = true; // until it is read: the database knows
    room_mark_dirty(tail, shard, room);
  } else if (added == REVOKED_ADDED) {
    if (room->revoked.n > REVOKED_TOO_MANY)
      room_mark_dirty(tail, shard, room);
    tell_all(tail, room);
  }
  json_decref(json);
}

void room_take_revoked(struct tail *tail, struct tail_shard *shard, struct tail_room *room, struct revoked_set *fresh,
                       int64_t revision, int64_t asked_us) {
  if (asked_us <= room->granted_us) {
    // A member who came back since may still be in it. The room is read again; until then others may be missing.
    room->revoked.cut = true;
    return;
  }
  bool grew;
  if (!revoked_replace(&room->revoked, fresh, revision, &grew))
    room_mark_dirty(tail, shard, room);
  if (grew)
    tell_all(tail, room);
}

void tail_tell_revoked(struct tail *tail, unsigned id, void (*revoked)(void *ctx, const char *room_id)) {
  tail->workers[id].revoked = revoked;
}

void tail_refresh(struct tail *tail, const char *room_id) {
  tail_check_epoch(tail);
  struct tail_place place = tail_lock(tail, room_id);
  if (place.room)
    room_mark_dirty(tail, place.shard, place.room);
  pthread_mutex_unlock(&place.shard->lock);
}

void tail_granted(struct tail *tail, const char *room_id, const char *user_id) {
  tail_check_epoch(tail);
  struct tail_place place = tail_lock(tail, room_id);
  if (place.room) {
    (void)revoked_remove(&place.room->revoked, user_id);
    place.room->granted_us = clock_mono_us();
    room_mark_dirty(tail, place.shard, place.room);
  }
  pthread_mutex_unlock(&place.shard->lock);
}
