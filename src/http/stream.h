// SPDX-License-Identifier: Apache-2.0
/// @file
/// Replies without an end: server-sent events. A handler begins a stream with stream_begin() in the place of a reply,
/// sends with stream_send(), and goes on as before: it parks the request until the next news or the next keep-alive is
/// due, and its `resumed` function is called with the reason. In short, a stream is a poll that answers many times.
///
///     if (stream_begin(r, NULL)) {
///       stream_send(r, &text, NULL, NULL);
///       request_park(r, stream_keepalive_due(r), resumed);
///       return REQUEST_PARKED;
///     }
///     request_unavailable(r, …);
///     return REQUEST_DONE;
///
/// - REQUEST_DONE ends the stream: what is queued is still sent, then the last chunk, so that the client has a whole
///   response. That is the answer to WAKE_GONE and WAKE_DRAINING.
/// - request_wake(), request_watch() and request_count_waiting() work as for a parked poll; what was counted and
///   watched ends with the stream. Count before stream_begin(), while a 503 can still be said.
/// - A request with `head_only` must not stream.
///
/// Chunked on HTTP/1.1, delimited by the close on 1.0. Everything here is the worker's thread's.
#ifndef SH_HTTP_STREAM_H
#define SH_HTTP_STREAM_H

#include "base/body.h"
#include "base/buf.h"
#include "http/request.h"

/// A client that lets more than this pile up, beyond what the kernel takes, is cut: bytes and pieces.
#define STREAM_BYTES_MAX ((size_t)1024 * 1024)
#define STREAM_PIECES_MAX 1024

/// Sends the head of a 200 of type text/event-stream and `retry:`, jittered. @a headers may be NULL. From here on the
/// request has its reply. @return false when there was no memory for it: nothing has been sent, a problem can be
bool stream_begin(struct request *r, const struct reply_headers *headers);

/// Whether the request is a stream that has not ended.
bool stream_open(const struct request *r);

/// Queues @a prefix, then @a body, then @a suffix; each may be NULL. The bytes of the buffers are taken over (they are
/// empty afterwards, also after a failure), of the body a reference is taken: the caller keeps its own. One body serves
/// any number of streams. Text that a client shall act on ends with an empty line.
/// @return false when the stream is over, because memory ran out or the client does not read: the connection is being
/// closed, and the caller returns REQUEST_DONE. The text of messages: base/sse.h
bool stream_send(struct request *r, struct buf *prefix, struct body *body, struct buf *suffix);

/// Whether so much is queued that the caller should wait before it sends more (it need not: see the limits above).
bool stream_behind(const struct request *r);

/// Parks the request until all that is queued has gone to the kernel: `resumed` is then called with WAKE_DONE; with
/// WAKE_DEADLINE when that took STREAM_STUCK_US, and then the stream has been cut: return REQUEST_DONE. (Sooner where
/// the client had taken nothing for a while before.)
void stream_park_behind(struct request *r, enum request_verdict (*resumed)(struct request *r, enum wake_reason reason));
#define STREAM_STUCK_US INT64_C(30000000)

/// When the next keep-alive is due, monotonic microseconds: every 15 s, a little jittered. Or when the stream is to be
/// cut if its client goes on to take nothing.
int64_t stream_keepalive_due(const struct request *r);

/// Sends the comment `: keep-alive` when it is due; does nothing when it is not. With @a id >= 0 it carries an `id:`
/// line: the client resumes there. A stream whose client takes nothing of what waits for it is cut once that has been
/// so for STREAM_STUCK_US. @return as stream_send()
bool stream_keepalive(struct request *r, int64_t id);

/// Whether the request asks for a stream: its Accept header prefers text/event-stream (http/accept.h), and it is no
/// HEAD.
bool stream_wanted(const struct request *r);

/// Reads the header Last-Event-ID. An empty one is none. @return true; or false when a 400 has been sent
bool stream_last_id(struct request *r, bool *given, int64_t *id);

#endif
