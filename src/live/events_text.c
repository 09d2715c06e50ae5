// SPDX-License-Identifier: Apache-2.0
#include "live/events_text.h"

#include "base/jsonout.h"

static void open_reply(struct buf *out, const char *room_id, const char *epoch, const char *mode, int64_t from,
                       int64_t revision) {
  jo_object(out);
  jo_kstr(out, "room_id", room_id);
  jo_kstr(out, "epoch", epoch);
  jo_kstr(out, "mode", mode);
  jo_kint(out, "from", from);
  jo_kint(out, "revision", revision);
  jo_key(out, "events");
  jo_array(out);
}

void events_text_open(struct buf *out, const char *room_id, const char *epoch, int64_t from, int64_t revision) {
  open_reply(out, room_id, epoch, "events", from, revision);
}

void events_text_close(struct buf *out, bool more) {
  jo_array_end(out);
  if (more)
    jo_kbool(out, "more", true);
}

void unchanged_text(struct buf *out, const char *room_id, const char *epoch, int64_t from, int64_t revision) {
  open_reply(out, room_id, epoch, "unchanged", from, revision);
  jo_array_end(out);
}
