// SPDX-License-Identifier: Apache-2.0
#include "live/commit.h"

#include <stdlib.h>

#include "base/metric.h"
#include "store/renew_plain.h"

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

/// Mail for some of the workers, gathered so that each is rung once and finds all of it.
struct post {
  struct mailbox *box;
  struct mail *first, *last;
};
#define POSTS_MAX 16

static void post_all(struct post *posts, size_t n) {
  for (size_t i = 0; i < n; i++) {
    mailbox_post(posts[i].box, posts[i].first);
  }
}

/// @return how many posts there are now
static size_t gather(struct post posts[POSTS_MAX], size_t n, struct mailbox *box, struct mail *mail) {
  mail->next = NULL;
  for (size_t i = 0; i < n; i++) {
    if (posts[i].box == box) {
      posts[i].last->next = mail;
      posts[i].last = mail;
      return n;
    }
  }
  if (n == POSTS_MAX) {
    post_all(posts, n);
    n = 0;
  }
  posts[n] = (struct post){box, mail, mail};
  return n + 1;
}

/// Answers the ops. A job whose last op this was is in its owner's hands once it is posted.
static void answer(const struct writer_options *options, const struct op_ref *refs, size_t n) {
  struct decision_lines lines = {0};
  for (size_t i = 0; i < n; i++) {
    count_decision(refs[i].op);
    decision_lines_op(options->log, &lines, refs[i].op);
  }
  decision_log_write(options->log, &lines);
  struct post posts[POSTS_MAX];
  size_t n_posts = 0;
  for (size_t i = 0; i < n; i++) {
    struct write_job *job = refs[i].job;
    if (atomic_fetch_sub(&job->undone, 1) == 1) {
      n_posts = gather(posts, n_posts, job->reply_to, &job->mail);
    }
  }
  post_all(posts, n_posts);
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

enum db_status commit_renewals(const struct writer_options *options, struct db *db, struct op_ref *refs, size_t *n) {
  struct op *ops[STORE_BATCH_MAX];
  for (size_t i = 0; i < *n; i++) {
    ops[i] = refs[i].op;
  }
  enum db_status status = store_renew_plain(db, &options->rules, ops, *n);
  if (status != DB_OK) {
    return status;
  }
  struct op_ref renewed[STORE_BATCH_MAX];
  size_t n_renewed = 0, left = 0;
  for (size_t i = 0; i < *n; i++) {
    if (ops[i]->decision == DECISION_NONE) {
      refs[left++] = refs[i];
    } else {
      ops[n_renewed] = ops[i];
      renewed[n_renewed++] = refs[i];
    }
  }
  *n = left;
  if (n_renewed > 0) {
    metric_add(METRIC_BATCHES, 1);
    last_seen_note(options->last_seen, ops, n_renewed);
    answer(options, renewed, n_renewed);
  }
  return DB_OK;
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

void commit_refuse(const struct writer_options *options, const struct op_ref *ref) {
  op_clear_results(ref->op);
  ref->op->failed = true;
  answer(options, ref, 1);
}
