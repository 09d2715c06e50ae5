// SPDX-License-Identifier: Apache-2.0
#include "store/transition.h"

#include <stdlib.h>
#include <string.h>

#include "db/epoch.h"
#include "store/event_json.h"
#include "store/notify.h"
#include "store/written.h"

static const struct db_stmt last_seen_stmt = {
    .name = "last_seen_on_end",
    .sql = "INSERT INTO stillhere.user_last_seen AS s (user_id, last_seen_at)"
           " SELECT i.user_id, LEAST(timestamptz 'epoch' + i.seen_us * interval '1 microsecond', clock_timestamp())"
           " FROM unnest($1::text[], $2::int8[]) AS i(user_id, seen_us)"
           " ON CONFLICT (user_id) DO UPDATE SET last_seen_at = excluded.last_seen_at"
           " WHERE s.last_seen_at < excluded.last_seen_at",
};

// The room's row is the only source of revisions: it is locked from here to the commit, so commit order is revision
// order. A sequence would let 12 commit before 11.
static const struct db_stmt rooms_stmt = {
    .name = "rooms_advance",
    .sql = "INSERT INTO stillhere.room AS r (room_id, revision)"
           " SELECT i.room_id, i.n FROM unnest($1::text[], $2::int8[]) AS i(room_id, n)"
           " ON CONFLICT (room_id) DO UPDATE SET revision = r.revision + excluded.revision,"
           " changed_at = clock_timestamp()"
           " RETURNING r.room_id, r.revision, clock_timestamp()",
};

// Runs after rooms_stmt has locked the rooms, with a snapshot of its own: every change of these rooms that has
// committed is in the count, and none can commit before us.
static const struct db_stmt sessions_stmt = {
    .name = "user_sessions",
    .sql = "SELECT (SELECT count(*) FROM stillhere.lease l WHERE l.room_id = i.room_id AND l.user_id = i.user_id)"
           " FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS i(room_id, user_id, n) ORDER BY i.n",
};

static const struct db_stmt events_stmt = {
    .name = "events_insert",
    .sql =
        "INSERT INTO stillhere.event (room_id, revision, event_id, kind, at, user_id, session_id, lease_revision,"
        " user_sessions, request_id, overdue_ms, meta)"
        " SELECT i.room_id, i.revision, i.event_id, i.kind, timestamptz 'epoch' + i.at_us * interval '1 microsecond',"
        " i.user_id, i.session_id, i.lease_revision, i.user_sessions, i.request_id, i.overdue_ms, i.meta::json"
        " FROM unnest($1::text[], $2::int8[], $3::text[], $4::text[], $5::int8[], $6::text[], $7::text[], $8::int8[],"
        " $9::int4[], $10::text[], $11::int8[], $12::text[]) AS i(room_id, revision, event_id, kind, at_us, user_id,"
        " session_id, lease_revision, user_sessions, request_id, overdue_ms, meta)",
};

static const struct db_stmt tombstones_stmt = {
    .name = "tombstones_write",
    .sql =
        "INSERT INTO stillhere.tombstone AS t (room_id, user_id, session_id, revision, reason, ended_at, event_id,"
        " request_id)"
        " SELECT i.room_id, i.user_id, i.session_id, i.revision, i.reason,"
        " timestamptz 'epoch' + i.at_us * interval '1 microsecond', i.event_id, i.request_id"
        " FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::text[], $6::int8[], $7::text[], $8::text[])"
        " AS i(room_id, user_id, session_id, revision, reason, at_us, event_id, request_id)"
        " ON CONFLICT (room_id, user_id, session_id) DO UPDATE SET"
        " revision = GREATEST(t.revision, excluded.revision), reason = excluded.reason,"
        " ended_at = excluded.ended_at, event_id = excluded.event_id, request_id = excluded.request_id",
};

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

/// A user, a room, or a user in a room: what several transitions share. In plan->users, rooms or pairs, sorted.
struct shared {
  const char *room_id, *user_id; ///< NULL where it is no part of the key
  int64_t number;                ///< user: newest renewed_at; room: events, then next revision; pair: sessions
  int64_t at_us;                 ///< room: when its events happen
};

struct plan {
  struct shared *users, *rooms, *pairs;
  size_t n_users, n_rooms, n_pairs;
  size_t *buried; ///< indexes into the list of transitions
  size_t n_buried;
  const struct transitions *t;
};

static void plan_free(struct plan *plan) {
  free(plan->users);
  free(plan->rooms);
  free(plan->pairs);
  free(plan->buried);
}

static int compare_part(const char *a, const char *b) {
  return a == NULL || b == NULL ? 0 : strcmp(a, b);
}

static int compare_shared(const void *a, const void *b) {
  const struct shared *x = a, *y = b;
  int d = compare_part(x->room_id, y->room_id);
  return d != 0 ? d : compare_part(x->user_id, y->user_id);
}

static struct shared *find(struct shared *list, size_t n, const char *room_id, const char *user_id) {
  struct shared key = {.room_id = room_id, .user_id = user_id};
  return bsearch(&key, list, n, sizeof *list, compare_shared);
}

/// Sorts and folds equals: numbers of rooms are added up, of users the newest stays.
static size_t fold(struct shared *list, size_t n, bool add) {
  qsort(list, n, sizeof *list, compare_shared);
  size_t kept = 0;
  for (size_t i = 0; i < n; i++) {
    if (kept > 0 && compare_shared(&list[kept - 1], &list[i]) == 0) {
      struct shared *into = &list[kept - 1];
      into->number =
          add ? into->number + list[i].number : (list[i].number > into->number ? list[i].number : into->number);
    } else {
      list[kept++] = list[i];
    }
  }
  return kept;
}

static bool is_end(enum event_kind kind) {
  return kind == EVENT_LEASE_EXPIRED || kind == EVENT_SESSION_CLOSED || kind == EVENT_MEMBERSHIP_REVOKED;
}

static bool plan_make(struct plan *plan, const struct transitions *t) {
  *plan = (struct plan){.t = t};
  plan->users = calloc(t->n, sizeof *plan->users);
  plan->rooms = calloc(t->n, sizeof *plan->rooms);
  plan->pairs = calloc(t->n, sizeof *plan->pairs);
  plan->buried = calloc(t->n, sizeof *plan->buried);
  if (plan->users == NULL || plan->rooms == NULL || plan->pairs == NULL || plan->buried == NULL) {
    return false;
  }
  for (size_t i = 0; i < t->n; i++) {
    const struct transition *x = &t->list[i];
    if (is_end(x->kind)) {
      // Bounded as well; what lies in the future is cut to now by the statement.
      int64_t seen_us = x->renewed_at_us < 0 ? 0 : x->renewed_at_us > YEAR_9999_US ? YEAR_9999_US : x->renewed_at_us;
      plan->users[plan->n_users++] = (struct shared){.user_id = x->key.user_id, .number = seen_us};
    }
    plan->rooms[i] = (struct shared){.room_id = x->key.room_id, .number = 1};
    plan->pairs[i] = (struct shared){.room_id = x->key.room_id, .user_id = x->key.user_id};
    if (x->bury) {
      plan->buried[plan->n_buried++] = i;
    }
  }
  plan->n_users = fold(plan->users, plan->n_users, false);
  plan->n_rooms = fold(plan->rooms, t->n, true);
  plan->n_pairs = fold(plan->pairs, t->n, false);
  return true;
}

static const char *shared_room(const void *list, size_t i) {
  return ((const struct shared *)list)[i].room_id;
}

static const char *shared_user(const void *list, size_t i) {
  return ((const struct shared *)list)[i].user_id;
}

static int64_t shared_number(const void *list, size_t i) {
  return ((const struct shared *)list)[i].number;
}

/// Last-seen, rooms and session counts: one round trip, in the lock order.
static enum db_status lock_and_count(struct db *db, struct plan *plan) {
  struct db_params users = {0}, rooms = {0}, pairs = {0};
  db_p_text_array(&users, plan->n_users, shared_user, plan->users);
  db_p_int8_array(&users, plan->n_users, shared_number, plan->users);
  db_p_text_array(&rooms, plan->n_rooms, shared_room, plan->rooms);
  db_p_int8_array(&rooms, plan->n_rooms, shared_number, plan->rooms);
  db_p_text_array(&pairs, plan->n_pairs, shared_room, plan->pairs);
  db_p_text_array(&pairs, plan->n_pairs, shared_user, plan->pairs);
  struct db_step steps[3];
  int n = 0;
  if (plan->n_users > 0) {
    steps[n++] = (struct db_step){&last_seen_stmt, &users};
  }
  steps[n++] = (struct db_step){&rooms_stmt, &rooms};
  steps[n++] = (struct db_step){&sessions_stmt, &pairs};
  PGresult *results[3] = {0};
  enum db_status status = db_pipeline(db, steps, n, results);
  if (status == DB_OK) {
    PGresult *advanced = results[n - 2], *counts = results[n - 1];
    for (int i = 0; i < PQntuples(advanced); i++) {
      struct shared *room = find(plan->rooms, plan->n_rooms, db_text(advanced, i, 0), NULL);
      if (room != NULL) {
        room->number = db_int8(advanced, i, 1) - room->number + 1; // the first revision of this transaction
        room->at_us = db_time(advanced, i, 2);
      }
    }
    for (int i = 0; i < PQntuples(counts) && (size_t)i < plan->n_pairs; i++) {
      plan->pairs[i].number = db_int8(counts, i, 0);
    }
  }
  for (int i = 0; i < n; i++) {
    PQclear(results[i]);
  }
  db_params_clear(&users);
  db_params_clear(&rooms);
  db_params_clear(&pairs);
  return status;
}

/// What a transition does to the number of its user's sessions.
static int session_delta(const struct transition *x) {
  if (x->kind == EVENT_LEASE_GRANTED) {
    return 1;
  }
  return is_end(x->kind) && x->key.session_id != NULL ? -1 : 0;
}

/// Bounded, since a time that was edited by hand may be anything.
static int64_t overdue_ms(int64_t at_us, int64_t expires_at_us) {
  if (expires_at_us >= at_us) {
    return 0;
  }
  return expires_at_us > 0 ? (at_us - expires_at_us) / 1000 : at_us / 1000;
}

/// Gives each transition its revision, id and session count. @return false when memory ran out
static bool assign(struct plan *plan, struct transitions *t) {
  char epoch[EPOCH_SIZE];
  epoch_get(epoch);
  for (size_t i = 0; i < t->n; i++) {
    struct transition *x = &t->list[i];
    struct shared *room = find(plan->rooms, plan->n_rooms, x->key.room_id, NULL);
    x->revision = room->number++;
    if (x->kind == EVENT_LEASE_EXPIRED) {
      x->overdue_ms = overdue_ms(room->at_us, x->expires_at_us);
    }
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
    if (x->op != NULL) {
      free(x->op->event_id);
      x->op->event_id = strdup(x->event_id);
      x->op->room_revision = x->revision;
      if (x->op->event_id == NULL) {
        return false;
      }
    }
  }
  // The counts are those after everything, so walk back from there.
  for (size_t i = t->n; i-- > 0;) {
    struct transition *x = &t->list[i];
    struct shared *pair = find(plan->pairs, plan->n_pairs, x->key.room_id, x->key.user_id);
    x->user_sessions = pair->number > 0 ? pair->number : 0;
    pair->number -= session_delta(x);
  }
  return true;
}

static int64_t at_us(const struct plan *plan, const struct transition *x) {
  return find(plan->rooms, plan->n_rooms, x->key.room_id, NULL)->at_us;
}

static bool carries_meta(enum event_kind kind) {
  return kind == EVENT_LEASE_GRANTED || kind == EVENT_LEASE_RENEWED;
}

/// Adds the events, and the expiries among them, to @a written. @return false when memory ran out
static bool write_down(const struct plan *plan, const struct transitions *t, struct written *written) {
  if (!written_reserve(written, t->n)) {
    return false;
  }
  for (size_t i = 0; i < t->n; i++) {
    const struct transition *x = &t->list[i];
    struct buf json = {0};
    event_json(&json, &(struct event_columns){
                          .event_id = x->event_id,
                          .revision = x->revision,
                          .kind = x->kind,
                          .at_us = at_us(plan, x),
                          .user_id = x->key.user_id,
                          .session_id = x->key.session_id,
                          .lease_revision = x->lease_revision > 0 ? x->lease_revision : INT64_MIN,
                          .user_sessions = x->user_sessions,
                          .request_id = x->request_id,
                          .overdue_ms = x->kind == EVENT_LEASE_EXPIRED ? x->overdue_ms : INT64_MIN,
                          .meta = carries_meta(x->kind) ? x->meta : NULL,
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

// Getters over the plan, for the arrays of events_stmt and tombstones_stmt.

static const struct transition *nth(const void *plan, size_t i) {
  return &((const struct plan *)plan)->t->list[i];
}

static const char *x_room(const void *plan, size_t i) {
  return nth(plan, i)->key.room_id;
}
static int64_t x_revision(const void *plan, size_t i) {
  return nth(plan, i)->revision;
}
static const char *x_event_id(const void *plan, size_t i) {
  return nth(plan, i)->event_id;
}
static const char *x_kind(const void *plan, size_t i) {
  return event_kind_name(nth(plan, i)->kind);
}
static int64_t x_at(const void *plan, size_t i) {
  return at_us(plan, nth(plan, i));
}
static const char *x_user(const void *plan, size_t i) {
  return nth(plan, i)->key.user_id;
}
static const char *x_session(const void *plan, size_t i) {
  return nth(plan, i)->key.session_id;
}
static int64_t x_lease_revision(const void *plan, size_t i) {
  int64_t revision = nth(plan, i)->lease_revision;
  return revision > 0 ? revision : INT64_MIN;
}
static int64_t x_sessions(const void *plan, size_t i) {
  return nth(plan, i)->user_sessions;
}
static const char *x_request_id(const void *plan, size_t i) {
  return nth(plan, i)->request_id;
}
static int64_t x_overdue(const void *plan, size_t i) {
  const struct transition *x = nth(plan, i);
  return x->kind == EVENT_LEASE_EXPIRED ? x->overdue_ms : INT64_MIN;
}
static const char *x_meta(const void *plan, size_t i) {
  const struct transition *x = nth(plan, i);
  return carries_meta(x->kind) ? x->meta : NULL;
}

static size_t buried(const void *plan, size_t i) {
  return ((const struct plan *)plan)->buried[i];
}
static const char *t_room(const void *plan, size_t i) {
  return x_room(plan, buried(plan, i));
}
static const char *t_user(const void *plan, size_t i) {
  return x_user(plan, buried(plan, i));
}
static const char *t_session(const void *plan, size_t i) {
  return x_session(plan, buried(plan, i));
}
static int64_t t_revision(const void *plan, size_t i) {
  const struct transition *x = nth(plan, buried(plan, i));
  return x->tombstone_revision > x->lease_revision ? x->tombstone_revision : x->lease_revision;
}
static const char *t_reason(const void *plan, size_t i) {
  switch (nth(plan, buried(plan, i))->kind) {
  case EVENT_SESSION_CLOSED:
    return "closed";
  case EVENT_MEMBERSHIP_REVOKED:
    return "revoked";
  default:
    return "expired";
  }
}
static int64_t t_at(const void *plan, size_t i) {
  return x_at(plan, buried(plan, i));
}
static const char *t_event_id(const void *plan, size_t i) {
  return x_event_id(plan, buried(plan, i));
}
static const char *t_request_id(const void *plan, size_t i) {
  return x_request_id(plan, buried(plan, i));
}

static void event_params(struct db_params *p, const struct plan *plan, size_t n) {
  db_p_text_array(p, n, x_room, plan);
  db_p_int8_array(p, n, x_revision, plan);
  db_p_text_array(p, n, x_event_id, plan);
  db_p_text_array(p, n, x_kind, plan);
  db_p_int8_array(p, n, x_at, plan);
  db_p_text_array(p, n, x_user, plan);
  db_p_text_array(p, n, x_session, plan);
  db_p_int8_null_array(p, n, x_lease_revision, plan);
  db_p_int4_array(p, n, x_sessions, plan);
  db_p_text_array(p, n, x_request_id, plan);
  db_p_int8_null_array(p, n, x_overdue, plan);
  db_p_text_array(p, n, x_meta, plan);
}

static void tombstone_params(struct db_params *p, const struct plan *plan) {
  size_t n = plan->n_buried;
  db_p_text_array(p, n, t_room, plan);
  db_p_text_array(p, n, t_user, plan);
  db_p_text_array(p, n, t_session, plan);
  db_p_int8_array(p, n, t_revision, plan);
  db_p_text_array(p, n, t_reason, plan);
  db_p_int8_array(p, n, t_at, plan);
  db_p_text_array(p, n, t_event_id, plan);
  db_p_text_array(p, n, t_request_id, plan);
}

/// Events, tombstones and the notification: one round trip.
static enum db_status insert(struct db *db, const struct plan *plan, const struct transitions *t) {
  struct db_params events = {0}, tombstones = {0}, notes = {0};
  event_params(&events, plan, t->n);
  tombstone_params(&tombstones, plan);
  struct room_head *heads = calloc(plan->n_rooms, sizeof *heads);
  enum db_status status = heads == NULL ? DB_FAILED : DB_OK;
  for (size_t i = 0; heads != NULL && i < plan->n_rooms; i++) {
    heads[i] = (struct room_head){plan->rooms[i].room_id, plan->rooms[i].number - 1};
  }
  struct payloads payloads = {0};
  if (status == DB_OK && !payloads_make(&payloads, heads, plan->n_rooms)) {
    status = DB_FAILED;
  }
  if (status == DB_OK) {
    notify_params(&notes, &payloads);
    struct db_step steps[3];
    int n = 0;
    steps[n++] = (struct db_step){&events_stmt, &events};
    if (plan->n_buried > 0) {
      steps[n++] = (struct db_step){&tombstones_stmt, &tombstones};
    }
    steps[n++] = (struct db_step){&notify_stmt, &notes};
    PGresult *results[3] = {0};
    status = db_pipeline(db, steps, n, results);
    for (int i = 0; i < n; i++) {
      PQclear(results[i]);
    }
  }
  db_params_clear(&events);
  db_params_clear(&tombstones);
  db_params_clear(&notes);
  payloads_free(&payloads);
  free(heads);
  return status;
}

enum db_status transitions_write(struct db *db, struct transitions *t, struct written *written) {
  if (t->failed) {
    return DB_FAILED;
  }
  if (t->n == 0) {
    return DB_OK;
  }
  written->past_leases = true;
  struct plan plan;
  enum db_status status = plan_make(&plan, t) ? DB_OK : DB_FAILED;
  if (status == DB_OK) {
    status = lock_and_count(db, &plan);
  }
  if (status == DB_OK && !(assign(&plan, t) && write_down(&plan, t, written))) {
    status = DB_FAILED;
  }
  if (status == DB_OK) {
    status = insert(db, &plan, t);
  }
  plan_free(&plan);
  return status;
}
