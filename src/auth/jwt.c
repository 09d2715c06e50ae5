// SPDX-License-Identifier: Apache-2.0
#include "auth/jwt.h"

#include <errno.h>
#include <jwt.h>
#include <string.h>

#include "base/util.h"

/// The three parts of a token in compact form; each is a stretch of it, in base64url.
struct parts {
  const char *header, *payload, *signature;
  size_t header_len, payload_len, signature_len;
};

static enum auth_status bad(const char **reason, const char *text) {
  *reason = text;
  return AUTH_BAD;
}

static enum auth_status later(const char **reason) {
  *reason = "out of memory";
  return AUTH_LATER;
}

// -- form ----------------------------------------------------------------------------------------------------------

static bool split(const char *token, size_t len, struct parts *p) {
  const char *end = token + len;
  const char *first = memchr(token, '.', len);
  const char *second = first == NULL ? NULL : memchr(first + 1, '.', (size_t)(end - first - 1));
  if (second == NULL || memchr(second + 1, '.', (size_t)(end - second - 1)) != NULL)
    return false;
  *p = (struct parts){.header = token,
                      .payload = first + 1,
                      .signature = second + 1,
                      .header_len = (size_t)(first - token),
                      .payload_len = (size_t)(second - first - 1),
                      .signature_len = (size_t)(end - second - 1)};
  return true;
}

/// @return -1 when @a c is none of the alphabet
static int base64url_value(char c) {
  if (c >= 'A' && c <= 'Z')
    return c - 'A';
  if (c >= 'a' && c <= 'z')
    return c - 'a' + 26;
  if (c >= '0' && c <= '9')
    return c - '0' + 52;
  return c == '-' ? 62 : c == '_' ? 63 : -1;
}

/// Strictly: no padding, no blanks, no bits left over. libjwt is more generous, so what it makes of the parts is not
/// used.
/// @param[out] out has room for @a len bytes @return false when it is not base64url
static bool base64url_decode(const char *in, size_t len, char *out, size_t *out_len) {
  uint32_t bits = 0;
  unsigned n_bits = 0;
  size_t used = 0;
  for (size_t i = 0; i < len; i++) {
    int value = base64url_value(in[i]);
    if (value < 0)
      return false;
    bits = bits << 6 | (uint32_t)value;
    n_bits += 6;
    if (n_bits >= 8) {
      n_bits -= 8;
      out[used++] = (char)(bits >> n_bits & 0xff);
    }
  }
  *out_len = used;
  return n_bits < 6 && (bits & ((1U << n_bits) - 1)) == 0;
}

/// @return a JSON object, the caller's, or NULL when it is none, or has a name twice
static json_t *read_object(const char *part, size_t len) {
  char text[JWT_MAX];
  size_t text_len;
  if (len > sizeof text || !base64url_decode(part, len, text, &text_len))
    return NULL;
  json_t *object = json_loadb(text, text_len, JSON_REJECT_DUPLICATES, NULL);
  explicit_bzero(text, sizeof text);
  if (json_is_object(object))
    return object;
  json_decref(object);
  return NULL;
}

// -- header --------------------------------------------------------------------------------------------------------

/// The algorithm is compared here, byte for byte, before anything is verified: what a token says of itself never
/// chooses how a key is used. @return NULL, or what is wrong
static const char *header_problem(json_t *header, enum config_jwt_algorithm algorithm) {
  static const char *const names[] = {
      [CONFIG_JWT_HS256] = "HS256", [CONFIG_JWT_RS256] = "RS256", [CONFIG_JWT_ES256] = "ES256"};
  const char *alg = json_string_value(json_object_get(header, "alg"));
  if (alg == NULL || strcmp(alg, names[algorithm]) != 0)
    return "the token's alg is not jwt_algorithm";
  const json_t *typ = json_object_get(header, "typ");
  if (typ != NULL && (!json_is_string(typ) || strcasecmp(json_string_value(typ), "JWT") != 0))
    return "the token's typ is not JWT";
  if (json_object_get(header, "crit") != NULL || json_object_get(header, "b64") != NULL)
    return "the token asks for extensions (crit, b64)";
  const json_t *kid = json_object_get(header, "kid");
  if (kid != NULL && !json_is_string(kid))
    return "the token's kid is not a string";
  return NULL;
}

// -- signature -----------------------------------------------------------------------------------------------------

/// @return 0, EINVAL when this key did not sign it, or ENOMEM
static int verify_with(const struct jwt_key *key, const char *token) {
  jwt_t *jwt = NULL;
  int error = jwt_decode(&jwt, token, (const unsigned char *)key->bytes, (int)key->len);
  if (error == 0)
    jwt_free(jwt);
  return error;
}

static enum auth_status verify(const struct jwt_keys *keys, const char *kid, const char *token, const char **reason) {
  bool known = false;
  for (size_t i = 0; kid != NULL && i < keys->n; i++)
    known = known || strcmp(keys->keys[i].name, kid) == 0;
  for (size_t i = 0; i < keys->n; i++) {
    if (known && strcmp(keys->keys[i].name, kid) != 0)
      continue;
    int error = verify_with(&keys->keys[i], token);
    if (error == 0)
      return AUTH_OK;
    if (error == ENOMEM)
      return later(reason);
  }
  return bad(reason, "the token is not signed by a key of ours");
}

static enum auth_status check_signature(const struct jwt_keys *keys, const struct parts *p, size_t len,
                                        const char **reason) {
  json_t *header = read_object(p->header, p->header_len);
  if (header == NULL)
    return bad(reason, "the token's header is not a JSON object in base64url");
  const char *problem = header_problem(header, keys->algorithm);
  enum auth_status status = AUTH_BAD;
  if (problem != NULL) {
    *reason = problem;
  } else {
    char copy[JWT_MAX + 1]; // libjwt wants a NUL behind it
    memcpy(copy, p->header, len);
    copy[len] = '\0';
    status = verify(keys, json_string_value(json_object_get(header, "kid")), copy, reason);
    explicit_bzero(copy, sizeof copy);
  }
  json_decref(header);
  return status;
}

enum auth_status jwt_verify_token(const struct jwt_keys *keys, const struct jwt_rules *rules, const char *token,
                                  size_t len, int64_t now_us, const struct credential **credential,
                                  const char **reason) {
  *credential = NULL;
  struct parts p;
  char scratch[JWT_MAX];
  size_t signature_len, payload_len;
  if (keys->n == 0)
    return bad(reason, "there is no key to verify tokens with");
  if (len > JWT_MAX)
    return bad(reason, "the token is longer than 8192 bytes");
  if (!split(token, len, &p) || memchr(token, '\0', len) != NULL)
    return bad(reason, "the token does not have three parts");
  // All three are sound before libjwt sees them: of an empty part it writes a byte behind a block of size 0.
  if (!base64url_decode(p.payload, p.payload_len, scratch, &payload_len) || payload_len == 0)
    return bad(reason, "the token's payload is not a JSON object in base64url, or has a claim twice");
  if (!base64url_decode(p.signature, p.signature_len, scratch, &signature_len) || signature_len == 0)
    return bad(reason, "the token has no signature in base64url");
  enum auth_status status = check_signature(keys, &p, len, reason);
  if (status != AUTH_OK)
    return status;
  json_t *payload = read_object(p.payload, p.payload_len);
  if (payload == NULL)
    return bad(reason, "the token's payload is not a JSON object in base64url, or has a claim twice");
  status = jwt_read_claims(rules, payload, now_us, credential, reason);
  json_decref(payload);
  return status;
}
