// SPDX-License-Identifier: Apache-2.0
// DELETE /rooms/{room}/leases/{user}/{session}: an explicit close.
#include <stdlib.h>
#include <string.h>

#include "base/strict.h"
#include "http/handlers.h"
#include "http/lease_reply.h"
#include "http/worker.h"
#include "http/write_request.h"

struct lease_close {
  struct write_request write; ///< first
  struct op op;
  struct op *ops[1];
  char *ids[PATH_PARAMS_MAX];          ///< the op's own: it may outlive the request
  char request_id[REQUEST_ID_MAX + 1]; ///< likewise
};

static void close_free(struct write_request *write) {
  struct lease_close *c = (struct lease_close *)write;
  op_clear_results(&c->op);
  for (int i = 0; i < PATH_PARAMS_MAX; i++) {
    free(c->ids[i]);
  }
  free(c);
}

static enum request_verdict decided(struct request *r, enum wake_reason reason) {
  struct lease_close *c = r->state;
  enum request_verdict verdict;
  if (!write_request_decided(&c->write, reason, &verdict)) {
    return verdict;
  }
  lease_reply_send(r, &c->op, NULL);
  return REQUEST_DONE;
}

enum request_verdict h_lease_delete(struct request *r) {
  struct lease_close *c = calloc(1, sizeof *c);
  if (c == NULL) {
    request_unavailable(r, "out of memory");
    return REQUEST_DONE;
  }
  write_request_attach(&c->write, r, close_free);
  const char *revision = request_query(r, "revision");
  if (revision != NULL && !strict_int(revision, strlen(revision), 1, REVISION_MAX, &c->op.revision)) {
    request_problem(r, 400, "bad_parameter", "revision",
                    "revision must be from 1 to 9007199254740991, in plain digits");
    return REQUEST_DONE;
  }
  for (int i = 0; i < PATH_PARAMS_MAX; i++) {
    c->ids[i] = strdup(r->params[i]);
    if (c->ids[i] == NULL) {
      request_unavailable(r, "out of memory");
      return REQUEST_DONE;
    }
  }
  memcpy(c->request_id, r->id, sizeof c->request_id);
  c->op.kind = OP_CLOSE;
  c->op.key = (struct lease_key){c->ids[0], c->ids[1], c->ids[2]};
  c->op.revision_given = revision != NULL;
  c->op.request_id = c->request_id;
  c->ops[0] = &c->op;
  return write_request_submit(&c->write, c->ops, 1, decided) ? REQUEST_PARKED : REQUEST_DONE;
}
