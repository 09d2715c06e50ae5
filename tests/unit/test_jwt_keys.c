// SPDX-License-Identifier: Apache-2.0
// Keys for tokens: what a file may hold, lists of files, and errors that name the file and never its content.
#include <setjmp.h> // cmocka.h wants these four in front
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "auth/jwt_keys.h"
#include "auth_fixture.h"
#include "base/util.h"

static char error[CONFIG_ERROR_SIZE];

static void expect_error(const char *paths, enum config_jwt_algorithm algorithm, const char *word, const char *other) {
  error[0] = '\0';
  struct jwt_keys *keys = jwt_keys_load(paths, algorithm, error);
  if (keys != NULL)
    fail_msg("was accepted, but should say '%s'", other);
  if (strstr(error, word) == NULL || strstr(error, other) == NULL || strchr(error, '\n') != NULL)
    fail_msg("'%s' does not say '%s' and '%s'", error, word, other);
}

/// A file with this content is refused, with its path and without its content.
static void expect_refused(const char *content, enum config_jwt_algorithm algorithm, const char *what) {
  struct memory_file f = memory_text(content);
  expect_error(f.path, algorithm, f.path, what);
  if (strlen(content) > 8)
    assert_null(strstr(error, content));
  memory_close(&f);
}

static struct jwt_keys *load(const char *paths, enum config_jwt_algorithm algorithm) {
  struct jwt_keys *keys = jwt_keys_load(paths, algorithm, error);
  if (keys == NULL)
    fail_msg("was refused: %s", error);
  return keys;
}

static void test_secret(void **state) {
  (void)state;
  static const struct {
    const char *bytes;
    size_t len, secret_len;
  } cases[] = {
      {SECRET, 32, 32},
      {SECRET "\n", 33, 32},   // one newline at the end is the editor's
      {SECRET "\n\n", 34, 33}, // but no more than one
      {SECRET "\r\n", 34, 33}, // and nothing else
      {"\n" SECRET, 33, 33},
      {"0123456789abcdef\0"
       "23456789abcdef0\xff",
       33, 33}, // bytes, not text
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct memory_file f = memory_file(cases[i].bytes, cases[i].len);
    struct jwt_keys *keys = load(f.path, CONFIG_JWT_HS256);
    assert_int_equal(keys->n, 1);
    assert_int_equal(keys->algorithm, CONFIG_JWT_HS256);
    assert_int_equal(keys->keys[0].len, cases[i].secret_len);
    assert_memory_equal(keys->keys[0].bytes, cases[i].bytes, cases[i].secret_len);
    jwt_keys_free(keys);
    memory_close(&f);
  }
  expect_refused("", CONFIG_JWT_HS256, "32 bytes");
  expect_refused("hunter2-hunter2", CONFIG_JWT_HS256, "32 bytes");
  expect_refused("0123456789abcdef0123456789abcde\n", CONFIG_JWT_HS256, "32 bytes"); // 31 of them
  jwt_keys_free(NULL);
}

/// The classic confusion: a public key taken as a secret lets everybody sign.
static void test_pem_is_no_secret(void **state) {
  (void)state;
  gnutls_privkey_t key = new_key(GNUTLS_PK_EC, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1));
  char *pem = public_pem(key);
  expect_refused(pem, CONFIG_JWT_HS256, "PEM");
  free(pem);
  gnutls_privkey_deinit(key);
}

static void test_public_keys(void **state) {
  (void)state;
  gnutls_privkey_t rsa = new_key(GNUTLS_PK_RSA, 2048), weak = new_key(GNUTLS_PK_RSA, 1024);
  gnutls_privkey_t p256 = new_key(GNUTLS_PK_EC, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1));
  gnutls_privkey_t p384 = new_key(GNUTLS_PK_EC, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP384R1));
  char *rsa_pem = public_pem(rsa), *weak_pem = public_pem(weak), *p256_pem = public_pem(p256);
  char *p384_pem = public_pem(p384);

  struct memory_file f = memory_text(rsa_pem), g = memory_text(p256_pem);
  struct jwt_keys *keys = load(f.path, CONFIG_JWT_RS256);
  assert_int_equal(keys->keys[0].len, strlen(rsa_pem));
  jwt_keys_free(keys);
  jwt_keys_free(load(g.path, CONFIG_JWT_ES256));
  memory_close(&f);
  memory_close(&g);

  expect_refused(weak_pem, CONFIG_JWT_RS256, "2048");
  expect_refused(p256_pem, CONFIG_JWT_RS256, "RSA");
  expect_refused(rsa_pem, CONFIG_JWT_ES256, "P-256");
  expect_refused(p384_pem, CONFIG_JWT_ES256, "P-256");
  expect_refused(SECRET, CONFIG_JWT_RS256, "PEM");
  expect_refused("", CONFIG_JWT_ES256, "PEM");
  expect_refused("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", CONFIG_JWT_RS256, "cannot be read");
  char *twice = NULL;
  assert_true(asprintf(&twice, "%s%s", rsa_pem, rsa_pem) > 0);
  expect_refused(twice, CONFIG_JWT_RS256, "more than one");
  free(twice);

  gnutls_x509_privkey_t x509;
  gnutls_datum_t private;
  assert_int_equal(gnutls_privkey_export_x509(p256, &x509), 0);
  assert_int_equal(gnutls_x509_privkey_export2(x509, GNUTLS_X509_FMT_PEM, &private), 0);
  expect_refused((const char *)private.data, CONFIG_JWT_ES256, "private");
  gnutls_free(private.data);
  gnutls_x509_privkey_deinit(x509);

  free(rsa_pem);
  free(weak_pem);
  free(p256_pem);
  free(p384_pem);
  gnutls_privkey_deinit(rsa);
  gnutls_privkey_deinit(weak);
  gnutls_privkey_deinit(p256);
  gnutls_privkey_deinit(p384);
}

static void test_lists(void **state) {
  (void)state;
  struct memory_file f = memory_text(SECRET), g = memory_text(OTHER_SECRET);
  char paths[1024];
  (void)snprintf(paths, sizeof paths, " %s ,\t%s", f.path, g.path);
  struct jwt_keys *keys = load(paths, CONFIG_JWT_HS256);
  assert_int_equal(keys->n, 2);
  assert_memory_equal(keys->keys[0].bytes, SECRET, 32);
  assert_memory_equal(keys->keys[1].bytes, OTHER_SECRET, 32);
  jwt_keys_free(keys);
  keys = load("", CONFIG_JWT_HS256);
  assert_int_equal(keys->n, 0);
  jwt_keys_free(keys);

  (void)snprintf(paths, sizeof paths, "%s,", f.path);
  expect_error(paths, CONFIG_JWT_HS256, "list", "empty path");
  (void)snprintf(paths, sizeof paths, "%s,,%s", f.path, g.path);
  expect_error(paths, CONFIG_JWT_HS256, "list", "empty path");
  expect_error(" ", CONFIG_JWT_HS256, "list", "empty path");
  (void)snprintf(paths, sizeof paths, "%s,/nonexistent/key", f.path);
  expect_error(paths, CONFIG_JWT_HS256, "/nonexistent/key", "No such file");

  size_t used = 0;
  for (int i = 0; i < JWT_KEYS_MAX; i++)
    used += (size_t)snprintf(paths + used, sizeof paths - used, "%s%s", i == 0 ? "" : ",", f.path);
  keys = load(paths, CONFIG_JWT_HS256);
  assert_int_equal(keys->n, JWT_KEYS_MAX);
  jwt_keys_free(keys);
  (void)snprintf(paths + used, sizeof paths - used, ",%s", f.path);
  expect_error(paths, CONFIG_JWT_HS256, "files", "more than 8");
  memory_close(&f);
  memory_close(&g);
}

static void test_unreadable(void **state) {
  (void)state;
  expect_error("/tmp", CONFIG_JWT_HS256, "/tmp", "regular file");
  expect_error("/dev/zero", CONFIG_JWT_HS256, "/dev/zero", "regular file");
  char *large = calloc(1, 65538);
  memset(large, 'x', 65537);
  expect_refused(large, CONFIG_JWT_HS256, "too long");
  large[65536] = '\0';
  struct memory_file f = memory_text(large);
  jwt_keys_free(load(f.path, CONFIG_JWT_HS256));
  memory_close(&f);
  free(large);
}

static void test_names(void **state) {
  (void)state;
  char dir[] = "/tmp/stillhere-keys-XXXXXX";
  assert_non_null(mkdtemp(dir));
  static const struct {
    const char *file, *name;
  } cases[] = {{"2026-11.pem", "2026-11"}, {"plain", "plain"}, {".hidden", ".hidden"}, {"a.b.key", "a.b"}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", dir, cases[i].file);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(SECRET "\n", f) >= 0);
    assert_int_equal(fclose(f), 0);
    struct jwt_keys *keys = load(path, CONFIG_JWT_HS256);
    assert_string_equal(keys->keys[0].name, cases[i].name);
    jwt_keys_free(keys);
    assert_int_equal(unlink(path), 0);
  }
  assert_int_equal(rmdir(dir), 0);
}

/// What is written to standard error while a file with this mode is loaded.
static void read_log(mode_t mode, char *text, size_t size) {
  struct memory_file f = memory_text(SECRET);
  assert_int_equal(fchmod(f.fd, mode), 0);
  int log = memfd_create("log", MFD_CLOEXEC), saved = dup(STDERR_FILENO);
  assert_true(log >= 0 && saved >= 0);
  assert_true(dup2(log, STDERR_FILENO) >= 0);
  struct jwt_keys *keys = jwt_keys_load(f.path, CONFIG_JWT_HS256, error);
  assert_true(dup2(saved, STDERR_FILENO) >= 0);
  assert_non_null(keys);
  jwt_keys_free(keys);
  ssize_t n = pread(log, text, size - 1, 0);
  assert_true(n >= 0);
  text[n] = '\0';
  assert_int_equal(close(log), 0);
  assert_int_equal(close(saved), 0);
  memory_close(&f);
}

static void test_world_readable(void **state) {
  (void)state;
  char text[1024];
  read_log(0640, text, sizeof text);
  assert_string_equal(text, "");
  read_log(0644, text, sizeof text);
  assert_non_null(strstr(text, "everybody on this host"));
  assert_null(strstr(text, SECRET));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_secret),         cmocka_unit_test(test_pem_is_no_secret),
      cmocka_unit_test(test_public_keys),    cmocka_unit_test(test_lists),
      cmocka_unit_test(test_unreadable),     cmocka_unit_test(test_names),
      cmocka_unit_test(test_world_readable),
  };
  return cmocka_run_group_tests_name("jwt_keys", tests, NULL, NULL);
}
