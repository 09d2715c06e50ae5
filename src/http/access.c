// SPDX-License-Identifier: Apache-2.0
#include "http/access.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "auth/authority.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/metric.h"
#include "http/route.h"
#include "http/worker.h"
#include "live/limits.h"

static const struct refusal no_credential = {
    401, "no_credential",
    "show a token or an API key in the header Authorization: Bearer (it is not taken from the URL)"};
static const struct refusal bad_credential = {401, "bad_credential", "the token or API key is not accepted"};
static const struct refusal bad_scheme = {
    401, "bad_credential", "the header Authorization has to be of the scheme Bearer, with a token or an API key"};
const struct refusal access_expired = {401, "token_expired", "the token has expired; show a fresh one"};
static const struct refusal not_yet = {503, "unavailable", "the credential cannot be judged yet; try again"};
static const struct refusal no_read = {403, "missing_scope", "this needs the scope presence:read, and rooms"};
static const struct refusal no_write = {403, "missing_scope",
                                        "this needs the scope presence:write or gateway, and rooms"};
static const struct refusal no_members = {403, "missing_scope", "this needs the scope members:write, and rooms"};
static const struct refusal no_admin = {403, "missing_scope", "this needs the scope admin, and all rooms"};
static const struct refusal outside_rooms = {403, "outside_rooms", "the credential is not for this room"};
static const struct refusal outside_prefix = {
    403, "outside_rooms", "the credential is not for all of these rooms: give a prefix= that lies within its own"};
static const struct refusal outside_user = {403, "outside_rooms", "asking for others takes a credential for all rooms"};
static const struct refusal not_your_user = {403, "not_your_user", "the credential is for another user"};
static const struct refusal not_your_session = {403, "not_your_session", "the credential is for another session"};
static const struct refusal too_many_requests = {429, "too_many_requests", "too many requests; try again later"};

// -- who it is -----------------------------------------------------------------------------------------------------

/// The Authorization headers of a request. libmicrohttpd looks up the first of several.
struct authorization {
  int count;
  const char *value;
};

static enum MHD_Result gather(void *cls, enum MHD_ValueKind kind, const char *name, const char *value) {
  (void)kind;
  struct authorization *a = cls;
  if (strcasecmp(name, MHD_HTTP_HEADER_AUTHORIZATION) != 0)
    return MHD_YES;
  a->count++;
  a->value = value != NULL ? value : "";
  return MHD_YES;
}

/// Asks the authority. @return NULL with a reference in @a credential, or why the caller is nobody
static const struct refusal *identify(struct request *r, const struct credential **credential) {
  struct authorization a = {0};
  (void)MHD_get_connection_values(r->connection, MHD_HEADER_KIND, gather, &a);
  *credential = NULL;
  if (a.count > 1) {
    r->refusal_reason = "more than one Authorization header";
    return &bad_credential;
  }
  // White space around a field's value is no part of it (RFC 9110 §5.5); libmicrohttpd leaves what stands behind it.
  size_t len = a.value != NULL ? strlen(a.value) : 0;
  while (len > 0 && (a.value[len - 1] == ' ' || a.value[len - 1] == '\t'))
    len--;
  struct authority *authority = r->worker->service->authority;
  r->authority_generation = authority_generation(authority);
  r->refusal_reason = NULL;
  switch (authority_check(authority, a.value, len, credential, &r->refusal_reason)) {
  case AUTH_OK:
    r->refusal_reason = NULL;
    return NULL;
  case AUTH_MISSING:
    return &no_credential;
  case AUTH_EXPIRED:
    return &access_expired;
  case AUTH_LATER:
    return &not_yet;
  case AUTH_BAD:
    break;
  }
  return a.value == NULL || strncasecmp(a.value, "Bearer", strlen("Bearer")) == 0 ? &bad_credential : &bad_scheme;
}

// -- what it may ---------------------------------------------------------------------------------------------------

static const struct refusal *missing_scope(enum scope scope) {
  return scope == SCOPE_READ ? &no_read : scope == SCOPE_WRITE ? &no_write : &no_members;
}

static const struct refusal *judge_room(const struct credential *c, enum scope scope, const char *room_id) {
  if (!credential_has(c, scope))
    return missing_scope(scope);
  return room_id == NULL || credential_in_room(c, room_id) ? NULL : &outside_rooms;
}

static const struct refusal *judge_write(const struct credential *c, const char *room_id, const char *user_id,
                                         const char *session_id) {
  const struct refusal *refusal = judge_room(c, SCOPE_WRITE, room_id);
  if (refusal != NULL)
    return refusal;
  if (user_id != NULL && !credential_is_user(c, user_id))
    return &not_your_user;
  return session_id == NULL || credential_is_session(c, session_id) ? NULL : &not_your_session;
}

static const struct refusal *judge_user(const struct credential *c, const char *user_id) {
  if (!credential_has(c, SCOPE_READ))
    return &no_read;
  bool own = c->sub != NULL && strcmp(c->sub, user_id) == 0;
  return own || credential_in_rooms(c, "") ? NULL : &outside_user;
}

const char *access_path_param(const struct request *r, const char *name) {
  int i = 0;
  for (const char *s = strchr(r->route->pattern, '{'); s != NULL; s = strchr(s + 1, '{'), i++)
    if (strncmp(s, name, strlen(name)) == 0)
      return r->params[i];
  return NULL;
}

/// The guard of the route, and the path.
static const struct refusal *judge_path(const struct request *r, const struct credential *c) {
  const char *room_id = access_path_param(r, "{room}"), *user_id = access_path_param(r, "{user}");
  const struct refusal *refusal;
  switch (r->route->guard) {
  case GUARD_OPEN:
    return NULL;
  case GUARD_METRICS:
    return judge_room(c, SCOPE_READ, NULL);
  case GUARD_READ:
    return room_id == NULL && user_id != NULL ? judge_user(c, user_id) : judge_room(c, SCOPE_READ, room_id);
  case GUARD_WRITE:
    return judge_write(c, room_id, user_id, access_path_param(r, "{session}"));
  case GUARD_MEMBERS:
    return judge_room(c, SCOPE_MEMBERS, room_id);
  case GUARD_ADMIN:
    // What webhooks tell is of all rooms.
    return credential_has(c, SCOPE_ADMIN) && credential_in_rooms(c, "") ? NULL : &no_admin;
  case GUARD_RECORD:
    refusal = judge_room(c, SCOPE_WRITE, room_id);
    return refusal == &no_write && credential_has(c, SCOPE_MEMBERS) ? judge_room(c, SCOPE_MEMBERS, room_id) : refusal;
  }
  return &no_members;
}

// -- at the head ---------------------------------------------------------------------------------------------------

/// A bucket's answer. @return NULL, or the 429
static const struct refusal *limited(struct request *r, int64_t wait_ms) {
  if (wait_ms <= 0)
    return NULL;
  int64_t s = (wait_ms + 999) / 1000;
  r->retry_after_s = s < INT32_MAX ? (int)s : INT32_MAX;
  return &too_many_requests;
}

const struct refusal *access_address(struct request *r) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  if (info == NULL || info->client_addr == NULL)
    return NULL;
  return limited(r, limits_address(r->worker->service->limits, info->client_addr, 1));
}

static bool is_open(const struct request *r) {
  const struct config *config = r->worker->service->config;
  return config->auth == CONFIG_AUTH_NONE || r->route->guard == GUARD_OPEN ||
         (r->route->guard == GUARD_METRICS && config->metrics_access == CONFIG_METRICS_OPEN);
}

const struct refusal *access_door(struct request *r) {
  if (is_open(r))
    return NULL;
  const struct refusal *refusal = identify(r, &r->credential);
  if (refusal == NULL)
    refusal = limited(r, limits_credential(r->worker->service->limits, r->credential, 1));
  return refusal != NULL ? refusal : judge_path(r, r->credential);
}

const struct refusal *access_again(struct request *r) {
  unsigned before = r->authority_generation;
  const struct credential *fresh;
  const struct refusal *refusal = identify(r, &fresh);
  if (refusal == NULL)
    refusal = judge_path(r, fresh);
  credential_unref(fresh);
  if (refusal != NULL) // asked again with the next wake
    r->authority_generation = before;
  return refusal == &not_yet ? NULL : refusal;
}

// -- for handlers --------------------------------------------------------------------------------------------------

/// Whether nobody is asked who they are. A guarded route without a credential is never reached otherwise.
static bool unguarded(const struct request *r) {
  return r->worker->service->config->auth == CONFIG_AUTH_NONE;
}

const struct refusal *access_write(const struct request *r, const char *room_id, const char *user_id,
                                   const char *session_id) {
  if (unguarded(r))
    return NULL;
  return r->credential == NULL ? &no_credential : judge_write(r->credential, room_id, user_id, session_id);
}

const struct refusal *access_read(const struct request *r, const char *room_id) {
  if (unguarded(r))
    return NULL;
  return r->credential == NULL ? &no_credential : judge_room(r->credential, SCOPE_READ, room_id);
}

const struct refusal *access_members(const struct request *r, const char *room_id) {
  if (unguarded(r))
    return NULL;
  return r->credential == NULL ? &no_credential : judge_room(r->credential, SCOPE_MEMBERS, room_id);
}

const struct refusal *access_rooms(const struct request *r, const char *prefix) {
  const struct refusal *refusal = access_read(r, NULL);
  if (refusal != NULL || unguarded(r))
    return refusal;
  return credential_in_rooms(r->credential, prefix) ? NULL : &outside_prefix;
}

const struct refusal *access_user(const struct request *r, const char *user_id) {
  if (unguarded(r))
    return NULL;
  return r->credential == NULL ? &no_credential : judge_user(r->credential, user_id);
}

void request_refused(struct request *r, const struct refusal *refusal) {
  if (r->refusal_reason == NULL)
    r->refusal_reason = refusal->detail;
  const struct reply_headers headers = {.retry_after_s = r->retry_after_s};
  request_problem_headers(r, refusal->status, refusal->code, NULL, &headers, "%s", refusal->detail);
}

const char *access_person(const struct request *r) {
  const struct credential *c = r->credential;
  bool for_others = c == NULL || c->sub == NULL || credential_has(c, SCOPE_GATEWAY);
  return for_others ? request_query(r, "user_id") : c->sub;
}

// -- for replies ---------------------------------------------------------------------------------------------------

static const struct {
  const char *code;
  enum metric metric;
} counted[] = {{"no_credential", METRIC_REFUSED_NO_CREDENTIAL},
               {"bad_credential", METRIC_REFUSED_BAD_CREDENTIAL},
               {"token_expired", METRIC_REFUSED_TOKEN_EXPIRED},
               {"missing_scope", METRIC_REFUSED_MISSING_SCOPE},
               {"outside_rooms", METRIC_REFUSED_OUTSIDE_ROOMS},
               {"not_your_user", METRIC_REFUSED_NOT_YOUR_USER},
               {"not_your_session", METRIC_REFUSED_NOT_YOUR_SESSION},
               {"membership_revoked", METRIC_REFUSED_MEMBERSHIP_REVOKED},
               {"not_a_member", METRIC_REFUSED_NOT_A_MEMBER},
               {"too_many_requests", METRIC_REFUSED_TOO_MANY_REQUESTS},
               {"too_soon", METRIC_REFUSED_TOO_SOON},
               {"too_many_leases", METRIC_REFUSED_TOO_MANY_LEASES},
               {"too_many_waiting", METRIC_REFUSED_TOO_MANY_WAITING}};

void access_note(const struct request *r, int status, const char *code) {
  static struct log_limit lines[ARRAY_LEN(counted) + 1];
  if (status != 401 && status != 403 && status != 429)
    return;
  size_t i = 0;
  while (i < ARRAY_LEN(counted) && strcmp(counted[i].code, code) != 0)
    i++;
  metric_add(i < ARRAY_LEN(counted) ? counted[i].metric : METRIC_REFUSED_OTHER, 1);
  int64_t left_out;
  if (!log_limit_take(&lines[i], clock_mono_us(), &left_out))
    return;
  // The path is the client's text and may be anything, a token too: the route says enough.
  const char *reason = r->refusal_reason;
  log_info("refused: %d %s%s%s; request_id=%s credential=%s route=%s %s; left out before: %lld", status, code,
           reason != NULL ? ": " : "", reason != NULL ? reason : "", r->id,
           r->credential != NULL && r->credential->name[0] != '\0' ? r->credential->name : "-",
           r->route != NULL ? r->route->method : "-", r->route != NULL ? r->route->pattern : "-", (long long)left_out);
}

const char *access_challenge(const char *code) {
  return strcmp(code, no_credential.code) == 0 ? "Bearer realm=\"stillhere\""
                                               : "Bearer realm=\"stillhere\", error=\"invalid_token\"";
}
