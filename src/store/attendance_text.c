// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#include <unistr.h>

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

/// Whether a character is of no width or no ink: what a spreadsheet may pass over before it looks for a formula.
static bool is_blank(ucs4_t c) {
  return c <= 0x20 || c == 0x7f || c == 0xfeff || (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202f) ||
         (c >= 0x2060 && c <= 0x2064) || (c >= 0x80 && c <= 0x9f) || c == 0xa0 || c == 0xad || c == 0x1680 ||
         c == 0x180e || (c >= 0x2000 && c <= 0x200a) || c == 0x205f || c == 0x3000;
}

/// Spreadsheets run what begins so, blanks in front of it or not, whether it stands in quotes or not. Some take the
/// full-width forms for the plain ones.
static bool is_formula(const char *s) {
  if (s[0] != '\0' && strchr("\t\r\n", s[0]) != NULL)
    return true;
  ucs4_t c = 0;
  const uint8_t *at = (const uint8_t *)s;
  do
    at = u8_next(&c, at);
  while (at != NULL && is_blank(c));
  return at != NULL && (c == '=' || c == '+' || c == '-' || c == '@' || c == 0xff1d || c == 0xff0b || c == 0xff0d ||
                        c == 0xff20 || c == 0x2212);
}

static void cell(struct buf *out, const char *s) {
  buf_putc(out, ',');
  if (s == NULL)
    return;
  // Always in quotes: there are readers that separate at semicolons or tabs.
  buf_putc(out, '"');
  if (is_formula(s))
    buf_putc(out, '\'');
  for (; *s != '\0'; s++) {
    if (*s == '"')
      buf_putc(out, '"');
    buf_putc(out, *s);
  }
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
