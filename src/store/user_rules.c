// SPDX-License-Identifier: Apache-2.0
#include "store/user_rules.h"

int user_sessions_delta(enum event_kind kind, bool has_session) {
  switch (kind) {
  case EVENT_LEASE_GRANTED:
    return 1;
  case EVENT_LEASE_EXPIRED:
  case EVENT_SESSION_CLOSED:
    return -1;
  case EVENT_MEMBERSHIP_REVOKED:
    return has_session ? -1 : 0;
  case EVENT_LEASE_RENEWED:
  case EVENT_USER_ONLINE:
  case EVENT_USER_OFFLINE:
  case EVENT_KIND_COUNT:
    break;
  }
  return 0;
}

static void go_offline(struct user_state *s) {
  s->online = false;
  s->offline_at_us = 0;
  s->changed = true;
}

int user_state_apply(struct user_state *s, enum event_kind kind, bool has_session, int64_t at_us,
                     int64_t offline_grace_ms) {
  s->sessions += user_sessions_delta(kind, has_session);
  if (kind == EVENT_LEASE_GRANTED) {
    bool came = !s->online;
    s->changed = s->changed || came || s->offline_at_us != 0;
    s->online = true;
    s->offline_at_us = 0;
    if (came) {
      s->online_since_us = at_us;
    }
    return came ? EVENT_USER_ONLINE : -1;
  }
  if (s->sessions > 0 || !s->online) {
    return -1;
  }
  if (kind == EVENT_MEMBERSHIP_REVOKED) {
    go_offline(s);
    return EVENT_USER_OFFLINE;
  }
  if (kind == EVENT_LEASE_EXPIRED || kind == EVENT_SESSION_CLOSED) {
    s->offline_at_us = at_us + offline_grace_ms * 1000;
    s->changed = true;
  }
  return -1;
}

bool user_state_grace_over(struct user_state *s, int64_t at_us) {
  if (!s->online || s->sessions > 0 || s->offline_at_us == 0 || s->offline_at_us > at_us) {
    return false;
  }
  go_offline(s);
  return true;
}
