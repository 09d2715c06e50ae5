// SPDX-License-Identifier: Apache-2.0
// Webhooks: sending again what was given up, in portions, so that no lock is held for long however much it is.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/webhook.h"

/// Events in a portion, up to the end of the message in which it is reached: a message is moved as a whole, since a
/// part of it could be sent before the rest comes.
#define PORTION 1000

// Where the next portion ends. The dead are read in the order of their index from behind the last portion on, so what
// dies again meanwhile is not met once more.
#define END_OF(RANGE)                                                                                                  \
  "SELECT room_id, message, n FROM (SELECT room_id, message, count(*) OVER () AS n FROM"                               \
  " (SELECT e.room_id, e.message FROM stillhere.webhook_event e WHERE e.target = $1 AND e.dead_at IS NOT NULL"         \
  " AND " RANGE " ORDER BY e.room_id, e.message LIMIT $4) p) q ORDER BY room_id DESC, message DESC LIMIT 1"

static const struct db_stmt end_stmt = {
    .name = "webhook_replay_end",
    .sql = END_OF("(e.room_id, e.message) > ($2, $3)"),
};

static const struct db_stmt room_end_stmt = {
    .name = "webhook_replay_room_end",
    .sql = END_OF("e.room_id = $2 AND e.message > $3 AND e.message <= $5"),
};

#define PORTION_OF                                                                                                     \
  " e.target = $1 AND e.dead_at IS NOT NULL AND (e.room_id, e.message) > ($2, $3)"                                     \
  " AND (e.room_id, e.message) <= ($4, $5)"

static const struct db_stmt lanes_stmt = {
    .name = "webhook_replay_lanes",
    .sql =
        "INSERT INTO stillhere.webhook_lane AS l (room_id, target, replay, newest)"
        " SELECT e.room_id, e.target, true, max(e.revision) FROM stillhere.webhook_event e WHERE" PORTION_OF
        " GROUP BY 1, 2 ORDER BY 1, 2"
        " ON CONFLICT (room_id, target, replay) DO UPDATE SET newest = GREATEST(l.newest, excluded.newest), done = 0,"
        " due_at = LEAST(l.due_at, excluded.due_at)",
};

// Only where the lane is there, and so locked: what died in between waits for the next time.
#define REPLAY(now)                                                                                                    \
  "UPDATE stillhere.webhook_event e SET replay = true, dead_at = NULL, error = NULL, attempts = 0,"                    \
  " created_at = " now " FROM stillhere.webhook_lane l WHERE" PORTION_OF                                               \
  " AND l.room_id = e.room_id AND l.target = e.target AND l.replay AND l.newest > l.done"                              \
  " AND l.newest >= e.revision"
static const struct db_stmt events_stmt = {
    .name = "webhook_replay_events",
    .sql = REPLAY(DB_TIME_PLAIN),
    .distributed = REPLAY(DB_TIME_DISTRIBUTED),
};

/// One transaction.
struct portion {
  const struct webhook_replay *replay;
  struct webhook_cursor end; ///< of the last message in it
  bool full;                 ///< there may be more behind it
  bool written;              ///< but for the commit
  int64_t n;
};

/// @param[out] any whether there is a portion left
static enum db_status find_end(struct db *db, struct portion *p, bool *any) {
  const struct webhook_replay *a = p->replay;
  struct db_params params = {0};
  db_p_text(&params, a->target);
  db_p_text(&params, a->after.room_id);
  db_p_int8(&params, a->after.message);
  db_p_int8(&params, PORTION);
  if (a->room_id != NULL)
    db_p_int8(&params, a->message > 0 ? a->message : INT64_MAX);
  PGresult *r = NULL;
  enum db_status status = db_run(db, a->room_id != NULL ? &room_end_stmt : &end_stmt, &params, &r);
  *any = status == DB_OK && PQntuples(r) == 1;
  if (*any) {
    (void)snprintf(p->end.room_id, sizeof p->end.room_id, "%s", db_text(r, 0, 0));
    p->end.message = db_int8(r, 0, 1);
    p->full = db_int8(r, 0, 2) >= PORTION;
  }
  PQclear(r);
  db_params_clear(&params);
  return status;
}

static enum db_status portion_work(struct db *db, void *ctx) {
  struct portion *p = ctx;
  const struct webhook_replay *a = p->replay;
  *p = (struct portion){.replay = a, .end = a->after};
  bool any;
  enum db_status status = find_end(db, p, &any);
  if (!any)
    return status;
  struct db_params params = {0};
  db_p_text(&params, a->target);
  db_p_text(&params, a->after.room_id);
  db_p_int8(&params, a->after.message);
  db_p_text(&params, p->end.room_id);
  db_p_int8(&params, p->end.message);
  struct db_step steps[] = {{&lanes_stmt, &params}, {&events_stmt, &params}};
  PGresult *results[2] = {0};
  status = db_pipeline(db, steps, 2, results);
  if (status == DB_OK)
    p->n = strtoll(PQcmdTuples(results[1]), NULL, 10);
  p->written = status == DB_OK;
  PQclear(results[0]);
  PQclear(results[1]);
  db_params_clear(&params);
  return status;
}

/// A room begins at its first message, and one message right before itself.
static void begin(struct webhook_replay *a) {
  int64_t before = a->message > 0 ? a->message - 1 : 0;
  if (a->room_id == NULL || (strcmp(a->after.room_id, a->room_id) == 0 && a->after.message >= before))
    return;
  (void)snprintf(a->after.room_id, sizeof a->after.room_id, "%s", a->room_id);
  a->after.message = before;
}

enum db_status webhook_replay(struct db *db, struct webhook_replay *a) {
  begin(a);
  struct portion p = {.replay = a};
  enum db_status status = db_transaction(db, portion_work, &p);
  a->in_doubt = status == DB_LOST && p.written;
  a->more = status == DB_OK && p.full;
  if (status == DB_OK) {
    a->after = p.end;
    a->n += p.n;
  }
  return status;
}
