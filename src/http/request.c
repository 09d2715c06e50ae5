// SPDX-License-Identifier: Apache-2.0
#include "http/request.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "auth/credential.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/rand.h"
#include "http/access.h"
#include "http/inside.h"
#include "http/standing.h"

/// A body of up to so many bytes is read and thrown away before a refusal.
#define SWALLOWED_MAX INT64_C(65536)

struct request *request_new(struct conn *conn, struct MHD_Connection *connection, const char *target) {
  struct request *r = calloc(1, sizeof *r);
  if (r == NULL)
    return NULL;
  r->target = strdup(target);
  if (r->target == NULL) {
    free(r);
    return NULL;
  }
  r->worker = conn->loop->worker;
  r->connection = connection;
  r->conn = conn;
  r->phase = PHASE_HEAD;
  r->received = target;
  r->arrived_us = clock_mono_us();
  request_id_make(r->id);
  conn->loop->n_requests++;
  atomic_fetch_add(&r->worker->service->lifecycle->requests, 1);
  conn_begin_request(conn, r);
  return r;
}

void request_free(struct request *r) {
  park_forget(r);
  stream_forget(r);
  if (r->state != NULL && r->free_state != NULL)
    r->free_state(r->state);
  conn_end_request(r->conn);
  r->conn->loop->n_requests--;
  atomic_fetch_sub(&r->worker->service->lifecycle->requests, 1);
  for (int i = 0; i < PATH_PARAMS_MAX; i++)
    free(r->params[i]);
  buf_free(&r->body);
  free(r->repeated);
  free(r->target);
  credential_unref(r->credential);
  free(r);
}

struct header_list {
  const char *name;
  struct buf *out;
};

static enum MHD_Result add_value(void *cls, enum MHD_ValueKind kind, const char *name, const char *value) {
  (void)kind;
  const struct header_list *list = cls;
  if (value == NULL || strcasecmp(name, list->name) != 0)
    return MHD_YES;
  if (list->out->len > 0)
    buf_putc(list->out, ',');
  buf_puts(list->out, value);
  return MHD_YES;
}

void request_header_list(const struct request *r, const char *name, struct buf *out) {
  struct header_list list = {.name = name, .out = out};
  (void)MHD_get_connection_values(r->connection, MHD_HEADER_KIND, add_value, &list);
}

/// Splits the target into path and query. An absolute form (`GET http://host/path`, as sent to proxies) loses its
/// scheme and authority. @return NULL, or what is wrong
static const char *split_target(struct request *r) {
  char *path = r->target;
  for (const char *c = path; *c != '\0'; c++) {
    if ((unsigned char)*c <= 0x20 || *c == 0x7f)
      return "it contains a space or a control character";
    if (*c == '#')
      return "it contains a fragment";
  }
  bool absolute = false;
  if (strncasecmp(path, "http://", 7) == 0 || strncasecmp(path, "https://", 8) == 0) {
    path = strstr(path, "//") + 2;
    path += strcspn(path, "/?");
    absolute = true;
  }
  r->raw_query = strchr(path, '?');
  if (r->raw_query != NULL)
    *r->raw_query++ = '\0';
  r->path = path;
  if (absolute && path[0] == '\0') {
    static char root[] = "/"; // never written to
    r->path = root;
  }
  return NULL;
}

/// Who calls and whether they may, as far as the head tells. Paths that do not exist and methods that do not fit are
/// answered as such to everybody.
static const struct refusal *judge(struct request *r, const char *method) {
  const struct refusal *refusal = access_address(r);
  if (refusal != NULL)
    return refusal;
  r->find_problem = split_target(r);
  if (r->find_problem != NULL)
    r->find = ROUTE_BAD_PATH;
  else if (strcmp(r->path, "*") == 0 && strcmp(method, "OPTIONS") == 0)
    r->find = ROUTE_BAD_METHOD;
  else
    r->find = (int)route_find(method, r->path, &r->route, r->params, r->allow, &r->find_problem);
  return r->find == ROUTE_FOUND ? access_door(r) : NULL;
}

static enum MHD_Result read_head(struct request *r, const char *method, const char *version) {
  struct framing framing;
  r->head_only = strcmp(method, "HEAD") == 0;
  framing_read(r, method, version, &framing);
  if (framing.status == 0 && framing.length > r->worker->service->config->max_body_bytes) {
    framing.status = 413;
    framing.code = "body_too_large";
    framing.detail = "the body is longer than max_body_bytes";
    metric_add(METRIC_LIMITED_BODY, 1);
  }
  if (framing.status != 0) {
    r->phase = PHASE_HANDLING;
    request_refuse(r, framing.has_body || framing.crowded, framing.status, framing.code, framing.detail);
    return r->replied ? MHD_YES : MHD_NO;
  }
  r->refusal = judge(r, method);
  // A reply now would cost the client its connection. A short body is thrown away first; more is not taken from those
  // who may not send it, and nothing from those who ask whether they may.
  bool much = framing.length == 0 || framing.length > SWALLOWED_MAX || framing.asks_first;
  if (r->refusal == NULL || !framing.has_body || !much) {
    r->phase = PHASE_BODY;
    return MHD_YES;
  }
  r->phase = PHASE_HANDLING;
  if (r->refusal_reason == NULL)
    r->refusal_reason = r->refusal->detail;
  request_refuse(r, true, r->refusal->status, r->refusal->code, r->refusal->detail);
  return r->replied ? MHD_YES : MHD_NO;
}

static enum MHD_Result read_body(struct request *r, const char *upload, size_t *upload_size) {
  size_t len = *upload_size;
  *upload_size = 0;
  uint64_t max = (uint64_t)r->worker->service->config->max_body_bytes;
  if (r->body_bytes <= max && r->body_bytes + len > max)
    metric_add(METRIC_LIMITED_BODY, 1);
  r->body_bytes += len;
  if (r->body_bytes > max) {
    buf_free(&r->body);
    request_refuse(r, true, 413, "body_too_large", "the body is longer than max_body_bytes");
  } else if (r->refusal == NULL && r->route != NULL && (r->route->flags & ROUTE_BODY) != 0) {
    buf_add(&r->body, upload, len);
  }
  return MHD_YES;
}

/// What came of looking for the route, where there is none.
static void reply_no_route(struct request *r, const char *method) {
  struct reply_headers headers = {.allow = r->allow};
  if (r->find == ROUTE_BAD_METHOD && strcmp(method, "OPTIONS") == 0) {
    if (r->allow[0] == '\0')
      headers.allow = "GET, HEAD, PUT, POST, DELETE, OPTIONS"; // OPTIONS *
    request_reply_empty(r, 204, &headers);
  } else if (r->find == ROUTE_BAD_METHOD) {
    request_problem_headers(r, 405, "method_not_allowed", NULL, &headers, "the methods here are %s", r->allow);
  } else if (r->find == ROUTE_BAD_PATH) {
    request_problem(r, 400, "bad_path", NULL, "the path is not acceptable: %s", r->find_problem);
  } else if (r->find == ROUTE_NO_MEMORY) {
    request_unavailable(r, "out of memory");
  } else {
    request_problem(r, 404, "not_found", NULL, "there is nothing at this path");
  }
}

static enum request_verdict handle(struct request *r, const char *method) {
  if (r->refusal != NULL) {
    request_refused(r, r->refusal);
    return REQUEST_DONE;
  }
  if (r->find != ROUTE_FOUND) {
    reply_no_route(r, method);
    return REQUEST_DONE;
  }
  if ((r->route->flags & ROUTE_BODY) != 0 && r->content_encoding[0] != '\0' &&
      strcasecmp(r->content_encoding, "identity") != 0) {
    request_problem(r, 415, "unsupported_content_encoding", NULL, "the body must be sent without a Content-Encoding");
    return REQUEST_DONE;
  }
  if (!query_read(r))
    return REQUEST_DONE;
  if ((r->route->flags & ROUTE_DATABASE) != 0 && !atomic_load(&r->worker->service->lifecycle->migrated)) {
    request_unavailable(r, "the database has not been reached yet");
    return REQUEST_DONE;
  }
  if (r->body.failed) {
    request_unavailable(r, "out of memory");
    return REQUEST_DONE;
  }
  return standing_begin(r); // the body may have been long in coming
}

/// After a handler: either the request is parked, or there is a reply; with neither, MHD would call again and again.
static enum MHD_Result settle(struct request *r, enum request_verdict verdict) {
  if (verdict == REQUEST_PARKED)
    return MHD_YES;
  if (!r->replied) {
    log_error("a request was left without a reply; its connection is closed");
    return MHD_NO;
  }
  if (r->stream != NULL)
    stream_end(r);
  // Whatever the request waited for does not matter any more, though its last byte may still be long in coming.
  park_forget(r);
  conn_replied(r->conn);
  return MHD_YES;
}

enum MHD_Result request_step(struct request *r, const char *method, const char *version, const char *upload,
                             size_t *upload_size) {
  switch ((enum request_phase)r->phase) {
  case PHASE_HEAD:
    return read_head(r, method, version);
  case PHASE_BODY:
    if (*upload_size > 0)
      return read_body(r, upload, upload_size);
    r->phase = PHASE_HANDLING;
    return settle(r, handle(r, method));
  case PHASE_WOKEN:
    park_taken(r);
    r->phase = PHASE_HANDLING;
    return settle(r, standing_resume(r));
  case PHASE_REFUSED:
    if (*upload_size == 0)
      return MHD_NO; // the rest of the body is there: nothing left to wait for
    *upload_size = 0;
    return MHD_YES;
  case PHASE_PARKED:
    park_suspend(r);
    return MHD_YES;
  case PHASE_HANDLING:
  case PHASE_ABORTED:
    break;
  }
  return MHD_NO;
}
