// SPDX-License-Identifier: Apache-2.0
#include "http/write_request.h"

#include "auth/credential.h"
#include "http/worker.h"

static void free_both(struct write_request *w) {
  credential_unref(w->credential);
  w->free(w);
}

static void request_gone(void *state) {
  struct write_request *w = state;
  w->request = NULL;
  if (!w->pending) {
    free_both(w);
  }
}

void write_request_attach(struct write_request *w, struct request *r, void (*free)(struct write_request *w)) {
  w->request = r;
  w->free = free;
  r->state = w;
  r->free_state = request_gone;
}

/// In the worker's thread, by its mailbox.
static void delivered(struct mail *mail) {
  struct write_job *job = CONTAINER_OF(mail, struct write_job, mail);
  struct write_request *w = CONTAINER_OF(job, struct write_request, job);
  w->pending = false;
  if (w->request == NULL) {
    free_both(w);
  } else {
    request_wake(w->request, WAKE_DONE);
  }
}

bool write_request_submit(struct write_request *w, struct op **ops, size_t n,
                          enum request_verdict (*resumed)(struct request *r, enum wake_reason reason)) {
  struct request *r = w->request;
  w->credential = credential_ref(r->credential);
  if (w->credential != NULL && w->credential->name[0] != '\0') {
    for (size_t i = 0; i < n; i++) {
      ops[i]->by = w->credential->name;
    }
  }
  w->job = (struct write_job){
      .mail = {.deliver = delivered},
      .reply_to = &r->worker->mailbox,
      .ops = ops,
      .n_ops = n,
      .deadline_us = r->arrived_us + WRITE_WAIT_US,
  };
  // Parked first: the mail can only be delivered by this thread, in a later turn of its loop.
  w->pending = writer_submit(r->worker->service->writer, &r->worker->outbox, &w->job);
  if (!w->pending) {
    request_unavailable(r, "more heartbeats are queued than the database takes; try again");
    return false;
  }
  request_park(r, r->arrived_us + WRITE_ANSWER_US, resumed);
  return true;
}

bool write_request_decided(struct write_request *w, enum wake_reason reason, enum request_verdict *verdict) {
  if (!w->pending) {
    return true;
  }
  if (reason == WAKE_DEADLINE) {
    request_unavailable(w->request, "the database did not answer in time; try again");
    *verdict = REQUEST_DONE;
    return false;
  }
  // The client half-closed or the server drains: what is under way is still answered.
  request_park(w->request, w->request->arrived_us + WRITE_ANSWER_US, w->request->resumed);
  *verdict = REQUEST_PARKED;
  return false;
}
