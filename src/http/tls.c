// SPDX-License-Identifier: Apache-2.0
#include "http/tls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"

/// Certificates of a chain: more than any authority needs.
#define CHAIN_MAX 16
/// Key ids are SHA-256.
#define KEY_ID_SIZE 32

struct tls_pair {
  atomic_uint refs;
  gnutls_pcert_st chain[CHAIN_MAX];
  unsigned n;
  gnutls_privkey_t key;
};

struct tls {
  pthread_mutex_t lock; ///< a leaf
  struct tls_pair *pair;
};

// -- pairs ---------------------------------------------------------------------------------------------------------

void tls_pair_unref(const struct tls_pair *shared) {
  struct tls_pair *pair = (struct tls_pair *)(uintptr_t)shared;
  if (pair == NULL || atomic_fetch_sub(&pair->refs, 1) != 1)
    return;
  for (unsigned i = 0; i < pair->n; i++)
    gnutls_pcert_deinit(&pair->chain[i]);
  gnutls_privkey_deinit(pair->key);
  free(pair);
}

void tls_pair_show(const struct tls_pair *shared, gnutls_pcert_st **chain, unsigned *n_chain, gnutls_privkey_t *key) {
  struct tls_pair *pair = (struct tls_pair *)(uintptr_t)shared; // GnuTLS's types know no const
  *chain = pair->chain;
  *n_chain = pair->n;
  *key = pair->key;
}

/// @return 0, or GnuTLS's error, which is logged
static int complain(const char *config_key, const char *file, int error) {
  if (error < 0)
    log_error("%s: '%s' cannot be used: %s", config_key, file,
              error == GNUTLS_E_FILE_ERROR ? "it cannot be read" : gnutls_strerror(error));
  return error;
}

static int load_chain(struct tls_pair *pair, const char *file) {
  gnutls_datum_t data = {0};
  int error = gnutls_load_file(file, &data);
  unsigned n = CHAIN_MAX;
  if (error >= 0)
    error = gnutls_pcert_list_import_x509_raw(pair->chain, &n, &data, GNUTLS_X509_FMT_PEM, GNUTLS_X509_CRT_LIST_SORT);
  gnutls_free(data.data);
  if (error >= 0)
    pair->n = n;
  return complain("tls_cert_file", file, error);
}

static int load_key(struct tls_pair *pair, const char *file) {
  gnutls_datum_t data = {0};
  int error = gnutls_privkey_init(&pair->key);
  if (error >= 0)
    error = gnutls_load_file(file, &data);
  if (error >= 0)
    error = gnutls_privkey_import_x509_raw(pair->key, &data, GNUTLS_X509_FMT_PEM, NULL, 0);
  if (data.data != NULL)
    gnutls_memset(data.data, 0, data.size);
  gnutls_free(data.data);
  return complain("tls_key_file", file, error);
}

/// Whether the chain's first certificate is that of the key (logged where it is not).
static bool belong_together(const struct tls_pair *pair, const char *key_file) {
  unsigned char ids[2][KEY_ID_SIZE];
  size_t sizes[2] = {KEY_ID_SIZE, KEY_ID_SIZE};
  gnutls_pubkey_t key = NULL;
  int error = gnutls_pubkey_init(&key);
  if (error >= 0)
    error = gnutls_pubkey_import_privkey(key, pair->key, 0, 0);
  if (error >= 0)
    error = gnutls_pubkey_get_key_id(key, GNUTLS_KEYID_USE_SHA256, ids[0], &sizes[0]);
  if (error >= 0)
    error = gnutls_pubkey_get_key_id(pair->chain[0].pubkey, GNUTLS_KEYID_USE_SHA256, ids[1], &sizes[1]);
  gnutls_pubkey_deinit(key);
  if (error >= 0 && (sizes[0] != sizes[1] || memcmp(ids[0], ids[1], sizes[0]) != 0))
    error = GNUTLS_E_CERTIFICATE_KEY_MISMATCH;
  return complain("tls_key_file", key_file, error) >= 0;
}

/// Only clients judge a certificate, but whoever runs the server wants to know first.
static void warn_of_dates(const struct tls_pair *pair, const char *file) {
  gnutls_x509_crt_t certificate;
  if (gnutls_x509_crt_init(&certificate) < 0)
    return;
  time_t now = time(NULL);
  if (gnutls_x509_crt_import(certificate, &pair->chain[0].cert, GNUTLS_X509_FMT_DER) >= 0) {
    if (gnutls_x509_crt_get_expiration_time(certificate) < now)
      log_warning("tls_cert_file: the certificate in '%s' has expired", file);
    else if (gnutls_x509_crt_get_activation_time(certificate) > now)
      log_warning("tls_cert_file: the certificate in '%s' is not valid yet", file);
  }
  gnutls_x509_crt_deinit(certificate);
}

static struct tls_pair *load(const char *cert_file, const char *key_file) {
  struct tls_pair *pair = calloc(1, sizeof *pair);
  if (pair == NULL)
    return NULL;
  atomic_init(&pair->refs, 1);
  if (load_chain(pair, cert_file) >= 0 && load_key(pair, key_file) >= 0 && belong_together(pair, key_file)) {
    warn_of_dates(pair, cert_file);
    return pair;
  }
  tls_pair_unref(pair);
  return NULL;
}

// -- the one in use ------------------------------------------------------------------------------------------------

struct tls *tls_new(const char *cert_file, const char *key_file) {
  struct tls *tls = calloc(1, sizeof *tls);
  if (tls == NULL)
    return NULL;
  if (pthread_mutex_init(&tls->lock, NULL) != 0) {
    free(tls);
    return NULL;
  }
  tls->pair = load(cert_file, key_file);
  if (tls->pair != NULL)
    return tls;
  tls_free(tls);
  return NULL;
}

void tls_free(struct tls *tls) {
  if (tls == NULL)
    return;
  tls_pair_unref(tls->pair);
  pthread_mutex_destroy(&tls->lock);
  free(tls);
}

void tls_reload(struct tls *tls, const char *cert_file, const char *key_file) {
  struct tls_pair *fresh = load(cert_file, key_file);
  if (fresh == NULL) {
    log_error("the TLS certificate in use stays");
    return;
  }
  pthread_mutex_lock(&tls->lock);
  struct tls_pair *old = tls->pair;
  tls->pair = fresh;
  pthread_mutex_unlock(&tls->lock);
  tls_pair_unref(old);
  log_info("new connections get the TLS certificate as it is now in '%s'", cert_file);
}

const struct tls_pair *tls_pair_get(struct tls *tls) {
  pthread_mutex_lock(&tls->lock);
  struct tls_pair *pair = tls->pair;
  atomic_fetch_add(&pair->refs, 1);
  pthread_mutex_unlock(&tls->lock);
  return pair;
}
