// SPDX-License-Identifier: Apache-2.0
/// @file
/// Cursors (CONTRACT §7): the latest packet of each session, in memory and nowhere else. A session has a cursor only
/// while it has a live lease:
///
/// - The gate. Before a packet is taken the database has said, at most 300 ms ago, that the session's lease is live;
///   with that came the room's revision. An ending event with a higher revision, told by the room tail
///   (cursors_event()) before anybody can be answered with it, takes the cursor away and shuts the gate. What was
///   checked before that event is refused.
/// - Packets of other instances are not believed: the first one of a stay is shown once this instance has seen the
///   lease itself. A stay is known by its `granted_at`; a late packet of an earlier one is dropped.
/// - Past the `expires_at` that was last seen a cursor is not shown until the lease has been seen renewed.
///
/// Every change in a room has a number, `seq`. It grows within a process, is below 2^53, and begins at a random
/// multiple of 2^31, so that a number of another process (another instance, or this one before a restart) is
/// recognised.
///
/// One lock, a leaf but for the workers' mailboxes; taken inside the lock of a shard of the room tail, never around it.
#ifndef SH_LIVE_CURSORS_H
#define SH_LIVE_CURSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/body.h"
#include "base/mailbox.h"
#include "store/lease.h"
#include "store/notify.h"
#include "store/stay.h"

struct cursors;

/// Bytes of a packet's data as compact JSON at most.
#define CURSOR_DATA_MAX 1024

struct cursors_options {
  size_t room_max;  ///< cursors of a room at most
  size_t total_max; ///< of all rooms together
};

/// @return NULL when memory ran out
struct cursors *cursors_new(const struct cursors_options *options);
void cursors_free(struct cursors *cursors);

/// Tells where worker @a id takes its mail and what a wake does there, as tail_add_worker(). Before the threads start.
void cursors_add_worker(struct cursors *cursors, unsigned id, struct mailbox *mailbox,
                        void (*woken)(void *ctx, const char *room_id), void *ctx);

// -- for those who post: any thread --------------------------------------------------------------------------------

struct cursor_packet {
  struct lease_key key;
  const char *data; ///< a JSON object as compact text, checked
  size_t len;
  int64_t at_us; ///< set by cursors_put(): when it came, on the database's clock; orders a session's packets
};

enum cursors_put {
  CURSOR_TAKEN,     ///< it is (or a later one of the session is) the session's cursor; *seq is set
  CURSOR_CHECK,     ///< the lease has to be read, and then cursors_checked() or cursors_give_up() called, once
  CURSOR_NOT_LIVE,  ///< there is no live lease
  CURSOR_REVOKED,   ///< likewise, by revocation
  CURSOR_FULL,      ///< the room, or all memory for cursors, has as many as it may
  CURSOR_NO_MEMORY, ///< memory ran out
};

enum cursors_put cursors_put(struct cursors *cursors, struct cursor_packet *packet, int64_t *seq);

/// After CURSOR_CHECK: what was read after that. CURSOR_CHECK again means that it is outdated already.
enum cursors_put cursors_checked(struct cursors *cursors, const struct cursor_packet *packet, const struct stay *stay,
                                 int64_t *seq);

/// After CURSOR_CHECK: it could not be read.
void cursors_give_up(struct cursors *cursors, const struct lease_key *key);

// -- for those who watch: worker threads ---------------------------------------------------------------------------

/// Watchers of a room get at most one reply in so long, microseconds.
#define CURSORS_WINDOW_US INT64_C(50000)

struct cursors_query {
  const char *room_id;
  bool has_since;
  int64_t since; ///< 0: the client has nothing yet
  bool stream;   ///< the answer is wanted as server-sent events
  bool fresh;    ///< it has not waited yet: inside the window it is to wait for its end
};

struct cursors_answer {
  struct body *body;  ///< one reference is the caller's. JSON text up to what differs for each reader, without `}`; for
                      ///< a stream whole messages: `reset`, then `gone`, then `cursor`, at last the id of `seq`
  int64_t seq;        ///< what it covers
  int64_t not_before; ///< nothing to say: look again at this monotonic time at the latest; INT64_MAX: when woken
};

/// Looks for what changed after `since`. @return whether there is something to say (or no `since`, or one that is not
/// known here). If not, worker @a worker will be woken at the next change, once, and the body is set all the same: the
/// reply of one who cannot wait. The body is NULL when memory ran out.
bool cursors_look(struct cursors *cursors, unsigned worker, const struct cursors_query *query,
                  struct cursors_answer *answer);

/// Worker @a worker has nobody waiting in the room any more.
void cursors_unwatch(struct cursors *cursors, unsigned worker, const char *room_id);

// -- for the room tail and the listener ----------------------------------------------------------------------------

/// To be given to tail_on_event(); @a ctx is the cursors. Locks of the tail are held.
void cursors_event(void *ctx, const char *room_id, int64_t revision, enum event_kind kind, const char *json);

/// A notification of another instance (or of anybody: it is checked). @return false when it is malformed; nothing was
/// taken then
bool cursors_hear(struct cursors *cursors, const char *payload);

/// LISTEN stands (again): others are asked to send what they have.
void cursors_ask_others(struct cursors *cursors);

// -- for the bus: its thread alone ---------------------------------------------------------------------------------

/// Called in some thread, with locks held, when there is work for the bus. Set while no other thread uses the cursors.
void cursors_on_work(struct cursors *cursors, void (*work)(void *ctx), void *ctx);

/// The bus will not look again before cursors_on_work()'s call or the monotonic time that this returns.
int64_t cursors_next_work(struct cursors *cursors);

/// What is to be sent: at most @a max packets that have queued up, each session's newest, as payloads of less than
/// 8000 bytes. @return how many packets; free @a payloads with payloads_free() in any case
size_t cursors_take_payloads(struct cursors *cursors, size_t max, struct payloads *payloads);

/// It could not be sent: everything of this instance is to be sent again.
void cursors_send_failed(struct cursors *cursors);

/// Sessions whose lease has to be seen (again), at most @a max. Strings are copied: free with cursors_keys_free(). Each
/// must be given back with cursors_verified().
size_t cursors_take_unverified(struct cursors *cursors, struct lease_key *keys, size_t max);

/// @param stay NULL: it could not be read
void cursors_verified(struct cursors *cursors, const struct lease_key *key, const struct stay *stay);

void cursors_keys_free(struct lease_key *keys, size_t n);

/// The rooms that the tail must keep in memory, those not returned for a while: their ids (caller frees each). Also
/// forgets rooms that have long been empty. @return how many, at most @a max
size_t cursors_take_rooms(struct cursors *cursors, char **room_ids, size_t max);

#endif
