// SPDX-License-Identifier: Apache-2.0
// The authority: the Authorization header, tokens remembered until they expire or keys change, and reloading.
#include <setjmp.h> // cmocka.h wants these four in front
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "auth/authority.h"
#include "auth/token_cache.h"
#include "auth_fixture.h"
#include "base/clock.h"
#include "base/util.h"

#define NOW_S INT64_C(1800000000)
#define API_KEYS "dashboard ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad presence:read *\n" // "abc"

static struct memory_file secret_file, keys_file;
static struct config config;
static struct authority *authority;
static const struct credential *credential;
static const char *reason;

/// The database's clock from here on.
static void set_clock(int64_t unix_s) {
  int64_t now = clock_mono_us();
  clock_db_sample(unix_s * 1000000, now, now);
}

static int set_up(void **state) {
  (void)state;
  secret_file = memory_text(SECRET);
  keys_file = memory_text(API_KEYS);
  static char empty[] = "";
  config = (struct config){.auth = CONFIG_AUTH_JWT,
                           .jwt_algorithm = CONFIG_JWT_HS256,
                           .jwt_key_file = secret_file.path,
                           .jwt_audience = empty,
                           .jwt_issuer = empty,
                           .jwt_leeway_ms = 0,
                           .api_keys_file = keys_file.path};
  authority = authority_new(&config);
  return authority == NULL ? -1 : 0;
}

static int tear_down(void **state) {
  (void)state;
  authority_free(authority);
  memory_close(&secret_file);
  memory_close(&keys_file);
  return 0;
}

static enum auth_status check_bytes(const char *value, size_t len) {
  reason = NULL;
  enum auth_status status = authority_check(authority, value, len, &credential, &reason);
  assert_int_equal(status == AUTH_OK, credential != NULL);
  assert_int_equal(status == AUTH_OK, reason == NULL);
  return status;
}

/// Judges a header and gives the credential back.
static enum auth_status check(const char *value) {
  enum auth_status status = check_bytes(value, value == NULL ? 0 : strlen(value));
  credential_unref(credential);
  return status;
}

/// Frees @a token.
static enum auth_status check_token(char *token) {
  char *value = NULL;
  assert_true(asprintf(&value, "Bearer %s", token) > 0);
  enum auth_status status = check(value);
  free(value);
  free(token);
  return status;
}

static char *token_until(int64_t exp_s) {
  char payload[128];
  (void)snprintf(payload, sizeof payload, "{\"sub\":\"an\",\"rooms\":[\"*\"],\"scope\":\"admin\",\"exp\":%lld}",
                 (long long)exp_s);
  return mint(payload);
}

/// Runs first: nothing has told the clock yet.
static void test_before_the_clock(void **state) {
  (void)state;
  assert_int_equal(check_token(token_until(NOW_S + 60)), AUTH_LATER);
  assert_int_equal(check("Bearer abc"), AUTH_OK); // an API key has no times
  assert_int_equal(check("Bearer abd"), AUTH_BAD);
  set_clock(NOW_S);
  assert_int_equal(check_token(token_until(NOW_S + 60)), AUTH_OK); // the refusal was not remembered
}

static void test_header(void **state) {
  (void)state;
  assert_int_equal(check(NULL), AUTH_MISSING);
  assert_int_equal(check(""), AUTH_MISSING);
  assert_int_equal(check(" \t"), AUTH_MISSING);
  static const char *const good[] = {"Bearer abc",   "bearer abc",  "BEARER abc",   "bEaReR abc",
                                     "Bearer   abc", "Bearer\tabc", " Bearer abc ", "Bearer abc\t "};
  for (size_t i = 0; i < ARRAY_LEN(good); i++) {
    if (check(good[i]) != AUTH_OK)
      fail_msg("'%s': %s", good[i], reason);
  }
  static const char *const bad[] = {"Bearer",         "Bearer ",      "abc",
                                    "Basic abc",      "Basic YTpi",   "Bearerabc",
                                    "Bearer: abc",    "Bearer abc,",  "Bearer,abc",
                                    "Bearer abc abc", "Bearer abc;",  "Bearer \"abc\"",
                                    "Bearer abcd",    "Bearer ab",    "Bearer ABC",
                                    "Bearer =",       "Bearer abc\n", "Token abc",
                                    "Bearer a\xff",   "Digest abc",   "Bearer abc, Bearer abc"};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    if (check(bad[i]) != AUTH_BAD)
      fail_msg("'%s' is not bad", bad[i]);
    assert_null(strstr(reason, "abc"));
  }
  assert_int_equal(check_bytes("Bearer abc\0", 11), AUTH_BAD);
  assert_int_equal(check_bytes("Bearer ab\0c", 11), AUTH_BAD);
  assert_int_equal(check_bytes("Bearer abcd", 10), AUTH_OK); // no further than it is long
  credential_unref(credential);
}

static void test_token(void **state) {
  (void)state;
  char *token = token_until(NOW_S + 60), *value = NULL;
  assert_true(asprintf(&value, "Bearer %s", token) > 0);
  assert_int_equal(check_bytes(value, strlen(value)), AUTH_OK);
  assert_string_equal(credential->sub, "an");
  const struct credential *first = credential;
  assert_int_equal(check_bytes(value, strlen(value)), AUTH_OK);
  assert_ptr_equal(credential, first); // remembered
  credential_unref(credential);
  credential_unref(first);
  value[strlen(value) - 2] ^= 1;
  assert_int_equal(check(value), AUTH_BAD);
  free(value);
  free(token);
  assert_int_equal(check("Bearer a.b.c"), AUTH_BAD);
  assert_int_equal(check("Bearer a.b"), AUTH_BAD);
  char large[9000] = "Bearer ";
  memset(large + 7, 'a', sizeof large - 8);
  assert_int_equal(check(large), AUTH_BAD);
  large[20] = large[30] = '.';
  assert_int_equal(check(large), AUTH_BAD);
  assert_non_null(strstr(reason, "8192"));
}

static void test_remembered_until_it_expires(void **state) {
  (void)state;
  int64_t now_s = clock_db_us() / 1000000;
  char *value = NULL, *token = token_until(now_s + 5);
  assert_true(asprintf(&value, "Bearer %s", token) > 0);
  free(token);
  assert_int_equal(check(value), AUTH_OK);
  assert_int_equal(check(value), AUTH_OK);
  set_clock(now_s + 10);
  assert_int_equal(check(value), AUTH_EXPIRED);
  assert_int_equal(check(value), AUTH_EXPIRED);
  free(value);
}

static void test_reload(void **state) {
  (void)state;
  set_clock(NOW_S + 20);
  char *value = NULL, *token = token_until(NOW_S + 3600);
  assert_true(asprintf(&value, "Bearer %s", token) > 0);
  free(token);
  assert_int_equal(check(value), AUTH_OK);
  unsigned generation = authority_generation(authority);
  const struct credential *held;
  assert_int_equal(authority_check(authority, value, strlen(value), &held, &reason), AUTH_OK);

  // Files that cannot be used change nothing.
  memory_rewrite(&secret_file, "short");
  authority_reload(authority, &config);
  memory_rewrite(&secret_file, OTHER_SECRET);
  memory_rewrite(&keys_file, "nonsense\n");
  authority_reload(authority, &config);
  struct config none = config;
  none.auth = CONFIG_AUTH_NONE;
  memory_rewrite(&keys_file, "");
  authority_reload(authority, &none);
  assert_int_equal(authority_generation(authority), generation);
  assert_int_equal(check(value), AUTH_OK);
  assert_int_equal(check("Bearer abc"), AUTH_OK);

  // Another secret, and no API key any more: what was remembered is forgotten.
  authority_reload(authority, &config);
  assert_int_equal(authority_generation(authority), generation + 1);
  assert_int_equal(check(value), AUTH_BAD);
  assert_int_equal(check("Bearer abc"), AUTH_BAD);
  assert_string_equal(held->sub, "an"); // whoever holds it still may look at it
  credential_unref(held);

  memory_rewrite(&secret_file, SECRET);
  authority_reload(authority, &config);
  assert_int_equal(check(value), AUTH_OK);
  free(value);
}

static void test_reload_takes_the_list_anew(void **state) {
  (void)state;
  set_clock(NOW_S + 20);
  struct memory_file other = memory_text(OTHER_SECRET);
  char list[160], payload[] = "{\"exp\":1800000600}";
  (void)snprintf(list, sizeof list, "%s,%s", secret_file.path, other.path);
  assert_int_equal(check_token(mint_hs256("{\"alg\":\"HS256\"}", payload, OTHER_SECRET, 32)), AUTH_BAD);
  struct config fresh = config;
  fresh.jwt_key_file = list;
  authority_reload(authority, &fresh);
  assert_int_equal(check_token(mint_hs256("{\"alg\":\"HS256\"}", payload, OTHER_SECRET, 32)), AUTH_OK);
  assert_int_equal(check_token(mint(payload)), AUTH_OK);
  memory_close(&other);
}

static void test_start_fails(void **state) {
  (void)state;
  char nowhere[] = "/nonexistent/key";
  struct config bad = config;
  bad.jwt_key_file = nowhere;
  assert_null(authority_new(&bad));
  bad = config;
  bad.api_keys_file = nowhere;
  assert_null(authority_new(&bad));
  bad = config;
  bad.jwt_algorithm = CONFIG_JWT_RS256;
  assert_null(authority_new(&bad));
  authority_free(NULL);
}

/// Without any key, and with auth=none, nobody is somebody.
static void test_nobody(void **state) {
  (void)state;
  char empty[] = "";
  struct config none = config;
  none.auth = CONFIG_AUTH_NONE;
  none.jwt_key_file = none.api_keys_file = empty;
  authority_free(authority);
  authority = authority_new(&none);
  assert_non_null(authority);
  assert_int_equal(check("Bearer abc"), AUTH_BAD);
  assert_int_equal(check_token(token_until(NOW_S + 3600)), AUTH_BAD);
  assert_int_equal(check(NULL), AUTH_MISSING);
  authority_reload(authority, &none);
  assert_int_equal(authority_generation(authority), 0);
}

// -- the cache -----------------------------------------------------------------------------------------------------

/// As uniform as the digests of tokens are.
static void digest_of(unsigned i, unsigned char digest[SHA256_BYTES]) {
  assert_int_equal(gnutls_hash_fast(GNUTLS_DIG_SHA256, &i, sizeof i, digest), 0);
}

static void test_cache(void **state) {
  (void)state;
  struct token_cache *cache = token_cache_new();
  const struct credential *c = credential_new(CREDENTIAL_TOKEN), *other = credential_new(CREDENTIAL_TOKEN);
  unsigned char digest[SHA256_BYTES], near[SHA256_BYTES];
  digest_of(1, digest);
  assert_null(token_cache_find(cache, digest));
  assert_null(token_cache_find(cache, (const unsigned char[SHA256_BYTES]){0}));
  token_cache_add(cache, digest, 100, c);
  token_cache_add(cache, digest, 100, other); // once is enough
  assert_int_equal(token_cache_count(cache), 1);
  assert_ptr_equal(token_cache_find(cache, digest), c);
  // One that differs in the last bit lands in the same place and is another one all the same.
  memcpy(near, digest, sizeof near);
  near[SHA256_BYTES - 1] ^= 1;
  assert_null(token_cache_find(cache, near));
  token_cache_add(cache, near, 100, other);
  assert_ptr_equal(token_cache_find(cache, near), other);
  assert_ptr_equal(token_cache_find(cache, digest), c);
  token_cache_remove(cache, digest);
  token_cache_remove(cache, digest);
  assert_null(token_cache_find(cache, digest));
  assert_ptr_equal(token_cache_find(cache, near), other);
  assert_int_equal(token_cache_count(cache), 1);
  token_cache_free(cache);
  token_cache_free(NULL);
  credential_unref(c);
  credential_unref(other);
}

static void test_cache_bounds(void **state) {
  (void)state;
  struct token_cache *cache = token_cache_new();
  const struct credential *c = credential_new(CREDENTIAL_TOKEN);
  unsigned char digest[SHA256_BYTES];
  for (unsigned i = 0; i < 3 * TOKEN_CACHE_MAX; i++) {
    digest_of(i, digest);
    token_cache_add(cache, digest, 100, c);
    assert_ptr_equal(token_cache_find(cache, digest), c); // the newest is there
  }
  assert_true(token_cache_count(cache) <= TOKEN_CACHE_MAX);
  assert_true(token_cache_count(cache) > TOKEN_CACHE_MAX * 9 / 10);
  digest_of(0, digest);
  assert_null(token_cache_find(cache, digest)); // the oldest are not
  // By bytes: large ones push many out.
  digest_of(1000000, digest);
  token_cache_add(cache, digest, TOKEN_CACHE_BYTES - 1000, c);
  assert_ptr_equal(token_cache_find(cache, digest), c);
  assert_true(token_cache_count(cache) <= 11);
  digest_of(1000001, digest);
  token_cache_add(cache, digest, TOKEN_CACHE_BYTES, c);
  assert_ptr_equal(token_cache_find(cache, digest), c);
  assert_int_equal(token_cache_count(cache), 1);
  digest_of(1000002, digest);
  token_cache_add(cache, digest, TOKEN_CACHE_BYTES + 1, c);
  assert_null(token_cache_find(cache, digest));
  token_cache_free(cache);
  credential_unref(c);
}

// -- threads -------------------------------------------------------------------------------------------------------

static atomic_int faults;
static atomic_bool enough;

static void *ask(void *arg) {
  while (!atomic_load(&enough)) {
    const struct credential *c;
    const char *why;
    if (authority_check(authority, arg, strlen(arg), &c, &why) != AUTH_OK || strcmp(c->sub, "an") != 0)
      atomic_fetch_add(&faults, 1);
    credential_unref(c);
  }
  return NULL;
}

/// Requests go on undisturbed while keys are reloaded.
static void test_threads(void **state) {
  (void)state;
  set_clock(NOW_S + 20);
  char *value = NULL, *token = token_until(NOW_S + 3600);
  assert_true(asprintf(&value, "Bearer %s", token) > 0);
  free(token);
  atomic_store(&enough, false);
  pthread_t threads[3];
  for (size_t i = 0; i < ARRAY_LEN(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, ask, value), 0);
  for (int i = 0; i < 30; i++)
    authority_reload(authority, &config);
  atomic_store(&enough, true);
  for (size_t i = 0; i < ARRAY_LEN(threads); i++)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  assert_int_equal(atomic_load(&faults), 0);
  free(value);
}

#define FLIGHT 400

static char *flight[FLIGHT]; ///< header values

static void *ask_for_each(void *arg) {
  for (size_t i = 0; i < FLIGHT && !atomic_load(&enough); i++) {
    const struct credential *c;
    const char *why;
    (void)authority_check(authority, flight[i], strlen(flight[i]), &c, &why);
    credential_unref(c);
  }
  return arg;
}

/// A token whose verification was under way while its key went is not remembered by those who come later.
static void test_reload_meets_verification(void **state) {
  (void)state;
  set_clock(NOW_S + 20);
  for (int i = 0; i < FLIGHT; i++) {
    char *token = token_until(NOW_S + 1000 + i);
    assert_true(asprintf(&flight[i], "Bearer %s", token) > 0);
    free(token);
  }
  for (int round = 0; round < 20; round++) {
    memory_rewrite(&secret_file, SECRET);
    authority_reload(authority, &config);
    atomic_store(&enough, false);
    pthread_t threads[2];
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
      assert_int_equal(pthread_create(&threads[i], NULL, ask_for_each, NULL), 0);
    memory_rewrite(&secret_file, OTHER_SECRET);
    (void)usleep(1000);
    authority_reload(authority, &config);
    atomic_store(&enough, true);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
      assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (size_t i = 0; i < FLIGHT; i++)
      assert_int_equal(check(flight[i]), AUTH_BAD);
  }
  for (size_t i = 0; i < FLIGHT; i++)
    free(flight[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_before_the_clock, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_header, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_token, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_remembered_until_it_expires, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_reload, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_reload_takes_the_list_anew, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_start_fails, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_nobody, set_up, tear_down),
      cmocka_unit_test(test_cache),
      cmocka_unit_test(test_cache_bounds),
      cmocka_unit_test_setup_teardown(test_threads, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_reload_meets_verification, set_up, tear_down),
  };
  return cmocka_run_group_tests_name("authority", tests, NULL, NULL);
}
