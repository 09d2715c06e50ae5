// SPDX-License-Identifier: Apache-2.0
// POST /rooms/{room}/cursors: a session's latest packet. The lease is read where memory does not say that it is live.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "http/access.h"
#include "http/cursor_input.h"
#include "http/handlers.h"
#include "http/request_read.h"
#include "http/worker.h"
#include "live/cursors.h"

/// How long the lease may take to be read, from the request's arrival on.
#define READ_US INT64_C(4500000)

/// Reads for one packet: each further one because the lease ended, or began, during the one before.
#define READS_MAX 4

struct cursor_read {
  struct request_read read;
  struct cursors *cursors;
  struct cursor_packet packet;
  bool open; ///< the cursors wait for cursors_checked() or cursors_give_up()
  enum cursors_put result;
  int64_t seq;
  char *data;
  char room_id[IDENT_MAX + 1], user_id[IDENT_MAX + 1], session_id[IDENT_MAX + 1];
};

static void cursor_read_free(struct request_read *base) {
  struct cursor_read *read = CONTAINER_OF(base, struct cursor_read, read);
  if (read->open)
    cursors_give_up(read->cursors, &read->packet.key);
  free(read->data);
  free(read);
}

static void drop_state(void *state) {
  struct cursor_read *read = state;
  request_read_drop(&read->read);
}

static enum db_status run(struct db *db, struct read_job *job) {
  struct cursor_read *read = CONTAINER_OF(job, struct cursor_read, read.job);
  for (int i = 0; i < READS_MAX && read->open; i++) {
    struct stay stay;
    enum db_status status = read_stays(db, &read->packet.key, 1, &stay);
    if (status != DB_OK)
      return status;
    read->result = cursors_checked(read->cursors, &read->packet, &stay, &read->seq);
    read->open = read->result == CURSOR_CHECK;
  }
  return DB_OK;
}

static enum request_verdict answer(struct request *r, enum cursors_put result, int64_t seq) {
  struct buf text = {0};
  switch (result) {
  case CURSOR_TAKEN:
    jo_object(&text);
    jo_kint(&text, "seq", seq);
    jo_ktime(&text, "server_time", clock_db_us());
    jo_kstr(&text, "request_id", r->id);
    jo_object_end(&text);
    request_reply_json(r, 202, &text, NULL);
    break;
  case CURSOR_NOT_LIVE:
    request_problem(r, 409, "no_live_lease", NULL, "the session has no live lease in this room; renew it first");
    break;
  case CURSOR_REVOKED:
    request_problem(r, 403, "membership_revoked", NULL, "the user's membership of this room was revoked");
    break;
  case CURSOR_FULL:
    request_problem_headers(r, 429, "too_many_cursors", NULL, NULL,
                            "this room, or the server, has as many cursors as it may have");
    break;
  case CURSOR_CHECK:
    request_unavailable(r, "the lease changes too fast; try again");
    break;
  case CURSOR_NO_MEMORY:
    request_unavailable(r, "out of memory; try again");
    break;
  }
  return REQUEST_DONE;
}

static int64_t deadline_of(const struct request *r) {
  return r->arrived_us + READ_US;
}

static enum request_verdict resumed(struct request *r, enum wake_reason reason) {
  (void)reason; // a client that half-closed its side still gets its answer
  const struct cursor_read *read = r->state;
  if (!read->read.done && clock_mono_us() < deadline_of(r)) {
    request_park(r, deadline_of(r), resumed);
    return REQUEST_PARKED;
  }
  if (read->read.done && read->read.job.status == DB_OK)
    return answer(r, read->result, read->seq);
  request_unavailable(r, "the lease could not be read; try again");
  return REQUEST_DONE;
}

static enum request_verdict check(struct request *r, struct cursor_read *read) {
  read->open = true;
  if (!request_read_submit(&read->read, r, deadline_of(r))) {
    request_unavailable(r, "too many requests read the database at once; try again");
    return REQUEST_DONE;
  }
  r->state = read;
  r->free_state = drop_state;
  request_park(r, deadline_of(r), resumed);
  return REQUEST_PARKED;
}

static enum request_verdict post(struct request *r, struct cursor_input *in) {
  const struct refusal *refusal = access_write(r, r->params[0], in->user_id, in->session_id);
  if (refusal != NULL) {
    request_refused(r, refusal);
    return REQUEST_DONE;
  }
  struct cursor_read *read = calloc(1, sizeof *read);
  if (read == NULL) {
    request_unavailable(r, "out of memory; try again");
    return REQUEST_DONE;
  }
  read->read.job.run = run;
  read->read.free = cursor_read_free;
  read->cursors = r->worker->service->cursors;
  read->data = in->data;
  in->data = NULL;
  (void)snprintf(read->room_id, sizeof read->room_id, "%s", r->params[0]);
  (void)snprintf(read->user_id, sizeof read->user_id, "%s", in->user_id);
  (void)snprintf(read->session_id, sizeof read->session_id, "%s", in->session_id);
  read->packet = (struct cursor_packet){
      .key = {read->room_id, read->user_id, read->session_id}, .data = read->data, .len = strlen(read->data)};
  read->result = cursors_put(read->cursors, &read->packet, &read->seq);
  if (read->result == CURSOR_CHECK)
    return check(r, read);
  enum request_verdict verdict = answer(r, read->result, read->seq);
  cursor_read_free(&read->read);
  return verdict;
}

enum request_verdict h_cursor_post(struct request *r) {
  if (!input_is_json(MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE))) {
    request_problem(r, 415, "unsupported_media_type", "Content-Type", "Content-Type must be application/json");
    return REQUEST_DONE;
  }
  struct cursor_input in;
  struct input_problem problem;
  enum request_verdict verdict = REQUEST_DONE;
  if (cursor_input_read(&in, r->body.data, r->body.len, &problem))
    verdict = post(r, &in);
  else
    request_bad_input(r, &problem);
  cursor_input_free(&in);
  return verdict;
}
