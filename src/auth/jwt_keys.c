// SPDX-License-Identifier: Apache-2.0
#include "auth/jwt_keys.h"

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "auth/key_file.h"
#include "base/log.h"

#define FILE_MAX_BYTES ((size_t)65536)
#define SECRET_MIN_BYTES 32
#define RSA_MIN_BITS 2048
#define BLANKS " \t"

// -- HS256 ---------------------------------------------------------------------------------------------------------

/// A PEM file as a secret is a mistake that would be fatal with a public key: anybody could sign with it.
static const char *secret_problem(struct key_file *file) {
  if (memmem(file->bytes, file->len, "-----BEGIN", 10) != NULL)
    return "looks like a PEM file, but HS256 takes a secret";
  if (file->len > 0 && file->bytes[file->len - 1] == '\n')
    file->bytes[--file->len] = '\0';
  return file->len < SECRET_MIN_BYTES ? "is too short: a secret has at least 32 bytes" : NULL;
}

// -- public keys ---------------------------------------------------------------------------------------------------

static const char *rsa_problem(gnutls_pubkey_t key) {
  unsigned bits = 0;
  if (gnutls_pubkey_get_pk_algorithm(key, &bits) != GNUTLS_PK_RSA)
    return "is not an RSA key, which RS256 takes";
  return bits < RSA_MIN_BITS ? "is too weak: an RSA key has at least 2048 bits" : NULL;
}

static const char *ec_problem(gnutls_pubkey_t key) {
  gnutls_ecc_curve_t curve = GNUTLS_ECC_CURVE_INVALID;
  if (gnutls_pubkey_get_pk_algorithm(key, NULL) != GNUTLS_PK_EC ||
      gnutls_pubkey_export_ecc_raw2(key, &curve, NULL, NULL, 0) != 0 || curve != GNUTLS_ECC_CURVE_SECP256R1)
    return "is not a key on the curve P-256, which ES256 takes";
  return NULL;
}

static const char *imported_problem(gnutls_pubkey_t key, const struct key_file *file,
                                    enum config_jwt_algorithm algorithm) {
  gnutls_datum_t pem = {.data = (unsigned char *)file->bytes, .size = (unsigned)file->len};
  if (gnutls_pubkey_import(key, &pem, GNUTLS_X509_FMT_PEM) != 0)
    return "has a public key that cannot be read";
  return algorithm == CONFIG_JWT_RS256 ? rsa_problem(key) : ec_problem(key);
}

static const char *public_key_problem(const struct key_file *file, enum config_jwt_algorithm algorithm) {
  static const char begin[] = "-----BEGIN PUBLIC KEY-----";
  if (memmem(file->bytes, file->len, "PRIVATE KEY", 11) != NULL)
    return "has a private key; only the public one belongs here";
  const char *first = memchr(file->bytes, '\0', file->len) != NULL ? NULL : strstr(file->bytes, begin);
  if (first == NULL)
    return "has no public key in PEM (-----BEGIN PUBLIC KEY-----)";
  if (strstr(first + 1, "-----BEGIN") != NULL)
    return "has more than one key; give each a file of its own";
  gnutls_pubkey_t key;
  if (gnutls_pubkey_init(&key) != 0)
    return "cannot be checked: out of memory";
  const char *problem = imported_problem(key, file, algorithm);
  gnutls_pubkey_deinit(key);
  return problem;
}

// -- the list ------------------------------------------------------------------------------------------------------

/// The base name without extension; a name that is all extension stays whole.
static char *name_of(const char *path) {
  const char *slash = strrchr(path, '/');
  const char *base = slash != NULL ? slash + 1 : path;
  const char *dot = strrchr(base, '.');
  return dot != NULL && dot != base ? strndup(base, (size_t)(dot - base)) : strdup(base);
}

static bool load_one(struct jwt_keys *keys, const char *path, char *error) {
  struct key_file file;
  if (!key_file_read(&file, path, FILE_MAX_BYTES, error, CONFIG_ERROR_SIZE))
    return false;
  bool secret = keys->algorithm == CONFIG_JWT_HS256;
  const char *problem = secret ? secret_problem(&file) : public_key_problem(&file, keys->algorithm);
  char *name = problem == NULL ? name_of(path) : NULL;
  if (name == NULL) {
    (void)snprintf(error, CONFIG_ERROR_SIZE, "%s: %s", path, problem != NULL ? problem : "out of memory");
    key_file_free(&file);
    return false;
  }
  if (secret && file.world_readable)
    log_warning("%s: everybody on this host may read this secret; chmod o-r would end that", path);
  keys->keys[keys->n++] = (struct jwt_key){.name = name, .bytes = file.bytes, .len = file.len};
  return true;
}

/// @param list is cut to pieces
static bool load_list(struct jwt_keys *keys, char *list, char *error) {
  for (char *next = list; next != NULL;) {
    char *path = strsep(&next, ",");
    path += strspn(path, BLANKS);
    size_t len = strlen(path);
    while (len > 0 && strchr(BLANKS, path[len - 1]) != NULL)
      path[--len] = '\0';
    if (len == 0) {
      (void)snprintf(error, CONFIG_ERROR_SIZE, "there is an empty path in the list");
      return false;
    }
    if (keys->n == JWT_KEYS_MAX) {
      (void)snprintf(error, CONFIG_ERROR_SIZE, "there are more than %d files", JWT_KEYS_MAX);
      return false;
    }
    if (!load_one(keys, path, error))
      return false;
  }
  return true;
}

struct jwt_keys *jwt_keys_load(const char *paths, enum config_jwt_algorithm algorithm, char error[CONFIG_ERROR_SIZE]) {
  struct jwt_keys *keys = calloc(1, sizeof *keys);
  char *list = strdup(paths);
  bool fine = keys != NULL && list != NULL;
  if (fine) {
    keys->algorithm = algorithm;
    fine = paths[0] == '\0' || load_list(keys, list, error);
  } else {
    (void)snprintf(error, CONFIG_ERROR_SIZE, "out of memory");
  }
  free(list);
  if (fine)
    return keys;
  jwt_keys_free(keys);
  return NULL;
}

void jwt_keys_free(struct jwt_keys *keys) {
  if (keys == NULL)
    return;
  for (size_t i = 0; i < keys->n; i++) {
    explicit_bzero(keys->keys[i].bytes, keys->keys[i].len);
    free(keys->keys[i].bytes);
    free(keys->keys[i].name);
  }
  free(keys);
}
