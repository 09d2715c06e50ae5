// SPDX-License-Identifier: Apache-2.0
/// @file
/// For tests of what callers show: files in memory, and tokens minted by GnuTLS, not by the library that verifies them.
#ifndef SH_TESTS_AUTH_FIXTURE_H
#define SH_TESTS_AUTH_FIXTURE_H

#include <gnutls/abstract.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET "0123456789abcdef0123456789abcdef"
#define OTHER_SECRET "fedcba9876543210fedcba9876543210"

/// A file in memory that has a path.
struct memory_file {
  int fd;
  char path[64];
};

static inline struct memory_file memory_file(const void *bytes, size_t len) {
  struct memory_file f = {.fd = memfd_create("key", MFD_CLOEXEC)};
  assert_true(f.fd >= 0);
  assert_int_equal(fchmod(f.fd, 0600), 0);
  assert_int_equal(write(f.fd, bytes, len), (ssize_t)len);
  (void)snprintf(f.path, sizeof f.path, "/proc/self/fd/%d", f.fd);
  return f;
}

static inline struct memory_file memory_text(const char *text) {
  return memory_file(text, strlen(text));
}

static inline void memory_rewrite(struct memory_file *f, const char *text) {
  assert_int_equal(ftruncate(f->fd, 0), 0);
  assert_int_equal(pwrite(f->fd, text, strlen(text), 0), (ssize_t)strlen(text));
}

static inline void memory_close(struct memory_file *f) {
  assert_int_equal(close(f->fd), 0);
}

// -- tokens --------------------------------------------------------------------------------------------------------

/// @return the text, the caller's
static inline char *base64url(const void *bytes, size_t len) {
  static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const unsigned char *in = bytes;
  char *out = calloc(1, len * 4 / 3 + 4), *at = out;
  assert_non_null(out);
  unsigned bits = 0, n = 0;
  for (size_t i = 0; i < len; i++) {
    bits = bits << 8 | in[i];
    for (n += 8; n >= 6; n -= 6)
      *at++ = alphabet[bits >> (n - 6) & 63];
    bits &= (1U << n) - 1;
  }
  if (n > 0)
    *at++ = alphabet[bits << (6 - n) & 63];
  return out;
}

/// @return header.payload, the caller's
static inline char *unsigned_token(const char *header, const char *payload) {
  char *h = base64url(header, strlen(header)), *p = base64url(payload, strlen(payload)), *token = NULL;
  assert_true(asprintf(&token, "%s.%s", h, p) > 0);
  free(h);
  free(p);
  return token;
}

/// Frees @a text. @return the token, the caller's
static inline char *with_signature(char *text, const void *signature, size_t len) {
  char *s = base64url(signature, len);
  size_t size = strlen(text) + strlen(s) + 2;
  char *token = malloc(size);
  assert_non_null(token);
  (void)snprintf(token, size, "%s.%s", text, s);
  free(s);
  free(text);
  return token;
}

/// Signs header.payload, which it frees, by HMAC-SHA-256. @return the token, the caller's
static inline char *sign_hs256(char *text, const void *secret, size_t secret_len) {
  unsigned char mac[32];
  assert_int_equal(gnutls_hmac_fast(GNUTLS_MAC_SHA256, secret, secret_len, text, strlen(text), mac), 0);
  return with_signature(text, mac, sizeof mac);
}

/// Signed by HMAC-SHA-256, whatever the header says.
static inline char *mint_hs256(const char *header, const char *payload, const void *secret, size_t secret_len) {
  return sign_hs256(unsigned_token(header, payload), secret, secret_len);
}

static inline char *mint(const char *payload) {
  return mint_hs256("{\"alg\":\"HS256\",\"typ\":\"JWT\"}", payload, SECRET, strlen(SECRET));
}

/// Signed with SHA-256 by an RSA or P-256 key.
static inline char *mint_with(const char *header, const char *payload, gnutls_privkey_t key) {
  char *text = unsigned_token(header, payload);
  gnutls_datum_t data = {.data = (unsigned char *)text, .size = (unsigned)strlen(text)}, signature = {0};
  bool rsa = gnutls_privkey_get_pk_algorithm(key, NULL) == GNUTLS_PK_RSA;
  assert_int_equal(
      gnutls_privkey_sign_data2(key, rsa ? GNUTLS_SIGN_RSA_SHA256 : GNUTLS_SIGN_ECDSA_SHA256, 0, &data, &signature), 0);
  char *token;
  if (rsa) {
    token = with_signature(text, signature.data, signature.size);
  } else {
    gnutls_datum_t r, s;
    assert_int_equal(gnutls_decode_rs_value(&signature, &r, &s), 0);
    unsigned char raw[64] = {0};
    size_t r_skip = r.size > 32 ? r.size - 32 : 0, s_skip = s.size > 32 ? s.size - 32 : 0;
    memcpy(raw + 32 - (r.size - r_skip), r.data + r_skip, r.size - r_skip);
    memcpy(raw + 64 - (s.size - s_skip), s.data + s_skip, s.size - s_skip);
    gnutls_free(r.data);
    gnutls_free(s.data);
    token = with_signature(text, raw, sizeof raw);
  }
  gnutls_free(signature.data);
  return token;
}

/// A new private key. @param bits for EC: GNUTLS_CURVE_TO_BITS(curve)
static inline gnutls_privkey_t new_key(gnutls_pk_algorithm_t algorithm, unsigned bits) {
  gnutls_privkey_t key;
  assert_int_equal(gnutls_privkey_init(&key), 0);
  assert_int_equal(gnutls_privkey_generate(key, algorithm, bits, 0), 0);
  return key;
}

/// Its public half in PEM, the caller's (free).
static inline char *public_pem(gnutls_privkey_t key) {
  gnutls_pubkey_t public;
  gnutls_datum_t pem;
  assert_int_equal(gnutls_pubkey_init(&public), 0);
  assert_int_equal(gnutls_pubkey_import_privkey(public, key, 0, 0), 0);
  assert_int_equal(gnutls_pubkey_export2(public, GNUTLS_X509_FMT_PEM, &pem), 0);
  char *text = strndup((const char *)pem.data, pem.size);
  gnutls_free(pem.data);
  gnutls_pubkey_deinit(public);
  assert_non_null(text);
  return text;
}

#endif
