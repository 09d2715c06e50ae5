// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/strict.h"
#include "http/inside.h"

enum name_kind { NAME_UNKNOWN, NAME_ONCE, NAME_REPEATABLE };

static enum name_kind kind_of(const struct route *route, const char *name) {
  for (const char *const *n = route->query_names; *n != NULL; n++) {
    bool repeatable = strncmp(*n, ROUTE_REPEATABLE, strlen(ROUTE_REPEATABLE)) == 0;
    if (strcmp(repeatable ? *n + strlen(ROUTE_REPEATABLE) : *n, name) == 0)
      return repeatable ? NAME_REPEATABLE : NAME_ONCE;
  }
  return NAME_UNKNOWN;
}

/// Decodes one name or value in place. @return NULL, or what is wrong with it
static const char *decode(char *s, size_t len) {
  long decoded = percent_decode(s, len, s);
  if (decoded < 0)
    return "has a bad percent-encoding or an encoded NUL";
  if (!utf8_valid(s, (size_t)decoded))
    return "is not valid UTF-8";
  return NULL;
}

/// Adds a value of the parameter that may be repeated. @return false when refused
static bool take_repeated(struct request *r, const char *name, char *value) {
  if (r->n_repeated == REPEATED_MAX) {
    request_problem(r, 400, "bad_parameter", name, "the query parameter '%s' is given more than %d times", name,
                    REPEATED_MAX);
    return false;
  }
  // Grown by doubling: full whenever the number is a power of two.
  if ((r->n_repeated & (r->n_repeated - 1)) == 0) {
    size_t room = r->n_repeated > 0 ? r->n_repeated * 2 : 1;
    char **grown = realloc(r->repeated, room * sizeof *grown);
    if (grown == NULL) {
      request_unavailable(r, "out of memory");
      return false;
    }
    r->repeated = grown;
  }
  r->repeated[r->n_repeated++] = value;
  return true;
}

/// Takes the parameter in @a s, of @a len bytes with room for a NUL behind them. @return false when refused
static bool take(struct request *r, char *s, size_t len) {
  size_t name_len = 0;
  while (name_len < len && s[name_len] != '=')
    name_len++;
  const char *wrong = decode(s, name_len);
  // decode() has put a NUL at the end of the name, over the '='; `name_len` still tells whether there was one.
  if (wrong != NULL) {
    request_problem(r, 400, "bad_parameter", NULL, "the name of a query parameter %s", wrong);
    return false;
  }
  enum name_kind kind = kind_of(r->route, s);
  if (kind == NAME_UNKNOWN) {
    request_problem(r, 400, "bad_parameter", s, "there is no query parameter '%s' here", s);
    return false;
  }
  if (request_query(r, s) != NULL) {
    request_problem(r, 400, "bad_parameter", s, "the query parameter '%s' is given twice", s);
    return false;
  }
  if (name_len == len) {
    request_problem(r, 400, "bad_parameter", s, "the query parameter '%s' has no value", s);
    return false;
  }
  char *value = s + name_len + 1;
  wrong = decode(value, len - name_len - 1);
  if (wrong != NULL) {
    request_problem(r, 400, "bad_parameter", s, "the value of the query parameter '%s' %s", s, wrong);
    return false;
  }
  if (kind == NAME_REPEATABLE)
    return take_repeated(r, s, value);
  if (r->n_query == QUERY_PARAMS_MAX) {
    request_problem(r, 400, "bad_parameter", s, "there are too many query parameters");
    return false;
  }
  r->query[r->n_query++] = (struct query_param){.name = s, .value = value};
  return true;
}

bool query_read(struct request *r) {
  char *s = r->raw_query;
  if (s == NULL || s[0] == '\0')
    return true;
  for (;;) {
    size_t len = strcspn(s, "&");
    bool last = s[len] == '\0';
    if (len == 0) {
      request_problem(r, 400, "bad_parameter", NULL, "a query parameter is empty");
      return false;
    }
    if (!take(r, s, len))
      return false;
    if (last)
      return true;
    s += len + 1;
  }
}

const char *request_query(const struct request *r, const char *name) {
  for (int i = 0; i < r->n_query; i++)
    if (strcmp(r->query[i].name, name) == 0)
      return r->query[i].value;
  return NULL;
}
