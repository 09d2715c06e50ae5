// SPDX-License-Identifier: Apache-2.0
/// @file
/// Who may do what over HTTP (CONTRACT §8): the caller is identified at the head of a request, the route's guard asks
/// for a right, handlers ask for the rest. With auth=none everybody may do everything. The worker's thread.
#ifndef SH_HTTP_ACCESS_H
#define SH_HTTP_ACCESS_H

#include <stdbool.h>

#include "http/request.h"

/// A refusal; all strings are static.
struct refusal {
  int status; ///< 401, 403 or 429
  const char *code, *detail;
};

/// Whether the caller may write for this session: scope, room, user, session. @return NULL, or why not
const struct refusal *access_write(const struct request *r, const char *room_id, const char *user_id,
                                   const char *session_id);

/// Likewise for a room alone, by path or body: whether the caller may read it, or keep its members and records.
const struct refusal *access_read(const struct request *r, const char *room_id);
const struct refusal *access_members(const struct request *r, const char *room_id);

/// Answers with a refusal. The caller returns REQUEST_DONE.
void request_refused(struct request *r, const struct refusal *refusal);

/// The user that the caller acts for, for whatever ends with that user's membership (their polls, streams, cursors):
/// the credential's sub unless it is a gateway or an admin, else what the query's user_id says; NULL: nobody.
const char *access_person(const struct request *r);

#endif
