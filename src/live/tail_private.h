// SPDX-License-Identifier: Apache-2.0
/// @file
/// The inside of the room tail, shared by tail.c (the tail as a whole), tail_room.c (one room) and tail_look.c
/// (answering). Rooms lie in shards by the hash of their id, each under a lock of its own. Lock order: shard, then
/// mailbox; no two shards at a time. Nothing else is locked, read or waited for under a shard's lock.
#ifndef SH_LIVE_TAIL_PRIVATE_H
#define SH_LIVE_TAIL_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

// A failed allocation leaves an added room's hh.tbl NULL instead of ending the process.
#define HASH_NONFATAL_OOM 1
#include <uthash.h>
#include <utlist.h>

#include "live/revoked.h"
#include "live/tail.h"

#define TAIL_SHARD_BITS 4
#define TAIL_SHARDS (1u << TAIL_SHARD_BITS)

/// Replies that are kept for the head as it is.
#define TAIL_REPLIES 8

/// A room that nobody waits in and nobody asked for so long is no longer polled, and read anew at the next look.
#define TAIL_POLLED_US INT64_C(60000000)

/// A snapshot read that has not come back for so long counts as lost.
#define TAIL_SNAPSHOT_LOST_US INT64_C(2000000)

/// Events that came so short ago are kept beyond events_per_room.
#define TAIL_STORM_US INT64_C(10000000)

struct ring_event {
  char *json;
  int64_t at_us; ///< when it came
  enum event_kind kind;
};

struct snapshot_slot {
  struct body *body; ///< NULL: none
  int64_t revision, asked_us;
  int64_t loading_since_us; ///< 0: nobody reads one
};

struct reply_slot {
  struct body *body; ///< NULL: empty
  int64_t since, revision;
  unsigned kinds;
  int limit;
  bool stream, more;
};

struct tail_room {
  UT_hash_handle hh;
  struct tail_room *lru_prev, *lru_next;     ///< all rooms of the shard, the longest unasked first
  struct tail_room *dirty_prev, *dirty_next; ///< the dirty ones
  int64_t born_us;                           ///< what was asked of the database before then is not for this room
  int64_t asked_us;                          ///< when somebody looked last

  bool loaded;              ///< head and events are there
  bool dirty;               ///< to be read by the listener
  int64_t reading_since_us; ///< when the listener took it; 0: it does not read it now
  int64_t head, pruned;
  int64_t known;         ///< the highest revision heard of, at least head once loaded
  int64_t known_at_us;   ///< when that was heard
  int64_t checked_at_us; ///< head and events are no older than this

  /// The newest events: revisions head - count + 1 to head, from `first` on.
  struct ring_event *ring;
  size_t cap, first, count;

  uint32_t watch;      ///< workers to be woken when the head moves
  uint32_t load_watch; ///< workers that wait for a read
  uint32_t wake_lost;  ///< workers that a wake could not be posted to

  struct revoked_set revoked; ///< who may not be in the room: as of the head, or of what was told since
  int64_t granted_us;         ///< when this instance granted a revoked member again; no read from before counts
  uint32_t to_tell;           ///< workers that are to be told that the set has grown
  uint32_t told;              ///< workers with such mail on its way

  struct snapshot_slot snapshots[VIEW_KINDS];
  struct reply_slot replies[TAIL_REPLIES];
  unsigned next_reply;
  char id[];
};

struct tail_shard {
  pthread_mutex_t lock;
  struct tail_room *rooms; ///< by id
  struct tail_room *lru, *dirty;
  size_t n;
};

struct tail_worker {
  struct mailbox *mailbox; ///< NULL: no such worker
  void (*woken)(void *ctx, const char *room_id, bool news);
  void (*revoked)(void *ctx, const char *room_id); ///< NULL: not asked for
  void *ctx;
};

struct tail {
  struct tail_options options;
  struct tail_shard shards[TAIL_SHARDS];
  struct tail_worker workers[TAIL_WORKERS_MAX];
  atomic_uint generation; ///< epoch_generation() that the content belongs to
  atomic_bool listening;
  _Atomic int64_t listening_since_us;
  atomic_size_t n_dirty;
  atomic_uint next_shard; ///< where tail_take_dirty() begins, so that no shard waits for ever
  void (*dirty)(void *ctx);
  void *dirty_ctx;
  void (*event)(void *ctx, const char *room_id, int64_t revision, enum event_kind kind, const char *json);
  void *event_ctx;
};

/// Where a room is or would be.
struct tail_place {
  struct tail_shard *shard;
  struct tail_room *room; ///< NULL: not in memory
  unsigned hash;
};

/// Throws the content away when the epoch has changed. Called first, without a lock, by everything that looks inside.
void tail_check_epoch(struct tail *tail);

/// Locks the room's shard and finds it; the caller unlocks `shard->lock`.
struct tail_place tail_lock(struct tail *tail, const char *room_id);

// -- All below with the shard locked. -----------------------------------------------------------------------------

/// Makes the room, forgetting the longest unasked one where there are too many. @return NULL when memory ran out
struct tail_room *room_create(struct tail *tail, struct tail_place *place, const char *room_id, int64_t now_us);

/// Takes the room out of the shard and frees it.
void room_destroy(struct tail *tail, struct tail_shard *shard, struct tail_room *room);

/// Whether somebody waits in the room.
bool room_watched(const struct tail_room *room);

/// Whether the slow poll asks for the room.
bool room_polled(const struct tail_room *room, int64_t now_us);

/// Lets the listener read the room.
void room_mark_dirty(struct tail *tail, struct tail_shard *shard, struct tail_room *room);
void room_unmark_dirty(struct tail *tail, struct tail_shard *shard, struct tail_room *room);

/// The room has changed: posts a wake to all who wait in it; they are no longer registered then.
void room_wake_all(struct tail *tail, struct tail_room *room);

/// A read is over: posts a wake to those who wait for one.
void room_wake_loaders(struct tail *tail, struct tail_room *room);

/// Posts the wakes again that could not be posted.
void room_wake_lost(struct tail *tail, struct tail_room *room);

/// The room is at least at @a revision.
void room_raise_known(struct tail_room *room, int64_t revision, int64_t now_us);

/// Appends the event head + 1. Takes over @a json; when memory is short the ring is emptied instead.
void room_push(const struct tail *tail, struct tail_room *room, enum event_kind kind, char *json);

/// Empties the ring: memory then begins after @a head.
void room_restart(struct tail_room *room, int64_t head);

/// Tells whoever asked with tail_on_event().
void room_tell(const struct tail *tail, const char *room_id, int64_t revision, enum event_kind kind, const char *json);

/// Brings the room up to what was read.
void room_apply(const struct tail *tail, struct tail_room *room, struct room_news *news);

/// The event with revision @a revision, which is in the ring.
const struct ring_event *room_event(const struct tail_room *room, int64_t revision);

/// Whether an event at or below the head is the one that memory has, or is too old to tell.
bool room_has(const struct tail_room *room, const struct event *event);

/// The highest revision that memory does not hold the event of.
int64_t room_floor(const struct tail_room *room);

/// An event beyond the head that says that a user was revoked.
void room_revoke(struct tail *tail, struct tail_shard *shard, struct tail_room *room, const struct event *event);

/// The revoked users as they were read, asked at @a asked_us, when the room was at @a revision (INT64_MAX: after all
/// that was heard of the room). What @a fresh holds afterwards is the caller's to clear.
void room_take_revoked(struct tail *tail, struct tail_shard *shard, struct tail_room *room, struct revoked_set *fresh,
                       int64_t revision, int64_t asked_us);

/// Posts to the workers that are to be told, as far as memory allows.
void room_tell_revoked(struct tail *tail, struct tail_room *room);

/// Whether the room can be answered from for a request that came at @a asked_us.
bool room_fresh(const struct tail *tail, const struct tail_room *room, int64_t asked_us);

#endif
