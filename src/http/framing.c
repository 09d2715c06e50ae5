// SPDX-License-Identifier: Apache-2.0
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/metric.h"
#include "base/rand.h"
#include "base/strict.h"
#include "base/util.h"
#include "http/cors.h"
#include "http/inside.h"

/// What is gathered while the headers are walked through.
struct headers {
  int hosts, lengths, codings, ids, encodings;
  const char *length, *coding, *id, *encoding;
  bool odd_name, folded, expects;
  bool has_nul;
  size_t cookie_bytes;
  const char *end; ///< of the value before, or of the request line
};

/// RFC 9110 token characters.
static bool is_token(const char *s) {
  if (*s == '\0')
    return false;
  for (; *s != '\0'; s++) {
    char c = *s;
    bool alphanumeric = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (!alphanumeric && strchr("!#$%&'*+-.^_`|~", c) == NULL)
      return false;
  }
  return true;
}

#if MHD_VERSION < 0x00097700
// These versions cut a value at a NUL that was sent within it, and take a line that begins with one for the end of the
// head. They overwrite the ends of lines with NULs, and leave everything where it was received: so a NUL shows by the
// place of what comes next.

/// Whether the line that ends at @a end is followed by @a next at once.
static bool adjoins(const char *end, const char *next) {
  return next == end + 1 || (next == end + 2 && end[1] == '\0');
}

/// Whether the head ends with the empty line behind the last header.
static bool ends(const char *end, const char *head_end) {
  return adjoins(end, head_end - 1) || (head_end[-2] == '\0' && adjoins(end, head_end - 2));
}
#endif

static enum MHD_Result gather(void *cls, enum MHD_ValueKind kind, const char *name, const char *value) {
  (void)kind;
  struct headers *h = cls;
  if (value == NULL)
    return MHD_YES;
  if (!is_token(name))
    h->odd_name = true;
#if MHD_VERSION < 0x00097700
  h->has_nul = h->has_nul || !adjoins(h->end, name);
  h->end = value + strlen(value);
  // A line that continues the header before it is appended to that header's *name* by these versions, in a copy further
  // up in the connection's memory; of an ordinary header the value follows the name.
  if ((uintptr_t)value < (uintptr_t)name)
    h->folded = true;
#endif
  if (strcasecmp(name, "Host") == 0) {
    h->hosts++;
  } else if (strcasecmp(name, "Content-Length") == 0) {
    h->lengths++;
    h->length = value;
  } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
    h->codings++;
    h->coding = value;
  } else if (strcasecmp(name, "Content-Encoding") == 0) {
    h->encodings++;
    h->encoding = value;
  } else if (strcasecmp(name, "Cookie") == 0) {
    h->cookie_bytes += strlen(value) + 1;
  } else if (strcasecmp(name, "Expect") == 0) {
    h->expects = true;
  } else if (strcasecmp(name, "X-Request-Id") == 0) {
    h->ids++;
    h->id = value;
  }
  return MHD_YES;
}

static void refuse(struct framing *f, int status, const char *code, const char *detail) {
  if (f->status == 0) {
    f->status = status;
    f->code = code;
    f->detail = detail;
  }
}

static void judge_body(const struct headers *h, bool http_1_0, struct framing *f) {
  if (h->lengths > 1)
    refuse(f, 400, "bad_framing", "there is more than one Content-Length");
  else if (h->lengths == 1 && h->codings > 0)
    refuse(f, 400, "bad_framing", "Content-Length and Transfer-Encoding exclude each other");
  else if (h->lengths == 1 && !strict_int(h->length, strlen(h->length), 0, INT64_MAX, &f->length))
    refuse(f, 400, "bad_framing", "Content-Length is not a plain number");
  else if (h->codings > 1 || (h->codings == 1 && http_1_0))
    refuse(f, 400, "bad_framing", "there is more than one Transfer-Encoding, or one in HTTP/1.0");
  else if (h->codings == 1 && strcasecmp(h->coding, "chunked") != 0)
    refuse(f, 501, "unsupported_transfer_coding", "the only transfer coding that is understood is chunked");
}

/// What libmicrohttpd takes of a connection's memory for its note on a header, a cookie or a query's parameter.
#define NOTE_BYTES 64
/// Room that the head of any reply finds.
#define REPLY_BYTES 1024
/// With it there is room for 32 notes behind the longest head, and for more behind others.
#define MEMORY_BESIDE (32 * NOTE_BYTES + REPLY_BYTES)

size_t connection_memory(const struct config *config) {
  return (size_t)config->max_header_bytes + MEMORY_BESIDE;
}

/// Whether libmicrohttpd, which keeps the head, a note on each part of it and a copy of the cookies in the connection's
/// memory, has too little left there for a reply.
static bool crowds(const struct request *r, const struct headers *h, size_t head_bytes) {
  static const enum MHD_ValueKind kinds[] = {MHD_HEADER_KIND, MHD_COOKIE_KIND, MHD_GET_ARGUMENT_KIND};
  size_t bytes = head_bytes + h->cookie_bytes + REPLY_BYTES;
  for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
    bytes += NOTE_BYTES * (size_t)MHD_get_connection_values(r->connection, kinds[i], NULL, NULL);
  return bytes > connection_memory(r->worker->service->config);
}

/// Whether the request line and the headers together are too long, or too many.
static void judge_size(const struct request *r, const struct headers *h, struct framing *f) {
  size_t max = (size_t)r->worker->service->config->max_header_bytes;
  const union MHD_ConnectionInfo *info =
      MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
  if (info == NULL)
    return;
  f->crowded = crowds(r, h, info->header_size);
  if (info->header_size <= max && !f->crowded)
    return;
  metric_add(METRIC_LIMITED_HEADER, 1);
  if (strlen(r->target) > max / 2)
    refuse(f, 414, "target_too_long", "the request line and the headers are longer than max_header_bytes");
  else if (info->header_size > max)
    refuse(f, 431, "header_too_large", "the request line and the headers are longer than max_header_bytes");
  else
    refuse(f, 431, "header_too_large", "there are too many headers, or the cookies are too long");
}

/// Looks at the request line and behind the last header. @param method where the head begins
static void find_nul(const struct request *r, const char *method, const char *version, struct headers *h) {
#if MHD_VERSION < 0x00097700
  const union MHD_ConnectionInfo *info =
      MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
  const char *behind_method = method + strlen(method) + 1;
  behind_method += strspn(behind_method, " ");
  if (behind_method != r->received || r->received + strlen(r->target) + 1 != version)
    h->has_nul = true;
  if (info != NULL && !ends(h->end, method + info->header_size))
    h->has_nul = true;
#else
  (void)r;
  (void)method;
  (void)version;
  (void)h;
#endif
}

void framing_read(struct request *r, const char *method, const char *version, struct framing *framing) {
  struct headers h = {.end = version + strlen(version)};
  (void)MHD_get_connection_values(r->connection, MHD_HEADER_KIND, gather, &h);
  find_nul(r, method, version, &h);
  cors_read(r);
  *framing = (struct framing){.has_body = h.codings > 0 || (h.lengths > 0 && strcmp(h.length, "0") != 0)};
  if (h.ids == 1 && request_id_sane(h.id, strlen(h.id)))
    (void)snprintf(r->id, sizeof r->id, "%s", h.id);
  if (h.encodings > 0)
    (void)snprintf(r->content_encoding, sizeof r->content_encoding, "%s", h.encodings == 1 ? h.encoding : "several");

  bool http_1_0 = strcmp(version, "HTTP/1.0") == 0;
  judge_size(r, &h, framing);
  judge_body(&h, http_1_0, framing);
  // Behind its 100 libmicrohttpd takes what the client sends next for a body, also where there is none.
  framing->asks_first = h.expects;
  if (h.expects && h.codings == 0 && framing->length == 0)
    refuse(framing, 400, "bad_framing", "Expect is for requests with a body");
  if (h.folded)
    refuse(framing, 400, "bad_framing", "a header continues on a second line");
  if (h.has_nul)
    refuse(framing, 400, "bad_framing", "there is a NUL in the request line or in a header");
  if (h.odd_name)
    refuse(framing, 400, "bad_framing", "a header's name contains a character that is not allowed");
  if (h.hosts > 1 || (h.hosts == 0 && !http_1_0))
    refuse(framing, 400, "bad_framing", "there must be exactly one Host header");
}
