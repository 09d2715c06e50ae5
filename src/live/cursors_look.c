// SPDX-License-Identifier: Apache-2.0
// What changed in a room's cursors, as JSON text that all who ask for the same share.
#include <string.h>

#include "base/clock.h"
#include "base/jsonout.h"
#include "base/sse.h"
#include "live/cursors_private.h"

// What one look needs at hand.
struct look {
  struct cursor_room *room; // NULL: nobody was ever here
  const struct cursors_query *query;
  int64_t db_us;
  bool all, reset;
  int64_t until_us; // when the first cursor of the reply runs out
  bool something;
};

static void add_names(struct buf *text, const char *user_id, const char *session_id) {
  jo_object(text);
  jo_kstr(text, "user_id", user_id);
  jo_kstr(text, "session_id", session_id);
}

static void add_cursor(struct look *k, struct buf *text, const struct cursor_session *s) {
  add_names(text, cursor_user(s), cursor_sid(s));
  jo_key(text, "data");
  jo_raw(text, s->data, s->len);
  jo_kint(text, "seq", s->seq);
  jo_ktime(text, "at", s->at_us);
  jo_object_end(text);
  if (s->expires_us < k->until_us)
    k->until_us = s->expires_us;
  k->something = true;
}

// Calls back for each cursor that is wanted. The newest are last: from there back to the first one, and then forward.
static void each_cursor(struct look *k, void (*add)(struct look *k, struct buf *text, const struct cursor_session *s),
                        struct buf *text) {
  struct cursor_session *first = k->room ? k->room->by_seq : NULL;
  if (first && !k->all) {
    struct cursor_session *s = first->prev; // the last
    for (first = NULL; s->seq > k->query->since; s = s->prev) {
      first = s;
      if (s == k->room->by_seq)
        break;
    }
  }
  for (const struct cursor_session *s = first; s; s = s->next)
    if (s->shown && cursor_visible(s, k->db_us))
      add(k, text, s);
}

static void each_gone(struct look *k, void (*add)(struct look *k, struct buf *text, const struct cursor_gone *gone),
                      struct buf *text) {
  for (size_t i = 0; !k->all && k->room && i < CURSORS_GONE; i++) {
    const struct cursor_gone *gone = &k->room->gone[(k->room->next_gone + i) % CURSORS_GONE];
    if (!gone->user_id || gone->seq <= k->query->since)
      continue;
    const struct cursor_session *s = cursor_session_find(k->room, gone->user_id, gone->session_id);
    if (s && s->shown)
      continue; // it has come back
    add(k, text, gone);
    k->something = true;
  }
}

static void add_gone(struct look *k, struct buf *text, const struct cursor_gone *gone) {
  (void)k;
  add_names(text, gone->user_id, gone->session_id);
  jo_object_end(text);
}

static void make_reply(struct look *k, struct buf *text, int64_t seq) {
  jo_object(text);
  jo_kstr(text, "room_id", k->query->room_id);
  jo_kint(text, "seq", seq);
  jo_key(text, "cursors");
  jo_array(text);
  each_cursor(k, add_cursor, text);
  jo_array_end(text);
  jo_key(text, "gone");
  jo_array(text);
  each_gone(k, add_gone, text);
  jo_array_end(text);
  if (k->reset)
    jo_kbool(text, "reset", true);
}

static void send_cursor(struct look *k, struct buf *text, const struct cursor_session *s) {
  struct buf json = {0};
  add_cursor(k, &json, s);
  text->failed = text->failed || json.failed;
  if (!text->failed)
    sse_message(text, s->seq, "cursor", json.data, json.len);
  buf_free(&json);
}

static void send_gone(struct look *k, struct buf *text, const struct cursor_gone *gone) {
  struct buf json = {0};
  add_gone(k, &json, gone);
  text->failed = text->failed || json.failed;
  if (!text->failed)
    sse_message(text, -1, "gone", json.data, json.len);
  buf_free(&json);
}

// The numbers ascend, so that a client that is cut off in the midst of it goes on from there.
static void make_messages(struct look *k, struct buf *text, int64_t seq) {
  if (k->reset)
    sse_message(text, -1, "reset", "{}", 2);
  each_gone(k, send_gone, text);
  each_cursor(k, send_cursor, text);
  sse_id(text, seq);
}

static struct body *make(struct look *k, int64_t seq) {
  struct buf text = {0};
  if (k->query->stream)
    make_messages(k, &text, seq);
  else
    make_reply(k, &text, seq);
  return body_take(&text);
}

static struct body *kept_reply(const struct look *k) {
  for (size_t i = 0; k->room && i < CURSORS_REPLIES; i++) {
    const struct cursors_reply *reply = &k->room->replies[i];
    if (reply->body && reply->version == k->room->version && reply->until_us > k->db_us && reply->all == k->all &&
        reply->reset == k->reset && reply->stream == k->query->stream && (k->all || reply->since == k->query->since))
      return reply->body;
  }
  return NULL;
}

static void keep_reply(const struct look *k, struct body *body) {
  if (!k->room || !body || !k->something)
    return;
  struct cursors_reply *reply = &k->room->replies[k->room->next_reply++ % CURSORS_REPLIES];
  body_unref(reply->body);
  *reply = (struct cursors_reply){.body = body_ref(body),
                                  .all = k->all,
                                  .reset = k->reset,
                                  .stream = k->query->stream,
                                  .since = k->query->since,
                                  .version = k->room->version,
                                  .until_us = k->until_us};
}

// Whether one who has not waited yet may be answered now; a window begins with the first who is answered outside one.
static bool may_answer(struct cursor_room *room, bool fresh, int64_t now_us) {
  if (!room)
    return true;
  if (now_us - room->window_us < CURSORS_WINDOW_US)
    return !fresh;
  room->window_us = now_us;
  return true;
}

static bool look(struct cursors *c, struct look *k, struct cursors_answer *answer) {
  const struct cursors_query *query = k->query;
  bool begins = query->has_since && query->since == 0;
  k->reset = query->has_since && !begins &&
             (query->since < c->base || query->since > c->seq || (k->room && query->since < k->room->floor) ||
              (!k->room && query->since < c->forgotten));
  k->all = !query->has_since || begins || k->reset;
  answer->seq = k->room ? k->room->seq : c->seq;
  struct body *kept = kept_reply(k);
  k->something = kept != NULL;
  answer->body = kept ? body_ref(kept) : make(k, answer->seq);
  if (!kept)
    keep_reply(k, answer->body);
  return !query->has_since || k->reset || k->something;
}

bool cursors_look(struct cursors *c, unsigned worker, const struct cursors_query *query,
                  struct cursors_answer *answer) {
  *answer = (struct cursors_answer){.not_before = INT64_MAX};
  cursors_lock(c);
  struct look k = {.query = query, .db_us = clock_db_us(), .until_us = INT64_MAX};
  k.room = query->has_since ? cursor_room_get(c, query->room_id) : cursor_room_find(c, query->room_id);
  int64_t now_us = clock_mono_us();
  bool says = look(c, &k, answer);
  if (says && query->has_since && !k.reset && !may_answer(k.room, query->fresh, now_us))
    says = false;
  if (!says && k.room) {
    k.room->watch |= UINT32_C(1) << worker;
    if (now_us - k.room->window_us < CURSORS_WINDOW_US)
      answer->not_before = k.room->window_us + CURSORS_WINDOW_US;
  }
  cursors_unlock(c);
  return says;
}

void cursors_unwatch(struct cursors *c, unsigned worker, const char *room_id) {
  cursors_lock(c);
  struct cursor_room *room = cursor_room_find(c, room_id);
  if (room)
    room->watch &= ~(UINT32_C(1) << worker);
  cursors_unlock(c);
}
