// SPDX-License-Identifier: Apache-2.0
/// @file
/// `stillhere bench`: some sessions in a room of their own that renew for a while, and what that took.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rand.h"
#include "cli/commands.h"
#include "cli/http.h"
#include "cli/signals.h"
#include "cli/text.h"

#define TIMEOUT_MS 10000
/// Time to live of the leases: what is left over after a kill -9 is gone after this.
#define TTL_MS 30000
#define PROGRESS_US 1900000
/// Latencies that are kept; beyond that every second one, and so on.
#define SAMPLES_MAX ((size_t)1 << 20)

enum stage { STAGE_GRANT, STAGE_RENEW, STAGE_CLOSE };

struct line {
  struct http *http;
  struct http_reply reply;
  int session;      ///< whose request is under way; -1: none
  int64_t since_us; ///< when it was due
};

struct bench {
  const struct options *options;
  struct http_group *group;
  struct line *lines;
  int n_lines, n_sessions;
  int64_t *due_us; ///< of each session
  bool *held;      ///< of each session: there may be a lease to close
  int next;        ///< the session that is looked at next
  char room[64];
  enum stage stage;
  int64_t end_us;
  int64_t n_done; ///< good answers in this stage
  int64_t n_answered, n_refused, n_unreached;
  int64_t *samples_us;
  size_t n_samples;
  int64_t stride, skipped;
  int64_t n_granted;     ///< leases
  struct http_reply bad; ///< the first answer that was none, or a refusal
  enum http_result bad_result;
};

static void sample(struct bench *b, int64_t us) {
  if (++b->skipped < b->stride)
    return;
  b->skipped = 0;
  if (b->n_samples == SAMPLES_MAX) {
    for (size_t i = 0; i < SAMPLES_MAX / 2; i++)
      b->samples_us[i] = b->samples_us[2 * i];
    b->n_samples = SAMPLES_MAX / 2;
    b->stride *= 2;
  }
  b->samples_us[b->n_samples++] = us;
}

/// Begins the request of a session on a free line. @return false when it cannot be sent at all
static bool begin(struct bench *b, struct line *line, int session) {
  char user[32], *body = NULL;
  struct buf path = {0};
  snprintf(user, sizeof user, "user-%d", session);
  if (b->stage == STAGE_CLOSE) {
    buf_puts(&path, "/rooms");
    http_path_add(&path, b->room);
    buf_puts(&path, "/leases");
    http_path_add(&path, user);
    http_path_add(&path, "tab-1");
  } else {
    int64_t ttl_ms = b->options->ttl_ms > 0 ? b->options->ttl_ms : TTL_MS;
    json_t *lease = json_pack("{s:s, s:s, s:s, s:I}", "room_id", b->room, "user_id", user, "session_id", "tab-1",
                              "ttl_ms", (json_int_t)ttl_ms);
    body = lease == NULL ? NULL : json_dumps(lease, JSON_COMPACT);
    json_decref(lease);
    buf_puts(&path, "/leases");
    b->held[session] = true;
  }
  line->session = session;
  bool ok =
      !path.failed && (body != NULL || b->stage == STAGE_CLOSE) &&
      http_begin(line->http, b->stage == STAGE_CLOSE ? "DELETE" : "PUT", path.data, body, TIMEOUT_MS, &line->reply);
  free(body);
  buf_free(&path);
  return ok;
}

/// Takes in an answer.
static void end(struct bench *b, struct line *line) {
  enum http_result result = http_outcome(line->http);
  bool answered = result == HTTP_ANSWERED;
  int status = answered ? line->reply.status : 0;
  bool good = status == 200 || (b->stage == STAGE_CLOSE && status == 404);
  b->n_done += good;
  b->n_granted += good && b->stage == STAGE_GRANT;
  if (good && b->stage == STAGE_CLOSE)
    b->held[line->session] = false;
  if (good && b->stage == STAGE_RENEW) {
    b->n_answered++;
    sample(b, clock_mono_us() - line->since_us);
  } else if (!good) {
    if (b->n_refused + b->n_unreached == 0) {
      b->bad = line->reply;
      b->bad_result = result;
      line->reply = (struct http_reply){0};
    }
    *(answered ? &b->n_refused : &b->n_unreached) += 1;
  }
  line->session = -1;
}

/// The next session that is due, or -1. @param[out] wake_us when one will be
static int take_due(struct bench *b, int64_t now_us, int64_t *wake_us) {
  *wake_us = now_us + 100000;
  for (int i = 0; i < b->n_sessions; i++) {
    int session = (b->next + i) % b->n_sessions;
    if (b->due_us[session] > now_us) {
      if (b->due_us[session] < *wake_us)
        *wake_us = b->due_us[session];
      continue;
    }
    b->next = (session + 1) % b->n_sessions;
    return session;
  }
  return -1;
}

/// When a session is due again after a request that was due at @a due_us.
static int64_t due_again(const struct bench *b, int64_t due_us) {
  if (b->stage != STAGE_RENEW)
    return INT64_MAX;
  return b->options->every_ms > 0 ? due_us + b->options->every_ms * 1000 : clock_mono_us();
}

/// Gives free lines work. @return how many lines are busy, -1 when nothing can be sent
static int deal(struct bench *b, int64_t *wake_us) {
  int busy = 0;
  bool dry = false;
  *wake_us = clock_mono_us() + 100000;
  for (int i = 0; i < b->n_lines; i++) {
    struct line *line = &b->lines[i];
    if (line->session >= 0 && !http_running(line->http))
      end(b, line);
    bool over = b->stage == STAGE_RENEW && clock_mono_us() >= b->end_us;
    if (line->session < 0 && !dry && !over) {
      int session = take_due(b, clock_mono_us(), wake_us);
      dry = session < 0;
      if (!dry) {
        line->since_us = b->options->every_ms > 0 ? b->due_us[session] : clock_mono_us();
        b->due_us[session] = due_again(b, b->due_us[session]);
        if (!begin(b, line, session))
          return -1;
      }
    }
    busy += line->session >= 0;
  }
  return busy;
}

static void progress(const struct bench *b, int64_t now_us, int64_t began_us, int64_t *said_us) {
  if (now_us - *said_us < PROGRESS_US)
    return;
  *said_us = now_us;
  double seconds = (double)(now_us - began_us) / 1e6;
  if (b->stage == STAGE_RENEW)
    fprintf(stderr, "%4.0f s of %lld: %lld heartbeats\n", seconds, (long long)b->options->seconds,
            (long long)b->n_answered);
  else
    fprintf(stderr, "%4.0f s: %lld of %d sessions are %s\n", seconds, (long long)b->n_done, b->n_sessions,
            b->stage == STAGE_GRANT ? "in" : "closed");
}

/// Runs a stage to its end. @return false when a signal came or nothing can be sent
static bool run(struct bench *b, enum stage stage) {
  int64_t began_us = clock_mono_us(), said_us = began_us, wake_us;
  b->stage = stage;
  b->next = 0;
  b->n_done = 0;
  b->end_us = began_us + b->options->seconds * 1000000;
  for (int i = 0; i < b->n_sessions; i++) {
    int64_t later_us = stage == STAGE_RENEW ? b->options->every_ms * 1000 * i / b->n_sessions : 0;
    b->due_us[i] = stage == STAGE_CLOSE && !b->held[i] ? INT64_MAX : began_us + later_us;
  }
  for (;;) {
    int busy = deal(b, &wake_us);
    int64_t now_us = clock_mono_us();
    if (busy < 0)
      return false;
    progress(b, now_us, began_us, &said_us);
    bool over = stage == STAGE_RENEW ? now_us >= b->end_us : wake_us - now_us > 50000;
    if (busy == 0 && over) {
      b->end_us = now_us;
      return true;
    }
    if (stage == STAGE_GRANT && b->n_refused + b->n_unreached > 0)
      return true;
    if (!http_group_run(b->group, wake_us))
      return false;
  }
}

static int compare(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static double percentile_ms(const struct bench *b, double part) {
  if (b->n_samples == 0)
    return 0;
  return (double)b->samples_us[(size_t)((double)(b->n_samples - 1) * part)] / 1000;
}

static void tell(const struct bench *b, double seconds) {
  double rate = seconds > 0 ? (double)b->n_answered / seconds : 0;
  qsort(b->samples_us, b->n_samples, sizeof *b->samples_us, compare);
  double p50 = percentile_ms(b, 0.5), p90 = percentile_ms(b, 0.9), p99 = percentile_ms(b, 0.99);
  double most = percentile_ms(b, 1);
  if (b->options->json) {
    json_t *out = json_pack("{s:i, s:i, s:f, s:I, s:f, s:I, s:I, s:{s:f, s:f, s:f, s:f}}", "sessions", b->n_sessions,
                            "connections", b->n_lines, "seconds", seconds, "heartbeats", (json_int_t)b->n_answered,
                            "heartbeats_per_s", rate, "refused", (json_int_t)b->n_refused, "unreached",
                            (json_int_t)b->n_unreached, "latency_ms", "p50", p50, "p90", p90, "p99", p99, "max", most);
    print_json(out);
    json_decref(out);
    return;
  }
  printf("%d %s over %d %s, %.1f s: %.0f heartbeats/s\n", b->n_sessions, plural(b->n_sessions, "session", "sessions"),
         b->n_lines, plural(b->n_lines, "connection", "connections"), seconds, rate);
  printf("latency: half below %.1f ms, 90 %% below %.1f, 99 %% below %.1f, the longest %.1f\n", p50, p90, p99, most);
  if (b->n_refused + b->n_unreached > 0)
    printf("%lld refused, %lld not answered\n", (long long)b->n_refused, (long long)b->n_unreached);
}

/// Says what went wrong, if anything did. @return the exit code
static int explain(const struct bench *b) {
  return b->n_refused + b->n_unreached == 0 ? EXIT_DONE : http_explain(b->lines[0].http, b->bad_result, &b->bad);
}

/// Ends the leases, also after a Ctrl-C.
static void clean(struct bench *b) {
  for (int i = 0; i < b->n_lines; i++) {
    http_abandon(b->lines[i].http);
    b->lines[i].session = -1;
  }
  // Nobody there: nobody has a lease.
  if (b->n_granted == 0 && b->n_unreached > 0)
    return;
  int64_t before = b->n_refused + b->n_unreached;
  if ((!run(b, STAGE_CLOSE) || b->n_refused + b->n_unreached > before) && b->n_granted > 0)
    complain("some leases of %s could not be closed; they run out by themselves", b->room);
}

static int work(struct bench *b) {
  if (!run(b, STAGE_GRANT) || b->n_refused + b->n_unreached > 0) {
    int code = explain(b);
    clean(b);
    return code == EXIT_DONE ? EXIT_UNREACHABLE : code;
  }
  if (!b->options->json)
    fprintf(stderr, "%d sessions are in %s, renewing\n", b->n_sessions, b->room);
  int64_t began_us = clock_mono_us();
  bool whole = run(b, STAGE_RENEW);
  double seconds = (double)(clock_mono_us() - began_us) / 1e6;
  int code = explain(b);
  clean(b);
  tell(b, seconds);
  return code != EXIT_DONE || whole || signals_stops() > 0 ? code : EXIT_REFUSED;
}

int cmd_bench(const struct options *options) {
  char word[21];
  request_id_make(word);
  struct bench b = {.options = options, .n_sessions = (int)options->sessions, .stride = 1};
  b.n_lines = (int)(options->connections < options->sessions ? options->connections : options->sessions);
  snprintf(b.room, sizeof b.room, "bench-%.10s", word);
  b.group = http_group_open();
  b.lines = calloc((size_t)b.n_lines, sizeof *b.lines);
  b.due_us = calloc((size_t)b.n_sessions, sizeof *b.due_us);
  b.held = calloc((size_t)b.n_sessions, sizeof *b.held);
  b.samples_us = malloc(SAMPLES_MAX * sizeof *b.samples_us);
  bool ok = b.group != NULL && b.lines != NULL && b.due_us != NULL && b.held != NULL && b.samples_us != NULL;
  for (int i = 0; ok && i < b.n_lines; i++) {
    b.lines[i].session = -1;
    b.lines[i].http = http_open_in(b.group, options->url, options->token_file);
    ok = b.lines[i].http != NULL;
  }
  int code = EXIT_REFUSED;
  if (ok)
    code = work(&b);
  else
    complain("memory ran out");
  for (int i = 0; b.lines != NULL && i < b.n_lines; i++) {
    http_close(b.lines[i].http);
    http_reply_clear(&b.lines[i].reply);
  }
  http_reply_clear(&b.bad);
  http_group_close(b.group);
  free(b.lines);
  free(b.due_us);
  free(b.held);
  free(b.samples_us);
  return code;
}
