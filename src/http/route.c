// SPDX-License-Identifier: Apache-2.0
#include "http/route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strict.h"
#include "http/handlers.h"

/// More segments than any pattern has.
#define SEGMENTS_MAX 16

static const char *const no_query[] = {NULL};
static const char *const lease_put_query[] = {"since", "epoch", NULL};
static const char *const lease_delete_query[] = {"revision", NULL};
static const char *const presence_query[] = {"since", "epoch",      "wait_ms", "kinds", "limit",
                                             "view",  "session_id", "user_id", NULL};
static const char *const last_seen_query[] = {ROUTE_REPEATABLE "user_id", NULL};
static const char *const room_last_seen_query[] = {"limit", "after", NULL};
static const char *const members_query[] = {"limit", "after", NULL};
static const char *const attendance_query[] = {"after", "limit", "user_id", "format", NULL};
static const char *const cursors_query[] = {"since", "wait_ms", "user_id", NULL};
static const char *const webhooks_dead_query[] = {"target", "limit", "after", NULL};
static const char *const rooms_query[] = {"prefix", "limit", "after", NULL};

#define READS (ROUTE_DATABASE)
#define WRITES (ROUTE_DATABASE | ROUTE_BODY)
#define WATCHES (ROUTE_DATABASE | ROUTE_WATCHES)

// method, pattern, query names, flags, guard, handler; the busiest first.
const struct route routes[] = {
    {"PUT", "/leases", lease_put_query, WRITES | ROUTE_WATCHES, GUARD_WRITE, h_lease_put},
    {"GET", "/rooms/{room}/presence", presence_query, WATCHES, GUARD_READ, h_presence_get},
    {"POST", "/rooms/{room}/cursors", no_query, WRITES, GUARD_WRITE, h_cursor_post},
    {"GET", "/rooms/{room}/cursors", cursors_query, WATCHES, GUARD_READ, h_cursors_get},
    {"DELETE", "/rooms/{room}/leases/{user}/{session}", lease_delete_query, READS, GUARD_WRITE, h_lease_delete},
    {"GET", "/rooms/{room}/leases", no_query, WATCHES, GUARD_READ, h_leases_get},
    {"GET", "/rooms", rooms_query, READS, GUARD_READ, h_rooms_get},
    {"GET", "/last-seen", last_seen_query, READS, GUARD_READ, h_last_seen_get},
    {"GET", "/users/{user}/presence", no_query, READS, GUARD_READ, h_user_presence_get},
    {"GET", "/rooms/{room}/last-seen", room_last_seen_query, WATCHES, GUARD_READ, h_room_last_seen_get},
    {"PUT", "/rooms/{room}/members/{user}", no_query, WRITES, GUARD_MEMBERS, h_member_put},
    {"DELETE", "/rooms/{room}/members/{user}", no_query, READS, GUARD_MEMBERS, h_member_delete},
    {"GET", "/rooms/{room}/members/{user}", no_query, READS, GUARD_MEMBERS, h_member_get},
    {"GET", "/rooms/{room}/members", members_query, READS, GUARD_MEMBERS, h_members_get},
    {"POST", "/rooms/{room}/attendance", no_query, WRITES, GUARD_RECORD, h_attendance_post},
    {"GET", "/rooms/{room}/attendance", attendance_query, READS, GUARD_MEMBERS, h_attendance_get},
    {"GET", "/rooms/{room}/users/{user}/explain", no_query, WATCHES, GUARD_READ, h_explain_get},
    {"GET", "/webhooks", no_query, READS, GUARD_ADMIN, h_webhooks_get},
    {"GET", "/webhooks/dead", webhooks_dead_query, READS, GUARD_ADMIN, h_webhooks_dead_get},
    {"POST", "/webhooks/replay", no_query, WRITES, GUARD_ADMIN, h_webhooks_replay},
    {"GET", "/", no_query, 0, GUARD_OPEN, h_page},
    {"GET", "/www/{file}", no_query, 0, GUARD_OPEN, h_page},
    {"GET", "/healthz", no_query, 0, GUARD_OPEN, h_healthz},
    {"GET", "/readyz", no_query, 0, GUARD_OPEN, h_readyz},
    {"GET", "/metrics", no_query, 0, GUARD_METRICS, h_metrics},
    {"GET", "/openapi.json", no_query, 0, GUARD_OPEN, h_openapi},
    {NULL, NULL, NULL, 0, GUARD_OPEN, NULL},
};

/// The decoded segments of a path.
struct segments {
  int n;
  char *at[SEGMENTS_MAX];
  size_t len[SEGMENTS_MAX];
};

/// Splits first and decodes then, so that an encoded slash stays inside its segment.
/// @param out has room for the whole path and its NUL
/// @return ROUTE_FOUND when every segment is sound, ROUTE_NOT_FOUND when there are too many, or ROUTE_BAD_PATH
static enum route_result split(const char *path, char *out, struct segments *segments, const char **problem) {
  enum route_result result = ROUTE_FOUND;
  segments->n = 0;
  if (path[0] != '/') {
    *problem = "it does not begin with '/'";
    return ROUTE_BAD_PATH;
  }
  if (path[1] == '\0')
    return ROUTE_FOUND;
  for (const char *from = path + 1;; from++) {
    size_t raw = strcspn(from, "/");
    long len = percent_decode(from, raw, out);
    if (len < 0)
      *problem = "a segment has a bad percent-encoding or an encoded NUL";
    else if (len == 0)
      *problem = "a segment is empty";
    else if (strcmp(out, ".") == 0 || strcmp(out, "..") == 0)
      *problem = "a segment is '.' or '..'";
    else if (!utf8_valid(out, (size_t)len))
      *problem = "a segment is not valid UTF-8";
    if (*problem != NULL)
      return ROUTE_BAD_PATH;
    if (segments->n < SEGMENTS_MAX) {
      segments->len[segments->n] = (size_t)len;
      segments->at[segments->n++] = out;
    } else {
      result = ROUTE_NOT_FOUND;
    }
    out += len + 1;
    from += raw;
    if (*from == '\0')
      return result;
  }
}

/// @param[out] params which segments are parameters
/// @return how many, or -1 when the pattern does not match
static int match(const char *pattern, const struct segments *segments, int params[PATH_PARAMS_MAX]) {
  int n = 0, i = 0;
  if (pattern[1] == '\0')
    return segments->n == 0 ? 0 : -1;
  for (const char *from = pattern + 1;; from++, i++) {
    size_t len = strcspn(from, "/");
    if (i == segments->n)
      return -1;
    if (from[0] == '{')
      params[n++] = i;
    else if (segments->len[i] != len || memcmp(segments->at[i], from, len) != 0)
      return -1;
    from += len;
    if (*from == '\0')
      return i + 1 == segments->n ? n : -1;
  }
}

static enum route_result take_params(const struct segments *segments, const int *at, int n,
                                     char *params[PATH_PARAMS_MAX], const char **problem) {
  for (int i = 0; i < n; i++) {
    *problem = ident_problem(segments->at[at[i]], segments->len[at[i]]);
    if (*problem != NULL)
      return ROUTE_BAD_PATH;
  }
  for (int i = 0; i < n; i++) {
    params[i] = strdup(segments->at[at[i]]);
    if (params[i] == NULL)
      return ROUTE_NO_MEMORY;
  }
  return ROUTE_FOUND;
}

/// Adds a method to an Allow value; all of ours fit.
static void allow_add(char allow[ALLOW_SIZE], const char *method) {
  size_t used = strlen(allow);
  (void)snprintf(allow + used, ALLOW_SIZE - used, "%s%s", used > 0 ? ", " : "", method);
}

static enum route_result look_up(const char *method, const struct segments *segments, const struct route **route,
                                 char *params[PATH_PARAMS_MAX], char allow[ALLOW_SIZE], const char **problem) {
  const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
  for (const struct route *r = routes; r->method != NULL; r++) {
    int at[PATH_PARAMS_MAX];
    int n = match(r->pattern, segments, at);
    if (n < 0)
      continue;
    if (strcmp(r->method, wanted) == 0) {
      *route = r;
      return take_params(segments, at, n, params, problem);
    }
    allow_add(allow, r->method);
    if (strcmp(r->method, "GET") == 0)
      allow_add(allow, "HEAD");
  }
  if (allow[0] == '\0')
    return ROUTE_NOT_FOUND;
  allow_add(allow, "OPTIONS");
  return ROUTE_BAD_METHOD;
}

enum route_result route_find(const char *method, const char *raw_path, const struct route **route,
                             char *params[PATH_PARAMS_MAX], char allow[ALLOW_SIZE], const char **problem) {
  *route = NULL;
  *problem = NULL;
  allow[0] = '\0';
  for (int i = 0; i < PATH_PARAMS_MAX; i++)
    params[i] = NULL;
  char *decoded = malloc(strlen(raw_path) + 1);
  if (decoded == NULL)
    return ROUTE_NO_MEMORY;
  struct segments segments;
  enum route_result result = split(raw_path, decoded, &segments, problem);
  if (result == ROUTE_FOUND)
    result = look_up(method, &segments, route, params, allow, problem);
  free(decoded);
  return result;
}
