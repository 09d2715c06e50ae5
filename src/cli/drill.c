// SPDX-License-Identifier: Apache-2.0
// How the drill talks: requests of the steps, heartbeats and polls beside them, findings.
#include "cli/drill.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/signals.h"
#include "cli/text.h"

#define ANSWER_TIMEOUT_MS 10000
/// A short wait, so that a poll that a faulty server never wakes still ends within the drill.
#define BOARD_WAIT_MS 2000
#define ATTEMPTS 5
/// Who waits longer than this is told for what.
#define SILENT_US INT64_C(1800000)
/// Pause after an answer that led nowhere.
#define PAUSE_US 300000

// -- words ---------------------------------------------------------------------------------------------------------

const char *drill_words(enum drill_check check) {
  static const char *const words[N_CHECKS] = {
      [CHECK_VANISHED] = "one cursor vanished",         [CHECK_STAYED] = "the renewed session stayed",
      [CHECK_REFUSED] = "the revoked user was refused", [CHECK_CONVERGED] = "the reconnect converged on one snapshot",
      [CHECK_TOLD] = "every change was told once",
  };
  return words[check];
}

void drill_say(const struct drill *d, const char *fmt, ...) {
  char text[512];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  int64_t ms = (clock_mono_us() - d->began_us) / 1000;
  if (d->options->json) {
    json_t *line = json_pack("{s:s, s:I}", "step", text, "after_ms", (json_int_t)ms);
    print_json(line);
    json_decref(line);
    return;
  }
  char cleaned[512];
  printf("%5.1f s  %s\n", (double)ms / 1000, text_clean(cleaned, sizeof cleaned, text));
  fflush(stdout);
}

static bool has_string(const json_t *list, const char *text) {
  size_t i;
  json_t *item;
  json_array_foreach(list, i, item) {
    if (strcmp(json_string_value(item), text) == 0)
      return true;
  }
  return false;
}

void drill_wrong(struct drill *d, enum drill_check check, const char *id, const char *fmt, ...) {
  struct finding *f = &d->findings[check];
  if (f->requests == NULL)
    f->requests = json_array();
  if (id != NULL && id[0] != '\0' && json_array_size(f->requests) < 8 && !has_string(f->requests, id))
    json_array_append_new(f->requests, json_string(id));
  if (f->wrong && !f->open)
    return;
  char why[sizeof f->why / 2];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(why, sizeof why, fmt, args);
  va_end(args);
  size_t used = strlen(f->why);
  snprintf(f->why + used, sizeof f->why - used, "%s%s", used > 0 ? "; and " : "", why);
  f->wrong = true;
  f->open = false;
  drill_say(d, "WRONG: %s", why);
}

void drill_epoch(struct drill *d, int where, const struct http_reply *reply) {
  const char *epoch = text_of(reply->json, "epoch", NULL);
  where = d->n_urls == 1 ? 0 : where;
  char *known = d->epoch[where];
  const char *other = d->epoch[1 - where];
  if (epoch == NULL || strcmp(epoch, known) == 0)
    return;
  if (known[0] != '\0')
    drill_wrong(d, CHECK_CONVERGED, reply->request_id,
                "the epoch of %s changed from %.40s to %.40s: it was restored or failed over meanwhile, or its answers "
                "come from several databases",
                d->url[where], known, epoch);
  else if (other[0] != '\0' && strcmp(epoch, other) != 0)
    drill_wrong(d, CHECK_CONVERGED, reply->request_id,
                "%s and %s are not on one database: their epochs are %.40s and %.40s", d->url[0], d->url[1],
                where == 0 ? epoch : other, where == 0 ? other : epoch);
  snprintf(known, sizeof d->epoch[where], "%s", epoch);
}

void drill_refused(struct drill *d, const char *what) {
  if (d->over)
    return;
  complain("the drill cannot go on: %s", what);
  d->code = http_explain(d->http[0], HTTP_ANSWERED, &d->reply);
  d->over = true;
}

// -- connections ---------------------------------------------------------------------------------------------------

bool drill_open(struct drill *d) {
  const char *token_file = d->options->token_file;
  d->group = http_group_open();
  bool ok = d->group != NULL;
  for (int where = 0; ok && where < 2; where++) {
    d->http[where] = http_open_in(d->group, d->url[where], token_file);
    ok = d->http[where] != NULL;
    for (int i = 0; ok && i < 2; i++) {
      d->keepers[i].http[where] = http_open_in(d->group, d->url[where], token_file);
      ok = d->keepers[i].http[where] != NULL;
    }
  }
  d->board.events = json_array();
  d->board.answers = json_array();
  return ok && d->board.events != NULL && d->board.answers != NULL;
}

void drill_close(struct drill *d) {
  drill_board_stop(d);
  for (int where = 0; where < 2; where++) {
    http_close(d->http[where]);
    for (int i = 0; i < 2; i++)
      http_close(d->keepers[i].http[where]);
  }
  http_group_close(d->group);
  http_reply_clear(&d->reply);
  http_reply_clear(&d->board.reply);
  for (int i = 0; i < 2; i++)
    http_reply_clear(&d->keepers[i].reply);
  fold_clear(&d->board.fold);
  fold_clear(&d->late);
  json_decref(d->board.events);
  json_decref(d->board.answers);
}

// -- those who renew -----------------------------------------------------------------------------------------------

/// The body of a heartbeat. @return NULL when memory ran out
static char *heartbeat_body(const struct drill *d, const char *user, const char *session, const char *meta) {
  json_t *lease = json_pack("{s:s, s:s, s:s, s:I}", "room_id", d->room, "user_id", user, "session_id", session,
                            "ttl_ms", (json_int_t)d->ttl_ms);
  if (lease != NULL && meta != NULL)
    json_object_set_new(lease, "meta", json_loads(meta, 0, NULL));
  char *body = lease == NULL ? NULL : json_dumps(lease, JSON_COMPACT);
  json_decref(lease);
  return body;
}

/// Notes what a good heartbeat said.
static void keep_held(struct keeper *k, const json_t *answer) {
  int64_t now_us = clock_mono_us(), ttl_ms = number_of(json_object_get(answer, "lease"), "ttl_ms", 1000);
  k->held = true;
  k->due_us = now_us + number_of(answer, "renew_after_ms", ttl_ms / 3) * 1000;
  k->expiry_us = now_us + ttl_ms * 1000;
}

static void keeper_begin(struct drill *d, struct keeper *k) {
  char *body = heartbeat_body(d, k->user, k->session, NULL);
  k->turn = 1 - k->turn;
  k->due_us = INT64_MAX;
  if (body == NULL || !http_begin(k->http[k->turn], "PUT", "/leases", body, ANSWER_TIMEOUT_MS, &k->reply))
    k->due_us = clock_mono_us() + PAUSE_US;
  free(body);
}

/// Takes in the answer to a renewal: it has to be one, not a grant.
static void keeper_end(struct drill *d, struct keeper *k) {
  enum http_result result = http_outcome(k->http[k->turn]);
  const struct http_reply *r = &k->reply;
  bool granted = json_is_true(json_object_get(r->json, "granted"));
  if (result == HTTP_ANSWERED)
    drill_epoch(d, k->turn, r);
  if (result == HTTP_ANSWERED && r->status == 200 && !granted) {
    keep_held(k, r->json);
    return;
  }
  bool passing = result != HTTP_ANSWERED || http_worth_retrying(r->status);
  k->due_us = clock_mono_us() + PAUSE_US;
  if (passing && clock_mono_us() < k->expiry_us)
    return;
  if (result != HTTP_ANSWERED)
    drill_wrong(d, CHECK_STAYED, NULL, "%s could not renew: %s did not answer (%s)", k->user, d->url[k->turn],
                r->error);
  else if (granted)
    drill_wrong(d, CHECK_STAYED, r->request_id, "%s renewed in time, but %s took it for a new session", k->user,
                d->url[k->turn]);
  else
    drill_wrong(d, CHECK_STAYED, r->request_id, "%s renewed in time, but %s answered %d %s", k->user, d->url[k->turn],
                r->status, text_of(r->json, "code", ""));
  if (granted)
    keep_held(k, r->json);
}

/// Begins what is due and takes in what has ended. @return when the next is due, monotonic
static int64_t tend_keepers(struct drill *d) {
  int64_t next_us = INT64_MAX;
  for (int i = 0; i < 2; i++) {
    struct keeper *k = &d->keepers[i];
    if (!k->held)
      continue;
    if (k->due_us == INT64_MAX && !http_running(k->http[k->turn]))
      keeper_end(d, k);
    if (k->due_us <= clock_mono_us())
      keeper_begin(d, k);
    if (k->due_us < next_us)
      next_us = k->due_us;
  }
  return next_us;
}

// -- the board -----------------------------------------------------------------------------------------------------

static void board_begin(struct drill *d) {
  struct subscriber *s = &d->board;
  struct buf path = {0};
  buf_puts(&path, "/rooms");
  http_path_add(&path, d->room);
  buf_puts(&path, "/presence");
  if (s->fold.revision >= 0) {
    http_query_add_int(&path, "since", s->fold.revision);
    http_query_add_int(&path, "wait_ms", BOARD_WAIT_MS);
    http_query_add(&path, "epoch", s->fold.epoch);
  }
  if (path.failed || !http_begin(s->http, "GET", path.data, NULL, BOARD_WAIT_MS + ANSWER_TIMEOUT_MS, &s->reply))
    s->not_before_us = clock_mono_us() + PAUSE_US;
  buf_free(&path);
}

/// Notes what an answer tells that was not known; each must be new, and what lies between must not be missing.
static void board_take(struct drill *d, int64_t before, enum fold_result result) {
  struct subscriber *s = &d->board;
  const char *url = d->url[s->where], *mode = text_of(s->reply.json, "mode", "");
  int64_t told = before;
  size_t i;
  json_t *event;
  json_array_foreach(json_object_get(s->reply.json, "events"), i, event) {
    int64_t revision = number_of(event, "revision", -1);
    if (revision <= told)
      drill_wrong(d, CHECK_TOLD, s->answer_id, "%s told twice of revision %lld, %s of %s", url, (long long)revision,
                  text_of(event, "kind", "?"), text_of(event, "user_id", "?"));
    if (revision <= told || revision > s->fold.revision)
      continue;
    told = revision;
    json_array_append(s->events, event);
    json_array_append_new(s->answers, json_string(s->answer_id));
  }
  if (result == FOLD_GAP)
    drill_wrong(d, CHECK_TOLD, s->answer_id, "%s left out revision %lld", url, (long long)s->fold.revision + 1);
  else if (before >= 0 && strcmp(mode, "snapshot") == 0)
    drill_wrong(d, CHECK_TOLD, s->answer_id, "%s gave a snapshot (%s), not the events after revision %lld", url,
                text_of(s->reply.json, "reason", "none"), (long long)before);
}

static void board_end(struct drill *d) {
  struct subscriber *s = &d->board;
  if (http_outcome(s->http) != HTTP_ANSWERED || s->reply.status != 200) {
    s->not_before_us = clock_mono_us() + PAUSE_US;
    return;
  }
  int64_t before = s->fold.revision;
  snprintf(s->answer_id, sizeof s->answer_id, "%s", s->reply.request_id);
  drill_epoch(d, s->where, &s->reply);
  enum fold_result result = fold_reply(&s->fold, s->reply.json);
  board_take(d, before, result);
  if (result == FOLD_GAP) {
    // Something is missing: the whole room anew.
    s->gaps++;
    snprintf(s->gap_id, sizeof s->gap_id, "%s", s->reply.request_id);
    fold_clear(&s->fold);
  }
  if (result == FOLD_FOREIGN || s->fold.revision == before)
    s->not_before_us = clock_mono_us() + 50000;
}

/// @return when it polls next, monotonic
static int64_t tend_board(struct drill *d) {
  struct subscriber *s = &d->board;
  if (!s->on)
    return INT64_MAX;
  if (s->reply_due && !http_running(s->http)) {
    s->reply_due = false;
    board_end(d);
  }
  if (s->reply_due)
    return INT64_MAX;
  if (s->not_before_us > clock_mono_us())
    return s->not_before_us;
  board_begin(d);
  s->reply_due = http_running(s->http);
  return s->reply_due ? INT64_MAX : s->not_before_us;
}

void drill_board_start(struct drill *d, int where) {
  drill_board_stop(d);
  d->board.http = http_open_in(d->group, d->url[where], d->options->token_file);
  d->board.where = where;
  d->board.on = d->board.http != NULL;
  d->board.not_before_us = 0;
}

void drill_board_stop(struct drill *d) {
  http_close(d->board.http);
  d->board.http = NULL;
  d->board.on = d->board.reply_due = false;
}

json_t *drill_of_user(const json_t *list, const char *user) {
  size_t i;
  json_t *item;
  json_array_foreach(list, i, item) {
    if (strcmp(text_of(item, "user_id", ""), user) == 0)
      return item;
  }
  return NULL;
}

json_t *drill_event(const struct drill *d, const char *kind, const char *user, int64_t after) {
  size_t i;
  json_t *event;
  json_array_foreach(d->board.events, i, event) {
    if (number_of(event, "revision", 0) > after && strcmp(text_of(event, "kind", ""), kind) == 0 &&
        strcmp(text_of(event, "user_id", ""), user) == 0)
      return event;
  }
  return NULL;
}

// -- requests of the steps -----------------------------------------------------------------------------------------

bool drill_run(struct drill *d, int64_t until_us) {
  if (d->over)
    return false;
  int64_t keepers_us = tend_keepers(d), board_us = tend_board(d);
  if (keepers_us < until_us)
    until_us = keepers_us;
  if (board_us < until_us)
    until_us = board_us;
  if (!http_group_run(d->group, until_us)) {
    complain(signals_stops() > 0 ? "interrupted: the drill says nothing" : "memory ran out");
    d->code = EXIT_UNREACHABLE;
    d->over = true;
  }
  return !d->over;
}

bool drill_pause(struct drill *d, int64_t ms) {
  int64_t until_us = clock_mono_us() + ms * 1000;
  while (clock_mono_us() < until_us) {
    if (!drill_run(d, until_us))
      return false;
  }
  return true;
}

bool drill_ask(struct drill *d, int where, const char *method, const char *path, const char *body) {
  for (int attempt = 0; !d->over; attempt++) {
    http_begin(d->http[where], method, path, body, ANSWER_TIMEOUT_MS, &d->reply);
    int64_t say_us = clock_mono_us() + SILENT_US;
    while (http_running(d->http[where])) {
      if (!drill_run(d, say_us))
        return false;
      if (http_running(d->http[where]) && clock_mono_us() >= say_us) {
        drill_say(d, "waiting for %s to answer", d->url[where]);
        say_us += SILENT_US;
      }
    }
    enum http_result result = http_outcome(d->http[where]);
    bool again = result == HTTP_UNREACHABLE || (result == HTTP_ANSWERED && http_worth_retrying(d->reply.status));
    if (!again && result == HTTP_ANSWERED) {
      drill_epoch(d, where, &d->reply);
      return true;
    }
    if (!again || attempt + 1 == ATTEMPTS) {
      d->code = http_explain(d->http[where], result, &d->reply);
      d->over = true;
      return false;
    }
    if (attempt == 1 && result == HTTP_ANSWERED)
      drill_say(d, "%s answered %d; trying again", d->url[where], d->reply.status);
    else if (attempt == 1)
      drill_say(d, "%s is not reached (%s); trying again", d->url[where], d->reply.error);
    drill_pause(d, http_pause_ms(attempt, 200, 2000, d->reply.retry_after_s));
  }
  return false;
}

bool drill_ask_room(struct drill *d, int where, const char *method, const char *rest, const char *body) {
  struct buf path = {0};
  buf_puts(&path, "/rooms");
  http_path_add(&path, d->room);
  buf_puts(&path, rest);
  bool ok = !path.failed && drill_ask(d, where, method, path.data, body);
  buf_free(&path);
  return ok;
}

bool drill_heartbeat(struct drill *d, int where, const char *user, const char *session, const char *meta) {
  char *body = heartbeat_body(d, user, session, meta);
  bool ok = body != NULL && drill_ask(d, where, "PUT", "/leases", body);
  free(body);
  for (int i = 0; ok && i < 2; i++) {
    if (d->reply.status == 200 && strcmp(d->keepers[i].user, user) == 0)
      keep_held(&d->keepers[i], d->reply.json);
  }
  return ok;
}

bool drill_presence(struct drill *d, int where, const char *query) {
  char rest[256];
  snprintf(rest, sizeof rest, "/presence%s", query);
  if (!drill_ask_room(d, where, "GET", rest, NULL))
    return false;
  if (d->reply.status == 200 && text_of(d->reply.json, "mode", NULL) != NULL)
    return true;
  drill_refused(d, "the room cannot be read");
  return false;
}
