// SPDX-License-Identifier: Apache-2.0
/// @file
/// Splits a batch into rounds: each round has every lease at most once and is sorted by key, which is the lock order.
/// (One SQL statement cannot change a row twice, SQLSTATE 21000.) Ops on the same lease keep their order.
#ifndef SH_STORE_ROUNDS_H
#define SH_STORE_ROUNDS_H

#include <stddef.h>

#include "store/op.h"

struct rounds {
  struct op **ops; ///< all of them, grouped by round, sorted within each
  size_t *ends;    ///< where each round ends in ops
  size_t n;
};

/// @return false when memory ran out; free with rounds_free() in either case
bool rounds_make(struct rounds *rounds, struct op *const *ops, size_t n);
void rounds_free(struct rounds *rounds);

// Getters for db_p_…_array() over `struct op *const *`.
const char *op_at_room(const void *ops, size_t i);
const char *op_at_user(const void *ops, size_t i);
const char *op_at_session(const void *ops, size_t i);
int64_t op_at_ttl(const void *ops, size_t i);
const char *op_at_meta(const void *ops, size_t i);
const char *op_at_request_id(const void *ops, size_t i);

/// The op in ops[*from … n-1], sorted by key, that has @a key; moves *from past it. Results of one statement come in
/// the order of its sorted input, so a whole result costs one walk. @return NULL when there is none (nothing moves
/// then)
struct op *ops_find_next(struct op *const *ops, size_t n, size_t *from, const struct lease_key *key);

#endif
