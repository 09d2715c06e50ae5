// SPDX-License-Identifier: Apache-2.0
// Who may have a cursor, and when it ends.
#include <jansson.h>
#include <string.h>

#include "base/clock.h"
#include "base/metric.h"
#include "base/util.h"
#include "live/cursors_private.h"

// A lease that was seen live so long ago is looked at again before a packet is taken. A revocation is answered later
// than this after its commit, so that nobody takes a packet of the user then, however late the event comes here.
#define REMEMBERED_US INT64_C(300000)

// A session that goes on posting has its lease seen again by the bus after this, with those of all others in one query,
// so that its packets need not wait for a query of their own.
#define RENEW_US INT64_C(200000)

// A lease is seen again so long before the expiry that is known of it, and at most so often.
#define AHEAD_US INT64_C(1000000)
#define AGAIN_US INT64_C(50000)

// After a read that failed.
#define FAILED_US INT64_C(300000)

// A packet that says it is from so far ahead is not from one of us.
#define FUTURE_US INT64_C(10000000)

static void shut(struct cursor_session *s) {
  s->verified = false;
  s->room->version++;
}

// What is needed to take packets of the session by memory alone.
static bool remembered(const struct cursor_session *s, int64_t now_us, int64_t db_us) {
  return s->verified && s->expires_us > db_us && now_us - s->verified_us < REMEMBERED_US;
}

// When the lease is to be seen again.
static int64_t next_sight(int64_t now_us, int64_t left_us) {
  int64_t in_us = left_us > 2 * AHEAD_US ? left_us - AHEAD_US : left_us / 2;
  return now_us + (in_us > AGAIN_US ? in_us : AGAIN_US);
}

// The lease was seen live. Returns whether the cursor may have been invisible until now.
static bool open_gate(struct cursors *c, struct cursor_session *s, const struct stay *stay) {
  int64_t db_us = clock_db_us();
  bool was_hidden = !cursor_visible(s, db_us);
  if (s->data && s->packet_stay_us != stay->granted_at_us)
    cursor_drop(c, s); // of another stay
  s->verified = true;
  s->stay_us = stay->granted_at_us;
  s->revision = stay->room_revision;
  s->expires_us = stay->expires_at_us;
  if (stay->asked_us > s->verified_us)
    s->verified_us = stay->asked_us;
  s->room->version++;
  return was_hidden;
}

static void plan(struct cursors *c, struct cursor_session *s) {
  cursor_schedule(c, s, next_sight(clock_mono_us(), s->expires_us - clock_db_us()));
}

// -- posted here ---------------------------------------------------------------------------------------------------

// The gate is open.
static enum cursors_put take(struct cursors *c, struct cursor_session *s, const struct cursor_packet *packet,
                             int64_t *seq) {
  if (s->data && packet->at_us < s->at_us) {
    *seq = s->seq; // a later one of the session was faster
    return CURSOR_TAKEN;
  }
  if (!s->data && cursors_full(c, s->room))
    return CURSOR_FULL;
  if (!cursor_store(c, s, packet->data, packet->len, packet->at_us, s->stay_us))
    return CURSOR_NO_MEMORY;
  s->mine = true;
  cursor_show(c, s);
  cursor_queue(c, s);
  *seq = s->seq;
  metric_add(METRIC_CURSOR_POSTED, 1);
  return CURSOR_TAKEN;
}

// Lets the bus see the lease in its next round, unless somebody looks at it already.
static void renew(struct cursors *c, struct cursor_session *s, int64_t now_us) {
  if (s->checks == 0 && now_us - s->verified_us > RENEW_US)
    cursor_schedule(c, s, now_us);
}

static enum cursors_put put(struct cursors *c, struct cursor_packet *packet, int64_t *seq) {
  struct cursor_session *s =
      cursor_session_find(cursor_room_find(c, packet->key.room_id), packet->key.user_id, packet->key.session_id);
  if ((!s || !s->data) && cursors_full(c, cursor_room_find(c, packet->key.room_id)))
    return CURSOR_FULL;
  if (!s)
    s = cursor_session_get(c, &packet->key);
  if (!s)
    return CURSOR_NO_MEMORY;
  int64_t db_us = clock_db_us();
  int64_t newest_us = s->issued_us > s->at_us ? s->issued_us : s->at_us;
  packet->at_us = s->issued_us = db_us > newest_us ? db_us : newest_us + 1;
  int64_t now_us = clock_mono_us();
  if (remembered(s, now_us, db_us)) {
    enum cursors_put result = take(c, s, packet, seq);
    if (result == CURSOR_TAKEN)
      renew(c, s, now_us);
    return result;
  }
  s->checks++;
  return CURSOR_CHECK;
}

enum cursors_put cursors_put(struct cursors *c, struct cursor_packet *packet, int64_t *seq) {
  cursors_lock(c);
  enum cursors_put result = put(c, packet, seq);
  cursors_unlock(c);
  return result;
}

static enum cursors_put checked(struct cursors *c, struct cursor_session *s, const struct cursor_packet *packet,
                                const struct stay *stay, int64_t *seq) {
  // Read before the newest end that is known: what is true now is not known.
  if (stay->generation != c->generation || stay->room_revision < s->ended)
    return CURSOR_CHECK;
  if (!stay->live)
    return stay->revoked ? CURSOR_REVOKED : CURSOR_NOT_LIVE;
  if (stay->room_revision >= s->revision || !s->verified)
    (void)open_gate(c, s, stay); // else another read was faster and knows more
  if (s->stay_us != stay->granted_at_us)
    return CURSOR_CHECK;
  if (clock_mono_us() - s->verified_us >= REMEMBERED_US)
    return CURSOR_CHECK; // the read took so long that the lease may have ended since
  enum cursors_put result = take(c, s, packet, seq);
  if (s->data)
    plan(c, s);
  return result;
}

enum cursors_put cursors_checked(struct cursors *c, const struct cursor_packet *packet, const struct stay *stay,
                                 int64_t *seq) {
  cursors_lock(c);
  struct cursor_session *s =
      cursor_session_find(cursor_room_find(c, packet->key.room_id), packet->key.user_id, packet->key.session_id);
  enum cursors_put result = s ? checked(c, s, packet, stay, seq) : CURSOR_NO_MEMORY;
  if (s && result != CURSOR_CHECK) {
    s->checks--;
    cursor_release(c, s);
  }
  cursors_unlock(c);
  return result;
}

void cursors_give_up(struct cursors *c, const struct lease_key *key) {
  cursors_lock(c);
  struct cursor_session *s = cursor_session_find(cursor_room_find(c, key->room_id), key->user_id, key->session_id);
  if (s) {
    s->checks--;
    cursor_release(c, s);
  }
  cursors_unlock(c);
}

// -- of another instance -------------------------------------------------------------------------------------------

void cursor_take_remote(struct cursors *c, const struct cursor_packet *packet, int64_t stay_us) {
  if (packet->at_us > clock_db_us() + FUTURE_US)
    return;
  struct cursor_room *room = cursor_room_find(c, packet->key.room_id);
  struct cursor_session *s = cursor_session_find(room, packet->key.user_id, packet->key.session_id);
  if ((!s || !s->data) && cursors_full(c, room))
    return;
  if (!s)
    s = cursor_session_get(c, &packet->key);
  if (!s)
    return;
  // Of two stays the later one counts, of two packets of one stay likewise.
  bool late = s->data && (stay_us < s->packet_stay_us || (stay_us == s->packet_stay_us && packet->at_us <= s->at_us));
  if (late || stay_us < s->stay_us || !cursor_store(c, s, packet->data, packet->len, packet->at_us, stay_us)) {
    cursor_release(c, s);
    return;
  }
  metric_add(METRIC_CURSOR_HEARD, 1);
  if (s->queued) // a later one than what was posted here
    DL_DELETE2(c->out, s, out_prev, out_next);
  s->queued = s->mine = false;
  if (s->verified && s->stay_us == stay_us) {
    cursor_show(c, s);
    if (s->due.slot == 0)
      plan(c, s);
    return;
  }
  shut(s);
  cursor_schedule(c, s, 0);
}

// -- seen by the bus -----------------------------------------------------------------------------------------------

static void verified(struct cursors *c, struct cursor_session *s, const struct stay *stay) {
  if (!s->data)
    return;
  if (!stay) {
    cursor_schedule(c, s, clock_mono_us() + FAILED_US);
  } else if (stay->generation != c->generation || stay->room_revision < s->ended) {
    cursor_schedule(c, s, 0);
  } else if (s->verified && stay->room_revision < s->revision) {
    plan(c, s); // another read was faster and knows more
  } else if (!stay->live) {
    shut(s);
    cursor_drop(c, s);
  } else {
    bool was_hidden = open_gate(c, s, stay);
    if (!s->data)
      return;
    if (was_hidden)
      cursor_show(c, s);
    plan(c, s);
  }
}

void cursors_verified(struct cursors *c, const struct lease_key *key, const struct stay *stay) {
  cursors_lock(c);
  struct cursor_session *s = cursor_session_find(cursor_room_find(c, key->room_id), key->user_id, key->session_id);
  if (s) {
    s->checks--;
    verified(c, s, stay);
    cursor_release(c, s);
  }
  cursors_unlock(c);
}

// -- ends ----------------------------------------------------------------------------------------------------------

static void end(struct cursors *c, struct cursor_session *s, int64_t revision) {
  if (revision <= s->revision)
    return; // the lease was seen live after that: a later stay
  if (revision > s->ended)
    s->ended = revision;
  bool of_the_ended = s->data && s->packet_stay_us == s->stay_us;
  shut(s);
  if (of_the_ended) {
    cursor_drop(c, s);
  } else {
    cursor_tell_gone(c, s);
    if (s->data)
      cursor_schedule(c, s, 0); // perhaps of a new stay
  }
  cursor_release(c, s);
}

// Events up to that revision were not seen: nobody whose lease was seen before is sure to be here. Where the past
// itself has changed (the largest number) revisions of before say nothing any more.
static void missed(struct cursors *c, struct cursor_room *room, int64_t revision) {
  bool past_changed = revision == INT64_MAX;
  struct cursor_session *s, *next;
  DL_FOREACH_SAFE(room->by_seq, s, next) {
    if (s->revision >= revision)
      continue;
    shut(s);
    s->revision = 0;
    if (past_changed || revision > s->ended)
      s->ended = past_changed ? 0 : revision;
    if (s->data)
      cursor_schedule(c, s, 0);
    cursor_release(c, s);
  }
}

static void ended(struct cursors *c, struct cursor_room *room, int64_t revision, const json_t *event) {
  const char *user_id = json_string_value(json_object_get(event, "user_id"));
  const char *session_id = json_string_value(json_object_get(event, "session_id"));
  if (!user_id) {
    missed(c, room, revision); // the event is not one of ours
    return;
  }
  if (session_id) {
    struct cursor_session *s = cursor_session_find(room, user_id, session_id);
    if (s)
      end(c, s, revision);
    return;
  }
  struct cursor_session *s, *next;
  DL_FOREACH_SAFE(room->by_seq, s, next) {
    if (strcmp(cursor_user(s), user_id) == 0)
      end(c, s, revision);
  }
}

void cursors_event(void *ctx, const char *room_id, int64_t revision, enum event_kind kind, const char *json) {
  struct cursors *c = ctx;
  if (json && kind != EVENT_LEASE_EXPIRED && kind != EVENT_SESSION_CLOSED && kind != EVENT_MEMBERSHIP_REVOKED)
    return;
  cursors_lock(c);
  struct cursor_room *room = cursor_room_find(c, room_id);
  if (room && room->sessions && !json) {
    missed(c, room, revision);
  } else if (room && room->sessions) {
    json_t *event = json_loads(json, 0, NULL);
    ended(c, room, revision, event);
    json_decref(event);
  }
  cursors_unlock(c);
}
