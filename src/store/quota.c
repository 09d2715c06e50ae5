// SPDX-License-Identifier: Apache-2.0
#include "store/quota.h"

#include <stdlib.h>
#include <string.h>

// Sorted by what is locked, so that two transactions never take theirs in opposite orders. Two names with the same hash
// share a lock, which costs them a moment and no more. The numbers are "shrm" and "shus" in ASCII.
#define LOCKS(space)                                                                                                   \
  "SELECT pg_advisory_xact_lock(" space ", q.h)"                                                                       \
  " FROM (SELECT DISTINCT hashtext(i) AS h FROM unnest($1::text[]) AS i ORDER BY h OFFSET 0) q"

// Each counts with a snapshot of its own, after the locks: what others have granted meanwhile is in it. room_id <> ''
// is always true and asks for the index by user (sql/0009-lease-user.sql).
#define COUNTS(column)                                                                                                 \
  "SELECT (SELECT count(*) FROM stillhere.lease l WHERE l." column                                                     \
  " = i.id AND l.room_id <> '' AND l.expires_at > clock_timestamp())"                                                  \
  " FROM unnest($1::text[]) WITH ORDINALITY AS i(id, n) ORDER BY i.n"

#define COUNTS_DISTRIBUTED(column)                                                                                     \
  "WITH c AS MATERIALIZED (SELECT l." column                                                                           \
  " AS id, count(*) AS n FROM stillhere.lease l JOIN unnest($1::text[]) AS i(id)"                                      \
  " ON l." column " = i.id WHERE l." column                                                                            \
  " = ANY($1::text[]) AND l.room_id <> '' AND l.expires_at > clock_timestamp() GROUP BY 1)"                            \
  " SELECT coalesce(c.n, 0) FROM unnest($1::text[]) WITH ORDINALITY AS i(id, n) LEFT JOIN c ON c.id = i.id"            \
  " ORDER BY i.n"

static const struct db_stmt rooms_lock_stmt = {.name = "quota_rooms_lock", .sql = LOCKS("1936224877")};
static const struct db_stmt users_lock_stmt = {.name = "quota_users_lock", .sql = LOCKS("1936225651")};
static const struct db_stmt rooms_count_stmt = {
    .name = "quota_rooms_count", .sql = COUNTS("room_id"), .distributed = COUNTS_DISTRIBUTED("room_id")};
static const struct db_stmt users_count_stmt = {
    .name = "quota_users_count", .sql = COUNTS("user_id"), .distributed = COUNTS_DISTRIBUTED("user_id")};

static const char *id_at(const void *counts, size_t i) {
  return ((const struct quota_count *)counts)[i].id;
}

static int by_id(const void *a, const void *b) {
  return strcmp(((const struct quota_count *)a)->id, ((const struct quota_count *)b)->id);
}

static struct quota_count *side_find(const struct quota_side *side, const char *id) {
  struct quota_count key = {.id = id};
  if (side->n == 0)
    return NULL;
  return bsearch(&key, side->counts, side->n, sizeof key, by_id);
}

/// Sorts, and keeps each once; what is equal is added up.
static void side_fold(struct quota_side *side) {
  size_t n = 0;
  qsort(side->counts, side->n, sizeof *side->counts, by_id);
  for (size_t i = 0; i < side->n; i++) {
    if (n > 0 && by_id(&side->counts[n - 1], &side->counts[i]) == 0)
      side->counts[n - 1].n += side->counts[i].n;
    else
      side->counts[n++] = side->counts[i];
  }
  side->n = n;
}

/// Notes whom the subjects are about, each less its provisional rows. @return false when memory ran out
static bool side_collect(struct quota_side *side, bool rooms, const struct subject *left, size_t n_left,
                         const struct subject *fresh, size_t n_fresh) {
  if (side->max == 0)
    return true;
  side->counts = calloc(n_left + n_fresh, sizeof *side->counts);
  if (side->counts == NULL)
    return false;
  for (size_t i = 0; i < n_left + n_fresh; i++) {
    const struct subject *s = i < n_left ? &left[i] : &fresh[i - n_left];
    const struct lease_key *key = &s->op->key;
    if (i >= n_left || s->facts.state == LEASE_EXPIRED)
      side->counts[side->n++] = (struct quota_count){rooms ? key->room_id : key->user_id, i < n_left ? 0 : -1};
  }
  side_fold(side);
  return true;
}

static void side_take(struct quota_side *side, const PGresult *r) {
  for (size_t i = 0; i < side->n && i < (size_t)PQntuples(r); i++)
    side->counts[i].n += db_int8(r, (int)i, 0);
}

/// All locks first, then the counts. One round trip.
static enum db_status lock_and_count(struct db *db, struct quota *q) {
  struct db_params rooms = {0}, users = {0};
  struct db_step locks[2], steps[4];
  struct quota_side *sides[2];
  int n = 0;
  if (q->rooms.n > 0) {
    db_p_text_array(&rooms, q->rooms.n, id_at, q->rooms.counts);
    sides[n] = &q->rooms;
    steps[n] = (struct db_step){&rooms_count_stmt, &rooms};
    locks[n++] = (struct db_step){&rooms_lock_stmt, &rooms};
  }
  if (q->users.n > 0) {
    db_p_text_array(&users, q->users.n, id_at, q->users.counts);
    sides[n] = &q->users;
    steps[n] = (struct db_step){&users_count_stmt, &users};
    locks[n++] = (struct db_step){&users_lock_stmt, &users};
  }
  memmove(steps + n, steps, (size_t)n * sizeof *steps);
  memcpy(steps, locks, (size_t)n * sizeof *steps);
  PGresult *results[4] = {0};
  enum db_status status = db_pipeline(db, steps, n * 2, results);
  for (int i = 0; i < n * 2; i++) {
    if (status == DB_OK && i >= n)
      side_take(sides[i - n], results[i]);
    PQclear(results[i]);
  }
  db_params_clear(&rooms);
  db_params_clear(&users);
  return status;
}

enum db_status quota_read(struct db *db, struct quota *quota, int64_t max_per_room, int64_t max_per_user,
                          const struct subject *left, size_t n_left, const struct subject *fresh, size_t n_fresh) {
  *quota = (struct quota){.rooms.max = max_per_room, .users.max = max_per_user};
  if (!side_collect(&quota->rooms, true, left, n_left, fresh, n_fresh) ||
      !side_collect(&quota->users, false, left, n_left, fresh, n_fresh))
    return DB_FAILED;
  return quota->rooms.n + quota->users.n > 0 ? lock_and_count(db, quota) : DB_OK;
}

static bool side_full(const struct quota_side *side, const char *id) {
  const struct quota_count *count = side_find(side, id);
  return count != NULL && count->n >= side->max;
}

enum quota_room quota_look(const struct quota *quota, const struct lease_key *key) {
  if (side_full(&quota->users, key->user_id))
    return QUOTA_USER_FULL;
  return side_full(&quota->rooms, key->room_id) ? QUOTA_ROOM_FULL : QUOTA_FREE;
}

static void side_add(struct quota_side *side, const char *id) {
  struct quota_count *count = side_find(side, id);
  if (count != NULL)
    count->n++;
}

void quota_take(struct quota *quota, const struct lease_key *key) {
  side_add(&quota->rooms, key->room_id);
  side_add(&quota->users, key->user_id);
}

void quota_free(struct quota *quota) {
  free(quota->rooms.counts);
  free(quota->users.counts);
  *quota = (struct quota){0};
}
