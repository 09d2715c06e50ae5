// SPDX-License-Identifier: Apache-2.0
// `stillhere watch` on a terminal. The room is polled as always; beside that, when people were active last is asked for
// now and then, since a plain renewal is no event.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rand.h"
#include "cli/fold.h"
#include "cli/screen.h"
#include "cli/signals.h"
#include "cli/text.h"
#include "cli/watch.h"

#define SECOND_US INT64_C(1000000)
/// Between two questions for last-seen: by itself, and after an event.
#define SEEN_EVERY_US (10 * SECOND_US)
#define SEEN_AFTER_EVENT_US (2 * SECOND_US)
#define SEEN_TIMEOUT_MS 10000
/// As many as the server gives at a time.
#define SEEN_LIMIT 1000
/// Somebody looks on: the pauses grow less than elsewhere.
#define PAUSE_MOST_MS 5000

struct request {
  struct http *http;
  struct http_reply reply;
  bool under_way;
  int64_t asked_us, due_us; ///< monotonic
};

struct live {
  const struct options *options;
  struct http_group *group;
  struct request poll, seen;
  struct fold fold;
  struct screen screen;
  bool dirty;
  int attempt;
  bool answered;
  bool over, starved;
};

static void begin_poll(struct live *v) {
  struct buf path = {0};
  // All events are needed to know who is here; that the kinds are known ones is asked with the snapshot.
  watch_path(&path, v->options->args[0], v->fold.revision, v->fold.epoch,
             v->fold.revision < 0 ? v->options->kinds : NULL);
  v->poll.asked_us = clock_mono_us();
  v->over = v->starved = path.failed;
  if (!path.failed)
    http_begin(v->poll.http, "GET", path.data, NULL, WATCH_TIMEOUT_MS, &v->poll.reply);
  v->poll.under_way = !path.failed;
  buf_free(&path);
}

static void begin_seen(struct live *v) {
  struct buf path = {0};
  buf_puts(&path, "/rooms");
  http_path_add(&path, v->options->args[0]);
  buf_puts(&path, "/last-seen");
  http_query_add_int(&path, "limit", SEEN_LIMIT);
  v->seen.asked_us = clock_mono_us();
  v->over = v->starved = path.failed;
  if (!path.failed)
    http_begin(v->seen.http, "GET", path.data, NULL, SEEN_TIMEOUT_MS, &v->seen.reply);
  v->seen.under_way = !path.failed;
  buf_free(&path);
}

/// Notes what is wrong, to be shown.
static void trouble(struct live *v, enum http_result result, const struct http_reply *reply) {
  if (result == HTTP_ANSWERED)
    snprintf(v->screen.trouble, sizeof v->screen.trouble, "the server answered %d", reply->status);
  else
    snprintf(v->screen.trouble, sizeof v->screen.trouble, "%.190s", reply->error);
  v->dirty = true;
}

static void no_trouble(struct live *v) {
  v->screen.good_us = clock_mono_us();
  v->screen.trouble[0] = '\0';
  v->dirty = true;
}

static void end_seen(struct live *v) {
  json_t *users = json_object_get(v->seen.reply.json, "users");
  enum http_result result = http_outcome(v->seen.http);
  v->seen.due_us = clock_mono_us() + SEEN_EVERY_US;
  // A poll may wait for long on a connection that leads nowhere any more: here it shows first.
  if (v->poll.under_way && result == HTTP_UNREACHABLE)
    trouble(v, result, &v->seen.reply);
  else if (v->poll.under_way && v->attempt == 0 && result == HTTP_ANSWERED)
    no_trouble(v);
  // Where it may not be read the list of people stays without it.
  if (result != HTTP_ANSWERED || v->seen.reply.status != 200 || !json_is_array(users))
    return;
  json_decref(v->screen.seen);
  v->screen.seen = json_incref(users);
  v->screen.seen_us = v->seen.asked_us;
  v->dirty = true;
}

/// Notes that a poll was in vain, and when the next one is.
static void poll_failed(struct live *v, enum http_result result) {
  const struct http_reply *r = &v->poll.reply;
  bool may_pass = result == HTTP_UNREACHABLE || (result == HTTP_ANSWERED && http_worth_retrying(r->status));
  if (!may_pass || (!v->answered && v->attempt + 1 >= WATCH_ATTEMPTS)) {
    v->over = true;
    return;
  }
  trouble(v, result, r);
  int64_t pause_ms = http_pause_ms(v->attempt++, WATCH_PAUSE_FIRST_MS, PAUSE_MOST_MS, r->retry_after_s);
  v->poll.due_us = clock_mono_us() + pause_ms * 1000;
}

/// Says between the events that some are missing there.
static void note_snapshot(struct live *v) {
  char text[120];
  const char *reason = text_of(v->poll.reply.json, "reason", "requested");
  if (!v->answered || strcmp(text_of(v->poll.reply.json, "mode", ""), "snapshot") != 0)
    return;
  snprintf(text, sizeof text, "what was known no longer leads here (%.40s): events are missing", reason);
  screen_note(&v->screen, text);
}

static void end_poll(struct live *v) {
  enum http_result result = http_outcome(v->poll.http);
  int64_t now_us = clock_mono_us(), before = v->fold.revision;
  if (result != HTTP_ANSWERED || v->poll.reply.status != 200) {
    poll_failed(v, result);
    return;
  }
  enum fold_result folded = fold_reply(&v->fold, v->poll.reply.json);
  if (folded == FOLD_FOREIGN) {
    v->over = true;
    return;
  }
  size_t i;
  json_t *event;
  json_array_foreach(json_object_get(v->poll.reply.json, "events"), i, event) {
    int64_t revision = number_of(event, "revision", 0);
    if (revision > before && revision <= v->fold.revision)
      screen_add(&v->screen, event);
  }
  note_snapshot(v);
  if (folded == FOLD_GAP)
    fold_clear(&v->fold);
  v->attempt = 0;
  v->answered = true;
  no_trouble(v);
  bool news = v->fold.revision != before;
  if (news && v->seen.due_us > v->seen.asked_us + SEEN_AFTER_EVENT_US)
    v->seen.due_us = v->seen.asked_us + SEEN_AFTER_EVENT_US;
  v->poll.due_us = news || now_us - v->poll.asked_us >= WATCH_HASTY_US ? now_us : now_us + jitter_down(500, 2) * 1000;
}

static void tend(struct live *v) {
  if (v->poll.under_way && !http_running(v->poll.http)) {
    v->poll.under_way = false;
    end_poll(v);
  }
  if (v->seen.under_way && !http_running(v->seen.http)) {
    v->seen.under_way = false;
    end_seen(v);
  }
  int64_t now_us = clock_mono_us();
  if (!v->over && !v->poll.under_way && v->poll.due_us <= now_us)
    begin_poll(v);
  if (!v->over && !v->seen.under_way && v->answered && v->seen.due_us <= now_us)
    begin_seen(v);
}

/// A new size, Ctrl-Z, and what comes after that.
static void tend_terminal(struct live *v) {
  unsigned news = signals_terminal(true);
  if ((news & TERMINAL_SUSPEND) != 0) {
    screen_leave(&v->screen);
    signals_suspend();
  }
  if ((news & (TERMINAL_SUSPEND | TERMINAL_CONTINUED)) != 0)
    screen_enter(&v->screen);
  v->dirty = v->dirty || news != 0;
}

/// Until a signal, or until there is no use in going on.
static void run(struct live *v) {
  int64_t drawn_us = 0;
  while (!v->over && signals_stops() == 0 && !ferror(stdout)) {
    tend(v);
    tend_terminal(v);
    int64_t now_us = clock_mono_us();
    // Once a second in any case: how long ago something was goes on by itself.
    if (v->dirty || now_us - drawn_us >= SECOND_US) {
      screen_draw(&v->screen);
      drawn_us = now_us;
      v->dirty = false;
    }
    int64_t wake_us = drawn_us + SECOND_US;
    if (v->poll.under_way && !http_running(v->poll.http)) // it could not even begin
      wake_us = now_us;
    if (!v->poll.under_way && v->poll.due_us < wake_us)
      wake_us = v->poll.due_us;
    if (!http_group_run(v->group, wake_us))
      break;
  }
}

int watch_live(const struct options *options) {
  struct live v = {.options = options, .fold = {.revision = -1}};
  int code = EXIT_DONE;
  v.screen = (struct screen){.room = options->args[0], .url = options->url, .kinds = options->kinds, .fold = &v.fold};
  v.group = http_group_open();
  if (v.group != NULL) {
    v.poll.http = http_open_in(v.group, options->url, options->token_file);
    v.seen.http = http_open_in(v.group, options->url, options->token_file);
  }
  v.starved = v.poll.http == NULL || v.seen.http == NULL;
  if (!v.starved && signals_take_terminal()) {
    screen_open(&v.screen);
    screen_enter(&v.screen);
    run(&v);
    screen_close(&v.screen);
    if (v.over && !v.starved)
      code = http_explain(v.poll.http, http_outcome(v.poll.http), &v.poll.reply);
  } else if (!v.starved) {
    complain("signals cannot be set up: %s", strerror(errno));
    code = EXIT_REFUSED;
  }
  if (v.starved) {
    complain("memory ran out");
    code = EXIT_REFUSED;
  }
  http_close(v.poll.http);
  http_close(v.seen.http);
  http_group_close(v.group);
  http_reply_clear(&v.poll.reply);
  http_reply_clear(&v.seen.reply);
  fold_clear(&v.fold);
  return code;
}
