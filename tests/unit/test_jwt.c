// SPDX-License-Identifier: Apache-2.0
// Tokens: form, header, signature by the right key and algorithm, claims and times.
#include <setjmp.h> // cmocka.h wants these four in front
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "auth/jwt.h"
#include "auth_fixture.h"
#include "base/buf.h"
#include "base/util.h"

#define NOW_S 1800000000
#define NOW_US (NOW_S * INT64_C(1000000))
#define HS256 "{\"alg\":\"HS256\",\"typ\":\"JWT\"}"
#define FULL                                                                                                           \
  "{\"sub\":\"an\",\"sid\":\"tab-1\",\"rooms\":[\"class-7\",\"lab*\"],\"scope\":\"presence:read presence:write\","     \
  "\"exp\":1800000060,\"iat\":1900000000}"

static struct jwt_keys hs_keys;
static struct jwt_rules rules; ///< those of this test
static const struct credential *credential;
static const char *reason;

static int set_up(void **state) {
  (void)state;
  static char name[] = "main", other_name[] = "old", secret[] = SECRET, other[] = OTHER_SECRET;
  hs_keys =
      (struct jwt_keys){.algorithm = CONFIG_JWT_HS256, .n = 2, .keys = {{name, secret, 32}, {other_name, other, 32}}};
  rules = (struct jwt_rules){.audience = "", .issuer = "", .leeway_us = 30000000};
  return 0;
}

/// Frees @a token.
static enum auth_status verify(const struct jwt_keys *keys, char *token, int64_t now_us) {
  reason = NULL;
  enum auth_status status = jwt_verify_token(keys, &rules, token, strlen(token), now_us, &credential, &reason);
  assert_int_equal(status == AUTH_OK, credential != NULL);
  assert_int_equal(status == AUTH_OK, reason == NULL);
  free(token);
  return status;
}

static void expect_good(char *token) {
  if (verify(&hs_keys, token, NOW_US) != AUTH_OK)
    fail_msg("was refused: %s", reason);
  credential_unref(credential);
}

static void expect_bad(char *token, const char *word) {
  enum auth_status status = verify(&hs_keys, token, NOW_US);
  if (status != AUTH_BAD || strstr(reason, word) == NULL)
    fail_msg("%d '%s', not '%s'", (int)status, reason == NULL ? "fine" : reason, word);
}

/// A token with these claims and a good exp.
static char *claims(const char *more) {
  char text[512];
  (void)snprintf(text, sizeof text, "{\"exp\":%d%s%s}", NOW_S + 60, more[0] == '\0' ? "" : ",", more);
  return mint(text);
}

static void test_full(void **state) {
  (void)state;
  assert_int_equal(verify(&hs_keys, mint(FULL), NOW_US), AUTH_OK);
  assert_int_equal(credential->kind, CREDENTIAL_TOKEN);
  assert_string_equal(credential->name, "an");
  assert_string_equal(credential->sub, "an");
  assert_string_equal(credential->sid, "tab-1");
  assert_int_equal(credential->n_rooms, 2);
  assert_string_equal(credential->rooms[0], "class-7");
  assert_string_equal(credential->rooms[1], "lab*");
  assert_int_equal(credential->scopes, SCOPE_READ | SCOPE_WRITE);
  assert_true(credential->expires_us == NOW_US + 60000000);
  credential_unref(credential);
}

/// The example of RFC 7515, A.1, made by others.
static void test_published_vector(void **state) {
  (void)state;
  static char name[] = "rfc";
  static const unsigned char bytes[] = {3,   35,  53, 75,  43,  15, 165, 188, 131, 126, 6,   101, 119, 123, 166, 143,
                                        90,  179, 40, 230, 240, 84, 201, 40,  169, 15,  132, 178, 210, 80,  46,  191,
                                        211, 251, 90, 146, 210, 6,  71,  239, 150, 138, 180, 195, 119, 98,  61,  34,
                                        61,  46,  33, 114, 5,   46, 79,  8,   192, 205, 154, 245, 103, 208, 128, 163};
  static const char token[] = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9."
                              "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0"
                              "cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
  struct jwt_keys keys = {.algorithm = CONFIG_JWT_HS256, .n = 1, .keys = {{name, (char *)bytes, sizeof bytes}}};
  rules.issuer = "joe";
  assert_int_equal(verify(&keys, strdup(token), INT64_C(1300819379000000)), AUTH_OK);
  assert_true(credential->expires_us == INT64_C(1300819380000000));
  assert_null(credential->sub);
  assert_string_equal(credential->name, "");
  assert_false(credential_has(credential, SCOPE_READ)); // neither rooms nor scope
  credential_unref(credential);
  rules.issuer = "jo";
  assert_int_equal(verify(&keys, strdup(token), INT64_C(1300819379000000)), AUTH_BAD);
}

static void test_form(void **state) {
  (void)state;
  static const char *const bad[] = {"", ".", "..", "a", "a.b", "a..b", "...", "a.b.c", "a.b.c.d", "a.b.c.d.e"};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++)
    expect_bad(strdup(bad[i]), "token");
  // Each part by itself, with what libjwt's decoder would skip.
  char *good = mint(FULL), *text = NULL;
  const char *const places[] = {good, strchr(good, '.'), strrchr(good, '.'), good + strlen(good)};
  for (size_t i = 0; i < ARRAY_LEN(places); i++) {
    for (const char *c = "=\n +/\xff"; *c != '\0'; c++) {
      assert_true(asprintf(&text, "%.*s%c%s", (int)(places[i] - good), good, *c, places[i]) > 0);
      expect_bad(text, "token");
    }
  }
  assert_true(asprintf(&text, "%sA", good) > 0); // 44 characters are 33 bytes: not the signature
  expect_bad(text, "");
  // The last character of 32 bytes has two bits that count for nothing; only one way to write them is taken.
  text = strdup(good);
  char *last = text + strlen(text) - 1;
  *last = (char)(*last + 1);
  expect_bad(text, "");
  text = strdup(good);
  *strrchr(text, '.') = '\0';
  expect_bad(text, "three parts");
  text = strdup(good);
  strrchr(text, '.')[1] = '\0';
  expect_bad(text, "signature");
  assert_int_equal(jwt_verify_token(&hs_keys, &rules, "a.b\0.c", 6, NOW_US, &credential, &reason), AUTH_BAD);
  free(good);
}

/// There is one way to write bytes in base64url, also where a signature covers another.
static void test_base64url(void **state) {
  (void)state;
  char *payload = base64url(FULL, strlen(FULL));
  static const struct {
    const char *header;
    bool good;
  } cases[] = {
      {"eyJhbGciOiJIUzI1NiJ9", true},      // {"alg":"HS256"}
      {"eyJhbGciOiJIUzI1NiJ9IA", true},    // with a blank behind it
      {"eyJhbGciOiJIUzI1NiJ9IB", false},   // bits left over
      {"eyJhbGciOiJIUzI1NiJ9A", false},    // a character left over
      {"eyJhbGciOiJIUzI1NiJ9IA==", false}, // padding
      {"eyJhbGciOiJIUzI1NiJ9\n", false},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    size_t size = strlen(cases[i].header) + strlen(payload) + 2;
    char *text = malloc(size);
    assert_non_null(text);
    (void)snprintf(text, size, "%s.%s", cases[i].header, payload);
    char *token = sign_hs256(text, SECRET, 32);
    if (cases[i].good)
      expect_good(token);
    else
      expect_bad(token, "header");
  }
  free(payload);
}

static void test_size(void **state) {
  (void)state;
  struct buf b = {0};
  for (int pad = 6000; pad < 6200; pad++) {
    buf_reset(&b);
    buf_printf(&b, "{\"exp\":%d,\"x\":\"%0*d\"}", NOW_S + 60, pad, 0);
    char *token = mint(b.data);
    if (strlen(token) <= JWT_MAX)
      expect_good(token);
    else
      expect_bad(token, "8192");
  }
  buf_free(&b);
}

static void test_header(void **state) {
  (void)state;
  static const char *const good[] = {
      "{\"alg\":\"HS256\"}", "{\"alg\":\"HS256\",\"typ\":\"jwt\"}", "{\"typ\":\"JWT\",\"alg\":\"HS256\",\"x\":[1]}",
      "{\"alg\":\"HS256\",\"kid\":\"main\"}", "{\"alg\":\"HS256\",\"kid\":\"../../etc/passwd\"}"};
  for (size_t i = 0; i < ARRAY_LEN(good); i++)
    expect_good(mint_hs256(good[i], FULL, SECRET, 32));
  static const struct {
    const char *header, *word;
  } bad[] = {
      {"{\"alg\":\"none\"}", "alg"},
      {"{\"alg\":\"None\"}", "alg"},
      {"{\"alg\":\"hs256\"}", "alg"},
      {"{\"alg\":\"HS384\"}", "alg"},
      {"{\"alg\":\"RS256\"}", "alg"},
      {"{\"alg\":\"HS256 \"}", "alg"},
      {"{\"alg\":\"\"}", "alg"},
      {"{\"alg\":[\"HS256\"]}", "alg"},
      {"{\"alg\":null}", "alg"},
      {"{\"typ\":\"JWT\"}", "alg"},
      {"{\"alg\":\"HS256\",\"alg\":\"HS256\"}", "header"},
      {"{\"alg\":\"none\",\"alg\":\"HS256\"}", "header"},
      {"{\"alg\":\"HS256\",\"typ\":\"JWE\"}", "typ"},
      {"{\"alg\":\"HS256\",\"typ\":\"at+jwt\"}", "typ"},
      {"{\"alg\":\"HS256\",\"typ\":1}", "typ"},
      {"{\"alg\":\"HS256\",\"crit\":[\"exp\"]}", "crit"},
      {"{\"alg\":\"HS256\",\"crit\":null}", "crit"},
      {"{\"alg\":\"HS256\",\"b64\":true}", "b64"},
      {"{\"alg\":\"HS256\",\"kid\":7}", "kid"},
      {"{\"alg\":\"HS256\"} x", "header"},
      {"[\"HS256\"]", "header"},
      {"\"HS256\"", "header"},
      {"{\"alg\":\"HS256\\u0000\"}", "header"},
      {"", "header"},
  };
  for (size_t i = 0; i < ARRAY_LEN(bad); i++)
    expect_bad(mint_hs256(bad[i].header, FULL, SECRET, 32), bad[i].word);
}

static void test_unsigned(void **state) {
  (void)state;
  static const char *const headers[] = {"{\"alg\":\"none\"}", HS256};
  for (size_t i = 0; i < ARRAY_LEN(headers); i++) {
    char *token = NULL, *text = unsigned_token(headers[i], FULL);
    assert_true(asprintf(&token, "%s.", text) > 0);
    expect_bad(token, "signature");
    assert_true(asprintf(&token, "%s.AAAA", text) > 0);
    expect_bad(token, i == 0 ? "alg" : "signed");
    free(text);
  }
}

static void test_signature(void **state) {
  (void)state;
  expect_good(mint_hs256(HS256, FULL, OTHER_SECRET, 32)); // the second key, while one is replaced
  expect_bad(mint_hs256(HS256, FULL, "0123456789abcdef0123456789abcdeF", 32), "signed");
  expect_bad(mint_hs256(HS256, FULL, SECRET "\n", 33), "signed");
  expect_bad(mint_hs256(HS256, FULL, "", 0), "signed");
  // Any one bit of the token.
  char *good = mint(FULL);
  size_t len = strlen(good);
  for (size_t i = 0; i < len; i += 7) {
    char *token = strdup(good);
    token[i] = token[i] == 'A' ? 'B' : 'A';
    if (strcmp(token, good) != 0 && verify(&hs_keys, token, NOW_US) != AUTH_BAD)
      fail_msg("byte %zu can be changed", i);
  }
  free(good);
  struct jwt_keys none = {.algorithm = CONFIG_JWT_HS256};
  assert_int_equal(verify(&none, mint(FULL), NOW_US), AUTH_BAD);
  assert_non_null(strstr(reason, "no key"));
}

/// A `kid` that is known chooses; one that is not leaves all keys to be tried.
static void test_kid(void **state) {
  (void)state;
  expect_good(mint_hs256("{\"alg\":\"HS256\",\"kid\":\"old\"}", FULL, OTHER_SECRET, 32));
  expect_bad(mint_hs256("{\"alg\":\"HS256\",\"kid\":\"old\"}", FULL, SECRET, 32), "signed");
  expect_good(mint_hs256("{\"alg\":\"HS256\",\"kid\":\"unknown\"}", FULL, OTHER_SECRET, 32));
  expect_bad(mint_hs256("{\"alg\":\"HS256\",\"kid\":\"unknown\"}", FULL, "x", 1), "signed");
  // Of several files with one name each is tried.
  hs_keys.keys[1].name = hs_keys.keys[0].name;
  expect_good(mint_hs256("{\"alg\":\"HS256\",\"kid\":\"main\"}", FULL, OTHER_SECRET, 32));
}

static void check_public(enum config_jwt_algorithm algorithm, const char *header, gnutls_privkey_t key,
                         gnutls_privkey_t stranger) {
  static char name[] = "public";
  char *pem = public_pem(key);
  struct jwt_keys keys = {.algorithm = algorithm, .n = 1, .keys = {{name, pem, strlen(pem)}}};
  if (verify(&keys, mint_with(header, FULL, key), NOW_US) != AUTH_OK)
    fail_msg("was refused: %s", reason);
  assert_string_equal(credential->sub, "an");
  credential_unref(credential);
  assert_int_equal(verify(&keys, mint_with(header, FULL, stranger), NOW_US), AUTH_BAD);
  // Whoever knows the public key signs with it as if it were a secret, with either algorithm's name.
  assert_int_equal(verify(&keys, mint_hs256(HS256, FULL, pem, strlen(pem)), NOW_US), AUTH_BAD);
  assert_int_equal(verify(&keys, mint_hs256(header, FULL, pem, strlen(pem)), NOW_US), AUTH_BAD);
  // Forms that should be no signature.
  static const char zeros[256];
  const size_t sizes[] = {1, 63, 64, 65, 256};
  for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
    assert_int_equal(verify(&keys, with_signature(unsigned_token(header, FULL), zeros, sizes[i]), NOW_US), AUTH_BAD);
  free(pem);
}

static void test_public_keys(void **state) {
  (void)state;
  unsigned p256 = GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1);
  gnutls_privkey_t rsa = new_key(GNUTLS_PK_RSA, 2048), rsa2 = new_key(GNUTLS_PK_RSA, 2048);
  gnutls_privkey_t ec = new_key(GNUTLS_PK_EC, p256), ec2 = new_key(GNUTLS_PK_EC, p256);
  check_public(CONFIG_JWT_RS256, "{\"alg\":\"RS256\"}", rsa, rsa2);
  check_public(CONFIG_JWT_RS256, "{\"alg\":\"RS256\"}", rsa, ec);
  for (int i = 0; i < 8; i++) // also with an r or an s that begins with zeros, now and then
    check_public(CONFIG_JWT_ES256, "{\"alg\":\"ES256\",\"typ\":\"JWT\"}", ec, ec2);
  gnutls_privkey_deinit(rsa);
  gnutls_privkey_deinit(rsa2);
  gnutls_privkey_deinit(ec);
  gnutls_privkey_deinit(ec2);
}

static void test_payload(void **state) {
  (void)state;
  expect_bad(mint("{\"exp\":1800000060,\"exp\":1800000061}"), "twice");
  expect_bad(mint("{\"exp\":1800000060,\"sub\":\"an\",\"sub\":\"bo\"}"), "twice");
  expect_bad(mint("{\"exp\":1800000060,\"x\":{\"a\":1,\"a\":2}}"), "twice");
  expect_bad(mint("[1]"), "");
  expect_bad(mint("null"), "");
  expect_bad(mint(""), "");
  expect_bad(mint("{\"exp\":1800000060}{}"), "");
  expect_bad(mint("{\"exp\":1800000060,\"sub\":\"a\\u0000b\"}"), "");
  expect_bad(mint("{\"exp\":1800000060,\"sub\":\"\xff\"}"), "");
}

static void test_claims(void **state) {
  (void)state;
  static const char *const good[] = {
      "",
      "\"sub\":\"a b/:é\"",
      "\"rooms\":[]",
      "\"rooms\":[\"*\",\"a*\",\"b\"]",
      "\"scope\":\"\"",
      "\"scope\":\"  openid   presence:read \"",
      "\"iat\":\"whenever\"", // not looked at, like what is unknown
      "\"iat\":1900000000",
      "\"aud\":7,\"iss\":[],\"jti\":\"x\",\"x\":{\"y\":null}",
  };
  for (size_t i = 0; i < ARRAY_LEN(good); i++)
    expect_good(claims(good[i]));
  static const struct {
    const char *claims, *word;
  } bad[] = {
      {"\"sub\":7", "sub"},
      {"\"sub\":null", "sub"},
      {"\"sub\":\"\"", "sub"},
      {"\"sub\":\"..\"", "sub"},
      {"\"sub\":\"a\\n\"", "sub"},
      {"\"sub\":[\"an\"]", "sub"},
      {"\"sid\":\"\"", "sid"},
      {"\"sid\":1", "sid"},
      {"\"rooms\":\"*\"", "rooms"},
      {"\"rooms\":{\"a\":1}", "rooms"},
      {"\"rooms\":null", "rooms"},
      {"\"rooms\":[\"a\",7]", "rooms"},
      {"\"rooms\":[\"\"]", "rooms"},
      {"\"rooms\":[\"a*b\"]", "rooms"},
      {"\"rooms\":[\"**\"]", "rooms"},
      {"\"rooms\":[\"a\\u0007\"]", "rooms"},
      {"\"scope\":[\"admin\"]", "scope"},
      {"\"scope\":null", "scope"},
  };
  for (size_t i = 0; i < ARRAY_LEN(bad); i++)
    expect_bad(claims(bad[i].claims), bad[i].word);
}

static void test_scope_words(void **state) {
  (void)state;
  static const struct {
    const char *claim;
    unsigned scopes;
  } cases[] = {
      {"\"scope\":\"openid  presence:read members:write\"", SCOPE_READ | SCOPE_MEMBERS},
      {"\"scope\":\"gateway\"", SCOPE_GATEWAY},
      {"\"scope\":\"admin admin\"", SCOPE_ADMIN},
      {"\"scope\":\"presence:read,admin\"", 0}, // one word, and an unknown one
      {"\"scope\":\"Admin\"", 0},
      {"\"scope\":\"presence:read\\tadmin\"", 0},
      {"\"scp\":\"admin\"", 0},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    assert_int_equal(verify(&hs_keys, claims(cases[i].claim), NOW_US), AUTH_OK);
    assert_int_equal(credential->scopes, cases[i].scopes);
    credential_unref(credential);
  }
}

static void test_room_bounds(void **state) {
  (void)state;
  struct buf b = {0};
  for (int n = 1000; n <= 1001; n++) {
    buf_reset(&b);
    buf_printf(&b, "{\"exp\":%d,\"rooms\":[\"a\"", NOW_S + 60);
    for (int i = 1; i < n; i++)
      buf_puts(&b, ",\"a\"");
    buf_puts(&b, "]}");
    if (n == 1000)
      expect_good(mint(b.data));
    else
      expect_bad(mint(b.data), "rooms");
  }
  buf_reset(&b);
  buf_printf(&b, "{\"exp\":%d,\"sub\":\"%0129d\"}", NOW_S + 60, 0);
  expect_bad(mint(b.data), "sub");
  buf_free(&b);
}

static void test_origin(void **state) {
  (void)state;
  rules.audience = "stillhere";
  expect_good(claims("\"aud\":\"stillhere\""));
  expect_good(claims("\"aud\":[\"x\",\"stillhere\",7]"));
  expect_bad(claims(""), "aud");
  expect_bad(claims("\"aud\":\"stillhere \""), "aud");
  expect_bad(claims("\"aud\":[]"), "aud");
  expect_bad(claims("\"aud\":[[\"stillhere\"]]"), "aud");
  expect_bad(claims("\"aud\":{\"stillhere\":1}"), "aud");
  rules.issuer = "https://id.example.org";
  expect_good(claims("\"aud\":\"stillhere\",\"iss\":\"https://id.example.org\""));
  expect_bad(claims("\"aud\":\"stillhere\",\"iss\":\"https://id.example.org/\""), "iss");
  expect_bad(claims("\"aud\":\"stillhere\",\"iss\":[\"https://id.example.org\"]"), "iss");
  expect_bad(claims("\"aud\":\"stillhere\""), "iss");
}

static enum auth_status status_of(const char *payload, int64_t now_us) {
  enum auth_status status = verify(&hs_keys, mint(payload), now_us);
  credential_unref(credential);
  return status;
}

static void test_exp(void **state) {
  (void)state;
  static const char *const bad[] = {
      "{}",
      "{\"exp\":\"1800000060\"}",
      "{\"exp\":null}",
      "{\"exp\":true}",
      "{\"exp\":[1800000060]}",
      "{\"exp\":1e400}",
      "{\"exp\":99999999999999999999}",
      "{\"exp\":9223372036854775807}",
      "{\"exp\":1e300}",
      "{\"exp\":2115619201}",    // ten years and a second ahead
      "{\"exp\":1800000060000}", // milliseconds
      "{\"EXP\":1800000060}",
  };
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    if (status_of(bad[i], NOW_US) != AUTH_BAD)
      fail_msg("not bad: %s", bad[i]);
  }
  assert_int_equal(status_of("{\"exp\":2115619200}", NOW_US), AUTH_OK);
  assert_int_equal(status_of("{\"exp\":1800000060.5}", NOW_US), AUTH_OK);
  // The leeway is 30 s, and its end is the end.
  assert_int_equal(status_of("{\"exp\":1800000000}", NOW_US + 29999999), AUTH_OK);
  assert_int_equal(status_of("{\"exp\":1800000000}", NOW_US + 30000000), AUTH_EXPIRED);
  assert_int_equal(status_of("{\"exp\":1800000000.5}", NOW_US + 30499999), AUTH_OK);
  assert_int_equal(status_of("{\"exp\":1800000000.5}", NOW_US + 30500000), AUTH_EXPIRED);
  static const char *const old[] = {"{\"exp\":0}", "{\"exp\":-1}", "{\"exp\":-1e300}", "{\"exp\":1}",
                                    "{\"exp\":-9223372036854775808}"};
  for (size_t i = 0; i < ARRAY_LEN(old); i++)
    assert_int_equal(status_of(old[i], NOW_US), AUTH_EXPIRED);
  rules.leeway_us = 0;
  assert_int_equal(status_of("{\"exp\":1800000000}", NOW_US - 1), AUTH_OK);
  assert_int_equal(status_of("{\"exp\":1800000000}", NOW_US), AUTH_EXPIRED);
  // Whoever cannot sign does not learn that a token was once good.
  char *forged = mint_hs256(HS256, "{\"exp\":1}", "x", 1);
  assert_int_equal(verify(&hs_keys, forged, NOW_US), AUTH_BAD);
}

static void test_nbf(void **state) {
  (void)state;
  expect_good(claims("\"nbf\":1799999999"));
  expect_good(claims("\"nbf\":1800000010"));
  expect_good(claims("\"nbf\":1800000030"));
  expect_bad(claims("\"nbf\":1800000031"), "nbf");
  expect_bad(claims("\"nbf\":1800000300"), "nbf");
  expect_bad(claims("\"nbf\":9223372036854775807"), "nbf");
  expect_bad(claims("\"nbf\":\"1\""), "nbf");
  expect_bad(claims("\"nbf\":null"), "nbf");
  expect_good(claims("\"nbf\":-5"));
  expect_good(claims("\"nbf\":1800000029.5"));
}

/// Before the database's clock is known nothing is accepted, but what is bad is bad already.
static void test_no_clock(void **state) {
  (void)state;
  assert_int_equal(status_of(FULL, 0), AUTH_LATER);
  assert_int_equal(status_of("{\"exp\":1}", 0), AUTH_LATER);
  assert_int_equal(status_of("{}", 0), AUTH_BAD);
  assert_int_equal(verify(&hs_keys, mint_hs256(HS256, FULL, "x", 1), 0), AUTH_BAD);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_full, set_up),        cmocka_unit_test_setup(test_published_vector, set_up),
      cmocka_unit_test_setup(test_form, set_up),        cmocka_unit_test_setup(test_base64url, set_up),
      cmocka_unit_test_setup(test_size, set_up),        cmocka_unit_test_setup(test_header, set_up),
      cmocka_unit_test_setup(test_unsigned, set_up),    cmocka_unit_test_setup(test_signature, set_up),
      cmocka_unit_test_setup(test_kid, set_up),         cmocka_unit_test_setup(test_public_keys, set_up),
      cmocka_unit_test_setup(test_payload, set_up),     cmocka_unit_test_setup(test_claims, set_up),
      cmocka_unit_test_setup(test_scope_words, set_up), cmocka_unit_test_setup(test_room_bounds, set_up),
      cmocka_unit_test_setup(test_origin, set_up),      cmocka_unit_test_setup(test_exp, set_up),
      cmocka_unit_test_setup(test_nbf, set_up),         cmocka_unit_test_setup(test_no_clock, set_up),
  };
  return cmocka_run_group_tests_name("jwt", tests, NULL, NULL);
}
