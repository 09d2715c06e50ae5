// SPDX-License-Identifier: Apache-2.0
#include "http/standing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "auth/authority.h"
#include "auth/credential.h"
#include "base/clock.h"
#include "http/request_read.h"
#include "http/route.h"
#include "http/stream.h"
#include "http/worker.h"
#include "live/member_gate.h"

/// The two clocks may differ a little: a request that was woken at its credential's end a moment too early looks again
/// after this time.
#define LOOK_AGAIN_US 50000
/// A room that could not be read for so long after the request's arrival is unavailable.
#define LOAD_US INT64_C(4500000)

static const struct refusal membership_revoked = {403, "membership_revoked",
                                                  "the user's membership of this room was revoked"};

static bool watches(const struct request *r) {
  return r->route != NULL && (r->route->flags & ROUTE_WATCHES) != 0;
}

/// When the credential is over on the database's clock. @return false: never
static bool over_at(const struct request *r, int64_t *db_us) {
  if (r->credential == NULL || r->credential->expires_us == INT64_MAX)
    return false;
  *db_us = r->credential->expires_us + r->worker->service->config->jwt_leeway_ms * 1000;
  return true;
}

static const struct refusal *judge_credential(struct request *r) {
  int64_t over_us;
  if (over_at(r, &over_us) && clock_db_us() >= over_us)
    return &access_expired;
  if (r->credential != NULL && authority_generation(r->worker->service->authority) != r->authority_generation)
    return access_again(r);
  return NULL;
}

/// Whose membership of which room the request needs. @return false: of none
static bool needs_member(const struct request *r, const char **room_id, const char **user_id) {
  *room_id = watches(r) ? access_path_param(r, "{room}") : NULL;
  *user_id = *room_id != NULL ? access_person(r) : NULL;
  return *user_id != NULL;
}

/// What memory knows of the caller's membership of the room that is watched.
static const struct refusal *judge_membership(const struct request *r) {
  const char *room_id, *user_id;
  if (!needs_member(r, &room_id, &user_id))
    return NULL;
  bool revoked = member_standing(r->worker->service->tail, room_id, user_id) == STANDING_REVOKED;
  return revoked ? &membership_revoked : NULL;
}

const struct refusal *standing_check(struct request *r) {
  if (!watches(r))
    return NULL;
  const struct refusal *refusal = judge_credential(r);
  return refusal != NULL ? refusal : judge_membership(r);
}

int64_t standing_until_us(const struct request *r) {
  int64_t over_us;
  if (!watches(r) || r->answers_first || !over_at(r, &over_us))
    return INT64_MAX;
  int64_t left_us = over_us - clock_db_us();
  return clock_mono_us() + (left_us > LOOK_AGAIN_US ? left_us : LOOK_AGAIN_US);
}

enum request_verdict standing_resume(struct request *r) {
  // A stream that was cut, or a request that owes another answer, ends by itself.
  bool can_expel = !r->answers_first && (!r->replied || stream_open(r));
  const struct refusal *refusal = can_expel ? standing_check(r) : NULL;
  if (refusal != NULL) {
    request_expel(r, refusal->status, refusal->code, refusal->detail);
    return REQUEST_DONE;
  }
  if (r->reason == WAKE_DEADLINE && r->cut_short && clock_mono_us() < r->park_until_us) {
    request_park(r, r->park_until_us, r->resumed);
    return REQUEST_PARKED;
  }
  return r->resumed(r, r->reason);
}

void standing_look_over(struct worker_loop *loop) {
  struct request *r, *tmp;
  DL_FOREACH_SAFE2(loop->parked, r, tmp, next) {
    if (!r->answers_first && standing_check(r) != NULL)
      request_wake(r, WAKE_DONE);
  }
}

void standing_revoked(void *ctx, const char *room_id) {
  const struct worker *worker = ctx;
  struct request *r, *tmp;
  DL_FOREACH_SAFE2(worker->loop->parked, r, tmp, next) {
    const char *room, *user_id;
    if (!r->answers_first && needs_member(r, &room, &user_id) && strcmp(room, room_id) == 0 &&
        judge_membership(r) != NULL)
      request_wake(r, WAKE_ROOM);
  }
}

// -- the beginning -------------------------------------------------------------------------------------------------

/// A question to the database, for a room with more revoked users than memory keeps.
struct member_read {
  struct request_read read;
  bool revoked;
  char room_id[IDENT_MAX + 1], user_id[IDENT_MAX + 1];
};

static enum request_verdict turn_away(struct request *r, const struct refusal *refusal) {
  request_refused(r, refusal);
  return REQUEST_DONE;
}

static enum request_verdict go_in(struct request *r) {
  r->told_gone = r->told_draining = false; // the handler has not been told
  return r->route->handle(r);
}

static enum db_status read_run(struct db *db, struct read_job *job) {
  struct member_read *read = CONTAINER_OF(job, struct member_read, read.job);
  return read_revoked(db, read->room_id, read->user_id, &read->revoked);
}

static void read_free(struct request_read *base) {
  free(CONTAINER_OF(base, struct member_read, read));
}

static void drop_state(void *state) {
  struct member_read *read = state;
  request_read_drop(&read->read);
}

static enum request_verdict was_read(struct request *r, enum wake_reason reason) {
  (void)reason; // a client that half-closed its side still gets its answer
  struct member_read *read = r->state;
  if (!read->read.done && clock_mono_us() < r->arrived_us + LOAD_US) {
    request_park(r, r->arrived_us + LOAD_US, was_read);
    return REQUEST_PARKED;
  }
  bool known = read->read.done && read->read.job.status == DB_OK, revoked = read->revoked;
  drop_state(read);
  r->state = NULL;
  r->free_state = NULL;
  if (known)
    return revoked ? turn_away(r, &membership_revoked) : go_in(r);
  request_unavailable(r, "the membership could not be read; try again");
  return REQUEST_DONE;
}

static enum request_verdict ask_database(struct request *r, const char *room_id, const char *user_id) {
  struct member_read *read = calloc(1, sizeof *read);
  if (read == NULL) {
    request_unavailable(r, "out of memory; try again");
    return REQUEST_DONE;
  }
  (void)snprintf(read->room_id, sizeof read->room_id, "%s", room_id);
  (void)snprintf(read->user_id, sizeof read->user_id, "%s", user_id);
  read->read.job.run = read_run;
  read->read.free = read_free;
  if (!request_read_submit(&read->read, r, r->arrived_us + LOAD_US)) {
    request_unavailable(r, "too many requests read the database at once; try again");
    return REQUEST_DONE;
  }
  r->state = read;
  r->free_state = drop_state;
  request_park(r, r->arrived_us + LOAD_US, was_read);
  return REQUEST_PARKED;
}

/// Looks at the membership once memory is sure to have the room as it is, or was a moment ago.
static enum request_verdict look(struct request *r, enum wake_reason reason) {
  (void)reason; // a client that half-closed its side still gets its answer
  struct tail *tail = r->worker->service->tail;
  const char *room_id, *user_id;
  if (!needs_member(r, &room_id, &user_id))
    return go_in(r);
  bool watching = request_watch(r, room_id);
  if (watching && tail_current(tail, r->worker->id, room_id, r->arrived_us)) {
    switch (member_standing(tail, room_id, user_id)) {
    case STANDING_GOOD:
      return go_in(r);
    case STANDING_REVOKED:
      return turn_away(r, &membership_revoked);
    case STANDING_UNKNOWN:
      return ask_database(r, room_id, user_id);
    }
  }
  if (watching && clock_mono_us() < r->arrived_us + LOAD_US) {
    request_park(r, r->arrived_us + LOAD_US, look);
    return REQUEST_PARKED;
  }
  request_unavailable(r, watching ? "the room could not be read; try again" : "out of memory; try again");
  return REQUEST_DONE;
}

enum request_verdict standing_begin(struct request *r) {
  const struct refusal *refusal = watches(r) ? judge_credential(r) : NULL;
  return refusal != NULL ? turn_away(r, refusal) : look(r, WAKE_DONE);
}
