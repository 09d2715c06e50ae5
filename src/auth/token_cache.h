// SPDX-License-Identifier: Apache-2.0
/// @file
/// Tokens that were verified, by their SHA-256: a token itself is never kept. Bounded in number and in bytes; the
/// oldest make way. Not locked: its owner does that.
#ifndef SH_AUTH_TOKEN_CACHE_H
#define SH_AUTH_TOKEN_CACHE_H

#include <stddef.h>

#include "auth/api_keys.h"
#include "auth/credential.h"

/// Together some 100 MB at the very worst, with tokens of a thousand rooms each; usually a few.
#define TOKEN_CACHE_MAX 16384
#define TOKEN_CACHE_BYTES ((size_t)16 << 20)

struct token_cache;

/// @return NULL when memory ran out
struct token_cache *token_cache_new(void);

/// NULL is fine.
void token_cache_free(struct token_cache *cache);

/// @return the credential, borrowed while the cache is not changed, or NULL. May run beside itself.
const struct credential *token_cache_find(const struct token_cache *cache, const unsigned char digest[SHA256_BYTES]);

/// Remembers a credential, of which it takes a reference, unless it is known already.
/// @param len bytes of the token
void token_cache_add(struct token_cache *cache, const unsigned char digest[SHA256_BYTES], size_t len,
                     const struct credential *credential);

/// Forgets one, if it is there.
void token_cache_remove(struct token_cache *cache, const unsigned char digest[SHA256_BYTES]);

size_t token_cache_count(const struct token_cache *cache);

#endif
