// SPDX-License-Identifier: Apache-2.0
/// @file
/// Reading for those who watch. Each function is one statement, so one MVCC snapshot: a revision and what is read with
/// it belong together, and the pruned floor is judged under the same snapshot as the events.
#ifndef SH_STORE_READ_H
#define SH_STORE_READ_H

#include <stdbool.h>
#include <stddef.h>

#include "base/body.h"
#include "db/db.h"
#include "store/lease.h"

/// How much a snapshot carries (CONTRACT §4).
enum view { VIEW_SESSIONS, VIEW_USERS, VIEW_COUNT, VIEW_KINDS };

/// The snapshot of a room as JSON text from `{` up to, but without, what differs for each reader and the closing `}`:
/// `{"room_id":…,"epoch":…,"mode":"snapshot","revision":…,"users":[…],"counts":{…}`. A room that was never named has
/// revision 0 and nobody. Rows past their expiry are in it until their event is written.
enum db_status read_snapshot(struct db *db, const char *room_id, enum view view, struct body **body, int64_t *revision);

/// One room's news, for memory or for one reader. The events' room_id stays NULL: it is the room asked for.
struct room_news {
  int64_t head;         ///< the room's revision, 0 when the room does not exist
  int64_t pruned;       ///< events up to here are gone
  struct event *events; ///< ascending, without gaps; after @a after, as far as asked
  size_t n_events;
  char *revoked;    ///< of read_rooms(): users whose membership is revoked, a line each, in byte order; NULL: none
  bool revoked_cut; ///< there are more than ROOM_REVOKED_MAX: only those revoked last are listed
};

/// So many revoked users of a room are read into memory.
#define ROOM_REVOKED_MAX 10000

void room_news_free(struct room_news *news, size_t n);

/// For each of @a n rooms: its head, its revoked users, and its events after after[i] (INT64_MIN: only the newest
/// @a newest), at most @a newest of them, the newest ones. One query for all.
enum db_status read_rooms(struct db *db, const char *const *room_ids, const int64_t *after, size_t n, int newest,
                          struct room_news *news);

/// The events of one room after @a since, oldest first, only kinds in the mask, at most limit + 1 of them (so that the
/// caller sees whether there is more). head and pruned are set as well.
enum db_status read_events(struct db *db, const char *room_id, int64_t since, unsigned kinds, int limit,
                           struct room_news *news);

/// The heads and pruned floors of many rooms, for the slow poll; 0 for a room that does not exist.
enum db_status read_heads(struct db *db, const char *const *room_ids, size_t n, int64_t *heads, int64_t *pruned);

/// Whether the user's membership of the room is revoked; for rooms with more of them than are read into memory.
enum db_status read_revoked(struct db *db, const char *room_id, const char *user_id, bool *revoked);

/// The state of one session on reconnect, as the JSON text `{"state":"live","revision":n}`; appended to @a out.
enum db_status read_session(struct db *db, const struct lease_key *key, struct buf *out);

/// The whole JSON reply of GET /rooms/{room}/leases and GET /rooms, without `server_time` and the closing `}`. Only
/// what is live now is listed and counted. @a prefix and @a after may be NULL.
enum db_status read_leases(struct db *db, const char *room_id, struct buf *out);
enum db_status read_room_list(struct db *db, const char *prefix, const char *after, int limit, struct buf *out);

// The whole JSON replies of CONTRACT §5, appended to @a out. Always current: the newest of the tables and the leases.

/// Rooms that read_user_presence() lists at most; with more there is `"more_rooms":true`.
#define USER_ROOMS_MAX 1000

/// GET /users/{user}/presence.
enum db_status read_user_presence(struct db *db, const char *user_id, struct buf *out);

/// GET /last-seen: in the order asked, with nulls for those who were never seen.
enum db_status read_last_seen(struct db *db, const char *const *user_ids, size_t n, struct buf *out);

/// Where a page of a room's last-seen list ended.
struct seen_cursor {
  int64_t seen_us; ///< Unix microseconds
  char user_id[IDENT_MAX + 1];
};

/// Reads what `next` said. @return false when it is no cursor
bool seen_cursor_parse(const char *s, struct seen_cursor *cursor);

/// GET /rooms/{room}/last-seen: newest first, users of the same moment by id. @param after NULL: from the start
enum db_status read_room_last_seen(struct db *db, const char *room_id, const struct seen_cursor *after, int limit,
                                   struct buf *out);

/// What explain needs to know of the configuration.
struct explain_rules {
  bool membership_required;
  int64_t offline_grace_ms, tombstone_retention_ms;
};

/// GET /rooms/{room}/users/{user}/explain: all that decides about one user in a room, and words for it.
enum db_status read_explain(struct db *db, const struct explain_rules *rules, const char *room_id, const char *user_id,
                            struct buf *out);

#endif
