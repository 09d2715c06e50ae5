// SPDX-License-Identifier: Apache-2.0
#include "cli/http.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/rand.h"
#include "cli/options.h"
#include "cli/signals.h"
#include "cli/text.h"

/// Longest answer that is read, bytes: far above a snapshot of a full room.
#define BODY_MAX (256u << 20)
/// Longest token, bytes.
#define TOKEN_MAX 16384
#define CONNECT_TIMEOUT_MS 5000L
/// For requests that the server answers at once.
#define ANSWER_TIMEOUT_MS 10000
#define PATIENT_ATTEMPTS 5

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "unknown"
#endif

struct http {
  CURLM *multi;
  CURL *easy;
  const char *url, *token_file;
  char curl_error[CURL_ERROR_SIZE];
};

static const char *ca_file;

void http_trust(const char *file) {
  ca_file = file;
}

/// @return the path of an address of the form unix:/path, or NULL
static const char *unix_path(const char *url) {
  return strncmp(url, "unix:/", 6) == 0 ? url + 5 : NULL;
}

struct http *http_open(const char *url, const char *token_file) {
  struct http *http = calloc(1, sizeof *http);
  if (http == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    free(http);
    return NULL;
  }
  http->url = url;
  http->token_file = token_file;
  http->multi = curl_multi_init();
  http->easy = curl_easy_init();
  if (http->multi == NULL || http->easy == NULL) {
    http_close(http);
    return NULL;
  }
  return http;
}

void http_close(struct http *http) {
  if (http == NULL)
    return;
  curl_easy_cleanup(http->easy);
  curl_multi_cleanup(http->multi);
  curl_global_cleanup();
  free(http);
}

void http_reply_clear(struct http_reply *reply) {
  buf_free(&reply->body);
  json_decref(reply->json);
  *reply = (struct http_reply){0};
}

static size_t take_body(char *data, size_t size, size_t n, void *ctx) {
  struct http_reply *reply = ctx;
  if (reply->body.len + size * n > BODY_MAX)
    return 0;
  buf_add(&reply->body, data, size * n);
  return reply->body.failed ? 0 : size * n;
}

static size_t take_header(char *data, size_t size, size_t n, void *ctx) {
  struct http_reply *reply = ctx;
  static const char name[] = "retry-after:";
  size_t len = size * n;
  if (len > sizeof name && strncasecmp(data, name, sizeof name - 1) == 0) {
    int seconds = 0;
    for (size_t i = sizeof name - 1; i < len && seconds < 100000; i++) {
      if (data[i] >= '0' && data[i] <= '9')
        seconds = seconds * 10 + (data[i] - '0');
    }
    reply->retry_after_s = seconds;
  }
  return len;
}

/// Reads the token and makes the header of it. @return NULL (and reply->error) when there is no token to be had
static char *authorization(const char *token_file, struct http_reply *reply) {
  static const char prefix[] = "Authorization: Bearer ";
  FILE *file = fopen(token_file, "re");
  char *header = malloc(sizeof prefix + TOKEN_MAX + 1);
  if (file == NULL || header == NULL) {
    snprintf(reply->error, sizeof reply->error, "the token file %s cannot be read: %s", token_file, strerror(errno));
    goto failed;
  }
  memcpy(header, prefix, sizeof prefix - 1);
  size_t len = fread(header + sizeof prefix - 1, 1, TOKEN_MAX + 1, file);
  char *token = header + sizeof prefix - 1;
  while (len > 0 && (token[len - 1] == '\n' || token[len - 1] == '\r' || token[len - 1] == ' '))
    len--;
  bool plain = len > 0 && len <= TOKEN_MAX;
  for (size_t i = 0; i < len; i++)
    plain = plain && token[i] > ' ' && token[i] < 0x7f;
  if (!plain) {
    snprintf(reply->error, sizeof reply->error, "the token file %s does not hold one token", token_file);
    goto failed;
  }
  token[len] = '\0';
  fclose(file);
  return header;
failed:
  if (file != NULL)
    fclose(file);
  free(header);
  return NULL;
}

/// A proxy of the environment has no way to this machine's own loopback.
static bool url_is_loopback(const char *url) {
  if (unix_path(url) != NULL)
    return true;
  const char *host = strstr(url, "://") + 3;
  return strncmp(host, "127.", 4) == 0 || strncmp(host, "[::1]", 5) == 0 || strncasecmp(host, "localhost", 9) == 0;
}

static bool set_up(struct http *http, const char *method, const char *url, const char *body, int64_t timeout_ms,
                   struct curl_slist *headers, struct http_reply *reply) {
  CURL *easy = http->easy;
  curl_easy_reset(easy);
  http->curl_error[0] = '\0';
  bool ok = curl_easy_setopt(easy, CURLOPT_URL, url) == CURLE_OK &&
            curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
            curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method) == CURLE_OK &&
            curl_easy_setopt(easy, CURLOPT_USERAGENT, "stillhere/" PACKAGE_VERSION) == CURLE_OK;
  if (body != NULL)
    ok = ok && curl_easy_setopt(easy, CURLOPT_COPYPOSTFIELDS, body) == CURLE_OK;
  if (url_is_loopback(http->url))
    ok = ok && curl_easy_setopt(easy, CURLOPT_NOPROXY, "*") == CURLE_OK;
  if (unix_path(http->url) != NULL)
    ok = ok && curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, unix_path(http->url)) == CURLE_OK;
  if (ca_file != NULL)
    ok = ok && curl_easy_setopt(easy, CURLOPT_CAINFO, ca_file) == CURLE_OK;
  // A segment `.` is for the server to refuse, not for us to fold away.
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
  curl_easy_setopt(easy, CURLOPT_ACCEPT_ENCODING, "");
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, http->curl_error);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, reply);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, reply);
  return ok;
}

/// Runs the transfer that is set up, until its end or a signal.
static enum http_result transfer(struct http *http, struct http_reply *reply) {
  if (curl_multi_add_handle(http->multi, http->easy) != CURLM_OK)
    return HTTP_BROKEN;
  enum http_result result = HTTP_BROKEN;
  for (int running = 1;;) {
    if (curl_multi_perform(http->multi, &running) != CURLM_OK)
      break;
    if (running == 0) {
      int left;
      const CURLMsg *message = curl_multi_info_read(http->multi, &left);
      CURLcode code = message == NULL ? CURLE_FAILED_INIT : message->data.result;
      result = code == CURLE_OK ? HTTP_ANSWERED : HTTP_UNREACHABLE;
      if (code != CURLE_OK)
        snprintf(reply->error, sizeof reply->error, "%s",
                 http->curl_error[0] != '\0' ? http->curl_error : curl_easy_strerror(code));
      break;
    }
    struct curl_waitfd signals = {.fd = signals_fd(), .events = CURL_WAIT_POLLIN};
    if (curl_multi_poll(http->multi, &signals, 1, 60000, NULL) != CURLM_OK)
      break;
    if (signals.revents != 0) {
      result = HTTP_INTERRUPTED;
      break;
    }
  }
  curl_multi_remove_handle(http->multi, http->easy);
  return result;
}

enum http_result http_send(struct http *http, const char *method, const char *path, const char *body,
                           int64_t timeout_ms, struct http_reply *reply) {
  http_reply_clear(reply);
  struct buf url = {0};
  buf_puts(&url, unix_path(http->url) != NULL ? "http://localhost" : http->url);
  buf_puts(&url, path);
  struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
  // No "Expect: 100-continue": it would only cost a round trip.
  bool ok = !url.failed && headers != NULL && curl_slist_append(headers, "Expect:") != NULL;
  char *token = NULL;
  enum http_result result = HTTP_BROKEN;
  if (ok && http->token_file != NULL) {
    token = authorization(http->token_file, reply);
    ok = token != NULL && curl_slist_append(headers, token) != NULL;
  }
  if (ok && set_up(http, method, url.data, body, timeout_ms, headers, reply))
    result = transfer(http, reply);
  if (result == HTTP_BROKEN && reply->error[0] == '\0')
    snprintf(reply->error, sizeof reply->error, "memory ran out");
  if (result == HTTP_ANSWERED) {
    long status = 0;
    curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &status);
    reply->status = (int)status;
    if (reply->body.len > 0)
      reply->json = json_loadb(reply->body.data, reply->body.len, 0, NULL);
  }
  curl_slist_free_all(headers);
  free(token);
  buf_free(&url);
  return result;
}

bool http_worth_retrying(int status) {
  return status >= 500 || status == 429;
}

int64_t http_pause_ms(int attempt, int64_t first_ms, int64_t most_ms, int retry_after_s) {
  int64_t pause = first_ms;
  for (int i = 0; i < attempt && pause < most_ms; i++)
    pause *= 2;
  pause = jitter_down(pause < most_ms ? pause : most_ms, 2);
  int64_t asked = (int64_t)(retry_after_s > 60 ? 60 : retry_after_s) * 1000;
  return pause > asked ? pause : asked;
}

enum http_result http_send_patiently(struct http *http, const char *method, const char *path, const char *body,
                                     struct http_reply *reply) {
  for (int attempt = 0;; attempt++) {
    enum http_result result = http_send(http, method, path, body, ANSWER_TIMEOUT_MS, reply);
    bool again = result == HTTP_UNREACHABLE || (result == HTTP_ANSWERED && http_worth_retrying(reply->status));
    if (!again || attempt + 1 == PATIENT_ATTEMPTS)
      return result;
    if (signals_sleep(http_pause_ms(attempt, 200, 2000, reply->retry_after_s)))
      return HTTP_INTERRUPTED;
  }
}

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
  return status >= 500 ? ". Try again later; /readyz and the server's log tell more" : "";
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
             http->url, reply->error);
    return EXIT_UNREACHABLE;
  }
  if (reply->status < 400) {
    complain("the answer of %s (%d) is not one of a stillhere server. See --url", http->url, reply->status);
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
