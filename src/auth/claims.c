// SPDX-License-Identifier: Apache-2.0
// What a verified token says: whom it speaks for, where, what, and until when.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "auth/jwt.h"
#include "base/strict.h"

#define SECOND_US INT64_C(1000000)
#define TEN_YEARS_US (INT64_C(3653) * 86400 * SECOND_US)
#define ROOMS_MAX 1000

/// While claims are read: the first problem ends it.
struct reader {
  json_t *payload;
  struct credential *c;
  const char *problem; ///< static text; NULL while all is well
  bool no_memory;
};

static void take_copy(struct reader *in, const char *s, size_t len, char **out) {
  *out = strndup(s, len);
  if (*out == NULL)
    in->no_memory = true;
}

/// An identifier, where there is one.
static void read_ident(struct reader *in, const char *name, char **out, const char *problem) {
  const json_t *claim = json_object_get(in->payload, name);
  if (claim == NULL || in->problem != NULL)
    return;
  if (!json_is_string(claim) || ident_problem(json_string_value(claim), json_string_length(claim)) != NULL)
    in->problem = problem;
  else
    take_copy(in, json_string_value(claim), json_string_length(claim), out);
}

static void read_rooms(struct reader *in) {
  const json_t *rooms = json_object_get(in->payload, "rooms");
  if (rooms == NULL || in->problem != NULL)
    return;
  size_t n = json_array_size(rooms);
  if (!json_is_array(rooms) || n > ROOMS_MAX) {
    in->problem = "the token's rooms are not a list of at most 1000";
    return;
  }
  for (size_t i = 0; i < n && !in->no_memory; i++) {
    const json_t *room = json_array_get(rooms, i);
    if (!json_is_string(room) || room_pattern_problem(json_string_value(room), json_string_length(room)) != NULL) {
      in->problem = "one of the token's rooms is no name and no prefix with a * at its end";
      return;
    }
    in->no_memory = !credential_add_room(in->c, json_string_value(room), json_string_length(room), n);
  }
}

/// Words that are unknown here may mean something to others who take the same token.
static void read_scope(struct reader *in) {
  const json_t *scope = json_object_get(in->payload, "scope");
  if (scope == NULL || in->problem != NULL)
    return;
  if (!json_is_string(scope)) {
    in->problem = "the token's scope is not a string";
    return;
  }
  for (const char *word = json_string_value(scope); *word != '\0';) {
    size_t len = strcspn(word, " ");
    in->c->scopes |= scope_parse(word, len);
    word += len;
    word += strspn(word, " ");
  }
}

static bool is_text(const json_t *value, const char *text) {
  return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

static void check_origin(struct reader *in, const struct jwt_rules *rules) {
  if (in->problem != NULL)
    return;
  if (rules->issuer[0] != '\0' && !is_text(json_object_get(in->payload, "iss"), rules->issuer))
    in->problem = "the token's iss is not jwt_issuer";
  if (rules->audience[0] == '\0' || in->problem != NULL)
    return;
  const json_t *aud = json_object_get(in->payload, "aud");
  bool meant = is_text(aud, rules->audience);
  for (size_t i = 0; i < json_array_size(aud); i++)
    meant = meant || is_text(json_array_get(aud, i), rules->audience);
  if (!meant)
    in->problem = "the token's aud does not have jwt_audience";
}

// -- times ---------------------------------------------------------------------------------------------------------

/// Unix seconds, perhaps with a fraction, as microseconds. What lies before 1970 is 1970, and what is far beyond
/// anything that is accepted is as far as the number goes. @return false when it is no number
static bool read_time(const json_t *claim, int64_t *us) {
  if (!json_is_number(claim))
    return false;
  double seconds = json_number_value(claim);
  if (!isfinite(seconds))
    return false;
  if (seconds <= 0)
    *us = 0;
  else if (seconds >= 9e12)
    *us = INT64_MAX;
  else
    *us = json_is_integer(claim) ? json_integer_value(claim) * SECOND_US : (int64_t)(seconds * 1e6);
  return true;
}

static enum auth_status check_times(struct reader *in, int64_t not_before_us, const struct jwt_rules *rules,
                                    int64_t now_us) {
  int64_t expires_us = in->c->expires_us;
  if (now_us == 0) {
    in->problem = "the database's clock is not known yet";
    return AUTH_LATER;
  }
  if (expires_us > now_us + TEN_YEARS_US) {
    in->problem = "the token's exp is more than ten years ahead";
    return AUTH_BAD;
  }
  if (now_us >= expires_us + rules->leeway_us) {
    in->problem = "the token has expired";
    return AUTH_EXPIRED;
  }
  if (not_before_us > now_us + rules->leeway_us) {
    in->problem = "the token's nbf is still to come";
    return AUTH_BAD;
  }
  return AUTH_OK;
}

// -- all of it -----------------------------------------------------------------------------------------------------

static enum auth_status read_all(struct reader *in, const struct jwt_rules *rules, int64_t now_us) {
  read_ident(in, "sub", &in->c->sub, "the token's sub is no identifier");
  read_ident(in, "sid", &in->c->sid, "the token's sid is no identifier");
  read_rooms(in);
  read_scope(in);
  check_origin(in, rules);
  const json_t *nbf = json_object_get(in->payload, "nbf");
  int64_t not_before_us = 0;
  if (in->problem == NULL && !read_time(json_object_get(in->payload, "exp"), &in->c->expires_us))
    in->problem = "the token has no exp, or not as a number";
  if (in->problem == NULL && nbf != NULL && !read_time(nbf, &not_before_us))
    in->problem = "the token's nbf is not a number";
  if (in->problem == NULL && !in->no_memory)
    take_copy(in, in->c->sub != NULL ? in->c->sub : "", in->c->sub != NULL ? strlen(in->c->sub) : 0, &in->c->name);
  if (in->no_memory) {
    in->problem = "out of memory";
    return AUTH_LATER;
  }
  return in->problem != NULL ? AUTH_BAD : check_times(in, not_before_us, rules, now_us);
}

enum auth_status jwt_read_claims(const struct jwt_rules *rules, json_t *payload, int64_t now_us,
                                 const struct credential **credential, const char **reason) {
  *credential = NULL;
  struct reader in = {.payload = payload, .c = credential_new(CREDENTIAL_TOKEN)};
  if (in.c == NULL) {
    *reason = "out of memory";
    return AUTH_LATER;
  }
  enum auth_status status = read_all(&in, rules, now_us);
  if (status == AUTH_OK) {
    *credential = in.c;
  } else {
    *reason = in.problem;
    credential_unref(in.c);
  }
  return status;
}
