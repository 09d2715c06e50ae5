// SPDX-License-Identifier: Apache-2.0
#include "live/cursor_payload.h"

#include <string.h>

#include "base/jsonout.h"
#include "base/strict.h"
#include "base/util.h"

enum { AT_ROOM, AT_USER, AT_SESSION, AT_STAY, AT_TIME, AT_DATA, ITEM_SIZE };

void cursor_payload_open(struct buf *text, const char *epoch, const char *origin, bool hello) {
  jo_object(text);
  jo_kstr(text, "epoch", epoch);
  jo_kstr(text, "from", origin);
  if (hello)
    jo_kbool(text, "hello", true);
  jo_key(text, "cursors");
  jo_array(text);
}

// The data goes as a string, so that it arrives byte for byte.
void cursor_payload_item(struct buf *item, const struct cursor_packet *packet, int64_t stay_us) {
  jo_array(item);
  jo_str(item, packet->key.room_id);
  jo_str(item, packet->key.user_id);
  jo_str(item, packet->key.session_id);
  jo_int(item, stay_us);
  jo_int(item, packet->at_us);
  jo_strn(item, packet->data, packet->len);
  jo_array_end(item);
}

void cursor_payload_close(struct buf *text) {
  jo_array_end(text);
  jo_object_end(text);
}

static bool is_ident(const json_t *value) {
  return json_is_string(value) && !ident_problem(json_string_value(value), json_string_length(value));
}

static bool is_time(const json_t *value) {
  return json_is_integer(value) && json_integer_value(value) > 0 && json_integer_value(value) <= REVISION_MAX;
}

// A JSON object on one line.
static bool is_data(const json_t *value) {
  const char *text = json_string_value(value);
  size_t len = json_string_length(value);
  if (!text || len > CURSOR_DATA_MAX)
    return false;
  for (size_t i = 0; i < len; i++)
    if ((unsigned char)text[i] < 0x20)
      return false;
  json_t *data = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
  bool good = json_is_object(data);
  json_decref(data);
  return good;
}

static bool is_item(const json_t *item) {
  return json_is_array(item) && json_array_size(item) == ITEM_SIZE && is_ident(json_array_get(item, AT_ROOM)) &&
         is_ident(json_array_get(item, AT_USER)) && is_ident(json_array_get(item, AT_SESSION)) &&
         is_time(json_array_get(item, AT_STAY)) && is_time(json_array_get(item, AT_TIME)) &&
         is_data(json_array_get(item, AT_DATA));
}

bool cursor_payload_parse(struct cursor_payload *in, const char *payload) {
  *in = (struct cursor_payload){.root = json_loads(payload, JSON_REJECT_DUPLICATES, NULL)};
  in->epoch = json_string_value(json_object_get(in->root, "epoch"));
  in->origin = json_string_value(json_object_get(in->root, "from"));
  in->hello = json_is_true(json_object_get(in->root, "hello"));
  const json_t *cursors = json_object_get(in->root, "cursors");
  bool good = in->epoch && in->origin && json_is_array(cursors);
  size_t i;
  json_t *item;
  json_array_foreach(cursors, i, item) {
    good = good && is_item(item);
  }
  if (!good)
    cursor_payload_free(in);
  return good;
}

void cursor_payload_each(const struct cursor_payload *in,
                         void (*each)(void *ctx, const struct cursor_packet *packet, int64_t stay_us), void *ctx) {
  size_t i;
  json_t *item;
  json_array_foreach(json_object_get(in->root, "cursors"), i, item) {
    const json_t *data = json_array_get(item, AT_DATA);
    const struct cursor_packet packet = {.key = {json_string_value(json_array_get(item, AT_ROOM)),
                                                 json_string_value(json_array_get(item, AT_USER)),
                                                 json_string_value(json_array_get(item, AT_SESSION))},
                                         .data = json_string_value(data),
                                         .len = json_string_length(data),
                                         .at_us = json_integer_value(json_array_get(item, AT_TIME))};
    each(ctx, &packet, json_integer_value(json_array_get(item, AT_STAY)));
  }
}

void cursor_payload_free(struct cursor_payload *in) {
  json_decref(in->root);
  *in = (struct cursor_payload){0};
}
