// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>

#include "http/builtin.h"
#include "http/handlers.h"
#include "http/openapi.h"

static struct builtin document; ///< made by whoever asks first
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_document(void) {
  builtin_make(&document, openapi_document, openapi_document_len);
}

/// The description of this API. It is the same for everybody.
enum request_verdict h_openapi(struct request *r) {
  (void)pthread_once(&once, make_document);
  const struct reply_headers headers = {.content_type = "application/json"};
  builtin_reply(r, &document, &headers);
  return REQUEST_DONE;
}
