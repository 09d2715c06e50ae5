// SPDX-License-Identifier: Apache-2.0
/// @file
/// A request that waits for the writer. The job may outlive the request (which answers 503 when its time is up), so
/// the two are untied here: whoever ends last frees the handler's state.
#ifndef SH_HTTP_WRITE_REQUEST_H
#define SH_HTTP_WRITE_REQUEST_H

#include "http/request.h"
#include "live/writer.h"

/// How long ops may wait for their commit, from the request's arrival, microseconds; what is not decided then is given
/// back as unavailable, each by itself.
#define WRITE_WAIT_US INT64_C(4200000)

/// When the request answers in any case, its ops given back or not: a 503 comes within 5 s.
#define WRITE_ANSWER_US INT64_C(4800000)

/// The first member of a handler's state. Zero-initialise.
struct write_request {
  struct write_job job;
  struct request *request;               ///< NULL once the request is gone
  const struct credential *credential;   ///< its name is in the ops; a reference
  bool pending;                          ///< the job is with the writer
  void (*free)(struct write_request *w); ///< frees the handler's state
};

/// Makes @a w the state of the request. From then on it is freed through w->free by itself.
void write_request_attach(struct write_request *w, struct request *r, void (*free)(struct write_request *w));

/// Submits the ops and parks the request; @a resumed is called when they are decided or the time is up.
/// @return false when the queue is full (answered with 503)
bool write_request_submit(struct write_request *w, struct op **ops, size_t n,
                          enum request_verdict (*resumed)(struct request *r, enum wake_reason reason));

/// For `resumed`: whether the ops are decided. If not, it has parked again or sent a 503, and *verdict is to be
/// returned.
bool write_request_decided(struct write_request *w, enum wake_reason reason, enum request_verdict *verdict);

#endif
