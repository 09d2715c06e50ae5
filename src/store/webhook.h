// SPDX-License-Identifier: Apache-2.0
/// @file
/// What webhooks keep in the database: the events that targets have still to be told, and the lanes on which they are
/// told, one for each room and target. Everything that judges time is on the database's clock.
#ifndef SH_STORE_WEBHOOK_H
#define SH_STORE_WEBHOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "db/db.h"
#include "store/lease.h"
#include "store/transition.h"
#include "store/webhook_targets.h"

/// Events in a message at most.
#define WEBHOOK_MESSAGE_EVENTS 20

/// Writes what the current targets want of @a n events, and moves their lanes on. @a events and @a x are about the same
/// events in the same order. Inside the transaction that writes the events, under the locks of their rooms.
enum db_status webhook_write(struct db *db, const struct event *events, const struct transition *x, size_t n);

/// A message of one lane that is to be sent now. Strings are its own.
struct webhook_message {
  char *room_id;
  bool replay;
  int64_t through; ///< its highest revision
  int attempts;    ///< that failed before
  char *first_id;  ///< event_id of its first event; NULL: it has no events (they were deleted), and is done
  struct buf body; ///< the bytes to send
  int n_events;    ///< in it
  bool lasts;      ///< false: the next failure is the last, since it has failed for too long
};

void webhook_messages_free(struct webhook_message *list, size_t n);

/// Claims up to @a slots lanes of @a target that are due, and reads their messages. A claim runs out by itself after
/// 30 s. Runs a transaction. @param token names the claim, unique @param[out] list allocated, NULL for none
enum db_status webhook_claim(struct db *db, const char *target, const char *token, int slots, int64_t give_up_ms,
                             struct webhook_message **list, size_t *n);

/// The message was taken: its events are gone and the lane goes on. Nothing happens when the claim is lost.
enum db_status webhook_delivered(struct db *db, const char *target, const char *token, const struct webhook_message *m);

/// It was not: the same again in @a wait_ms. Likewise.
enum db_status webhook_retry(struct db *db, const char *target, const char *token, const struct webhook_message *m,
                             int64_t wait_ms, const char *error);

/// It is given up: its events are dead and the lane goes on. Likewise.
enum db_status webhook_bury(struct db *db, const char *target, const char *token, const struct webhook_message *m,
                            const char *error);

/// Gives a claim back as if it had not been tried: due at once.
enum db_status webhook_release(struct db *db, const char *target, const char *token, const struct webhook_message *m);

struct webhook_counts {
  int64_t backlog, dead; ///< events, each counted up to 100 000
  int64_t oldest_ms;     ///< how old the oldest of those that were counted is; 0 for none
};
enum db_status webhook_count(struct db *db, struct webhook_counts *counts);

/// Deletes what was dead for 30 days and lanes that have been idle for a day, and gives up what nobody is there for:
/// the events of a room for a target that is not in @a set, once all of them are older than @a give_up_ms. Some of it
/// each time. @param[out] more whether there may be more of it
/// @param[in,out] given_up empty before; then how many events were given up and of which targets, in words (`5 of a, 2
/// of b`), or empty where there were none. The caller frees it.
enum db_status webhook_prune(struct db *db, const struct webhook_targets *set, int64_t give_up_ms, bool *more,
                             struct buf *given_up);

/// The array of GET /webhooks, as the open object `{"targets":[…]`: those of @a set, then those that are in it no more
/// (with the URL null) while events wait for them or were given up.
enum db_status read_webhooks(struct db *db, const struct webhook_targets *set, struct buf *out);

/// A page of dead messages, as the open object `{"dead":[…],"next":…`. @param target NULL: all
/// @param after `next` of the page before: target, room and message, separated by `/`, percent-encoded; NULL: from the
/// start
struct webhook_cursor {
  char target[WEBHOOK_NAME_MAX + 1], room_id[IDENT_MAX + 1];
  int64_t message;
};
bool webhook_cursor_parse(const char *s, struct webhook_cursor *cursor);
enum db_status read_webhooks_dead(struct db *db, const char *target, const struct webhook_cursor *after, int limit,
                                  struct buf *out);

/// Whether read_webhooks() would list such a target. Runs a transaction.
enum db_status webhook_known(struct db *db, const char *target, bool *known);

/// Sending dead messages again, a portion at a time.
struct webhook_replay {
  const char *target, *room_id; ///< room_id NULL: all rooms
  int64_t message;              ///< of that room; 0: all of them
  struct webhook_cursor after;  ///< how far it has come; all zero at the start. Its target is not used.
  bool more;                    ///< there may be more to do
  bool in_doubt;                ///< with DB_LOST: this portion may have been done all the same
  int64_t n;                    ///< events so far
};

/// Sends the next dead messages again, about 1000 events, with the same ids and bodies; each is met once, also where it
/// dies again meanwhile. Runs a transaction; where it fails, the same again goes on with the same portion.
enum db_status webhook_replay(struct db *db, struct webhook_replay *replay);

#endif
