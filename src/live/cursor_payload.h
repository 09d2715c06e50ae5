// SPDX-License-Identifier: Apache-2.0
/// @file
/// What instances tell each other of cursors: the payload of a notification, written and read. Anybody who may connect
/// to the database can send one, so that everything in it is checked. Pure functions.
///
///     {"epoch":"…","from":"…","hello":true,"cursors":[["room","user","session",granted_at,at,"data as JSON text"],…]}
#ifndef SH_LIVE_CURSOR_PAYLOAD_H
#define SH_LIVE_CURSOR_PAYLOAD_H

#include <jansson.h>

#include "base/buf.h"
#include "live/cursors.h"

/// The channel.
#define CURSOR_CHANNEL "stillhere_cursors"

/// Bytes that cursor_payload_close() adds.
#define CURSOR_PAYLOAD_TAIL 2

/// Begins a payload; @a hello asks the others to send what they have.
void cursor_payload_open(struct buf *text, const char *epoch, const char *origin, bool hello);

/// One packet, as an element of its own. Times are Unix microseconds.
void cursor_payload_item(struct buf *item, const struct cursor_packet *packet, int64_t stay_us);

void cursor_payload_close(struct buf *text);

struct cursor_payload {
  json_t *root;
  const char *epoch, *origin;
  bool hello;
};

/// @return false when any part of it is not as it must be; nothing to free then
bool cursor_payload_parse(struct cursor_payload *in, const char *payload);

/// Calls @a each for every packet. Its strings live as long as @a in.
void cursor_payload_each(const struct cursor_payload *in,
                         void (*each)(void *ctx, const struct cursor_packet *packet, int64_t stay_us), void *ctx);

void cursor_payload_free(struct cursor_payload *in);

#endif
