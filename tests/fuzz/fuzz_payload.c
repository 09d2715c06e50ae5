// SPDX-License-Identifier: Apache-2.0
// What anybody who may connect to the database can send to all instances. The first letter says which: n of rooms that
// have moved, c of cursors.
#include <microhttpd.h>

#include "base/strict.h"
#include "fuzz.h"
#include "live/cursor_payload.h"
#include "live/listener.h"
#include "store/notify.h"

#define HEADS_MAX 4096

static struct {
  struct room_head at[HEADS_MAX];
  size_t n;
} heads, again;

static void take(void *ctx, const char *room_id, int64_t revision) {
  size_t len = strlen(room_id);
  MUST(ctx == &heads || ctx == &again);
  MUST(len >= 1 && len <= IDENT_MAX && fuzz_is_utf8(room_id, len) && revision >= 0 && revision <= REVISION_MAX);
  if (ctx == &heads ? heads.n < HEADS_MAX : again.n < HEADS_MAX) {
    struct room_head *head = ctx == &heads ? &heads.at[heads.n++] : &again.at[again.n++];
    *head = (struct room_head){.room_id = strdup(room_id), .revision = revision};
  }
}

static void forget(void) {
  for (size_t i = 0; i < heads.n; i++)
    free((char *)(uintptr_t)heads.at[i].room_id);
  for (size_t i = 0; i < again.n; i++)
    free((char *)(uintptr_t)again.at[i].room_id);
  heads.n = again.n = 0;
}

/// What was read is written by us as it is by whoever moves a room, and read once more.
static void check_notification(const char *payload) {
  bool good = notification_parse(payload, take, &heads);
  MUST(good || heads.n == 0);
  struct payloads payloads;
  MUST(payloads_make(&payloads, heads.at, heads.n));
  for (size_t i = 0; i < payloads.n; i++) {
    MUST(strlen(payloads.list[i]) <= NOTIFY_PAYLOAD_MAX);
    MUST(notification_parse(payloads.list[i], take, &again));
  }
  payloads_free(&payloads);
  MUST(again.n == heads.n);
  for (size_t i = 0; i < heads.n; i++)
    MUST(strcmp(again.at[i].room_id, heads.at[i].room_id) == 0 && again.at[i].revision == heads.at[i].revision);
  forget();
}

struct rewriting {
  struct buf text;
  size_t n;
};

static void check_packet(void *ctx, const struct cursor_packet *packet, int64_t stay_us) {
  struct rewriting *w = ctx;
  MUST(fuzz_is_ident(packet->key.room_id) && fuzz_is_ident(packet->key.user_id) &&
       fuzz_is_ident(packet->key.session_id));
  MUST(packet->len == strlen(packet->data) && packet->len <= CURSOR_DATA_MAX && packet->at_us > 0 && stay_us > 0);
  json_decref(fuzz_object(packet->data, packet->len));
  for (size_t i = 0; i < packet->len; i++)
    MUST((unsigned char)packet->data[i] >= 0x20); // it is sent in a line of a stream
  cursor_payload_item(&w->text, packet, stay_us);
  w->n++;
}

static void check_cursors(const char *payload) {
  struct cursor_payload in, same;
  if (!cursor_payload_parse(&in, payload)) {
    MUST(in.root == NULL);
    return;
  }
  struct rewriting once = {0}, twice = {0};
  cursor_payload_open(&once.text, in.epoch, in.origin, in.hello);
  cursor_payload_each(&in, check_packet, &once);
  cursor_payload_close(&once.text);
  MUST(cursor_payload_parse(&same, once.text.data));
  MUST(strcmp(same.epoch, in.epoch) == 0 && strcmp(same.origin, in.origin) == 0 && same.hello == in.hello);
  cursor_payload_open(&twice.text, same.epoch, same.origin, same.hello);
  cursor_payload_each(&same, check_packet, &twice);
  cursor_payload_close(&twice.text);
  MUST(once.n == twice.n && once.text.len == twice.text.len && strcmp(once.text.data, twice.text.data) == 0);
  buf_free(&once.text);
  buf_free(&twice.text);
  cursor_payload_free(&same);
  cursor_payload_free(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  char *payload = fuzz_string(data + 1, size - 1);
  if (data[0] == 'n')
    check_notification(payload);
  else if (data[0] == 'c')
    check_cursors(payload);
  free(payload);
  return 0;
}
