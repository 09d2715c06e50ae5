// SPDX-License-Identifier: Apache-2.0
#include "store/lease.h"

#include <stdlib.h>
#include <string.h>

#include "base/util.h"

int lease_key_compare(const struct lease_key *a, const struct lease_key *b) {
  int d = strcmp(a->room_id, b->room_id);
  if (d == 0) {
    d = strcmp(a->user_id, b->user_id);
  }
  if (d == 0) {
    d = strcmp(a->session_id, b->session_id);
  }
  return d;
}

static const struct {
  const char *name;
  int status;
} decisions[] = {
    [DECISION_NONE] = {"unavailable", 503},
    [DECISION_ACCEPTED] = {"accepted", 200},
    [DECISION_ALREADY_APPLIED] = {"already_applied", 200},
    [DECISION_IGNORED_OLD_REVISION] = {"ignored_old_revision", 409},
    [DECISION_SESSION_CLOSED] = {"session_closed", 410},
    [DECISION_MEMBERSHIP_REVOKED] = {"membership_revoked", 403},
    [DECISION_NOT_A_MEMBER] = {"not_a_member", 403},
    [DECISION_NOT_FOUND] = {"not_found", 404},
    [DECISION_TOO_SOON] = {"too_soon", 429},
    [DECISION_TOO_MANY_LEASES] = {"too_many_leases", 429},
};

const char *decision_name(enum decision d) {
  return decisions[d].name;
}

int decision_status(enum decision d) {
  return decisions[d].status;
}

static const char *const kind_names[EVENT_KIND_COUNT] = {
    [EVENT_LEASE_GRANTED] = "lease.granted",
    [EVENT_LEASE_RENEWED] = "lease.renewed",
    [EVENT_LEASE_EXPIRED] = "lease.expired",
    [EVENT_SESSION_CLOSED] = "session.closed",
    [EVENT_MEMBERSHIP_REVOKED] = "membership.revoked",
    [EVENT_USER_ONLINE] = "user.online",
    [EVENT_USER_OFFLINE] = "user.offline",
};

const char *event_kind_name(enum event_kind kind) {
  return kind_names[kind];
}

int event_kind_parse(const char *name) {
  for (int i = 0; i < EVENT_KIND_COUNT; i++) {
    if (strcmp(name, kind_names[i]) == 0) {
      return i;
    }
  }
  return -1;
}

void event_clear(struct event *e) {
  free(e->room_id);
  free(e->json);
  e->room_id = NULL;
  e->json = NULL;
}
