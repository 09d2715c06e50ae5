// SPDX-License-Identifier: Apache-2.0
#include "live/events_text.h"

#include <string.h>

#include "base/jsonout.h"
#include "base/sse.h"

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

void events_text_open(struct events_text *text, const char *room_id, const char *epoch, int64_t from,
                      int64_t revision) {
  text->revision = revision;
  text->last = from;
  if (!text->stream)
    open_reply(&text->out, room_id, epoch, "events", from, revision);
}

void events_text_add(struct events_text *text, int64_t revision, enum event_kind kind, const char *json) {
  size_t len = strlen(json);
  text->last = revision;
  if (text->stream)
    sse_message(&text->out, revision, event_kind_name(kind), json, len);
  else
    jo_raw(&text->out, json, len);
}

void events_text_close(struct events_text *text, bool more) {
  if (text->stream) {
    if (text->revision > text->last)
      sse_id(&text->out, text->revision);
    return;
  }
  jo_array_end(&text->out);
  if (more)
    jo_kbool(&text->out, "more", true);
}

void unchanged_text(struct buf *out, const char *room_id, const char *epoch, int64_t from, int64_t revision) {
  open_reply(out, room_id, epoch, "unchanged", from, revision);
  jo_array_end(out);
}
