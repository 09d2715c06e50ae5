// SPDX-License-Identifier: Apache-2.0
#include "auth/authority.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "auth/api_keys.h"
#include "auth/jwt.h"
#include "auth/jwt_keys.h"
#include "auth/token_cache.h"
#include "base/clock.h"
#include "base/log.h"

/// The keys of one loading, shared by the authority and by those who verify with them just now.
struct key_ring {
  atomic_uint refs;
  struct jwt_keys *jwt;
  struct api_keys *api;
};

struct authority {
  bool asked; ///< auth is not none
  enum config_jwt_algorithm algorithm;
  char *audience, *issuer;
  struct jwt_rules rules;
  atomic_uint generation;

  pthread_rwlock_t lock; ///< of what follows; a leaf, held for a few instructions
  struct key_ring *ring;
  struct token_cache *cache; ///< what was verified with this ring
};

// -- keys ----------------------------------------------------------------------------------------------------------

static void ring_unref(struct key_ring *ring) {
  if (ring == NULL || atomic_fetch_sub_explicit(&ring->refs, 1, memory_order_acq_rel) != 1)
    return;
  jwt_keys_free(ring->jwt);
  api_keys_free(ring->api);
  free(ring);
}

/// @return NULL when a file cannot be used (logged)
static struct key_ring *ring_load(const struct config *config, enum config_jwt_algorithm algorithm) {
  char error[CONFIG_ERROR_SIZE] = "out of memory";
  struct key_ring *ring = calloc(1, sizeof *ring);
  if (ring != NULL) {
    atomic_init(&ring->refs, 1);
    ring->jwt = jwt_keys_load(config->jwt_key_file, algorithm, error);
    if (ring->jwt != NULL)
      ring->api = api_keys_load(config->api_keys_file, error);
    if (ring->api != NULL)
      return ring;
  }
  log_error("%s: %s", ring == NULL || ring->jwt == NULL ? "jwt_key_file" : "api_keys_file", error);
  ring_unref(ring);
  return NULL;
}

static bool set_up(struct authority *a, const struct config *config) {
  a->asked = config->auth != CONFIG_AUTH_NONE;
  a->algorithm = (enum config_jwt_algorithm)config->jwt_algorithm;
  a->audience = strdup(config->jwt_audience);
  a->issuer = strdup(config->jwt_issuer);
  a->rules = (struct jwt_rules){
      .audience = a->audience, .issuer = a->issuer, .leeway_us = config->jwt_leeway_ms * INT64_C(1000)};
  a->cache = token_cache_new();
  if (a->audience == NULL || a->issuer == NULL || a->cache == NULL) {
    log_error("the keys of callers cannot be loaded: out of memory");
    return false;
  }
  a->ring = ring_load(config, a->algorithm);
  return a->ring != NULL;
}

struct authority *authority_new(const struct config *config) {
  struct authority *a = calloc(1, sizeof *a);
  if (a == NULL || pthread_rwlock_init(&a->lock, NULL) != 0) {
    free(a);
    log_error("the keys of callers cannot be loaded: out of memory");
    return NULL;
  }
  if (set_up(a, config))
    return a;
  authority_free(a);
  return NULL;
}

void authority_free(struct authority *a) {
  if (a == NULL)
    return;
  ring_unref(a->ring);
  token_cache_free(a->cache);
  free(a->audience);
  free(a->issuer);
  (void)pthread_rwlock_destroy(&a->lock);
  free(a);
}

void authority_reload(struct authority *a, const struct config *fresh) {
  if (!a->asked)
    return;
  if (fresh->auth == CONFIG_AUTH_NONE) {
    log_error("the keys of callers stay as they were: auth cannot become none without a restart");
    return;
  }
  struct key_ring *ring = ring_load(fresh, a->algorithm);
  struct token_cache *cache = ring == NULL ? NULL : token_cache_new();
  if (cache == NULL) {
    log_error("the keys of callers stay as they were");
    ring_unref(ring);
    return;
  }
  pthread_rwlock_wrlock(&a->lock);
  struct key_ring *old_ring = a->ring;
  struct token_cache *old_cache = a->cache;
  a->ring = ring;
  a->cache = cache;
  pthread_rwlock_unlock(&a->lock);
  // Last, so that whoever sees the new number is judged by the new keys.
  atomic_fetch_add(&a->generation, 1);
  log_info("the keys of callers are reloaded: %zu for tokens, %zu API keys", ring->jwt->n, api_keys_count(ring->api));
  ring_unref(old_ring);
  token_cache_free(old_cache);
}

unsigned authority_generation(const struct authority *a) {
  return atomic_load(&a->generation);
}

// -- a request -----------------------------------------------------------------------------------------------------

/// The characters of a bearer token (RFC 6750, b64token).
static bool is_token_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
         (c != '\0' && strchr("-._~+/=", c) != NULL);
}

static bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

/// Finds the token in `Bearer X`; blanks around and several between count for nothing.
/// @return NULL, or what is wrong
static const char *find_token(const char *value, size_t len, const char **token, size_t *token_len) {
  static const char scheme[] = "Bearer";
  size_t scheme_len = sizeof scheme - 1;
  if (len < scheme_len || strncasecmp(value, scheme, scheme_len) != 0)
    return "the scheme of Authorization is not Bearer";
  const char *s = value + scheme_len, *end = value + len;
  if (s < end && !is_blank(*s))
    return "the scheme of Authorization is not Bearer";
  while (s < end && is_blank(*s))
    s++;
  *token = s;
  while (s < end && is_token_character(*s))
    s++;
  *token_len = (size_t)(s - *token);
  return s == end && *token_len > 0 ? NULL : "Authorization does not have exactly one token";
}

static bool has_two_dots(const char *s, size_t len) {
  int dots = 0;
  for (size_t i = 0; i < len; i++)
    dots += s[i] == '.';
  return dots == 2;
}

static struct key_ring *ring_ref(struct authority *a) {
  pthread_rwlock_rdlock(&a->lock);
  struct key_ring *ring = a->ring;
  atomic_fetch_add_explicit(&ring->refs, 1, memory_order_relaxed);
  pthread_rwlock_unlock(&a->lock);
  return ring;
}

static enum auth_status check_api_key(struct authority *a, const unsigned char digest[SHA256_BYTES],
                                      const struct credential **credential, const char **reason) {
  struct key_ring *ring = ring_ref(a);
  *credential = api_keys_find(ring->api, digest);
  ring_unref(ring);
  if (*credential != NULL)
    return AUTH_OK;
  *reason = "the API key is unknown";
  return AUTH_BAD;
}

/// @return a reference, or NULL when the token was not seen before
static const struct credential *recall(struct authority *a, const unsigned char digest[SHA256_BYTES]) {
  pthread_rwlock_rdlock(&a->lock);
  const struct credential *c = credential_ref(token_cache_find(a->cache, digest));
  pthread_rwlock_unlock(&a->lock);
  return c;
}

static enum auth_status verify_and_remember(struct authority *a, const char *token, size_t len,
                                            const unsigned char digest[SHA256_BYTES],
                                            const struct credential **credential, const char **reason) {
  struct key_ring *ring = ring_ref(a);
  enum auth_status status = jwt_verify_token(ring->jwt, &a->rules, token, len, clock_db_us(), credential, reason);
  if (status == AUTH_OK) {
    pthread_rwlock_wrlock(&a->lock);
    // What an older ring verified must not outlive a reload.
    if (a->ring == ring)
      token_cache_add(a->cache, digest, len, *credential);
    pthread_rwlock_unlock(&a->lock);
  }
  ring_unref(ring);
  return status;
}

static enum auth_status check_token(struct authority *a, const char *token, size_t len,
                                    const unsigned char digest[SHA256_BYTES], const struct credential **credential,
                                    const char **reason) {
  const struct credential *known = recall(a, digest);
  if (known == NULL)
    return verify_and_remember(a, token, len, digest, credential, reason);
  if (clock_db_us() < known->expires_us + a->rules.leeway_us) {
    *credential = known;
    return AUTH_OK;
  }
  credential_unref(known);
  pthread_rwlock_wrlock(&a->lock);
  token_cache_remove(a->cache, digest);
  pthread_rwlock_unlock(&a->lock);
  *reason = "the token has expired";
  return AUTH_EXPIRED;
}

enum auth_status authority_check(struct authority *a, const char *value, size_t len,
                                 const struct credential **credential, const char **reason) {
  *credential = NULL;
  while (value != NULL && len > 0 && is_blank(value[len - 1]))
    len--;
  while (value != NULL && len > 0 && is_blank(value[0])) {
    value++;
    len--;
  }
  if (value == NULL || len == 0) {
    *reason = "no credential was shown";
    return AUTH_MISSING;
  }
  const char *token;
  size_t token_len;
  *reason = find_token(value, len, &token, &token_len);
  if (*reason != NULL)
    return AUTH_BAD;
  unsigned char digest[SHA256_BYTES];
  if (gnutls_hash_fast(GNUTLS_DIG_SHA256, token, token_len, digest) != 0) {
    *reason = "the credential cannot be hashed";
    return AUTH_LATER;
  }
  enum auth_status status = has_two_dots(token, token_len)
                                ? check_token(a, token, token_len, digest, credential, reason)
                                : check_api_key(a, digest, credential, reason);
  explicit_bzero(digest, sizeof digest);
  return status;
}
