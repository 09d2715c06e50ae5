// SPDX-License-Identifier: Apache-2.0
/// @file
/// What the writer has taken up and not yet run, and which of it goes into the next batch, so that no request holds up
/// the others: a request of a few ops stands before those of many, one of many gets a share of each batch, and a lease
/// that is named again and again in one batch gets so many rounds in it (store/rounds.h) and no more. The rest waits
/// for the next batch in its order. Not thread-safe, no clock, no I/O: the writer's thread owns it.
#ifndef SH_LIVE_FAIR_H
#define SH_LIVE_FAIR_H

#include <stdbool.h>
#include <stddef.h>

#include "live/writer.h"

/// A request of so many ops is a small one.
#define FAIR_SMALL_OPS 8
/// Ops of one larger request in a batch. Where one hundred are sent at a time, which gateways do, all go at once.
#define FAIR_SHARE 250
/// What the small ones leave of a batch to the larger ones where there are any.
#define FAIR_LARGE_MIN 250
/// Times that one lease is in a batch: each time is a round trip of the batch's transaction.
#define FAIR_ROUNDS 8

struct fair;

/// @return NULL when memory ran out
struct fair *fair_new(void);

/// Takes up a job, behind those that are there. @return false when memory ran out; nothing of it was taken then
bool fair_add(struct fair *f, struct write_job *job);

/// Whether nothing is waiting.
bool fair_empty(const struct fair *f);

/// Takes out what the next batch is made of, at most STORE_BATCH_MAX ops, and at least one where any waits. Ops of one
/// job on one lease stay in their order, also from batch to batch. What is past its deadline comes too, at once and
/// beside all shares, for the caller to give back. @param now_us monotonic @param since_us when the oldest job was
/// submitted of those that waited for the writer and for nothing of their own, monotonic; unchanged when there is none
/// @return how many
size_t fair_next(struct fair *f, struct op_ref refs[], int64_t now_us, int64_t *since_us);

/// Frees it; nothing may be waiting. NULL is fine.
void fair_free(struct fair *f);

#endif
