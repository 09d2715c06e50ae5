// SPDX-License-Identifier: Apache-2.0
#include "auth/token_cache.h"

#include <stdlib.h>
#include <string.h>

#define WAYS 4
#define SETS (TOKEN_CACHE_MAX / WAYS)

struct slot {
  unsigned char digest[SHA256_BYTES];
  const struct credential *credential; ///< NULL: free
  size_t len;                          ///< of the token
};

/// A digest's first bytes name a set of slots. A new one comes first in its set, and the last one falls out.
struct set {
  struct slot slots[WAYS];
};

struct token_cache {
  size_t count, bytes;
  size_t hand; ///< the set that is emptied next when there are too many bytes
  struct set sets[SETS];
};

struct token_cache *token_cache_new(void) {
  return calloc(1, sizeof(struct token_cache));
}

static void empty_slot(struct token_cache *cache, struct slot *slot) {
  if (slot->credential == NULL)
    return;
  cache->count--;
  cache->bytes -= slot->len;
  credential_unref(slot->credential);
  explicit_bzero(slot, sizeof *slot);
}

static void empty_set(struct token_cache *cache, struct set *set) {
  for (size_t i = 0; i < WAYS; i++)
    empty_slot(cache, &set->slots[i]);
}

void token_cache_free(struct token_cache *cache) {
  if (cache == NULL)
    return;
  for (size_t i = 0; i < SETS; i++)
    empty_set(cache, &cache->sets[i]);
  free(cache);
}

static size_t set_of(const unsigned char digest[SHA256_BYTES]) {
  return ((size_t)digest[0] << 8 | digest[1]) % SETS;
}

/// @return which slot of its set has this digest, or WAYS
static size_t way_of(const struct set *set, const unsigned char digest[SHA256_BYTES]) {
  size_t i = 0;
  while (i < WAYS && (set->slots[i].credential == NULL || memcmp(set->slots[i].digest, digest, SHA256_BYTES) != 0))
    i++;
  return i;
}

const struct credential *token_cache_find(const struct token_cache *cache, const unsigned char digest[SHA256_BYTES]) {
  const struct set *set = &cache->sets[set_of(digest)];
  size_t i = way_of(set, digest);
  return i < WAYS ? set->slots[i].credential : NULL;
}

void token_cache_add(struct token_cache *cache, const unsigned char digest[SHA256_BYTES], size_t len,
                     const struct credential *credential) {
  struct set *set = &cache->sets[set_of(digest)];
  if (way_of(set, digest) < WAYS || len > TOKEN_CACHE_BYTES)
    return;
  while (cache->bytes + len > TOKEN_CACHE_BYTES) {
    empty_set(cache, &cache->sets[cache->hand]);
    cache->hand = (cache->hand + 1) % SETS;
  }
  empty_slot(cache, &set->slots[WAYS - 1]);
  memmove(&set->slots[1], &set->slots[0], (WAYS - 1) * sizeof set->slots[0]);
  set->slots[0] = (struct slot){.credential = credential_ref(credential), .len = len};
  memcpy(set->slots[0].digest, digest, SHA256_BYTES);
  cache->count++;
  cache->bytes += len;
}

void token_cache_remove(struct token_cache *cache, const unsigned char digest[SHA256_BYTES]) {
  struct set *set = &cache->sets[set_of(digest)];
  size_t i = way_of(set, digest);
  if (i < WAYS)
    empty_slot(cache, &set->slots[i]);
}

size_t token_cache_count(const struct token_cache *cache) {
  return cache->count;
}
