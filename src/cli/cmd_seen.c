// SPDX-License-Identifier: Apache-2.0
/// @file
/// `stillhere last-seen` and `stillhere explain`: when somebody was here, and why they are shown as they are.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/http.h"
#include "cli/snapshot.h"
#include "cli/text.h"

/// Users that are asked for at a time.
#define PAGE 200

// -- last seen -----------------------------------------------------------------------------------------------------

static void print_seen(const json_t *user) {
  char name[160], ago[64];
  int64_t ago_ms = number_of(user, "last_seen_ago_ms", -1);
  text_fit(name, sizeof name, text_of(user, "user_id", "?"), 24);
  if (ago_ms < 0) {
    printf("%s never seen\n", name);
    return;
  }
  printf("%s active %s%s, %s\n", name, text_ago(ago, sizeof ago, ago_ms),
         json_is_true(json_object_get(user, "online")) ? "" : " (gone)", text_of(user, "last_seen_at", "?"));
}

/// Asks one path and prints its users. @param[out] next where the list goes on, to be freed; NULL: nowhere
static int ask_seen(struct http *http, const struct options *o, const struct buf *path, char **next) {
  struct http_reply reply = {0};
  int code = EXIT_REFUSED;
  *next = NULL;
  if (path->failed) {
    complain("memory ran out");
    return code;
  }
  enum http_result result = http_send_patiently(http, "GET", path->data, NULL, &reply);
  if (result == HTTP_ANSWERED && reply.status == 200 && reply.json != NULL) {
    size_t i;
    json_t *user;
    code = EXIT_DONE;
    json_array_foreach(json_object_get(reply.json, "users"), i, user) {
      if (o->json)
        print_json(user);
      else
        print_seen(user);
    }
    const char *more = text_of(reply.json, "next", NULL);
    *next = more == NULL ? NULL : strdup(more);
  } else {
    code = http_explain(http, result, &reply);
  }
  http_reply_clear(&reply);
  return code;
}

static int room_seen(struct http *http, const struct options *o) {
  char *after = NULL;
  int code;
  do {
    struct buf path = {0};
    buf_puts(&path, "/rooms");
    http_path_add(&path, o->room);
    buf_puts(&path, "/last-seen");
    http_query_add_int(&path, "limit", PAGE);
    if (after != NULL)
      http_query_add(&path, "after", after);
    free(after);
    code = ask_seen(http, o, &path, &after);
    buf_free(&path);
  } while (code == EXIT_DONE && after != NULL);
  free(after);
  return code;
}

static int users_seen(struct http *http, const struct options *o) {
  int code = EXIT_DONE;
  for (int at = 0; at < o->n_args && code == EXIT_DONE; at += PAGE) {
    struct buf path = {0};
    char *next;
    buf_puts(&path, "/last-seen");
    for (int i = at; i < o->n_args && i < at + PAGE; i++)
      http_query_add(&path, "user_id", o->args[i]);
    code = ask_seen(http, o, &path, &next);
    free(next);
    buf_free(&path);
  }
  return code;
}

int cmd_last_seen(const struct options *options) {
  struct http *http = http_open(options->url, options->token_file);
  if (http == NULL) {
    complain("memory ran out");
    return EXIT_REFUSED;
  }
  int code = options->room != NULL ? room_seen(http, options) : users_seen(http, options);
  http_close(http);
  return code;
}

// -- explain -------------------------------------------------------------------------------------------------------

static void print_lease(const json_t *lease) {
  char id[160];
  printf("  lease of %s: %s, revision %lld, %.1f s left, last heartbeat %s (request %s)\n",
         text_clean(id, sizeof id, text_of(lease, "session_id", "?")), text_of(lease, "state", "?"),
         (long long)number_of(lease, "revision", 0), (double)number_of(lease, "remaining_ms", 0) / 1000,
         text_of(lease, "renewed_at", "?"), text_of(lease, "request_id", "none"));
}

static void print_tombstone(const json_t *stone) {
  char id[160];
  printf("  end of %s: %s at %s, revision %lld (request %s)\n",
         text_clean(id, sizeof id, text_of(stone, "session_id", "?")), text_of(stone, "reason", "?"),
         text_of(stone, "ended_at", "?"), (long long)number_of(stone, "revision", 0),
         text_of(stone, "request_id", "none"));
}

static void print_explanation(const json_t *answer) {
  char user[160], room[160], text[1024];
  printf("%s in %s is %s\n", text_clean(user, sizeof user, text_of(answer, "user_id", "?")),
         text_clean(room, sizeof room, text_of(answer, "room_id", "?")), text_of(answer, "state", "?"));
  printf("  why: %s\n", text_clean(text, sizeof text, text_of(answer, "rule", "?")));
  const json_t *next = json_object_get(answer, "next");
  if (json_is_object(next))
    printf("  next, in %.1f s: %s\n", (double)number_of(next, "in_ms", 0) / 1000,
           text_clean(text, sizeof text, text_of(next, "what", "?")));
  else
    puts("  next: nothing by itself");
  printf("  membership: %s\n",
         text_clean(text, sizeof text, text_of(json_object_get(answer, "membership"), "rule", "?")));
  size_t i;
  json_t *item;
  json_array_foreach(json_object_get(answer, "leases"), i, item) {
    print_lease(item);
  }
  json_array_foreach(json_object_get(answer, "tombstones"), i, item) {
    print_tombstone(item);
  }
  json_array_foreach(json_object_get(answer, "events"), i, item) {
    // They are all of this user, so the answer does not repeat whose they are.
    json_object_set(item, "user_id", json_object_get(answer, "user_id"));
    fputs("  ", stdout);
    event_print(item);
  }
}

int cmd_explain(const struct options *options) {
  struct http *http = http_open(options->url, options->token_file);
  struct buf path = {0};
  struct http_reply reply = {0};
  int code = EXIT_REFUSED;
  buf_puts(&path, "/rooms");
  http_path_add(&path, options->args[0]);
  buf_puts(&path, "/users");
  http_path_add(&path, options->args[1]);
  buf_puts(&path, "/explain");
  if (http == NULL || path.failed) {
    complain("memory ran out");
  } else {
    enum http_result result = http_send_patiently(http, "GET", path.data, NULL, &reply);
    if (result == HTTP_ANSWERED && reply.status == 200 && reply.json != NULL) {
      code = EXIT_DONE;
      if (options->json)
        print_json(reply.json);
      else
        print_explanation(reply.json);
    } else {
      code = http_explain(http, result, &reply);
    }
  }
  http_reply_clear(&reply);
  buf_free(&path);
  http_close(http);
  return code;
}
