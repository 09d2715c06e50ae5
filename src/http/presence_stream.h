// SPDX-License-Identifier: Apache-2.0
/// @file
/// GET /rooms/{room}/presence as server-sent events: the same question, answered again and again.
///
/// - One message for each event: `id:` its revision, `event:` its kind, `data:` the event as in a poll's reply. The
///   snapshots of CONTRACT §4, with their reasons, are messages `event: snapshot`, and the stream goes on after them.
/// - Where kinds were asked for that do not come, the position moves on all the same: an `id:` line goes with the
/// events
///   and the keep-alives, so that a client that comes back is not sent far back.
/// - Last-Event-ID wins over `since`, since a browser that reconnects repeats the URL of its first request.
/// - `session_id` and `user_id`: the state is the first message, `event: session`.
/// - `limit`, `wait_ms` and If-None-Match have no meaning in a stream.
#ifndef SH_HTTP_PRESENCE_STREAM_H
#define SH_HTTP_PRESENCE_STREAM_H

#include "http/presence.h"

/// Begins: the question is in @a p but for what the stream's headers say. The request is answered or parked.
enum request_verdict presence_stream(struct request *r, struct presence *p);

#endif
