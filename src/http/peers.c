// SPDX-License-Identifier: Apache-2.0
#include "http/peers.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "base/address.h"

struct peer {
  uint64_t key;
  int count;
  UT_hash_handle hh;
};

struct peers {
  pthread_mutex_t lock; ///< a leaf
  int limit;
  struct peer *map;
};

struct peers *peers_new(int limit) {
  struct peers *peers = calloc(1, sizeof *peers);
  if (peers == NULL)
    return NULL;
  if (pthread_mutex_init(&peers->lock, NULL) != 0) {
    free(peers);
    return NULL;
  }
  peers->limit = limit;
  return peers;
}

void peers_free(struct peers *peers) {
  if (peers == NULL)
    return;
  struct peer *peer = peers->map;
  HASH_CLEAR(hh, peers->map); // the table, not what it links
  while (peer != NULL) {
    struct peer *next = peer->hh.next;
    free(peer);
    peer = next;
  }
  pthread_mutex_destroy(&peers->lock);
  free(peers);
}

bool peers_enter(struct peers *peers, const struct sockaddr *addr) {
  uint64_t key;
  if (peers == NULL || !address_key(addr, &key))
    return true;
  bool ok = false;
  pthread_mutex_lock(&peers->lock);
  struct peer *peer;
  HASH_FIND(hh, peers->map, &key, sizeof key, peer);
  if (peer == NULL && (peer = calloc(1, sizeof *peer)) != NULL) {
    peer->key = key;
    HASH_ADD(hh, peers->map, key, sizeof peer->key, peer);
    if (peer->hh.tbl == NULL) { // the map had no memory for it
      free(peer);
      peer = NULL;
    }
  }
  if (peer != NULL && peer->count < peers->limit) {
    peer->count++;
    ok = true;
  }
  pthread_mutex_unlock(&peers->lock);
  return ok;
}

void peers_leave(struct peers *peers, const struct sockaddr *addr) {
  uint64_t key;
  if (peers == NULL || !address_key(addr, &key))
    return;
  pthread_mutex_lock(&peers->lock);
  struct peer *peer;
  HASH_FIND(hh, peers->map, &key, sizeof key, peer);
  if (peer != NULL && --peer->count == 0) {
    HASH_DEL(peers->map, peer);
    free(peer);
  }
  pthread_mutex_unlock(&peers->lock);
}
