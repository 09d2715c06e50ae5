// SPDX-License-Identifier: Apache-2.0
#include "store/explain.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"

const char *explain_state(const struct explain_facts *f) {
  if (f->live > 0)
    return "online";
  if (f->overdue > 0)
    return "expired";
  return f->offline_at_us != 0 ? "grace" : "offline";
}

static bool revoked(const struct explain_facts *f) {
  return f->member && f->revoked_at_us != 0;
}

static void put_time(struct buf *out, int64_t unix_us) {
  char text[RFC3339_SIZE];
  rfc3339_format(text, unix_us);
  buf_puts(out, text);
}

static const char *plural(int n) {
  return n == 1 ? "" : "s";
}

/// How the newest tombstone came to be.
static void put_end(const struct explain_facts *f, struct buf *out) {
  if (strcmp(f->ended.reason, "closed") == 0)
    buf_printf(out, "session \"%s\" was closed at revision %" PRId64 " at ", f->ended.session_id, f->ended.revision);
  else if (strcmp(f->ended.reason, "revoked") == 0)
    buf_printf(out, "the membership was revoked, which ended session \"%s\" at ", f->ended.session_id);
  else
    buf_printf(out, "session \"%s\" was not renewed in time after revision %" PRId64 " and its lease was ended at ",
               f->ended.session_id, f->ended.revision);
  put_time(out, f->ended.at_us);
}

static void put_offline(const struct explain_facts *f, struct buf *out) {
  if (revoked(f) && f->revoked_at_us >= f->ended.at_us) {
    buf_puts(out, "offline: the membership was revoked at ");
    put_time(out, f->revoked_at_us);
  } else if (f->ended.session_id != NULL) {
    buf_puts(out, "offline: ");
    put_end(f, out);
    buf_puts(out, "; no other session is there");
  } else if (f->last_seen_us != 0) {
    buf_puts(out, "offline: the user was last seen here at ");
    put_time(out, f->last_seen_us);
    buf_puts(out, "; how that session ended is no longer kept");
  } else {
    buf_puts(out, "offline: no heartbeat of this user was ever accepted in this room");
  }
}

void explain_rule(const struct explain_facts *f, struct buf *out) {
  if (f->live > 0) {
    buf_printf(out,
               "online: %d session%s hold%s a live lease; the newest heartbeat was that of session \"%s\", revision "
               "%" PRId64 ", accepted at ",
               f->live, plural(f->live), f->live == 1 ? "s" : "", f->renewed.session_id, f->renewed.revision);
    put_time(out, f->renewed.at_us);
  } else if (f->overdue > 0) {
    buf_printf(out, "expired: the lease of session \"%s\" ran out at ", f->first_end.session_id);
    put_time(out, f->first_end.at_us);
    buf_puts(out, " without a renewal; it counts as expired already, and lease.expired is about to be written");
  } else if (f->offline_at_us != 0) {
    buf_puts(out, "in grace: ");
    if (f->ended.session_id != NULL)
      put_end(f, out);
    else
      buf_puts(out, "the last session has ended");
    buf_puts(out, "; the user stays online for offline_grace_ms after it, unless a session begins before");
  } else {
    put_offline(f, out);
  }
}

void explain_membership(const struct explain_facts *f, struct buf *out) {
  if (revoked(f)) {
    buf_puts(out, "revoked: every heartbeat is refused with membership_revoked until the membership is granted again");
  } else if (f->member) {
    buf_puts(out, "an active membership: heartbeats are accepted");
  } else if (f->rules->membership_required) {
    buf_puts(out, "none, and membership=required: every heartbeat is refused with not_a_member");
  } else {
    buf_puts(out, "none, and membership=open: heartbeats are accepted");
  }
}

static void put_expiry(const struct explain_facts *f, struct buf *out) {
  int others = f->live + f->overdue - 1;
  buf_printf(out, "lease.expired of session \"%s\"%s", f->first_end.session_id,
             f->first_end_live ? ", unless it is renewed before" : ", with the next sweep");
  if (others > 0)
    buf_printf(out, "; %d other session%s remain%s", others, plural(others), others == 1 ? "s" : "");
  else
    buf_printf(out, "; it is the last one: user.offline follows %" PRId64 " ms after it", f->rules->offline_grace_ms);
}

bool explain_next(const struct explain_facts *f, struct buf *out, int64_t *at_us) {
  if (f->first_end.session_id != NULL && f->first_end.at_us != TIME_INFINITY) {
    *at_us = f->first_end.at_us;
    put_expiry(f, out);
    return true;
  }
  if (f->live + f->overdue == 0 && f->offline_at_us != 0) {
    *at_us = f->offline_at_us;
    buf_puts(out, "user.offline, unless a session begins before");
    return true;
  }
  if (f->live + f->overdue == 0 && f->first_gone.session_id != NULL) {
    *at_us = f->first_gone.at_us + f->rules->tombstone_retention_ms * 1000;
    buf_printf(out,
               "the end of session \"%s\" is forgotten; until then its heartbeats with a revision up to %" PRId64
               " are refused",
               f->first_gone.session_id, f->first_gone.revision);
    return true;
  }
  return false;
}
