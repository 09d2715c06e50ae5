// SPDX-License-Identifier: Apache-2.0
/// @file
/// `stillhere renew`: holds the leases of one user in one room. All sessions go in one request (the batch form), the
/// server counts the revisions, and the pace is the one that its answers ask for.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/http.h"
#include "cli/signals.h"
#include "cli/text.h"

/// Pauses between attempts while the server is away.
#define PAUSE_FIRST_MS 250
#define PAUSE_MOST_MS 5000
/// Attempts before the first lease is granted; after that the lease's own end is the limit.
#define ATTEMPTS_BEFORE_GRANT 5
#define REQUEST_TIMEOUT_MS 10000
/// All closings at the end together.
#define CLOSING_MS 5000

struct session {
  const char *id;
  bool held;         ///< a lease was granted
  bool lost;         ///< the server refused it: nothing more is sent for it
  int64_t revision;  ///< 0: the server counts. Else the one that reopens a session which was closed earlier
  int64_t expiry_us; ///< monotonic, of the newest accepted answer
};

struct renewal {
  const struct options *options;
  struct http *http;
  const char *room, *user;
  struct session *sessions;
  int n_sessions, n_lost;
  int64_t renew_after_ms; ///< the shortest of the newest answers
  bool reopening;         ///< some session waits to be reopened at once
  bool transient;         ///< some item failed in a way that may pass
  int retry_after_s;
};

static char *request_body(const struct renewal *r) {
  json_t *leases = json_array();
  for (int i = 0; i < r->n_sessions; i++) {
    const struct session *s = &r->sessions[i];
    if (s->lost)
      continue;
    json_t *lease = json_pack("{ss ss ss}", "room_id", r->room, "user_id", r->user, "session_id", s->id);
    if (s->revision > 0)
      json_object_set_new(lease, "revision", json_integer(s->revision));
    if (r->options->ttl_ms > 0)
      json_object_set_new(lease, "ttl_ms", json_integer(r->options->ttl_ms));
    if (r->options->meta != NULL)
      json_object_set(lease, "meta", r->options->meta);
    json_array_append_new(leases, lease);
  }
  json_t *body = json_pack("{so}", "leases", leases);
  char *text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
  json_decref(body);
  return text;
}

static void say_granted(const struct renewal *r, const struct session *s, const json_t *lease) {
  char room[160], user[160], session[160];
  printf("%s/%s is in %s: revision %lld, ttl %.1f s%s\n", text_clean(user, sizeof user, r->user),
         text_clean(session, sizeof session, s->id), text_clean(room, sizeof room, r->room),
         (long long)number_of(lease, "revision", 0), (double)number_of(lease, "ttl_ms", 0) / 1000,
         r->options->once       ? ""
         : r->options->no_close ? ". Ctrl-C stops renewing"
                                : ". Ctrl-C closes it");
  fflush(stdout);
}

/// @return false when the session is to be reopened, so that this refusal is no news
static bool take_refusal(struct renewal *r, struct session *s, const json_t *item) {
  int64_t status = number_of(item, "status", 500);
  const char *code = text_of(item, "code", "no reason given");
  if (http_worth_retrying((int)status)) {
    r->transient = true;
    return true;
  }
  int64_t stored = number_of(item, "stored_revision", 0);
  if (!s->held && s->revision == 0 && status == 410 && stored > 0 && stored < REVISION_MAX) {
    // An earlier run closed this session. Starting it again by name is an intention, so it is said with a revision.
    s->revision = stored + 1;
    r->reopening = true;
    return false;
  }
  char user[160], session[160], detail[320];
  complain("%s/%s: %s (%lld)%s%s%s", text_clean(user, sizeof user, r->user), text_clean(session, sizeof session, s->id),
           code, (long long)status, text_of(item, "detail", NULL) == NULL ? "" : ": ",
           text_clean(detail, sizeof detail, text_of(item, "detail", "")), http_hint((int)status, code));
  s->lost = true;
  r->n_lost++;
  return true;
}

/// Takes in the results, which stand in the order of the sessions that were sent. @return false when they do not fit
static bool take_results(struct renewal *r, const json_t *results, int64_t sent_us) {
  if (!json_is_array(results) || json_array_size(results) != (size_t)(r->n_sessions - r->n_lost))
    return false;
  size_t place = 0;
  for (int i = 0; i < r->n_sessions; i++) {
    struct session *s = &r->sessions[i];
    if (s->lost)
      continue;
    const json_t *item = json_array_get(results, place++);
    const json_t *lease = json_object_get(item, "lease");
    bool news = lease != NULL || take_refusal(r, s, item);
    if (r->options->json && news)
      print_json(item);
    if (lease == NULL)
      continue;
    bool granted = json_is_true(json_object_get(item, "granted"));
    if (!r->options->json && (granted || !s->held))
      say_granted(r, s, lease);
    s->held = true;
    s->revision = 0;
    s->expiry_us = sent_us + number_of(lease, "ttl_ms", 1000) * 1000;
    int64_t after = number_of(item, "renew_after_ms", number_of(lease, "ttl_ms", 3000) / 3);
    if (r->renew_after_ms == 0 || after < r->renew_after_ms)
      r->renew_after_ms = after < 100 ? 100 : after;
  }
  return true;
}

/// The first moment at which a held lease may end; 0 while none is held.
static int64_t first_expiry(const struct renewal *r) {
  int64_t first = 0;
  for (int i = 0; i < r->n_sessions; i++) {
    const struct session *s = &r->sessions[i];
    if (s->held && !s->lost && (first == 0 || s->expiry_us < first))
      first = s->expiry_us;
  }
  return first;
}

/// One heartbeat for all sessions. @return HTTP_ANSWERED also for refusals of single sessions
static enum http_result heartbeat(struct renewal *r, struct http_reply *reply) {
  r->reopening = r->transient = false;
  r->renew_after_ms = 0;
  char *body = request_body(r);
  if (body == NULL) {
    snprintf(reply->error, sizeof reply->error, "memory ran out");
    return HTTP_BROKEN;
  }
  int64_t timeout_ms = REQUEST_TIMEOUT_MS, expiry_us = first_expiry(r), sent_us = clock_mono_us();
  if (expiry_us > 0 && (expiry_us - sent_us) / 1000 < timeout_ms)
    timeout_ms = (expiry_us - sent_us) / 1000 < 500 ? 500 : (expiry_us - sent_us) / 1000;
  enum http_result result = http_send_aloud(r->http, "PUT", "/leases", body, timeout_ms, reply);
  free(body);
  if (result != HTTP_ANSWERED)
    return result;
  r->retry_after_s = reply->retry_after_s;
  if (http_worth_retrying(reply->status)) {
    r->transient = true;
  } else if (reply->status == 200 && !take_results(r, json_object_get(reply->json, "results"), sent_us)) {
    snprintf(reply->error, sizeof reply->error, "the answer is not one of a stillhere server");
    return HTTP_FOREIGN;
  }
  return HTTP_ANSWERED;
}

/// After a failed heartbeat: says it once, waits. @return false when there is no use in trying longer (said) or a
/// signal came; @a code is set then
static bool wait_to_retry(struct renewal *r, enum http_result result, const struct http_reply *reply, int attempt,
                          int *code) {
  int64_t expiry_us = first_expiry(r), now_us = clock_mono_us();
  bool over = expiry_us > 0 ? now_us >= expiry_us : attempt + 1 >= ATTEMPTS_BEFORE_GRANT;
  if (over) {
    if (reply->status != 200 || result == HTTP_FOREIGN)
      *code = http_explain(r->http, result, reply);
    else
      *code = EXIT_UNREACHABLE;
    if (expiry_us > 0)
      complain("the lease has run out meanwhile");
    else if (reply->status == 200)
      complain("the server could not take the lease, try again later");
    return false;
  }
  if (attempt == 0 && expiry_us > 0) {
    complain("renewal failed (%s); trying again until the lease runs out in %.0f s",
             result == HTTP_ANSWERED ? "the server is not ready" : reply->error, (double)(expiry_us - now_us) / 1e6);
  } else if (attempt == 1 && expiry_us == 0 && result == HTTP_ANSWERED && reply->status == 200) {
    complain("the server cannot take the lease at the moment; trying again");
  } else if (attempt == 1 && expiry_us == 0) {
    http_say_again(r->http, result, reply);
  }
  int64_t pause_ms = http_pause_ms(attempt, PAUSE_FIRST_MS, PAUSE_MOST_MS, r->retry_after_s);
  if (expiry_us > 0 && pause_ms > (expiry_us - now_us) / 1000)
    pause_ms = (expiry_us - now_us) / 1000;
  return !signals_sleep(pause_ms);
}

/// Renews until a signal, or until nothing is left to renew.
static int keep(struct renewal *r) {
  struct http_reply reply = {0};
  int attempt = 0, code = EXIT_DONE;
  while (signals_stops() == 0) {
    enum http_result result = heartbeat(r, &reply);
    if (result == HTTP_INTERRUPTED)
      break;
    // While a lease is held, a stranger who answers may go away again in time.
    if (result == HTTP_UNREACHABLE || (result == HTTP_ANSWERED && r->transient) ||
        (result == HTTP_FOREIGN && first_expiry(r) > 0)) {
      if (!wait_to_retry(r, result, &reply, attempt++, &code))
        break;
      continue;
    }
    if (result == HTTP_BROKEN || result == HTTP_FOREIGN || reply.status != 200) {
      code = http_explain(r->http, result, &reply);
      break;
    }
    if (attempt > 0)
      complain("renewed again");
    attempt = 0;
    if (r->reopening)
      continue;
    if (r->n_lost > 0)
      code = EXIT_REFUSED;
    if (r->n_lost == r->n_sessions || r->options->once)
      break;
    signals_sleep(r->renew_after_ms);
  }
  http_reply_clear(&reply);
  return code;
}

/// Closes what was opened, or may have been.
static int close_all(struct renewal *r) {
  struct http_reply reply = {0};
  int64_t deadline_us = clock_mono_us() + (int64_t)CLOSING_MS * 1000;
  int code = EXIT_DONE;
  for (int i = 0; i < r->n_sessions && code == EXIT_DONE; i++) {
    if (r->sessions[i].lost)
      continue;
    struct buf path = {0};
    buf_puts(&path, "/rooms");
    http_path_add(&path, r->room);
    buf_puts(&path, "/leases");
    http_path_add(&path, r->user);
    http_path_add(&path, r->sessions[i].id);
    int64_t left_ms = (deadline_us - clock_mono_us()) / 1000;
    enum http_result result = HTTP_INTERRUPTED;
    if (!path.failed && left_ms > 0)
      result = http_send_aloud(r->http, "DELETE", path.data, NULL, left_ms, &reply);
    buf_free(&path);
    if (result == HTTP_ANSWERED && (reply.status == 200 || reply.status == 404)) {
      if (r->options->json)
        print_json(reply.json);
      continue;
    }
    complain("%s could not be closed; it runs out by itself", r->sessions[i].id);
    code = EXIT_UNREACHABLE;
  }
  if (code == EXIT_DONE && !r->options->json)
    puts("closed");
  http_reply_clear(&reply);
  return code;
}

int cmd_renew(const struct options *options) {
  char host[65] = "", own_id[IDENT_MAX];
  if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
    snprintf(host, sizeof host, "session");
  snprintf(own_id, sizeof own_id, "%s-%ld", host, (long)getpid());
  int named = options->n_args - 2;
  struct renewal r = {.options = options,
                      .room = options->args[0],
                      .user = options->args[1],
                      .n_sessions = named > 0 ? named : 1,
                      .http = http_open(options->url, options->token_file)};
  r.sessions = calloc((size_t)r.n_sessions, sizeof *r.sessions);
  int code = EXIT_REFUSED;
  if (r.http == NULL || r.sessions == NULL) {
    complain("memory ran out");
    goto done;
  }
  for (int i = 0; i < r.n_sessions; i++)
    r.sessions[i].id = named > 0 ? options->args[2 + i] : own_id;
  code = keep(&r);
  // A heartbeat that Ctrl-C cut off may have been taken: closing is due for all that were not refused.
  if (!options->once && !options->no_close && code != EXIT_UNREACHABLE && code != EXIT_USAGE &&
      r.n_lost < r.n_sessions) {
    int closed = close_all(&r);
    if (code == EXIT_DONE)
      code = closed;
  }
done:
  http_close(r.http);
  free(r.sessions);
  return code;
}
