// SPDX-License-Identifier: Apache-2.0
/// @file
/// The text of server-sent events (the WHATWG's format). Pure.
#ifndef SH_BASE_SSE_H
#define SH_BASE_SSE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/// Begins a message: `id:` when @a id >= 0, `event:` when @a event is not NULL, and `data: `. What follows is one line
/// of data (JSON text by base/jsonout.h is one line), then sse_close().
void sse_open(struct buf *out, int64_t id, const char *event);

/// Ends the line of data and the message.
void sse_close(struct buf *out);

/// A whole message. Data of several lines goes as so many lines of data, so that no line break in it ends the message.
void sse_message(struct buf *out, int64_t id, const char *event, const char *data, size_t len);

/// An `id:` line by itself: no message, but the client resumes there.
void sse_id(struct buf *out, int64_t id);

#endif
