// SPDX-License-Identifier: Apache-2.0
// What the bus takes out of the cursors and puts back.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "db/epoch.h"
#include "live/cursor_payload.h"
#include "live/cursors_private.h"

// The tail is told so often to keep a room with cursors, or with somebody who waits for them.
#define KEEP_US INT64_C(10000000)

// The rooms are gone through so often.
#define KEEP_ROUND_US INT64_C(1000000)

// A room without cursors is forgotten after this.
#define EMPTY_US INT64_C(60000000)

// Everything is queued again at most so often, however often others ask.
#define RESEND_US INT64_C(1000000)

void cursors_ask_others(struct cursors *c) {
  cursors_lock(c);
  c->hello = true;
  cursors_ring(c, 0);
  cursors_unlock(c);
}

void cursors_send_failed(struct cursors *c) {
  cursors_lock(c);
  c->resend = c->hello = true;
  cursors_unlock(c);
}

// -- hearing -------------------------------------------------------------------------------------------------------

static void take_remote(void *ctx, const struct cursor_packet *packet, int64_t stay_us) {
  cursor_take_remote(ctx, packet, stay_us);
}

bool cursors_hear(struct cursors *c, const char *payload) {
  struct cursor_payload in;
  if (!cursor_payload_parse(&in, payload))
    return false;
  char epoch[EPOCH_SIZE];
  epoch_get(epoch);
  if (strcmp(in.epoch, epoch) == 0 && strcmp(in.origin, c->origin) != 0) {
    cursors_lock(c);
    if (in.hello) {
      c->resend = true;
      cursors_ring(c, c->resent_us + RESEND_US);
    }
    cursor_payload_each(&in, take_remote, c);
    cursors_unlock(c);
  }
  cursor_payload_free(&in);
  return true;
}

// -- sending -------------------------------------------------------------------------------------------------------

static void queue_all(struct cursors *c, int64_t now_us) {
  if (!c->resend || now_us - c->resent_us < RESEND_US)
    return;
  c->resend = false;
  c->resent_us = now_us;
  for (struct cursor_room *room = c->rooms; room; room = room->hh.next)
    for (struct cursor_session *s = room->by_seq; s; s = s->next)
      if (s->mine && s->data)
        cursor_queue(c, s);
}

static bool finish(struct payloads *payloads, struct buf *text) {
  if (text->len == 0)
    return true;
  cursor_payload_close(text);
  char **list = realloc(payloads->list, (payloads->n + 1) * sizeof *list);
  char *payload = buf_take(text, NULL);
  if (list)
    payloads->list = list;
  if (!list || !payload) {
    free(payload);
    return false;
  }
  list[payloads->n++] = payload;
  return true;
}

// Adds one packet, in a new payload where it does not fit into the one at hand.
static bool add(struct cursors *c, struct payloads *payloads, struct buf *text, const struct cursor_session *s,
                const char *epoch) {
  struct buf item = {0};
  const struct cursor_packet packet = {
      .key = {s->room->id, cursor_user(s), cursor_sid(s)}, .data = s->data, .len = s->len, .at_us = s->at_us};
  cursor_payload_item(&item, &packet, s->packet_stay_us);
  bool ok = !item.failed;
  if (ok && text->len > 0 && text->len + 1 + item.len + CURSOR_PAYLOAD_TAIL > NOTIFY_PAYLOAD_MAX)
    ok = finish(payloads, text);
  if (ok && text->len == 0)
    cursor_payload_open(text, epoch, c->origin, c->hello);
  if (ok)
    jo_raw(text, item.data, item.len);
  buf_free(&item);
  return ok && !text->failed;
}

size_t cursors_take_payloads(struct cursors *c, size_t max, struct payloads *payloads) {
  *payloads = (struct payloads){0};
  struct buf text = {0};
  char epoch[EPOCH_SIZE];
  epoch_get(epoch);
  size_t n = 0;
  bool ok = true;
  cursors_lock(c);
  queue_all(c, clock_mono_us());
  if (c->hello)
    cursor_payload_open(&text, epoch, c->origin, true);
  while (ok && n < max && c->out) {
    struct cursor_session *s = c->out;
    ok = add(c, payloads, &text, s, epoch);
    if (!ok)
      break;
    DL_DELETE2(c->out, s, out_prev, out_next);
    s->queued = false;
    n++;
  }
  c->hello = !(finish(payloads, &text) && ok) && c->hello;
  buf_free(&text);
  cursors_unlock(c);
  return n;
}

// -- leases to be seen ---------------------------------------------------------------------------------------------

int64_t cursors_next_work(struct cursors *c) {
  cursors_lock(c);
  const struct heap_node *first = heap_first(&c->due);
  int64_t due_us = clock_mono_us() + KEEP_US;
  if (first && first->due_us < due_us)
    due_us = first->due_us;
  if (c->resend && c->resent_us + RESEND_US < due_us)
    due_us = c->resent_us + RESEND_US;
  if (c->rooms && c->keep_us < due_us)
    due_us = c->keep_us;
  if (c->out || c->hello)
    due_us = 0;
  c->sleeps_until_us = due_us;
  cursors_unlock(c);
  return due_us;
}

void cursors_keys_free(struct lease_key *keys, size_t n) {
  for (size_t i = 0; i < n; i++) {
    free((char *)(uintptr_t)keys[i].room_id);
    free((char *)(uintptr_t)keys[i].user_id);
    free((char *)(uintptr_t)keys[i].session_id);
  }
}

size_t cursors_take_unverified(struct cursors *c, struct lease_key *keys, size_t max) {
  size_t n = 0;
  cursors_lock(c);
  int64_t now_us = clock_mono_us();
  struct heap_node *node;
  while (n < max && (node = heap_first(&c->due)) != NULL && node->due_us <= now_us) {
    struct cursor_session *s = CONTAINER_OF(node, struct cursor_session, due);
    keys[n] = (struct lease_key){strdup(s->room->id), strdup(cursor_user(s)), strdup(cursor_sid(s))};
    if (!keys[n].room_id || !keys[n].user_id || !keys[n].session_id) {
      cursors_keys_free(&keys[n], 1);
      break;
    }
    heap_remove(&c->due, node);
    s->checks++;
    n++;
  }
  cursors_unlock(c);
  return n;
}

// -- rooms ---------------------------------------------------------------------------------------------------------

static size_t take_rooms(struct cursors *c, int64_t now_us, char **room_ids, size_t max) {
  size_t n = 0;
  struct cursor_room *room, *next;
  HASH_ITER(hh, c->rooms, room, next) {
    bool empty = !room->sessions && room->watch == 0;
    if (empty && now_us - room->emptied_us > EMPTY_US) {
      cursor_room_free(c, room);
    } else if (!empty && n < max && (room->kept_us == 0 || now_us - room->kept_us > KEEP_US)) {
      room_ids[n] = strdup(room->id);
      if (!room_ids[n])
        break;
      room->kept_us = now_us;
      n++;
    }
  }
  return n;
}

size_t cursors_take_rooms(struct cursors *c, char **room_ids, size_t max) {
  size_t n = 0;
  cursors_lock(c);
  int64_t now_us = clock_mono_us();
  if (now_us >= c->keep_us) {
    n = take_rooms(c, now_us, room_ids, max);
    c->keep_us = n < max ? now_us + KEEP_ROUND_US : 0; // there may be more
  }
  cursors_unlock(c);
  return n;
}
