// SPDX-License-Identifier: Apache-2.0
// What is said with and about requests: paths, and what a refusal means to whoever reads it.
#include <stdio.h>
#include <string.h>

#include "base/strict.h"
#include "cli/http.h"
#include "cli/options.h"
#include "cli/text.h"

/// Appends @a text with everything but unreserved characters as %XX.
static void add_encoded(struct buf *path, const char *text) {
  static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  for (const char *c = text; *c != '\0'; c++) {
    if (strchr(plain, *c) != NULL)
      buf_putc(path, *c);
    else
      buf_printf(path, "%%%02X", (unsigned char)*c);
  }
}

void http_path_add(struct buf *path, const char *segment) {
  buf_putc(path, '/');
  add_encoded(path, segment);
}

void http_query_add(struct buf *path, const char *name, const char *value) {
  bool first = path->data == NULL || strchr(path->data, '?') == NULL;
  buf_putc(path, first ? '?' : '&');
  buf_puts(path, name);
  buf_putc(path, '=');
  add_encoded(path, value);
}

void http_query_add_int(struct buf *path, const char *name, int64_t value) {
  char digits[24];
  snprintf(digits, sizeof digits, "%lld", (long long)value);
  http_query_add(path, name, digits);
}

const char *http_hint(int status, const char *code) {
  static const struct {
    const char *code, *hint;
  } hints[] = {
      {"no_credential", ". Give a token or an API key with --token-file, or name its file in STILLHERE_TOKEN_FILE"},
      {"bad_credential", ". The server does not know what is in the token file: is it for this server, and whole?"},
      {"token_expired", ". Get a new token into the token file"},
      {"missing_scope", ". This takes a token with a wider scope"},
      {"outside_rooms", ". This takes a token for that room"},
      {"not_your_user", ". This takes a token whose sub is that user, or one with the scope gateway"},
      {"not_your_session", ". This takes a token whose sid is that session, or one without a sid"},
      {"membership_revoked", ". To let the user in again: stillhere member grant"},
      {"not_a_member", ". To let the user in: stillhere member grant"},
  };
  for (size_t i = 0; code != NULL && i < ARRAY_LEN(hints); i++) {
    if (strcmp(code, hints[i].code) == 0)
      return hints[i].hint;
  }
  if (status == 401)
    return ". Give a valid token with --token-file";
  if (status == 404 && code == NULL)
    return ". A stillhere server gives a reason: is one behind this address? See --url";
  if (status == 429)
    return ". Wait a little, or ask for a higher limit";
  return status >= 500 ? ". Try again later; /readyz and the server's log tell more" : "";
}

void http_say_again(const struct http *http, enum http_result result, const struct http_reply *reply) {
  if (result == HTTP_ANSWERED)
    complain("%s answered %d; trying again", http_url(http), reply->status);
  else
    complain("%s is not reached (%s); trying again", http_url(http), reply->error);
}

int http_explain(const struct http *http, enum http_result result, const struct http_reply *reply) {
  if (result == HTTP_INTERRUPTED) {
    complain("interrupted before the server answered");
    return EXIT_UNREACHABLE;
  }
  if (result == HTTP_BROKEN) {
    complain("%s", reply->error);
    return EXIT_USAGE;
  }
  if (result == HTTP_UNREACHABLE) {
    bool certificate = strstr(reply->error, "certificate") != NULL;
    complain(certificate
                 ? "%s is not trusted (%s). With an authority of your own, see --ca-file"
                 : "%s is not reached (%s). Is the server running there? See --url, or start one with: stillhere dev",
             http_url(http), reply->error);
    return EXIT_UNREACHABLE;
  }
  if (result == HTTP_FOREIGN || reply->status < 400) {
    complain("the answer of %s (%d) is not one of a stillhere server. See --url", http_url(http), reply->status);
    return EXIT_UNREACHABLE;
  }
  char detail[512];
  text_clean(detail, sizeof detail, text_of(reply->json, "detail", text_of(reply->json, "title", "")));
  const char *code = text_of(reply->json, "code", NULL);
  char cleaned_code[64];
  text_clean(cleaned_code, sizeof cleaned_code, code == NULL ? "no reason given" : code);
  const char *hint = http_hint(reply->status, code);
  complain("the server answered %d, %s%s%s%s", reply->status, cleaned_code, detail[0] == '\0' ? "" : ": ", detail,
           hint);
  return reply->status >= 500 ? EXIT_UNREACHABLE : EXIT_REFUSED;
}
