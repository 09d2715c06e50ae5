// SPDX-License-Identifier: Apache-2.0
#include "http/builtin.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

#include "base/body.h"
#include "http/request.h"

void builtin_make(struct builtin *file, const char *data, size_t len) {
  struct buf bytes = {0};
  buf_add(&bytes, data, len);
  file->body = body_take(&bytes);
  buf_free(&bytes);
  // FNV-1a: the tag need only differ where the file does.
  uint64_t hash = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < len; i++)
    hash = (hash ^ (unsigned char)data[i]) * UINT64_C(1099511628211);
  (void)snprintf(file->etag, sizeof file->etag, "\"file-%016" PRIx64 "\"", hash);
}

void builtin_reply(struct request *r, const struct builtin *file, const struct reply_headers *headers) {
  if (file->body == NULL) {
    request_unavailable(r, "out of memory");
    return;
  }
  struct reply_headers all = *headers;
  all.etag = file->etag;
  all.revalidate = true;
  const char *known = MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_IF_NONE_MATCH);
  struct buf suffix = {0};
  if (etag_listed(known, file->etag))
    request_reply_empty(r, 304, &all);
  else
    request_reply_shared(r, 200, body_ref(file->body), &suffix, &all);
}
