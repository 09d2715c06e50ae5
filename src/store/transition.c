// SPDX-License-Identifier: Apache-2.0
#include "store/transition.h"

#include <stdlib.h>
#include <string.h>

#include "db/epoch.h"
#include "store/event_json.h"
#include "store/transition_plan.h"
#include "store/webhook.h"

/// The last moment of the year 9999 as Unix microseconds.
#define YEAR_9999_US INT64_C(253402300799999999)

struct transition *transitions_add(struct transitions *t, enum event_kind kind, const struct lease_key *key) {
  if (t->n == t->cap) {
    size_t cap = t->cap > 0 ? t->cap * 2 : 64;
    struct transition *list = realloc(t->list, cap * sizeof *list);
    if (list == NULL) {
      t->failed = true;
      return NULL;
    }
    t->list = list;
    t->cap = cap;
  }
  struct transition *new = &t->list[t->n++];
  *new = (struct transition){.kind = kind, .key = *key};
  return new;
}

void transitions_free(struct transitions *t) {
  for (size_t i = 0; i < t->n; i++) {
    free(t->list[i].event_id);
    free(t->list[i].owned);
  }
  free(t->list);
  *t = (struct transitions){0};
}

bool ends_lease(enum event_kind kind) {
  return kind == EVENT_LEASE_EXPIRED || kind == EVENT_SESSION_CLOSED || kind == EVENT_MEMBERSHIP_REVOKED;
}

const char *transition_meta(const struct transition *x) {
  return x->kind == EVENT_LEASE_GRANTED || x->kind == EVENT_LEASE_RENEWED ? x->meta : NULL;
}

// -- the plan: every room, user and user in a room once ---------------------------------------------------------------

static void plan_free(struct plan *plan) {
  free(plan->users);
  free(plan->rooms);
  free(plan->pairs);
}

static int by_user(const void *a, const void *b) {
  return strcmp(((const struct planned_user *)a)->user_id, ((const struct planned_user *)b)->user_id);
}

static int by_room(const void *a, const void *b) {
  return strcmp(((const struct planned_room *)a)->room_id, ((const struct planned_room *)b)->room_id);
}

static int by_pair(const void *a, const void *b) {
  const struct planned_pair *x = a, *y = b;
  int d = strcmp(x->room_id, y->room_id);
  return d != 0 ? d : strcmp(x->user_id, y->user_id);
}

struct planned_room *plan_room(const struct plan *plan, const char *room_id) {
  struct planned_room key = {.room_id = room_id};
  return bsearch(&key, plan->rooms, plan->n_rooms, sizeof key, by_room);
}

struct planned_pair *plan_pair(const struct plan *plan, const char *room_id, const char *user_id) {
  struct planned_pair key = {.room_id = room_id, .user_id = user_id};
  return bsearch(&key, plan->pairs, plan->n_pairs, sizeof key, by_pair);
}

static int64_t later(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/// Sorts the three lists and folds what is equal.
static void fold(struct plan *plan) {
  size_t n = 0;
  qsort(plan->users, plan->n_users, sizeof *plan->users, by_user);
  for (size_t i = 0; i < plan->n_users; i++) {
    if (n > 0 && by_user(&plan->users[n - 1], &plan->users[i]) == 0) {
      plan->users[n - 1].seen_us = later(plan->users[n - 1].seen_us, plan->users[i].seen_us);
    } else {
      plan->users[n++] = plan->users[i];
    }
  }
  plan->n_users = n;
  qsort(plan->rooms, plan->n_rooms, sizeof *plan->rooms, by_room);
  n = 0;
  for (size_t i = 0; i < plan->n_rooms; i++) {
    if (n == 0 || by_room(&plan->rooms[n - 1], &plan->rooms[i]) != 0) {
      plan->rooms[n++] = plan->rooms[i];
    }
  }
  plan->n_rooms = n;
  qsort(plan->pairs, plan->n_pairs, sizeof *plan->pairs, by_pair);
  n = 0;
  for (size_t i = 0; i < plan->n_pairs; i++) {
    const struct planned_pair *p = &plan->pairs[i];
    if (n > 0 && by_pair(&plan->pairs[n - 1], p) == 0) {
      struct planned_pair *into = &plan->pairs[n - 1];
      into->ended = into->ended || p->ended;
      into->seen_us = later(into->seen_us, p->seen_us);
      into->delta += p->delta;
    } else {
      plan->pairs[n++] = *p;
    }
  }
  plan->n_pairs = n;
}

static bool plan_make(struct plan *plan, const struct transitions *t) {
  *plan = (struct plan){.n_rooms = t->n, .n_pairs = t->n};
  plan->users = calloc(t->n, sizeof *plan->users);
  plan->rooms = calloc(t->n, sizeof *plan->rooms);
  plan->pairs = calloc(t->n, sizeof *plan->pairs);
  if (plan->users == NULL || plan->rooms == NULL || plan->pairs == NULL) {
    return false;
  }
  for (size_t i = 0; i < t->n; i++) {
    const struct transition *x = &t->list[i];
    bool session = x->key.session_id != NULL, ended = session && ends_lease(x->kind);
    // Bounded, since a time that was edited by hand may be anything; the future is cut to now by the statement.
    int64_t seen_us = !ended || x->renewed_at_us < 0    ? 0
                      : x->renewed_at_us > YEAR_9999_US ? YEAR_9999_US
                                                        : x->renewed_at_us;
    if (ended) {
      plan->users[plan->n_users++] = (struct planned_user){x->key.user_id, seen_us};
    }
    plan->rooms[i].room_id = x->key.room_id;
    plan->pairs[i] = (struct planned_pair){.room_id = x->key.room_id,
                                           .user_id = x->key.user_id,
                                           .ended = ended,
                                           .seen_us = seen_us,
                                           .delta = user_sessions_delta(x->kind, session)};
  }
  fold(plan);
  return true;
}

// -- what happens -----------------------------------------------------------------------------------------------------

/// Bounded, since a time that was edited by hand may be anything.
static int64_t overdue_ms(int64_t at_us, int64_t expires_at_us) {
  if (expires_at_us >= at_us) {
    return 0;
  }
  return expires_at_us > 0 ? (at_us - expires_at_us) / 1000 : at_us / 1000;
}

/// Adds an event of the user's own, beside the session's. @return false when memory ran out
static bool add_user_event(struct transitions *events, const struct lease_key *of, enum event_kind kind,
                           const char *request_id, int64_t sessions) {
  struct lease_key key = {.room_id = of->room_id, .user_id = of->user_id};
  struct transition *new = transitions_add(events, kind, &key);
  if (new == NULL) {
    return false;
  }
  new->request_id = request_id;
  new->user_sessions = later(sessions, 0);
  return true;
}

/// One change of a session, and what follows from it for its user. @return false when memory ran out
static bool happen_one(const struct plan *plan, struct transition *x, int64_t grace_ms, struct user_state *state,
                       struct transitions *events) {
  // A session that comes when the grace is over, written down or not, comes to a user who is offline: like a lease that
  // begins again, it first gets the end of what was before.
  if (x->kind == EVENT_LEASE_GRANTED && user_state_grace_over(state, plan->at_us) &&
      !add_user_event(events, &x->key, EVENT_USER_OFFLINE, NULL, 0)) {
    return false;
  }
  int kind = user_state_apply(state, x->kind, x->key.session_id != NULL, plan->at_us, grace_ms);
  struct transition *event = transitions_add(events, x->kind, &x->key);
  if (event == NULL) {
    return false;
  }
  *event = *x;
  x->owned = NULL; // it is the event's now
  event->user_sessions = later(state->sessions, 0);
  event->overdue_ms = x->kind == EVENT_LEASE_EXPIRED ? overdue_ms(plan->at_us, x->expires_at_us) : 0;
  return kind < 0 || add_user_event(events, &x->key, (enum event_kind)kind, x->request_id, state->sessions);
}

/// Goes through the changes in order and makes the list of events: theirs, and those of the users that follow from
/// them.
static bool happen(const struct plan *plan, struct transitions *t, int64_t grace_ms, struct transitions *events) {
  for (size_t i = 0; i < plan->n_pairs; i++) {
    struct planned_pair *pair = &plan->pairs[i];
    // Counted after all of it; the walk begins before.
    pair->state.sessions = later(pair->state.sessions - pair->delta, 0);
  }
  for (size_t i = 0; i < t->n; i++) {
    struct transition *x = &t->list[i];
    struct user_state *state = &plan_pair(plan, x->key.room_id, x->key.user_id)->state;
    bool ok = true;
    if (x->kind != EVENT_USER_OFFLINE) {
      ok = happen_one(plan, x, grace_ms, state, events);
    } else if (user_state_grace_over(state, plan->at_us)) {
      ok = add_user_event(events, &x->key, EVENT_USER_OFFLINE, NULL, 0);
    }
    if (!ok) {
      return false;
    }
  }
  return true;
}

/// Whether a session begins for somebody whose membership was revoked: after it was looked at, and before the room was
/// locked. From here on the revocation would wait for us (store/revoke.c).
static bool grants_revoked(const struct plan *plan, const struct transitions *t) {
  for (size_t i = 0; i < t->n; i++) {
    const struct transition *x = &t->list[i];
    if (x->kind == EVENT_LEASE_GRANTED && plan_pair(plan, x->key.room_id, x->key.user_id)->revoked) {
      return true;
    }
  }
  return false;
}

/// Gives each event its revision and id. @return false when memory ran out
static bool number(struct plan *plan, struct transitions *events) {
  char epoch[EPOCH_SIZE];
  epoch_get(epoch);
  for (size_t i = 0; i < events->n; i++) {
    struct transition *x = &events->list[i];
    struct planned_room *room = plan_room(plan, x->key.room_id);
    x->revision = ++room->head;
    room->n_events++;
    struct buf id = {0};
    buf_puts(&id, epoch);
    buf_putc(&id, ':');
    buf_puts(&id, x->key.room_id);
    buf_putc(&id, ':');
    buf_int(&id, x->revision);
    x->event_id = buf_take(&id, NULL);
    if (x->event_id == NULL) {
      return false;
    }
  }
  return true;
}

/// Tells the ops what they wrote. The room's revision is that after the whole transaction: a poll from there waits for
/// what is news to the client.
static bool tell_ops(const struct plan *plan, const struct transitions *events) {
  for (size_t i = 0; i < events->n; i++) {
    const struct transition *x = &events->list[i];
    if (x->op != NULL) {
      free(x->op->event_id);
      x->op->event_id = strdup(x->event_id);
      x->op->room_revision = plan_room(plan, x->key.room_id)->head;
      if (x->op->event_id == NULL) {
        return false;
      }
    }
  }
  return true;
}

/// Adds the events, and the expiries among them, to @a written. @return false when memory ran out
static bool write_down(const struct plan *plan, const struct transitions *events, struct written *written) {
  if (!written_reserve(written, events->n)) {
    return false;
  }
  for (size_t i = 0; i < events->n; i++) {
    const struct transition *x = &events->list[i];
    struct buf json = {0};
    event_json(&json, &(struct event_columns){
                          .event_id = x->event_id,
                          .revision = x->revision,
                          .kind = x->kind,
                          .at_us = plan->at_us,
                          .user_id = x->key.user_id,
                          .session_id = x->key.session_id,
                          .lease_revision = x->lease_revision > 0 ? x->lease_revision : INT64_MIN,
                          .user_sessions = x->user_sessions,
                          .request_id = x->request_id,
                          .overdue_ms = x->kind == EVENT_LEASE_EXPIRED ? x->overdue_ms : INT64_MIN,
                          .meta = transition_meta(x),
                      });
    if (!written_event(written, x->key.room_id, x->revision, x->kind, &json)) {
      return false;
    }
    if (x->kind == EVENT_LEASE_EXPIRED &&
        !written_expiry(written, &x->key, x->lease_revision, x->event_id, x->request_id, x->overdue_ms)) {
      return false;
    }
  }
  return true;
}

enum db_status transitions_write(struct db *db, int64_t offline_grace_ms, struct transitions *t,
                                 struct written *written) {
  if (t->failed) {
    return DB_FAILED;
  }
  if (t->n == 0) {
    return DB_OK;
  }
  written->past_leases = true;
  struct plan plan;
  struct transitions events = {0};
  enum db_status status = plan_make(&plan, t) ? DB_OK : DB_FAILED;
  if (status == DB_OK) {
    status = plan_lock(db, &plan);
  }
  if (status == DB_OK && grants_revoked(&plan, t)) {
    status = DB_RETRY; // all of the transaction is decided anew
  }
  if (status == DB_OK && !(happen(&plan, t, offline_grace_ms, &events) && number(&plan, &events) &&
                           tell_ops(&plan, &events) && write_down(&plan, &events, written))) {
    status = DB_FAILED;
  }
  if (status == DB_OK && events.n > 0) {
    status = plan_write(db, &plan, &events);
  }
  if (status == DB_OK && events.n > 0) {
    status = webhook_write(db, written->events + (written->n_events - events.n), events.list, events.n);
  }
  plan_free(&plan);
  transitions_free(t);
  *t = events;
  return status;
}
