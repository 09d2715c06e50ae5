// SPDX-License-Identifier: Apache-2.0
// The small JSON bodies. The first letter says which: m of a membership, a of attendance, c of a cursor.
#include "base/jsonout.h"
#include "fuzz.h"
#include "http/cursor_input.h"
#include "http/member_input.h"
#include "http/request.h"
#include "live/cursors.h"
#include "store/attendance.h"
#include "store/member.h"

static void check_problem(const struct input_problem *p) {
  static const char *const codes[] = {"bad_json", "bad_field", "missing_field", "unknown_field"};
  bool known = false;
  for (size_t i = 0; i < ARRAY_LEN(codes); i++)
    known = known || strcmp(p->code, codes[i]) == 0;
  MUST(known && p->detail[0] != '\0');
  MUST(strnlen(p->field, sizeof p->field) < sizeof p->field && strnlen(p->detail, sizeof p->detail) < sizeof p->detail);
  MUST(fuzz_is_utf8(p->field, strlen(p->field)) && fuzz_is_utf8(p->detail, strlen(p->detail)));
  struct buf text = {0};
  problem_json(&text, 400, p->code, p->field[0] != '\0' ? p->field : NULL, p->detail, "r-1");
  json_decref(fuzz_object(text.data, text.len));
  buf_free(&text);
}

static void check_only(const json_t *root, const char *names) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)root, key, value) {
    char word[32];
    MUST(snprintf(word, sizeof word, " %s ", key) < (int)sizeof word && strstr(names, word) != NULL);
  }
}

static void check_member(const char *body, size_t len) {
  struct member_input in;
  struct input_problem problem = {0};
  if (!member_input_read(&in, body, len, &problem)) {
    check_problem(&problem);
  } else {
    check_only(in.root, " role ");
    MUST((in.role != NULL) == (json_object_get(in.root, "role") != NULL));
    for (const char *c = in.role; c != NULL && *c != '\0'; c++)
      MUST((unsigned char)*c >= 0x20 && *c != 0x7f);
    MUST(in.role == NULL || (strlen(in.role) <= ROLE_MAX && fuzz_is_utf8(in.role, strlen(in.role))));
  }
  member_input_free(&in);
}

static void check_attendance(const char *body, size_t len) {
  struct attendance_input in;
  struct input_problem problem = {0};
  if (!attendance_input_read(&in, body, len, &problem)) {
    check_problem(&problem);
  } else {
    check_only(in.root, " user_id session_id action note ");
    MUST(fuzz_is_ident(in.user_id) && (in.session_id == NULL || fuzz_is_ident(in.session_id)));
    MUST(strcmp(in.action, "sign_in") == 0 || strcmp(in.action, "sign_out") == 0);
    MUST(in.note == NULL || (strlen(in.note) <= NOTE_MAX && fuzz_is_utf8(in.note, strlen(in.note))));
    MUST((in.note != NULL) == (json_object_get(in.root, "note") != NULL));
  }
  attendance_input_free(&in);
}

/// The same cursor written by us is read as the same.
static void check_cursor_again(const struct cursor_input *in) {
  struct buf text = {0};
  jo_object(&text);
  jo_key(&text, "data");
  jo_raw(&text, in->data, strlen(in->data));
  jo_kstr(&text, "session_id", in->session_id);
  jo_kstr(&text, "user_id", in->user_id);
  jo_object_end(&text);
  struct cursor_input same;
  struct input_problem problem;
  MUST(cursor_input_read(&same, text.data, text.len, &problem));
  MUST(strcmp(same.user_id, in->user_id) == 0 && strcmp(same.session_id, in->session_id) == 0);
  MUST(strcmp(same.data, in->data) == 0);
  cursor_input_free(&same);
  buf_free(&text);
}

static void check_cursor(const char *body, size_t len) {
  struct cursor_input in;
  struct input_problem problem = {0};
  if (!cursor_input_read(&in, body, len, &problem)) {
    check_problem(&problem);
  } else {
    check_only(in.root, " user_id session_id data ");
    MUST(fuzz_is_ident(in.user_id) && fuzz_is_ident(in.session_id) && strlen(in.data) <= CURSOR_DATA_MAX);
    json_t *data = fuzz_object(in.data, strlen(in.data));
    MUST(json_equal(data, json_object_get(in.root, "data")));
    json_decref(data);
    check_cursor_again(&in);
  }
  cursor_input_free(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  char *body = fuzz_copy(data + 1, size - 1);
  if (data[0] == 'm')
    check_member(body, size - 1);
  else if (data[0] == 'a')
    check_attendance(body, size - 1);
  else if (data[0] == 'c')
    check_cursor(body, size - 1);
  free(body);
  return 0;
}
