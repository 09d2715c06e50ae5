// SPDX-License-Identifier: Apache-2.0
/// @file
/// The one place where an event becomes JSON (CONTRACT §4), so that it reads the same on every channel.
#ifndef SH_STORE_EVENT_JSON_H
#define SH_STORE_EVENT_JSON_H

#include "base/buf.h"
#include "store/lease.h"

/// The columns of stillhere.event. Strings may be NULL where the column is null; INT64_MIN stands for a null number.
struct event_columns {
  const char *event_id;
  int64_t revision;
  enum event_kind kind;
  int64_t at_us;
  const char *user_id, *session_id;
  int64_t lease_revision;
  int64_t user_sessions;
  const char *request_id;
  int64_t overdue_ms;
  const char *meta; ///< JSON text; granted and renewed events without one say `{}`
};

void event_json(struct buf *out, const struct event_columns *e);

#endif
