// SPDX-License-Identifier: Apache-2.0
// Webhooks: counting, pruning, and lists for operators.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/jsonout.h"
#include "base/strict.h"
#include "store/webhook.h"

#define COUNT_MAX 100000
#define PRUNE_MAX 1000
/// So many targets are told of by name.
#define LOST_NAMED_MAX 8

// -- counting
// ----------------------------------------------------------------------------------------------------------

// What lanes that are not done have still to tell, by the index of such lanes: however much is dead costs nothing. Both
// are counted up to $1, and the oldest is that of those counted.
#define BACKLOG(LANES)                                                                                                 \
  "SELECT count(*) AS n, COALESCE(EXTRACT(EPOCH FROM clock_timestamp() - min(x.created_at)) * 1000, 0)::int8 AS age"   \
  " FROM (SELECT e.created_at FROM stillhere.webhook_lane l CROSS JOIN LATERAL (SELECT created_at"                     \
  " FROM stillhere.webhook_event WHERE room_id = l.room_id AND target = l.target AND replay = l.replay"                \
  " AND dead_at IS NULL AND (l.replay OR revision > l.done) OFFSET 0) e"                                               \
  " WHERE l.newest > l.done" LANES " LIMIT $1) x"
#define DEAD(EVENTS)                                                                                                   \
  "SELECT count(*) AS n FROM (SELECT FROM stillhere.webhook_event d WHERE d.dead_at IS NOT NULL" EVENTS " LIMIT $1) x"

#define WAITING                                                                                                        \
  " FROM stillhere.webhook_lane l JOIN stillhere.webhook_event e ON e.room_id = l.room_id"                             \
  " AND e.target = l.target AND e.replay = l.replay AND e.dead_at IS NULL AND (l.replay OR e.revision > l.done)"       \
  " WHERE l.newest > l.done"
static const struct db_stmt count_stmt = {
    .name = "webhook_count",
    .sql = "SELECT b.n, d.n, b.age FROM (" BACKLOG("") ") b, (" DEAD("") ") d",
    // Counted on the nodes: to send up to $1 rows here would cost more.
    .distributed = "WITH b AS MATERIALIZED (SELECT count(*) AS n, min(e.created_at) AS oldest" WAITING
                   "), d AS MATERIALIZED (SELECT count(*) AS n FROM stillhere.webhook_event WHERE dead_at IS NOT NULL)"
                   " SELECT LEAST(b.n, $1), LEAST(d.n, $1),"
                   " COALESCE(EXTRACT(EPOCH FROM clock_timestamp() - b.oldest) * 1000, 0)::int8 FROM b, d",
};

enum db_status webhook_count(struct db *db, struct webhook_counts *counts) {
  struct db_params params = {0};
  db_p_int8(&params, COUNT_MAX);
  PGresult *r = NULL;
  enum db_status status = db_alone(db, &count_stmt, &params, &r);
  if (status == DB_OK)
    *counts =
        (struct webhook_counts){.backlog = db_int8(r, 0, 0), .dead = db_int8(r, 0, 1), .oldest_ms = db_int8(r, 0, 2)};
  PQclear(r);
  db_params_clear(&params);
  return status;
}

// -- pruning
// -----------------------------------------------------------------------------------------------------------

static const struct db_stmt old_stmt = {
    .name = "webhook_prune_dead",
    .sql = "DELETE FROM stillhere.webhook_event WHERE ctid = ANY (ARRAY(SELECT ctid FROM stillhere.webhook_event"
           " WHERE dead_at < clock_timestamp() - interval '30 days' LIMIT $1 FOR UPDATE SKIP LOCKED))",
    .distributed = "WITH old AS MATERIALIZED (SELECT room_id, target, replay, revision FROM stillhere.webhook_event"
                   " WHERE dead_at < clock_timestamp() - interval '30 days' LIMIT $1)"
                   " DELETE FROM stillhere.webhook_event e USING old WHERE e.room_id = old.room_id"
                   " AND e.target = old.target AND e.replay = old.replay AND e.revision = old.revision"
                   " AND e.dead_at < " DB_TIME_DISTRIBUTED " - interval '30 days'",
};

// Whether a lane is idle is said by its own columns, which are looked at again under its lock.
static const struct db_stmt idle_stmt = {
    .name = "webhook_prune_idle",
    .sql = "DELETE FROM stillhere.webhook_lane l USING (SELECT room_id, target, replay FROM stillhere.webhook_lane"
           " WHERE newest <= done AND due_at < clock_timestamp() - interval '1 day' LIMIT $1 FOR UPDATE SKIP LOCKED) i"
           " WHERE l.room_id = i.room_id AND l.target = i.target AND l.replay = i.replay AND l.newest <= l.done",
    .distributed =
        "WITH i AS MATERIALIZED (SELECT room_id, target, replay FROM stillhere.webhook_lane"
        " WHERE newest <= done AND due_at < clock_timestamp() - interval '1 day' LIMIT $1)"
        " DELETE FROM stillhere.webhook_lane l USING i"
        " WHERE l.room_id = i.room_id AND l.target = i.target AND l.replay = i.replay AND l.newest <= l.done",
};

// The clock of the database was ahead when these were written and has been set back: no pause is longer than an hour,
// none comes before a failure, and no claim is longer than half a minute.
static const struct db_stmt ahead_stmt = {
    .name = "webhook_lanes_ahead",
    .sql = "UPDATE stillhere.webhook_lane SET due_at = now(), claimed_until = NULL WHERE newest > done"
           " AND (claimed_until > now() + interval '1 minute'"
           " OR due_at > now() + CASE attempts WHEN 0 THEN interval '1 minute' ELSE interval '61 minutes' END)",
    .distributed = "UPDATE stillhere.webhook_lane SET due_at = now(), claimed_until = NULL WHERE newest > done"
                   " AND (claimed_until > now() + interval '1 minute' OR due_at > now() + interval '61 minutes'"
                   " OR (attempts = 0 AND due_at > now() + interval '1 minute'))",
};

// Lanes whose youngest event is too old and that nobody is there for. They are locked by one statement and given up by
// the next, which sees all events up to the newest of each: here an event could have come between snapshot and lock.
#define ALL_OLD(now)                                                                                                   \
  " NOT EXISTS (SELECT FROM stillhere.webhook_event e WHERE e.room_id = l.room_id AND e.target = l.target"             \
  " AND e.replay = l.replay AND e.dead_at IS NULL AND e.created_at > " now " - $1 * interval '1 ms')"

static const struct db_stmt lost_stmt = {
    .name = "webhook_prune_lost",
    .sql = "SELECT l.room_id, l.target, l.replay FROM stillhere.webhook_lane l WHERE l.target <> ALL($2)"
           " AND l.newest > l.done AND (l.claimed_until IS NULL OR l.claimed_until <= clock_timestamp())"
           " AND" ALL_OLD(DB_TIME_PLAIN) " LIMIT $3 FOR UPDATE SKIP LOCKED",
    .distributed =
        "WITH c AS MATERIALIZED (SELECT l.room_id, l.target, l.replay FROM stillhere.webhook_lane l"
        " WHERE l.target <> ALL($2) AND l.newest > l.done"
        " AND (l.claimed_until IS NULL OR l.claimed_until <= clock_timestamp()) AND" ALL_OLD(
            DB_TIME_PLAIN) " LIMIT $3),"
                           " held AS MATERIALIZED (UPDATE stillhere.webhook_lane l SET newest = l.newest FROM c"
                           " WHERE l.room_id = c.room_id AND l.target = c.target AND l.replay = c.replay AND l.newest > l.done"
                           " AND (l.claimed_until IS NULL OR l.claimed_until <= " DB_TIME_DISTRIBUTED ")"
                           " RETURNING l.room_id, l.target, l.replay)"
                           " SELECT room_id, target, replay FROM held",
};

// What was in a message stays in it, the others are dead one by one.
#define BURY_LOST(now)                                                                                                            \
  "WITH lane AS (SELECT l.* FROM stillhere.webhook_lane l JOIN unnest($2::text[], $3::text[], $4::bool[])"                        \
  " AS i(room_id, target, replay) ON l.room_id = i.room_id AND l.target = i.target AND l.replay = i.replay"                       \
  " WHERE" ALL_OLD(                                                                                                               \
      now) "),"                                                                                                                   \
           " dead AS MATERIALIZED (UPDATE stillhere.webhook_event e SET dead_at = " now ", attempts = lane.attempts,"             \
           " error = 'its target is not configured any more', message = COALESCE(e.message, CASE WHEN e.revision"                 \
           " <= lane.message_through THEN lane.message_through END, e.revision) FROM lane"                                        \
           " WHERE e.room_id = lane.room_id AND e.target = lane.target AND e.replay = lane.replay"                                \
           " AND e.dead_at IS NULL RETURNING e.target),"                                                                          \
           " done AS MATERIALIZED (UPDATE stillhere.webhook_lane l SET done = lane.newest, message_through = NULL, attempts = 0," \
           " claim = NULL, claimed_until = NULL, due_at = " now " FROM lane WHERE l.room_id = lane.room_id"                       \
           " AND l.target = lane.target AND l.replay = lane.replay RETURNING l.target)"                                           \
           " SELECT target, count(*) FROM dead WHERE (SELECT count(*) FROM done) > 0 GROUP BY target ORDER BY 2 DESC, 1"
static const struct db_stmt bury_lost_stmt = {
    .name = "webhook_prune_bury_lost",
    .sql = BURY_LOST(DB_TIME_PLAIN),
    .distributed = BURY_LOST(DB_TIME_DISTRIBUTED),
};

static const char *target_name(const void *set, size_t i) {
  return ((const struct webhook_targets *)set)->list[i].name;
}

static enum db_status prune(struct db *db, const struct db_stmt *stmt, bool *more) {
  struct db_params params = {0};
  db_p_int8(&params, PRUNE_MAX);
  PGresult *r = NULL;
  enum db_status status = db_alone(db, stmt, &params, &r);
  if (status == DB_OK)
    *more |= strtoll(PQcmdTuples(r), NULL, 10) >= PRUNE_MAX;
  PQclear(r);
  db_params_clear(&params);
  return status;
}

struct lost {
  const struct webhook_targets *set;
  int64_t give_up_ms;
  bool more;
  struct buf *given_up;
};

static const char *lane_room(const void *lanes, size_t i) {
  return db_text(lanes, (int)i, 0);
}
static const char *lane_target(const void *lanes, size_t i) {
  return db_text(lanes, (int)i, 1);
}
static int64_t lane_replay(const void *lanes, size_t i) {
  return db_bool(lanes, (int)i, 2);
}

/// How many events of which targets, in words.
static void tell_lost(struct buf *out, const PGresult *r) {
  int64_t others = 0;
  for (int i = 0; i < PQntuples(r); i++) {
    if (i < LOST_NAMED_MAX)
      buf_printf(out, "%s%lld of %.*s", i > 0 ? ", " : "", (long long)db_int8(r, i, 1), WEBHOOK_NAME_MAX,
                 db_text(r, i, 0));
    else
      others += db_int8(r, i, 1);
  }
  if (others > 0)
    buf_printf(out, " and %lld of others", (long long)others);
}

static enum db_status bury_lost(struct db *db, const struct lost *a, const PGresult *lanes) {
  size_t n = (size_t)PQntuples(lanes);
  struct db_params params = {0};
  db_p_int8(&params, a->give_up_ms);
  db_p_text_array(&params, n, lane_room, lanes);
  db_p_text_array(&params, n, lane_target, lanes);
  db_p_bool_array(&params, n, lane_replay, lanes);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &bury_lost_stmt, &params, &r);
  if (status == DB_OK)
    tell_lost(a->given_up, r);
  PQclear(r);
  db_params_clear(&params);
  return status;
}

static enum db_status lost_work(struct db *db, void *ctx) {
  struct lost *a = ctx;
  buf_free(a->given_up);
  struct db_params params = {0};
  db_p_int8(&params, a->give_up_ms);
  db_p_text_array(&params, a->set->n, target_name, a->set);
  db_p_int8(&params, PRUNE_MAX);
  PGresult *lanes = NULL;
  enum db_status status = db_run(db, &lost_stmt, &params, &lanes);
  db_params_clear(&params);
  a->more = status == DB_OK && PQntuples(lanes) >= PRUNE_MAX;
  if (status == DB_OK && PQntuples(lanes) > 0)
    status = bury_lost(db, a, lanes);
  PQclear(lanes);
  return status;
}

enum db_status webhook_prune(struct db *db, const struct webhook_targets *set, int64_t give_up_ms, bool *more,
                             struct buf *given_up) {
  struct lost lost = {.set = set, .give_up_ms = give_up_ms, .given_up = given_up};
  *more = false;
  enum db_status status = prune(db, &old_stmt, more);
  if (status == DB_OK)
    status = prune(db, &idle_stmt, more);
  if (status == DB_OK)
    status = db_transaction(db, lost_work, &lost);
  PGresult *r = NULL;
  if (status == DB_OK)
    status = db_alone(db, &ahead_stmt, &(struct db_params){0}, &r);
  PQclear(r);
  if (status != DB_OK)
    buf_free(given_up);
  *more = status == DB_OK && (*more || lost.more);
  return status;
}

// -- lists
// -------------------------------------------------------------------------------------------------------------

// Those that events wait for, or lie dead for.
#define TARGETS_LEFT                                                                                                   \
  "(SELECT target FROM stillhere.webhook_lane WHERE newest > done UNION"                                               \
  " SELECT target FROM stillhere.webhook_event WHERE dead_at IS NOT NULL)"

// The targets of the configuration, then those that events wait for without being in it any more. A lane keeps its
// error until its next success; it is shown while something of its room waits or is dead.
static const struct db_stmt targets_stmt = {
    .name = "webhook_targets_read",
    .sql = "SELECT i.name, b.n, b.age, d.n,"
           " (SELECT l.last_error FROM stillhere.webhook_lane l WHERE l.target = i.name AND l.last_error IS NOT NULL"
           " AND (l.newest > l.done OR EXISTS (SELECT FROM stillhere.webhook_event e WHERE e.target = l.target"
           " AND e.room_id = l.room_id AND e.dead_at IS NOT NULL)) ORDER BY l.due_at DESC LIMIT 1),"
           " (SELECT min(l.failing_since) FROM stillhere.webhook_lane l WHERE l.target = i.name AND l.newest > l.done)"
           " FROM (SELECT name, n FROM unnest($2::text[]) WITH ORDINALITY AS c(name, n) UNION ALL"
           " SELECT o.target, NULL FROM " TARGETS_LEFT " o WHERE o.target <> ALL($2)) i,"
           " LATERAL (" BACKLOG(" AND l.target = i.name") ") b, LATERAL (" DEAD(
               " AND d.target = i.name") ") d"
                                         " ORDER BY i.n NULLS LAST, i.name",
    .distributed =
        "WITH b AS MATERIALIZED (SELECT l.target, count(*) AS n, min(e.created_at) AS oldest" WAITING
        " GROUP BY l.target),"
        " d AS MATERIALIZED (SELECT target, count(*) AS n FROM stillhere.webhook_event WHERE dead_at IS NOT NULL"
        " GROUP BY target),"
        " w AS MATERIALIZED (SELECT target, min(failing_since) AS since FROM stillhere.webhook_lane WHERE newest > done"
        " GROUP BY target),"
        " e AS MATERIALIZED (SELECT l.target, (array_agg(l.last_error ORDER BY l.due_at DESC))[1] AS error"
        " FROM stillhere.webhook_lane l WHERE l.last_error IS NOT NULL"
        " AND (l.newest > l.done OR EXISTS (SELECT FROM stillhere.webhook_event e WHERE e.target = l.target"
        " AND e.room_id = l.room_id AND e.dead_at IS NOT NULL)) GROUP BY l.target)"
        " SELECT i.name, LEAST(coalesce(b.n, 0), $1),"
        " COALESCE(EXTRACT(EPOCH FROM clock_timestamp() - b.oldest) * 1000, 0)::int8, LEAST(coalesce(d.n, 0), $1),"
        " e.error, w.since"
        " FROM (SELECT name, n FROM unnest($2::text[]) WITH ORDINALITY AS c(name, n) UNION ALL"
        " SELECT o.target, NULL FROM (SELECT target FROM w UNION SELECT target FROM d) o WHERE o.target <> ALL($2)) i"
        " LEFT JOIN b ON b.target = i.name LEFT JOIN d ON d.target = i.name LEFT JOIN w ON w.target = i.name"
        " LEFT JOIN e ON e.target = i.name ORDER BY i.n NULLS LAST, i.name COLLATE \"C\"",
};

enum db_status read_webhooks(struct db *db, const struct webhook_targets *set, struct buf *out) {
  struct db_params params = {0};
  db_p_int8(&params, COUNT_MAX);
  db_p_text_array(&params, set->n, target_name, set);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &targets_stmt, &params, &r);
  jo_object(out);
  jo_key(out, "targets");
  jo_array(out);
  for (int i = 0; status == DB_OK && i < PQntuples(r); i++) {
    const char *url = (size_t)i < set->n ? set->list[i].url : NULL;
    jo_object(out);
    jo_kstr(out, "name", db_text(r, i, 0));
    jo_key(out, "url");
    if (url != NULL)
      jo_strn(out, url, strcspn(url, "?"));
    else
      jo_null(out);
    jo_kint(out, "backlog", db_int8(r, i, 1));
    jo_kint(out, "oldest_age_ms", db_int8(r, i, 2));
    jo_kint(out, "dead", db_int8(r, i, 3));
    jo_kstr(out, "last_error", db_null(r, i, 4) ? NULL : db_text(r, i, 4));
    jo_key(out, "failing_since");
    if (db_null(r, i, 5))
      jo_null(out);
    else
      jo_time(out, db_time(r, i, 5));
    jo_object_end(out);
  }
  jo_array_end(out);
  PQclear(r);
  db_params_clear(&params);
  return status;
}

// Messages after a cursor, in the order of target, room and message; one more than asked tells whether there are more.
static const struct db_stmt dead_stmt = {
    .name = "webhook_dead_read",
    .sql = "SELECT target, room_id, message, max(attempts), max(error), max(dead_at),"
           " json_agg(event_id ORDER BY revision)::text FROM stillhere.webhook_event"
           " WHERE dead_at IS NOT NULL AND ($1::text IS NULL OR target = $1)"
           " AND ($2::text IS NULL OR (target, room_id, message) > ($2, $3::text, $4::int8))"
           " GROUP BY target, room_id, message ORDER BY target, room_id, message LIMIT $5",
};

bool webhook_cursor_parse(const char *s, struct webhook_cursor *cursor) {
  size_t target = strcspn(s, "/");
  const char *digits = strrchr(s, '/');
  if (s[target] == '\0' || digits == s + target || target > WEBHOOK_NAME_MAX)
    return false;
  const char *room = s + target + 1;
  size_t len = (size_t)(digits - room);
  if (len == 0 || len > IDENT_MAX || !strict_int(digits + 1, strlen(digits + 1), 0, REVISION_MAX, &cursor->message))
    return false;
  (void)snprintf(cursor->target, sizeof cursor->target, "%.*s", (int)target, s);
  (void)snprintf(cursor->room_id, sizeof cursor->room_id, "%.*s", (int)len, room);
  return true;
}

static void dead_row(struct buf *out, const PGresult *r, int i) {
  jo_object(out);
  jo_kstr(out, "target", db_text(r, i, 0));
  jo_kstr(out, "room_id", db_text(r, i, 1));
  jo_kint(out, "message", db_int8(r, i, 2));
  jo_key(out, "event_ids");
  jo_raw(out, db_text(r, i, 6), (size_t)db_text_len(r, i, 6));
  jo_kint(out, "attempts", db_int8(r, i, 3));
  jo_kstr(out, "error", db_text(r, i, 4));
  jo_ktime(out, "dead_at", db_time(r, i, 5));
  jo_object_end(out);
}

enum db_status read_webhooks_dead(struct db *db, const char *target, const struct webhook_cursor *after, int limit,
                                  struct buf *out) {
  struct db_params params = {0};
  db_p_text(&params, target);
  db_p_text(&params, after != NULL ? after->target : NULL);
  db_p_text(&params, after != NULL ? after->room_id : NULL);
  db_p_int8(&params, after != NULL ? after->message : 0);
  db_p_int8(&params, limit + 1);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &dead_stmt, &params, &r);
  int rows = status == DB_OK ? PQntuples(r) : 0;
  jo_object(out);
  jo_key(out, "dead");
  jo_array(out);
  for (int i = 0; i < rows && i < limit; i++)
    dead_row(out, r, i);
  jo_array_end(out);
  struct buf next = {0};
  if (rows > limit)
    buf_printf(&next, "%s/%s/%lld", db_text(r, limit - 1, 0), db_text(r, limit - 1, 1),
               (long long)db_int8(r, limit - 1, 2));
  jo_kstr(out, "next", next.data);
  out->failed |= next.failed;
  buf_free(&next);
  PQclear(r);
  db_params_clear(&params);
  return status;
}

// Whether read_webhooks() would list a target that is not configured.
static const struct db_stmt left_stmt = {
    .name = "webhook_target_left",
    .sql = "SELECT EXISTS (SELECT FROM " TARGETS_LEFT " o WHERE o.target = $1)",
    .distributed = "SELECT count(*) > 0 FROM (SELECT target FROM stillhere.webhook_lane WHERE newest > done"
                   " AND target = $1 UNION ALL SELECT target FROM stillhere.webhook_event WHERE dead_at IS NOT NULL"
                   " AND target = $1) o",
};

static bool configured(const char *target) {
  struct webhook_targets *set = webhook_targets_get();
  bool found = false;
  for (size_t i = 0; set != NULL && i < set->n; i++)
    found |= strcmp(set->list[i].name, target) == 0;
  webhook_targets_put(set);
  return found;
}

enum db_status webhook_known(struct db *db, const char *target, bool *known) {
  *known = configured(target);
  if (*known)
    return DB_OK;
  struct db_params params = {0};
  db_p_text(&params, target);
  PGresult *r = NULL;
  enum db_status status = db_alone(db, &left_stmt, &params, &r);
  if (status == DB_OK)
    *known = db_bool(r, 0, 0);
  PQclear(r);
  db_params_clear(&params);
  return status;
}
