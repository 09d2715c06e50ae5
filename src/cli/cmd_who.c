// SPDX-License-Identifier: Apache-2.0
/// @file
/// `stillhere who` and `stillhere rooms`: what is, at this moment.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/http.h"
#include "cli/snapshot.h"
#include "cli/text.h"

/// Rooms that are asked for at a time.
#define ROOMS_PAGE 1000

int cmd_who(const struct options *options) {
  struct http *http = http_open(options->url, options->token_file);
  struct buf path = {0};
  buf_puts(&path, "/rooms");
  http_path_add(&path, options->args[0]);
  buf_puts(&path, "/presence");
  struct http_reply reply = {0};
  int code = EXIT_REFUSED;
  if (http == NULL || path.failed) {
    complain("memory ran out");
  } else {
    enum http_result result = http_send_patiently(http, "GET", path.data, NULL, &reply);
    if (result == HTTP_ANSWERED && reply.status == 200 && reply.json != NULL) {
      code = EXIT_DONE;
      if (options->json)
        print_json(reply.json);
      else
        snapshot_print(reply.json);
    } else {
      code = http_explain(http, result, &reply);
    }
  }
  http_reply_clear(&reply);
  buf_free(&path);
  http_close(http);
  return code;
}

static void print_room(const json_t *room) {
  char name[160];
  int64_t users = number_of(room, "users", 0), sessions = number_of(room, "sessions", 0);
  printf("%-24s %lld %s, %lld %s, revision %lld, changed %s\n",
         text_clean(name, sizeof name, text_of(room, "room_id", "?")), (long long)users,
         plural(users, "person", "people"), (long long)sessions, plural(sessions, "session", "sessions"),
         (long long)number_of(room, "revision", 0), text_of(room, "changed_at", "?"));
}

/// One page. @param[in,out] after where it begins, NULL for the first; becomes where the next one does, NULL for none
static int rooms_page(struct http *http, const struct options *options, char **after) {
  struct buf path = {0};
  buf_puts(&path, "/rooms");
  if (options->prefix != NULL)
    http_query_add(&path, "prefix", options->prefix);
  if (*after != NULL)
    http_query_add(&path, "after", *after);
  http_query_add_int(&path, "limit", ROOMS_PAGE);
  free(*after);
  *after = NULL;
  struct http_reply reply = {0};
  int code = EXIT_REFUSED;
  if (path.failed) {
    complain("memory ran out");
  } else {
    enum http_result result = http_send_patiently(http, "GET", path.data, NULL, &reply);
    if (result != HTTP_ANSWERED || reply.status != 200) {
      code = http_explain(http, result, &reply);
    } else {
      code = EXIT_DONE;
      size_t i;
      json_t *room;
      json_array_foreach(json_object_get(reply.json, "rooms"), i, room) {
        if (options->json)
          print_json(room);
        else
          print_room(room);
      }
      const char *next = text_of(reply.json, "next", NULL);
      *after = next == NULL ? NULL : strdup(next);
    }
  }
  http_reply_clear(&reply);
  buf_free(&path);
  return code;
}

int cmd_rooms(const struct options *options) {
  struct http *http = http_open(options->url, options->token_file);
  if (http == NULL) {
    complain("memory ran out");
    return EXIT_REFUSED;
  }
  char *after = NULL;
  int code;
  do {
    code = rooms_page(http, options, &after);
  } while (code == EXIT_DONE && after != NULL);
  free(after);
  http_close(http);
  return code;
}
