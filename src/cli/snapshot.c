// SPDX-License-Identifier: Apache-2.0
#include "cli/snapshot.h"

#include <stdio.h>
#include <string.h>

#include "cli/text.h"

/// More sessions of one person than these are not named.
#define SESSIONS_SHOWN 5

static void print_user(const json_t *user) {
  char text[160];
  const json_t *sessions = json_object_get(user, "sessions");
  size_t n = json_array_size(sessions);
  printf("  %-20s since %s, ", text_clean(text, sizeof text, text_of(user, "user_id", "?")),
         text_of(user, "online_since", "?"));
  const char *offline_at = text_of(user, "offline_at", NULL);
  if (offline_at != NULL) {
    printf("leaving: no tab, offline at %s\n", text_clean(text, sizeof text, offline_at));
    return;
  }
  printf("%zu %s", n, plural((int64_t)n, "tab", "tabs"));
  for (size_t i = 0; i < n && i < SESSIONS_SHOWN; i++) {
    const char *id = text_of(json_array_get(sessions, i), "session_id", "?");
    printf("%s%s", i == 0 ? ": " : ", ", text_clean(text, sizeof text, id));
  }
  puts(n > SESSIONS_SHOWN ? ", …" : "");
}

void snapshot_print(const json_t *reply) {
  char room[160];
  const json_t *counts = json_object_get(reply, "counts"), *users = json_object_get(reply, "users");
  int64_t n_users = number_of(counts, "users", (int64_t)json_array_size(users));
  int64_t n_sessions = number_of(counts, "sessions", 0);
  printf("%s at revision %lld: %lld %s, %lld %s\n", text_clean(room, sizeof room, text_of(reply, "room_id", "?")),
         (long long)number_of(reply, "revision", 0), (long long)n_users, plural(n_users, "person", "people"),
         (long long)n_sessions, plural(n_sessions, "session", "sessions"));
  size_t i;
  json_t *user;
  json_array_foreach(users, i, user) {
    print_user(user);
  }
  fflush(stdout);
}

void event_print(const json_t *event) {
  char user[160], session[160], kind[64];
  const char *session_id = text_of(event, "session_id", NULL);
  printf("%s  %-6lld %-18s %s%s%s", text_of(event, "at", "?"), (long long)number_of(event, "revision", 0),
         text_clean(kind, sizeof kind, text_of(event, "kind", "?")),
         text_clean(user, sizeof user, text_of(event, "user_id", "?")), session_id == NULL ? "" : "/",
         session_id == NULL ? "" : text_clean(session, sizeof session, session_id));
  int64_t left = number_of(event, "user_sessions", -1), late = number_of(event, "overdue_ms", -1);
  if (left >= 0)
    printf("  (%lld %s now", (long long)left, plural(left, "session", "sessions"));
  if (late >= 0)
    printf("%s%lld ms overdue", left >= 0 ? ", " : "  (", (long long)late);
  puts(left >= 0 || late >= 0 ? ")" : "");
}
