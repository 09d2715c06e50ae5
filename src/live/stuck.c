// SPDX-License-Identifier: Apache-2.0
#include "live/stuck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

#define PAUSE_MIN_US INT64_C(1000000)
#define PAUSE_MAX_US INT64_C(120000000)

/// What was due so long ago has ended since, or the sweeper was away.
#define FORGET_US INT64_C(60000000)

struct entry {
  int64_t due_us, pause_us; ///< pause_us 0: free
  int64_t revision;
  bool grace; ///< no session
  char room_id[IDENT_MAX + 1], user_id[IDENT_MAX + 1], session_id[IDENT_MAX + 1];
};

struct stuck {
  int64_t last_us; ///< the latest due_us
  size_t n;        ///< entries that were ever used
  struct entry list[STUCK_MAX];
};

struct stuck *stuck_new(void) {
  return calloc(1, sizeof(struct stuck));
}

void stuck_free(struct stuck *stuck) {
  free(stuck);
}

static bool in_use(const struct entry *e, int64_t now_us) {
  return e->pause_us > 0 && now_us < e->due_us + FORGET_US;
}

static bool is(const struct entry *e, const struct overdue *o) {
  return e->revision == o->revision && e->grace == (o->session_id == NULL) && strcmp(e->room_id, o->room_id) == 0 &&
         strcmp(e->user_id, o->user_id) == 0 && (e->grace || strcmp(e->session_id, o->session_id) == 0);
}

/// The entry of @a o, or NULL. @param[out] spare one that is free, or NULL
static struct entry *find(struct stuck *stuck, const struct overdue *o, int64_t now_us, struct entry **spare) {
  *spare = NULL;
  for (size_t i = 0; i < stuck->n; i++) {
    struct entry *e = &stuck->list[i];
    if (!in_use(e, now_us))
      *spare = e;
    else if (is(e, o))
      return e;
  }
  if (*spare == NULL && stuck->n < STUCK_MAX)
    *spare = &stuck->list[stuck->n++];
  return NULL;
}

int64_t stuck_note(struct stuck *stuck, const struct overdue *o, int64_t now_us) {
  struct entry *spare, *e = find(stuck, o, now_us, &spare);
  if (e == NULL && (e = spare) == NULL)
    return 0;
  if (e == spare) {
    *e = (struct entry){.revision = o->revision, .grace = o->session_id == NULL};
    (void)snprintf(e->room_id, sizeof e->room_id, "%s", o->room_id);
    (void)snprintf(e->user_id, sizeof e->user_id, "%s", o->user_id);
    (void)snprintf(e->session_id, sizeof e->session_id, "%s", e->grace ? "" : o->session_id);
  }
  int64_t twice = e->pause_us * 2 < PAUSE_MAX_US ? e->pause_us * 2 : PAUSE_MAX_US;
  e->pause_us = e->pause_us > 0 ? twice : PAUSE_MIN_US;
  e->due_us = now_us + e->pause_us;
  stuck->last_us = stuck->last_us > e->due_us ? stuck->last_us : e->due_us;
  return e->pause_us / 1000;
}

bool stuck_any(const struct stuck *stuck, int64_t now_us) {
  return now_us < stuck->last_us;
}

bool stuck_waits(const struct stuck *stuck, const struct overdue *o, int64_t now_us) {
  for (size_t i = 0; i < stuck->n; i++) {
    const struct entry *e = &stuck->list[i];
    if (e->pause_us > 0 && now_us < e->due_us && is(e, o))
      return true;
  }
  return false;
}
