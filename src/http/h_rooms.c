// SPDX-License-Identifier: Apache-2.0
// GET /rooms and GET /rooms/{room}/leases: lists for dashboards, read from the database each time.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "base/strict.h"
#include "http/access.h"
#include "http/handlers.h"
#include "http/json_read.h"
#include "store/read.h"

#define LIST_DEFAULT 100
#define LIST_MAX 1000

struct list_args {
  int limit;
  char room_id[IDENT_MAX + 1];
  char prefix[IDENT_MAX + 1], after[IDENT_MAX + 1];
};

static void end(struct buf *out) {
  jo_ktime(out, "server_time", clock_db_us());
  jo_object_end(out);
}

static enum db_status query_leases(struct db *db, const void *args, struct buf *out) {
  const struct list_args *list = args;
  enum db_status status = read_leases(db, list->room_id, out);
  end(out);
  return status;
}

static enum db_status query_rooms(struct db *db, const void *args, struct buf *out) {
  const struct list_args *list = args;
  enum db_status status = read_room_list(db, list->prefix, list->after, list->limit, out);
  end(out);
  return status;
}

enum request_verdict h_leases_get(struct request *r) {
  struct list_args *list = calloc(1, sizeof *list);
  if (list)
    (void)snprintf(list->room_id, sizeof list->room_id, "%s", r->params[0]);
  return json_read(r, query_leases, list);
}

// The beginning of an identifier: like one, but `.` and `..` and nothing at all are fine.
static const char *prefix_problem(const char *s) {
  bool dots = strspn(s, ".") == strlen(s) && strlen(s) <= 2;
  return dots ? NULL : ident_problem(s, strlen(s));
}

enum request_verdict h_rooms_get(struct request *r) {
  const char *prefix = request_query(r, "prefix"), *after = request_query(r, "after");
  const char *limit_text = request_query(r, "limit");
  int64_t limit = LIST_DEFAULT;
  const char *problem;
  if (prefix && (problem = prefix_problem(prefix)) != NULL) {
    request_problem(r, 400, "bad_parameter", "prefix", "prefix %s", problem);
    return REQUEST_DONE;
  }
  if (after && (problem = ident_problem(after, strlen(after))) != NULL) {
    request_problem(r, 400, "bad_parameter", "after", "after %s", problem);
    return REQUEST_DONE;
  }
  if (limit_text && !strict_int(limit_text, strlen(limit_text), 1, LIST_MAX, &limit)) {
    request_problem(r, 400, "bad_parameter", "limit", "limit must be between 1 and %d", LIST_MAX);
    return REQUEST_DONE;
  }
  const struct refusal *refusal = access_rooms(r, prefix ? prefix : "");
  if (refusal) {
    request_refused(r, refusal);
    return REQUEST_DONE;
  }
  struct list_args *list = calloc(1, sizeof *list);
  if (list) {
    list->limit = (int)limit;
    (void)snprintf(list->prefix, sizeof list->prefix, "%s", prefix ? prefix : "");
    (void)snprintf(list->after, sizeof list->after, "%s", after ? after : "");
  }
  return json_read(r, query_rooms, list);
}
