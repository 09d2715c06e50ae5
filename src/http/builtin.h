// SPDX-License-Identifier: Apache-2.0
/// @file
/// A file that is built into the program and served as it is: with an entity tag, compressed for those who accept it.
#ifndef SH_HTTP_BUILTIN_H
#define SH_HTTP_BUILTIN_H

#include <stddef.h>

#include "http/etag.h"

struct body;
struct request;
struct reply_headers;

/// What is kept of one until the process ends. Once it is made it never changes, and any thread may answer with it.
struct builtin {
  struct body *body; ///< NULL: memory had run out
  char etag[ETAG_SIZE];
};

/// Copies the bytes and makes their tag.
void builtin_make(struct builtin *file, const char *data, size_t len);

/// Answers a request: 200, 304 to whoever has it, 503 where it could not be made. @a headers: what there is beyond the
/// tag. The request's worker.
void builtin_reply(struct request *r, const struct builtin *file, const struct reply_headers *headers);

#endif
