// SPDX-License-Identifier: Apache-2.0
/// @file
/// The one place that talks HTTP, over libcurl. An object has one request at a time on a kept connection; those of a
/// group go on together. Every wait is interrupted by signals. One thread.
#ifndef SH_CLI_HTTP_H
#define SH_CLI_HTTP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct http;
struct http_group;
struct need;

enum http_result {
  HTTP_ANSWERED,    ///< status and body are set; any status
  HTTP_UNREACHABLE, ///< no connection, no answer in time, or not HTTP: `error` says it
  HTTP_INTERRUPTED, ///< a signal came first
  HTTP_BROKEN,      ///< a fault on this side (token file, memory): `error` says it, trying again is no use
  HTTP_FOREIGN,     ///< a 2xx without what this request's answer has: no stillhere server is there; `error` says it
};

/// Zero-initialised is empty; http_reply_clear() after use.
struct http_reply {
  int status;
  struct buf body;
  json_t *json;        ///< the body as JSON, or NULL when it is none
  int retry_after_s;   ///< 0: not given
  char request_id[72]; ///< by which the server's logs know it; "" when it said none
  char error[320];     ///< of what went wrong
};

/// Over https, trusts the authorities in this PEM file instead of the system's; NULL: those. For all requests of the
/// program. @a file must outlive it.
void http_trust(const char *file);

/// @param url where the server is; or unix:/path, where it listens on a socket there
/// @param token_file NULL, or a file whose content is sent as a bearer token; read again for each request
/// Both must outlive the object. @return NULL when memory ran out
struct http *http_open(const char *url, const char *token_file);

/// NULL is fine.
void http_close(struct http *http);

const char *http_url(const struct http *http);

/// For several requests at once. @return NULL when memory ran out
struct http_group *http_group_open(void);

/// After all that were opened in it are closed. NULL is fine.
void http_group_close(struct http_group *group);

/// Like http_open(), with a connection in @a group.
struct http *http_open_in(struct http_group *group, const char *url, const char *token_file);

/// Whether the host and the port of an address that begins with http:// or https:// can be ones.
bool http_url_sane(const char *url);

/// What the answer to a request must have to be one of a stillhere server. Static; NULL: anything goes
const struct need *http_need(const char *method, const char *path);

/// Whether @a json (may be NULL) has it.
bool http_need_met(const struct need *need, const json_t *json);

/// Begins a request that http_group_run() carries on. One that was under way is abandoned. @a reply must stay until
/// the end. @return false when it cannot be sent at all; http_outcome() is HTTP_BROKEN then, `error` says why
bool http_begin(struct http *http, const char *method, const char *path, const char *body, int64_t timeout_ms,
                struct http_reply *reply);

/// Whether a request is under way.
bool http_running(const struct http *http);

/// What became of the last request.
enum http_result http_outcome(const struct http *http);

/// Gives up a request that is under way; its connection is closed.
void http_abandon(struct http *http);

/// Carries on all requests of the group until one of them has ended, the monotonic clock shows @a until_us, or there is
/// something that signals_terminal() tells of. @return false when a stop signal came, or memory ran out
bool http_group_run(struct http_group *group, int64_t until_us);

/// Sends one request and reads its answer. @a body is JSON text or NULL.
enum http_result http_send(struct http *http, const char *method, const char *path, const char *body,
                           int64_t timeout_ms, struct http_reply *reply);

/// The same for what somebody waits for: where it takes over two seconds, standard error says what is waited for.
enum http_result http_send_aloud(struct http *http, const char *method, const char *path, const char *body,
                                 int64_t timeout_ms, struct http_reply *reply);

/// The same, trying again a few times with growing, jittered pauses while the server is not reached or answers 5xx
/// or 429, and saying so.
enum http_result http_send_patiently(struct http *http, const char *method, const char *path, const char *body,
                                     struct http_reply *reply);

void http_reply_clear(struct http_reply *reply);

/// Appends `/segment`, percent-encoded.
void http_path_add(struct buf *path, const char *segment);

/// Appends `?name=value` or `&name=value`, percent-encoded.
void http_query_add(struct buf *path, const char *name, const char *value);
void http_query_add_int(struct buf *path, const char *name, int64_t value);

/// The pause before attempt @a attempt (0, 1, 2 …) of a request: doubling from @a first_ms up to @a most_ms, of which a
/// random half is taken off so that many clients spread; never less than the server's Retry-After, up to a minute.
int64_t http_pause_ms(int attempt, int64_t first_ms, int64_t most_ms, int retry_after_s);

/// Whether the same request may fare better later: 5xx and 429.
bool http_worth_retrying(int status);

/// What whoever reads a refusal can do about it: static text that goes behind the server's own words, or "".
/// @param code of the problem object; may be NULL
const char *http_hint(int status, const char *code);

/// Says on standard error that a request was in vain and will be tried again.
void http_say_again(const struct http *http, enum http_result result, const struct http_reply *reply);

/// Says on standard error why a request was in vain, and what to do. @return the exit code for it
int http_explain(const struct http *http, enum http_result result, const struct http_reply *reply);

#endif
