// SPDX-License-Identifier: Apache-2.0
#include "http/accept.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

/// Weights are thousandths.
#define Q_MAX 1000

/// One element of the list.
struct element {
  const char *name;
  size_t len;
  int q; ///< a weight that cannot be read counts as 0
};

static const char *skip_blank(const char *s) {
  return s + strspn(s, " \t");
}

/// The end of what begins at @a s: at one of @a stops or the end of the string, quoted strings passed over.
static const char *skip_to(const char *s, const char *stops) {
  bool quoted = false;
  for (; *s != '\0'; s++) {
    if (quoted && s[0] == '\\' && s[1] != '\0')
      s++;
    else if (*s == '"')
      quoted = !quoted;
    else if (!quoted && strchr(stops, *s) != NULL)
      break;
  }
  return s;
}

/// `0`, `1`, `0.5`, at most three decimals, and nothing behind but blanks.
static int read_weight(const char *s, const char *end) {
  if (s == end || (*s != '0' && *s != '1'))
    return 0;
  int q = (*s++ - '0') * Q_MAX;
  if (s < end && *s == '.') {
    s++;
    for (int unit = Q_MAX / 10; s < end && *s >= '0' && *s <= '9'; s++, unit /= 10) {
      if (unit == 0)
        return 0;
      q += (*s - '0') * unit;
    }
  }
  while (s < end && (*s == ' ' || *s == '\t'))
    s++;
  return s == end && q <= Q_MAX ? q : 0;
}

/// Takes the next element. @return where the one after it begins, or NULL at the end of the list
static const char *next(const char *s, struct element *e) {
  s += strspn(s, " \t,");
  if (*s == '\0')
    return NULL;
  e->name = s;
  e->len = strcspn(s, " \t,;");
  e->q = Q_MAX;
  s = skip_to(s + e->len, ",;");
  while (*s == ';') {
    s = skip_blank(s + 1);
    const char *end = skip_to(s, ",;");
    if ((s[0] == 'q' || s[0] == 'Q') && s[1] == '=')
      e->q = read_weight(s + 2, end);
    s = end;
  }
  return s;
}

static bool is(const struct element *e, const char *name) {
  return e->len == strlen(name) && strncasecmp(e->name, name, e->len) == 0;
}

bool accept_event_stream(const char *accept) {
  int stream = -1, json = -1, application = -1, any = -1;
  struct element e;
  for (const char *s = accept; s != NULL && (s = next(s, &e)) != NULL;) {
    if (is(&e, "text/event-stream"))
      stream = e.q;
    else if (is(&e, "application/json"))
      json = e.q;
    else if (is(&e, "application/*"))
      application = e.q;
    else if (is(&e, "*/*"))
      any = e.q;
  }
  if (stream <= 0)
    return false;
  if (json >= 0)
    return stream > json;
  return stream >= (application >= 0 ? application : any);
}

int accept_weight(const char *accept, const char *type) {
  int exact = -1, kind = -1, any = -1;
  size_t kind_len = strcspn(type, "/") + 1;
  struct element e;
  for (const char *s = accept; s != NULL && (s = next(s, &e)) != NULL;) {
    if (is(&e, type))
      exact = e.q;
    else if (e.len == kind_len + 1 && strncasecmp(e.name, type, kind_len) == 0 && e.name[kind_len] == '*')
      kind = e.q;
    else if (is(&e, "*/*"))
      any = e.q;
  }
  int q = exact >= 0 ? exact : kind >= 0 ? kind : any;
  return q > 0 ? q : 0;
}

bool accept_gzip(const char *accept_encoding) {
  int gzip = -1, identity = -1, any = -1;
  struct element e;
  for (const char *s = accept_encoding; s != NULL && (s = next(s, &e)) != NULL;) {
    if (is(&e, "gzip") || is(&e, "x-gzip"))
      gzip = e.q;
    else if (is(&e, "identity"))
      identity = e.q;
    else if (is(&e, "*"))
      any = e.q;
  }
  if (gzip < 0)
    gzip = any;
  return gzip > 0 && gzip >= identity;
}
