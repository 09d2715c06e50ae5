// SPDX-License-Identifier: Apache-2.0
#include "http/lease_reply.h"

#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "base/rand.h"
#include "db/epoch.h"
#include "http/access.h"
#include "http/worker.h"

/// Bytes of a usual reply.
#define REPLY_USUAL 600

/// A client renews after a third of its time, less up to a fifth of that, so that those who started together drift
/// apart, but no sooner than it may. A lease that was not extended (already applied) has less left than its ttl.
static int64_t renew_after_ms(const struct op *op, int64_t least_ms, int64_t now_us) {
  const struct lease *lease = &op->lease;
  int64_t left_ms = (lease->expires_at_us - now_us) / 1000;
  int64_t span_ms = left_ms < lease->ttl_ms ? left_ms : lease->ttl_ms;
  int64_t after_ms = span_ms > 0 ? jitter_down(span_ms / 3, 5) : 0;
  return op->decision == DECISION_ACCEPTED && after_ms < least_ms ? least_ms : after_ms;
}

static void add_lease(struct buf *b, const struct lease *lease) {
  const char *meta = lease->meta != NULL ? lease->meta : "{}";
  jo_key(b, "lease");
  jo_object(b);
  jo_kstr(b, "room_id", lease->key.room_id);
  jo_kstr(b, "user_id", lease->key.user_id);
  jo_kstr(b, "session_id", lease->key.session_id);
  jo_kint(b, "revision", lease->revision);
  jo_kint(b, "ttl_ms", lease->ttl_ms);
  jo_ktime(b, "granted_at", lease->granted_at_us);
  jo_ktime(b, "renewed_at", lease->renewed_at_us);
  jo_ktime(b, "expires_at", lease->expires_at_us);
  jo_key(b, "meta");
  jo_raw(b, meta, strlen(meta));
  jo_object_end(b);
}

static void open_success(struct buf *b, const struct op *op, const struct request *r) {
  char epoch[EPOCH_SIZE];
  epoch_get(epoch);
  int64_t now_us = clock_db_us();
  jo_object(b);
  jo_kstr(b, "decision", decision_name(op->decision));
  if (op->kind == OP_HEARTBEAT) {
    jo_kbool(b, "granted", op->granted);
    add_lease(b, &op->lease);
  } else {
    jo_kstr(b, "event_id", op->event_id);
    jo_kint(b, "stored_revision", op->stored_revision);
  }
  jo_kstr(b, "epoch", epoch);
  if (op->kind == OP_HEARTBEAT) {
    jo_kint(b, "room_revision", op->room_revision);
    jo_kint(b, "renew_after_ms", renew_after_ms(op, r->worker->service->config->renew_interval_min_ms, now_us));
  } else if (op->room_revision > 0) {
    jo_kint(b, "room_revision", op->room_revision);
  }
  jo_ktime(b, "server_time", now_us);
  jo_kstr(b, "request_id", r->id);
}

static const char *explain(const struct op *op) {
  switch (op->decision) {
  case DECISION_IGNORED_OLD_REVISION:
    if (op->stored_revision == REVISION_MAX) {
      return "this lease is at the largest revision; begin with another session_id";
    }
    return op->kind == OP_CLOSE ? "a newer revision of this lease is stored; leave revision out, or send that one"
                                : "the revision is not above stored_revision; send one that is";
  case DECISION_SESSION_CLOSED:
    return "this session was closed; send a revision above stored_revision, or use a new session_id";
  case DECISION_MEMBERSHIP_REVOKED:
    return "this user's membership of the room was revoked";
  case DECISION_NOT_A_MEMBER:
    return "this room is for members, and this user is none";
  case DECISION_NOT_FOUND:
    return "there is no such lease, and none is remembered";
  case DECISION_TOO_SOON:
    return "this lease was renewed a moment ago; come again after retry_after_ms";
  case DECISION_TOO_MANY_LEASES:
    return op->user_full ? "this user has as many leases as one may; close one"
                         : "this room has as many leases as it may; try again when somebody has left";
  case DECISION_NONE:
  case DECISION_ACCEPTED:
  case DECISION_ALREADY_APPLIED:
    break;
  }
  return op->failed ? DETAIL_FAILED : "the database did not answer in time; try again";
}

int lease_reply_open(struct buf *b, const struct op *op, const struct request *r) {
  int status = decision_status(op->decision);
  if (status == 200) {
    open_success(b, op, r);
    return status;
  }
  access_note(r, status, decision_name(op->decision));
  problem_open(b, status, decision_name(op->decision), NULL, explain(op), r->id);
  if (op->decision != DECISION_NONE) {
    jo_kstr(b, "decision", decision_name(op->decision));
    if (op->stored_revision > 0) {
      jo_kint(b, "stored_revision", op->stored_revision);
    }
    if (op->retry_after_ms > 0) {
      jo_kint(b, "retry_after_ms", op->retry_after_ms);
    }
  }
  return status;
}

void lease_reply_send(struct request *r, const struct op *op, const struct buf *members) {
  struct buf b = {0};
  (void)buf_reserve(&b, REPLY_USUAL); // saves growing; what does not fit grows all the same
  int status = lease_reply_open(&b, op, r);
  if (status == 503) {
    buf_free(&b);
    request_unavailable(r, explain(op));
    return;
  }
  if (members != NULL) {
    buf_add(&b, members->data, members->len);
  }
  jo_object_end(&b);
  struct reply_headers headers = {.content_type = status == 200 ? "application/json" : "application/problem+json",
                                  .retry_after_s = (int)((op->retry_after_ms + 999) / 1000)};
  request_reply_json(r, status, &b, &headers);
}
