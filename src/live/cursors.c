// SPDX-License-Identifier: Apache-2.0
#include "live/cursors.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/metric.h"
#include "base/rand.h"
#include "db/epoch.h"
#include "live/cursors_private.h"

struct cursors *cursors_new(const struct cursors_options *options) {
  struct cursors *c = calloc(1, sizeof *c);
  if (!c)
    return NULL;
  c->options = *options;
  pthread_mutex_init(&c->lock, NULL);
  // 21 random bits above 31 for counting: below 2^53 with as much again to grow into.
  c->base = (int64_t)(1 + rand_below((UINT64_C(1) << 21) - 1)) << 31;
  c->seq = c->forgotten = c->base;
  c->generation = epoch_generation();
  c->sleeps_until_us = INT64_MIN;
  request_id_make(c->origin);
  return c;
}

static void gone_clear(struct cursor_gone *gone) {
  free(gone->user_id);
  free(gone->session_id);
  *gone = (struct cursor_gone){0};
}

static void session_free(struct cursors *c, struct cursor_session *s) {
  struct cursor_room *room = s->room;
  heap_remove(&c->due, &s->due);
  HASH_DEL(room->sessions, s);
  DL_DELETE(room->by_seq, s);
  if (s->queued)
    DL_DELETE2(c->out, s, out_prev, out_next);
  free(s->data);
  free(s);
}

void cursor_room_free(struct cursors *c, struct cursor_room *room) {
  if (room->seq > c->forgotten)
    c->forgotten = room->seq;
  for (size_t i = 0; i < CURSORS_GONE; i++)
    gone_clear(&room->gone[i]);
  for (size_t i = 0; i < CURSORS_REPLIES; i++)
    body_unref(room->replies[i].body);
  HASH_DEL(c->rooms, room);
  free(room);
}

void cursors_free(struct cursors *c) {
  if (!c)
    return;
  struct cursor_room *room, *next_room;
  HASH_ITER(hh, c->rooms, room, next_room) {
    struct cursor_session *s, *next;
    DL_FOREACH_SAFE(room->by_seq, s, next)
    session_free(c, s);
    cursor_room_free(c, room);
  }
  heap_free(&c->due);
  pthread_mutex_destroy(&c->lock);
  free(c);
}

void cursors_add_worker(struct cursors *c, unsigned id, struct mailbox *mailbox,
                        void (*woken)(void *ctx, const char *room_id), void *ctx) {
  c->workers[id].mailbox = mailbox;
  c->workers[id].woken = woken;
  c->workers[id].ctx = ctx;
}

// -- waking --------------------------------------------------------------------------------------------------------

struct cursors_wake {
  struct mail mail;
  void (*woken)(void *ctx, const char *room_id);
  void *ctx;
  char room_id[];
};

static void wake_deliver(struct mail *mail) {
  struct cursors_wake *wake = CONTAINER_OF(mail, struct cursors_wake, mail);
  wake->woken(wake->ctx, wake->room_id);
  free(wake);
}

// Wakes all who wait in the room. What cannot be posted for lack of memory stays registered for the next change.
static void wake_room(struct cursors *c, struct cursor_room *room) {
  size_t size = strlen(room->id) + 1;
  for (unsigned id = 0; id < TAIL_WORKERS_MAX && room->watch != 0; id++) {
    uint32_t bit = UINT32_C(1) << id;
    if (!(room->watch & bit))
      continue;
    struct cursors_wake *wake = malloc(sizeof *wake + size);
    if (!wake)
      continue;
    *wake =
        (struct cursors_wake){.mail.deliver = wake_deliver, .woken = c->workers[id].woken, .ctx = c->workers[id].ctx};
    memcpy(wake->room_id, room->id, size);
    room->watch &= ~bit;
    mailbox_post(c->workers[id].mailbox, &wake->mail);
  }
}

// Something has changed that watchers are to be told. Inside the window nobody is woken: who waits there looks again at
// its end.
static void changed(struct cursors *c, struct cursor_room *room) {
  int64_t now_us = clock_mono_us();
  room->version++;
  room->seq = ++c->seq;
  room->emptied_us = now_us;
  if (room->watch == 0 || now_us - room->window_us < CURSORS_WINDOW_US)
    return;
  room->window_us = now_us;
  wake_room(c, room);
}

void cursors_ring(struct cursors *c, int64_t due_us) {
  if (due_us >= c->sleeps_until_us || !c->work)
    return;
  c->sleeps_until_us = INT64_MIN; // once
  c->work(c->work_ctx);
}

void cursors_on_work(struct cursors *c, void (*work)(void *ctx), void *ctx) {
  c->work = work;
  c->work_ctx = ctx;
}

// -- the lock and the epoch ----------------------------------------------------------------------------------------

// Revisions of another epoch say nothing about this one: nobody has a cursor until the lease has been seen again.
static void forget_all(struct cursors *c) {
  struct cursor_room *room, *next_room;
  HASH_ITER(hh, c->rooms, room, next_room) {
    struct cursor_session *s, *next;
    DL_FOREACH_SAFE(room->by_seq, s, next) {
      s->verified = false;
      s->stay_us = s->revision = s->ended = 0;
      cursor_drop(c, s);
      cursor_release(c, s);
    }
    room->kept_us = 0;
    changed(c, room);
    room->floor = room->seq;
  }
}

void cursors_lock(struct cursors *c) {
  pthread_mutex_lock(&c->lock);
  unsigned generation = epoch_generation();
  if (generation == c->generation)
    return;
  c->generation = generation;
  forget_all(c);
}

void cursors_unlock(struct cursors *c) {
  pthread_mutex_unlock(&c->lock);
}

// -- rooms and sessions --------------------------------------------------------------------------------------------

struct cursor_room *cursor_room_find(struct cursors *c, const char *room_id) {
  struct cursor_room *room;
  HASH_FIND_STR(c->rooms, room_id, room);
  return room;
}

struct cursor_room *cursor_room_get(struct cursors *c, const char *room_id) {
  struct cursor_room *room = cursor_room_find(c, room_id);
  if (room)
    return room;
  size_t len = strlen(room_id);
  room = calloc(1, sizeof *room + len + 1);
  if (!room)
    return NULL;
  memcpy(room->id, room_id, len + 1);
  room->seq = c->seq;
  room->floor = c->forgotten;
  room->emptied_us = clock_mono_us();
  HASH_ADD_KEYPTR(hh, c->rooms, room->id, len, room);
  if (!room->hh.tbl) {
    free(room);
    return NULL;
  }
  return room;
}

#define KEY_MAX (2 * (IDENT_MAX + 1))

// Writes user, NUL, session, NUL. Returns the length without the last NUL, or 0 when it does not fit.
static size_t make_key(char key[KEY_MAX], const char *user_id, const char *session_id) {
  size_t user_len = strlen(user_id), session_len = strlen(session_id);
  if (user_len > IDENT_MAX || session_len > IDENT_MAX)
    return 0;
  memcpy(key, user_id, user_len + 1);
  memcpy(key + user_len + 1, session_id, session_len + 1);
  return user_len + 1 + session_len;
}

struct cursor_session *cursor_session_find(struct cursor_room *room, const char *user_id, const char *session_id) {
  char key[KEY_MAX];
  size_t len = make_key(key, user_id, session_id);
  struct cursor_session *s = NULL;
  if (room && len > 0)
    HASH_FIND(hh, room->sessions, key, len, s);
  return s;
}

struct cursor_session *cursor_session_get(struct cursors *c, const struct lease_key *key) {
  struct cursor_room *room = cursor_room_get(c, key->room_id);
  struct cursor_session *s = cursor_session_find(room, key->user_id, key->session_id);
  if (s || !room)
    return s;
  char text[KEY_MAX];
  size_t len = make_key(text, key->user_id, key->session_id);
  s = len > 0 ? calloc(1, sizeof *s + len + 1) : NULL;
  if (!s)
    return NULL;
  memcpy(s->key, text, len + 1);
  s->key_len = len;
  s->user_len = strlen(key->user_id);
  s->room = room;
  HASH_ADD_KEYPTR(hh, room->sessions, s->key, s->key_len, s);
  if (!s->hh.tbl) {
    free(s);
    return NULL;
  }
  DL_PREPEND(room->by_seq, s); // without a number yet
  if (room->kept_us == 0) {
    c->keep_us = 0; // the tail must have the room
    cursors_ring(c, 0);
  }
  return s;
}

void cursor_release(struct cursors *c, struct cursor_session *s) {
  if (s->data || s->checks > 0)
    return;
  s->room->emptied_us = clock_mono_us();
  session_free(c, s);
}

bool cursors_full(const struct cursors *c, const struct cursor_room *room) {
  return c->n_sessions >= c->options.total_max || (room && room->n_sessions >= c->options.room_max);
}

bool cursor_store(struct cursors *c, struct cursor_session *s, const char *data, size_t len, int64_t at_us,
                  int64_t stay_us) {
  char *copy = malloc(len + 1);
  if (!copy)
    return false;
  memcpy(copy, data, len);
  copy[len] = '\0';
  if (!s->data) {
    s->room->n_sessions++;
    c->n_sessions++;
    metric_set(METRIC_CURSORS, (int64_t)c->n_sessions);
  }
  free(s->data);
  s->data = copy;
  s->len = len;
  s->at_us = at_us;
  s->packet_stay_us = stay_us;
  return true;
}

void cursor_show(struct cursors *c, struct cursor_session *s) {
  changed(c, s->room);
  s->seq = s->room->seq;
  s->shown = true;
  DL_DELETE(s->room->by_seq, s);
  DL_APPEND(s->room->by_seq, s);
}

void cursor_tell_gone(struct cursors *c, struct cursor_session *s) {
  struct cursor_room *room = s->room;
  room->version++;
  if (!s->shown)
    return;
  s->shown = false;
  changed(c, room);
  struct cursor_gone *gone = &room->gone[room->next_gone++ % CURSORS_GONE];
  if (gone->seq > room->floor)
    room->floor = gone->seq; // what it said is forgotten
  gone_clear(gone);
  *gone =
      (struct cursor_gone){.seq = room->seq, .user_id = strdup(cursor_user(s)), .session_id = strdup(cursor_sid(s))};
  if (gone->user_id && gone->session_id)
    return;
  gone_clear(gone);
  room->floor = room->seq;
}

void cursor_drop(struct cursors *c, struct cursor_session *s) {
  if (s->queued)
    DL_DELETE2(c->out, s, out_prev, out_next);
  s->queued = s->mine = false;
  heap_remove(&c->due, &s->due);
  if (s->data) {
    free(s->data);
    s->data = NULL;
    s->room->n_sessions--;
    c->n_sessions--;
    metric_set(METRIC_CURSORS, (int64_t)c->n_sessions);
  }
  cursor_tell_gone(c, s);
}

void cursor_schedule(struct cursors *c, struct cursor_session *s, int64_t due_us) {
  heap_remove(&c->due, &s->due);
  if (!heap_add(&c->due, &s->due, due_us))
    cursor_drop(c, s); // nobody would ever see it end
  else
    cursors_ring(c, due_us);
}

void cursor_queue(struct cursors *c, struct cursor_session *s) {
  if (s->queued)
    return;
  s->queued = true;
  DL_APPEND2(c->out, s, out_prev, out_next);
  cursors_ring(c, 0);
}
