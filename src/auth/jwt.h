// SPDX-License-Identifier: Apache-2.0
/// @file
/// JSON Web Tokens: form, header and signature. What a verified token says is read by claims.c. Any thread.
#ifndef SH_AUTH_JWT_H
#define SH_AUTH_JWT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "auth/authority.h"
#include "auth/credential.h"
#include "auth/jwt_keys.h"

/// Bytes of a token, whole.
#define JWT_MAX 8192

/// What a token must say, and how exactly. Strings belong to whoever made it.
struct jwt_rules {
  const char *audience, *issuer; ///< "": not looked at
  int64_t leeway_us;             ///< for `exp` and `nbf`
};

/// Verifies a token in compact form: the algorithm that the keys are for and no other, a signature by one of the keys
/// (by the ones that its `kid` names, where it names any), then the claims, then the times.
/// @param now_us on the database's clock; 0: not known, then what is good otherwise is AUTH_LATER
/// @param[out] credential a reference of the caller's, with AUTH_OK
/// @param[out] reason static text that repeats nothing of the token; set unless AUTH_OK
enum auth_status jwt_verify_token(const struct jwt_keys *keys, const struct jwt_rules *rules, const char *token,
                                  size_t len, int64_t now_us, const struct credential **credential,
                                  const char **reason);

/// Reads the claims of a token whose signature was good; the same rules for time and reason.
/// @param payload a JSON object, borrowed
enum auth_status jwt_read_claims(const struct jwt_rules *rules, json_t *payload, int64_t now_us,
                                 const struct credential **credential, const char **reason);

#endif
