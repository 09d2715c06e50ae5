// SPDX-License-Identifier: Apache-2.0
#include "store/last_seen.h"

#include <stdlib.h>
#include <string.h>

// Rows are locked in the order of the arrays, which are sorted. What is as new already is not written at all.
static const struct db_stmt users_stmt = {
    .name = "last_seen_users",
    .sql = "INSERT INTO stillhere.user_last_seen AS s (user_id, last_seen_at)"
           " SELECT i.user_id, timestamptz 'epoch' + i.seen_us * interval '1 microsecond'"
           " FROM unnest($1::text[], $2::int8[]) AS i(user_id, seen_us)"
           " ON CONFLICT (user_id) DO UPDATE SET last_seen_at = excluded.last_seen_at"
           " WHERE s.last_seen_at < excluded.last_seen_at",
};

static const struct db_stmt rooms_stmt = {
    .name = "last_seen_rooms",
    .sql = "INSERT INTO stillhere.room_last_seen AS s (room_id, user_id, last_seen_at)"
           " SELECT i.room_id, i.user_id, timestamptz 'epoch' + i.seen_us * interval '1 microsecond'"
           " FROM unnest($1::text[], $2::text[], $3::int8[]) AS i(room_id, user_id, seen_us)"
           " ON CONFLICT (room_id, user_id) DO UPDATE SET last_seen_at = excluded.last_seen_at"
           " WHERE s.last_seen_at < excluded.last_seen_at",
};

int sighting_compare(const void *a, const void *b) {
  const struct sighting *x = a, *y = b;
  int d = strcmp(x->user_id, y->user_id);
  return d != 0 ? d : strcmp(x->room_id, y->room_id);
}

static int compare_by_room(const void *a, const void *b) {
  const struct sighting *x = a, *y = b;
  int d = strcmp(x->room_id, y->room_id);
  return d != 0 ? d : strcmp(x->user_id, y->user_id);
}

static const char *s_room(const void *list, size_t i) {
  return ((const struct sighting *)list)[i].room_id;
}
static const char *s_user(const void *list, size_t i) {
  return ((const struct sighting *)list)[i].user_id;
}
static int64_t s_seen(const void *list, size_t i) {
  return ((const struct sighting *)list)[i].seen_us;
}

struct batch {
  struct sighting *users, *rooms;
  size_t n_users, n_rooms;
};

/// Each user once, with the newest time in any room.
static void fold_users(struct batch *b, const struct sighting *list, size_t n) {
  for (size_t i = 0; i < n; i++) {
    struct sighting *last = b->n_users > 0 ? &b->users[b->n_users - 1] : NULL;
    if (last == NULL || strcmp(last->user_id, list[i].user_id) != 0) {
      b->users[b->n_users++] = list[i];
    } else if (last->seen_us < list[i].seen_us) {
      last->seen_us = list[i].seen_us;
    }
  }
}

static enum db_status work(struct db *db, void *ctx) {
  const struct batch *b = ctx;
  struct db_params users = {0}, rooms = {0};
  db_p_text_array(&users, b->n_users, s_user, b->users);
  db_p_int8_array(&users, b->n_users, s_seen, b->users);
  db_p_text_array(&rooms, b->n_rooms, s_room, b->rooms);
  db_p_text_array(&rooms, b->n_rooms, s_user, b->rooms);
  db_p_int8_array(&rooms, b->n_rooms, s_seen, b->rooms);
  struct db_step steps[] = {{&users_stmt, &users}, {&rooms_stmt, &rooms}};
  PGresult *results[2] = {0};
  enum db_status status = db_pipeline(db, steps, 2, results);
  PQclear(results[0]);
  PQclear(results[1]);
  db_params_clear(&users);
  db_params_clear(&rooms);
  return status;
}

enum db_status last_seen_write(struct db *db, const struct sighting *list, size_t n) {
  if (n == 0) {
    return DB_OK;
  }
  struct batch b = {.users = calloc(n, sizeof *b.users), .rooms = calloc(n, sizeof *b.rooms), .n_rooms = n};
  enum db_status status = DB_FAILED;
  if (b.users != NULL && b.rooms != NULL) {
    fold_users(&b, list, n);
    memcpy(b.rooms, list, n * sizeof *list);
    qsort(b.rooms, n, sizeof *b.rooms, compare_by_room);
    status = db_transaction(db, work, &b);
  }
  free(b.users);
  free(b.rooms);
  return status;
}
