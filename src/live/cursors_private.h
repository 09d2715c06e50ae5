// SPDX-License-Identifier: Apache-2.0
/// @file
/// The inside of the cursors, shared by cursors.c (rooms, sessions, waking), cursors_gate.c (who may have one),
/// cursors_look.c (answering) and cursors_work.c (what the bus does). Everything below is under `lock`.
#ifndef SH_LIVE_CURSORS_PRIVATE_H
#define SH_LIVE_CURSORS_PRIVATE_H

#include <pthread.h>

// A failed allocation leaves an added item's hh.tbl NULL instead of ending the process.
#define HASH_NONFATAL_OOM 1
#include <uthash.h>
#include <utlist.h>

#include "base/heap.h"
#include "live/cursors.h"
#include "live/tail.h"

/// Ended cursors that a room remembers, so that those who poll learn of them.
#define CURSORS_GONE 64

/// Replies that a room keeps.
#define CURSORS_REPLIES 2

/// Bytes of the name of this process among the instances, with its NUL.
#define CURSORS_ORIGIN_SIZE 21

struct cursor_session {
  UT_hash_handle hh;                  ///< of the room, by key
  struct cursor_session *prev, *next; ///< of the room, by seq; the newest last
  struct cursor_session *out_prev, *out_next;
  struct cursor_room *room;
  struct heap_node due; ///< when its lease has to be seen (again)

  // The gate.
  bool verified;       ///< the lease was live at `revision`, and nothing is known against it
  int64_t stay_us;     ///< granted_at of the lease that was seen last; 0: none
  int64_t revision;    ///< the room's revision when that was seen
  int64_t expires_us;  ///< the lease's expiry as seen then, on the database's clock
  int64_t verified_us; ///< monotonic, before that was asked
  int64_t ended;       ///< room revision of the newest ending event: what was seen before that counts no more
  unsigned checks;     ///< reads under way; they keep this struct

  // The packet.
  char *data; ///< NULL: none
  size_t len;
  int64_t at_us, seq;
  int64_t issued_us;      ///< the newest at_us that was given out
  int64_t packet_stay_us; ///< the stay that the packet belongs to
  bool shown;             ///< watchers may have it under `seq`
  bool mine;              ///< posted here
  bool queued;            ///< to be sent to the other instances

  size_t user_len, key_len;
  char key[]; ///< user, NUL, session, NUL
};

struct cursor_gone {
  int64_t seq;
  char *user_id, *session_id;
};

struct cursors_reply {
  struct body *body; ///< NULL: empty
  bool all, reset, stream;
  int64_t since, version;
  int64_t until_us; ///< database clock; when the first cursor in it runs out
};

struct cursor_room {
  UT_hash_handle hh;
  struct cursor_session *sessions; ///< by key
  struct cursor_session *by_seq;
  int64_t seq;        ///< of the newest change
  int64_t floor;      ///< what changed up to here may have been forgotten
  int64_t version;    ///< counts everything that can change a reply
  int64_t window_us;  ///< monotonic; when watchers were woken or answered last
  int64_t kept_us;    ///< monotonic; when the tail was told last to keep the room; 0: never
  int64_t emptied_us; ///< monotonic; when something was in it last
  uint32_t watch;     ///< workers to be woken
  struct cursor_gone gone[CURSORS_GONE];
  unsigned next_gone;
  struct cursors_reply replies[CURSORS_REPLIES];
  unsigned next_reply;
  size_t n_sessions; ///< with a packet
  char id[];
};

struct cursors {
  struct cursors_options options;
  pthread_mutex_t lock;
  struct cursor_room *rooms;
  struct cursor_session *out; ///< to be sent, the longest waiting first
  struct heap due;
  size_t n_sessions; ///< with a packet
  int64_t base, seq; ///< where the numbers of this process begin, and the newest
  int64_t forgotten; ///< rooms were forgotten whose changes had numbers up to here
  unsigned generation;
  bool hello;        ///< others are to be asked
  bool resend;       ///< others have asked
  int64_t resent_us; ///< monotonic; when everything was queued last
  int64_t keep_us;   ///< monotonic; when the rooms are gone through next
  int64_t sleeps_until_us;
  void (*work)(void *ctx);
  void *work_ctx;
  char origin[CURSORS_ORIGIN_SIZE];
  struct {
    struct mailbox *mailbox;
    void (*woken)(void *ctx, const char *room_id);
    void *ctx;
  } workers[TAIL_WORKERS_MAX];
};

/// Locks, and throws everything away when the epoch has changed.
void cursors_lock(struct cursors *cursors);
void cursors_unlock(struct cursors *cursors);

struct cursor_room *cursor_room_find(struct cursors *cursors, const char *room_id);

/// Finds or makes it. @return NULL when memory ran out
struct cursor_room *cursor_room_get(struct cursors *cursors, const char *room_id);

/// Frees an empty room that nobody waits in.
void cursor_room_free(struct cursors *cursors, struct cursor_room *room);

struct cursor_session *cursor_session_find(struct cursor_room *room, const char *user_id, const char *session_id);
struct cursor_session *cursor_session_get(struct cursors *cursors, const struct lease_key *key);

static inline const char *cursor_user(const struct cursor_session *s) {
  return s->key;
}

static inline const char *cursor_sid(const struct cursor_session *s) {
  return s->key + s->user_len + 1;
}

/// Whether it may be shown at @a db_us.
static inline bool cursor_visible(const struct cursor_session *s, int64_t db_us) {
  return s->data && s->verified && s->expires_us > db_us;
}

/// Whether one more cursor fits.
bool cursors_full(const struct cursors *cursors, const struct cursor_room *room);

/// Puts a packet in the place of the one before; not shown by that. @return false when memory ran out
bool cursor_store(struct cursors *cursors, struct cursor_session *s, const char *data, size_t len, int64_t at_us,
                  int64_t stay_us);

/// Gives it the next number and wakes.
void cursor_show(struct cursors *cursors, struct cursor_session *s);

/// The session has no cursor any more; those who have it are told.
void cursor_drop(struct cursors *cursors, struct cursor_session *s);

/// Tells those who have it that it is gone; a packet that is there stays.
void cursor_tell_gone(struct cursors *cursors, struct cursor_session *s);

/// Frees the session if nothing needs it.
void cursor_release(struct cursors *cursors, struct cursor_session *s);

/// Its lease is to be seen at @a due_us (monotonic) at the latest.
void cursor_schedule(struct cursors *cursors, struct cursor_session *s, int64_t due_us);

/// Puts it into the queue of what is sent, unless it is there.
void cursor_queue(struct cursors *cursors, struct cursor_session *s);

/// The bus has something to do at @a due_us.
void cursors_ring(struct cursors *cursors, int64_t due_us);

/// A packet of another instance.
void cursor_take_remote(struct cursors *cursors, const struct cursor_packet *packet, int64_t stay_us);

#endif
