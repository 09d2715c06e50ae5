// SPDX-License-Identifier: Apache-2.0
// Buckets are kept by whom they are for, in shards so that workers seldom meet. A shard that is full lets go of the one
// that was longest unused: nearly always a bucket that has long been full again, and so is no different from none.
#include "live/limits.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>
#include <utlist.h>

#include "base/address.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/util.h"

#define MICRO INT64_C(1000000)

#define SHARDS 32
/// Buckets in a shard; 64 Ki in all, some 10 MB when names are short.
#define SHARD_BUCKETS 2048

/// Whom something is counted for: a letter for the kind, then an address or a name. Longer names count by what fits;
/// identifiers do.
struct party {
  size_t len;
  char key[160];
};

struct entry {
  struct bucket bucket;
  struct entry *prev, *next; ///< by last use, the newest first
  UT_hash_handle hh;
  char key[];
};

struct shard {
  pthread_mutex_t lock; ///< a leaf
  struct entry *map, *used;
  size_t n;
};

struct waiter {
  int64_t count;
  UT_hash_handle hh;
  char key[];
};

struct limits {
  struct bucket_size address, credential; ///< rate 0: off
  int64_t max_waiting;                    ///< 0: off
  struct shard shards[SHARDS];
  pthread_mutex_t wait_lock; ///< a leaf
  struct waiter *waiters;    ///< those that count more than 0, so never more than wait
};

// -- the bucket ----------------------------------------------------------------------------------------------------

int64_t bucket_take(struct bucket *bucket, const struct bucket_size *size, int64_t cost, int64_t need, int64_t now_us) {
  int64_t full = size->burst * MICRO, missing = full - bucket->micro, passed_us = now_us - bucket->now_us;
  if (passed_us > missing / size->rate) // also keeps the product small
    bucket->micro = full;
  else if (passed_us > 0)
    bucket->micro += passed_us * size->rate;
  if (passed_us > 0)
    bucket->now_us = now_us;
  int64_t short_of = need * MICRO - bucket->micro;
  if (short_of <= 0) {
    bucket->micro -= cost * MICRO;
    return 0;
  }
  int64_t micro_a_ms = size->rate * 1000;
  return (short_of + micro_a_ms - 1) / micro_a_ms;
}

// -- many of them --------------------------------------------------------------------------------------------------

static void forget(struct shard *s, struct entry *e) {
  assert(s->map != NULL && s->used != NULL); // it is in both
  HASH_DEL(s->map, e);
  DL_DELETE(s->used, e);
  s->n--;
  free(e);
}

/// The party's bucket, a full one where it had none, as the newest used. With the lock held.
/// @return NULL when memory ran out
static struct entry *find(struct shard *s, const struct party *party, unsigned hash, int64_t burst, int64_t now_us) {
  struct entry *e;
  HASH_FIND_BYHASHVALUE(hh, s->map, party->key, party->len, hash, e);
  if (e != NULL) {
    DL_DELETE(s->used, e);
    DL_PREPEND(s->used, e);
    return e;
  }
  if (s->n >= SHARD_BUCKETS)
    forget(s, s->used->prev); // the head's prev is the tail
  e = calloc(1, sizeof *e + party->len);
  if (e == NULL)
    return NULL;
  e->bucket = (struct bucket){.micro = burst * MICRO, .now_us = now_us};
  memcpy(e->key, party->key, party->len);
  HASH_ADD_KEYPTR_BYHASHVALUE(hh, s->map, e->key, party->len, hash, e);
  if (e->hh.tbl == NULL) { // the map had no memory for it
    free(e);
    return NULL;
  }
  DL_PREPEND(s->used, e);
  s->n++;
  return e;
}

static int64_t take(struct limits *limits, const struct bucket_size *size, const struct party *party, int64_t cost,
                    int64_t need) {
  unsigned hash;
  HASH_VALUE(party->key, party->len, hash);
  struct shard *s = &limits->shards[hash >> 16 & (SHARDS - 1)]; // the map itself uses the lowest bits
  int64_t now_us = clock_mono_us(), wait_ms = 0;
  pthread_mutex_lock(&s->lock);
  struct entry *e = find(s, party, hash, size->burst, now_us);
  if (e != NULL) // without memory nobody is refused
    wait_ms = bucket_take(&e->bucket, size, cost, need, now_us);
  pthread_mutex_unlock(&s->lock);
  return wait_ms;
}

static bool by_address(struct party *party, const struct sockaddr *addr) {
  uint64_t key;
  if (!address_key(addr, &key))
    return false;
  party->key[0] = 'a';
  memcpy(party->key + 1, &key, sizeof key);
  party->len = 1 + sizeof key;
  return true;
}

/// By kind and name: a token's sub may well be what an API key is called.
static void by_credential(struct party *party, const struct credential *c) {
  size_t len = strlen(c->name);
  len = len < sizeof party->key - 1 ? len : sizeof party->key - 1;
  party->key[0] = c->kind == CREDENTIAL_API_KEY ? 'k' : 't';
  memcpy(party->key + 1, c->name, len);
  party->len = 1 + len;
}

int64_t limits_address(struct limits *limits, const struct sockaddr *addr, int64_t cost) {
  struct party party;
  if (limits->address.rate == 0 || !by_address(&party, addr))
    return 0;
  int64_t wait_ms = take(limits, &limits->address, &party, cost, cost);
  if (wait_ms > 0)
    metric_add(METRIC_LIMITED_ADDRESS, 1);
  return wait_ms;
}

static int64_t take_of_credential(struct limits *limits, const struct credential *credential, int64_t cost,
                                  int64_t most_needed) {
  if (limits->credential.rate == 0 || credential == NULL || cost == 0)
    return 0;
  struct party party;
  by_credential(&party, credential);
  int64_t wait_ms = take(limits, &limits->credential, &party, cost, cost < most_needed ? cost : most_needed);
  if (wait_ms > 0)
    metric_add(METRIC_LIMITED_CREDENTIAL, 1);
  return wait_ms;
}

int64_t limits_credential(struct limits *limits, const struct credential *credential, int64_t cost) {
  return take_of_credential(limits, credential, cost, limits->credential.burst);
}

int64_t limits_credential_rest(struct limits *limits, const struct credential *credential, int64_t cost) {
  return take_of_credential(limits, credential, cost, limits->credential.burst - 1);
}

// -- waiting -------------------------------------------------------------------------------------------------------

/// @return false when nobody is to be counted
static bool by_either(const struct limits *limits, struct party *party, const struct credential *credential,
                      const struct sockaddr *addr) {
  if (limits->max_waiting == 0)
    return false;
  if (credential == NULL)
    return by_address(party, addr);
  by_credential(party, credential);
  return true;
}

/// With the lock held. @return NULL when memory ran out
static struct waiter *waiter_new(struct limits *limits, const struct party *party) {
  struct waiter *w = calloc(1, sizeof *w + party->len);
  if (w == NULL)
    return NULL;
  memcpy(w->key, party->key, party->len);
  HASH_ADD_KEYPTR(hh, limits->waiters, w->key, party->len, w);
  if (w->hh.tbl != NULL)
    return w;
  free(w);
  return NULL;
}

bool limits_wait(struct limits *limits, const struct credential *credential, const struct sockaddr *addr) {
  struct party party;
  if (!by_either(limits, &party, credential, addr))
    return true;
  pthread_mutex_lock(&limits->wait_lock);
  struct waiter *w;
  HASH_FIND(hh, limits->waiters, party.key, party.len, w);
  if (w == NULL)
    w = waiter_new(limits, &party);
  bool ok = w != NULL && w->count < limits->max_waiting;
  if (ok)
    w->count++;
  pthread_mutex_unlock(&limits->wait_lock);
  return ok;
}

void limits_wait_over(struct limits *limits, const struct credential *credential, const struct sockaddr *addr) {
  struct party party;
  if (!by_either(limits, &party, credential, addr))
    return;
  pthread_mutex_lock(&limits->wait_lock);
  struct waiter *w;
  HASH_FIND(hh, limits->waiters, party.key, party.len, w);
  if (w != NULL && --w->count == 0) {
    HASH_DEL(limits->waiters, w);
    free(w);
  }
  pthread_mutex_unlock(&limits->wait_lock);
}

// -- life ----------------------------------------------------------------------------------------------------------

struct limits *limits_new(const struct config *config) {
  struct limits *limits = calloc(1, sizeof *limits);
  if (limits == NULL)
    return NULL;
  limits->address = (struct bucket_size){config->address_rate, config->address_burst};
  limits->credential = (struct bucket_size){config->credential_rate, config->credential_burst};
  limits->max_waiting = config->longpoll_max_per_credential;
  pthread_mutex_init(&limits->wait_lock, NULL);
  for (size_t i = 0; i < SHARDS; i++)
    pthread_mutex_init(&limits->shards[i].lock, NULL);
  return limits;
}

void limits_free(struct limits *limits) {
  if (limits == NULL)
    return;
  for (size_t i = 0; i < SHARDS; i++) {
    struct shard *s = &limits->shards[i];
    while (s->used != NULL)
      forget(s, s->used);
    pthread_mutex_destroy(&s->lock);
  }
  while (limits->waiters != NULL) {
    struct waiter *w = limits->waiters;
    HASH_DEL(limits->waiters, w);
    free(w);
  }
  pthread_mutex_destroy(&limits->wait_lock);
  free(limits);
}
