// SPDX-License-Identifier: Apache-2.0
#include "store/notify.h"

#include <stdlib.h>

#include "base/jsonout.h"

const struct db_stmt notify_stmt = {
    .name = "notify_rooms",
    .sql = "SELECT pg_notify('" NOTIFY_CHANNEL "', p) FROM unnest($1::text[]) AS p",
};

/// Ends the payload in @a b and adds it to the list, which has room for it.
static bool finish(struct payloads *payloads, struct buf *b) {
  jo_array_end(b);
  char *text = buf_take(b, NULL);
  if (text == NULL) {
    return false;
  }
  payloads->list[payloads->n++] = text;
  return true;
}

bool payloads_make(struct payloads *payloads, const struct room_head *heads, size_t n) {
  *payloads = (struct payloads){.list = calloc(n > 0 ? n : 1, sizeof *payloads->list)};
  struct buf b = {0};
  bool ok = payloads->list != NULL;
  for (size_t i = 0; ok && i < n; i++) {
    struct buf item = {0};
    jo_str(&item, heads[i].room_id);
    jo_int(&item, heads[i].revision);
    if (b.len > 0 && b.len + 1 + item.len + 1 > NOTIFY_PAYLOAD_MAX) {
      ok = finish(payloads, &b);
    }
    if (b.len == 0) {
      jo_array(&b);
    }
    if (item.failed) {
      ok = false;
    } else {
      jo_raw(&b, item.data, item.len);
    }
    buf_free(&item);
  }
  if (ok && b.len > 0) {
    ok = finish(payloads, &b);
  }
  buf_free(&b);
  return ok;
}

void payloads_free(struct payloads *payloads) {
  for (size_t i = 0; i < payloads->n; i++) {
    free(payloads->list[i]);
  }
  free(payloads->list);
  *payloads = (struct payloads){0};
}

static const char *payload_at(const void *list, size_t i) {
  return ((char *const *)list)[i];
}

void notify_params(struct db_params *p, const struct payloads *payloads) {
  db_p_text_array(p, payloads->n, payload_at, payloads->list);
}
