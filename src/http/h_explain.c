// SPDX-License-Identifier: Apache-2.0
// GET /rooms/{room}/users/{user}/explain: for people who ask why.
#include <stdio.h>
#include <stdlib.h>

#include "config/config.h"
#include "http/handlers.h"
#include "http/json_read.h"
#include "http/worker.h"
#include "store/read.h"

struct explain_args {
  struct explain_rules rules;
  char room_id[IDENT_MAX + 1], user_id[IDENT_MAX + 1];
};

static enum db_status query(struct db *db, const void *args, struct buf *out) {
  const struct explain_args *e = args;
  return read_explain(db, &e->rules, e->room_id, e->user_id, out);
}

enum request_verdict h_explain_get(struct request *r) {
  const struct config *config = r->worker->service->config;
  struct explain_args *e = calloc(1, sizeof *e);
  if (e != NULL) {
    e->rules = (struct explain_rules){.membership_required = config->membership == MEMBERSHIP_REQUIRED,
                                      .offline_grace_ms = config->offline_grace_ms,
                                      .tombstone_retention_ms = config->tombstone_retention_ms};
    (void)snprintf(e->room_id, sizeof e->room_id, "%s", r->params[0]);
    (void)snprintf(e->user_id, sizeof e->user_id, "%s", r->params[1]);
  }
  return json_read(r, query, e);
}
