// SPDX-License-Identifier: Apache-2.0
// What callers show. The first letter says which:
//   t, e, r   a token in compact form, for keys of HS256, ES256 or RS256
//   s         a header and, on the next line, a payload: signed here by HS256, so that what they say is looked at
//   h         the value of an Authorization header
#include "fuzz.h"

#define assert_true(condition) MUST(condition)
#define assert_int_equal(a, b) MUST((a) == (b))
#define assert_non_null(pointer) MUST((pointer) != NULL)
#include "../unit/auth_fixture.h"

#include "auth/authority.h"
#include "auth/jwt.h"
#include "base/clock.h"
#include "base/log.h"

/// The database's clock, seconds; all seeds are about this time.
#define NOW_S INT64_C(1800000000)
#define NOW_US (NOW_S * 1000000)
#define TEN_YEARS_US (INT64_C(3653) * 86400 * 1000000)
#define API_KEY "dashboard-key-0123456789"
/// Its SHA-256.
#define API_KEY_HASH "8d2344bdf78f98b308a29e4ee7a3c7946ce50d037b3efd298786c50f63402c7b"

static const char ec_pem[] = "-----BEGIN PUBLIC KEY-----\n"
                             "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEY2U7h3fhhW+4UVRKRA8PdLk9Rqjc\n"
                             "iipARZaIdjj3O97nOxD7/hBlp9353EUv85y4gvMBxxWD0j8Egjl4hTdxkQ==\n"
                             "-----END PUBLIC KEY-----\n";
static const char rsa_pem[] = "-----BEGIN PUBLIC KEY-----\n"
                              "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAtjqXNErvo05uBDHfyNbR\n"
                              "0YPPHE/01IiSJsqis4OZNhUUl8o/CpqffWqXBLGmrG+qL26VxRpZIz6qXMVTuCcw\n"
                              "AlZTBr5ZoLU3kUNWvgx0cJVA+xp+J9yIgX6rjGu3TD1MpNtFLSk4+RAEjlQSNfpL\n"
                              "q2H+InkTbiIbUxh3qHt9bFcaemuZMd1CXRJdK9i58hZiPLxz6ZLgQPz/5CFPITWw\n"
                              "0Rovk5axRAfJtKGJc+vBRLjorqZ4C5QCJjlfuR/kp/060peuL8M24nQxNX1zu80s\n"
                              "ww//yBetEcY7tKhKNTUpcEMB7ynMKv+fQq8cHftDJX3oNKvlqFzdJPNMPGWfZEP6\n"
                              "vQIDAQAB\n"
                              "-----END PUBLIC KEY-----\n";

static const struct jwt_rules rules = {.audience = "", .issuer = "", .leeway_us = 30000000};
static const struct jwt_rules strict_rules = {.audience = "stillhere", .issuer = "tests", .leeway_us = 0};
static struct jwt_keys hs_keys, ec_keys, rsa_keys;
static struct authority *authority;

static struct jwt_key key(const char *name, const char *bytes) {
  return (struct jwt_key){.name = strdup(name), .bytes = strdup(bytes), .len = strlen(bytes)};
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  log_setup(LOG_ERROR, LOG_TEXT);
  hs_keys =
      (struct jwt_keys){.algorithm = CONFIG_JWT_HS256, .n = 2, .keys = {key("a", SECRET), key("b", OTHER_SECRET)}};
  ec_keys = (struct jwt_keys){.algorithm = CONFIG_JWT_ES256, .n = 1, .keys = {key("ec", ec_pem)}};
  rsa_keys = (struct jwt_keys){.algorithm = CONFIG_JWT_RS256, .n = 1, .keys = {key("rsa", rsa_pem)}};
  static struct memory_file secret, api_keys;
  secret = memory_text(SECRET);
  api_keys = memory_text("dashboard " API_KEY_HASH " presence:read class-*,lab\n");
  static char empty[] = "";
  struct config config = {.auth = CONFIG_AUTH_JWT,
                          .jwt_algorithm = CONFIG_JWT_HS256,
                          .jwt_key_file = secret.path,
                          .jwt_audience = empty,
                          .jwt_issuer = empty,
                          .jwt_leeway_ms = 30000,
                          .api_keys_file = api_keys.path};
  authority = authority_new(&config);
  MUST(authority != NULL);
  int64_t now_us = clock_mono_us();
  clock_db_sample(NOW_US, now_us, now_us);
  return 0;
}

static void check_credential(const struct credential *c, const struct jwt_rules *by) {
  const unsigned all = SCOPE_READ | SCOPE_WRITE | SCOPE_MEMBERS | SCOPE_GATEWAY | SCOPE_ADMIN;
  MUST(c != NULL && c->name != NULL && (c->scopes & ~all) == 0 && c->n_rooms <= 1000);
  MUST(c->sub == NULL ? c->kind == CREDENTIAL_API_KEY || c->name[0] == '\0' : fuzz_is_ident(c->sub));
  MUST(c->sid == NULL || fuzz_is_ident(c->sid));
  for (size_t i = 0; i < c->n_rooms; i++) {
    size_t len = strlen(c->rooms[i]);
    MUST(room_pattern_problem(c->rooms[i], len) == NULL && fuzz_is_utf8(c->rooms[i], len));
    MUST(strchr(c->rooms[i], '*') == NULL || strchr(c->rooms[i], '*') == c->rooms[i] + len - 1);
  }
  if (c->kind == CREDENTIAL_TOKEN)
    MUST(c->expires_us + by->leeway_us > NOW_US && c->expires_us <= NOW_US + TEN_YEARS_US + 3600000000);
  // Without rooms or without scopes there are no rights; all rooms are only those of `*`.
  for (unsigned scope = SCOPE_READ; scope <= SCOPE_ADMIN; scope <<= 1)
    MUST(!credential_has(c, (enum scope)scope) || (c->n_rooms > 0 && c->scopes != 0));
  bool star = false;
  for (size_t i = 0; i < c->n_rooms; i++)
    star = star || strcmp(c->rooms[i], "*") == 0;
  MUST(credential_in_rooms(c, "") == star);
  MUST(!credential_in_rooms(c, "class-") || credential_in_room(c, "class-7"));
}

static void check_status(enum auth_status status, const struct credential *c, const char *reason,
                         const struct jwt_rules *by) {
  MUST(status == AUTH_OK || status == AUTH_BAD || status == AUTH_EXPIRED);
  MUST(status == AUTH_OK || (c == NULL && reason != NULL && reason[0] != '\0'));
  if (status == AUTH_OK)
    check_credential(c, by);
  credential_unref(c);
}

/// What was accepted is signed as we would sign it, byte for byte: there is no second form of the same token.
static void check_signed(const char *token, size_t len) {
  const char *dot = memrchr(token, '.', len);
  bool same = false;
  for (size_t i = 0; i < hs_keys.n; i++) {
    char *again = sign_hs256(strndup(token, (size_t)(dot - token)), hs_keys.keys[i].bytes, hs_keys.keys[i].len);
    same = same || (strlen(again) == len && memcmp(again, token, len) == 0);
    free(again);
  }
  MUST(same);
}

static enum auth_status check_token(const struct jwt_keys *keys, const struct jwt_rules *by, const char *token,
                                    size_t len) {
  const struct credential *c = (void *)1;
  const char *reason = NULL;
  enum auth_status status = jwt_verify_token(keys, by, token, len, NOW_US, &c, &reason);
  if (status == AUTH_OK) {
    MUST(keys == &hs_keys); // nobody has the other private keys
    check_signed(token, len);
  }
  check_status(status, c, reason, by);
  return status;
}

/// The header of an accepted token, read once more.
static void check_header(const char *text, size_t len) {
  json_t *header = fuzz_object(text, len);
  MUST(strcmp(json_string_value(json_object_get(header, "alg")), "HS256") == 0);
  MUST(json_object_get(header, "crit") == NULL && json_object_get(header, "b64") == NULL);
  json_decref(header);
}

static void check_claims(const char *text, size_t len, const struct jwt_rules *by) {
  json_t *payload = fuzz_object(text, len);
  MUST(json_is_number(json_object_get(payload, "exp")));
  double nbf = json_number_value(json_object_get(payload, "nbf"));
  MUST(json_number_value(json_object_get(payload, "exp")) > (double)NOW_S - 31 && nbf < (double)NOW_S + 31);
  const json_t *iss = json_object_get(payload, "iss");
  MUST(by->issuer[0] == '\0' || strcmp(json_string_value(iss), by->issuer) == 0);
  json_decref(payload);
}

static void check_minted(const char *text, size_t len) {
  const char *line = memchr(text, '\n', len);
  size_t header_len = line != NULL ? (size_t)(line - text) : 0;
  const char *payload = line != NULL ? line + 1 : text;
  size_t payload_len = len - (size_t)(payload - text);
  char *h = base64url(text, header_len), *p = base64url(payload, payload_len), *unsigned_text = NULL;
  MUST(asprintf(&unsigned_text, "%s.%s", h, p) > 0);
  free(h);
  free(p);
  char *token = sign_hs256(unsigned_text, OTHER_SECRET, strlen(OTHER_SECRET));
  if (check_token(&hs_keys, &rules, token, strlen(token)) == AUTH_OK) {
    check_header(text, header_len);
    check_claims(payload, payload_len, &rules);
  }
  if (check_token(&hs_keys, &strict_rules, token, strlen(token)) == AUTH_OK)
    check_claims(payload, payload_len, &strict_rules);
  free(token);
}

static void check_authorization(const char *value, size_t len) {
  const struct credential *c = (void *)1;
  const char *reason = NULL;
  enum auth_status status = authority_check(authority, value, len, &c, &reason);
  if (status == AUTH_MISSING) {
    MUST(c == NULL);
    for (size_t i = 0; i < len; i++)
      MUST(value[i] == ' ' || value[i] == '\t');
    return;
  }
  if (status == AUTH_OK) {
    // The scheme, blanks, and what is behind the last of them.
    const char *end = value + len;
    while (end[-1] == ' ' || end[-1] == '\t')
      end--;
    const char *token = end;
    while (token > value && token[-1] != ' ' && token[-1] != '\t')
      token--;
    if (c->kind == CREDENTIAL_API_KEY)
      MUST((size_t)(end - token) == strlen(API_KEY) && memcmp(token, API_KEY, strlen(API_KEY)) == 0);
    else
      check_signed(token, (size_t)(end - token));
  }
  check_status(status, c, reason, &rules);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  char *text = fuzz_copy(data + 1, size - 1);
  switch (data[0]) {
  case 't':
    (void)check_token(&hs_keys, &rules, text, size - 1);
    break;
  case 'e':
    (void)check_token(&ec_keys, &rules, text, size - 1);
    break;
  case 'r':
    (void)check_token(&rsa_keys, &rules, text, size - 1);
    break;
  case 's':
    check_minted(text, size - 1);
    break;
  case 'h':
    check_authorization(text, size - 1);
    break;
  default:
    break;
  }
  free(text);
  return 0;
}
