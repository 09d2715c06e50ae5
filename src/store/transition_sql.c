// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/notify.h"
#include "store/transition_plan.h"

// -- reading under the locks ------------------------------------------------------------------------------------------

static const struct db_stmt user_seen_stmt = {
    .name = "user_seen_on_end",
    .sql = "INSERT INTO stillhere.user_last_seen AS s (user_id, last_seen_at)"
           " SELECT i.user_id, LEAST(timestamptz 'epoch' + i.seen_us * interval '1 microsecond', clock_timestamp())"
           " FROM unnest($1::text[], $2::int8[]) AS i(user_id, seen_us)"
           " ON CONFLICT (user_id) DO UPDATE SET last_seen_at = excluded.last_seen_at"
           " WHERE s.last_seen_at < excluded.last_seen_at",
};

static const struct db_stmt rooms_make_stmt = {
    .name = "rooms_make",
    .sql = "INSERT INTO stillhere.room (room_id, revision) SELECT r, 0 FROM unnest($1::text[]) AS r"
           " ON CONFLICT (room_id) DO NOTHING",
};

// The room's row is the only source of revisions: it is locked from here to the commit, so commit order is revision
// order. A sequence would let 12 commit before 11. ORDER BY with FOR UPDATE locks in that order. A row that somebody
// has set back by hand, or taken away, counts as at its newest event: no revision is given out twice.
static const struct db_stmt rooms_lock_stmt = {
    .name = "rooms_lock",
    .sql = "SELECT r.room_id, GREATEST(r.revision, (SELECT max(e.revision) FROM stillhere.event e"
           " WHERE e.room_id = r.room_id)) FROM stillhere.room r WHERE r.room_id = ANY($1::text[])"
           " ORDER BY r.room_id FOR UPDATE OF r",
    .distributed = "WITH r AS MATERIALIZED (UPDATE stillhere.room AS r SET revision = r.revision"
                   " WHERE r.room_id = ANY($1::text[]) RETURNING r.room_id, r.revision),"
                   " e AS MATERIALIZED (SELECT e.room_id, max(e.revision) AS revision FROM stillhere.event e"
                   " WHERE e.room_id = ANY($1::text[]) GROUP BY e.room_id)"
                   " SELECT r.room_id, GREATEST(r.revision, e.revision) FROM r LEFT JOIN e ON e.room_id = r.room_id"
                   " ORDER BY r.room_id COLLATE \"C\"",
};

// Runs after the rooms are locked, with a snapshot of its own: every change of these rooms that has committed is in
// it, and none can commit before us. The time is read under the locks too, so events of a room are in order of time.
#define OF_PAIRS(alias)                                                                                                \
  " JOIN unnest($1::text[], $2::text[]) AS i(room_id, user_id)"                                                        \
  " ON " alias ".room_id = i.room_id AND " alias ".user_id = i.user_id AND " alias ".room_id = ANY($1::text[])"
static const struct db_stmt pairs_stmt = {
    .name = "room_users_read",
    .sql =
        "SELECT (SELECT count(*) FROM stillhere.lease l WHERE l.room_id = i.room_id AND l.user_id = i.user_id),"
        " u.online_since, u.offline_at, clock_timestamp(),"
        " EXISTS (SELECT FROM stillhere.member m WHERE m.room_id = i.room_id AND m.user_id = i.user_id"
        " AND m.revoked_at IS NOT NULL)"
        " FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS i(room_id, user_id, n)"
        " LEFT JOIN stillhere.room_user u ON u.room_id = ANY (ARRAY[i.room_id]) AND u.user_id = i.user_id ORDER BY i.n",
    .distributed = "WITH s AS MATERIALIZED (SELECT l.room_id, l.user_id, count(*) AS n FROM stillhere.lease l" OF_PAIRS(
        "l") " GROUP BY l.room_id, l.user_id),"
             " u AS MATERIALIZED (SELECT u.room_id, u.user_id, u.online_since, u.offline_at"
             " FROM stillhere.room_user u" OF_PAIRS(
                 "u") "),"
                      " m AS MATERIALIZED (SELECT m.room_id, m.user_id FROM stillhere.member m" OF_PAIRS(
                          "m") " WHERE m.revoked_at IS NOT NULL)"
                               " SELECT coalesce(s.n, 0), u.online_since, u.offline_at, clock_timestamp(), m.room_id IS NOT NULL"
                               " FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS i(room_id, user_id, n)"
                               " LEFT JOIN s ON s.room_id = i.room_id AND s.user_id = i.user_id"
                               " LEFT JOIN u ON u.room_id = i.room_id AND u.user_id = i.user_id"
                               " LEFT JOIN m ON m.room_id = i.room_id AND m.user_id = i.user_id ORDER BY i.n",
};

static const char *user_id_at(const void *plan, size_t i) {
  return ((const struct plan *)plan)->users[i].user_id;
}
static int64_t user_seen_at(const void *plan, size_t i) {
  return ((const struct plan *)plan)->users[i].seen_us;
}
static const char *room_id_at(const void *plan, size_t i) {
  return ((const struct plan *)plan)->rooms[i].room_id;
}
static int64_t room_head_at(const void *plan, size_t i) {
  return ((const struct plan *)plan)->rooms[i].head;
}
static int64_t room_events_at(const void *plan, size_t i) {
  return ((const struct plan *)plan)->rooms[i].n_events > 0;
}
static const char *pair_room_at(const void *plan, size_t i) {
  return ((const struct plan *)plan)->pairs[i].room_id;
}
static const char *pair_user_at(const void *plan, size_t i) {
  return ((const struct plan *)plan)->pairs[i].user_id;
}

static void take_locked(struct plan *plan, const PGresult *rooms, const PGresult *pairs) {
  for (int i = 0; i < PQntuples(rooms); i++) {
    struct planned_room *room = plan_room(plan, db_text(rooms, i, 0));
    if (room != NULL) {
      room->head = db_int8(rooms, i, 1);
    }
  }
  for (int i = 0; i < PQntuples(pairs) && (size_t)i < plan->n_pairs; i++) {
    struct user_state *s = &plan->pairs[i].state;
    s->sessions = db_int8(pairs, i, 0);
    s->online = !db_null(pairs, i, 1);
    // Both are written back, which must be possible whatever somebody has put there.
    s->online_since_us = s->online ? time_bounded(db_time(pairs, i, 1)) : 0;
    s->offline_at_us = db_null(pairs, i, 2) ? 0 : time_bounded(db_time(pairs, i, 2));
    plan->at_us = db_time(pairs, i, 3);
    plan->pairs[i].revoked = db_bool(pairs, i, 4);
  }
}

enum db_status plan_lock(struct db *db, struct plan *plan) {
  struct db_params users = {0}, rooms = {0}, pairs = {0};
  db_p_text_array(&users, plan->n_users, user_id_at, plan);
  db_p_int8_array(&users, plan->n_users, user_seen_at, plan);
  db_p_text_array(&rooms, plan->n_rooms, room_id_at, plan);
  db_p_text_array(&pairs, plan->n_pairs, pair_room_at, plan);
  db_p_text_array(&pairs, plan->n_pairs, pair_user_at, plan);
  struct db_step steps[4];
  int n = 0;
  if (plan->n_users > 0) {
    steps[n++] = (struct db_step){&user_seen_stmt, &users};
  }
  steps[n++] = (struct db_step){&rooms_make_stmt, &rooms};
  steps[n++] = (struct db_step){&rooms_lock_stmt, &rooms};
  steps[n++] = (struct db_step){&pairs_stmt, &pairs};
  PGresult *results[4] = {0};
  enum db_status status = db_pipeline(db, steps, n, results);
  if (status == DB_OK) {
    take_locked(plan, results[n - 2], results[n - 1]);
  }
  for (int i = 0; i < n; i++) {
    PQclear(results[i]);
  }
  db_params_clear(&users);
  db_params_clear(&rooms);
  db_params_clear(&pairs);
  return status;
}

// -- writing ----------------------------------------------------------------------------------------------------------

static const struct db_stmt events_stmt = {
    .name = "events_insert",
    .sql = "INSERT INTO stillhere.event (room_id, revision, event_id, kind, at, user_id, session_id, lease_revision,"
           " user_sessions, request_id, overdue_ms, meta)"
           " SELECT i.room_id, i.revision, i.event_id, i.kind, timestamptz 'epoch' + $12 * interval '1 microsecond',"
           " i.user_id, i.session_id, i.lease_revision, i.user_sessions, i.request_id, i.overdue_ms, i.meta::json"
           " FROM unnest($1::text[], $2::int8[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int8[],"
           " $8::int4[], $9::text[], $10::int8[], $11::text[]) AS i(room_id, revision, event_id, kind, user_id,"
           " session_id, lease_revision, user_sessions, request_id, overdue_ms, meta)",
};

static const struct db_stmt tombstones_stmt = {
    .name = "tombstones_write",
    .sql = "INSERT INTO stillhere.tombstone AS t (room_id, user_id, session_id, revision, reason, ended_at, event_id,"
           " request_id)"
           " SELECT i.room_id, i.user_id, i.session_id, i.revision, i.reason,"
           " timestamptz 'epoch' + $8 * interval '1 microsecond', i.event_id, i.request_id"
           " FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::text[], $6::text[], $7::text[])"
           " AS i(room_id, user_id, session_id, revision, reason, event_id, request_id)"
           " ON CONFLICT (room_id, user_id, session_id) DO UPDATE SET"
           " revision = GREATEST(t.revision, excluded.revision), reason = excluded.reason,"
           " ended_at = excluded.ended_at, event_id = excluded.event_id, request_id = excluded.request_id",
};

static const struct db_stmt rooms_advance_stmt = {
    .name = "rooms_advance",
    .sql = "UPDATE stillhere.room r SET revision = i.revision,"
           " changed_at = timestamptz 'epoch' + $4 * interval '1 microsecond'"
           " FROM unnest($1::text[], $2::int8[], $3::bool[]) AS i(room_id, revision, moved)"
           " WHERE r.room_id = ANY (ARRAY[i.room_id]) AND i.moved",
    .distributed = "UPDATE stillhere.room r SET revision = i.revision,"
                   " changed_at = timestamptz 'epoch' + $4 * interval '1 microsecond'"
                   " FROM unnest($1::text[], $2::int8[], $3::bool[]) AS i(room_id, revision, moved)"
                   " WHERE r.room_id = i.room_id AND i.moved"
                   " AND r.room_id = ANY($1::text[])",
};

static const struct db_stmt users_stmt = {
    .name = "room_users_write",
    .sql = "INSERT INTO stillhere.room_user AS u (room_id, user_id, online_since, offline_at)"
           " SELECT i.room_id, i.user_id, timestamptz 'epoch' + i.online_us * interval '1 microsecond',"
           " timestamptz 'epoch' + i.offline_us * interval '1 microsecond'"
           " FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[]) AS i(room_id, user_id, online_us, offline_us)"
           " ON CONFLICT (room_id, user_id) DO UPDATE SET"
           " online_since = excluded.online_since, offline_at = excluded.offline_at",
};

static const struct db_stmt users_delete_stmt = {
    .name = "room_users_delete",
    .sql = "DELETE FROM stillhere.room_user u USING unnest($1::text[], $2::text[]) AS i(room_id, user_id)"
           " WHERE u.room_id = ANY (ARRAY[i.room_id]) AND u.user_id = i.user_id",
    .distributed = "DELETE FROM stillhere.room_user u USING unnest($1::text[], $2::text[]) AS i(room_id, user_id)"
                   " WHERE u.room_id = i.room_id AND u.user_id = i.user_id"
                   " AND u.room_id = ANY($1::text[])",
};

static const struct db_stmt room_seen_stmt = {
    .name = "room_seen_on_end",
    .sql = "INSERT INTO stillhere.room_last_seen AS s (room_id, user_id, last_seen_at)"
           " SELECT i.room_id, i.user_id,"
           " LEAST(timestamptz 'epoch' + i.seen_us * interval '1 microsecond', clock_timestamp())"
           " FROM unnest($1::text[], $2::text[], $3::int8[]) AS i(room_id, user_id, seen_us)"
           " ON CONFLICT (room_id, user_id) DO UPDATE SET last_seen_at = excluded.last_seen_at"
           " WHERE s.last_seen_at < excluded.last_seen_at",
};

// Getters over a list of events.

static const struct transition *nth(const void *events, size_t i) {
  return &((const struct transition *)events)[i];
}
static const char *x_room(const void *events, size_t i) {
  return nth(events, i)->key.room_id;
}
static int64_t x_revision(const void *events, size_t i) {
  return nth(events, i)->revision;
}
static const char *x_event_id(const void *events, size_t i) {
  return nth(events, i)->event_id;
}
static const char *x_kind(const void *events, size_t i) {
  return event_kind_name(nth(events, i)->kind);
}
static const char *x_user(const void *events, size_t i) {
  return nth(events, i)->key.user_id;
}
static const char *x_session(const void *events, size_t i) {
  return nth(events, i)->key.session_id;
}
static int64_t x_lease_revision(const void *events, size_t i) {
  int64_t revision = nth(events, i)->lease_revision;
  return revision > 0 ? revision : INT64_MIN;
}
static int64_t x_sessions(const void *events, size_t i) {
  return nth(events, i)->user_sessions;
}
static const char *x_request_id(const void *events, size_t i) {
  return nth(events, i)->request_id;
}
static int64_t x_overdue(const void *events, size_t i) {
  const struct transition *x = nth(events, i);
  return x->kind == EVENT_LEASE_EXPIRED ? x->overdue_ms : INT64_MIN;
}
static const char *x_meta(const void *events, size_t i) {
  return transition_meta(nth(events, i));
}

// Getters over an array of pointers to those that are buried.

static const struct transition *buried(const void *list, size_t i) {
  return ((const struct transition *const *)list)[i];
}
static const char *t_room(const void *list, size_t i) {
  return buried(list, i)->key.room_id;
}
static const char *t_user(const void *list, size_t i) {
  return buried(list, i)->key.user_id;
}
static const char *t_session(const void *list, size_t i) {
  return buried(list, i)->key.session_id;
}
static int64_t t_revision(const void *list, size_t i) {
  const struct transition *x = buried(list, i);
  return x->tombstone_revision > x->lease_revision ? x->tombstone_revision : x->lease_revision;
}
static const char *t_reason(const void *list, size_t i) {
  switch (buried(list, i)->kind) {
  case EVENT_SESSION_CLOSED:
    return "closed";
  case EVENT_MEMBERSHIP_REVOKED:
    return "revoked";
  default:
    return "expired";
  }
}
static const char *t_event_id(const void *list, size_t i) {
  return buried(list, i)->event_id;
}
static const char *t_request_id(const void *list, size_t i) {
  return buried(list, i)->request_id;
}

// Getters over an array of pointers to pairs.

static const struct planned_pair *pair(const void *list, size_t i) {
  return ((const struct planned_pair *const *)list)[i];
}
static const char *p_room(const void *list, size_t i) {
  return pair(list, i)->room_id;
}
static const char *p_user(const void *list, size_t i) {
  return pair(list, i)->user_id;
}
static int64_t p_online(const void *list, size_t i) {
  return pair(list, i)->state.online_since_us;
}
static int64_t p_offline(const void *list, size_t i) {
  int64_t at_us = pair(list, i)->state.offline_at_us;
  return at_us > 0 ? at_us : INT64_MIN;
}
static int64_t p_seen(const void *list, size_t i) {
  return pair(list, i)->seen_us;
}

/// What plan_write() sends: parameters for each statement, and the arrays that they point to.
struct writing {
  struct db_params events, tombstones, rooms, online, offline, seen, notes;
  const struct transition **buried;
  const struct planned_pair **pairs; ///< those of online, offline and seen, one after the other
  struct room_head *heads;
  struct payloads payloads;
  struct db_step steps[DB_PIPELINE_MAX];
  int n_steps;
};

static void add_step(struct writing *w, const struct db_stmt *stmt, const struct db_params *params) {
  w->steps[w->n_steps++] = (struct db_step){stmt, params};
}

static void add_events(struct writing *w, const struct plan *plan, const struct transitions *events) {
  struct db_params *p = &w->events;
  const struct transition *list = events->list;
  size_t n = events->n;
  db_p_text_array(p, n, x_room, list);
  db_p_int8_array(p, n, x_revision, list);
  db_p_text_array(p, n, x_event_id, list);
  db_p_text_array(p, n, x_kind, list);
  db_p_text_array(p, n, x_user, list);
  db_p_text_array(p, n, x_session, list);
  db_p_int8_null_array(p, n, x_lease_revision, list);
  db_p_int4_array(p, n, x_sessions, list);
  db_p_text_array(p, n, x_request_id, list);
  db_p_int8_null_array(p, n, x_overdue, list);
  db_p_text_array(p, n, x_meta, list);
  db_p_int8(p, plan->at_us);
  add_step(w, &events_stmt, p);
}

static void add_tombstones(struct writing *w, const struct plan *plan, const struct transitions *events) {
  size_t n = 0;
  for (size_t i = 0; i < events->n; i++) {
    if (events->list[i].bury) {
      w->buried[n++] = &events->list[i];
    }
  }
  if (n == 0) {
    return;
  }
  struct db_params *p = &w->tombstones;
  db_p_text_array(p, n, t_room, w->buried);
  db_p_text_array(p, n, t_user, w->buried);
  db_p_text_array(p, n, t_session, w->buried);
  db_p_int8_array(p, n, t_revision, w->buried);
  db_p_text_array(p, n, t_reason, w->buried);
  db_p_text_array(p, n, t_event_id, w->buried);
  db_p_text_array(p, n, t_request_id, w->buried);
  db_p_int8(p, plan->at_us);
  add_step(w, &tombstones_stmt, p);
}

static bool comes_online(const struct planned_pair *p) {
  return p->state.changed && p->state.online;
}

static bool goes_offline(const struct planned_pair *p) {
  return p->state.changed && !p->state.online;
}

static bool has_ended(const struct planned_pair *p) {
  return p->ended;
}

/// Collects the pairs that are wanted at @a to. @return how many
static size_t collect(const struct plan *plan, bool (*want)(const struct planned_pair *),
                      const struct planned_pair **to) {
  size_t n = 0;
  for (size_t i = 0; i < plan->n_pairs; i++) {
    if (want(&plan->pairs[i])) {
      to[n++] = &plan->pairs[i];
    }
  }
  return n;
}

static void add_users(struct writing *w, const struct plan *plan) {
  const struct planned_pair **online = w->pairs, **offline = online + plan->n_pairs, **ended = offline + plan->n_pairs;
  size_t n = collect(plan, comes_online, online);
  if (n > 0) {
    db_p_text_array(&w->online, n, p_room, online);
    db_p_text_array(&w->online, n, p_user, online);
    db_p_int8_array(&w->online, n, p_online, online);
    db_p_int8_null_array(&w->online, n, p_offline, online);
    add_step(w, &users_stmt, &w->online);
  }
  n = collect(plan, goes_offline, offline);
  if (n > 0) {
    db_p_text_array(&w->offline, n, p_room, offline);
    db_p_text_array(&w->offline, n, p_user, offline);
    add_step(w, &users_delete_stmt, &w->offline);
  }
  n = collect(plan, has_ended, ended);
  if (n > 0) {
    db_p_text_array(&w->seen, n, p_room, ended);
    db_p_text_array(&w->seen, n, p_user, ended);
    db_p_int8_array(&w->seen, n, p_seen, ended);
    add_step(w, &room_seen_stmt, &w->seen);
  }
}

static bool add_rooms(struct writing *w, const struct plan *plan) {
  size_t n_heads = 0;
  for (size_t i = 0; i < plan->n_rooms; i++) {
    if (plan->rooms[i].n_events > 0) {
      w->heads[n_heads++] = (struct room_head){plan->rooms[i].room_id, plan->rooms[i].head};
    }
  }
  db_p_text_array(&w->rooms, plan->n_rooms, room_id_at, plan);
  db_p_int8_array(&w->rooms, plan->n_rooms, room_head_at, plan);
  db_p_bool_array(&w->rooms, plan->n_rooms, room_events_at, plan);
  db_p_int8(&w->rooms, plan->at_us);
  add_step(w, &rooms_advance_stmt, &w->rooms);
  if (!payloads_make(&w->payloads, w->heads, n_heads)) {
    return false;
  }
  notify_params(&w->notes, &w->payloads);
  add_step(w, &notify_stmt, &w->notes);
  return true;
}

static void writing_free(struct writing *w) {
  struct db_params *all[] = {&w->events, &w->tombstones, &w->rooms, &w->online, &w->offline, &w->seen, &w->notes};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) {
    db_params_clear(all[i]);
  }
  payloads_free(&w->payloads);
  free(w->buried);
  free(w->pairs);
  free(w->heads);
}

enum db_status plan_write(struct db *db, const struct plan *plan, const struct transitions *events) {
  struct writing w = {
      .buried = calloc(events->n, sizeof(struct transition *)),
      .pairs = calloc(plan->n_pairs * 3, sizeof(struct planned_pair *)),
      .heads = calloc(plan->n_rooms, sizeof *w.heads),
  };
  enum db_status status = DB_FAILED;
  if (w.buried != NULL && w.pairs != NULL && w.heads != NULL) {
    add_events(&w, plan, events);
    add_tombstones(&w, plan, events);
    add_users(&w, plan);
    if (add_rooms(&w, plan)) {
      PGresult *results[DB_PIPELINE_MAX] = {0};
      status = db_pipeline(db, w.steps, w.n_steps, results);
      for (int i = 0; i < w.n_steps; i++) {
        PQclear(results[i]);
      }
    }
  }
  writing_free(&w);
  return status;
}
