// SPDX-License-Identifier: Apache-2.0
#include "auth/credential.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/strict.h"
#include "base/util.h"

/// A credential and how many hold it; others see the inner part alone.
struct shared {
  struct credential c;
  atomic_uint refs;
};

static const struct {
  const char *word;
  enum scope scope;
} scope_words[] = {{"presence:read", SCOPE_READ},
                   {"presence:write", SCOPE_WRITE},
                   {"members:write", SCOPE_MEMBERS},
                   {"gateway", SCOPE_GATEWAY},
                   {"admin", SCOPE_ADMIN}};

// -- making and sharing --------------------------------------------------------------------------------------------

/// The counter lives beside the value, so that the value itself can be const for everybody.
static struct shared *shared_of(const struct credential *c) {
  return CONTAINER_OF(c, struct shared, c);
}

struct credential *credential_new(enum credential_kind kind) {
  struct shared *s = calloc(1, sizeof *s);
  if (s == NULL)
    return NULL;
  atomic_init(&s->refs, 1);
  s->c.kind = kind;
  s->c.expires_us = INT64_MAX;
  return &s->c;
}

const char *room_pattern_problem(const char *pattern, size_t len) {
  const char *star = memchr(pattern, '*', len);
  if (star == NULL)
    return ident_problem(pattern, len);
  size_t prefix = len - 1;
  if (star != pattern + prefix)
    return "has a * before its end";
  if (prefix == 0)
    return NULL;
  // What no name can be may still begin one: `.` and `..`.
  const char *problem = ident_problem(pattern, prefix);
  return problem != NULL && prefix <= 2 && memcmp(pattern, "..", prefix) == 0 ? NULL : problem;
}

bool credential_add_room(struct credential *c, const char *pattern, size_t len, size_t capacity) {
  if (c->rooms == NULL)
    c->rooms = calloc(capacity, sizeof *c->rooms);
  if (c->rooms == NULL || c->n_rooms == capacity)
    return false;
  char *copy = strndup(pattern, len);
  if (copy == NULL)
    return false;
  c->rooms[c->n_rooms++] = copy;
  return true;
}

const struct credential *credential_ref(const struct credential *c) {
  if (c != NULL)
    atomic_fetch_add_explicit(&shared_of(c)->refs, 1, memory_order_relaxed);
  return c;
}

static void wipe(char *s) {
  if (s != NULL)
    explicit_bzero(s, strlen(s));
  free(s);
}

void credential_unref(const struct credential *c) {
  if (c == NULL)
    return;
  struct shared *s = shared_of(c);
  // Release, then acquire: whatever other holders read comes before it is freed.
  if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
    return;
  wipe(s->c.name);
  wipe(s->c.sub);
  wipe(s->c.sid);
  for (size_t i = 0; i < s->c.n_rooms; i++)
    wipe(s->c.rooms[i]);
  free(s->c.rooms);
  explicit_bzero(s, sizeof *s);
  free(s);
}

// -- what it allows ------------------------------------------------------------------------------------------------

bool credential_has(const struct credential *c, enum scope scope) {
  if (c->n_rooms == 0)
    return false;
  unsigned enough = (unsigned)scope | SCOPE_ADMIN;
  if (scope == SCOPE_WRITE)
    enough |= SCOPE_GATEWAY;
  return (c->scopes & enough) != 0;
}

/// @param[out] len bytes without the star @return whether it is a prefix rather than a name
static bool is_prefix(const char *pattern, size_t *len) {
  size_t n = strlen(pattern);
  bool star = n > 0 && pattern[n - 1] == '*';
  *len = star ? n - 1 : n;
  return star;
}

bool credential_in_room(const struct credential *c, const char *room_id) {
  for (size_t i = 0; i < c->n_rooms; i++) {
    size_t len;
    bool prefix = is_prefix(c->rooms[i], &len);
    if (prefix ? strncmp(c->rooms[i], room_id, len) == 0 : strcmp(c->rooms[i], room_id) == 0)
      return true;
  }
  return false;
}

bool credential_in_rooms(const struct credential *c, const char *prefix) {
  for (size_t i = 0; i < c->n_rooms; i++) {
    size_t len;
    if (is_prefix(c->rooms[i], &len) && strncmp(c->rooms[i], prefix, len) == 0)
      return true;
  }
  return false;
}

bool credential_is_user(const struct credential *c, const char *user_id) {
  return credential_has(c, SCOPE_GATEWAY) || (c->sub != NULL && strcmp(c->sub, user_id) == 0);
}

bool credential_is_session(const struct credential *c, const char *session_id) {
  return c->sid == NULL || strcmp(c->sid, session_id) == 0;
}

unsigned scope_parse(const char *word, size_t len) {
  for (size_t i = 0; i < ARRAY_LEN(scope_words); i++) {
    if (strlen(scope_words[i].word) == len && memcmp(scope_words[i].word, word, len) == 0)
      return scope_words[i].scope;
  }
  return 0;
}
