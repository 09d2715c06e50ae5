// SPDX-License-Identifier: Apache-2.0
#include "live/fair.h"

#include <stdlib.h>
#include <string.h>

// A failed allocation leaves an added entry's hh.tbl NULL instead of ending the process.
#define HASH_NONFATAL_OOM 1
// The key of an entry is what its op's key points to.
#define HASH_FUNCTION(key, len, hashv) ((hashv) = hash_key(key))
#define HASH_KEYCMP(a, b, len) lease_key_compare(a, b)
#include <uthash.h>

/// Ops in the order of their arrival.
struct line {
  struct op_ref *refs;
  size_t n, cap;
};

/// A lease that is in the batch, and how often.
struct counted {
  UT_hash_handle hh;
  size_t rounds;
};

struct fair {
  struct line small, large;
  unsigned turn; ///< counts the batches
  // While a batch is put together.
  struct counted *table, counted[STORE_BATCH_MAX];
  size_t n_counted;
};

static unsigned hash_string(unsigned h, const char *s) {
  for (; *s != '\0'; s++) {
    h = (h ^ (unsigned char)*s) * 16777619U; // FNV-1a
  }
  return h * 16777619U;
}

static unsigned hash_key(const struct lease_key *key) {
  return hash_string(hash_string(hash_string(2166136261U, key->session_id), key->user_id), key->room_id);
}

struct fair *fair_new(void) {
  return calloc(1, sizeof(struct fair));
}

bool fair_add(struct fair *f, struct write_job *job) {
  struct line *line = job->n_ops <= FAIR_SMALL_OPS ? &f->small : &f->large;
  if (line->n + job->n_ops > line->cap) {
    size_t cap = 2 * (line->n + job->n_ops);
    struct op_ref *refs = reallocarray(line->refs, cap, sizeof *refs);
    if (refs == NULL) {
      return false;
    }
    line->refs = refs;
    line->cap = cap;
  }
  job->turn = f->turn;
  job->share = 0;
  job->begun = false;
  for (size_t i = 0; i < job->n_ops; i++) {
    line->refs[line->n++] = (struct op_ref){job, job->ops[i]};
  }
  return true;
}

bool fair_empty(const struct fair *f) {
  return f->small.n + f->large.n == 0;
}

/// Counts a round of a lease. @return false when it has had all of its rounds. Where memory runs out nothing is counted
static bool count_round(struct fair *f, const struct lease_key *key) {
  struct counted *c = NULL;
  HASH_FIND(hh, f->table, key, sizeof *key, c);
  if (c != NULL) {
    return c->rounds < FAIR_ROUNDS && ++c->rounds > 0;
  }
  c = &f->counted[f->n_counted];
  *c = (struct counted){.rounds = 1};
  HASH_ADD_KEYPTR(hh, f->table, key, sizeof *key, c);
  f->n_counted += c->hh.tbl != NULL;
  return true;
}

/// Whether an op goes into this batch. One that does not keeps back those behind it that it must stay before: a lease
/// stays at its last round, and a job at the end of its share.
static bool admit(struct fair *f, const struct op_ref *ref) {
  struct write_job *job = ref->job;
  if (job->turn != f->turn) {
    job->turn = f->turn;
    job->share = 0;
  }
  if (job->share == FAIR_SHARE) {
    return false;
  }
  if (!count_round(f, &ref->op->key)) {
    job->begun = true; // it waits for its own lease now, and not for the writer
    return false;
  }
  job->share++;
  return true;
}

/// A batch that is being put together.
struct choice {
  struct op_ref *refs;
  size_t n;
  int64_t now_us, since_us;
};

/// Moves ops from a line to the batch until it has @a limit of them.
static void choose(struct fair *f, struct line *line, struct choice *c, size_t limit) {
  size_t kept = 0, i = 0;
  for (; i < line->n && c->n < limit; i++) {
    struct op_ref *ref = &line->refs[i];
    struct write_job *job = ref->job;
    if (job->deadline_us > c->now_us) {
      if (!admit(f, ref)) {
        line->refs[kept++] = *ref;
        continue;
      }
      if (!job->begun && job->submitted_us < c->since_us) {
        c->since_us = job->submitted_us;
      }
      job->begun = true;
    }
    c->refs[c->n++] = *ref;
  }
  if (kept < i) {
    memmove(&line->refs[kept], &line->refs[i], (line->n - i) * sizeof *line->refs);
    line->n -= i - kept;
  }
}

size_t fair_next(struct fair *f, struct op_ref refs[], int64_t now_us, int64_t *since_us) {
  f->turn++;
  f->n_counted = 0;
  struct choice c = {.refs = refs, .now_us = now_us, .since_us = *since_us};
  choose(f, &f->small, &c, f->large.n > 0 ? STORE_BATCH_MAX - FAIR_LARGE_MIN : STORE_BATCH_MAX);
  choose(f, &f->large, &c, STORE_BATCH_MAX);
  HASH_CLEAR(hh, f->table);
  *since_us = c.since_us;
  return c.n;
}

void fair_free(struct fair *f) {
  if (f == NULL) {
    return;
  }
  free(f->small.refs);
  free(f->large.refs);
  free(f);
}
