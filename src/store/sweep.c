// SPDX-License-Identifier: Apache-2.0
#include "store/sweep.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/pulse.h"
#include "store/transition.h"

// Reads the whole table rather than an index: an index on expires_at would end HOT for every heartbeat, and a scan of
// 100 000 leases costs some 20 ms. The sweeper asks only when something can be due (live/sweeper.c).
static const struct db_stmt next_stmt = {
    .name = "sweep_next",
    .sql = "SELECT count(*) FILTER (WHERE expires_at <= t.now), min(expires_at) FILTER (WHERE expires_at > t.now)"
           " FROM stillhere.lease, (SELECT clock_timestamp() AS now OFFSET 0) t",
};

static const struct db_stmt overdue_stmt = {
    .name = "sweep_overdue",
    .sql = "SELECT room_id, user_id, session_id, revision FROM stillhere.lease l WHERE expires_at <= clock_timestamp()"
           " AND " CREDITED_END " <= clock_timestamp()"
           " AND (room_id, user_id, session_id) > ($2, $3, $4) ORDER BY room_id, user_id, session_id LIMIT $1",
    .distributed =
        "WITH l AS MATERIALIZED (SELECT room_id, user_id, session_id, revision, expires_at, renewed_at, ttl_ms"
        " FROM stillhere.lease WHERE expires_at <= clock_timestamp()"
        " AND (room_id, user_id, session_id) > ($2, $3, $4))"
        " SELECT room_id, user_id, session_id, revision FROM l WHERE " CREDITED_END " <= clock_timestamp()"
        " ORDER BY room_id COLLATE \"C\", user_id COLLATE \"C\", session_id COLLATE \"C\" LIMIT $1",
};

// The claim. A row that somebody holds is passed over and comes again with the next sweep; one that was renewed
// meanwhile no longer has the revision that was read, and is left alone. Where the tables are distributed it is waited
// for; outages are known on the coordinator alone, so a credit that was found since shows in a last column, afterwards.
static const struct db_stmt claim_stmt = {
    .name = "sweep_claim",
    .sql =
        "WITH due AS (SELECT d.* FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[])"
        " AS i(room_id, user_id, session_id, revision)"
        " CROSS JOIN LATERAL (SELECT l.room_id, l.user_id, l.session_id, l.revision FROM stillhere.lease l"
        " WHERE l.room_id = i.room_id AND l.user_id = i.user_id AND l.session_id = i.session_id"
        " AND l.revision = i.revision AND l.expires_at <= clock_timestamp() AND " CREDITED_END " <= clock_timestamp()"
        " FOR UPDATE SKIP LOCKED) d),"
        " gone AS (DELETE FROM stillhere.lease l USING due WHERE l.room_id = ANY (ARRAY[due.room_id]) AND l.user_id = due.user_id"
        " AND l.session_id = due.session_id AND l.revision = due.revision AND l.expires_at <= clock_timestamp()"
        " RETURNING l.room_id, l.user_id, l.session_id, l.revision, l.renewed_at, l.expires_at, l.request_id)"
        " SELECT room_id, user_id, session_id, revision, renewed_at, expires_at, request_id FROM gone"
        " ORDER BY expires_at, room_id, user_id, session_id",
    .distributed =
        "WITH l AS MATERIALIZED (DELETE FROM stillhere.lease l"
        " USING unnest($1::text[], $2::text[], $3::text[], $4::int8[]) AS i(room_id, user_id, session_id, revision)"
        " WHERE l.room_id = i.room_id AND l.user_id = i.user_id AND l.session_id = i.session_id"
        " AND l.room_id = ANY($1::text[]) AND l.revision = i.revision AND l.expires_at <= " DB_TIME_DISTRIBUTED
        " RETURNING l.room_id, l.user_id, l.session_id, l.revision, l.renewed_at, l.expires_at, l.request_id, l.ttl_ms)"
        " SELECT room_id, user_id, session_id, revision, renewed_at, expires_at, request_id,"
        " " CREDITED_END " > clock_timestamp() FROM l"
        " ORDER BY expires_at, room_id COLLATE \"C\", user_id COLLATE \"C\", session_id COLLATE \"C\"",
};

enum { COL_CREDITED = 7 };

// The same for one room of distributed tables: its node can pass over what somebody holds. What a batch of many rooms
// has waited for in vain is tried room by room (live/sweeper.c).
static const struct db_stmt claim_room_stmt = {
    .name = "sweep_claim_room",
    .sql =
        "WITH l AS MATERIALIZED (DELETE FROM stillhere.lease l USING"
        " (SELECT x.user_id, x.session_id, x.revision FROM stillhere.lease x"
        " JOIN unnest($2::text[], $3::text[], $4::int8[]) AS i(user_id, session_id, revision)"
        " ON x.user_id = i.user_id AND x.session_id = i.session_id AND x.revision = i.revision"
        " WHERE x.room_id = ($1::text[])[1] ORDER BY x.user_id, x.session_id FOR UPDATE OF x SKIP LOCKED) due"
        " WHERE l.room_id = ($1::text[])[1] AND l.user_id = due.user_id AND l.session_id = due.session_id"
        " AND l.revision = due.revision AND l.expires_at <= " DB_TIME_DISTRIBUTED
        " RETURNING l.room_id, l.user_id, l.session_id, l.revision, l.renewed_at, l.expires_at, l.request_id, l.ttl_ms)"
        " SELECT room_id, user_id, session_id, revision, renewed_at, expires_at, request_id,"
        " " CREDITED_END " > clock_timestamp() FROM l"
        " ORDER BY expires_at, room_id COLLATE \"C\", user_id COLLATE \"C\", session_id COLLATE \"C\"",
};

// now() is the start of this one statement; unlike clock_timestamp() it can be looked up in the index. What is listed
// is judged again under the lock of the room.
static const struct db_stmt next_offline_stmt = {
    .name = "sweep_next_offline",
    .sql = "SELECT count(*) FILTER (WHERE offline_at <= now()), min(offline_at) FILTER (WHERE offline_at > now())"
           " FROM stillhere.room_user WHERE offline_at IS NOT NULL",
};

static const struct db_stmt offlines_stmt = {
    .name = "sweep_offlines",
    .sql = "SELECT room_id, user_id, NULL::text, 0::int8 FROM stillhere.room_user WHERE offline_at <= now()"
           " AND (room_id, user_id) > ($2, $3) ORDER BY room_id, user_id LIMIT $1",
};

/// Copies room, user, session (which may be null) and revision. @return false when memory ran out
static bool take_list(const PGresult *r, struct overdue **list, size_t *n) {
  size_t count = (size_t)PQntuples(r);
  struct overdue *found = calloc(count > 0 ? count : 1, sizeof *found);
  for (size_t i = 0; found != NULL && i < count; i++) {
    struct overdue *o = &found[i];
    int row = (int)i;
    bool session = !db_null(r, row, 2);
    o->room_id = strdup(db_text(r, row, 0));
    o->user_id = strdup(db_text(r, row, 1));
    o->session_id = session ? strdup(db_text(r, row, 2)) : NULL;
    o->revision = db_int8(r, row, 3);
    if (o->room_id == NULL || o->user_id == NULL || (session && o->session_id == NULL)) {
      overdue_free(found, i + 1);
      found = NULL;
    }
  }
  *list = found;
  *n = found != NULL ? count : 0;
  return found != NULL;
}

/// Asks @a next whether anything is due and when the next thing will be; if so lists with @a stmt and its @a p.
static enum db_status list_due(struct db *db, const struct db_stmt *next, const struct db_stmt *stmt,
                               struct db_params *p, struct overdue **list, size_t *n, int64_t *next_us) {
  PGresult *r = NULL;
  *list = NULL;
  *n = 0;
  enum db_status status = db_run(db, next, NULL, &r);
  bool any = false;
  if (status == DB_OK) {
    any = db_int8(r, 0, 0) > 0;
    *next_us = db_null(r, 0, 1) ? TIME_INFINITY : db_time(r, 0, 1);
    PQclear(r);
  }
  if (any) {
    status = db_run(db, stmt, p, &r);
    if (status == DB_OK) {
      status = take_list(r, list, n) ? DB_OK : DB_FAILED;
      PQclear(r);
    }
  }
  db_params_clear(p);
  return status;
}

enum db_status sweep_overdue(struct db *db, size_t max, const struct overdue *after, struct overdue **list, size_t *n,
                             int64_t *next_us) {
  struct db_params p = {0};
  db_p_int8(&p, (int64_t)max);
  db_p_text(&p, after != NULL ? after->room_id : "");
  db_p_text(&p, after != NULL ? after->user_id : "");
  db_p_text(&p, after != NULL ? after->session_id : "");
  return list_due(db, &next_stmt, &overdue_stmt, &p, list, n, next_us);
}

enum db_status sweep_offlines(struct db *db, size_t max, const struct overdue *after, struct overdue **list, size_t *n,
                              int64_t *next_us) {
  struct db_params p = {0};
  db_p_int8(&p, (int64_t)max);
  db_p_text(&p, after != NULL ? after->room_id : "");
  db_p_text(&p, after != NULL ? after->user_id : "");
  return list_due(db, &next_offline_stmt, &offlines_stmt, &p, list, n, next_us);
}

void overdue_free(struct overdue *list, size_t n) {
  for (size_t i = 0; i < n; i++) {
    free(list[i].room_id);
    free(list[i].user_id);
    free(list[i].session_id);
  }
  free(list);
}

struct claim {
  const struct overdue *list;
  size_t n;
  int64_t offline_grace_ms, silence_ms;
  struct written *written;
};

/// The last step of a transaction that has ended something. Where nobody could renew meanwhile, the database frozen in
/// the middle of it, it counts as if the database had been away, which it was: the next sweep looks anew.
static enum db_status sure(struct db *db, const struct claim *c) {
  bool doubt = false;
  enum db_status status = pulse_doubt(db, c->silence_ms, 0, &doubt);
  return status == DB_OK && doubt ? DB_LOST : status;
}

static const char *o_room(const void *list, size_t i) {
  return ((const struct overdue *)list)[i].room_id;
}
static const char *o_user(const void *list, size_t i) {
  return ((const struct overdue *)list)[i].user_id;
}
static const char *o_session(const void *list, size_t i) {
  return ((const struct overdue *)list)[i].session_id;
}
static int64_t o_revision(const void *list, size_t i) {
  return ((const struct overdue *)list)[i].revision;
}

static enum db_status expire_work(struct db *db, void *ctx) {
  struct claim *c = ctx;
  written_clear(c->written);
  struct db_params p = {0};
  db_p_text_array(&p, c->n, o_room, c->list);
  db_p_text_array(&p, c->n, o_user, c->list);
  db_p_text_array(&p, c->n, o_session, c->list);
  db_p_int8_array(&p, c->n, o_revision, c->list);
  PGresult *r = NULL;
  bool one_room = strcmp(c->list[0].room_id, c->list[c->n - 1].room_id) == 0; // they are sorted
  enum db_status status = db_by_key(db);
  if (status == DB_OK) {
    status = db_run(db, db_distributed(db) && one_room ? &claim_room_stmt : &claim_stmt, &p, &r);
  }
  db_params_clear(&p);
  struct transitions t = {0};
  for (int i = 0; status == DB_OK && i < PQntuples(r); i++) {
    struct lease_key key = {db_text(r, i, 0), db_text(r, i, 1), db_text(r, i, 2)};
    if (PQnfields(r) > COL_CREDITED && db_bool(r, i, COL_CREDITED)) {
      status = DB_LOST; // as in sure()
      break;
    }
    struct transition *x = transitions_add(&t, EVENT_LEASE_EXPIRED, &key);
    if (x == NULL) {
      status = DB_FAILED;
      break;
    }
    x->lease_revision = db_int8(r, i, 3);
    x->renewed_at_us = db_time(r, i, 4);
    x->expires_at_us = db_time(r, i, 5);
    x->request_id = db_null(r, i, 6) ? NULL : db_text(r, i, 6);
    x->bury = true;
  }
  if (status == DB_OK) {
    status = transitions_write(db, c->offline_grace_ms, &t, c->written);
  }
  if (status == DB_OK) {
    status = sure(db, c);
  }
  transitions_free(&t);
  PQclear(r);
  return status;
}

static enum db_status run(struct db *db, enum db_status (*work)(struct db *, void *), struct claim *c) {
  enum db_status status = db_transaction(db, work, c);
  if (status != DB_OK) {
    written_clear(c->written);
  }
  return status;
}

enum db_status sweep_expire(struct db *db, int64_t offline_grace_ms, int64_t silence_ms, const struct overdue *list,
                            size_t n, struct written *written) {
  return run(
      db, expire_work,
      &(struct claim){
          .list = list, .n = n, .offline_grace_ms = offline_grace_ms, .silence_ms = silence_ms, .written = written});
}

static enum db_status go_offline_work(struct db *db, void *ctx) {
  struct claim *c = ctx;
  written_clear(c->written);
  struct transitions t = {0};
  for (size_t i = 0; i < c->n && !t.failed; i++) {
    struct lease_key key = {.room_id = c->list[i].room_id, .user_id = c->list[i].user_id};
    (void)transitions_add(&t, EVENT_USER_OFFLINE, &key);
  }
  enum db_status status = db_by_key(db);
  if (status == DB_OK) {
    status = transitions_write(db, 0, &t, c->written);
  }
  if (status == DB_OK) {
    status = sure(db, c);
  }
  transitions_free(&t);
  return status;
}

enum db_status sweep_go_offline(struct db *db, int64_t silence_ms, const struct overdue *list, size_t n,
                                struct written *written) {
  return run(db, go_offline_work, &(struct claim){.list = list, .n = n, .silence_ms = silence_ms, .written = written});
}
