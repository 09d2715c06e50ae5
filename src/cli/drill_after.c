// SPDX-License-Identifier: Apache-2.0
// The steps of the drill after the expiry: the gap, who stayed, the revocation, the reconnect; and the clearing up.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/drill.h"
#include "cli/text.h"

/// How long two instances and a subscriber may take to meet.
#define CONVERGE_MS 8000
#define CLEAN_TIMEOUT_MS 5000

// -- the gap -------------------------------------------------------------------------------------------------------

/// The late subscriber is handed what lies beyond a revision that it never saw, and has to notice.
static bool force_gap(struct drill *d) {
  char query[96];
  snprintf(query, sizeof query, "?since=%lld&wait_ms=0", (long long)d->late.revision + 1);
  if (!drill_presence(d, 0, query))
    return false;
  enum fold_result result = fold_reply(&d->late, d->reply.json);
  bool snapshot = strcmp(text_of(d->reply.json, "mode", ""), "snapshot") == 0;
  if (!snapshot && result != FOLD_GAP)
    drill_wrong(d, CHECK_CONVERGED, d->reply.request_id, "%s gave nothing after revision %lld, where events are",
                d->url[0], (long long)d->late.revision + 1);
  return true;
}

/// What a cursor that cannot be right must get at once: a snapshot that says why.
static bool demand_snapshot(struct drill *d, int where, const char *query, const char *reason) {
  if (!drill_presence(d, where, query))
    return false;
  const char *mode = text_of(d->reply.json, "mode", ""), *given = text_of(d->reply.json, "reason", "none");
  if (strcmp(mode, "snapshot") != 0 || strcmp(given, reason) != 0)
    drill_wrong(d, CHECK_CONVERGED, d->reply.request_id, "%s answered ...%s with %s (%s), not with a snapshot (%s)",
                d->url[where], query, mode, given, reason);
  return true;
}

bool drill_gap(struct drill *d) {
  char query[96];
  if (!force_gap(d))
    return false;
  int64_t missed_from = d->late.revision;
  snprintf(query, sizeof query, "?since=%lld&wait_ms=0", (long long)d->late.revision);
  if (!drill_presence(d, 0, query))
    return false;
  bool replay = strcmp(text_of(d->reply.json, "mode", ""), "events") == 0;
  if (fold_reply(&d->late, d->reply.json) != FOLD_APPLIED)
    drill_wrong(d, CHECK_CONVERGED, d->reply.request_id, "the replay after revision %lld of %s has a gap",
                (long long)missed_from, d->url[0]);
  else
    drill_say(d, "a subscriber that had missed %lld events found the gap and recovered by %s",
              (long long)(d->late.revision - missed_from), replay ? "replay" : "a snapshot");
  snprintf(query, sizeof query, "?since=%lld&wait_ms=0", (long long)d->late.revision + 1000);
  return demand_snapshot(d, 1, query, "ahead") && demand_snapshot(d, 0, "?since=0&epoch=another&wait_ms=0", "epoch");
}

// -- who stayed ----------------------------------------------------------------------------------------------------

static bool look_who_stayed(struct drill *d, int where) {
  if (!drill_ask_room(d, where, "GET", "/leases", NULL))
    return false;
  if (drill_of_user(json_object_get(d->reply.json, "leases"), RENEWS) == NULL)
    drill_wrong(d, CHECK_STAYED, d->reply.request_id, "%s has no lease of %s, who renewed all the time", d->url[where],
                RENEWS);
  if (!drill_presence(d, where, "?user_id=" RENEWS "&session_id=" SESSION))
    return false;
  const json_t *user = drill_of_user(json_object_get(d->reply.json, "users"), RENEWS);
  const char *state = text_of(json_object_get(d->reply.json, "session"), "state", "not told");
  if (json_array_size(json_object_get(user, "sessions")) == 0)
    drill_wrong(d, CHECK_STAYED, d->reply.request_id, "the snapshot of %s lacks %s, who renewed all the time",
                d->url[where], RENEWS);
  else if (strcmp(state, "live") != 0)
    drill_wrong(d, CHECK_STAYED, d->reply.request_id, "%s calls the session of %s %s, not live", d->url[where], RENEWS,
                state);
  return true;
}

bool drill_stayed(struct drill *d) {
  static const char *const ends[] = {"lease.expired", "session.closed", "membership.revoked", "user.offline"};
  for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
    const json_t *event = drill_event(d, ends[i], RENEWS, 0);
    if (event != NULL)
      drill_wrong(d, CHECK_STAYED, text_of(event, "request_id", ""), "%s told of %s at revision %lld, but %s renewed",
                  d->url[d->board.where], ends[i], (long long)number_of(event, "revision", 0), RENEWS);
  }
  for (int where = 0; where < d->n_urls; where++) {
    if (!look_who_stayed(d, where))
      return false;
  }
  d->findings[CHECK_STAYED].reached = true;
  if (!d->findings[CHECK_STAYED].wrong)
    drill_say(d, "the session that was renewed is live");
  return true;
}

// -- the revocation ------------------------------------------------------------------------------------------------

/// Sends the revocation while a cursor packet is on its way to each instance.
static bool revoke_in_flight(struct drill *d) {
  static const char body[] = "{\"user_id\":\"" SILENT "\",\"session_id\":\"" SESSION "\",\"data\":{\"x\":56,\"y\":78}}";
  struct http *flights[2] = {0};
  struct http_reply replies[2] = {0};
  struct buf path = {0};
  buf_puts(&path, "/rooms");
  http_path_add(&path, d->room);
  buf_puts(&path, "/cursors");
  for (int i = 0; i < 2; i++) {
    flights[i] = http_open_in(d->group, d->url[i], d->options->token_file);
    if (flights[i] != NULL && !path.failed)
      http_begin(flights[i], "POST", path.data, body, CLEAN_TIMEOUT_MS, &replies[i]);
  }
  bool ok = !path.failed && drill_ask_room(d, 0, "DELETE", "/members/" SILENT, NULL);
  for (int i = 0; i < 2; i++) {
    while (ok && flights[i] != NULL && http_running(flights[i]))
      ok = drill_run(d, clock_mono_us() + INT64_C(10000000));
    int status = replies[i].status;
    if (ok && status != 202 && status != 403 && status != 409)
      drill_wrong(d, CHECK_REFUSED, replies[i].request_id, "%s answered a cursor packet in flight with %d", d->url[i],
                  status);
    http_close(flights[i]);
    http_reply_clear(&replies[i]);
  }
  buf_free(&path);
  return ok;
}

/// After the answer to the revocation no instance may take anything of theirs.
static bool demand_refusals(struct drill *d, int where) {
  bool seen;
  if (!drill_heartbeat(d, where, SILENT, SESSION, NULL))
    return false;
  if (d->reply.status != 403)
    drill_wrong(d, CHECK_REFUSED, d->reply.request_id, "%s answered a heartbeat of %s, who is revoked, with %d",
                d->url[where], SILENT, d->reply.status);
  if (!drill_point(d, where, SILENT))
    return false;
  if (d->reply.status != 403)
    drill_wrong(d, CHECK_REFUSED, d->reply.request_id, "%s answered a cursor of %s, who is revoked, with %d",
                d->url[where], SILENT, d->reply.status);
  if (!drill_see_cursor(d, where, SILENT, false, &seen))
    return false;
  if (seen)
    drill_wrong(d, CHECK_REFUSED, d->reply.request_id, "%s still shows the cursor of %s, who is revoked", d->url[where],
                SILENT);
  return true;
}

bool drill_revoke(struct drill *d) {
  bool seen;
  int64_t before = d->board.fold.revision;
  if (!drill_heartbeat(d, 1, SILENT, SESSION, NULL) || !drill_point(d, 1, SILENT))
    return false;
  if (d->reply.status != 202)
    drill_wrong(d, CHECK_REFUSED, d->reply.request_id, "%s does not take back %s, whose lease had run out (%d)",
                d->url[1], SILENT, d->reply.status);
  if (!drill_see_cursor(d, 0, SILENT, true, &seen) || !revoke_in_flight(d))
    return false;
  if (d->reply.status != 200) {
    drill_refused(d, "a member cannot be revoked");
    return false;
  }
  char revoked_id[sizeof d->reply.request_id];
  snprintf(revoked_id, sizeof revoked_id, "%s", d->reply.request_id);
  for (int where = 0; where < d->n_urls; where++) {
    if (!demand_refusals(d, where))
      return false;
  }
  // Both are written with the revocation: for who is revoked there is no grace.
  int64_t until_us = clock_mono_us() + INT64_C(5000000);
  json_t *told;
  while (((told = drill_event(d, "membership.revoked", SILENT, before)) == NULL ||
          drill_event(d, "user.offline", SILENT, number_of(told, "revision", 0)) == NULL) &&
         clock_mono_us() < until_us) {
    if (!drill_run(d, until_us))
      return false;
  }
  if (told == NULL)
    drill_wrong(d, CHECK_REFUSED, revoked_id, "%s told of no membership.revoked within 5 s", d->url[d->board.where]);
  d->findings[CHECK_REFUSED].reached = true;
  if (!d->findings[CHECK_REFUSED].wrong)
    drill_say(d, "the silent student came back, was revoked with a cursor packet in flight, and is refused");
  return true;
}

// -- the reconnect -------------------------------------------------------------------------------------------------

/// Who must be here at the end, as fold_state() tells it.
static json_t *expected_state(const struct drill *d) {
  json_t *state = json_pack("{s:{s:{}}, s:{s:{s:s}}}", TEACHER, SESSION, RENEWS, SESSION, "drill", "reconnected");
  if (state != NULL && d->grace_too_long)
    json_object_set_new(state, LEAVES, json_object());
  return state;
}

/// One look at both instances' snapshots. @param[out] met whether they and the board are at one revision
static bool compare(struct drill *d, bool *met) {
  char ids[2][72];
  json_t *states[2] = {0};
  int64_t revisions[2] = {0};
  bool ok = true;
  for (int where = 0; ok && where < 2; where++) {
    struct fold fresh = {.revision = -1};
    ok = drill_presence(d, where, "");
    if (ok && fold_reply(&fresh, d->reply.json) == FOLD_APPLIED)
      states[where] = fold_state(&fresh);
    revisions[where] = fresh.revision;
    snprintf(ids[where], sizeof ids[where], "%s", d->reply.request_id);
    fold_clear(&fresh);
  }
  *met = ok && revisions[0] == revisions[1] && revisions[0] == d->board.fold.revision;
  if (*met) {
    json_t *board = fold_state(&d->board.fold), *expected = expected_state(d);
    for (int where = 0; where < 2; where++) {
      char *shown = json_dumps(states[where], JSON_COMPACT | JSON_SORT_KEYS);
      if (!json_equal(states[where], expected))
        drill_wrong(d, CHECK_CONVERGED, ids[where], "the snapshot of %s at revision %lld is not who is here: %.200s",
                    d->url[where], (long long)revisions[where], shown == NULL ? "" : shown);
      free(shown);
    }
    char *kept = json_dumps(board, JSON_COMPACT | JSON_SORT_KEYS);
    if (!json_equal(board, expected))
      drill_wrong(d, CHECK_CONVERGED, d->board.answer_id,
                  "after the reconnect to %s the subscriber has at revision %lld: %.200s", d->url[d->board.where],
                  (long long)d->board.fold.revision, kept == NULL ? "" : kept);
    free(kept);
    json_decref(board);
    json_decref(expected);
  }
  json_decref(states[0]);
  json_decref(states[1]);
  return ok;
}

bool drill_reconnect(struct drill *d) {
  int64_t left_at = d->board.fold.revision;
  drill_board_stop(d);
  drill_say(d, "the teacher's connection is cut; meanwhile something changes");
  if (!drill_heartbeat(d, 0, RENEWS, SESSION, "{\"drill\":\"reconnected\"}"))
    return false;
  if (d->reply.status != 200)
    drill_wrong(d, CHECK_STAYED, d->reply.request_id,
                "%s answered a heartbeat of %s, who renewed all the time, with %d", d->url[0], RENEWS, d->reply.status);
  drill_board_start(d, 0);
  int64_t until_us = clock_mono_us() + (int64_t)CONVERGE_MS * 1000;
  for (bool met = false; !met;) {
    // The board first: it has to come forward by itself.
    if (!drill_pause(d, 200) || (d->board.fold.revision > left_at && !compare(d, &met)))
      return false;
    if (!met && clock_mono_us() > until_us) {
      drill_wrong(d, CHECK_CONVERGED, d->board.answer_id,
                  "%.0f s after the reconnect to %s the subscriber is at revision %lld, and the snapshots elsewhere",
                  CONVERGE_MS / 1000.0, d->url[0], (long long)d->board.fold.revision);
      break;
    }
  }
  d->findings[CHECK_CONVERGED].reached = true;
  if (!d->findings[CHECK_CONVERGED].wrong)
    drill_say(d, "reconnected at revision %lld, which is the state that every snapshot has",
              (long long)d->board.fold.revision);
  return true;
}

// -- clearing up ---------------------------------------------------------------------------------------------------

/// @return whether it is as it was asked to be
static bool clean_one(struct drill *d, const char *rest) {
  struct buf path = {0};
  struct http_reply reply = {0};
  buf_puts(&path, "/rooms");
  http_path_add(&path, d->room);
  buf_puts(&path, rest);
  enum http_result result = HTTP_BROKEN;
  if (!path.failed)
    result = http_send_aloud(d->http[0], "DELETE", path.data, NULL, CLEAN_TIMEOUT_MS, &reply);
  bool done = result == HTTP_ANSWERED && (reply.status == 200 || reply.status == 404);
  http_reply_clear(&reply);
  buf_free(&path);
  return done;
}

void drill_clean(struct drill *d) {
  static const char *const users[] = {TEACHER, RENEWS, SILENT, LEAVES};
  bool done = true;
  drill_board_stop(d);
  for (int i = 0; i < 2; i++) {
    http_abandon(d->keepers[i].http[0]);
    http_abandon(d->keepers[i].http[1]);
  }
  for (size_t i = 0; i < ARRAY_LEN(users); i++) {
    char rest[128];
    snprintf(rest, sizeof rest, "/leases/%s/%s", users[i], SESSION);
    done = clean_one(d, rest) && done;
    snprintf(rest, sizeof rest, "/members/%s", users[i]);
    done = clean_one(d, rest) && done;
  }
  done = clean_one(d, "/leases/" LEAVES "/" OTHER_SESSION) && done;
  if (done)
    drill_say(d, "cleared up: no lease and no membership is left in %s", d->room);
  else
    complain("%s could not be cleared up; its leases run out by themselves within %.0f s", d->room,
             (double)d->ttl_ms / 1000);
}
