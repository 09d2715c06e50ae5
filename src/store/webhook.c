// SPDX-License-Identifier: Apache-2.0
// Webhooks: writing events and lanes, claiming messages, and what becomes of them.
#include "store/webhook.h"

#include <stdlib.h>
#include <string.h>

#include "base/jsonout.h"

// -- in the event's transaction
// ----------------------------------------------------------------------------------------

static const struct db_stmt events_stmt = {
    .name = "webhook_events_insert",
    .sql = "INSERT INTO stillhere.webhook_event (room_id, target, revision, event_id, payload)"
           " SELECT * FROM unnest($1::text[], $2::text[], $3::int8[], $4::text[], $5::text[])",
};

// Under the room's lock, so lanes are locked after rooms, in the order of their keys. A lane that was idle is due at
// once; one that fails keeps its time.
static const struct db_stmt lanes_stmt = {
    .name = "webhook_lanes_move",
    .sql = "INSERT INTO stillhere.webhook_lane AS l (room_id, target, newest)"
           " SELECT i.room_id, i.target, max(i.revision) FROM unnest($1::text[], $2::text[], $3::int8[])"
           " AS i(room_id, target, revision) GROUP BY 1, 2 ORDER BY i.room_id COLLATE \"C\", i.target COLLATE \"C\""
           " ON CONFLICT (room_id, target, replay) DO UPDATE SET newest = GREATEST(l.newest, excluded.newest)",
};

/// An event for a target.
struct due {
  const struct event *event;
  const struct transition *x;
  const struct webhook_target *target;
};

static const struct due *nth(const void *list, size_t i) {
  return &((const struct due *)list)[i];
}
static const char *due_room(const void *list, size_t i) {
  return nth(list, i)->event->room_id;
}
static const char *due_target(const void *list, size_t i) {
  return nth(list, i)->target->name;
}
static int64_t due_revision(const void *list, size_t i) {
  return nth(list, i)->event->revision;
}
static const char *due_id(const void *list, size_t i) {
  return nth(list, i)->x->event_id;
}
static const char *due_json(const void *list, size_t i) {
  return nth(list, i)->event->json;
}

static enum db_status write_due(struct db *db, const struct due *list, size_t n) {
  struct db_params events = {0}, lanes = {0};
  struct db_params *both[] = {&events, &lanes};
  for (size_t i = 0; i < ARRAY_LEN(both); i++) {
    db_p_text_array(both[i], n, due_room, list);
    db_p_text_array(both[i], n, due_target, list);
    db_p_int8_array(both[i], n, due_revision, list);
  }
  db_p_text_array(&events, n, due_id, list);
  db_p_text_array(&events, n, due_json, list);
  struct db_step steps[] = {{&events_stmt, &events}, {&lanes_stmt, &lanes}};
  PGresult *results[2] = {0};
  enum db_status status = db_pipeline(db, steps, 2, results);
  PQclear(results[0]);
  PQclear(results[1]);
  db_params_clear(&events);
  db_params_clear(&lanes);
  return status;
}

enum db_status webhook_write(struct db *db, const struct event *events, const struct transition *x, size_t n) {
  struct webhook_targets *set = webhook_targets_get();
  if (set == NULL || set->n == 0 || n == 0) {
    webhook_targets_put(set);
    return DB_OK;
  }
  struct due *list = calloc(n * set->n, sizeof *list);
  size_t n_due = 0;
  for (size_t i = 0; i < n && list != NULL; i++) {
    for (size_t j = 0; j < set->n; j++) {
      if (webhook_target_wants(&set->list[j], events[i].room_id, events[i].kind))
        list[n_due++] = (struct due){&events[i], &x[i], &set->list[j]};
    }
  }
  enum db_status status = list == NULL ? DB_FAILED : n_due == 0 ? DB_OK : write_due(db, list, n_due);
  free(list);
  webhook_targets_put(set);
  return status;
}

// -- claiming
// ----------------------------------------------------------------------------------------------------------

static const struct db_stmt lock_stmt = {
    .name = "webhook_lanes_lock",
    .sql = "SELECT room_id, replay FROM stillhere.webhook_lane WHERE target = $1 AND newest > done"
           " AND due_at <= clock_timestamp() AND (claimed_until IS NULL OR claimed_until <= clock_timestamp())"
           " ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED",
    .distributed = "SELECT room_id, replay FROM stillhere.webhook_lane WHERE target = $1 AND newest > done"
                   " AND due_at <= clock_timestamp() AND (claimed_until IS NULL OR claimed_until <= clock_timestamp())"
                   " ORDER BY due_at LIMIT $2",
};

// Where the tables are distributed each lane that was found is locked, claimed and read by itself: all of it on the
// node of its room.
static const struct db_stmt lock_one_stmt = {
    .name = "webhook_lane_lock",
    .sql = "SELECT room_id, replay FROM stillhere.webhook_lane WHERE target = $1 AND room_id = $2 AND replay = $3"
           " AND newest > done"
           " AND due_at <= clock_timestamp() AND (claimed_until IS NULL OR claimed_until <= clock_timestamp())"
           " FOR UPDATE SKIP LOCKED",
};

// A new statement, so that it sees all events up to the newest of the locked lane. What a message consists of is fixed
// here, the first time, so that every attempt has the same id and the same bytes. It ends where the epoch changes, as
// it does between what a restore has brought back and what came after: while the smallest is the greatest, they are
// one.
#define CLAIM(now)                                                                                                     \
  "UPDATE stillhere.webhook_lane l SET claim = $4, claimed_until = " now " + interval '30 s',"                         \
  " message_through = COALESCE(l.message_through, CASE WHEN l.replay THEN"                                             \
  " (SELECT min(e.message) FROM stillhere.webhook_event e WHERE e.room_id = l.room_id AND e.target = l.target"         \
  " AND e.replay AND e.dead_at IS NULL) ELSE"                                                                          \
  " (SELECT max(o.revision) FROM (SELECT m.revision, min(m.epoch) OVER up = max(m.epoch) OVER up AS same"              \
  " FROM (SELECT e.revision, split_part(e.event_id, ':', 1) AS epoch FROM stillhere.webhook_event e"                   \
  " WHERE e.room_id = l.room_id AND e.target = l.target AND NOT e.replay AND e.revision > l.done"                      \
  " AND e.dead_at IS NULL ORDER BY e.revision LIMIT $5) m WINDOW up AS (ORDER BY m.revision)) o"                       \
  " WHERE o.same) END, l.newest)"
static const struct db_stmt claim_stmt = {
    .name = "webhook_lanes_claim",
    .sql = CLAIM(DB_TIME_PLAIN) " FROM unnest($2::text[], $3::bool[]) AS i(room_id, replay)"
                                " WHERE l.target = $1 AND l.room_id = i.room_id AND l.replay = i.replay",
    .distributed = CLAIM(DB_TIME_DISTRIBUTED) " WHERE l.target = $1 AND l.room_id = ($2::text[])[1]"
                                              " AND l.replay = ($3::bool[])[1]",
};

#define READ(which)                                                                                                    \
  "SELECT l.room_id, l.replay, l.message_through, l.attempts,"                                                         \
  " COALESCE(l.failing_since, clock_timestamp()) > clock_timestamp() - $3 * interval '1 ms'"                           \
  " OR e.created_at > clock_timestamp() - $3 * interval '1 ms',"                                                       \
  " e.event_id, e.payload, e.payload::json->>'at'"                                                                     \
  " FROM stillhere.webhook_lane l LEFT JOIN stillhere.webhook_event e ON e.room_id = l.room_id"                        \
  " AND e.target = l.target AND e.replay = l.replay AND e.dead_at IS NULL AND CASE WHEN l.replay"                      \
  " THEN e.message = l.message_through ELSE e.revision > l.done AND e.revision <= l.message_through END"               \
  " WHERE l.target = $1 AND l.claim = $2 AND " which " ORDER BY l.room_id, l.replay, e.revision"
static const struct db_stmt read_stmt = {
    .name = "webhook_messages_read",
    .sql = READ("(l.room_id, l.replay) IN (SELECT * FROM unnest($4::text[], $5::bool[]))"),
    .distributed = READ("l.room_id = ($4::text[])[1] AND l.replay = ($5::bool[])[1]"),
};

struct claim {
  const char *target, *token;
  int slots;
  int64_t give_up_ms;
  struct webhook_message *list;
  size_t n;
};

static const char *lane_room(const void *lanes, size_t i) {
  return db_text(lanes, (int)i, 0);
}
static int64_t lane_replay(const void *lanes, size_t i) {
  return db_bool(lanes, (int)i, 1);
}

void webhook_messages_free(struct webhook_message *list, size_t n) {
  for (size_t i = 0; i < n && list != NULL; i++) {
    free(list[i].room_id);
    free(list[i].first_id);
    buf_free(&list[i].body);
  }
  free(list);
}

/// Begins a body. Its timestamp is that of its last event.
static void open_body(struct webhook_message *m, const char *at) {
  struct buf *b = &m->body;
  size_t epoch = strcspn(m->first_id, ":");
  jo_object(b);
  jo_kstr(b, "type", "presence.events");
  jo_kstr(b, "timestamp", at);
  jo_key(b, "data");
  jo_object(b);
  jo_kstr(b, "room_id", m->room_id);
  jo_key(b, "epoch");
  jo_strn(b, m->first_id, epoch);
  jo_key(b, "events");
  jo_array(b);
}

/// The rows [from, to) are the events of one message. @return false when memory ran out
static bool take_message(struct webhook_message *m, const PGresult *r, int from, int to) {
  *m = (struct webhook_message){.replay = db_bool(r, from, 1),
                                .through = db_int8(r, from, 2),
                                .attempts = (int)db_int8(r, from, 3),
                                .lasts = db_bool(r, from, 4),
                                .room_id = strdup(db_text(r, from, 0))};
  if (m->room_id == NULL)
    return false;
  if (db_null(r, from, 5))
    return true;
  m->first_id = strdup(db_text(r, from, 5));
  if (m->first_id == NULL)
    return false;
  open_body(m, db_text(r, to - 1, 7));
  m->n_events = to - from;
  for (int i = from; i < to; i++)
    jo_raw(&m->body, db_text(r, i, 6), (size_t)db_text_len(r, i, 6));
  jo_array_end(&m->body);
  jo_object_end(&m->body);
  jo_object_end(&m->body);
  return !m->body.failed;
}

static enum db_status take_messages(struct claim *c, const PGresult *r) {
  int rows = PQntuples(r);
  if (rows == 0)
    return DB_OK;
  struct webhook_message *list = realloc(c->list, (c->n + (size_t)rows) * sizeof *list);
  if (list == NULL)
    return DB_FAILED;
  c->list = list;
  for (int from = 0, to; from < rows; from = to) {
    for (to = from + 1;
         to < rows && strcmp(db_text(r, to, 0), db_text(r, from, 0)) == 0 && db_bool(r, to, 1) == db_bool(r, from, 1);)
      to++;
    if (!take_message(&c->list[c->n++], r, from, to))
      return DB_FAILED;
  }
  return DB_OK;
}

static enum db_status claim_lanes(struct db *db, struct claim *c, const PGresult *lanes) {
  size_t n = (size_t)PQntuples(lanes);
  struct db_params claim = {0}, read = {0};
  db_p_text(&claim, c->target);
  db_p_text_array(&claim, n, lane_room, lanes);
  db_p_bool_array(&claim, n, lane_replay, lanes);
  db_p_text(&claim, c->token);
  db_p_int8(&claim, WEBHOOK_MESSAGE_EVENTS);
  db_p_text(&read, c->target);
  db_p_text(&read, c->token);
  db_p_int8(&read, c->give_up_ms);
  db_p_text_array(&read, n, lane_room, lanes);
  db_p_bool_array(&read, n, lane_replay, lanes);
  struct db_step steps[] = {{&claim_stmt, &claim}, {&read_stmt, &read}};
  PGresult *results[2] = {0};
  enum db_status status = db_pipeline(db, steps, 2, results);
  if (status == DB_OK)
    status = take_messages(c, results[1]);
  PQclear(results[0]);
  PQclear(results[1]);
  db_params_clear(&claim);
  db_params_clear(&read);
  return status;
}

static enum db_status claim_one_by_one(struct db *db, struct claim *c, const PGresult *lanes) {
  enum db_status status = DB_OK;
  for (int i = 0; i < PQntuples(lanes) && status == DB_OK; i++) {
    struct db_params params = {0};
    db_p_text(&params, c->target);
    db_p_text(&params, db_text(lanes, i, 0));
    db_p_bool(&params, db_bool(lanes, i, 1));
    PGresult *lane = NULL;
    status = db_run(db, &lock_one_stmt, &params, &lane);
    db_params_clear(&params);
    if (status == DB_OK && PQntuples(lane) > 0)
      status = claim_lanes(db, c, lane);
    PQclear(lane);
  }
  return status;
}

static enum db_status claim_work(struct db *db, void *ctx) {
  struct claim *c = ctx;
  webhook_messages_free(c->list, c->n);
  c->list = NULL;
  c->n = 0;
  struct db_params params = {0};
  db_p_text(&params, c->target);
  db_p_int8(&params, c->slots);
  PGresult *lanes = NULL;
  enum db_status status = db_run(db, &lock_stmt, &params, &lanes);
  db_params_clear(&params);
  if (status == DB_OK && PQntuples(lanes) > 0)
    status = db_distributed(db) ? claim_one_by_one(db, c, lanes) : claim_lanes(db, c, lanes);
  PQclear(lanes);
  return status;
}

enum db_status webhook_claim(struct db *db, const char *target, const char *token, int slots, int64_t give_up_ms,
                             struct webhook_message **list, size_t *n) {
  struct claim c = {.target = target, .token = token, .slots = slots, .give_up_ms = give_up_ms};
  enum db_status status = db_transaction(db, claim_work, &c);
  if (status != DB_OK) {
    webhook_messages_free(c.list, c.n);
    c.list = NULL;
    c.n = 0;
  }
  *list = c.list;
  *n = c.n;
  return status;
}

// -- what became of it
// -------------------------------------------------------------------------------------------------

#define MINE " WHERE l.room_id = $1 AND l.target = $2 AND l.replay = $3 AND l.claim = $4"

static const struct db_stmt mine_stmt = {
    .name = "webhook_lane_mine",
    .sql = "SELECT done FROM stillhere.webhook_lane l" MINE " FOR UPDATE",
};

#define ITS_EVENTS                                                                                                     \
  " WHERE e.room_id = $1 AND e.target = $2 AND e.replay = $3 AND e.dead_at IS NULL"                                    \
  " AND CASE WHEN $3 THEN e.message = $5 ELSE e.revision > $6 AND e.revision <= $5 END"

static const struct db_stmt delete_stmt = {
    .name = "webhook_events_done",
    .sql = "DELETE FROM stillhere.webhook_event e" ITS_EVENTS " AND $4::text IS NOT NULL",
};

#define BURY(now)                                                                                                      \
  "UPDATE stillhere.webhook_event e SET dead_at = " now ", message = $5, attempts = $8,"                               \
  " error = $7" ITS_EVENTS " AND $4::text IS NOT NULL"
static const struct db_stmt bury_stmt = {
    .name = "webhook_events_bury",
    .sql = BURY(DB_TIME_PLAIN),
    .distributed = BURY(DB_TIME_DISTRIBUTED),
};

// Citus takes no clock inside CASE and COALESCE.
#define FROM_TIME " FROM (SELECT " DB_TIME_DISTRIBUTED " AS now OFFSET 0) t"

// A lane of replays has no order of revisions: it is done when nothing is left.
#define NEXT(now, from)                                                                                                \
  "UPDATE stillhere.webhook_lane l SET done = CASE WHEN NOT l.replay THEN GREATEST(l.done, $5)"                        \
  " WHEN EXISTS (SELECT FROM stillhere.webhook_event e WHERE e.room_id = l.room_id AND e.target = l.target"            \
  " AND e.replay AND e.dead_at IS NULL) THEN 0 ELSE l.newest END,"                                                     \
  " message_through = NULL, attempts = 0, claim = NULL, claimed_until = NULL, due_at = " now ","                       \
  " failing_since = CASE WHEN $6::text IS NULL THEN NULL ELSE COALESCE(l.failing_since, " now ") END,"                 \
  " last_error = $6" from MINE
static const struct db_stmt next_stmt = {
    .name = "webhook_lane_next",
    .sql = NEXT(DB_TIME_PLAIN, ""),
    .distributed = NEXT("t.now", FROM_TIME),
};

#define RETRY(now, since, from)                                                                                        \
  "UPDATE stillhere.webhook_lane l SET attempts = l.attempts + 1, claim = NULL, claimed_until = NULL,"                 \
  " due_at = " now " + $5 * interval '1 ms',"                                                                          \
  " failing_since = COALESCE(l.failing_since, " since "), last_error = $6" from MINE
static const struct db_stmt retry_stmt = {
    .name = "webhook_lane_retry",
    .sql = RETRY(DB_TIME_PLAIN, DB_TIME_PLAIN, ""),
    .distributed = RETRY(DB_TIME_DISTRIBUTED, "t.now", FROM_TIME),
};

#define RELEASE(now) "UPDATE stillhere.webhook_lane l SET claim = NULL, claimed_until = NULL, due_at = " now "" MINE
static const struct db_stmt release_stmt = {
    .name = "webhook_lane_release",
    .sql = RELEASE(DB_TIME_PLAIN),
    .distributed = RELEASE(DB_TIME_DISTRIBUTED),
};

struct ending {
  const char *target, *token, *error; ///< error NULL: delivered
  const struct webhook_message *m;
};

static void mine_params(struct db_params *p, const char *target, const char *token, const struct webhook_message *m) {
  db_p_text(p, m->room_id);
  db_p_text(p, target);
  db_p_bool(p, m->replay);
  db_p_text(p, token);
}

static enum db_status end_lane(struct db *db, const struct ending *e, int64_t done) {
  struct db_params events = {0}, lane = {0};
  mine_params(&events, e->target, e->token, e->m);
  mine_params(&lane, e->target, e->token, e->m);
  db_p_int8(&events, e->m->through);
  db_p_int8(&events, done);
  if (e->error != NULL) {
    db_p_text(&events, e->error);
    db_p_int4(&events, e->m->attempts + 1);
  }
  db_p_int8(&lane, e->m->through);
  db_p_text(&lane, e->error);
  struct db_step steps[] = {{e->error != NULL ? &bury_stmt : &delete_stmt, &events}, {&next_stmt, &lane}};
  PGresult *results[2] = {0};
  enum db_status status = db_pipeline(db, steps, 2, results);
  PQclear(results[0]);
  PQclear(results[1]);
  db_params_clear(&events);
  db_params_clear(&lane);
  return status;
}

static enum db_status end_work(struct db *db, void *ctx) {
  const struct ending *e = ctx;
  struct db_params params = {0};
  mine_params(&params, e->target, e->token, e->m);
  PGresult *mine = NULL;
  enum db_status status = db_run(db, &mine_stmt, &params, &mine);
  db_params_clear(&params);
  if (status == DB_OK && PQntuples(mine) == 1)
    status = end_lane(db, e, db_int8(mine, 0, 0));
  PQclear(mine);
  return status;
}

enum db_status webhook_delivered(struct db *db, const char *target, const char *token,
                                 const struct webhook_message *m) {
  struct ending e = {.target = target, .token = token, .m = m};
  return db_transaction(db, end_work, &e);
}

enum db_status webhook_bury(struct db *db, const char *target, const char *token, const struct webhook_message *m,
                            const char *error) {
  struct ending e = {.target = target, .token = token, .error = error, .m = m};
  return db_transaction(db, end_work, &e);
}

enum db_status webhook_retry(struct db *db, const char *target, const char *token, const struct webhook_message *m,
                             int64_t wait_ms, const char *error) {
  struct db_params params = {0};
  mine_params(&params, target, token, m);
  db_p_int8(&params, wait_ms);
  db_p_text(&params, error);
  PGresult *result = NULL;
  enum db_status status = db_alone(db, &retry_stmt, &params, &result);
  PQclear(result);
  db_params_clear(&params);
  return status;
}

enum db_status webhook_release(struct db *db, const char *target, const char *token, const struct webhook_message *m) {
  struct db_params params = {0};
  mine_params(&params, target, token, m);
  PGresult *result = NULL;
  enum db_status status = db_alone(db, &release_stmt, &params, &result);
  PQclear(result);
  db_params_clear(&params);
  return status;
}
