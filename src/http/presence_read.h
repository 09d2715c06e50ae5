// SPDX-License-Identifier: Apache-2.0
/// @file
/// The queries that answering about a room's presence may take. Private to presence.c and presence_read.c.
#ifndef SH_HTTP_PRESENCE_READ_H
#define SH_HTTP_PRESENCE_READ_H

#include "http/presence.h"
#include "http/request_read.h"

/// Starts the read of a snapshot for everybody who wants the same. It goes to the tail, which wakes them; when it comes
/// to nothing too. @return false when it could not be started
bool presence_read_snapshot(const struct presence *p);

/// The events after a cursor that is older than memory, for one request.
struct events_read {
  struct request_read read;
  int64_t from, since; ///< read after `from`; the reply says `since`
  unsigned kinds;
  int limit;
  bool stream;
  // Result.
  int64_t head, pruned;
  int64_t revision;  ///< what `body` covers
  bool more;         ///< it was cut at the limit
  struct body *body; ///< the reply; NULL when there was no such event
  char epoch[EPOCH_SIZE];
  char room_id[IDENT_MAX + 1];
};

/// @return NULL when it could not be started
struct request_read *presence_read_events(const struct presence *p);

/// The state of a session.
struct session_read {
  struct request_read read;
  struct buf text; ///< result
  char room_id[IDENT_MAX + 1], user_id[IDENT_MAX + 1], session_id[IDENT_MAX + 1];
};

/// @return NULL when it could not be started
struct request_read *presence_read_session(const struct presence *p);

#endif
