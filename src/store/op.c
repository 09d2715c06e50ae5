// SPDX-License-Identifier: Apache-2.0
#include "store/op.h"

#include <stdlib.h>
#include <string.h>

void op_clear_results(struct op *op) {
  free(op->lease.meta);
  free(op->lease.request_id);
  free(op->event_id);
  memset(&op->lease, 0, sizeof op->lease);
  op->decision = DECISION_NONE;
  op->granted = false;
  op->prior_revision = 0;
  op->stored_revision = 0;
  op->room_revision = 0;
  op->retry_after_ms = 0;
  op->user_full = false;
  op->failed = false;
  op->event_id = NULL;
}
