// SPDX-License-Identifier: Apache-2.0
/// @file
/// `stillhere token`: makes a token, signed with a key that is at hand, or a new API key. For tests and first steps:
/// in daily use whoever knows the people issues the tokens.
#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <jansson.h>
#include <jwt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "auth/credential.h"
#include "auth/key_file.h"
#include "base/buf.h"
#include "base/strict.h"
#include "cli/commands.h"
#include "cli/text.h"

#define KEY_FILE_MAX_BYTES ((size_t)65536)
/// What the server asks of an HS256 secret.
#define SECRET_MIN_BYTES 32

/// An API key is this word, which scanners for leaked secrets can look for, and random bytes in base64url.
#define API_KEY_PREFIX "shk_"
#define API_KEY_BYTES 32
#define API_KEY_SIZE (sizeof API_KEY_PREFIX + (API_KEY_BYTES * 8 + 5) / 6)

#define SHA256_BYTES 32

// -- scope and rooms -----------------------------------------------------------------------------------------------

/// Takes the next word of a list. @return false at its end
static bool next_word(const char **rest, const char *separators, const char **word, size_t *len) {
  *rest += strspn(*rest, separators);
  *word = *rest;
  *len = strcspn(*rest, separators);
  *rest += *len;
  return *len > 0;
}

/// Joins the words of --scope, which may stand with blanks or commas. @return NULL when one is unknown (said)
static char *scope_words(const char *list, char separator) {
  char *out = calloc(1, strlen(list) + 1), *end = out;
  const char *word;
  size_t len;
  for (const char *rest = list; out != NULL && next_word(&rest, " ,", &word, &len);) {
    if (scope_parse(word, len) == 0) {
      complain("--scope knows presence:read, presence:write, members:write, gateway and admin, not \"%.*s\"", (int)len,
               word);
      free(out);
      return NULL;
    }
    if (end != out)
      *end++ = separator;
    memcpy(end, word, len);
    end += len;
  }
  return out;
}

static unsigned scope_bits(const char *list) {
  unsigned bits = 0;
  const char *word;
  size_t len;
  for (const char *rest = list; next_word(&rest, " ,", &word, &len);)
    bits |= scope_parse(word, len);
  return bits;
}

/// The patterns of --rooms. @return NULL when one cannot be (said)
static json_t *room_list(const char *list) {
  json_t *out = json_array();
  const char *word;
  size_t len;
  for (const char *rest = list; next_word(&rest, ",", &word, &len);) {
    const char *problem = room_pattern_problem(word, len);
    if (problem != NULL) {
      complain("--rooms: \"%.*s\" %s", (int)len, word, problem);
      json_decref(out);
      return NULL;
    }
    if (json_array_append_new(out, json_stringn(word, len)) != 0) {
      complain("memory ran out");
      json_decref(out);
      return NULL;
    }
  }
  return out;
}

/// The same as one word. @return NULL when memory ran out
static char *join_rooms(const json_t *rooms) {
  struct buf out = {0};
  size_t i;
  json_t *room;
  json_array_foreach(rooms, i, room) {
    if (i > 0)
      buf_putc(&out, ',');
    buf_puts(&out, json_string_value(room));
  }
  return buf_take(&out, NULL);
}

/// What both need. A credential without it would have no rights at all.
static bool check_rights(const struct options *o) {
  if (o->scope != NULL && scope_bits(o->scope) != 0 && o->rooms != NULL && strspn(o->rooms, ",") < strlen(o->rooms))
    return true;
  char *words = o->scope == NULL ? NULL : scope_words(o->scope, ' ');
  if (o->scope == NULL || words != NULL)
    complain("token needs --scope and --rooms: without them it has no rights. All rooms are --rooms '*'");
  free(words);
  return false;
}

static bool check_name(const char *option, const char *value) {
  const char *problem = value == NULL ? NULL : ident_problem(value, strlen(value));
  if (problem != NULL)
    complain("%s: \"%s\" %s", option, value, problem);
  return problem == NULL;
}

// -- a token -------------------------------------------------------------------------------------------------------

static const struct {
  const char *name;
  jwt_alg_t alg;
} algorithms[] = {{"HS256", JWT_ALG_HS256}, {"RS256", JWT_ALG_RS256}, {"ES256", JWT_ALG_ES256}};

static bool find_algorithm(const char *name, jwt_alg_t *alg) {
  for (size_t i = 0; i < ARRAY_LEN(algorithms); i++) {
    if (name == NULL || strcmp(name, algorithms[i].name) == 0) {
      *alg = algorithms[i].alg;
      return true;
    }
  }
  complain("--algorithm takes HS256, RS256 or ES256, not \"%s\"", name);
  return false;
}

/// Reads the key as the server would read its part of it. @return false when it does not fit (said)
static bool read_key(const struct options *o, jwt_alg_t alg, struct key_file *key) {
  char error[320];
  if (!key_file_read(key, o->key_file, KEY_FILE_MAX_BYTES, error, sizeof error)) {
    complain("--key-file %s", error);
    return false;
  }
  bool private_key = memmem(key->bytes, key->len, "PRIVATE KEY-----", 16) != NULL;
  bool pem = memmem(key->bytes, key->len, "-----BEGIN", 10) != NULL;
  const char *problem = NULL;
  if (alg != JWT_ALG_HS256) {
    if (!private_key)
      problem = "is not a private key in PEM";
  } else if (pem) {
    problem = "looks like a PEM file, but HS256 takes a secret. See --algorithm";
  } else {
    if (key->len > 0 && key->bytes[key->len - 1] == '\n')
      key->bytes[--key->len] = '\0';
    if (key->len < SECRET_MIN_BYTES)
      problem = "is too short: a secret has at least 32 bytes";
  }
  if (problem != NULL)
    complain("--key-file %s: %s", o->key_file, problem);
  return problem == NULL;
}

/// @return NULL when an option cannot be (said)
static json_t *make_claims(const struct options *o, json_int_t now_s) {
  char *scope = scope_words(o->scope, ' ');
  json_t *rooms = scope == NULL ? NULL : room_list(o->rooms), *claims = NULL;
  if (rooms != NULL) {
    json_int_t exp_s = now_s + o->ttl_s;
    claims = json_pack("{s:s*, s:s*, s:s*, s:s*, s:O, s:s, s:I, s:I}", "sub", o->sub, "sid", o->sid, "aud", o->audience,
                       "iss", o->issuer, "rooms", rooms, "scope", scope, "iat", now_s, "exp", exp_s);
    if (claims == NULL)
      complain("the token cannot be made: one of its words is not valid UTF-8");
  }
  json_decref(rooms);
  free(scope);
  return claims;
}

/// @return the token, or NULL (said)
static char *sign(const json_t *claims, jwt_alg_t alg, const struct key_file *key) {
  char *text = json_dumps(claims, JSON_COMPACT), *token = NULL;
  jwt_t *jwt = NULL;
  int error = text == NULL ? ENOMEM : jwt_new(&jwt);
  if (error == 0)
    error = jwt_add_grants_json(jwt, text);
  if (error == 0)
    error = jwt_set_alg(jwt, alg, (const unsigned char *)key->bytes, (int)key->len);
  if (error == 0)
    token = jwt_encode_str(jwt);
  if (token == NULL)
    complain("the token cannot be signed: the key does not fit the algorithm %s", jwt_alg_str(alg));
  jwt_free(jwt);
  free(text);
  return token;
}

static int make_token(const struct options *o) {
  jwt_alg_t alg;
  if (o->key_file == NULL) {
    complain("token needs --key-file, or --api-key for a key of a server");
    return EXIT_USAGE;
  }
  if (!check_rights(o) || !check_name("--sub", o->sub) || !check_name("--sid", o->sid) ||
      !find_algorithm(o->algorithm, &alg))
    return EXIT_USAGE;
  unsigned wide = SCOPE_GATEWAY | SCOPE_ADMIN;
  if (o->sub == NULL && (scope_bits(o->scope) & (SCOPE_WRITE | wide)) == SCOPE_WRITE) {
    complain("presence:write is for the token's own user: say who with --sub");
    return EXIT_USAGE;
  }
  struct key_file key = {0};
  json_t *claims = read_key(o, alg, &key) ? make_claims(o, time(NULL)) : NULL;
  char *token = claims == NULL ? NULL : sign(claims, alg, &key);
  if (token != NULL && o->json) {
    json_t *out = json_pack("{s:s, s:O}", "token", token, "claims", claims);
    print_json(out);
    json_decref(out);
  } else if (token != NULL) {
    puts(token);
  }
  int code = token == NULL ? EXIT_USAGE : EXIT_DONE;
  free(token);
  json_decref(claims);
  key_file_free(&key);
  return code;
}

// -- an API key ----------------------------------------------------------------------------------------------------

static bool random_key(char key[API_KEY_SIZE]) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  unsigned char bytes[API_KEY_BYTES];
  if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
    return false;
  char *out = stpcpy(key, API_KEY_PREFIX);
  unsigned held = 0, n_bits = 0;
  for (size_t i = 0; i < sizeof bytes; i++) {
    held = held << 8 | bytes[i];
    for (n_bits += 8; n_bits >= 6; n_bits -= 6)
      *out++ = digits[held >> (n_bits - 6) & 63];
  }
  *out++ = digits[held << (6 - n_bits) & 63];
  *out = '\0';
  explicit_bzero(bytes, sizeof bytes);
  return true;
}

static bool hash_hex(const char *key, char hex[2 * SHA256_BYTES + 1]) {
  unsigned char digest[SHA256_BYTES];
  if (gnutls_hash_fast(GNUTLS_DIG_SHA256, key, strlen(key), digest) != 0)
    return false;
  for (size_t i = 0; i < sizeof digest; i++)
    (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
  return true;
}

/// Whether the words fit into a line of the file.
static bool check_words(const struct options *o) {
  if (o->key_file != NULL || o->algorithm != NULL || o->sub != NULL || o->sid != NULL || o->audience != NULL ||
      o->issuer != NULL) {
    complain("--api-key goes with --scope and --rooms alone");
    return false;
  }
  if (!check_rights(o) || !check_name("--api-key", o->api_key))
    return false;
  if (strpbrk(o->api_key, " \t\r\n") != NULL || o->api_key[0] == '#' || strpbrk(o->rooms, " \t\r\n") != NULL) {
    complain("a line of api_keys_file is split at blanks: neither the name nor a room may have one");
    return false;
  }
  return true;
}

/// The line of api_keys_file for a key that is made here. @return NULL when something failed (said)
static json_t *make_line(const struct options *o, const char *scope, const json_t *rooms) {
  char key[API_KEY_SIZE], hex[2 * SHA256_BYTES + 1];
  char *joined = join_rooms(rooms);
  json_t *out = NULL;
  if (joined == NULL)
    complain("memory ran out");
  else if (!random_key(key) || !hash_hex(key, hex))
    complain("there are no random numbers to be had");
  else
    out = json_pack("{s:s, s:o}", "key", key, "line", json_sprintf("%s %s %s %s", o->api_key, hex, scope, joined));
  explicit_bzero(key, sizeof key);
  free(joined);
  return out;
}

static int make_api_key(const struct options *o) {
  if (!check_words(o))
    return EXIT_USAGE;
  char *scope = scope_words(o->scope, ',');
  json_t *rooms = scope == NULL ? NULL : room_list(o->rooms);
  json_t *out = rooms == NULL ? NULL : make_line(o, scope, rooms);
  int code = rooms == NULL ? EXIT_USAGE : out == NULL ? EXIT_REFUSED : EXIT_DONE;
  if (out != NULL && o->json) {
    print_json(out);
  } else if (out != NULL) {
    printf("%s\n%s\n", text_of(out, "key", ""), text_of(out, "line", ""));
    fputs("The first line is the key: give it to whoever calls, it is stored nowhere. The second belongs into the\n"
          "server's api_keys_file, which is read again on SIGHUP.\n",
          stderr);
  }
  json_decref(out);
  json_decref(rooms);
  free(scope);
  return code;
}

int cmd_token(const struct options *options) {
  return options->api_key != NULL ? make_api_key(options) : make_token(options);
}
