// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "store/event_json.h"
#include "store/read.h"

// The columns of an event as both statements below return them, from column FIRST on.
#define EVENT_COLUMNS                                                                                                  \
  "e.revision, e.kind, e.event_id, e.at, e.user_id, e.session_id, e.lease_revision, e.user_sessions, e.request_id, "   \
  "e.overdue_ms, e.meta::text AS meta"
#define EVENT_OUT                                                                                                      \
  "e.revision, e.kind, e.event_id, e.at, e.user_id, e.session_id, e.lease_revision, e.user_sessions, e.request_id, "   \
  "e.overdue_ms, e.meta"

enum {
  COL_INDEX,
  COL_HEAD,
  COL_PRUNED,
  COL_REVISION,
  COL_KIND,
  COL_EVENT_ID,
  COL_AT,
  COL_USER,
  COL_SESSION,
  COL_LEASE_REVISION,
  COL_USER_SESSIONS,
  COL_REQUEST_ID,
  COL_OVERDUE,
  COL_META,
  COL_REVOKED, // of rooms_stmt alone
  COL_REVOKED_COUNT
};

// One row for each event, or one row with a null event for a room that has none. The first row of a room has its
// revoked users, in lines, since no identifier has a line break. They are read once for each room.
static const struct db_stmt rooms_stmt = {
    .name = "read_rooms",
    .sql = "WITH q AS MATERIALIZED (SELECT u.i, u.room_id, u.after, m.users, m.n"
           " FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS u(room_id, after, i)"
           " CROSS JOIN LATERAL (SELECT string_agg(x.user_id, E'\\n' ORDER BY x.user_id) AS users, count(*) AS n"
           "   FROM (SELECT user_id FROM stillhere.member"
           "     WHERE room_id = u.room_id AND revoked_at IS NOT NULL ORDER BY revoked_at DESC LIMIT $4) x) m)"
           " SELECT q.i, coalesce(r.revision, 0), coalesce(r.pruned_revision, 0), " EVENT_OUT
           ", CASE WHEN row_number() OVER (PARTITION BY q.i ORDER BY e.revision) = 1 THEN q.users END, q.n"
           " FROM q"
           " LEFT JOIN stillhere.room r ON r.room_id = ANY (ARRAY[q.room_id])"
           " LEFT JOIN LATERAL (SELECT " EVENT_COLUMNS " FROM stillhere.event e"
           "   WHERE e.room_id = q.room_id AND e.revision > q.after ORDER BY e.revision DESC LIMIT $3) e ON true"
           " ORDER BY q.i, e.revision",
    // All of a room by one join on its node, for the moment; the rest is for rooms that are not there.
    .distributed =
        "WITH x AS MATERIALIZED (SELECT r.room_id, r.revision AS head, r.pruned_revision, m.users, m.n, " EVENT_OUT
        " FROM stillhere.room r JOIN unnest($1::text[]) AS q(room_id) ON r.room_id = q.room_id"
        "  AND r.room_id = ANY($1::text[])"
        " LEFT JOIN (SELECT e.room_id, row_number() OVER (PARTITION BY e.room_id ORDER BY e.revision DESC)"
        "   AS place, " EVENT_COLUMNS " FROM stillhere.event e"
        "   JOIN unnest($1::text[], $2::bigint[]) AS q(room_id, after)"
        "   ON e.room_id = q.room_id AND e.revision > q.after) e ON e.room_id = r.room_id AND e.place <= $3"
        " LEFT JOIN (SELECT x.room_id, string_agg(x.user_id, E'\\n' ORDER BY x.user_id) AS users, count(*) AS n"
        "   FROM (SELECT p.room_id, p.user_id, row_number() OVER (PARTITION BY p.room_id ORDER BY p.revoked_at DESC)"
        "     AS place FROM stillhere.member p JOIN unnest($1::text[]) AS q(room_id) ON p.room_id = q.room_id"
        "     WHERE p.revoked_at IS NOT NULL) x WHERE x.place <= $4 GROUP BY x.room_id) m ON m.room_id = r.room_id)"
        " SELECT q.i, coalesce(e.head, 0), coalesce(e.pruned_revision, 0), " EVENT_OUT
        ", CASE WHEN row_number() OVER (PARTITION BY q.i ORDER BY e.revision) = 1 THEN e.users END, coalesce(e.n, 0)"
        " FROM unnest($1::text[]) WITH ORDINALITY AS q(room_id, i) LEFT JOIN x e ON e.room_id = q.room_id"
        " ORDER BY q.i, e.revision"};

static const struct db_stmt events_stmt = {
    .name = "read_events",
    .sql = "SELECT 1::bigint, coalesce(r.revision, 0), coalesce(r.pruned_revision, 0), " EVENT_OUT
           " FROM (SELECT $1::text AS room_id) q"
           " LEFT JOIN stillhere.room r ON r.room_id = ANY (ARRAY[q.room_id])"
           " LEFT JOIN LATERAL (SELECT " EVENT_COLUMNS " FROM stillhere.event e"
           "   WHERE e.room_id = q.room_id AND e.revision > $2 AND e.kind = ANY($3::text[])"
           "   ORDER BY e.revision LIMIT $4) e ON true"
           " ORDER BY e.revision"};

static const struct db_stmt heads_stmt = {
    .name = "read_heads",
    .sql = "SELECT q.i, coalesce(r.revision, 0), coalesce(r.pruned_revision, 0)"
           " FROM unnest($1::text[]) WITH ORDINALITY AS q(room_id, i)"
           " LEFT JOIN stillhere.room r ON r.room_id = ANY (ARRAY[q.room_id])",
    .distributed = "WITH r AS MATERIALIZED (SELECT room_id, revision, pruned_revision FROM stillhere.room"
                   " WHERE room_id = ANY($1::text[]))"
                   " SELECT q.i, coalesce(r.revision, 0), coalesce(r.pruned_revision, 0)"
                   " FROM unnest($1::text[]) WITH ORDINALITY AS q(room_id, i) LEFT JOIN r ON r.room_id = q.room_id"};

void room_news_free(struct room_news *news, size_t n) {
  for (size_t i = 0; i < n; i++) {
    for (size_t k = 0; k < news[i].n_events; k++)
      event_clear(&news[i].events[k]);
    free(news[i].events);
    free(news[i].revoked);
    news[i] = (struct room_news){0};
  }
}

static const char *text_or_null(const PGresult *r, int row, int col) {
  return db_null(r, row, col) ? NULL : db_text(r, row, col);
}

static int64_t int_or_null(const PGresult *r, int row, int col) {
  return db_null(r, row, col) ? INT64_MIN : db_int8(r, row, col);
}

static bool event_from_row(const PGresult *r, int row, struct event *event) {
  int kind = event_kind_parse(db_text(r, row, COL_KIND));
  if (kind < 0) {
    log_error("an event has the unknown kind \"%s\"", db_text(r, row, COL_KIND));
    return false;
  }
  struct event_columns columns = {
      .event_id = db_text(r, row, COL_EVENT_ID),
      .revision = db_int8(r, row, COL_REVISION),
      .kind = (enum event_kind)kind,
      .at_us = db_time(r, row, COL_AT),
      .user_id = db_text(r, row, COL_USER),
      .session_id = text_or_null(r, row, COL_SESSION),
      .lease_revision = int_or_null(r, row, COL_LEASE_REVISION),
      .user_sessions = int_or_null(r, row, COL_USER_SESSIONS),
      .request_id = text_or_null(r, row, COL_REQUEST_ID),
      .overdue_ms = int_or_null(r, row, COL_OVERDUE),
      .meta = text_or_null(r, row, COL_META),
  };
  struct buf text = {0};
  event_json(&text, &columns);
  *event = (struct event){.revision = columns.revision, .kind = columns.kind, .json = buf_take(&text, NULL)};
  return event->json != NULL;
}

static bool revoked_from_row(const PGresult *r, int row, struct room_news *news) {
  if (PQnfields(r) <= COL_REVOKED || db_null(r, row, COL_REVOKED))
    return true;
  news->revoked = strdup(db_text(r, row, COL_REVOKED));
  news->revoked_cut = db_int8(r, row, COL_REVOKED_COUNT) > ROOM_REVOKED_MAX;
  return news->revoked != NULL;
}

// Fills one room from the rows from `row` on that belong to it. Returns the row after them, or -1 on failure.
static int news_from_rows(const PGresult *r, int row, struct room_news *news) {
  int64_t index = db_int8(r, row, COL_INDEX);
  int end = row + 1;
  while (end < PQntuples(r) && db_int8(r, end, COL_INDEX) == index)
    end++;
  news->head = db_int8(r, row, COL_HEAD);
  news->pruned = db_int8(r, row, COL_PRUNED);
  if (!revoked_from_row(r, row, news))
    return -1;
  if (db_null(r, row, COL_REVISION))
    return end;
  news->events = calloc((size_t)(end - row), sizeof *news->events);
  if (!news->events)
    return -1;
  for (; row < end; row++) {
    if (!event_from_row(r, row, &news->events[news->n_events]))
      return -1;
    news->n_events++;
  }
  return end;
}

static enum db_status news_from_result(const PGresult *r, struct room_news *news, size_t n) {
  memset(news, 0, n * sizeof *news);
  int row = 0;
  for (size_t i = 0; i < n && row >= 0 && row < PQntuples(r); i++)
    row = news_from_rows(r, row, &news[i]);
  if (row == PQntuples(r))
    return DB_OK;
  room_news_free(news, n);
  return DB_FAILED;
}

static const char *text_at(const void *ctx, size_t i) {
  return ((const char *const *)ctx)[i];
}

static int64_t int8_at(const void *ctx, size_t i) {
  return ((const int64_t *)ctx)[i];
}

enum db_status read_rooms(struct db *db, const char *const *room_ids, const int64_t *after, size_t n, int newest,
                          struct room_news *news) {
  if (n == 0)
    return DB_OK;
  struct db_params p = {0};
  db_p_text_array(&p, n, text_at, room_ids);
  db_p_int8_array(&p, n, int8_at, after);
  db_p_int8(&p, newest);
  db_p_int8(&p, ROOM_REVOKED_MAX + 1);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &rooms_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  status = news_from_result(r, news, n);
  PQclear(r);
  return status;
}

enum db_status read_events(struct db *db, const char *room_id, int64_t since, unsigned kinds, int limit,
                           struct room_news *news) {
  const char *names[EVENT_KIND_COUNT];
  size_t n_names = 0;
  for (int kind = 0; kind < EVENT_KIND_COUNT; kind++)
    if (kinds & (1u << kind))
      names[n_names++] = event_kind_name((enum event_kind)kind);
  struct db_params p = {0};
  db_p_text(&p, room_id);
  db_p_int8(&p, since);
  db_p_text_array(&p, n_names, text_at, names);
  db_p_int8(&p, (int64_t)limit + 1);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &events_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  status = news_from_result(r, news, 1);
  PQclear(r);
  return status;
}

enum db_status read_heads(struct db *db, const char *const *room_ids, size_t n, int64_t *heads, int64_t *pruned) {
  if (n == 0)
    return DB_OK;
  struct db_params p = {0};
  db_p_text_array(&p, n, text_at, room_ids);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &heads_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  for (int row = 0; row < PQntuples(r); row++) {
    size_t i = (size_t)db_int8(r, row, COL_INDEX) - 1;
    heads[i] = db_int8(r, row, COL_HEAD);
    pruned[i] = db_int8(r, row, COL_PRUNED);
  }
  PQclear(r);
  return DB_OK;
}

static const struct db_stmt revoked_stmt = {.name = "read_revoked",
                                            .sql = "SELECT EXISTS (SELECT FROM stillhere.member"
                                                   " WHERE room_id = $1 AND user_id = $2 AND revoked_at IS NOT NULL)"};

enum db_status read_revoked(struct db *db, const char *room_id, const char *user_id, bool *revoked) {
  struct db_params p = {0};
  db_p_text(&p, room_id);
  db_p_text(&p, user_id);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &revoked_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  *revoked = db_bool(r, 0, 0);
  PQclear(r);
  return DB_OK;
}
