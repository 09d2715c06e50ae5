// SPDX-License-Identifier: Apache-2.0
#include "store/subject.h"

#include <stdlib.h>
#include <string.h>

#include "store/pulse.h"
#include "store/renew.h"

/// Longer than it takes to write an outage down, however busy the database is then. What is judged twice is right as
/// well.
#define FOUND_BEFORE_MS 60000

// Locks rows by key in the order of the arrays, which are sorted. LATERAL with a lock in it has one plan, a lookup for
// each key, also where the statistics say that the table is empty and to go through all of it would be as cheap.
#define LOCKED(table, alias)                                                                                           \
  " FROM unnest($1::text[], $2::text[], $3::text[]) AS i(room_id, user_id, session_id)"                                \
  " CROSS JOIN LATERAL (SELECT * FROM stillhere." table                                                                \
  " WHERE room_id = i.room_id AND user_id = i.user_id AND session_id = i.session_id FOR UPDATE) " alias

// The same where the tables are distributed: an UPDATE that changes nothing locks, and what is done with the rows is
// done with them locked. They are in no order, so two batches may meet crosswise, which Citus finds out.
#define HELD(table, columns)                                                                                                                  \
  "WITH l AS MATERIALIZED (UPDATE stillhere." table " AS l SET revision = l.revision"                                                         \
  " FROM unnest($1::text[], $2::text[], $3::text[]) AS i(room_id, user_id, session_id)"                                                       \
  " WHERE l.room_id = i.room_id AND l.user_id = i.user_id AND l.session_id = i.session_id AND l.room_id = ANY($1::text[]) RETURNING " columns \
  ") "
#define IN_ORDER " ORDER BY l.room_id COLLATE \"C\", l.user_id COLLATE \"C\", l.session_id COLLATE \"C\""

// Deletes rows by key; an equality with an array of one for a lookup of each as well (renew_plain.c).
#define KEYS_USING(alias, room)                                                                                        \
  " USING unnest($1::text[], $2::text[], $3::text[]) AS i(room_id, user_id, session_id)"                               \
  " WHERE " alias ".room_id = " room " AND " alias ".user_id = i.user_id AND " alias ".session_id = i.session_id"

static const struct db_stmt leases_stmt = {
    .name = "leases_lock",
    .sql = "SELECT " LEASE_COLUMNS_ENDING(CREDITED_END) ", " CREDITED_END " <= clock_timestamp()" LOCKED("lease", "l"),
    .distributed = HELD("lease", LEASE_COLUMNS) "SELECT " LEASE_COLUMNS_ENDING(
        CREDITED_END) ", " CREDITED_END " <= clock_timestamp() FROM l" IN_ORDER,
};

static const struct db_stmt tombstones_stmt = {
    .name = "tombstones_lock",
    .sql = "SELECT t.room_id, t.user_id, t.session_id, t.revision, t.reason, t.event_id" LOCKED("tombstone", "t"),
    .distributed = HELD(
        "tombstone",
        "l.room_id, l.user_id, l.session_id, l.revision, l.reason, l.event_id") "SELECT room_id, user_id, session_id, revision, reason, event_id FROM l" IN_ORDER,
};

// Where the tables are distributed nothing is locked: who is granted a lease is looked at again under the row of the
// room (transition_sql.c), and so is what a revocation finds.
static const struct db_stmt members_stmt = {
    .name = "members_lock",
    .sql = "SELECT m.* FROM (SELECT DISTINCT u.room_id COLLATE \"C\", u.user_id COLLATE \"C\""
           " FROM unnest($1::text[], $2::text[]) AS u(room_id, user_id) ORDER BY 1, 2) AS i(room_id, user_id)"
           " CROSS JOIN LATERAL (SELECT m.room_id, m.user_id, m.revoked_at IS NOT NULL FROM stillhere.member m"
           " WHERE m.room_id = i.room_id AND m.user_id = i.user_id FOR SHARE) m ORDER BY m.room_id, m.user_id",
    .distributed =
        "SELECT DISTINCT m.room_id, m.user_id, m.revoked_at IS NOT NULL FROM stillhere.member m"
        " JOIN unnest($1::text[], $2::text[]) AS i(room_id, user_id)"
        " ON m.room_id = i.room_id AND m.user_id = i.user_id WHERE m.room_id = ANY($1::text[]) ORDER BY m.room_id, m.user_id",
};

const struct db_stmt leases_delete_stmt = {
    .name = "leases_delete",
    .sql = "DELETE FROM stillhere.lease l" KEYS_USING("l", "ANY (ARRAY[i.room_id])"),
    .distributed = "DELETE FROM stillhere.lease l" KEYS_USING("l", "i.room_id") " AND l.room_id = ANY($1::text[])",
};

const struct db_stmt tombstones_delete_stmt = {
    .name = "tombstones_delete",
    .sql = "DELETE FROM stillhere.tombstone t" KEYS_USING("t", "ANY (ARRAY[i.room_id])"),
    .distributed = "DELETE FROM stillhere.tombstone t" KEYS_USING("t", "i.room_id") " AND t.room_id = ANY($1::text[])",
};

void subjects_free(struct subject *subjects, size_t n) {
  for (size_t i = 0; subjects != NULL && i < n; i++) {
    free(subjects[i].event_id);
  }
  free(subjects);
}

static const char *at_room(const void *subjects, size_t i) {
  return ((const struct subject *)subjects)[i].op->key.room_id;
}

static const char *at_user(const void *subjects, size_t i) {
  return ((const struct subject *)subjects)[i].op->key.user_id;
}

static const char *at_session(const void *subjects, size_t i) {
  return ((const struct subject *)subjects)[i].op->key.session_id;
}

void subjects_key_params(struct db_params *p, const struct subject *subjects, size_t n) {
  db_p_text_array(p, n, at_room, subjects);
  db_p_text_array(p, n, at_user, subjects);
  db_p_text_array(p, n, at_session, subjects);
}

/// The subject that a row (its first three columns) is about, searching on from *from. Both are sorted.
static struct subject *row_subject(struct subject *subjects, size_t n, size_t *from, const PGresult *r, int row) {
  struct lease_key key = {db_text(r, row, 0), db_text(r, row, 1), db_text(r, row, 2)};
  while (*from < n && lease_key_compare(&subjects[*from].op->key, &key) < 0) {
    (*from)++;
  }
  bool found = *from < n && lease_key_compare(&subjects[*from].op->key, &key) == 0;
  return found ? &subjects[*from] : NULL;
}

/// Runs a statement whose parameters are the keys. @return its result or NULL, with *status set
static PGresult *run_keys(struct db *db, const struct db_stmt *stmt, const struct subject *subjects, size_t n,
                          enum db_status *status) {
  struct db_params p = {0};
  PGresult *r = NULL;
  subjects_key_params(&p, subjects, n);
  *status = db_run(db, stmt, &p, &r);
  db_params_clear(&p);
  return r;
}

/// @param[out] expired whether there is a lease that is over
static enum db_status lock_leases(struct db *db, struct subject *subjects, size_t n, bool *expired) {
  enum db_status status;
  PGresult *r = run_keys(db, &leases_stmt, subjects, n, &status);
  size_t from = 0;
  for (int row = 0; status == DB_OK && row < PQntuples(r); row++) {
    struct subject *s = row_subject(subjects, n, &from, r, row);
    if (s == NULL || !lease_from_row(s->op, r, row)) {
      status = DB_FAILED;
      break;
    }
    s->has_row = true;
    s->facts.state = db_bool(r, row, LEASE_COLUMN_COUNT) ? LEASE_EXPIRED : LEASE_LIVE;
    s->facts.revision = s->op->lease.revision;
    *expired = *expired || s->facts.state == LEASE_EXPIRED;
  }
  PQclear(r);
  return status;
}

enum db_status subjects_lock_leases(struct db *db, struct subject *subjects, size_t n, int64_t silence_ms) {
  bool expired = false, doubt = false;
  enum db_status status = lock_leases(db, subjects, n, &expired);
  // After an outage the first heartbeats may be here before the sweeper.
  if (status == DB_OK && expired && silence_ms > 0) {
    status = pulse_doubt(db, silence_ms, FOUND_BEFORE_MS, &doubt);
  }
  if (status == DB_OK && doubt) {
    status = pulse_settle(db, silence_ms);
    if (status == DB_OK) {
      status = lock_leases(db, subjects, n, &expired);
    }
  }
  return status;
}

static enum lease_state state_of_reason(const char *reason) {
  if (strcmp(reason, "closed") == 0) {
    return LEASE_CLOSED;
  }
  return strcmp(reason, "revoked") == 0 ? LEASE_REVOKED : LEASE_EXPIRED;
}

enum db_status subjects_lock_tombstones(struct db *db, struct subject *subjects, size_t n) {
  enum db_status status;
  PGresult *r = run_keys(db, &tombstones_stmt, subjects, n, &status);
  size_t from = 0;
  for (int row = 0; status == DB_OK && row < PQntuples(r); row++) {
    struct subject *s = row_subject(subjects, n, &from, r, row);
    if (s == NULL || (s->event_id = strdup(db_text(r, row, 5))) == NULL) {
      status = DB_FAILED;
      break;
    }
    s->has_tombstone = true;
    if (s->facts.state == LEASE_UNKNOWN) {
      s->facts.state = state_of_reason(db_text(r, row, 4));
      s->facts.revision = db_int8(r, row, 3);
    }
  }
  PQclear(r);
  return status;
}

enum db_status subjects_lock_members(struct db *db, struct subject *subjects, size_t n) {
  struct db_params p = {0};
  PGresult *r = NULL;
  db_p_text_array(&p, n, at_room, subjects);
  db_p_text_array(&p, n, at_user, subjects);
  enum db_status status = db_run(db, &members_stmt, &p, &r);
  db_params_clear(&p);
  size_t from = 0;
  for (int row = 0; status == DB_OK && row < PQntuples(r); row++) {
    enum member_state state = db_bool(r, row, 2) ? MEMBER_REVOKED : MEMBER_ACTIVE;
    // A user may have several sessions in the batch; they stand side by side.
    for (; from < n; from++) {
      int d = strcmp(at_room(subjects, from), db_text(r, row, 0));
      d = d != 0 ? d : strcmp(at_user(subjects, from), db_text(r, row, 1));
      if (d > 0) {
        break;
      }
      if (d == 0) {
        subjects[from].facts.member = state;
      }
    }
  }
  PQclear(r);
  return status;
}
