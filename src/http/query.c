// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "base/strict.h"
#include "http/inside.h"

static bool known(const struct route *route, const char *name) {
  for (const char *const *n = route->query_names; *n != NULL; n++)
    if (strcmp(*n, name) == 0)
      return true;
  return false;
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
  if (!known(r->route, s)) {
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
