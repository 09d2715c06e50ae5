// SPDX-License-Identifier: Apache-2.0
// "METHOD /path": how a request finds its route and its identifiers, and to which worker its first bytes send it.
#include "fuzz.h"
#include "http/route.h"
#include "http/usher.h"

struct found {
  enum route_result result;
  const struct route *route;
  char *params[PATH_PARAMS_MAX];
  char allow[ALLOW_SIZE];
  const char *problem;
};

static struct found find(const char *method, const char *path) {
  struct found f;
  memset(&f, 0xa5, sizeof f);
  f.result = route_find(method, path, &f.route, f.params, f.allow, &f.problem);
  return f;
}

static void clear(struct found *f) {
  for (int i = 0; i < PATH_PARAMS_MAX; i++)
    free(f->params[i]);
}

static int count(const char *s, char c) {
  int n = 0;
  for (; *s != '\0'; s++)
    n += *s == c;
  return n;
}

/// The path that names the same with everything encoded that can be.
static void encode(const struct found *f, struct buf *out) {
  int param = 0;
  for (const char *s = f->route->pattern; *s != '\0'; s++) {
    if (*s != '{') {
      buf_putc(out, *s);
      continue;
    }
    fuzz_percent(out, f->params[param++]);
    s = strchr(s, '}');
  }
}

static void check_found(const struct found *f, const char *method, const char *path) {
  MUST(f->problem == NULL && f->route != NULL && f->route->handle != NULL);
  MUST(strcmp(f->route->method, strcmp(method, "HEAD") == 0 ? "GET" : method) == 0);
  MUST(count(path, '/') == count(f->route->pattern, '/') && strstr(path, "%00") == NULL);
  int n = count(f->route->pattern, '{');
  for (int i = 0; i < PATH_PARAMS_MAX; i++)
    MUST(i < n ? f->params[i] != NULL && fuzz_is_ident(f->params[i]) : f->params[i] == NULL);
  struct buf again = {0};
  encode(f, &again);
  struct found same = find(method, again.data);
  MUST(same.result == ROUTE_FOUND && same.route == f->route);
  for (int i = 0; i < n; i++)
    MUST(strcmp(same.params[i], f->params[i]) == 0);
  clear(&same);
  buf_free(&again);
}

/// Whether a list of the form "GET, HEAD" has @a method.
static bool listed(const char *list, const char *method) {
  for (const char *s = list; s != NULL; s = strstr(s, ", ")) {
    s += s != list ? 2 : 0;
    size_t len = strcspn(s, ",");
    if (strlen(method) == len && memcmp(s, method, len) == 0)
      return true;
  }
  return false;
}

static void check_not_found(const struct found *f, const char *method) {
  for (int i = 0; i < PATH_PARAMS_MAX; i++)
    MUST(f->params[i] == NULL);
  MUST((f->problem != NULL) == (f->result == ROUTE_BAD_PATH));
  MUST(f->result == ROUTE_BAD_PATH || f->route == NULL);
  if (f->result != ROUTE_BAD_METHOD)
    return;
  size_t len = strnlen(f->allow, ALLOW_SIZE);
  MUST(len > 7 && len < ALLOW_SIZE && strcmp(f->allow + len - 7, "OPTIONS") == 0);
  MUST(strcmp(method, "OPTIONS") == 0 || !listed(f->allow, method));
}

/// What the first bytes say is never taken back when more have come.
static void check_usher(const uint8_t *data, size_t size) {
  int whole = 0;
  for (size_t len = size > 600 ? 600 : size, n = len + 1; n-- > 0;) {
    char *start = fuzz_copy(data, n);
    int verdict = usher_may_wait(start, n);
    MUST(verdict >= -1 && verdict <= 1 && (n == len || verdict == whole || verdict == -1 || whole == -1));
    MUST(n == len || whole != -1 || verdict == -1);
    whole = verdict;
    free(start);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *method, *path;
  fuzz_split(data, size, ' ', &method, &path);
  struct found f = find(method, path);
  MUST(f.result >= ROUTE_FOUND && f.result <= ROUTE_BAD_PATH);
  if (f.result == ROUTE_FOUND)
    check_found(&f, method, path);
  else
    check_not_found(&f, method);
  if (strcmp(method, "GET") == 0) {
    struct found head = find("HEAD", path);
    MUST(head.result == f.result && head.route == f.route);
    clear(&head);
  }
  clear(&f);
  free(method);
  free(path);
  check_usher(data, size);
  return 0;
}
