// SPDX-License-Identifier: Apache-2.0
// The steps of the drill up to the end of the silent lease, and what must be true of it.
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/drill.h"
#include "cli/text.h"

/// A lease ends by 2 s after its expiry; the rest is for slow networks and busy machines.
#define EXPIRY_SLACK_MS 8000
/// How long what one instance knows may take to the other.
#define SPREAD_MS 5000

static bool grant(struct drill *d, const char *user, const char *role) {
  char rest[128], body[64];
  snprintf(rest, sizeof rest, "/members/%s", user);
  snprintf(body, sizeof body, "{\"role\":\"%s\"}", role);
  if (!drill_ask_room(d, 0, "PUT", rest, body))
    return false;
  if (d->reply.status == 200) {
    d->room_used = true;
    return true;
  }
  drill_refused(d, d->reply.status == 401 || d->reply.status == 403
                       ? "it may not keep members (its credential needs the scope admin, or gateway and members:write, "
                         "for rooms that begin with drill-)"
                       : "a first member cannot be let in");
  return false;
}

/// The first heartbeat of a session, which must be taken as one.
static bool arrive(struct drill *d, int where, const char *user, const char *session) {
  if (!drill_heartbeat(d, where, user, session, NULL))
    return false;
  if (d->reply.status == 200 && json_is_true(json_object_get(d->reply.json, "granted")))
    return true;
  drill_refused(d, "a first heartbeat is not accepted. Where ttl_min_ms is above 5000, see --ttl-ms");
  return false;
}

/// Closes a session of who leaves.
static bool leave(struct drill *d, int where, const char *session, int i) {
  char rest[128];
  snprintf(rest, sizeof rest, "/leases/" LEAVES "/%s", session);
  if (!drill_ask_room(d, where, "DELETE", rest, NULL))
    return false;
  if (d->reply.status != 200) {
    drill_refused(d, "a session cannot be closed");
    return false;
  }
  // Where the first attempt got no answer it may be closed already, or by now run out.
  d->closed[i] = strcmp(text_of(d->reply.json, "decision", ""), "accepted") == 0;
  if (d->closed[i])
    snprintf(d->closed_ids[i], sizeof d->closed_ids[i], "%s", text_of(d->reply.json, "event_id", ""));
  return true;
}

/// Finds out when the grace of who left ends. @param[out] known it is, or is over already
static bool look_for_grace(struct drill *d, bool *known) {
  int64_t offline_us, server_us;
  if (!drill_presence(d, 0, ""))
    return false;
  const json_t *user = drill_of_user(json_object_get(d->reply.json, "users"), LEAVES);
  const char *offline_at = text_of(user, "offline_at", ""), *now = text_of(d->reply.json, "server_time", "");
  if (user == NULL) {
    *known = true;
    d->leaves_offline_us = clock_mono_us();
  } else if (json_array_size(json_object_get(user, "sessions")) == 0 && rfc3339_parse(offline_at, &offline_us) &&
             rfc3339_parse(now, &server_us)) {
    *known = true;
    snprintf(d->leaves_offline_at, sizeof d->leaves_offline_at, "%s", offline_at);
    d->leaves_offline_us = clock_mono_us() + (offline_us - server_us);
  }
  return true;
}

/// Somebody comes with two tabs and closes both; their grace runs while the drill goes on.
static bool come_and_leave(struct drill *d) {
  if (!arrive(d, 0, LEAVES, SESSION) || !arrive(d, 1, LEAVES, OTHER_SESSION) || !leave(d, 0, SESSION, 0) ||
      !leave(d, 1, OTHER_SESSION, 1))
    return false;
  int64_t until_us = clock_mono_us() + (int64_t)SPREAD_MS * 1000;
  bool known = false;
  while (!known) {
    if (!look_for_grace(d, &known) || (!known && !drill_pause(d, 100)))
      return false;
    if (!known && clock_mono_us() > until_us) {
      drill_wrong(d, CHECK_TOLD, d->reply.request_id,
                  "the snapshot of %s does not have %s, who has closed both tabs, as about to go offline", d->url[0],
                  LEAVES);
      d->leaves_offline_us = clock_mono_us();
      break;
    }
  }
  drill_say(d, "%s: a student came with two tabs and closed both", d->room);
  return true;
}

bool drill_enter(struct drill *d) {
  if (!grant(d, TEACHER, "teacher") || !grant(d, RENEWS, "student") || !grant(d, SILENT, "student") ||
      !grant(d, LEAVES, "student"))
    return false;
  // The board goes on from the empty room; another subscriber sees it, and then nothing for a long time.
  if (!drill_presence(d, 1, "") || fold_reply(&d->late, d->reply.json) != FOLD_APPLIED ||
      fold_reply(&d->board.fold, d->reply.json) != FOLD_APPLIED)
    return false;
  if (d->late.revision != 0)
    drill_wrong(d, CHECK_TOLD, d->reply.request_id, "%s has a room in which nothing happened at revision %lld",
                d->url[1], (long long)d->late.revision);
  drill_board_start(d, 1);
  if (!arrive(d, 0, TEACHER, SESSION) || !arrive(d, 0, RENEWS, SESSION) || !come_and_leave(d) ||
      !arrive(d, 0, SILENT, SESSION))
    return false;
  const json_t *lease = json_object_get(d->reply.json, "lease");
  d->silent_sent_us = clock_mono_us();
  d->silent_ttl_ms = number_of(lease, "ttl_ms", d->ttl_ms);
  snprintf(d->silent_expires_at, sizeof d->silent_expires_at, "%s", text_of(lease, "expires_at", ""));
  drill_say(d, "%s: a teacher, a student who renews and one who goes silent are in, ttl %.1f s", d->room,
            (double)d->silent_ttl_ms / 1000);
  return true;
}

// -- cursors -------------------------------------------------------------------------------------------------------

bool drill_point(struct drill *d, int where, const char *user) {
  char body[160];
  snprintf(body, sizeof body, "{\"user_id\":\"%s\",\"session_id\":\"%s\",\"data\":{\"x\":12,\"y\":34}}", user, SESSION);
  return drill_ask_room(d, where, "POST", "/cursors", body);
}

/// Whether the answer to a request for all cursors has one of this user.
static bool has_cursor(const struct drill *d, const char *user) {
  return drill_of_user(json_object_get(d->reply.json, "cursors"), user) != NULL;
}

bool drill_see_cursor(struct drill *d, int where, const char *user, bool wanted, bool *seen) {
  int64_t until_us = clock_mono_us() + (int64_t)SPREAD_MS * 1000;
  for (;;) {
    if (!drill_ask_room(d, where, "GET", "/cursors", NULL))
      return false;
    if (d->reply.status != 200) {
      drill_refused(d, "cursors cannot be read");
      return false;
    }
    *seen = has_cursor(d, user);
    if (*seen == wanted || clock_mono_us() > until_us)
      return true;
    if (!drill_pause(d, 100))
      return false;
  }
}

bool drill_cursors(struct drill *d) {
  static const char *const users[] = {TEACHER, RENEWS, SILENT};
  for (size_t i = 0; i < ARRAY_LEN(users); i++) {
    if (!drill_point(d, 0, users[i]))
      return false;
    if (d->reply.status != 202) {
      drill_refused(d, "a cursor of a live session is not taken");
      return false;
    }
  }
  for (int where = 0; where < d->n_urls; where++) {
    for (size_t i = 0; i < ARRAY_LEN(users); i++) {
      bool seen;
      if (!drill_see_cursor(d, where, users[i], true, &seen))
        return false;
      if (!seen)
        drill_wrong(d, strcmp(users[i], RENEWS) == 0 ? CHECK_STAYED : CHECK_VANISHED, d->reply.request_id,
                    "%s does not show the cursor of %s, whose session is live", d->url[where], users[i]);
    }
  }
  drill_say(d, "three cursors are shown; waiting for one session to run out");
  return true;
}

// -- the end of the silent lease -----------------------------------------------------------------------------------

/// Its event must come, not before the expiry. @param[out] event NULL when it did not
static bool await_expiry(struct drill *d, json_t **event) {
  int64_t until_us = d->silent_sent_us + (d->silent_ttl_ms + EXPIRY_SLACK_MS) * 1000;
  while ((*event = drill_event(d, "lease.expired", SILENT, 0)) == NULL && clock_mono_us() < until_us) {
    if (!drill_run(d, until_us))
      return false;
  }
  if (*event == NULL) {
    bool missing = d->board.gaps > 0;
    drill_wrong(d, CHECK_VANISHED, missing ? d->board.gap_id : d->board.answer_id,
                "%s went silent, but %s told of no lease.expired within %.1f s%s", SILENT, d->url[d->board.where],
                (double)(d->silent_ttl_ms + EXPIRY_SLACK_MS) / 1000,
                missing ? "; its answers leave out a revision" : "");
  } else if (strcmp(text_of(*event, "at", ""), d->silent_expires_at) < 0) {
    drill_wrong(d, CHECK_VANISHED, d->board.answer_id, "the lease of %s ended at %s, before its expiry at %s", SILENT,
                text_of(*event, "at", ""), d->silent_expires_at);
  } else {
    drill_say(d, "one lease expired, at revision %lld, %lld ms late", (long long)number_of(*event, "revision", 0),
              (long long)number_of(*event, "overdue_ms", 0));
  }
  return true;
}

/// The same event once more, from the other instance: it must be the same one, and change nothing.
static bool deliver_again(struct drill *d, const json_t *event) {
  char query[96];
  int64_t revision = number_of(event, "revision", 1);
  // The other instance may hear of it up to a second later, and then answers when it does.
  snprintf(query, sizeof query, "?since=%lld&wait_ms=2000&limit=1", (long long)revision - 1);
  if (!drill_presence(d, 0, query))
    return false;
  const json_t *again = json_array_get(json_object_get(d->reply.json, "events"), 0);
  if (again == NULL || strcmp(text_of(again, "event_id", "a"), text_of(event, "event_id", "b")) != 0) {
    drill_wrong(d, CHECK_VANISHED, d->reply.request_id, "%s tells another story of revision %lld than %s", d->url[0],
                (long long)revision, d->url[d->board.where]);
    return true;
  }
  json_t *before = fold_state(&d->board.fold);
  enum fold_result result = fold_event(&d->board.fold, again);
  json_t *after = fold_state(&d->board.fold);
  if (result != FOLD_DOUBLE || !json_equal(before, after))
    drill_wrong(d, CHECK_VANISHED, d->reply.request_id, "the second delivery of revision %lld was not known as one",
                (long long)revision);
  else
    drill_say(d, "its event was delivered a second time, and dropped");
  json_decref(before);
  json_decref(after);
  return true;
}

bool drill_expiry(struct drill *d) {
  json_t *event;
  if (!await_expiry(d, &event) || (event != NULL && !deliver_again(d, event)))
    return false;
  int64_t revision = number_of(event, "revision", 0);
  if (event != NULL && drill_event(d, "lease.expired", SILENT, revision) != NULL)
    drill_wrong(d, CHECK_VANISHED, d->board.answer_id, "the lease of %s ended twice", SILENT);
  for (int where = 0; where < d->n_urls; where++) {
    bool seen;
    if (!drill_see_cursor(d, where, SILENT, false, &seen))
      return false;
    if (seen)
      drill_wrong(d, CHECK_VANISHED, d->reply.request_id, "%s still shows the cursor of %s, whose lease has run out",
                  d->url[where], SILENT);
    if (!has_cursor(d, TEACHER))
      drill_wrong(d, CHECK_VANISHED, d->reply.request_id,
                  "more than one cursor vanished: %s no longer shows that of %s", d->url[where], TEACHER);
    if (!has_cursor(d, RENEWS))
      drill_wrong(d, CHECK_STAYED, d->reply.request_id, "%s no longer shows the cursor of %s, who renews",
                  d->url[where], RENEWS);
    if (!drill_point(d, where, SILENT))
      return false;
    if (d->reply.status != 409)
      drill_wrong(d, CHECK_VANISHED, d->reply.request_id, "%s takes a cursor of %s, whose lease has run out (%d)",
                  d->url[where], SILENT, d->reply.status);
  }
  d->findings[CHECK_VANISHED].reached = true;
  if (!d->findings[CHECK_VANISHED].wrong)
    drill_say(d, "its cursor vanished, the others are there");
  return true;
}
