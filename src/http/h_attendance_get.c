// SPDX-License-Identifier: Apache-2.0
// GET /rooms/{room}/attendance: the record, in pages of JSON or for export (CONTRACT §6).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "base/strict.h"
#include "http/accept.h"
#include "http/change.h"
#include "http/handlers.h"
#include "store/attendance.h"

#define LIST_DEFAULT 100
#define LIST_MAX 1000

struct attendance_page {
  struct change change;
  char room_id[IDENT_MAX + 1], user_id[IDENT_MAX + 1]; ///< user_id empty: everybody's
  int64_t after;
  int limit;
  enum attendance_format format;
  struct buf text;
};

static struct attendance_page *page_of(struct change *c) {
  return CONTAINER_OF(c, struct attendance_page, change);
}

static void page_free(struct change *c) {
  buf_free(&page_of(c)->text);
  free(page_of(c));
}

static enum db_status run(struct db *db, struct change *c) {
  struct attendance_page *page = page_of(c);
  buf_reset(&page->text);
  return read_attendance(db, page->room_id, page->user_id[0] != '\0' ? page->user_id : NULL, page->after, page->limit,
                         page->format, &page->text);
}

static void answer(struct request *r, struct change *c) {
  static const char *const types[] = {[ATTENDANCE_JSON] = "application/json",
                                      [ATTENDANCE_JSONL] = "application/x-ndjson",
                                      [ATTENDANCE_CSV] = "text/csv; charset=utf-8; header=present"};
  struct attendance_page *page = page_of(c);
  const struct reply_headers headers = {.content_type = types[page->format]};
  if (page->format == ATTENDANCE_JSON) {
    jo_ktime(&page->text, "server_time", clock_db_us());
    jo_object_end(&page->text);
  }
  (void)buf_reserve(&page->text, 0); // a page without rows is an empty text, not none
  request_reply_json(r, 200, &page->text, &headers);
}

/// The form that is asked for, by name or by what the client accepts. @return false when there is no such form
static bool find_format(const struct request *r, enum attendance_format *format) {
  static const struct {
    const char *name, *type;
    enum attendance_format format;
  } forms[] = {{"json", "application/json", ATTENDANCE_JSON},
               {"jsonl", "application/x-ndjson", ATTENDANCE_JSONL},
               {"csv", "text/csv", ATTENDANCE_CSV}};
  const char *name = request_query(r, "format");
  *format = ATTENDANCE_JSON;
  if (name == NULL) {
    struct buf accept = {0};
    request_header_list(r, MHD_HTTP_HEADER_ACCEPT, &accept);
    int best = 0;
    for (size_t i = 0; i < ARRAY_LEN(forms) && !accept.failed; i++) {
      int weight = accept_weight(accept.data, forms[i].type);
      *format = weight > best ? forms[i].format : *format;
      best = weight > best ? weight : best;
    }
    buf_free(&accept);
    return true;
  }
  for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
    if (strcmp(name, forms[i].name) == 0) {
      *format = forms[i].format;
      return true;
    }
  }
  return false;
}

/// Reads the query. @return false when refused
static bool read_query(struct request *r, struct attendance_page *page) {
  const char *limit_text = request_query(r, "limit"), *after = request_query(r, "after");
  const char *user_id = request_query(r, "user_id"), *problem;
  int64_t limit = LIST_DEFAULT;
  if (after != NULL && !strict_int(after, strlen(after), 0, REVISION_MAX, &page->after)) {
    request_problem(r, 400, "bad_parameter", "after", "after must be an id, in plain digits");
    return false;
  }
  if (limit_text != NULL && !strict_int(limit_text, strlen(limit_text), 1, LIST_MAX, &limit)) {
    request_problem(r, 400, "bad_parameter", "limit", "limit must be between 1 and %d", LIST_MAX);
    return false;
  }
  if (user_id != NULL && (problem = ident_problem(user_id, strlen(user_id))) != NULL) {
    request_problem(r, 400, "bad_parameter", "user_id", "user_id %s", problem);
    return false;
  }
  if (!find_format(r, &page->format)) {
    request_problem(r, 400, "bad_parameter", "format", "format must be json, jsonl or csv");
    return false;
  }
  page->limit = (int)limit;
  (void)snprintf(page->room_id, sizeof page->room_id, "%s", r->params[0]);
  (void)snprintf(page->user_id, sizeof page->user_id, "%s", user_id != NULL ? user_id : "");
  return true;
}

enum request_verdict h_attendance_get(struct request *r) {
  struct attendance_page *page = calloc(1, sizeof *page);
  if (page == NULL)
    return change_start(NULL, r, NULL);
  page->change.run = run;
  page->change.answer = answer;
  page->change.free = page_free;
  if (!read_query(r, page)) {
    page_free(&page->change);
    return REQUEST_DONE;
  }
  return change_start(&page->change, r, r->worker->service->readers);
}
