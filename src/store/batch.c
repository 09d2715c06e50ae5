// SPDX-License-Identifier: Apache-2.0
#include "store/batch.h"

#include "store/rounds.h"

static void clear(struct batch *b) {
  for (size_t i = 0; i < b->n; i++) {
    op_clear_results(b->ops[i]);
  }
  written_clear(b->written);
}

static enum db_status write_transitions(struct db *db, struct batch *b) {
  enum db_status status = transitions_write(db, b->rules->offline_grace_ms, &b->transitions, b->written);
  transitions_free(&b->transitions);
  return status;
}

static enum db_status work(struct db *db, void *ctx) {
  struct batch *b = ctx;
  clear(b);
  struct rounds rounds;
  enum db_status status = rounds_make(&rounds, b->ops, b->n) ? DB_OK : DB_FAILED;
  size_t start = 0;
  for (size_t i = 0; status == DB_OK && i < rounds.n; i++) {
    status = b->round(db, b, rounds.ops + start, rounds.ends[i] - start);
    start = rounds.ends[i];
    // Rooms are locked last, so without need they are not locked before the last round.
    if (status == DB_OK && (b->write_each_round || i + 1 == rounds.n)) {
      status = write_transitions(db, b);
    }
  }
  transitions_free(&b->transitions);
  rounds_free(&rounds);
  return status;
}

enum db_status batch_run_within(struct db *db, struct batch *b) {
  return work(db, b);
}

enum db_status batch_run(struct db *db, struct batch *b) {
  enum db_status status = db_transaction(db, work, b);
  if (status != DB_OK) {
    bool past_leases = b->written->past_leases;
    clear(b);
    b->written->past_leases = past_leases;
  }
  return status;
}
