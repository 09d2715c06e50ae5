// SPDX-License-Identifier: Apache-2.0
// PUT /leases: heartbeats, one or many, and with `since` a poll in the same request.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "http/access.h"
#include "http/handlers.h"
#include "http/lease_input.h"
#include "http/lease_reply.h"
#include "http/presence.h"
#include "http/standing.h"
#include "http/worker.h"
#include "http/write_request.h"
#include "live/limits.h"
#include "live/load.h"

/// Events in the reply to `since` at most.
#define EVENTS_MAX 1000

struct lease_put {
  struct write_request write; ///< first
  struct lease_input input;
  struct op **ops;
  bool wants_presence;
  struct presence presence;
  char request_id[REQUEST_ID_MAX + 1]; ///< the ops' own: they may outlive the request
};

static void put_free(struct write_request *write) {
  struct lease_put *put = (struct lease_put *)write;
  presence_clear(&put->presence);
  lease_input_free(&put->input);
  free(put->ops);
  free(put);
}

/// The reply of one item of a batch: never more than its own trouble.
static void add_item(struct buf *b, const struct lease_item *item, const struct request *r) {
  if (item->ok) {
    // An element like any other: jo_object() puts the comma.
    lease_reply_open(b, &item->op, r);
  } else if (item->refusal != NULL) {
    access_note(r, item->refusal->status, item->refusal->code);
    problem_open(b, item->refusal->status, item->refusal->code, NULL, item->refusal->detail, r->id);
  } else {
    problem_open(b, 400, item->problem.code, item->problem.field, item->problem.detail, r->id);
  }
  jo_object_end(b);
}

static void reply_batch(struct request *r, const struct lease_put *put) {
  struct buf b = {0};
  jo_object(&b);
  jo_key(&b, "results");
  jo_array(&b);
  for (size_t i = 0; i < put->input.n; i++) {
    add_item(&b, &put->input.items[i], r);
  }
  jo_array_end(&b);
  jo_kstr(&b, "request_id", r->id);
  jo_object_end(&b);
  request_reply_json(r, 200, &b, NULL);
}

/// Answers with the op's decision and, where presence is given, the reply to `since`.
static void reply_single(struct request *r, struct lease_put *put, struct presence *presence) {
  const struct op *op = &put->input.items[0].op;
  if (presence == NULL) {
    lease_reply_send(r, op, NULL);
    return;
  }
  struct buf members = {0};
  buf_puts(&members, ",\"presence\":");
  buf_add(&members, presence->answer.body->data, presence->answer.body->len);
  presence_suffix(presence, &members);
  presence_count(presence);
  if (members.failed) {
    request_unavailable(r, "out of memory");
  } else {
    lease_reply_send(r, op, &members);
  }
  buf_free(&members);
}

static enum request_verdict presence_step(struct request *r, struct lease_put *put, enum presence_step step) {
  switch (step) {
  case PRESENCE_WAITING:
    return REQUEST_PARKED;
  case PRESENCE_READY:
    reply_single(r, put, &put->presence);
    break;
  case PRESENCE_UNAVAILABLE:
  case PRESENCE_TOO_MANY_WAITING:
    // The heartbeat is committed and must be acknowledged; the poll can be made again.
    reply_single(r, put, NULL);
    break;
  }
  return REQUEST_DONE;
}

static enum request_verdict presence_resumed(struct request *r, enum wake_reason reason) {
  struct lease_put *put = r->state;
  if (standing_check(r) != NULL) { // what is committed is acknowledged; presence is for others now
    reply_single(r, put, NULL);
    return REQUEST_DONE;
  }
  return presence_step(r, put, presence_resume(&put->presence, reason));
}

static enum request_verdict decided(struct request *r, enum wake_reason reason) {
  struct lease_put *put = r->state;
  enum request_verdict verdict;
  if (!write_request_decided(&put->write, reason, &verdict)) {
    return verdict;
  }
  if (put->input.batch) {
    reply_batch(r, put);
    return REQUEST_DONE;
  }
  const struct op *op = &put->input.items[0].op;
  if (!put->wants_presence || decision_status(op->decision) != 200 || standing_check(r) != NULL) {
    reply_single(r, put, NULL);
    return REQUEST_DONE;
  }
  struct presence *p = &put->presence;
  p->request = r;
  p->query.room_id = op->key.room_id;
  p->query.asked_us = clock_mono_us();
  p->resumed = presence_resumed;
  return presence_step(r, put, presence_begin(p));
}

/// Asks for each lease whether the caller may write it. @return the refusal of a single lease, else NULL
static const struct refusal *judge(const struct request *r, struct lease_input *in) {
  for (size_t i = 0; i < in->n; i++) {
    struct lease_item *item = &in->items[i];
    const struct lease_key *key = &item->op.key;
    if (item->ok) {
      item->refusal = access_write(r, key->room_id, key->user_id, key->session_id);
    }
    item->ok = item->ok && item->refusal == NULL;
  }
  return in->batch ? NULL : in->items[0].refusal;
}

/// `since` reads the room as well. Asked before anything is written.
static const struct refusal *judge_since(const struct request *r, const struct lease_put *put) {
  return put->wants_presence ? access_read(r, put->input.items[0].op.key.room_id) : NULL;
}

/// Collects the ops of the input; while the database is slow they ask for more time than their clients did.
/// @return false when memory ran out
static bool collect_ops(const struct request *r, struct lease_put *put, size_t *n) {
  const struct service *service = r->worker->service;
  int64_t now_us = clock_mono_us();
  *n = 0;
  put->ops = calloc(put->input.n > 0 ? put->input.n : 1, sizeof(struct op *));
  for (size_t i = 0; put->ops != NULL && i < put->input.n; i++) {
    if (put->input.items[i].ok) {
      struct op *op = &put->input.items[i].op;
      op->ttl_ms = load_lengthen(service->load, op->ttl_ms, service->config->ttl_max_ms, now_us);
      put->ops[(*n)++] = op;
    }
  }
  return put->ops != NULL;
}

/// A batch costs as much as its leases would one by one. The first was paid for at the request's head.
/// @return false when it is more than the credential has left (answered with 429)
static bool pay(struct request *r, size_t n_leases) {
  if (n_leases < 2) {
    return true;
  }
  int64_t wait_ms = limits_credential_rest(r->worker->service->limits, r->credential, (int64_t)n_leases - 1);
  if (wait_ms == 0) {
    return true;
  }
  struct reply_headers headers = {.retry_after_s = (int)((wait_ms + 999) / 1000)};
  request_problem_headers(r, 429, "too_many_requests", NULL, &headers,
                          "%zu leases at once are more than this credential has left; send fewer, or try again later",
                          n_leases);
  return false;
}

enum request_verdict h_lease_put(struct request *r) {
  struct lease_put *put = calloc(1, sizeof *put);
  if (put == NULL) {
    request_unavailable(r, "out of memory");
    return REQUEST_DONE;
  }
  write_request_attach(&put->write, r, put_free);
  memcpy(put->request_id, r->id, sizeof put->request_id);
  put->presence.query = (struct presence_query){.kinds = EVENT_KINDS_ALL, .limit = EVENTS_MAX, .view = VIEW_SESSIONS};
  if (!presence_parse_cursor(r, &put->presence.query)) {
    return REQUEST_DONE;
  }
  struct input_problem problem;
  const struct config *config = r->worker->service->config;
  if (!lease_input_read(&put->input, r->body.data, r->body.len, config, put->request_id, &problem)) {
    request_bad_input(r, &problem);
    return REQUEST_DONE;
  }
  put->wants_presence = put->presence.query.has_since;
  if (put->input.batch && put->wants_presence) {
    request_problem(r, 400, "bad_parameter", "since", "since goes with a single lease, not with a batch");
    return REQUEST_DONE;
  }
  const struct refusal *refusal = judge(r, &put->input);
  if (refusal == NULL) {
    refusal = judge_since(r, put);
  }
  if (refusal != NULL) {
    request_refused(r, refusal);
    return REQUEST_DONE;
  }
  r->answers_first = true;
  size_t n;
  if (!pay(r, put->input.n)) {
    return REQUEST_DONE;
  }
  if (!collect_ops(r, put, &n)) {
    request_unavailable(r, "out of memory");
    return REQUEST_DONE;
  }
  if (n == 0) {
    reply_batch(r, put);
    return REQUEST_DONE;
  }
  return write_request_submit(&put->write, put->ops, n, decided) ? REQUEST_PARKED : REQUEST_DONE;
}
