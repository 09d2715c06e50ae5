// SPDX-License-Identifier: Apache-2.0
// Webhooks: ids, signatures, and what to make of a reply. Pure functions.
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <string.h>

#include "base/rand.h"
#include "live/webhook.h"

#define PAUSE_MAX_MS 3600000
#define SHA256_BYTES 32
#define ID_HASH_BYTES 8

void webhook_id(struct buf *out, const char *first_id, int n_events, const struct buf *body) {
  for (const unsigned char *s = (const unsigned char *)first_id; *s != '\0'; s++) {
    bool plain = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || *s == '-' ||
                 *s == '_' || *s == ':';
    if (plain)
      buf_putc(out, (char)*s);
    else
      buf_printf(out, "%%%02X", *s);
  }
  if (n_events <= 1)
    return;
  unsigned char digest[SHA256_BYTES];
  if (gnutls_hash_fast(GNUTLS_DIG_SHA256, body->data, body->len, digest) != 0)
    out->failed = true;
  buf_putc(out, '-');
  for (size_t i = 0; i < ID_HASH_BYTES && !out->failed; i++)
    buf_printf(out, "%02x", digest[i]);
}

static void sign(struct buf *out, const struct webhook_secret *secret, const struct buf *content) {
  unsigned char digest[SHA256_BYTES];
  gnutls_datum_t bytes = {digest, sizeof digest}, text = {NULL, 0};
  if (gnutls_hmac_fast(GNUTLS_MAC_SHA256, secret->bytes, secret->len, content->data, content->len, digest) != 0 ||
      gnutls_base64_encode2(&bytes, &text) != GNUTLS_E_SUCCESS) {
    out->failed = true;
    return;
  }
  buf_puts(out, out->len > 0 ? " v1," : "v1,");
  buf_add(out, text.data, text.size);
  gnutls_free(text.data);
}

void webhook_sign(struct buf *out, const struct webhook_target *target, const char *id, int64_t timestamp_s,
                  const struct buf *body) {
  struct buf content = {0};
  buf_printf(&content, "%s.%lld.", id, (long long)timestamp_s);
  buf_add(&content, body->data, body->len);
  out->failed |= content.failed;
  for (size_t i = 0; i < target->n_secrets && !out->failed; i++)
    sign(out, &target->secrets[i], &content);
  buf_free(&content);
}

enum webhook_verdict webhook_judge(long status) {
  if (status >= 200 && status < 300)
    return WEBHOOK_OK;
  bool passing = status == 408 || status == 425 || status == 429;
  return status >= 400 && status < 500 && !passing ? WEBHOOK_REFUSED : WEBHOOK_AGAIN;
}

int64_t webhook_pause_ms(int attempts, int64_t retry_after_s) {
  int64_t pause = attempts >= 12 ? PAUSE_MAX_MS : INT64_C(1000) << (attempts < 0 ? 0 : attempts);
  pause = jitter_down(pause < PAUSE_MAX_MS ? pause : PAUSE_MAX_MS, 2);
  int64_t asked = retry_after_s > PAUSE_MAX_MS / 1000 ? PAUSE_MAX_MS : retry_after_s * 1000;
  return pause < asked ? asked : pause;
}
