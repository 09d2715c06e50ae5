// SPDX-License-Identifier: Apache-2.0
/// @file
/// Reads the body of PUT /leases (CONTRACT §2). Every field is checked for its type and bounds; nothing is coerced.
#ifndef SH_HTTP_LEASE_INPUT_H
#define SH_HTTP_LEASE_INPUT_H

#include <jansson.h>

#include "config/config.h"
#include "http/input.h"
#include "store/op.h"

/// Bytes of a meta at most, in its canonical form.
#define META_MAX 2048

struct refusal;

/// One lease of the body: an op, or why it is none.
struct lease_item {
  bool ok;
  const struct refusal *refusal; ///< why the caller may not write it (http/access.h), which is for the handler to say
  struct input_problem problem;
  struct op op;    ///< its strings point into the body's JSON
  char *meta_text; ///< what op.meta points to
};

struct lease_input {
  json_t *root;
  bool batch; ///< `{"leases":[…]}`
  struct lease_item *items;
  size_t n;
};

/// Reads a body. Items of a batch that are no leases are marked as such and fail alone; a single lease that is none
/// fails the request. @a request_id is put into each op and must outlive it.
/// @return false with @a problem filled; free with lease_input_free() in either case
bool lease_input_read(struct lease_input *in, const char *body, size_t len, const struct config *config,
                      const char *request_id, struct input_problem *problem);

/// Frees everything, the ops' results included.
void lease_input_free(struct lease_input *in);

/// input_canonical() for a meta.
char *meta_canonical(const json_t *meta, struct input_problem *problem);

#endif
