// SPDX-License-Identifier: Apache-2.0
/// @file
/// The table of routes and how a raw request target finds its row: the raw path is split on `/`, then each segment is
/// percent-decoded once and checked (CONTRACT §1).
#ifndef SH_HTTP_ROUTE_H
#define SH_HTTP_ROUTE_H

#include "http/request.h"

#define ROUTE_REPEATABLE "*"

enum route_flag {
  ROUTE_BODY = 1 << 0,     ///< takes a body
  ROUTE_DATABASE = 1 << 1, ///< 503 at the door until the schema is up to date
  ROUTE_WATCHES = 1 << 2,  ///< shows a room, perhaps for long: not to who was revoked, and it ends with the credential
};

/// The right that is asked for at the door, before the handler (http/access.h). Where the path names a room, the room
/// is looked at too. Whatever depends on the body is asked by the handler.
enum route_guard {
  GUARD_OPEN,    ///< everybody
  GUARD_READ,    ///< presence:read
  GUARD_WRITE,   ///< presence:write or gateway; the user and session of the path, where it names them
  GUARD_MEMBERS, ///< members:write
  GUARD_RECORD,  ///< presence:write, gateway or members:write: to append to a record
  GUARD_ADMIN,   ///< admin
  GUARD_METRICS, ///< as metrics_access says
};

struct route {
  const char *method;
  const char *pattern;            ///< "/rooms/{room}/presence"
  const char *const *query_names; ///< parameters it knows, NULL-terminated; any other name is 400. One that begins
                                  ///< with ROUTE_REPEATABLE may come more than once: its values are in r->repeated
  unsigned flags;                 ///< of enum route_flag
  enum route_guard guard;
  enum request_verdict (*handle)(struct request *r);
};

/// All routes, ended by one with a NULL method.
extern const struct route routes[];

enum route_result { ROUTE_FOUND, ROUTE_NOT_FOUND, ROUTE_BAD_METHOD, ROUTE_BAD_PATH, ROUTE_NO_MEMORY };

/// Finds the route and decodes the path parameters into @a params (allocated; freed by the caller).
/// HEAD finds GET; OPTIONS is always ROUTE_BAD_METHOD on a known path, so that the caller can answer it with @a allow.
/// @param raw_path without query, still encoded
/// @param[out] allow for ROUTE_BAD_METHOD, the Allow header's value
/// @param[out] problem for ROUTE_BAD_PATH, why
enum route_result route_find(const char *method, const char *raw_path, const struct route **route,
                             char *params[PATH_PARAMS_MAX], char allow[ALLOW_SIZE], const char **problem);

#endif
