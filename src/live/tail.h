// SPDX-License-Identifier: Apache-2.0
/// @file
/// The room tail: for every room that somebody asked about lately, its head and its newest events, in memory. The
/// database is the truth; everything here can be thrown away at any moment. Filled by the writers of this instance
/// (tail_publish) and by the listener (LISTEN and a slow poll), read by the presence handlers.
///
/// No lost wake: tail_look() compares the head and registers the worker under the room's lock, and whoever moves the
/// head collects the registered workers under the same lock. A wake is a hint: the woken look again.
#ifndef SH_LIVE_TAIL_H
#define SH_LIVE_TAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/body.h"
#include "base/mailbox.h"
#include "db/epoch.h"
#include "store/heartbeat.h"
#include "store/read.h"

struct tail;

/// Most HTTP workers.
#define TAIL_WORKERS_MAX 32

struct tail_options {
  int replay_limit;    ///< more events than this between a cursor and the head: a snapshot instead
  int events_per_room; ///< how many newest events a room keeps in memory
  int events_in_storm; ///< how many of those that came within the last 10 s: readers who wait for the end of a storm's
                       ///< window shall find them; less than events_per_room: no more than that
  int64_t idle_ms;     ///< a room that nobody asked for so long is forgotten
  size_t rooms_max;    ///< more rooms than this: the longest unasked ones are forgotten earlier
};

/// @return NULL when memory ran out
struct tail *tail_new(const struct tail_options *options);
void tail_free(struct tail *tail);

/// Tells the tail where worker @a id takes its mail, and what a wake does there: @a woken is called in the worker's
/// thread with @a ctx, the room's id (valid during the call) and `news`: true when the room has changed since somebody
/// stood at its head, false when only those who wait for a read have to look again. Before the threads start.
void tail_add_worker(struct tail *tail, unsigned id, struct mailbox *mailbox,
                     void (*woken)(void *ctx, const char *room_id, bool news), void *ctx);

/// Has @a revoked called in the thread of worker @a id, with the ctx of tail_add_worker(), when users of a room are
/// newly known as revoked: soon after, once for many. The room's id is valid during the call. Before the threads start.
void tail_tell_revoked(struct tail *tail, unsigned id, void (*revoked)(void *ctx, const char *room_id));

// -- for those who write and listen ------------------------------------------------------------------------------

/// Events that have just been committed, by this instance or as read by the listener; takes over their strings
/// (events[i].room_id and json become NULL). What continues a known room's head is appended and its watchers are
/// woken; what leaves a gap makes the room dirty. Rooms that nobody asked about are passed over. Any thread.
void tail_publish(struct tail *tail, struct event *events, size_t n);

/// A notification says that the room is at @a revision. Any thread.
void tail_hint(struct tail *tail, const char *room_id, int64_t revision);

/// The slow poll, which asked at @a asked_us (monotonic), says that the room is at @a head. A head below what memory
/// has means that the past has changed (a table was emptied or restored by hand): the room is read anew.
void tail_polled(struct tail *tail, const char *room_id, int64_t asked_us, int64_t head);

/// Dirty rooms (cold, or known to be behind), to be read by the listener: their ids (copied, caller frees each) and
/// their heads in memory (INT64_MIN: cold). @return how many, at most @a max
size_t tail_take_dirty(struct tail *tail, char **room_ids, int64_t *after, size_t max);

/// What was read for a room, asked at @a asked_us (monotonic, before the read). Takes the texts that it keeps out of
/// the events; the caller frees @a news as ever. Wakes.
void tail_fill(struct tail *tail, const char *room_id, int64_t asked_us, struct room_news *news);

/// A snapshot that was read after @a asked_us. Keeps a reference. Wakes those who wait for it.
void tail_fill_snapshot(struct tail *tail, const char *room_id, enum view view, int64_t asked_us, struct body *body,
                        int64_t revision);

/// A snapshot read came to nothing: those who wait for it are woken, and one of them may try again.
void tail_snapshot_failed(struct tail *tail, const char *room_id, enum view view);

/// The read of a room that tail_take_dirty() gave out failed. With @a again the room is dirty again; without, it is
/// once somebody looks or the slow poll sees it behind. Nobody is woken: those who wait have deadlines of their own.
void tail_read_failed(struct tail *tail, const char *room_id, bool again);

/// Something about the room has changed that has no revision (a revoked member was granted again): it is read anew, if
/// it is in memory. Any thread.
void tail_refresh(struct tail *tail, const char *room_id);

/// This instance has granted a revoked member again, and that is committed. Any thread.
void tail_granted(struct tail *tail, const char *room_id, const char *user_id);

/// Events of the room up to @a pruned are no longer kept.
void tail_pruned(struct tail *tail, const char *room_id, int64_t pruned);

/// The rooms that must be polled: somebody waits in them or asked lately. Copies of their ids (caller frees each and
/// the array). Also posts again the wakes that could not be posted for lack of memory.
size_t tail_watched(struct tail *tail, char ***room_ids);

/// Whether LISTEN stands. From the moment it stands (again) a room counts as fresh only once it has been read since;
/// all rooms become dirty. While it does not, a room is fresh only for requests that came before its last read.
void tail_set_listening(struct tail *tail, bool listening);
bool tail_listening(const struct tail *tail);

/// Called in some thread when there is a dirty room where there was none; locks of the tail are held, so it must not
/// call back. Set while no other thread uses the tail.
void tail_on_dirty(struct tail *tail, void (*dirty)(void *ctx), void *ctx);

/// Called in some thread for each event that this instance writes or reads, before anybody can be answered from memory
/// with it; perhaps more than once. Without @a json: events of the room up to @a revision (INT64_MAX: the past has
/// changed) may have been missed. Locks of the tail are held, so it must not call back. Set before the threads start.
void tail_on_event(struct tail *tail,
                   void (*event)(void *ctx, const char *room_id, int64_t revision, enum event_kind kind,
                                 const char *json),
                   void *ctx);

/// Throws everything away and wakes every watcher. Happens by itself when the epoch changes.
void tail_reset(struct tail *tail);

/// Forgets rooms that are idle. Listener thread, every few seconds.
void tail_evict(struct tail *tail);

// -- for those who watch -------------------------------------------------------------------------------------------

/// What a reader wants (CONTRACT §4). Strings belong to the request.
struct presence_query {
  const char *room_id;
  bool has_since;
  int64_t since;
  int64_t covered;   ///< a revision above `since` up to which nothing of `kinds` was found already; else 0
  const char *epoch; ///< NULL: not given
  unsigned kinds;    ///< mask; EVENT_KINDS_ALL when not given
  int limit;
  enum view view;
  bool stream;         ///< events are wanted as server-sent events, not as a reply
  int64_t asked_us;    ///< monotonic time of the request: nothing older than this counts while not listening
  int64_t snapshot_us; ///< no snapshot older than this unless it is the head's: asked_us, or for one that waited at the
                       ///< head the time of its wake
};

enum tail_verdict {
  TAIL_REPLY,         ///< answer now: body, mode, revision (and reason) are set
  TAIL_AT_HEAD,       ///< nothing to say yet: wait, or answer `unchanged`; revision is the head
  TAIL_LOADING,       ///< the room is being read: wait for a wake
  TAIL_READ_SNAPSHOT, ///< the caller starts a snapshot read and waits for a wake. Said to one caller; others get
                      ///< LOADING
  TAIL_READ_EVENTS,   ///< older than memory but not pruned: the caller reads its own events from the database
};

enum presence_mode { MODE_EVENTS, MODE_SNAPSHOT, MODE_UNCHANGED };
enum snapshot_reason { REASON_REQUESTED, REASON_PRUNED, REASON_TOO_MANY, REASON_AHEAD, REASON_EPOCH };

struct tail_answer {
  struct body *body; ///< shared; one reference is the caller's. JSON text up to what differs for each reader; for
                     ///< MODE_EVENTS of a stream, whole messages
  enum presence_mode mode;
  enum snapshot_reason reason; ///< of MODE_SNAPSHOT
  int64_t revision;            ///< what the reply covers
  bool more;                   ///< of MODE_EVENTS: it was cut at the limit
  char epoch[EPOCH_SIZE];
};

/// Looks whether the query can be answered. In every case but TAIL_REPLY and TAIL_READ_EVENTS worker @a worker will be
/// woken for the room at the next change, once: who was woken looks again. Worker threads.
enum tail_verdict tail_look(struct tail *tail, unsigned worker, const struct presence_query *query,
                            struct tail_answer *answer);

/// The head of the room for a query without a cursor, if it is known without reading anything.
bool tail_fresh_head(struct tail *tail, const struct presence_query *query, int64_t *head, char epoch[EPOCH_SIZE]);

/// Whether memory has, for a request that came at @a asked_us (monotonic), every event of the room that this instance
/// has heard of. If not, worker @a worker will be woken once the room has been read. Worker threads.
bool tail_current(struct tail *tail, unsigned worker, const char *room_id, int64_t asked_us);

/// Keeps the room in memory and polled for a minute, reading it where need be. Any thread.
void tail_keep(struct tail *tail, const char *room_id);

/// The head of the room as memory has it, however old. @return -1 when it has none
int64_t tail_head(struct tail *tail, const char *room_id);

/// Worker @a worker has nobody waiting in the room any more.
void tail_unwatch(struct tail *tail, unsigned worker, const char *room_id);

#endif
