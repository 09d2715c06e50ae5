// SPDX-License-Identifier: Apache-2.0
/// @file
/// The keys that tokens are verified with, as read from files and checked once. Immutable when loaded: any thread.
#ifndef SH_AUTH_JWT_KEYS_H
#define SH_AUTH_JWT_KEYS_H

#include <stddef.h>

#include "config/config.h"

/// Keys at the same time: more than any rotation takes, few enough to try them all.
#define JWT_KEYS_MAX 8

struct jwt_key {
  char *name; ///< the file's base name without extension: what a token's `kid` may say
  char *bytes;
  size_t len;
};

struct jwt_keys {
  enum config_jwt_algorithm algorithm; ///< the only one that a token may name
  size_t n;
  struct jwt_key keys[JWT_KEYS_MAX];
};

/// Reads and checks the files of a comma-separated list (blanks around a path do not count). HS256: the raw bytes less
/// one newline at the end, 32 at least, no PEM. RS256: one public key in PEM, 2048 bits at least. ES256: one on P-256.
/// Warns in the log of a secret that everybody on this host may read.
/// @param paths "": no keys at all
/// @param[out] error what is wrong, with the file's name, never with what is in it; without the name of the key
/// @return NULL when a file cannot be used
struct jwt_keys *jwt_keys_load(const char *paths, enum config_jwt_algorithm algorithm, char error[CONFIG_ERROR_SIZE]);

/// Wipes and frees them. NULL is fine.
void jwt_keys_free(struct jwt_keys *keys);

#endif
