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
  int status; ///< 401, 403 or 429; 503 when the credential cannot be judged yet
  const char *code, *detail;
};

// -- at the head of a request (request.c) --------------------------------------------------------------------------

/// Whether the client's address may make one more request now. @return NULL, or why not
const struct refusal *access_address(struct request *r);

/// Whether the caller may enter the route that was found, as far as the path tells. Sets r->credential.
/// @return NULL, or why not
const struct refusal *access_door(struct request *r);

/// Judges the caller of a request that has been let in once more, after the keys were reloaded. r->credential stays.
/// @return NULL, or why it would not be let in any more
const struct refusal *access_again(struct request *r);

/// That a token's time is over.
extern const struct refusal access_expired;

// -- for handlers --------------------------------------------------------------------------------------------------

/// Whether the caller may write for this session: scope, room, user, session. @return NULL, or why not
/// @param session_id NULL: for the user, whatever the session
const struct refusal *access_write(const struct request *r, const char *room_id, const char *user_id,
                                   const char *session_id);

/// Likewise for a room alone, by path or body: whether the caller may read it, or keep its members and records.
const struct refusal *access_read(const struct request *r, const char *room_id);
const struct refusal *access_members(const struct request *r, const char *room_id);

/// Whether the caller may read every room whose name begins with @a prefix.
const struct refusal *access_rooms(const struct request *r, const char *prefix);

/// Whether the caller may read what is known of a user in all rooms together: all rooms are the caller's, or the user
/// is.
const struct refusal *access_user(const struct request *r, const char *user_id);

/// Answers with a refusal. The caller returns REQUEST_DONE.
void request_refused(struct request *r, const struct refusal *refusal);

/// The user that the caller acts for, for whatever ends with that user's membership (their polls, streams, cursors):
/// the credential's sub unless it is a gateway or an admin, else what the query's user_id says; NULL: nobody.
const char *access_person(const struct request *r);

/// The parameter of the path that the route's pattern calls @a name, braces included; NULL: it has none.
const char *access_path_param(const struct request *r, const char *name);

// -- for replies ---------------------------------------------------------------------------------------------------

/// Counts a refusal and writes a line of the log, at most some a second for each code; other statuses than 401, 403 and
/// 429 are left alone. reply.c does so for every problem that it sends, others for what they send in another form.
void access_note(const struct request *r, int status, const char *code);

/// What WWW-Authenticate says with a 401 of this code.
const char *access_challenge(const char *code);

#endif
