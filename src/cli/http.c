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
#include "base/strict.h"
#include "cli/options.h"
#include "cli/signals.h"

/// Longest answer that is read, bytes: far above a snapshot of a full room.
#define BODY_MAX (256u << 20)
/// Longest token, bytes.
#define TOKEN_MAX 16384
#define CONNECT_TIMEOUT_MS 5000L
/// For requests that the server answers at once.
#define ANSWER_TIMEOUT_MS 10000
#define PATIENT_ATTEMPTS 5
/// Who waits longer than this is told for what.
#define SILENT_US INT64_C(1800000)

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "unknown"
#endif

struct http_group {
  CURLM *multi;
};

struct http {
  struct http_group *group;
  bool own_group; ///< nobody else is in it
  CURL *easy;
  const char *url, *token_file;
  char curl_error[CURL_ERROR_SIZE];
  // The request under way.
  bool running;
  struct curl_slist *headers;
  struct http_reply *reply;
  const struct need *need;
  enum http_result result;
};

static const char *ca_file;

void http_trust(const char *file) {
  ca_file = file;
}

/// @return the path of an address of the form unix:/path, or NULL
static const char *unix_path(const char *url) {
  return strncmp(url, "unix:/", 6) == 0 ? url + 5 : NULL;
}

bool http_url_sane(const char *url) {
  CURLU *parts = curl_url();
  bool sane = parts != NULL && curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK;
  curl_url_cleanup(parts);
  return sane;
}

struct http_group *http_group_open(void) {
  struct http_group *group = calloc(1, sizeof *group);
  if (group == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    free(group);
    return NULL;
  }
  group->multi = curl_multi_init();
  if (group->multi == NULL) {
    http_group_close(group);
    return NULL;
  }
  return group;
}

void http_group_close(struct http_group *group) {
  if (group == NULL)
    return;
  curl_multi_cleanup(group->multi);
  curl_global_cleanup();
  free(group);
}

struct http *http_open_in(struct http_group *group, const char *url, const char *token_file) {
  struct http *http = calloc(1, sizeof *http);
  if (http == NULL)
    return NULL;
  http->group = group;
  http->url = url;
  http->token_file = token_file;
  http->easy = curl_easy_init();
  if (http->easy == NULL) {
    free(http);
    return NULL;
  }
  return http;
}

struct http *http_open(const char *url, const char *token_file) {
  struct http_group *group = http_group_open();
  struct http *http = group == NULL ? NULL : http_open_in(group, url, token_file);
  if (http == NULL)
    http_group_close(group);
  else
    http->own_group = true;
  return http;
}

void http_close(struct http *http) {
  if (http == NULL)
    return;
  http_abandon(http);
  curl_easy_cleanup(http->easy);
  if (http->own_group)
    http_group_close(http->group);
  free(http);
}

const char *http_url(const struct http *http) {
  return http->url;
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

/// Keeps the id by which the server's logs know the request, without the blanks around it.
static void take_request_id(struct http_reply *reply, const char *data, size_t len) {
  while (len > 0 && *data == ' ') {
    data++;
    len--;
  }
  while (len > 0 && (data[len - 1] == '\r' || data[len - 1] == '\n' || data[len - 1] == ' '))
    len--;
  if (!request_id_sane(data, len) || len >= sizeof reply->request_id)
    return;
  memcpy(reply->request_id, data, len);
  reply->request_id[len] = '\0';
}

static size_t take_header(char *data, size_t size, size_t n, void *ctx) {
  struct http_reply *reply = ctx;
  static const char name[] = "retry-after:", id_name[] = "x-request-id:";
  size_t len = size * n;
  if (len > sizeof id_name && strncasecmp(data, id_name, sizeof id_name - 1) == 0)
    take_request_id(reply, data + sizeof id_name - 1, len - (sizeof id_name - 1));
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
    snprintf(reply->error, sizeof reply->error,
             "the token file %s cannot be read: %s. See --token-file and STILLHERE_TOKEN_FILE", token_file,
             strerror(errno));
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
    snprintf(reply->error, sizeof reply->error,
             "the token file %s does not hold one token. See --token-file and STILLHERE_TOKEN_FILE", token_file);
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

/// Takes the request out of the group, whatever became of it.
static void settle(struct http *http, enum http_result result) {
  struct http_reply *reply = http->reply;
  curl_multi_remove_handle(http->group->multi, http->easy);
  curl_slist_free_all(http->headers);
  http->headers = NULL;
  http->running = false;
  http->result = result;
  if (result == HTTP_ANSWERED) {
    long status = 0;
    curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &status);
    reply->status = (int)status;
    if (reply->body.len > 0)
      reply->json = json_loadb(reply->body.data, reply->body.len, 0, NULL);
    if (status >= 200 && status < 300 && !http_need_met(http->need, reply->json)) {
      http->result = HTTP_FOREIGN;
      snprintf(reply->error, sizeof reply->error, "the answer (%ld) is not one of a stillhere server", status);
    }
  } else if (reply->error[0] == '\0') {
    snprintf(reply->error, sizeof reply->error, "memory ran out");
  }
}

/// Writes down why there is no answer.
static void say_fault(struct http *http, CURLcode code) {
  struct http_reply *reply = http->reply;
  const char *words = http->curl_error[0] != '\0' ? http->curl_error : curl_easy_strerror(code);
  long fault = 0;
  if (code == CURLE_SSL_CACERT_BADFILE && ca_file != NULL)
    snprintf(reply->error, sizeof reply->error, "%s holds no authorities to trust (%s). See --ca-file", ca_file, words);
  else if (code == CURLE_COULDNT_CONNECT && unix_path(http->url) != NULL &&
           curl_easy_getinfo(http->easy, CURLINFO_OS_ERRNO, &fault) == CURLE_OK && fault != 0)
    // curl would name the host and the port that it makes up for a socket.
    snprintf(reply->error, sizeof reply->error, "%s", strerror((int)fault));
  else
    snprintf(reply->error, sizeof reply->error, "%s", words);
}

/// Settles what curl has brought to an end. @return how many those were
static int settle_ended(struct http_group *group) {
  int n = 0, left;
  for (const CURLMsg *message; (message = curl_multi_info_read(group->multi, &left)) != NULL;) {
    struct http *http = NULL;
    CURLcode code = message->data.result;
    if (message->msg != CURLMSG_DONE ||
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&http) != CURLE_OK || http == NULL)
      continue;
    if (code != CURLE_OK)
      say_fault(http, code);
    settle(http, code == CURLE_OK ? HTTP_ANSWERED : code == CURLE_SSL_CACERT_BADFILE ? HTTP_BROKEN : HTTP_UNREACHABLE);
    n++;
  }
  return n;
}

bool http_begin(struct http *http, const char *method, const char *path, const char *body, int64_t timeout_ms,
                struct http_reply *reply) {
  http_abandon(http);
  http_reply_clear(reply);
  http->reply = reply;
  http->need = http_need(method, path);
  http->result = HTTP_BROKEN;
  struct buf url = {0};
  buf_puts(&url, unix_path(http->url) != NULL ? "http://localhost" : http->url);
  while (url.len > 0 && url.data[url.len - 1] == '/')
    url.data[--url.len] = '\0';
  buf_puts(&url, path);
  http->headers = curl_slist_append(NULL, "Content-Type: application/json");
  // No "Expect: 100-continue": it would only cost a round trip.
  bool ok = !url.failed && http->headers != NULL && curl_slist_append(http->headers, "Expect:") != NULL;
  char *token = NULL;
  if (ok && http->token_file != NULL) {
    token = authorization(http->token_file, reply);
    ok = token != NULL && curl_slist_append(http->headers, token) != NULL;
  }
  ok = ok && set_up(http, method, url.data, body, timeout_ms, http->headers, reply) &&
       curl_easy_setopt(http->easy, CURLOPT_PRIVATE, http) == CURLE_OK &&
       curl_multi_add_handle(http->group->multi, http->easy) == CURLM_OK;
  http->running = ok;
  if (!ok)
    settle(http, HTTP_BROKEN);
  free(token);
  buf_free(&url);
  return ok;
}

bool http_running(const struct http *http) {
  return http->running;
}

enum http_result http_outcome(const struct http *http) {
  return http->running ? HTTP_INTERRUPTED : http->result;
}

void http_abandon(struct http *http) {
  if (http->running)
    settle(http, HTTP_INTERRUPTED);
}

bool http_group_run(struct http_group *group, int64_t until_us) {
  for (int running;;) {
    if (curl_multi_perform(group->multi, &running) != CURLM_OK)
      return false;
    if (settle_ended(group) > 0)
      return true;
    int64_t left_ms = (until_us - clock_mono_us() + 999) / 1000;
    if (left_ms <= 0)
      return true;
    struct curl_waitfd signals = {.fd = signals_fd(), .events = CURL_WAIT_POLLIN};
    if (curl_multi_poll(group->multi, &signals, 1, left_ms > 60000 ? 60000 : (int)left_ms, NULL) != CURLM_OK)
      return false;
    if (signals.revents != 0) {
      // Taken in here: what is sent after a Ctrl-C to put things in order is not to be cut off by the same one.
      int before = signals_seen();
      if (signals_stops() != before)
        return false;
      if (signals_terminal(false) != 0)
        return true;
    }
  }
}

/// @param silent_us for how long nothing is said
static enum http_result send_and_wait(struct http *http, const char *method, const char *path, const char *body,
                                      int64_t timeout_ms, int64_t silent_us, struct http_reply *reply) {
  if (!http_begin(http, method, path, body, timeout_ms, reply))
    return HTTP_BROKEN;
  int64_t say_us = clock_mono_us() + silent_us;
  while (http->running) {
    if (!http_group_run(http->group, say_us))
      http_abandon(http);
    if (http->running && clock_mono_us() >= say_us) {
      complain("waiting for %s to answer", http->url);
      say_us += INT64_C(3600000000);
    }
  }
  return http->result;
}

enum http_result http_send(struct http *http, const char *method, const char *path, const char *body,
                           int64_t timeout_ms, struct http_reply *reply) {
  return send_and_wait(http, method, path, body, timeout_ms, INT64_C(3600000000), reply);
}

enum http_result http_send_aloud(struct http *http, const char *method, const char *path, const char *body,
                                 int64_t timeout_ms, struct http_reply *reply) {
  return send_and_wait(http, method, path, body, timeout_ms, SILENT_US, reply);
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
  int64_t began_us = clock_mono_us();
  bool said = false;
  for (int attempt = 0;; attempt++) {
    enum http_result result = http_send_aloud(http, method, path, body, ANSWER_TIMEOUT_MS, reply);
    bool again = result == HTTP_UNREACHABLE || (result == HTTP_ANSWERED && http_worth_retrying(reply->status));
    if (!again || attempt + 1 == PATIENT_ATTEMPTS)
      return result;
    int64_t pause_ms = http_pause_ms(attempt, 200, 2000, reply->retry_after_s);
    if (!said && clock_mono_us() + pause_ms * 1000 - began_us > SILENT_US / 2) {
      http_say_again(http, result, reply);
      said = true;
    }
    if (signals_sleep(pause_ms))
      return HTTP_INTERRUPTED;
  }
}
