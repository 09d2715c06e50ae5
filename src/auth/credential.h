// SPDX-License-Identifier: Apache-2.0
/// @file
/// What a caller has shown and what that allows (CONTRACT §8). Pure functions over an immutable value: a credential is
/// made once, shared by reference between threads, and never changed.
///
/// A room pattern is a room's name or, with `*` at its end, every name that begins with what stands before it. So a
/// room that has a star in its own name is reached by a prefix alone.
#ifndef SH_AUTH_CREDENTIAL_H
#define SH_AUTH_CREDENTIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum credential_kind { CREDENTIAL_TOKEN, CREDENTIAL_API_KEY };

/// The words of a `scope`, as bits.
enum scope {
  SCOPE_READ = 1 << 0,    ///< presence:read
  SCOPE_WRITE = 1 << 1,   ///< presence:write: for the credential's own user
  SCOPE_MEMBERS = 1 << 2, ///< members:write
  SCOPE_GATEWAY = 1 << 3, ///< gateway: presence:write for any user
  SCOPE_ADMIN = 1 << 4,   ///< admin: all of the above
};

struct credential {
  enum credential_kind kind;
  char *name;         ///< for logs and limits: the API key's name, or the token's sub ("" without one)
  char *sub;          ///< the user it speaks for; NULL: none (API keys)
  char *sid;          ///< the only session it may write for; NULL: any
  char **rooms;       ///< names, or prefixes that end with `*`
  size_t n_rooms;     ///< 0: no rights at all
  unsigned scopes;    ///< of enum scope; 0: no rights at all
  int64_t expires_us; ///< on the database's clock; INT64_MAX: never
};

/// For those who make one: all empty, with one reference. The strings put into it are its own from then on (malloc).
/// @return NULL when memory ran out
struct credential *credential_new(enum credential_kind kind);

/// Why @a pattern cannot be one of a room. @return NULL when it can, else a static phrase ("is empty")
const char *room_pattern_problem(const char *pattern, size_t len);

/// Adds a pattern to a credential that nobody else knows yet; room for @a capacity of them is made with the first.
/// @return false when memory ran out, or there are @a capacity already
bool credential_add_room(struct credential *c, const char *pattern, size_t len, size_t capacity);

/// Counts a reference more. NULL is fine. Any thread. @return @a c
const struct credential *credential_ref(const struct credential *c);

/// Gives a reference back; the last one frees it, and wipes what it held. NULL is fine. Any thread.
void credential_unref(const struct credential *c);

/// Whether it has @a scope, by itself or since a wider one includes it.
bool credential_has(const struct credential *c, enum scope scope);

/// Whether @a room_id is in one of its patterns.
bool credential_in_room(const struct credential *c, const char *room_id);

/// Whether every room whose name begins with @a prefix is in one of its patterns; with "": whether all rooms are.
bool credential_in_rooms(const struct credential *c, const char *prefix);

/// Whether it may write for @a user_id (its own user, or any with gateway or admin; an API key without a sub only so).
bool credential_is_user(const struct credential *c, const char *user_id);

/// Whether it may write for @a session_id of that user.
bool credential_is_session(const struct credential *c, const char *session_id);

/// Parses one word of a scope. @return 0 when it is unknown
unsigned scope_parse(const char *word, size_t len);

#endif
