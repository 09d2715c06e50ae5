// SPDX-License-Identifier: Apache-2.0
/// @file
/// Reads the body of POST /rooms/{room}/cursors (CONTRACT §7).
#ifndef SH_HTTP_CURSOR_INPUT_H
#define SH_HTTP_CURSOR_INPUT_H

#include "http/input.h"

struct cursor_input {
  json_t *root;
  const char *user_id, *session_id; ///< live as long as `root`
  char *data;                       ///< canonical text
};

/// @return false with @a problem filled; free with cursor_input_free() in either case
bool cursor_input_read(struct cursor_input *in, const char *body, size_t len, struct input_problem *problem);

void cursor_input_free(struct cursor_input *in);

#endif
