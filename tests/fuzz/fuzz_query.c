// SPDX-License-Identifier: Apache-2.0
// "METHOD /path?query": the query of a route, and the cursor of a watcher in it. Where the path is none the query is
// that of a presence poll. What would be answered is caught by the linker (--wrap), since there is no connection.
#include <stdarg.h>

#include "base/strict.h"
#include "fuzz.h"
#include "http/inside.h"
#include "http/presence.h"

/// What was refused by the call under way.
static struct { int problems, unavailable; } refused;

void __wrap_request_problem(struct request *r, int status, const char *code, const char *field, const char *detail_fmt,
                            ...) PRINTF_LIKE(5, 6);
void __wrap_request_unavailable(struct request *r, const char *detail);

void __wrap_request_problem(struct request *r, int status, const char *code, const char *field, const char *detail_fmt,
                            ...) {
  (void)r;
  MUST(status == 400 && strcmp(code, "bad_parameter") == 0);
  struct buf text = {0};
  char *detail = NULL;
  va_list args;
  va_start(args, detail_fmt);
  MUST(vasprintf(&detail, detail_fmt, args) > 0);
  va_end(args);
  MUST(fuzz_is_utf8(detail, strlen(detail)));
  problem_json(&text, status, code, field, detail, "r-1");
  json_decref(fuzz_object(text.data, text.len));
  buf_free(&text);
  free(detail);
  refused.problems++;
}

void __wrap_request_unavailable(struct request *r, const char *detail) {
  (void)r;
  MUST(detail != NULL);
  refused.unavailable++;
}

static bool read_query(struct request *r, const struct route *route, char *query) {
  *r = (struct request){.route = route, .raw_query = query};
  memset(&refused, 0, sizeof refused);
  bool good = query_read(r);
  MUST(refused.problems == (good ? 0 : 1) && refused.unavailable == 0);
  return good;
}

static bool is_listed(const struct route *route, const char *name, bool repeatable) {
  for (const char *const *n = route->query_names; *n != NULL; n++) {
    bool star = strncmp(*n, ROUTE_REPEATABLE, strlen(ROUTE_REPEATABLE)) == 0;
    if (star == repeatable && strcmp(star ? *n + strlen(ROUTE_REPEATABLE) : *n, name) == 0)
      return true;
  }
  return false;
}

static const char *repeatable_name(const struct route *route) {
  for (const char *const *n = route->query_names; *n != NULL; n++)
    if (is_listed(route, *n + strlen(ROUTE_REPEATABLE), true))
      return *n + strlen(ROUTE_REPEATABLE);
  return NULL;
}

static void check_parameters(const struct request *r) {
  MUST(r->n_query >= 0 && r->n_query <= QUERY_PARAMS_MAX && r->n_repeated <= REPEATED_MAX);
  for (int i = 0; i < r->n_query; i++) {
    MUST(is_listed(r->route, r->query[i].name, false));
    MUST(fuzz_is_utf8(r->query[i].value, strlen(r->query[i].value)));
    MUST(request_query(r, r->query[i].name) == r->query[i].value);
    for (int j = 0; j < i; j++)
      MUST(strcmp(r->query[i].name, r->query[j].name) != 0);
  }
  MUST(r->n_repeated == 0 || repeatable_name(r->route) != NULL);
  for (size_t i = 0; i < r->n_repeated; i++)
    MUST(fuzz_is_utf8(r->repeated[i], strlen(r->repeated[i])));
}

static void add_parameter(struct buf *out, const char *name, const char *value) {
  if (out->len > 0)
    buf_putc(out, '&');
  fuzz_percent(out, name);
  buf_putc(out, '=');
  fuzz_percent(out, value);
}

/// The same parameters, encoded by us, are read as the same.
static void check_again(const struct request *r) {
  struct buf text = {0};
  for (int i = 0; i < r->n_query; i++)
    add_parameter(&text, r->query[i].name, r->query[i].value);
  for (size_t i = 0; i < r->n_repeated; i++)
    add_parameter(&text, repeatable_name(r->route), r->repeated[i]);
  struct request same;
  MUST(read_query(&same, r->route, text.data));
  MUST(same.n_query == r->n_query && same.n_repeated == r->n_repeated);
  for (int i = 0; i < r->n_query; i++)
    MUST(strcmp(same.query[i].name, r->query[i].name) == 0 && strcmp(same.query[i].value, r->query[i].value) == 0);
  for (size_t i = 0; i < r->n_repeated; i++)
    MUST(strcmp(same.repeated[i], r->repeated[i]) == 0);
  free(same.repeated);
  buf_free(&text);
}

static void check_cursor(struct request *r) {
  struct presence_query query = {0};
  memset(&refused, 0, sizeof refused);
  bool good = presence_parse_cursor(r, &query);
  MUST(refused.problems == (good ? 0 : 1));
  if (!good)
    return;
  MUST(query.has_since == (request_query(r, "since") != NULL));
  MUST(query.since >= 0 && query.since <= REVISION_MAX);
  MUST(query.epoch == request_query(r, "epoch"));
  for (const char *c = query.epoch; c != NULL && *c != '\0'; c++)
    MUST((unsigned char)*c > 0x20 && (unsigned char)*c < 0x7f && c - query.epoch < REQUEST_ID_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *method, *target, allow[ALLOW_SIZE], *params[PATH_PARAMS_MAX];
  fuzz_split(data, size, ' ', &method, &target);
  char *mark = strchr(target, '?');
  if (mark != NULL)
    *mark = '\0';
  const struct route *route;
  const char *problem;
  if (route_find(method, target, &route, params, allow, &problem) != ROUTE_FOUND)
    for (route = routes; strcmp(route->pattern, "/rooms/{room}/presence") != 0;)
      route++;
  char *query = mark != NULL ? strdup(mark + 1) : NULL;
  struct request r;
  if (read_query(&r, route, query)) {
    MUST(mark == NULL || strstr(mark + 1, "%00") == NULL);
    check_parameters(&r);
    check_cursor(&r);
    check_again(&r);
  }
  free(r.repeated);
  free(query);
  for (int i = 0; i < PATH_PARAMS_MAX; i++)
    free(params[i]);
  free(method);
  free(target);
  return 0;
}
