// SPDX-License-Identifier: Apache-2.0
#include "cli/fold.h"

#include <stdlib.h>
#include <string.h>

#include "cli/text.h"

void fold_clear(struct fold *fold) {
  free(fold->epoch);
  json_decref(fold->users);
  *fold = (struct fold){.sparse = fold->sparse, .revision = -1};
}

/// The user's entry, made where it is missing.
static json_t *user_entry(struct fold *fold, const char *user_id) {
  json_t *user = json_object_get(fold->users, user_id);
  if (user == NULL) {
    user = json_pack("{s:{}}", "sessions");
    if (json_object_set_new(fold->users, user_id, user) != 0)
      return NULL;
  }
  return user;
}

static void set_meta(json_t *sessions, const char *session_id, json_t *meta) {
  if (meta != NULL)
    json_object_set(sessions, session_id, meta);
  else
    json_object_set_new(sessions, session_id, json_object());
}

static void apply(struct fold *fold, const json_t *event) {
  const char *kind = text_of(event, "kind", ""), *user_id = text_of(event, "user_id", NULL);
  const char *session_id = text_of(event, "session_id", NULL);
  if (user_id == NULL)
    return;
  if (strcmp(kind, "user.offline") == 0) {
    json_object_del(fold->users, user_id);
    return;
  }
  bool begins = strcmp(kind, "lease.granted") == 0, online = strcmp(kind, "user.online") == 0;
  json_t *user = begins || online ? user_entry(fold, user_id) : json_object_get(fold->users, user_id);
  json_t *sessions = json_object_get(user, "sessions");
  if (online)
    json_object_set(user, "online_since", json_object_get(event, "at"));
  if (session_id == NULL || sessions == NULL || online)
    return;
  if (begins || strcmp(kind, "lease.renewed") == 0) {
    if (begins || json_object_get(event, "meta") != NULL)
      set_meta(sessions, session_id, json_object_get(event, "meta"));
    json_object_del(user, "offline_at");
  } else {
    json_object_del(sessions, session_id);
  }
}

enum fold_result fold_event(struct fold *fold, const json_t *event) {
  int64_t revision = number_of(event, "revision", -1);
  if (revision < 0 || fold->users == NULL)
    return FOLD_FOREIGN;
  if (revision <= fold->revision)
    return FOLD_DOUBLE;
  if (revision > fold->revision + 1 && !fold->sparse)
    return FOLD_GAP;
  apply(fold, event);
  fold->revision = revision;
  return FOLD_APPLIED;
}

/// Takes over a snapshot's people.
static bool take_snapshot(struct fold *fold, const json_t *reply) {
  json_t *before = fold->users;
  fold->users = json_object();
  size_t i, j;
  json_t *listed, *session;
  json_array_foreach(json_object_get(reply, "users"), i, listed) {
    json_t *user = user_entry(fold, text_of(listed, "user_id", ""));
    json_t *since = json_object_get(listed, "online_since"), *offline_at = json_object_get(listed, "offline_at");
    if (since != NULL)
      json_object_set(user, "online_since", since);
    if (offline_at != NULL)
      json_object_set(user, "offline_at", offline_at);
    json_array_foreach(json_object_get(listed, "sessions"), j, session) {
      set_meta(json_object_get(user, "sessions"), text_of(session, "session_id", ""), json_object_get(session, "meta"));
    }
  }
  if (fold->users == NULL) {
    fold->users = before;
    return false;
  }
  json_decref(before);
  return true;
}

enum fold_result fold_reply(struct fold *fold, const json_t *reply) {
  const char *mode = text_of(reply, "mode", NULL), *epoch = text_of(reply, "epoch", NULL);
  int64_t revision = number_of(reply, "revision", -1);
  char *kept = mode == NULL || epoch == NULL || revision < 0 ? NULL : strdup(epoch);
  if (kept == NULL)
    return FOLD_FOREIGN;
  bool snapshot = strcmp(mode, "snapshot") == 0;
  if (snapshot ? !take_snapshot(fold, reply) : fold->users == NULL) {
    free(kept);
    return FOLD_FOREIGN;
  }
  free(fold->epoch);
  fold->epoch = kept;
  if (snapshot) {
    fold->revision = revision;
    return FOLD_APPLIED;
  }
  size_t i;
  json_t *event;
  json_array_foreach(json_object_get(reply, "events"), i, event) {
    enum fold_result result = fold_event(fold, event);
    if (result == FOLD_GAP || result == FOLD_FOREIGN)
      return result;
  }
  if (revision > fold->revision && !fold->sparse)
    return FOLD_GAP;
  if (revision > fold->revision)
    fold->revision = revision;
  return FOLD_APPLIED;
}

json_t *fold_state(const struct fold *fold) {
  json_t *state = json_object(), *user;
  const char *user_id;
  json_object_foreach(fold->users, user_id, user) {
    json_object_set(state, user_id, json_object_get(user, "sessions"));
  }
  json_t *copy = json_deep_copy(state);
  json_decref(state);
  return copy;
}
