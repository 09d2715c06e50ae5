// SPDX-License-Identifier: Apache-2.0
// What the subscriber was told in the whole, held against what the drill did: each change once, in an order that folds,
// and nothing of anybody else.
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/drill.h"
#include "cli/text.h"

/// Who is offline is told so by 2 s after the grace; the rest is for slow networks and busy machines.
#define OFFLINE_SLACK_MS 8000
/// A grace of which more than this is left is not waited for.
#define GRACE_WAIT_MAX_MS 30000
/// How long an instance may take to have what the subscriber has.
#define REPLAY_WAIT_MS 5000
/// Whoever waits longer is told for what.
#define SILENT_MS 2000

bool drill_grace(struct drill *d) {
  int64_t left_ms = (d->leaves_offline_us - clock_mono_us()) / 1000;
  if (left_ms > GRACE_WAIT_MAX_MS) {
    d->grace_too_long = true;
    drill_say(d, "%s is offline in %.0f s; the drill does not wait for that", LEAVES, (double)left_ms / 1000);
    return true;
  }
  if (left_ms > SILENT_MS)
    drill_say(d, "waiting %.0f s for the grace of %s to end", (double)left_ms / 1000, LEAVES);
  int64_t until_us = (left_ms > 0 ? d->leaves_offline_us : clock_mono_us()) + (int64_t)OFFLINE_SLACK_MS * 1000;
  while (drill_event(d, "user.offline", LEAVES, 0) == NULL && clock_mono_us() < until_us) {
    if (!drill_run(d, until_us))
      return false;
  }
  return true;
}

// -- how often -----------------------------------------------------------------------------------------------------

/// How often something must have been told of.
struct due {
  const char *kind, *user, *session; ///< a session of NULL: whichever
  int min, max;
  int told;
  const char *answer; ///< request id of the last answer that told it
};

static void wrong_event(struct drill *d, size_t i, const char *what) {
  const json_t *event = json_array_get(d->board.events, i);
  const char *session = text_of(event, "session_id", NULL);
  drill_wrong(d, CHECK_TOLD, json_string_value(json_array_get(d->board.answers, i)),
              "the subscriber was told at revision %lld of %.40s of %.60s%s%.60s, %s",
              (long long)number_of(event, "revision", 0), text_of(event, "kind", "?"), text_of(event, "user_id", "?"),
              session == NULL ? "" : "/", session == NULL ? "" : session, what);
}

static bool same(const char *wanted, const json_t *event, const char *key) {
  return strcmp(wanted, text_of(event, key, "")) == 0;
}

/// Counts each event where it belongs.
static void count(struct drill *d, struct due *dues, size_t n) {
  size_t i;
  json_t *event;
  json_array_foreach(d->board.events, i, event) {
    size_t j = 0;
    while (j < n && !(same(dues[j].kind, event, "kind") && same(dues[j].user, event, "user_id") &&
                      (dues[j].session == NULL || same(dues[j].session, event, "session_id"))))
      j++;
    if (j == n) {
      wrong_event(d, i, "which must not be");
      continue;
    }
    dues[j].told++;
    dues[j].answer = json_string_value(json_array_get(d->board.answers, i));
  }
}

static void judge_counts(struct drill *d, const struct due *dues, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const struct due *due = &dues[i];
    const char *slash = due->session == NULL ? "" : "/", *session = due->session == NULL ? "" : due->session;
    if (due->told == 0 && due->min > 0)
      drill_wrong(d, CHECK_TOLD, d->board.answer_id, "the subscriber was told of no %s of %s%s%s", due->kind, due->user,
                  slash, session);
    else if (due->told < due->min || due->told > due->max)
      drill_wrong(d, CHECK_TOLD, due->answer, "the subscriber was told %d times of %s of %s%s%s, not %d", due->told,
                  due->kind, due->user, slash, session, due->told < due->min ? due->min : due->max);
  }
}

/// All that the drill has done. Where a grace is shorter than the steps take, who comes back was offline meanwhile.
static void demand_all_once(struct drill *d) {
  struct due dues[] = {
      {.kind = "lease.granted", .user = TEACHER, .session = SESSION, .min = 1, .max = 1},
      {.kind = "user.online", .user = TEACHER, .min = 1, .max = 1},
      {.kind = "lease.granted", .user = RENEWS, .session = SESSION, .min = 1, .max = 1},
      {.kind = "user.online", .user = RENEWS, .min = 1, .max = 1},
      {.kind = "lease.granted", .user = LEAVES, .session = SESSION, .min = 1, .max = 1},
      {.kind = "user.online", .user = LEAVES, .min = 1, .max = 1},
      {.kind = "lease.granted", .user = LEAVES, .session = OTHER_SESSION, .min = 1, .max = 1},
      {.kind = "session.closed", .user = LEAVES, .session = SESSION, .min = d->closed[0], .max = 1},
      {.kind = "session.closed", .user = LEAVES, .session = OTHER_SESSION, .min = d->closed[1], .max = 1},
      {.kind = "lease.expired", .user = LEAVES, .session = SESSION, .max = !d->closed[0]},
      {.kind = "lease.expired", .user = LEAVES, .session = OTHER_SESSION, .max = !d->closed[1]},
      {.kind = "lease.granted", .user = SILENT, .session = SESSION, .min = 2, .max = 2},
      {.kind = "user.online", .user = SILENT, .min = 1, .max = 2},
      // The second one where the machine was too slow to revoke before the lease ran out.
      {.kind = "lease.expired", .user = SILENT, .session = SESSION, .min = 1, .max = 2},
      {.kind = "membership.revoked", .user = SILENT, .min = 1, .max = 1},
      {.kind = "user.offline", .user = SILENT, .min = 1, .max = 2},
      {.kind = "user.offline", .user = LEAVES, .min = !d->grace_too_long, .max = 1},
      // With renewal_events=on there are more of them.
      {.kind = "lease.renewed", .user = RENEWS, .session = SESSION, .min = 1, .max = INT_MAX},
      {.kind = "lease.renewed", .user = TEACHER, .session = SESSION, .max = INT_MAX},
      {.kind = "lease.renewed", .user = SILENT, .session = SESSION, .max = INT_MAX},
      {.kind = "lease.renewed", .user = LEAVES, .max = INT_MAX},
  };
  count(d, dues, ARRAY_LEN(dues));
  judge_counts(d, dues, ARRAY_LEN(dues));
}

// -- in which order ------------------------------------------------------------------------------------------------

struct stay {
  const char *user, *session;
  bool live, ended;
  int64_t revision; ///< of the lease
};

struct person {
  const char *user;
  bool online;
};

struct course {
  struct stay stays[5];
  struct person people[4];
};

static struct stay *stay_of(struct course *c, const json_t *event) {
  for (size_t i = 0; i < ARRAY_LEN(c->stays); i++) {
    if (same(c->stays[i].user, event, "user_id") && same(c->stays[i].session, event, "session_id"))
      return &c->stays[i];
  }
  return NULL;
}

static int live_sessions(const struct course *c, const char *user) {
  int n = 0;
  for (size_t i = 0; i < ARRAY_LEN(c->stays); i++)
    n += c->stays[i].live && strcmp(c->stays[i].user, user) == 0;
  return n;
}

/// What must be true for an event of a lease. @return what is not, or NULL
static const char *follow_lease(struct course *c, const json_t *event) {
  struct stay *s = stay_of(c, event);
  const char *kind = text_of(event, "kind", "");
  if (s == NULL) {
    bool none = live_sessions(c, text_of(event, "user_id", "")) == 0;
    return strcmp(kind, "membership.revoked") != 0 ? "without its session" : none ? NULL : "and not of the session";
  }
  int64_t revision = number_of(event, "lease_revision", -1);
  bool begins = strcmp(kind, "lease.granted") == 0, renewed = strcmp(kind, "lease.renewed") == 0;
  if (begins && s->live)
    return "but no end of the stay before";
  if (!begins && !s->live)
    return s->ended ? "but it had ended" : "but of no lease.granted before";
  if (begins || renewed ? revision <= s->revision : revision < s->revision)
    return "with a lease revision that is not newer";
  s->revision = revision;
  s->live = begins || renewed;
  s->ended = !s->live;
  return NULL;
}

/// The same for one of a person.
static const char *follow_person(const struct course *c, struct person *p, bool online) {
  int live = live_sessions(c, p->user);
  if (online ? p->online : !p->online)
    return online ? "but of no user.offline before" : "but of no user.online before";
  if (online ? live == 0 : live > 0)
    return online ? "but there is no session" : "but there is a session";
  p->online = online;
  return NULL;
}

static const char *follow(struct course *c, const json_t *event) {
  const char *kind = text_of(event, "kind", ""), *fault = NULL;
  struct person *p = NULL;
  for (size_t i = 0; i < ARRAY_LEN(c->people); i++)
    p = same(c->people[i].user, event, "user_id") ? &c->people[i] : p;
  if (p == NULL)
    return "which must not be";
  if (strcmp(kind, "user.online") == 0 || strcmp(kind, "user.offline") == 0)
    fault = follow_person(c, p, strcmp(kind, "user.online") == 0);
  else
    fault = follow_lease(c, event);
  if (fault == NULL && number_of(event, "user_sessions", -1) != live_sessions(c, p->user))
    fault = "with a wrong number of sessions (user_sessions)";
  return fault;
}

/// Each event must follow from those before it, and all of them lead to how things are.
static void demand_order(struct drill *d) {
  struct course c = {.stays = {{.user = TEACHER, .session = SESSION},
                               {.user = RENEWS, .session = SESSION},
                               {.user = SILENT, .session = SESSION},
                               {.user = LEAVES, .session = SESSION},
                               {.user = LEAVES, .session = OTHER_SESSION}},
                     .people = {{.user = TEACHER}, {.user = RENEWS}, {.user = SILENT}, {.user = LEAVES}}};
  size_t i;
  json_t *event;
  json_array_foreach(d->board.events, i, event) {
    const char *fault = follow(&c, event);
    if (fault != NULL) {
      wrong_event(d, i, fault);
      return;
    }
  }
  for (i = 0; i < ARRAY_LEN(c.people); i++) {
    const struct person *p = &c.people[i];
    bool waits = d->grace_too_long && strcmp(p->user, LEAVES) == 0;
    if (!waits && p->online != (live_sessions(&c, p->user) > 0))
      drill_wrong(d, CHECK_TOLD, d->board.answer_id, "the subscriber was told of no user.%s of %s in the end",
                  p->online ? "offline" : "online", p->user);
  }
}

// -- each event by itself ------------------------------------------------------------------------------------------

/// What only the event itself shows: its id, and when it came.
static void demand_events(struct drill *d) {
  json_t *ids = json_object();
  size_t i;
  json_t *event;
  json_array_foreach(d->board.events, i, event) {
    const char *id = text_of(event, "event_id", ""), *kind = text_of(event, "kind", "");
    int session = same(OTHER_SESSION, event, "session_id");
    if (id[0] == '\0' || json_object_get(ids, id) != NULL)
      wrong_event(d, i, id[0] == '\0' ? "without an event_id" : "under the event_id of another");
    json_object_set_new(ids, id, json_true());
    if (strcmp(kind, "session.closed") == 0 && d->closed[session] && strcmp(id, d->closed_ids[session]) != 0)
      wrong_event(d, i, "under another event_id than the close was answered with");
    if (strcmp(kind, "user.offline") == 0 && same(LEAVES, event, "user_id") &&
        strcmp(text_of(event, "at", ""), d->leaves_offline_at) < 0)
      wrong_event(d, i, "before the grace was over");
  }
  json_decref(ids);
}

/// What instance @a where replays must be what the subscriber was told when it happened.
static bool demand_replay(struct drill *d, int where) {
  int64_t until_us = clock_mono_us() + (int64_t)REPLAY_WAIT_MS * 1000;
  while (drill_presence(d, where, "?since=0&wait_ms=0") &&
         number_of(d->reply.json, "revision", -1) < d->board.fold.revision && clock_mono_us() < until_us)
    drill_pause(d, 100);
  if (d->over)
    return false;
  if (strcmp(text_of(d->reply.json, "mode", ""), "snapshot") == 0) {
    drill_say(d, "%s keeps too few events to replay the drill (%s)", d->url[where],
              text_of(d->reply.json, "reason", "?"));
    return true;
  }
  size_t i;
  json_t *event;
  json_array_foreach(d->board.events, i, event) {
    int64_t revision = number_of(event, "revision", 0);
    const json_t *again = json_array_get(json_object_get(d->reply.json, "events"), (size_t)(revision - 1));
    if (json_equal(event, again))
      continue;
    drill_wrong(d, CHECK_TOLD, d->reply.request_id,
                "%s replays revision %lld as %s of %s; when it happened it was %s of %s", d->url[where],
                (long long)revision, text_of(again, "kind", "nothing"), text_of(again, "user_id", "nobody"),
                text_of(event, "kind", "?"), text_of(event, "user_id", "?"));
    break;
  }
  return true;
}

bool drill_told(struct drill *d) {
  // What was noticed at once, such as a gap, does not say yet of what.
  d->findings[CHECK_TOLD].open = d->findings[CHECK_TOLD].wrong;
  demand_all_once(d);
  demand_order(d);
  demand_events(d);
  for (int where = 0; where < d->n_urls; where++) {
    if (!demand_replay(d, where))
      return false;
  }
  d->findings[CHECK_TOLD].reached = true;
  if (!d->findings[CHECK_TOLD].wrong)
    drill_say(d, "%zu events told each change once, and are replayed as they were told",
              json_array_size(d->board.events));
  return true;
}
