// SPDX-License-Identifier: Apache-2.0
/// @file
/// The text of events for a reader (CONTRACT §4), made from memory or from the database: the same text either way. As a
/// reply it is an object to which what differs for each reader, and the closing `}`, are added later; as a stream it is
/// whole messages.
#ifndef SH_LIVE_EVENTS_TEXT_H
#define SH_LIVE_EVENTS_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "store/lease.h"

/// Zero-initialise but for `stream`.
struct events_text {
  bool stream; ///< server-sent events
  struct buf out;
  int64_t revision; ///< what it covers
  int64_t last;     ///< the newest event in it
};

/// `{"room_id":…,"epoch":…,"mode":"events","from":…,"revision":…,"events":[`; nothing in a stream.
void events_text_open(struct events_text *text, const char *room_id, const char *epoch, int64_t from, int64_t revision);

/// One event, in ascending order.
void events_text_add(struct events_text *text, int64_t revision, enum event_kind kind, const char *json);

/// `]`, and `,"more":true` when the events were cut at the limit. In a stream, the revision that is covered, where the
/// last event is not it.
void events_text_close(struct events_text *text, bool more);

/// A whole `unchanged` reply, likewise without its end.
void unchanged_text(struct buf *out, const char *room_id, const char *epoch, int64_t from, int64_t revision);

#endif
