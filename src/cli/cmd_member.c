// SPDX-License-Identifier: Apache-2.0
/// @file
/// `stillhere member`: who may be in a room.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/http.h"
#include "cli/text.h"

/// Members that are asked for at a time.
#define PAGE 1000

static void print_member(const json_t *member) {
  char user[160], role[160];
  const char *revoked = text_of(member, "revoked_at", NULL);
  text_clean(role, sizeof role, text_of(member, "role", ""));
  printf("%-24s %-16s granted %s", text_clean(user, sizeof user, text_of(member, "user_id", "?")),
         role[0] == '\0' ? "-" : role, text_of(member, "granted_at", "never"));
  if (revoked != NULL)
    printf(", revoked %s", revoked);
  putchar('\n');
}

static void add_path(struct buf *path, const char *room, const char *user) {
  buf_puts(path, "/rooms");
  http_path_add(path, room);
  buf_puts(path, "/members");
  if (user != NULL)
    http_path_add(path, user);
}

// -- one member ----------------------------------------------------------------------------------------------------

static void print_granted(const json_t *answer) {
  print_member(answer);
}

static void print_revoked(const json_t *answer) {
  if (strcmp(text_of(answer, "decision", ""), "already_applied") == 0)
    puts("revoked before");
  else
    puts("revoked; the sessions in the room have ended");
}

/// The body of a grant. @return NULL when memory ran out or the role is not text (said)
static char *grant_body(const char *role) {
  json_t *document = role == NULL ? json_object() : json_pack("{s:s}", "role", role);
  char *body = document == NULL ? NULL : json_dumps(document, JSON_COMPACT);
  if (body == NULL)
    complain("--role is not valid UTF-8");
  json_decref(document);
  return body;
}

/// Sends one request about one member. @a print tells its answer to people
static int one(const struct options *o, const char *method, const char *body, void (*print)(const json_t *answer)) {
  struct http *http = http_open(o->url, o->token_file);
  struct buf path = {0};
  struct http_reply reply = {0};
  int code = EXIT_REFUSED;
  add_path(&path, o->args[1], o->args[2]);
  if (http == NULL || path.failed) {
    complain("memory ran out");
  } else {
    enum http_result result = http_send_patiently(http, method, path.data, body, &reply);
    if (result == HTTP_ANSWERED && reply.status == 200 && reply.json != NULL) {
      code = EXIT_DONE;
      if (o->json)
        print_json(reply.json);
      else
        print(reply.json);
    } else {
      code = http_explain(http, result, &reply);
      if (o->json && reply.json != NULL)
        print_json(reply.json);
    }
  }
  http_reply_clear(&reply);
  buf_free(&path);
  http_close(http);
  return code;
}

static int grant(const struct options *o) {
  char *body = grant_body(o->role);
  int code = body == NULL ? EXIT_USAGE : one(o, "PUT", body, print_granted);
  free(body);
  return code;
}

static int revoke(const struct options *o) {
  return one(o, "DELETE", NULL, print_revoked);
}

static int show(const struct options *o) {
  return one(o, "GET", NULL, print_member);
}

// -- all of a room -------------------------------------------------------------------------------------------------

/// One page. @param[in,out] after where it begins, NULL for the first; becomes where the next one does, NULL for none
static int page(struct http *http, const struct options *o, char **after) {
  struct buf path = {0};
  add_path(&path, o->args[1], NULL);
  if (*after != NULL)
    http_query_add(&path, "after", *after);
  http_query_add_int(&path, "limit", PAGE);
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
      json_t *member;
      json_array_foreach(json_object_get(reply.json, "members"), i, member) {
        if (o->json)
          print_json(member);
        else
          print_member(member);
      }
      const char *next = text_of(reply.json, "next", NULL);
      *after = next == NULL ? NULL : strdup(next);
    }
  }
  http_reply_clear(&reply);
  buf_free(&path);
  return code;
}

static int list(const struct options *o) {
  struct http *http = http_open(o->url, o->token_file);
  if (http == NULL) {
    complain("memory ran out");
    return EXIT_REFUSED;
  }
  char *after = NULL;
  int code;
  do {
    code = page(http, o, &after);
  } while (code == EXIT_DONE && after != NULL);
  free(after);
  http_close(http);
  return code;
}

// -- the verbs -----------------------------------------------------------------------------------------------------

static const struct {
  const char *name;
  int n_args;
  int (*run)(const struct options *o);
  const char *synopsis;
} verbs[] = {
    {"grant", 3, grant, "grant ROOM USER [--role TEXT]"},
    {"revoke", 3, revoke, "revoke ROOM USER"},
    {"list", 2, list, "list ROOM"},
    {"show", 3, show, "show ROOM USER"},
};

int cmd_member(const struct options *options) {
  for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
    if (strcmp(options->args[0], verbs[i].name) != 0)
      continue;
    if (options->n_args != verbs[i].n_args) {
      complain("usage: stillhere member %s", verbs[i].synopsis);
      return EXIT_USAGE;
    }
    if (options->role != NULL && verbs[i].run != grant) {
      complain("--role goes with member grant");
      return EXIT_USAGE;
    }
    return verbs[i].run(options);
  }
  complain("member takes grant, revoke, list or show, not \"%s\"", options->args[0]);
  return EXIT_USAGE;
}
