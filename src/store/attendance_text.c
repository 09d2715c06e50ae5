// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "base/jsonout.h"
#include "store/attendance.h"

void attendance_json(struct buf *out, const struct attendance *row) {
  jo_object(out);
  jo_kint(out, "id", row->id);
  jo_kstr(out, "room_id", row->room_id);
  jo_kstr(out, "user_id", row->user_id);
  jo_kstr(out, "session_id", row->session_id);
  jo_kstr(out, "action", row->action);
  jo_kstr(out, "note", row->note);
  jo_kstr(out, "idempotency_key", row->key);
  jo_kstr(out, "request_id", row->request_id);
  jo_kstr(out, "by", row->by);
  jo_ktime(out, "at", row->at_us);
  jo_object_end(out);
}

void attendance_csv_head(struct buf *out) {
  buf_puts(out, "id,room_id,user_id,session_id,action,note,idempotency_key,request_id,by,at\r\n");
}

/// Spreadsheets run what begins so, white space in front of it or not, whether it stands in quotes or not.
static bool is_formula(const char *s) {
  const char *first = s + strspn(s, " ");
  return *first != '\0' && (strchr("=+-@", *first) != NULL || strchr("\t\r\n", *s) != NULL);
}

static void cell(struct buf *out, const char *s) {
  buf_putc(out, ',');
  if (s == NULL)
    return;
  bool quoted = strpbrk(s, ",\"\r\n") != NULL || s[0] == ' ' || (s[0] != '\0' && s[strlen(s) - 1] == ' ');
  if (quoted)
    buf_putc(out, '"');
  if (is_formula(s))
    buf_putc(out, '\'');
  for (; *s != '\0'; s++) {
    if (*s == '"')
      buf_putc(out, '"');
    buf_putc(out, *s);
  }
  if (quoted)
    buf_putc(out, '"');
}

void attendance_csv(struct buf *out, const struct attendance *row) {
  buf_int(out, row->id);
  cell(out, row->room_id);
  cell(out, row->user_id);
  cell(out, row->session_id);
  cell(out, row->action);
  cell(out, row->note);
  cell(out, row->key);
  cell(out, row->request_id);
  cell(out, row->by);
  struct buf at = {0};
  jo_time(&at, row->at_us);
  if (at.failed) {
    out->failed = true;
  } else {
    buf_putc(out, ',');
    buf_add(out, at.data + 1, at.len - 2); // without JSON's quotes
  }
  buf_free(&at);
  buf_puts(out, "\r\n");
}
