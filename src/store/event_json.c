// SPDX-License-Identifier: Apache-2.0
#include "store/event_json.h"

#include <string.h>

#include "base/jsonout.h"

static bool carries_meta(enum event_kind kind) {
  return kind == EVENT_LEASE_GRANTED || kind == EVENT_LEASE_RENEWED;
}

static void optional_str(struct buf *out, const char *key, const char *value) {
  if (value)
    jo_kstr(out, key, value);
}

static void optional_int(struct buf *out, const char *key, int64_t value) {
  if (value != INT64_MIN)
    jo_kint(out, key, value);
}

void event_json(struct buf *out, const struct event_columns *e) {
  jo_object(out);
  jo_kstr(out, "event_id", e->event_id);
  jo_kint(out, "revision", e->revision);
  jo_kstr(out, "kind", event_kind_name(e->kind));
  jo_ktime(out, "at", e->at_us);
  jo_kstr(out, "user_id", e->user_id);
  optional_str(out, "session_id", e->session_id);
  optional_int(out, "lease_revision", e->lease_revision);
  optional_int(out, "user_sessions", e->user_sessions);
  optional_str(out, "request_id", e->request_id);
  optional_int(out, "overdue_ms", e->overdue_ms);
  if (carries_meta(e->kind)) {
    const char *meta = e->meta ? e->meta : "{}";
    jo_key(out, "meta");
    jo_raw(out, meta, strlen(meta));
  }
  jo_object_end(out);
}
