// SPDX-License-Identifier: Apache-2.0
#include "store/written.h"

#include <stdlib.h>
#include <string.h>

void written_clear(struct written *w) {
  for (size_t i = 0; i < w->n_events; i++) {
    event_clear(&w->events[i]);
  }
  for (size_t i = 0; i < w->n_expiries; i++) {
    struct expiry *e = &w->expiries[i];
    free(e->room_id);
    free(e->user_id);
    free(e->session_id);
    free(e->event_id);
    free(e->request_id);
  }
  free(w->events);
  free(w->expiries);
  *w = (struct written){0};
}

bool written_reserve(struct written *w, size_t n) {
  struct event *events = realloc(w->events, (w->n_events + n) * sizeof *events);
  if (events == NULL) {
    return false;
  }
  w->events = events;
  struct expiry *expiries = realloc(w->expiries, (w->n_expiries + n) * sizeof *expiries);
  if (expiries == NULL) {
    return false;
  }
  w->expiries = expiries;
  return true;
}

bool written_event(struct written *w, const char *room_id, int64_t revision, enum event_kind kind, struct buf *json) {
  struct event *e = &w->events[w->n_events++];
  *e = (struct event){.revision = revision, .kind = kind, .room_id = strdup(room_id), .json = buf_take(json, NULL)};
  return e->room_id != NULL && e->json != NULL;
}

bool written_expiry(struct written *w, const struct lease_key *key, int64_t revision, const char *event_id,
                    const char *request_id, int64_t overdue_ms) {
  struct expiry *e = &w->expiries[w->n_expiries++];
  *e = (struct expiry){
      .room_id = strdup(key->room_id),
      .user_id = strdup(key->user_id),
      .session_id = strdup(key->session_id),
      .revision = revision,
      .event_id = strdup(event_id),
      .request_id = request_id != NULL ? strdup(request_id) : NULL,
      .overdue_ms = overdue_ms,
  };
  return e->room_id != NULL && e->user_id != NULL && e->session_id != NULL && e->event_id != NULL &&
         (request_id == NULL || e->request_id != NULL);
}
