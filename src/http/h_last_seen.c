// SPDX-License-Identifier: Apache-2.0
// GET /users/{user}/presence, GET /last-seen and GET /rooms/{room}/last-seen (CONTRACT §5).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strict.h"
#include "http/access.h"
#include "http/handlers.h"
#include "http/json_read.h"
#include "store/read.h"

#define LIST_DEFAULT 100
#define LIST_MAX 1000

static enum db_status query_user(struct db *db, const void *args, struct buf *out) {
  return read_user_presence(db, args, out);
}

enum request_verdict h_user_presence_get(struct request *r) {
  return json_read(r, query_user, strdup(r->params[0]));
}

/// The ids that were asked for; their bytes lie behind the pointers.
struct users_args {
  size_t n;
  const char *ids[];
};

static enum db_status query_users(struct db *db, const void *args, struct buf *out) {
  const struct users_args *users = args;
  return read_last_seen(db, users->ids, users->n, out);
}

enum request_verdict h_last_seen_get(struct request *r) {
  if (r->n_repeated == 0) {
    request_problem(r, 400, "bad_parameter", "user_id", "user_id is missing: ?user_id=a&user_id=b, up to %d times",
                    REPEATED_MAX);
    return REQUEST_DONE;
  }
  size_t bytes = 0;
  for (size_t i = 0; i < r->n_repeated; i++) {
    size_t len = strlen(r->repeated[i]);
    const char *problem = ident_problem(r->repeated[i], len);
    if (problem != NULL) {
      request_problem(r, 400, "bad_parameter", "user_id", "user_id %s", problem);
      return REQUEST_DONE;
    }
    const struct refusal *refusal = access_user(r, r->repeated[i]);
    if (refusal != NULL) {
      request_refused(r, refusal);
      return REQUEST_DONE;
    }
    bytes += len + 1;
  }
  struct users_args *users = malloc(sizeof *users + r->n_repeated * sizeof users->ids[0] + bytes);
  if (users != NULL) {
    users->n = r->n_repeated;
    char *at = (char *)&users->ids[users->n];
    for (size_t i = 0; i < users->n; i++) {
      size_t size = strlen(r->repeated[i]) + 1;
      users->ids[i] = memcpy(at, r->repeated[i], size);
      at += size;
    }
  }
  return json_read(r, query_users, users);
}

struct room_args {
  int limit;
  bool from_start;
  struct seen_cursor after;
  char room_id[IDENT_MAX + 1];
};

static enum db_status query_room(struct db *db, const void *args, struct buf *out) {
  const struct room_args *room = args;
  return read_room_last_seen(db, room->room_id, room->from_start ? NULL : &room->after, room->limit, out);
}

enum request_verdict h_room_last_seen_get(struct request *r) {
  const char *limit_text = request_query(r, "limit"), *after = request_query(r, "after");
  int64_t limit = LIST_DEFAULT;
  struct seen_cursor cursor = {0};
  if (limit_text != NULL && !strict_int(limit_text, strlen(limit_text), 1, LIST_MAX, &limit)) {
    request_problem(r, 400, "bad_parameter", "limit", "limit must be between 1 and %d", LIST_MAX);
    return REQUEST_DONE;
  }
  if (after != NULL && !seen_cursor_parse(after, &cursor)) {
    request_problem(r, 400, "bad_parameter", "after", "after must be the next of an earlier page");
    return REQUEST_DONE;
  }
  struct room_args *room = calloc(1, sizeof *room);
  if (room != NULL) {
    room->limit = (int)limit;
    room->from_start = after == NULL;
    room->after = cursor;
    (void)snprintf(room->room_id, sizeof room->room_id, "%s", r->params[0]);
  }
  return json_read(r, query_room, room);
}
