// SPDX-License-Identifier: Apache-2.0
#include "store/rounds.h"

#include <stdlib.h>

/// An op with its place in the request, since qsort() keeps no order of equals.
struct placed {
  struct op *op;
  size_t place, round;
};

static int by_key(const void *a, const void *b) {
  const struct placed *x = a, *y = b;
  int d = lease_key_compare(&x->op->key, &y->op->key);
  return d != 0 ? d : (x->place > y->place) - (x->place < y->place);
}

static int by_round(const void *a, const void *b) {
  const struct placed *x = a, *y = b;
  if (x->round != y->round) {
    return x->round < y->round ? -1 : 1;
  }
  return by_key(a, b);
}

bool rounds_make(struct rounds *rounds, struct op *const *ops, size_t n) {
  *rounds = (struct rounds){0};
  struct placed *placed = calloc(n, sizeof *placed);
  rounds->ops = calloc(n, sizeof(struct op *));
  rounds->ends = calloc(n, sizeof *rounds->ends);
  if (placed == NULL || rounds->ops == NULL || rounds->ends == NULL) {
    free(placed);
    return false;
  }
  for (size_t i = 0; i < n; i++) {
    placed[i] = (struct placed){.op = ops[i], .place = i};
  }
  qsort(placed, n, sizeof *placed, by_key);
  size_t last = 0;
  for (size_t i = 1; i < n; i++) {
    if (lease_key_compare(&placed[i].op->key, &placed[i - 1].op->key) == 0) {
      placed[i].round = placed[i - 1].round + 1;
      last = placed[i].round > last ? placed[i].round : last;
    }
  }
  if (last > 0) {
    qsort(placed, n, sizeof *placed, by_round);
  }
  for (size_t i = 0; i < n; i++) {
    rounds->ops[i] = placed[i].op;
    rounds->ends[placed[i].round] = i + 1;
  }
  rounds->n = n > 0 ? last + 1 : 0;
  free(placed);
  return true;
}

void rounds_free(struct rounds *rounds) {
  free(rounds->ops);
  free(rounds->ends);
  *rounds = (struct rounds){0};
}

const char *op_at_room(const void *ops, size_t i) {
  return ((struct op *const *)ops)[i]->key.room_id;
}

const char *op_at_user(const void *ops, size_t i) {
  return ((struct op *const *)ops)[i]->key.user_id;
}

const char *op_at_session(const void *ops, size_t i) {
  return ((struct op *const *)ops)[i]->key.session_id;
}

int64_t op_at_ttl(const void *ops, size_t i) {
  return ((struct op *const *)ops)[i]->ttl_ms;
}

const char *op_at_meta(const void *ops, size_t i) {
  return ((struct op *const *)ops)[i]->meta;
}

const char *op_at_request_id(const void *ops, size_t i) {
  return ((struct op *const *)ops)[i]->request_id;
}

struct op *ops_find_next(struct op *const *ops, size_t n, size_t *from, const struct lease_key *key) {
  for (size_t i = *from; i < n; i++) {
    int d = lease_key_compare(&ops[i]->key, key);
    if (d == 0) {
      *from = i + 1;
      return ops[i];
    }
    if (d > 0) {
      break;
    }
  }
  return NULL;
}
