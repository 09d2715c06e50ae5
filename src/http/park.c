// SPDX-License-Identifier: Apache-2.0
#include <utlist.h>

#include "base/metric.h"
#include "http/inside.h"
#include "http/standing.h"
#include "live/limits.h"

static void leave_parked(struct worker_loop *loop, struct request *r) {
  heap_remove(&loop->waits, &r->deadline);
  DL_DELETE2(loop->parked, r, prev, next);
}

/// Takes the request out of the waiting ones and has it resumed in the next turn of the loop.
static void release(struct worker_loop *loop, struct request *r, enum request_phase phase) {
  r->phase = (int)phase;
  leave_parked(loop, r);
  DL_APPEND2(loop->woken, r, prev, next);
  r->to_resume = true;
}

void park_taken(struct request *r) {
  if (r->to_resume)
    DL_DELETE2(r->conn->loop->woken, r, prev, next);
  r->to_resume = false;
}

/// There is no memory to wait with.
static void wake_at_once(struct request *r) {
  r->cut_short = false;
  request_wake(r, WAKE_DEADLINE);
}

void request_park(struct request *r, int64_t deadline_us,
                  enum request_verdict (*resumed)(struct request *r, enum wake_reason reason)) {
  struct worker_loop *loop = r->conn->loop;
  r->resumed = resumed;
  r->phase = PHASE_PARKED;
  r->park_until_us = deadline_us;
  int64_t over_us = standing_until_us(r);
  r->cut_short = over_us < deadline_us;
  conn_set_deadline(r->conn, INT64_MAX);
  DL_APPEND2(loop->parked, r, prev, next);
  if (loop->aborting)
    release(loop, r, PHASE_ABORTED);
  else if (!heap_add(&loop->waits, &r->deadline, r->cut_short ? over_us : deadline_us))
    wake_at_once(r);
  else if (r->conn->client_closed && !r->told_gone)
    request_wake(r, WAKE_GONE);
  else if (loop->draining && !r->told_draining)
    request_wake(r, WAKE_DRAINING);
}

// Not in request_park(), but one call later. Only a connection that was left without reply and without suspension for
// one turn is marked by libmicrohttpd as waiting for the application. Otherwise it is still marked as reading, is read
// from when it is resumed, and a client that has half-closed loses its answer (and everyone pays for a vain recv()).
void park_suspend(struct request *r) {
  MHD_suspend_connection(r->connection);
  r->suspended = true;
  if (r->counted_waiting && !r->told_gone && tls_conn_says_bye(r->conn))
    conn_client_closed(r->conn);
}

void request_wake(struct request *r, enum wake_reason reason) {
  if (r->phase != PHASE_PARKED)
    return;
  if (reason == WAKE_GONE)
    r->told_gone = true;
  else if (reason == WAKE_DRAINING)
    r->told_draining = true;
  r->reason = reason;
  release(r->conn->loop, r, PHASE_WOKEN);
}

/// A stream's connection is active or suspended as its reader wants; what was parked is the handler alone.
static void resume_stream(struct request *r) {
  bool aborted = r->phase == PHASE_ABORTED;
  r->phase = PHASE_HANDLING;
  if (aborted) {
    stream_abort(r);
  } else if (standing_resume(r) == REQUEST_DONE) {
    stream_end(r);
    park_forget(r);
    conn_replied(r->conn);
  }
}

void park_resume(struct worker_loop *loop) {
  struct request *r, *tmp;
  DL_FOREACH_SAFE2(loop->woken, r, tmp, next) {
    park_taken(r);
    if (r->stream != NULL) {
      resume_stream(r);
      continue;
    }
    if (r->suspended)
      MHD_resume_connection(r->connection);
    r->suspended = false;
  }
}

void park_expire(struct worker_loop *loop, int64_t now_us) {
  struct heap_node *node;
  while ((node = heap_first(&loop->waits)) != NULL && node->due_us <= now_us)
    request_wake(CONTAINER_OF(node, struct request, deadline), WAKE_DEADLINE);
}

void park_wake_all(struct worker_loop *loop, enum wake_reason reason) {
  struct request *r, *tmp;
  DL_FOREACH_SAFE2(loop->parked, r, tmp, next)
  request_wake(r, reason);
}

void park_abort(struct worker_loop *loop) {
  struct request *r, *tmp;
  DL_FOREACH_SAFE2(loop->parked, r, tmp, next)
  release(loop, r, PHASE_ABORTED);
}

static const struct sockaddr *client_address(const struct request *r) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  return info != NULL ? info->client_addr : NULL;
}

bool request_count_waiting(struct request *r) {
  if (r->counted_waiting)
    return true;
  const struct service *service = r->worker->service;
  r->own_limit = !limits_wait(service->limits, r->credential, client_address(r));
  if (r->own_limit)
    return false;
  if (atomic_fetch_add(&service->lifecycle->waiting, 1) >= service->config->longpoll_max_waiting) {
    atomic_fetch_sub(&service->lifecycle->waiting, 1);
    limits_wait_over(service->limits, r->credential, client_address(r));
    return false;
  }
  r->counted_waiting = true;
  metric_add(METRIC_LONGPOLL_WAITING, 1);
  return true;
}

void request_too_many_waiting(struct request *r) {
  if (r->own_limit) {
    metric_add(METRIC_LIMITED_WAITING, 1);
    request_problem(r, 429, "too_many_waiting", NULL,
                    "this %s has as many polls and streams waiting as it may; end one, or poll with wait_ms=0",
                    r->credential != NULL ? "credential" : "address");
  } else {
    metric_add(METRIC_LIMITED_ALL_WAITING, 1);
    request_problem(r, 503, "too_many_waiting", NULL,
                    "too many polls and streams wait; try again, or poll with wait_ms=0");
  }
}

void park_forget(struct request *r) {
  // Parked still: the connection broke before it was suspended.
  if (r->phase == PHASE_PARKED)
    leave_parked(r->conn->loop, r);
  r->phase = PHASE_HANDLING;
  park_taken(r);
  request_unwatch(r);
  if (!r->counted_waiting)
    return;
  r->counted_waiting = false;
  atomic_fetch_sub(&r->worker->service->lifecycle->waiting, 1);
  limits_wait_over(r->worker->service->limits, r->credential, client_address(r));
  metric_add(METRIC_LONGPOLL_WAITING, -1);
}
