// SPDX-License-Identifier: Apache-2.0
/// @file
/// The frame of an `events` reply (CONTRACT §4), made from memory or from the database: the same text either way. What
/// differs for each reader, and the closing `}`, follow later.
#ifndef SH_LIVE_EVENTS_TEXT_H
#define SH_LIVE_EVENTS_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/// `{"room_id":…,"epoch":…,"mode":"events","from":…,"revision":…,"events":[`; the events follow with jo_raw().
void events_text_open(struct buf *out, const char *room_id, const char *epoch, int64_t from, int64_t revision);

/// `]`, and `,"more":true` when the events were cut at the limit.
void events_text_close(struct buf *out, bool more);

/// A whole `unchanged` reply, likewise without its end.
void unchanged_text(struct buf *out, const char *room_id, const char *epoch, int64_t from, int64_t revision);

#endif
