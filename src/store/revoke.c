// SPDX-License-Identifier: Apache-2.0
// Why no lease slips through. Whoever grants one looks at the membership again under the row of the room
// (transition.c), and a revocation looks at the leases again under the same row; both hold it to the commit. So of the
// two the second sees what the first has written: the grant finds the membership revoked and is decided anew, or the
// revocation finds the lease.
#include "store/revoke.h"

#include <stdlib.h>
#include <string.h>

#include "store/room.h"
#include "store/transition.h"

static const struct db_stmt lock_stmt = {
    .name = "revoke_lock",
    .sql = "SELECT renewed_at FROM stillhere.lease WHERE room_id = $1 AND user_id = $2 ORDER BY session_id FOR UPDATE",
};

static const struct db_stmt member_stmt = {
    .name = "revoke_member",
    .sql = "INSERT INTO stillhere.member AS m (room_id, user_id, revoked_at) VALUES ($1, $2, clock_timestamp())"
           " ON CONFLICT (room_id, user_id) DO UPDATE SET revoked_at = excluded.revoked_at"
           " WHERE m.revoked_at IS NULL RETURNING " MEMBER_COLUMNS,
};

static const struct db_stmt member_read_stmt = {
    .name = "revoke_member_read",
    .sql = "SELECT " MEMBER_COLUMNS " FROM stillhere.member m WHERE m.room_id = $1 AND m.user_id = $2",
};

// The end of a lease locks its user's last-seen before the room; here the room is needed before it is known which
// leases end. FOR UPDATE waits for whoever writes the row, as the write itself will.
static const struct db_stmt seen_stmt = {
    .name = "revoke_seen",
    .sql = "INSERT INTO stillhere.user_last_seen AS s (user_id, last_seen_at)"
           " SELECT $2, GREATEST(timestamptz 'epoch', LEAST(max(l.renewed_at), clock_timestamp()))"
           " FROM stillhere.lease l"
           " WHERE l.room_id = $1 AND l.user_id = $2 HAVING count(*) > 0"
           " ON CONFLICT (user_id) DO UPDATE SET last_seen_at = excluded.last_seen_at"
           " WHERE s.last_seen_at < excluded.last_seen_at",
};

// Runs under the row of the room, with a snapshot of its own: whatever was granted before is in it. Most rows are
// locked already. A newer one is out of the lock order, so it is not waited for: SKIP LOCKED leaves it out, which the
// count tells.
static const struct db_stmt again_stmt = {
    .name = "revoke_again",
    .sql = "WITH mine AS (SELECT l.session_id, l.revision, l.renewed_at, l.expires_at, l.request_id"
           " FROM stillhere.lease l WHERE l.room_id = $1 AND l.user_id = $2 ORDER BY l.session_id"
           " FOR UPDATE SKIP LOCKED)"
           " SELECT session_id, revision, renewed_at, expires_at, request_id, expires_at <= clock_timestamp() FROM mine"
           " UNION ALL SELECT NULL, count(*), NULL, NULL, NULL, false FROM stillhere.lease l"
           " WHERE l.room_id = $1 AND l.user_id = $2 ORDER BY 1 NULLS LAST",
};

enum { COL_SESSION, COL_REVISION, COL_RENEWED, COL_EXPIRES, COL_REQUEST, COL_OVERDUE };

static const struct db_stmt delete_stmt = {
    .name = "revoke_delete",
    .sql = "DELETE FROM stillhere.lease WHERE room_id = $1 AND user_id = $2",
};

struct order {
  const char *room_id, *user_id, *request_id;
  int64_t offline_grace_ms;
  struct revocation *result;
  struct written *written;
  struct transitions transitions;
  int n_first; ///< leases that were there when they were locked
};

void revocation_clear(struct revocation *x) {
  for (size_t i = 0; i < x->n_leases; i++) {
    free(x->leases[i].session_id);
    free(x->leases[i].event_id);
  }
  free(x->leases);
  free(x->event_id);
  *x = (struct revocation){0};
}

/// Locks the leases that are there.
static enum db_status lock_leases(struct db *db, struct order *o, const struct db_params *p) {
  PGresult *r = NULL;
  enum db_status status = db_run(db, &lock_stmt, p, &r);
  if (status == DB_OK) {
    o->n_first = PQntuples(r);
    PQclear(r);
  }
  return status;
}

/// Revokes in the member's row, which is locked until the commit. @param[out] changed whether it was not revoked before
static enum db_status write_member(struct db *db, struct order *o, const struct db_params *p, bool *changed) {
  PGresult *r = NULL;
  enum db_status status = db_run(db, &member_stmt, p, &r);
  if (status != DB_OK)
    return status;
  *changed = PQntuples(r) > 0;
  if (!*changed) {
    PQclear(r);
    status = db_run(db, &member_read_stmt, p, &r);
    if (status != DB_OK)
      return status;
  }
  if (PQntuples(r) > 0)
    member_from_row(&o->result->member, r, 0);
  else
    status = DB_RETRY; // deleted by hand between the two
  PQclear(r);
  return status;
}

/// One lease of the second look.
static bool add_lease(struct order *o, const PGresult *r, int row, bool *any) {
  bool overdue = db_bool(r, row, COL_OVERDUE);
  struct lease_key key = {o->room_id, o->user_id, db_text(r, row, COL_SESSION)};
  struct transition *x =
      transitions_add(&o->transitions, overdue ? EVENT_LEASE_EXPIRED : EVENT_MEMBERSHIP_REVOKED, &key);
  if (x == NULL)
    return false;
  *any = *any || !overdue;
  x->lease_revision = db_int8(r, row, COL_REVISION);
  x->renewed_at_us = db_time(r, row, COL_RENEWED);
  x->expires_at_us = db_time(r, row, COL_EXPIRES);
  const char *last = db_null(r, row, COL_REQUEST) ? NULL : db_text(r, row, COL_REQUEST);
  x->request_id = overdue ? last : o->request_id;
  x->bury = true;
  return true;
}

/// Notes what ends: each lease in @a r, or, where none does, the membership alone.
static bool add_all(struct order *o, const PGresult *r, int n) {
  bool any = false;
  // What had run out ends first: user.offline comes with the last of the others.
  for (int overdue = 1; overdue >= 0; overdue--) {
    for (int row = 0; row < n; row++) {
      if (db_bool(r, row, COL_OVERDUE) == (overdue == 1) && !add_lease(o, r, row, &any))
        return false;
    }
  }
  if (any)
    return true;
  struct lease_key key = {.room_id = o->room_id, .user_id = o->user_id};
  struct transition *x = transitions_add(&o->transitions, EVENT_MEMBERSHIP_REVOKED, &key);
  if (x == NULL)
    return false;
  x->request_id = o->request_id;
  return true;
}

/// Keeps what the answer and the decision log say.
static bool take_events(struct order *o) {
  struct revocation *x = o->result;
  x->leases = calloc(o->transitions.n, sizeof *x->leases);
  if (x->leases == NULL)
    return false;
  for (size_t i = 0; i < o->transitions.n; i++) {
    const struct transition *event = &o->transitions.list[i];
    if (event->kind != EVENT_MEMBERSHIP_REVOKED)
      continue;
    char *event_id = strdup(event->event_id);
    if (event_id == NULL)
      return false;
    if (event->key.session_id == NULL) {
      x->event_id = event_id;
      continue;
    }
    struct revoked_lease *lease = &x->leases[x->n_leases++];
    *lease = (struct revoked_lease){
        .session_id = strdup(event->key.session_id), .event_id = event_id, .revision = event->lease_revision};
    if (lease->session_id == NULL)
      return false;
  }
  return true;
}

/// Ends the leases that the second look has in @a r.
static enum db_status end_leases(struct db *db, struct order *o, const struct db_params *p, const PGresult *r, int n) {
  if (!add_all(o, r, n))
    return DB_FAILED;
  enum db_status status = n > 0 ? db_run(db, &delete_stmt, p, NULL) : DB_OK;
  if (status == DB_OK)
    status = transitions_write(db, o->offline_grace_ms, &o->transitions, o->written);
  if (status == DB_OK && !take_events(o))
    status = DB_FAILED;
  return status;
}

/// Looks for leases again, under the row of the room, and ends them.
static enum db_status end_all(struct db *db, struct order *o, const struct db_params *p) {
  PGresult *r = NULL;
  enum db_status status = db_run(db, &again_stmt, p, &r);
  if (status != DB_OK)
    return status;
  int n = PQntuples(r) - 1; // the last row has their number
  // Somebody holds a newer lease, or there was none and so the user's last-seen is not locked: all of it once more.
  if (n < db_int8(r, n, COL_REVISION) || (n > 0 && o->n_first == 0))
    status = DB_RETRY;
  else
    status = end_leases(db, o, p, r, n);
  PQclear(r);
  return status;
}

static enum db_status revoke_work(struct db *db, void *ctx) {
  struct order *o = ctx;
  written_clear(o->written);
  revocation_clear(o->result);
  struct db_params p = {0};
  db_p_text(&p, o->room_id);
  db_p_text(&p, o->user_id);
  bool changed = false;
  enum db_status status = lock_leases(db, o, &p);
  if (status == DB_OK)
    status = write_member(db, o, &p, &changed);
  o->result->applied = changed || o->n_first > 0;
  if (status == DB_OK && o->result->applied) {
    status = db_run(db, &seen_stmt, &p, NULL);
    if (status == DB_OK)
      status = room_lock(db, o->room_id);
    if (status == DB_OK)
      status = end_all(db, o, &p);
  }
  transitions_free(&o->transitions);
  db_params_clear(&p);
  return status;
}

enum db_status store_revoke(struct db *db, const char *room_id, const char *user_id, const char *request_id,
                            int64_t offline_grace_ms, struct revocation *result, struct written *written) {
  struct order o = {.room_id = room_id,
                    .user_id = user_id,
                    .request_id = request_id,
                    .offline_grace_ms = offline_grace_ms,
                    .result = result,
                    .written = written};
  enum db_status status = db_transaction(db, revoke_work, &o);
  if (status != DB_OK) {
    written_clear(written);
    revocation_clear(result);
  }
  return status;
}
