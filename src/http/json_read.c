// SPDX-License-Identifier: Apache-2.0
#include "http/json_read.h"

#include <stdlib.h>

#include "base/clock.h"
#include "http/request_read.h"

// How long a reply may take from the request's arrival on.
#define PATIENCE_US INT64_C(4500000)

struct job {
  struct request_read read;
  json_query *query;
  void *args;
  struct buf text; // result
};

static void job_free(struct request_read *base) {
  struct job *job = CONTAINER_OF(base, struct job, read);
  buf_free(&job->text);
  free(job->args);
  free(job);
}

static void drop_state(void *state) {
  struct job *job = state;
  request_read_drop(&job->read);
}

static enum db_status run(struct db *db, struct read_job *base) {
  struct job *job = CONTAINER_OF(base, struct job, read.job);
  buf_reset(&job->text);
  enum db_status status = job->query(db, job->args, &job->text);
  return status == DB_OK && job->text.failed ? DB_FAILED : status;
}

static int64_t deadline_of(const struct request *r) {
  return r->arrived_us + PATIENCE_US;
}

static enum request_verdict resumed(struct request *r, enum wake_reason reason) {
  (void)reason; // a client that half-closed its side still gets its reply
  struct job *job = r->state;
  if (!job->read.done && clock_mono_us() < deadline_of(r)) {
    request_park(r, deadline_of(r), resumed);
    return REQUEST_PARKED;
  }
  if (job->read.done && job->read.job.status == DB_OK) {
    request_reply_json(r, 200, &job->text, NULL);
    return REQUEST_DONE;
  }
  bool failed = job->read.done && job->read.job.status == DB_FAILED;
  r->state = NULL;
  request_read_drop(&job->read);
  request_unavailable(r, failed ? DETAIL_FAILED : "the database could not be read; try again");
  return REQUEST_DONE;
}

enum request_verdict json_read(struct request *r, json_query *query, void *args) {
  struct job *job = args == NULL ? NULL : calloc(1, sizeof *job);
  if (job == NULL) {
    free(args);
    request_unavailable(r, "out of memory; try again");
    return REQUEST_DONE;
  }
  job->query = query;
  job->args = args;
  job->read.job.run = run;
  job->read.free = job_free;
  if (!request_read_submit(&job->read, r, deadline_of(r))) {
    request_unavailable(r, "too many requests read the database at once; try again");
    return REQUEST_DONE;
  }
  r->state = job;
  r->free_state = drop_state;
  request_park(r, deadline_of(r), resumed);
  return REQUEST_PARKED;
}
