// SPDX-License-Identifier: Apache-2.0
/// @file
/// `stillhere watch`: a long poll after the other. What is remembered between them is the room revision and its epoch;
/// whatever the server answers, a snapshot or events, carries on from there.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rand.h"
#include "cli/commands.h"
#include "cli/screen.h"
#include "cli/signals.h"
#include "cli/snapshot.h"
#include "cli/text.h"
#include "cli/watch.h"

struct watching {
  const struct options *options;
  struct http *http;
  int64_t since; ///< -1: ask for a snapshot
  char *epoch;   ///< NULL: not known
  bool answered; ///< at least once
};

void watch_path(struct buf *path, const char *room, int64_t since, const char *epoch, const char *kinds) {
  buf_puts(path, "/rooms");
  http_path_add(path, room);
  buf_puts(path, "/presence");
  if (since >= 0) {
    http_query_add_int(path, "since", since);
    http_query_add_int(path, "wait_ms", WATCH_WAIT_MS);
  }
  if (epoch != NULL)
    http_query_add(path, "epoch", epoch);
  if (kinds != NULL)
    http_query_add(path, "kinds", kinds);
}

static enum http_result poll_once(const struct watching *w, struct http_reply *reply) {
  struct buf path = {0};
  watch_path(&path, w->options->args[0], w->since, w->epoch, w->options->kinds);
  enum http_result result = HTTP_BROKEN;
  if (path.failed)
    snprintf(reply->error, sizeof reply->error, "memory ran out");
  else if (w->since < 0)
    result = http_send_aloud(w->http, "GET", path.data, NULL, WATCH_TIMEOUT_MS, reply);
  else
    result = http_send(w->http, "GET", path.data, NULL, WATCH_TIMEOUT_MS, reply);
  buf_free(&path);
  return result;
}

/// Prints a reply and moves on to its revision. @return false when it is not a presence reply
static bool take_reply(struct watching *w, const json_t *reply) {
  const char *mode = text_of(reply, "mode", ""), *epoch = text_of(reply, "epoch", NULL);
  int64_t revision = number_of(reply, "revision", -1);
  char *kept = epoch == NULL ? NULL : strdup(epoch);
  if (kept == NULL || revision < 0) {
    free(kept);
    return false;
  }
  free(w->epoch);
  w->epoch = kept;
  w->since = revision;
  if (strcmp(mode, "snapshot") == 0) {
    const char *reason = text_of(reply, "reason", "requested");
    if (w->options->json) {
      print_json(reply);
      return true;
    }
    if (strcmp(reason, "requested") != 0) {
      char cleaned[64];
      printf("-- what was known no longer leads here (%s); the room as it is:\n",
             text_clean(cleaned, sizeof cleaned, reason));
    }
    snapshot_print(reply);
    return true;
  }
  size_t i;
  json_t *event;
  json_array_foreach(json_object_get(reply, "events"), i, event) {
    if (w->options->json)
      print_json(event);
    else
      event_print(event);
  }
  fflush(stdout);
  return true;
}

/// After a failed poll. @return false when the watch is over: @a code says how
static bool wait_to_retry(const struct watching *w, enum http_result result, const struct http_reply *reply,
                          int attempt, int *code) {
  bool may_pass = result == HTTP_UNREACHABLE || (result == HTTP_ANSWERED && http_worth_retrying(reply->status));
  if (!may_pass || (!w->answered && attempt + 1 >= WATCH_ATTEMPTS)) {
    *code = http_explain(w->http, result, reply);
    return false;
  }
  if (attempt == 0 && w->answered) {
    if (result == HTTP_ANSWERED)
      complain("the server answered %d; trying again until it is back", reply->status);
    else
      complain("connection lost (%s); trying again until the server is back", reply->error);
  } else if (attempt == 1 && !w->answered) {
    http_say_again(w->http, result, reply);
  }
  return !signals_sleep(http_pause_ms(attempt, WATCH_PAUSE_FIRST_MS, WATCH_PAUSE_MOST_MS, reply->retry_after_s));
}

static int watch_lines(const struct options *options) {
  struct watching w = {.options = options, .since = options->since};
  w.http = http_open(options->url, options->token_file);
  w.epoch = options->epoch == NULL ? NULL : strdup(options->epoch);
  struct http_reply reply = {0};
  int code = EXIT_DONE, attempt = 0;
  if (w.http == NULL || (options->epoch != NULL && w.epoch == NULL)) {
    complain("memory ran out");
    code = EXIT_REFUSED;
  }
  // A reader that has gone (`watch … | head`) ends it too.
  while (code == EXIT_DONE && signals_stops() == 0 && !ferror(stdout)) {
    int64_t asked_us = clock_mono_us(), before = w.since;
    enum http_result result = poll_once(&w, &reply);
    if (result == HTTP_INTERRUPTED)
      break;
    if (result != HTTP_ANSWERED || reply.status != 200) {
      if (!wait_to_retry(&w, result, &reply, attempt++, &code))
        break;
      continue;
    }
    if (!take_reply(&w, reply.json)) {
      complain("the answer of %s is not one of a stillhere server", options->url);
      code = EXIT_UNREACHABLE;
      break;
    }
    if (attempt > 0 && w.answered)
      complain("connected again");
    w.answered = true;
    attempt = 0;
    if (w.since == before && clock_mono_us() - asked_us < WATCH_HASTY_US)
      signals_sleep(jitter_down(500, 2));
  }
  http_reply_clear(&reply);
  free(w.epoch);
  http_close(w.http);
  return code;
}

int cmd_watch(const struct options *options) {
  // From a cursor on there is no list of people to draw.
  bool lines = options->plain || options->json || options->since >= 0 || !screen_possible();
  return lines ? watch_lines(options) : watch_live(options);
}
