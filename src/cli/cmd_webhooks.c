// SPDX-License-Identifier: Apache-2.0
/// @file
/// `stillhere webhooks`: the targets, what was given up, and sending it again.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/jsonout.h"
#include "base/strict.h"
#include "cli/commands.h"
#include "cli/http.h"
#include "cli/text.h"

#define PAGE 1000
#define COUNT_MAX 100000

/// The server counts no further.
static const char *or_more(int64_t n) {
  return n >= COUNT_MAX ? "at least " : "";
}

static void print_target(const json_t *t) {
  char name[64], url[256], error[200], age[64];
  int64_t backlog = number_of(t, "backlog", 0), dead = number_of(t, "dead", 0);
  printf("%-16s %s\n  %s%lld %s not told yet", text_clean(name, sizeof name, text_of(t, "name", "?")),
         text_clean(url, sizeof url, text_of(t, "url", "(not configured any more)")), or_more(backlog),
         (long long)backlog, plural(backlog, "event", "events"));
  if (backlog > 0)
    printf(", the oldest %s", text_ago(age, sizeof age, number_of(t, "oldest_age_ms", 0)));
  printf("; %s%lld given up\n", or_more(dead), (long long)dead);
  const char *last = text_of(t, "last_error", NULL), *since = text_of(t, "failing_since", NULL);
  if (last != NULL)
    printf("  newest error: %s%s%s\n", text_clean(error, sizeof error, last), since != NULL ? "; failing since " : "",
           since != NULL ? text_clean(age, sizeof age, since) : "");
}

static void print_dead(const json_t *m) {
  char target[64], room[160], error[200];
  size_t n = json_array_size(json_object_get(m, "event_ids"));
  printf("%-16s %-24s message %lld, %zu %s, %lld %s, %s: %s\n",
         text_clean(target, sizeof target, text_of(m, "target", "?")),
         text_clean(room, sizeof room, text_of(m, "room_id", "?")), (long long)number_of(m, "message", 0), n,
         plural((int64_t)n, "event", "events"), (long long)number_of(m, "attempts", 0),
         plural(number_of(m, "attempts", 0), "attempt", "attempts"), text_of(m, "dead_at", "?"),
         text_clean(error, sizeof error, text_of(m, "error", "?")));
}

/// Prints the array @a list of a GET. @param[out] next where the next page begins, allocated, or NULL
static int print_list(struct http *http, const struct options *options, const char *path, const char *list,
                      void (*print)(const json_t *), char **next) {
  struct http_reply reply = {0};
  int code = EXIT_DONE;
  enum http_result result = http_send_patiently(http, "GET", path, NULL, &reply);
  if (result != HTTP_ANSWERED || reply.status != 200 || reply.json == NULL) {
    code = http_explain(http, result, &reply);
  } else {
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(reply.json, list), i, item) {
      if (options->json)
        print_json(item);
      else
        print(item);
    }
    const char *more = text_of(reply.json, "next", NULL);
    *next = more != NULL ? strdup(more) : NULL;
  }
  http_reply_clear(&reply);
  return code;
}

static int list_dead(struct http *http, const struct options *options) {
  char *after = NULL;
  int code;
  do {
    struct buf path = {0};
    buf_puts(&path, "/webhooks/dead");
    if (options->n_args > 1)
      http_query_add(&path, "target", options->args[1]);
    if (after != NULL)
      http_query_add(&path, "after", after);
    http_query_add_int(&path, "limit", PAGE);
    free(after);
    after = NULL;
    code = path.failed ? EXIT_REFUSED : print_list(http, options, path.data, "dead", print_dead, &after);
    buf_free(&path);
  } while (code == EXIT_DONE && after != NULL);
  return code;
}

/// One request of a replay. @param[in,out] after where it goes on, allocated; NULL: at the start, or it is done
static int replay_some(struct http *http, const struct options *options, int64_t message, char **after,
                       struct http_reply *reply) {
  struct buf body = {0};
  jo_object(&body);
  jo_kstr(&body, "target", options->args[1]);
  if (options->n_args > 2)
    jo_kstr(&body, "room_id", options->args[2]);
  if (message > 0)
    jo_kint(&body, "message", message);
  if (*after != NULL)
    jo_kstr(&body, "after", *after);
  jo_object_end(&body);
  free(*after);
  *after = NULL;
  enum http_result result =
      body.failed ? HTTP_BROKEN : http_send_patiently(http, "POST", "/webhooks/replay", body.data, reply);
  buf_free(&body);
  if (result != HTTP_ANSWERED || reply->status != 200 || reply->json == NULL)
    return http_explain(http, result, reply);
  const char *next = text_of(reply->json, "next", NULL);
  if (next == NULL || (*after = strdup(next)) != NULL)
    return EXIT_DONE;
  complain("memory ran out");
  return EXIT_REFUSED;
}

static int replay(struct http *http, const struct options *options) {
  int64_t message = 0;
  if (options->n_args < 2) {
    complain("replay what? stillhere webhooks replay TARGET [ROOM [MESSAGE]]");
    return EXIT_USAGE;
  }
  if (options->n_args > 3 && !strict_int(options->args[3], strlen(options->args[3]), 1, REVISION_MAX, &message)) {
    complain("a message is a number that `stillhere webhooks dead` shows, not \"%s\"", options->args[3]);
    return EXIT_USAGE;
  }
  char *after = NULL;
  int code;
  int64_t n = 0;
  do {
    struct http_reply reply = {0};
    code = replay_some(http, options, message, &after, &reply);
    if (code == EXIT_DONE) {
      n += number_of(reply.json, "replayed_events", 0);
      if (options->json)
        print_json(reply.json);
      else if (after != NULL)
        fprintf(stderr, "%lld events so far\n", (long long)n);
    }
    http_reply_clear(&reply);
  } while (code == EXIT_DONE && after != NULL);
  if (code == EXIT_DONE && !options->json)
    printf("%lld %s will be sent again\n", (long long)n, plural(n, "event", "events"));
  free(after);
  return code;
}

int cmd_webhooks(const struct options *options) {
  const char *verb = options->n_args > 0 ? options->args[0] : "list";
  struct http *http = http_open(options->url, options->token_file);
  if (http == NULL) {
    complain("memory ran out");
    return EXIT_REFUSED;
  }
  int code = EXIT_USAGE;
  char *next = NULL;
  if (strcmp(verb, "list") == 0 && options->n_args <= 1)
    code = print_list(http, options, "/webhooks", "targets", print_target, &next);
  else if (strcmp(verb, "dead") == 0 && options->n_args <= 2)
    code = list_dead(http, options);
  else if (strcmp(verb, "replay") == 0)
    code = replay(http, options);
  else
    complain("stillhere webhooks list, dead [TARGET] or replay TARGET [ROOM [MESSAGE]]");
  free(next);
  http_close(http);
  return code;
}
