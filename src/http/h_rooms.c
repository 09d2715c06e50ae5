// SPDX-License-Identifier: Apache-2.0
// GET /rooms and GET /rooms/{room}/leases: lists for dashboards, read from the database each time.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "base/strict.h"
#include "http/handlers.h"
#include "http/request_read.h"
#include "http/worker.h"
#include "store/read.h"

#define LIST_DEFAULT 100
#define LIST_MAX 1000

// How long a list may take from the request's arrival on.
#define LIST_US INT64_C(4500000)

struct list_read {
  struct request_read read;
  int limit;
  struct buf text; // result
  char room_id[IDENT_MAX + 1];
  char prefix[IDENT_MAX + 1], after[IDENT_MAX + 1];
};

static void list_free(struct request_read *base) {
  struct list_read *list = CONTAINER_OF(base, struct list_read, read);
  buf_free(&list->text);
  free(list);
}

static enum db_status run_leases(struct db *db, struct read_job *job) {
  struct list_read *list = CONTAINER_OF(job, struct list_read, read.job);
  buf_reset(&list->text);
  return read_leases(db, list->room_id, &list->text);
}

static enum db_status run_rooms(struct db *db, struct read_job *job) {
  struct list_read *list = CONTAINER_OF(job, struct list_read, read.job);
  buf_reset(&list->text);
  return read_room_list(db, list->prefix, list->after, list->limit, &list->text);
}

static void drop_state(void *state) {
  struct list_read *list = state;
  request_read_drop(&list->read);
}

static int64_t deadline_of(const struct request *r) {
  return r->arrived_us + LIST_US;
}

static enum request_verdict list_resumed(struct request *r, enum wake_reason reason) {
  (void)reason; // a client that half-closed its side still gets its list
  struct list_read *list = r->state;
  if (!list->read.done && clock_mono_us() < deadline_of(r)) {
    request_park(r, deadline_of(r), list_resumed);
    return REQUEST_PARKED;
  }
  if (!list->read.done || list->read.job.status != DB_OK) {
    r->state = NULL;
    request_read_drop(&list->read);
    request_unavailable(r, "the list could not be read in time; try again");
    return REQUEST_DONE;
  }
  jo_ktime(&list->text, "server_time", clock_db_us());
  jo_object_end(&list->text);
  request_reply_json(r, 200, &list->text, NULL);
  return REQUEST_DONE;
}

static struct list_read *list_new(struct request *r, enum db_status (*run)(struct db *db, struct read_job *job)) {
  struct list_read *list = calloc(1, sizeof *list);
  if (!list) {
    request_unavailable(r, "out of memory; try again");
    return NULL;
  }
  list->read.job.run = run;
  list->read.free = list_free;
  return list;
}

static enum request_verdict list_start(struct request *r, struct list_read *list) {
  if (!request_read_submit(&list->read, r, deadline_of(r))) {
    request_unavailable(r, "too many requests read the database at once; try again");
    return REQUEST_DONE;
  }
  r->state = list;
  r->free_state = drop_state;
  request_park(r, deadline_of(r), list_resumed);
  return REQUEST_PARKED;
}

enum request_verdict h_leases_get(struct request *r) {
  struct list_read *list = list_new(r, run_leases);
  if (!list)
    return REQUEST_DONE;
  snprintf(list->room_id, sizeof list->room_id, "%s", r->params[0]);
  return list_start(r, list);
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
  struct list_read *list = list_new(r, run_rooms);
  if (!list)
    return REQUEST_DONE;
  list->limit = (int)limit;
  snprintf(list->prefix, sizeof list->prefix, "%s", prefix ? prefix : "");
  snprintf(list->after, sizeof list->after, "%s", after ? after : "");
  return list_start(r, list);
}
