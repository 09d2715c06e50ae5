// SPDX-License-Identifier: Apache-2.0
#include "live/seen_map.h"

#include <stdlib.h>
#include <string.h>

// A failed allocation leaves an added entry's hh.tbl NULL instead of ending the process.
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "base/util.h"

struct seen {
  UT_hash_handle hh;
  int64_t seen_us;
  size_t key_len, user_at;
  char key[]; ///< room, NUL, user, NUL: identifiers have no NUL in them
};

/// Room and user with a NUL behind each.
#define KEY_MAX ((size_t)2 * (IDENT_MAX + 1))

/// @return the key's length, or 0 when the identifiers are longer than identifiers can be
static size_t make_key(char key[KEY_MAX], const char *room_id, const char *user_id) {
  size_t room = strlen(room_id) + 1, user = strlen(user_id) + 1;
  if (room > IDENT_MAX + 1 || user > IDENT_MAX + 1)
    return 0;
  memcpy(key, room_id, room);
  memcpy(key + room, user_id, user);
  return room + user;
}

static struct seen *find(const struct seen_map *map, const char *key, size_t len) {
  struct seen *found = NULL;
  HASH_FIND(hh, map->entries, key, len, found);
  return found;
}

static struct seen *add(struct seen_map *map, const char *key, size_t len) {
  struct seen *new = malloc(sizeof *new + len);
  if (new == NULL)
    return NULL;
  memcpy(new->key, key, len);
  new->key_len = len;
  new->user_at = strlen(key) + 1;
  HASH_ADD_KEYPTR(hh, map->entries, new->key, len, new);
  if (new->hh.tbl == NULL) {
    free(new);
    return NULL;
  }
  return new;
}

static bool put(struct seen_map *map, const char *key, size_t len, int64_t seen_us, int64_t noted_us, size_t max) {
  bool was_empty = map->entries == NULL;
  struct seen *entry = find(map, key, len);
  if (entry == NULL) {
    if (seen_map_count(map) >= max || (entry = add(map, key, len)) == NULL)
      return false;
    entry->seen_us = seen_us;
  } else if (entry->seen_us < seen_us) {
    entry->seen_us = seen_us;
  }
  if (was_empty || noted_us < map->oldest_us)
    map->oldest_us = noted_us;
  return true;
}

bool seen_map_put(struct seen_map *map, const char *room_id, const char *user_id, int64_t seen_us, int64_t noted_us,
                  size_t max) {
  char key[KEY_MAX];
  size_t len = make_key(key, room_id, user_id);
  return len > 0 && put(map, key, len, seen_us, noted_us, max);
}

size_t seen_map_count(const struct seen_map *map) {
  return HASH_COUNT(map->entries);
}

struct seen *seen_map_next(const struct seen_map *map, const struct seen *after) {
  return after == NULL ? map->entries : after->hh.next;
}

size_t seen_map_merge(struct seen_map *into, struct seen_map *from, size_t max) {
  size_t lost = 0;
  for (const struct seen *e = from->entries; e != NULL; e = e->hh.next)
    if (!put(into, e->key, e->key_len, e->seen_us, from->oldest_us, max))
      lost++;
  seen_map_clear(from);
  return lost;
}

const char *seen_room(const struct seen *seen) {
  return seen->key;
}

const char *seen_user(const struct seen *seen) {
  return seen->key + seen->user_at;
}

int64_t seen_at(const struct seen *seen) {
  return seen->seen_us;
}

void seen_map_clear(struct seen_map *map) {
  // The table goes first: taking the entries out of it one by one would be for nothing.
  struct seen *entry = map->entries;
  HASH_CLEAR(hh, map->entries);
  while (entry != NULL) {
    struct seen *next = entry->hh.next;
    free(entry);
    entry = next;
  }
}
