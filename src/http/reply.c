// SPDX-License-Identifier: Apache-2.0
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/gzip.h"
#include "base/jsonout.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/rand.h"
#include "base/strict.h"
#include "http/accept.h"
#include "http/access.h"
#include "http/cors.h"
#include "http/etag.h"
#include "http/input.h"
#include "http/inside.h"

/// What is said when there is no memory for anything else.
static const char no_memory[] = "{\"type\":\"urn:stillhere:problem:unavailable\",\"title\":\"Service Unavailable\","
                                "\"status\":503,\"code\":\"unavailable\",\"detail\":\"out of memory\"}";

/// Text beyond this is compressed for those who accept it.
#define GZIP_MIN 1024

/// A shared reply up to this size is copied for each who gets it. libmicrohttpd sends a response of one piece together
/// with its head; one of several costs a second system call, a second packet and a second wake-up of the client, which
/// is far more than the copy.
#define COPY_MAX 8192

/// Seconds after which a client may try again, spread so that they do not all come back together.
static int retry_after(void) {
  return 1 + (int)rand_below(3);
}

static bool add(struct MHD_Response *response, const char *name, const char *value) {
  return value == NULL || MHD_add_response_header(response, name, value) == MHD_YES;
}

/// What a page for people needs beyond a reply for programs. @a policy: NULL when it is none
static bool add_page_headers(const struct request *r, struct MHD_Response *response, const char *policy) {
  return policy == NULL ||
         (add(response, "Content-Security-Policy", policy) && add(response, "X-Frame-Options", "DENY") &&
          add(response, "Referrer-Policy", "no-referrer") &&
          add(response, "Strict-Transport-Security", r->conn->tls != NULL ? "max-age=31536000" : NULL));
}

static bool add_headers(struct request *r, int status, struct MHD_Response *response, const char *content_type,
                        const struct reply_headers *headers) {
  static const struct reply_headers none;
  if (headers == NULL)
    headers = &none;
  bool close = headers->close || r->conn->loop->draining;
  char seconds[16] = "";
  if (headers->retry_after_s > 0)
    (void)snprintf(seconds, sizeof seconds, "%d", headers->retry_after_s);
  return add(response, "Content-Type", content_type) &&
         add(response, "Cache-Control", headers->revalidate ? "no-cache" : "no-store") &&
         add(response, "X-Request-Id", r->id) && add(response, "X-Content-Type-Options", "nosniff") &&
         add(response, "X-Accel-Buffering", r->stream != NULL ? "no" : NULL) && add(response, "ETag", headers->etag) &&
         add(response, "WWW-Authenticate", headers->www_authenticate) && add(response, "Allow", headers->allow) &&
         add(response, "Retry-After", seconds[0] != '\0' ? seconds : NULL) &&
         add(response, "Connection", close ? "close" : NULL) && cors_add(r, status, response) &&
         add_page_headers(r, response, headers->content_security_policy);
}

// What cannot be queued closes the connection (request.c sees that `replied` is not set).
void reply_queue(struct request *r, int status, struct MHD_Response *response, const char *content_type,
                 const struct reply_headers *headers) {
  if (r->replied) {
    log_error("a second reply to one request was dropped (status %d)", status);
    if (response != NULL)
      MHD_destroy_response(response);
    return;
  }
  if (response == NULL) {
    static const struct reply_headers later = {.retry_after_s = 1};
    status = 503;
    content_type = "application/problem+json";
    headers = &later;
    // Never written to: PERSISTENT.
    response =
        MHD_create_response_from_buffer(sizeof no_memory - 1, (void *)(uintptr_t)no_memory, MHD_RESPMEM_PERSISTENT);
    if (response == NULL)
      return;
  }
  if (add_headers(r, status, response, content_type, headers))
    r->replied = MHD_queue_response(r->connection, (unsigned)status, response) == MHD_YES;
  MHD_destroy_response(response);
  if (!r->replied)
    return;
  metric_add(METRIC_HTTP_REQUESTS, 1);
  if (status >= 500)
    metric_add(METRIC_HTTP_5XX, 1);
}

/// A response out of a buffer, which is empty afterwards. @return NULL when memory ran out, also in the buffer
static struct MHD_Response *from_buf(struct buf *b) {
  size_t len = 0;
  char *text = buf_take(b, &len);
  if (text == NULL)
    return NULL;
  struct MHD_Response *response = MHD_create_response_from_buffer_with_free_callback(len, text, free);
  if (response == NULL)
    free(text);
  return response;
}

static const char *type_or_json(const struct reply_headers *headers) {
  return headers != NULL && headers->content_type != NULL ? headers->content_type : "application/json";
}

static bool accepts_gzip(const struct request *r) {
  struct buf list = {0};
  request_header_list(r, MHD_HTTP_HEADER_ACCEPT_ENCODING, &list);
  bool accepted = !list.failed && accept_gzip(list.data);
  buf_free(&list);
  return accepted;
}

/// Compresses @a b in place. @return whether it did
static bool compress(struct buf *b) {
  struct gzip_start *start = b->failed ? NULL : gzip_begin(b->data, b->len, GZIP_ONCE);
  if (start == NULL)
    return false;
  struct buf out = {0};
  buf_add(&out, start->data, start->len);
  gzip_end(start, NULL, 0, &out);
  free(start);
  if (out.failed) {
    buf_free(&out);
    return false;
  }
  buf_free(b);
  *b = out;
  return true;
}

/// The headers of a reply that is or could have been compressed. A response that cannot take them is given up.
static struct MHD_Response *add_coding(struct MHD_Response *response, bool compressed) {
  if (response == NULL ||
      (add(response, "Vary", "Accept-Encoding") && add(response, "Content-Encoding", compressed ? "gzip" : NULL)))
    return response;
  MHD_destroy_response(response);
  return NULL;
}

void request_reply_json(struct request *r, int status, struct buf *b, const struct reply_headers *headers) {
  bool large = b->len > GZIP_MIN;
  bool compressed = large && accepts_gzip(r) && compress(b);
  struct MHD_Response *response = from_buf(b);
  reply_queue(r, status, large ? add_coding(response, compressed) : response, type_or_json(headers), headers);
}

/// What a shared reply holds on to until MHD has sent it.
struct shared {
  struct body *body;
  char *suffix;
};

static void shared_free(void *cls) {
  struct shared *shared = cls;
  body_unref(shared->body);
  free(shared->suffix);
  free(shared);
}

/// A response of one piece, copied. Takes over both. @return NULL when memory ran out
static struct MHD_Response *from_copy(struct body *body, const void *head, size_t len, struct buf *suffix) {
  struct buf whole = {0};
  buf_add(&whole, head, len);
  if (suffix->len > 0)
    buf_add(&whole, suffix->data, suffix->len);
  whole.failed = whole.failed || suffix->failed;
  buf_free(suffix);
  body_unref(body);
  return from_buf(&whole);
}

/// The bytes of @a body, or @a start, which is its compressed form, and then @a suffix, which is empty afterwards.
/// Takes over the reference to the body. @return NULL when memory ran out
static struct MHD_Response *from_body(struct body *body, const struct gzip_start *start, struct buf *suffix) {
  const void *head = start != NULL ? (const void *)start->data : body->data;
  size_t head_len = start != NULL ? start->len : body->len;
  if (head_len + suffix->len <= COPY_MAX)
    return from_copy(body, head, head_len, suffix);
  bool failed = suffix->failed;
  size_t len = 0;
  struct shared *shared = malloc(sizeof *shared);
  char *text = buf_take(suffix, &len);
  if (shared == NULL || failed) {
    body_unref(body);
    free(text);
    free(shared);
    return NULL;
  }
  *shared = (struct shared){.body = body, .suffix = text};
  struct MHD_IoVec parts[2] = {{.iov_base = head, .iov_len = head_len}, {.iov_base = text, .iov_len = len}};
  struct MHD_Response *response = MHD_create_response_from_iovec(parts, text != NULL ? 2 : 1, shared_free, shared);
  if (response == NULL)
    shared_free(shared);
  return response;
}

void request_reply_shared(struct request *r, int status, struct body *body, struct buf *suffix,
                          const struct reply_headers *headers) {
  if (body->len + suffix->len <= GZIP_MIN) {
    reply_queue(r, status, from_body(body, NULL, suffix), type_or_json(headers), headers);
    return;
  }
  const struct gzip_start *start = accepts_gzip(r) ? body_gzip(body) : NULL;
  struct reply_headers all = headers != NULL ? *headers : (struct reply_headers){0};
  char weak[ETAG_SIZE + 2];
  if (start != NULL) {
    struct buf end = {0};
    gzip_end(start, suffix->data, suffix->len, &end);
    end.failed = end.failed || suffix->failed;
    buf_free(suffix);
    *suffix = end;
    // The same presence in other bytes: a strong tag would say that they are the same.
    if (all.etag != NULL && snprintf(weak, sizeof weak, "W/%s", all.etag) < (int)sizeof weak)
      all.etag = weak;
  }
  reply_queue(r, status, add_coding(from_body(body, start, suffix), start != NULL), type_or_json(&all), &all);
}

void request_reply_empty(struct request *r, int status, const struct reply_headers *headers) {
  struct MHD_Response *response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
  // 304 has the headers that the 200 would have had.
  reply_queue(r, status, status == 304 ? add_coding(response, false) : response, NULL, headers);
}

void problem_open(struct buf *b, int status, const char *code, const char *field, const char *detail,
                  const char *request_id) {
  jo_object(b);
  jo_key(b, "type");
  buf_printf(b, "\"urn:stillhere:problem:%s\"", code);
  jo_kstr(b, "title", MHD_get_reason_phrase_for((unsigned)status));
  jo_kint(b, "status", status);
  jo_kstr(b, "code", code);
  jo_kstr(b, "detail", detail);
  if (request_id != NULL)
    jo_kstr(b, "request_id", request_id);
  if (field != NULL)
    jo_kstr(b, "field", field);
}

void problem_json(struct buf *b, int status, const char *code, const char *field, const char *detail,
                  const char *request_id) {
  problem_open(b, status, code, field, detail, request_id);
  jo_object_end(b);
}

/// Formats a detail and cuts it, where it is too long, between two characters.
static void PRINTF_LIKE(3, 0) format_detail(char *out, size_t size, const char *fmt, va_list args) {
  int len = vsnprintf(out, size, fmt, args);
  if (len < 0)
    out[0] = '\0';
  if (len >= (int)size) {
    size_t cut = size - 1;
    while (cut > 0 && !utf8_valid(out, cut))
      cut--;
    out[cut] = '\0';
  }
}

static void reply_problem(struct request *r, int status, const char *code, const char *field,
                          const struct reply_headers *headers, const char *detail) {
  struct reply_headers all = headers != NULL ? *headers : (struct reply_headers){0};
  if ((status == 429 || status == 503) && all.retry_after_s == 0)
    all.retry_after_s = retry_after();
  if (status == 401)
    all.www_authenticate = access_challenge(code);
  access_note(r, status, code);
  struct buf b = {0};
  problem_json(&b, status, code, field, detail, r->id);
  reply_queue(r, status, from_buf(&b), "application/problem+json", &all);
}

#define DETAIL_SIZE 512

void request_problem_headers(struct request *r, int status, const char *code, const char *field,
                             const struct reply_headers *headers, const char *detail_fmt, ...) {
  char detail[DETAIL_SIZE];
  va_list args;
  va_start(args, detail_fmt);
  format_detail(detail, sizeof detail, detail_fmt, args);
  va_end(args);
  reply_problem(r, status, code, field, headers, detail);
}

void request_problem(struct request *r, int status, const char *code, const char *field, const char *detail_fmt, ...) {
  char detail[DETAIL_SIZE];
  va_list args;
  va_start(args, detail_fmt);
  format_detail(detail, sizeof detail, detail_fmt, args);
  va_end(args);
  reply_problem(r, status, code, field, NULL, detail);
}

void request_unavailable(struct request *r, const char *detail) {
  reply_problem(r, 503, "unavailable", NULL, NULL, detail);
}

void request_bad_input(struct request *r, const struct input_problem *problem) {
  if (strcmp(problem->code, "unavailable") == 0)
    request_unavailable(r, problem->detail);
  else
    request_problem(r, 400, problem->code, problem->field[0] != '\0' ? problem->field : NULL, "%s", problem->detail);
}

void request_refuse(struct request *r, bool body_expected, int status, const char *code, const char *detail) {
  static const struct reply_headers closing = {.close = true};
  if (!body_expected) {
    reply_problem(r, status, code, NULL, &closing, detail);
    return;
  }
  struct buf body = {0}, all = {0};
  problem_json(&body, status, code, NULL, detail, r->id);
  buf_printf(&all,
             "HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\nCache-Control: no-store\r\n"
             "X-Request-Id: %s\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\nContent-Length: %zu\r\n",
             status, MHD_get_reason_phrase_for((unsigned)status), r->id, body.len);
  if (status == 401)
    buf_printf(&all, "WWW-Authenticate: %s\r\n", access_challenge(code));
  if (status == 429 || status == 503)
    buf_printf(&all, "Retry-After: %d\r\n", r->retry_after_s > 0 ? r->retry_after_s : retry_after());
  access_note(r, status, code);
  cors_text(r, status, &all);
  buf_puts(&all, "\r\n");
  if (!r->head_only)
    buf_add(&all, body.data, body.failed ? 0 : body.len);
  bool ok = !body.failed && !all.failed;
  conn_refuse(r->conn, ok ? all.data : "", ok ? all.len : 0);
  buf_free(&body);
  buf_free(&all);
  metric_add(METRIC_HTTP_REQUESTS, 1);
  if (status >= 500)
    metric_add(METRIC_HTTP_5XX, 1);
  r->phase = PHASE_REFUSED;
  r->replied = true;
}
