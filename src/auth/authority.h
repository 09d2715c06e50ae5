// SPDX-License-Identifier: Apache-2.0
/// @file
/// The authority: who a caller is, by token or by API key. It holds the keys, reloads them, and remembers tokens that
/// it has verified until they expire or a key changes. Any thread but where it says otherwise.
#ifndef SH_AUTH_AUTHORITY_H
#define SH_AUTH_AUTHORITY_H

#include <stddef.h>

#include "auth/credential.h"
#include "config/config.h"

struct authority;

enum auth_status {
  AUTH_OK,
  AUTH_MISSING, ///< no credential was shown: 401 without an error code in WWW-Authenticate
  AUTH_BAD,     ///< malformed, unknown, not signed by a key of ours, revoked …: 401 invalid_token
  AUTH_EXPIRED, ///< it was good once: 401 invalid_token
  AUTH_LATER,   ///< cannot be judged yet (no memory, the database's clock is not known yet): 503
};

/// Reads the key files that @a config names. With auth=none it accepts nobody and is never asked.
/// @return NULL when a file cannot be used (logged with file and line, never its content) or memory ran out
struct authority *authority_new(const struct config *config);
void authority_free(struct authority *a);

/// Reads the key files that @a fresh names; algorithm, audience, issuer and leeway stay those of the start. What cannot
/// be read leaves all keys as they were (logged). What was remembered is forgotten, so that a revoked key ends at once
/// for new requests; see authority_generation(). Main's thread.
void authority_reload(struct authority *a, const struct config *fresh);

/// Grows with every reload: who waits longer than that checks its credential again.
unsigned authority_generation(const struct authority *a);

/// Judges the value of an Authorization header.
/// @param value the header's value; NULL: there was none
/// @param len its length
/// @param[out] credential a reference of the caller's, with AUTH_OK
/// @param[out] reason static text for the log, which never repeats any of the credential; set unless AUTH_OK
enum auth_status authority_check(struct authority *a, const char *value, size_t len,
                                 const struct credential **credential, const char **reason);

#endif
