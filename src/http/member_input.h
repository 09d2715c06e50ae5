// SPDX-License-Identifier: Apache-2.0
/// @file
/// Reads the bodies of PUT /rooms/{room}/members/{user} and POST /rooms/{room}/attendance (CONTRACT §6).
#ifndef SH_HTTP_MEMBER_INPUT_H
#define SH_HTTP_MEMBER_INPUT_H

#include "http/input.h"

struct member_input {
  json_t *root;
  const char *role; ///< NULL: not given; lives as long as `root`
};

/// @return false with @a problem filled; free with member_input_free() in either case
bool member_input_read(struct member_input *in, const char *body, size_t len, struct input_problem *problem);
void member_input_free(struct member_input *in);

struct attendance_input {
  json_t *root;
  const char *user_id, *session_id, *action, *note; ///< live as long as `root`; session_id and note may be NULL
};

/// Likewise.
bool attendance_input_read(struct attendance_input *in, const char *body, size_t len, struct input_problem *problem);
void attendance_input_free(struct attendance_input *in);

/// Whether @a key may be an Idempotency-Key: 1 to IDEMPOTENCY_KEY_MAX visible ASCII characters.
bool idempotency_key_good(const char *key);

#endif
