// SPDX-License-Identifier: Apache-2.0
#include "live/commit.h"

#include <stdlib.h>

#include "base/metric.h"

static void count_decision(const struct op *op) {
  static const enum metric metrics[] = {
      [DECISION_NONE] = METRIC_HEARTBEAT_UNAVAILABLE,
      [DECISION_ACCEPTED] = METRIC_HEARTBEAT_ACCEPTED,
      [DECISION_ALREADY_APPLIED] = METRIC_HEARTBEAT_ALREADY_APPLIED,
      [DECISION_IGNORED_OLD_REVISION] = METRIC_HEARTBEAT_IGNORED_OLD_REVISION,
      [DECISION_SESSION_CLOSED] = METRIC_HEARTBEAT_SESSION_CLOSED,
      [DECISION_MEMBERSHIP_REVOKED] = METRIC_HEARTBEAT_MEMBERSHIP_REVOKED,
      [DECISION_NOT_A_MEMBER] = METRIC_HEARTBEAT_NOT_A_MEMBER,
      [DECISION_TOO_SOON] = METRIC_HEARTBEAT_TOO_SOON,
      [DECISION_TOO_MANY_LEASES] = METRIC_HEARTBEAT_TOO_MANY_LEASES,
  };
  if (op->kind == OP_HEARTBEAT) {
    metric_add(metrics[op->decision], 1);
  }
  if (op->decision == DECISION_TOO_SOON) {
    metric_add(METRIC_LIMITED_RENEWAL, 1);
  } else if (op->decision == DECISION_TOO_MANY_LEASES) {
    metric_add(op->user_full ? METRIC_LIMITED_USER_LEASES : METRIC_LIMITED_ROOM_LEASES, 1);
  }
}

/// Answers the ops. A job whose last op this was is in its owner's hands after mailbox_post().
static void answer(const struct writer_options *options, const struct op_ref *refs, size_t n) {
  struct decision_lines lines = {0};
  for (size_t i = 0; i < n; i++) {
    count_decision(refs[i].op);
    decision_lines_op(options->log, &lines, refs[i].op);
  }
  decision_log_write(options->log, &lines);
  for (size_t i = 0; i < n; i++) {
    struct write_job *job = refs[i].job;
    if (atomic_fetch_sub(&job->undone, 1) == 1) {
      mailbox_post(job->reply_to, &job->mail);
    }
  }
}

void commit_tell(struct tail *tail, struct decision_log *log, struct written *written) {
  for (size_t i = 0; i < written->n_events; i++) {
    switch (written->events[i].kind) {
    case EVENT_LEASE_GRANTED:
      metric_add(METRIC_EVENT_LEASE_GRANTED, 1);
      break;
    case EVENT_LEASE_RENEWED:
      metric_add(METRIC_EVENT_LEASE_RENEWED, 1);
      break;
    case EVENT_LEASE_EXPIRED:
      metric_add(METRIC_EVENT_LEASE_EXPIRED, 1);
      break;
    case EVENT_SESSION_CLOSED:
      metric_add(METRIC_EVENT_SESSION_CLOSED, 1);
      break;
    case EVENT_USER_ONLINE:
      metric_add(METRIC_EVENT_USER_ONLINE, 1);
      break;
    case EVENT_USER_OFFLINE:
      metric_add(METRIC_EVENT_USER_OFFLINE, 1);
      break;
    case EVENT_MEMBERSHIP_REVOKED:
      metric_add(METRIC_EVENT_MEMBERSHIP_REVOKED, 1);
      break;
    case EVENT_KIND_COUNT:
      break;
    }
  }
  struct decision_lines lines = {0};
  for (size_t i = 0; i < written->n_expiries; i++) {
    metric_expiry_lateness(written->expiries[i].overdue_ms);
    decision_lines_expiry(log, &lines, &written->expiries[i]);
  }
  decision_log_write(log, &lines);
  tail_publish(tail, written->events, written->n_events);
}

enum db_status commit_batch(const struct writer_options *options, struct db *db, const struct op_ref *refs, size_t n,
                            bool *shared) {
  struct op *ops[STORE_BATCH_MAX];
  for (size_t i = 0; i < n; i++) {
    ops[i] = refs[i].op;
  }
  struct written written = {0};
  enum db_status status = refs[0].op->kind == OP_HEARTBEAT ? store_heartbeats(db, &options->rules, ops, n, &written)
                                                           : store_closes(db, &options->rules, ops, n, &written);
  if (status == DB_OK) {
    metric_add(METRIC_BATCHES, 1);
    // The tail first: what an instance accepted shows in its own next reply (CONTRACT §4).
    commit_tell(options->tail, options->log, &written);
    last_seen_note(options->last_seen, ops, n);
    answer(options, refs, n);
  }
  if (shared != NULL) {
    *shared = written.past_leases;
  }
  written_clear(&written);
  return status;
}

void commit_give_back(const struct writer_options *options, const struct op_ref *refs, size_t n) {
  for (size_t i = 0; i < n; i++) {
    op_clear_results(refs[i].op);
  }
  answer(options, refs, n);
}
