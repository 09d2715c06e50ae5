// SPDX-License-Identifier: Apache-2.0
/// @file
/// Named keys for servers and dashboards, of which only hashes are kept. Immutable when loaded: any thread.
#ifndef SH_AUTH_API_KEYS_H
#define SH_AUTH_API_KEYS_H

#include <stddef.h>

#include "auth/credential.h"
#include "config/config.h"

#define SHA256_BYTES 32

struct api_keys;

/// Reads a file of lines `name sha256-hex scope,scope room,room*`; `#` begins a comment line. The whole file is
/// checked: a key with a name or a hash that another one has, or with a scope or a room pattern that is none, refuses
/// it.
/// @param path "": no keys at all. A file without keys is fine: it revokes all.
/// @param[out] error one line that names the file and the line, never what is in it
/// @return NULL when it cannot be used
struct api_keys *api_keys_load(const char *path, char error[CONFIG_ERROR_SIZE]);

/// NULL is fine. Credentials that were given out live on.
void api_keys_free(struct api_keys *keys);

size_t api_keys_count(const struct api_keys *keys);

/// Looks for the key with this SHA-256; how long it takes does not tell which one it was or how much of it was right.
/// @return a reference of the caller's, or NULL when there is none
const struct credential *api_keys_find(const struct api_keys *keys, const unsigned char digest[SHA256_BYTES]);

#endif
