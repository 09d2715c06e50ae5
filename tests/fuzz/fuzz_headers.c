// SPDX-License-Identifier: Apache-2.0
// The values of headers and other short texts that strangers send. The first letter says which:
//   a Accept · g Accept-Encoding · t Content-Type · i Idempotency-Key · n If-None-Match · l Last-Event-ID
//   q X-Request-Id · o a list of origins and, on the next line, an Origin · d an RFC 3339 time · p percent-encoding
#include <microhttpd.h>
#include <stdarg.h>

#include "base/clock.h"
#include "base/strict.h"
#include "config/origins.h"
#include "fuzz.h"
#include "http/accept.h"
#include "http/etag.h"
#include "http/member_input.h"
#include "http/stream.h"
#include "store/attendance.h"

// -- the connection that is not there: the linker puts these in the place of the daemon's and libmicrohttpd's -------

static const char *header_value;
static int problems;

const char *__wrap_MHD_lookup_connection_value(struct MHD_Connection *connection, enum MHD_ValueKind kind,
                                               const char *name);
void __wrap_request_problem(struct request *r, int status, const char *code, const char *field, const char *detail_fmt,
                            ...) PRINTF_LIKE(5, 6);

const char *__wrap_MHD_lookup_connection_value(struct MHD_Connection *connection, enum MHD_ValueKind kind,
                                               const char *name) {
  (void)connection;
  MUST(kind == MHD_HEADER_KIND && strcmp(name, "Last-Event-ID") == 0);
  return header_value;
}

void __wrap_request_problem(struct request *r, int status, const char *code, const char *field, const char *detail_fmt,
                            ...) {
  (void)r;
  MUST(status == 400 && strcmp(code, "bad_header") == 0 && field != NULL && detail_fmt != NULL);
  problems++;
}

// -- what must be so -----------------------------------------------------------------------------------------------

static void check_accept(const char *value) {
  static const char *const types[] = {"text/csv", "application/json", "text/event-stream"};
  for (size_t i = 0; i < ARRAY_LEN(types); i++) {
    int weight = accept_weight(value, types[i]);
    MUST(weight >= 0 && weight <= 1000);
  }
  if (accept_event_stream(value))
    MUST(strcasestr(value, "text/event-stream") != NULL && accept_weight(value, "text/event-stream") > 0);
}

static void check_encoding(const char *value) {
  if (accept_gzip(value))
    MUST(strcasestr(value, "gzip") != NULL || strchr(value, '*') != NULL);
}

static void check_content_type(const char *value) {
  if (input_is_json(value))
    MUST(strncasecmp(value, "application/json", 16) == 0);
}

static void check_key(const char *value) {
  if (!idempotency_key_good(value))
    return;
  MUST(strlen(value) >= 1 && strlen(value) <= IDEMPOTENCY_KEY_MAX);
  for (const char *c = value; *c != '\0'; c++)
    MUST((unsigned char)*c > 0x20 && (unsigned char)*c < 0x7f);
}

static void check_etag(const char *value) {
  char etag[ETAG_SIZE];
  etag_format(etag, "0123456789abcdef", REVISION_MAX);
  if (etag_listed(value, etag))
    MUST(strchr(value, '*') != NULL || strstr(value, etag) != NULL);
  // A tag in front of a list is found, whatever follows it; one that nobody gave is not.
  char *list = NULL;
  MUST(asprintf(&list, "%s ,%s", etag, value) > 0);
  MUST(etag_listed(list, etag));
  free(list);
}

static void check_last_id(const char *value) {
  struct request r = {0};
  bool given = false;
  int64_t id = -1;
  header_value = value;
  problems = 0;
  bool good = stream_last_id(&r, &given, &id);
  MUST(problems == (good ? 0 : 1));
  MUST(!good || !given || (id >= 0 && id <= REVISION_MAX));
  MUST(given || id == -1);
  header_value = NULL;
  MUST(stream_last_id(&r, &given, &id) && !given);
}

static void check_request_id(const char *value, size_t len) {
  if (!request_id_sane(value, len))
    return;
  MUST(len >= 1 && len <= REQUEST_ID_MAX);
  for (size_t i = 0; i < len; i++)
    MUST((unsigned char)value[i] > 0x20 && (unsigned char)value[i] < 0x7f && strchr("\"\\,;'", value[i]) == NULL);
}

static void check_origins(const char *text, size_t len) {
  char *list, *origin;
  fuzz_split((const uint8_t *)text, len, '\n', &list, &origin);
  if (origins_problem(list) == NULL && !origins_any(list) && origins_have(list, origin)) {
    MUST(strstr(list, origin) != NULL && strstr(origin, "://") != NULL && origins_problem(origin) == NULL);
    MUST(strpbrk(origin, " ,\t\r\n") == NULL);
  }
  free(list);
  free(origin);
}

/// What was read and is written by us is the same time, to the millisecond.
static void check_time(const char *value) {
  int64_t us = -1, back;
  if (!rfc3339_parse(value, &us)) {
    MUST(us == -1);
    return;
  }
  char text[RFC3339_SIZE];
  rfc3339_format(text, us);
  MUST(strlen(text) == RFC3339_SIZE - 1 && rfc3339_parse(text, &back));
  // What lies before or behind the years that PostgreSQL and JavaScript both have is put to their ends.
  bool clamped = strncmp(text, "0001-01-01T00:00:00", 19) == 0 || strncmp(text, "9999-12-31T23:59:59", 19) == 0;
  MUST(clamped || (back <= us && us - back < 1000));
}

static void check_percent(const char *value, size_t len) {
  char *out = malloc(len + 1), *in_place = malloc(len + 1);
  MUST(out != NULL && in_place != NULL);
  memcpy(in_place, value, len);
  long decoded = percent_decode(value, len, out), same = percent_decode(in_place, len, in_place);
  MUST(decoded == same && decoded <= (long)len);
  if (decoded >= 0) {
    MUST(strlen(out) == (size_t)decoded && strcmp(out, in_place) == 0);
    MUST(utf8_valid(out, (size_t)decoded) == fuzz_is_utf8(out, (size_t)decoded));
    MUST((ident_problem(out, (size_t)decoded) == NULL) == fuzz_is_ident(out));
  }
  free(out);
  free(in_place);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  char *bytes = fuzz_copy(data + 1, size - 1), *value = fuzz_string(data + 1, size - 1);
  switch (data[0]) {
  case 'a':
    check_accept(value);
    break;
  case 'g':
    check_encoding(value);
    break;
  case 't':
    check_content_type(value);
    break;
  case 'i':
    check_key(value);
    break;
  case 'n':
    check_etag(value);
    break;
  case 'l':
    check_last_id(value);
    break;
  case 'q':
    check_request_id(bytes, size - 1);
    break;
  case 'o':
    check_origins(value, strlen(value));
    break;
  case 'd':
    check_time(value);
    break;
  case 'p':
    check_percent(bytes, size - 1);
    break;
  default:
    break;
  }
  free(bytes);
  free(value);
  return 0;
}
