// SPDX-License-Identifier: Apache-2.0
#include "http/change.h"

#include <stdio.h>
#include <string.h>

#include "auth/credential.h"
#include "base/clock.h"
#include "base/jsonout.h"
#include "base/strict.h"

/// How long the job may wait for its turn, from the request's arrival on, and when the request is answered in any case.
#define JOB_US INT64_C(3800000)
#define PATIENCE_US INT64_C(4500000)

static void read_free(struct request_read *read) {
  struct change *c = CONTAINER_OF(read, struct change, read);
  c->free(c);
}

static void drop_state(void *state) {
  struct change *c = state;
  request_read_drop(&c->read);
}

static enum db_status run(struct db *db, struct read_job *job) {
  struct change *c = CONTAINER_OF(job, struct change, read.job);
  return c->run(db, c);
}

// Whoever half-closed the connection, and who waits while the server drains, still gets the answer when it is due.
static enum request_verdict resumed(struct request *r, enum wake_reason reason) {
  (void)reason;
  struct change *c = r->state;
  int64_t now_us = clock_mono_us();
  if (!c->read.done && now_us < r->arrived_us + PATIENCE_US) {
    request_park(r, r->arrived_us + PATIENCE_US, resumed);
    return REQUEST_PARKED;
  }
  if (!c->read.done || c->read.job.status != DB_OK) {
    const char *detail = "the database could not be asked; try again";
    if (c->read.done && c->in_doubt)
      detail = "the database went away in the midst of it: it may have been done";
    else if (c->read.done && c->read.job.status == DB_FAILED)
      detail = DETAIL_FAILED;
    r->state = NULL;
    request_read_drop(&c->read);
    request_unavailable(r, detail);
    return REQUEST_DONE;
  }
  if (c->answer_us == 0)
    c->answer_us = now_us + c->hold_us;
  if (now_us < c->answer_us) {
    request_park(r, c->answer_us, resumed);
    return REQUEST_PARKED;
  }
  c->answer(r, c);
  return REQUEST_DONE;
}

static void take_name(struct change *c, const struct request *r) {
  if (r->credential == NULL)
    return;
  (void)snprintf(c->by, sizeof c->by, "%s", r->credential->name);
  for (size_t len = strlen(c->by); !utf8_valid(c->by, len); len--)
    c->by[len - 1] = '\0';
}

enum request_verdict change_start(struct change *c, struct request *r, struct reader_pool *pool) {
  if (c == NULL) {
    request_unavailable(r, "out of memory; try again");
    return REQUEST_DONE;
  }
  c->service = r->worker->service;
  c->read.job.run = run;
  c->read.free = read_free;
  c->read.pool = pool;
  memcpy(c->request_id, r->id, sizeof c->request_id);
  take_name(c, r);
  if (!request_read_submit(&c->read, r, r->arrived_us + JOB_US)) {
    request_unavailable(r, "too many requests wait for the database; try again");
    return REQUEST_DONE;
  }
  r->state = c;
  r->free_state = drop_state;
  request_park(r, r->arrived_us + PATIENCE_US, resumed);
  return REQUEST_PARKED;
}

void change_end_json(struct buf *out, const struct change *c) {
  jo_ktime(out, "server_time", clock_db_us());
  jo_kstr(out, "request_id", c->request_id);
  jo_object_end(out);
}

const char *change_by(const struct change *c) {
  return c->by[0] != '\0' ? c->by : NULL;
}
