// SPDX-License-Identifier: Apache-2.0
#include "live/revoked.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAP 8

void revoked_clear(struct revoked_set *set) {
  for (size_t i = 0; i < set->n; i++)
    free(set->users[i].id);
  free(set->users);
  *set = (struct revoked_set){0};
}

static bool reserve(struct revoked_set *set) {
  if (set->n < set->cap)
    return true;
  size_t cap = set->cap > 0 ? set->cap * 2 : FIRST_CAP;
  struct revoked_user *users = realloc(set->users, cap * sizeof *users);
  if (!users)
    return false;
  set->users = users;
  set->cap = cap;
  return true;
}

// Where the user is or would be.
static size_t place(const struct revoked_set *set, const char *user_id, bool *found) {
  size_t low = 0, high = set->n;
  *found = false;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    int order = strcmp(set->users[middle].id, user_id);
    if (order == 0) {
      *found = true;
      return middle;
    }
    if (order < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

bool revoked_has(const struct revoked_set *set, const char *user_id) {
  bool found;
  (void)place(set, user_id, &found);
  return found;
}

static bool insert(struct revoked_set *set, size_t at, char *id, int64_t revision) {
  if (!id || !reserve(set)) {
    free(id);
    return false;
  }
  memmove(&set->users[at + 1], &set->users[at], (set->n - at) * sizeof *set->users);
  set->users[at] = (struct revoked_user){.id = id, .revision = revision};
  set->n++;
  return true;
}

bool revoked_parse(struct revoked_set *set, const char *text) {
  while (text && *text) {
    size_t len = strcspn(text, "\n");
    if (!insert(set, set->n, strndup(text, len), 0))
      return false;
    text += len + (text[len] == '\n');
  }
  return true;
}

enum revoked_added revoked_add(struct revoked_set *set, const char *user_id, int64_t revision) {
  bool found;
  size_t at = place(set, user_id, &found);
  if (found) {
    set->users[at].revision = revision; // no read from before that shall take it away
    return REVOKED_KNOWN;
  }
  return insert(set, at, strdup(user_id), revision) ? REVOKED_ADDED : REVOKED_NO_MEMORY;
}

bool revoked_remove(struct revoked_set *set, const char *user_id) {
  bool found;
  size_t at = place(set, user_id, &found);
  if (!found)
    return false;
  free(set->users[at].id);
  set->n--;
  memmove(&set->users[at], &set->users[at + 1], (set->n - at) * sizeof *set->users);
  return true;
}

static bool all_in(const struct revoked_set *some, const struct revoked_set *set) {
  size_t i = 0;
  for (size_t k = 0; k < some->n; k++) {
    while (i < set->n && strcmp(set->users[i].id, some->users[k].id) < 0)
      i++;
    if (i == set->n || strcmp(set->users[i].id, some->users[k].id) != 0)
      return false;
  }
  return true;
}

bool revoked_replace(struct revoked_set *set, struct revoked_set *fresh, int64_t revision, bool *grew) {
  bool whole = true;
  for (size_t i = 0; i < set->n; i++) {
    const struct revoked_user *user = &set->users[i];
    if (user->revision > revision && revoked_add(fresh, user->id, user->revision) == REVOKED_NO_MEMORY)
      whole = false;
  }
  *grew = !all_in(fresh, set);
  struct revoked_set old = *set;
  *set = *fresh;
  *fresh = old;
  set->cut = set->cut || !whole;
  return whole;
}
