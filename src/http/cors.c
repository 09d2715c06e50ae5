// SPDX-License-Identifier: Apache-2.0
#include "http/cors.h"

#include "config/origins.h"
#include "http/route.h"
#include "http/worker.h"

#define EXPOSED "ETag, Retry-After, X-Request-Id, WWW-Authenticate, Allow"
#define REQUEST_HEADERS "authorization, content-type, if-none-match, idempotency-key, last-event-id, x-request-id"
/// For how long a browser may remember the answer to a preflight, seconds.
#define PREFLIGHT_MAX_AGE "600"

static const char *header(const struct request *r, const char *name) {
  return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

void cors_read(struct request *r) {
  const char *list = r->worker->service->config->cors_origins;
  if (list[0] == '\0')
    return;
  const char *origin = header(r, MHD_HTTP_HEADER_ORIGIN);
  if (origin == NULL)
    return;
  if (origins_any(list))
    r->cors_origin = "*";
  else if (origins_have(list, origin))
    r->cors_origin = origin; // as it is in the list, byte for byte; it lives as long as the request
  r->preflight = r->cors_origin != NULL && header(r, "Access-Control-Request-Method") != NULL;
}

struct field {
  const char *name, *value;
};

#define FIELDS_MAX 6

/// @return how many headers the reply gets
static int fields(const struct request *r, int status, struct field out[FIELDS_MAX]) {
  int n = 0;
  const char *list = r->worker->service->config->cors_origins;
  // Also where the origin is not allowed or there is none: a cache must not give such a reply to an allowed one.
  if (list[0] != '\0' && !origins_any(list))
    out[n++] = (struct field){"Vary", "Origin"};
  if (r->cors_origin == NULL)
    return n;
  out[n++] = (struct field){"Access-Control-Allow-Origin", r->cors_origin};
  // 204 to a request without a route: OPTIONS (request.c).
  if (r->preflight && r->find == ROUTE_BAD_METHOD && r->allow[0] != '\0' && status == 204) {
    out[n++] = (struct field){"Access-Control-Allow-Methods", r->allow};
    out[n++] = (struct field){"Access-Control-Allow-Headers", REQUEST_HEADERS};
    out[n++] = (struct field){"Access-Control-Max-Age", PREFLIGHT_MAX_AGE};
  } else {
    out[n++] = (struct field){"Access-Control-Expose-Headers", EXPOSED};
  }
  return n;
}

bool cors_add(const struct request *r, int status, struct MHD_Response *response) {
  struct field all[FIELDS_MAX];
  int n = fields(r, status, all);
  for (int i = 0; i < n; i++) {
    if (MHD_add_response_header(response, all[i].name, all[i].value) != MHD_YES)
      return false;
  }
  return true;
}

void cors_text(const struct request *r, int status, struct buf *out) {
  struct field all[FIELDS_MAX];
  int n = fields(r, status, all);
  for (int i = 0; i < n; i++)
    buf_printf(out, "%s: %s\r\n", all[i].name, all[i].value);
}
