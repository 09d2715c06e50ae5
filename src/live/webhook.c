// SPDX-License-Identifier: Apache-2.0
#include "live/webhook.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/address.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/log_limit.h"
#include "base/metric.h"
#include "base/rand.h"
#include "store/webhook.h"

#define TICK_MS 250
/// Between two claims at least, also while there is more to claim.
#define CLAIM_PAUSE_MS 10
#define COUNT_EVERY_US INT64_C(5000000)
#define PRUNE_EVERY_US INT64_C(60000000)
/// The first look comes soon, whether there are targets or not; without any the next ones are rare.
#define FIRST_LOOK_US INT64_C(3000000)
#define IDLE_LOOK_EVERY_US INT64_C(600000000)
#define IN_FLIGHT_MAX 64
#define IN_FLIGHT_TARGET 8
#define ATTEMPT_MS 10000L
#define CONNECT_MS 5000L
/// Of a reply so much is read and thrown away; then the connection is closed.
#define REPLY_MAX 65536
/// A longer head is a failure.
#define HEAD_MAX 65536
/// Of a target so many lines at once after a silence, for each of the two kinds, and in the long run one in so long.
#define LINES_BURST 4
#define LINES_EVERY_US INT64_C(60000000)

/// One message on its way.
struct flight {
  bool busy;
  bool refused; ///< an address that may not be reached
  bool more;    ///< its target may have more that is due: when this has landed, it need not wait for its time
  struct webhook *owner;
  CURL *easy; ///< kept for the next one
  struct curl_slist *headers;
  struct webhook_targets *set; ///< a reference: the target is in it
  const struct webhook_target *target;
  char token[21];
  struct webhook_message message;
  size_t received, head; ///< bytes of the reply's body, and of its head
  bool whole;            ///< the empty line that ends the head has come
};

/// What the log was last told of a target by this instance.
struct health {
  char name[WEBHOOK_NAME_MAX + 1];
  bool failing;
  struct log_limit turns, deaths;
};

struct webhook {
  struct webhook_options options;
  struct db *db;
  CURLM *multi;
  struct flight flights[IN_FLIGHT_MAX];
  size_t n_flights;
  int64_t count_due_us, prune_due_us;
  bool had_targets;
  size_t first_target; ///< whose turn it is to be asked first
  uint32_t hurry;      ///< a bit for each target that is to be asked again before its time, by its place in hurry_of
  const struct webhook_targets *hurry_of;    ///< only compared
  struct health health[WEBHOOK_TARGETS_MAX]; ///< by the target's place in its set
  atomic_bool stopping;
  int64_t stop_us; ///< monotonic, set before `stopping`
  pthread_t thread;
};

// -- what curl asks ------------------------------------------------------------------------------------------------

/// Looks at the very address that is about to be connected to, whatever its name resolved to a moment ago.
static curl_socket_t open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *addr) {
  struct flight *f = ctx;
  (void)purpose;
  if (!f->owner->options.allow_private && !address_is_public(&addr->addr)) {
    f->refused = true;
    return CURL_SOCKET_BAD;
  }
  return socket(addr->family, addr->socktype | SOCK_CLOEXEC, addr->protocol);
}

/// libcurl would keep a head of any length, and takes one for good that ends after its first line.
static size_t count_head(char *bytes, size_t size, size_t n, void *ctx) {
  struct flight *f = ctx;
  f->head += size * n;
  if (f->received == 0 && size * n >= 5 && memcmp(bytes, "HTTP/", 5) == 0)
    f->whole = false; // perhaps behind a 1xx, whose head was whole
  else if (size * n >= 1 && (bytes[0] == '\r' || bytes[0] == '\n'))
    f->whole = true;
  return f->head <= HEAD_MAX ? size * n : 0;
}

static size_t drop_reply(char *bytes, size_t size, size_t n, void *ctx) {
  struct flight *f = ctx;
  (void)bytes;
  f->received += size * n;
  return f->received <= REPLY_MAX ? size * n : 0;
}

// -- one message ---------------------------------------------------------------------------------------------------

static void flight_end(struct flight *f) {
  struct webhook *w = f->owner;
  curl_slist_free_all(f->headers);
  f->headers = NULL;
  free(f->message.room_id);
  free(f->message.first_id);
  buf_free(&f->message.body);
  webhook_targets_put(f->set);
  f->set = NULL;
  f->busy = false;
  w->n_flights--;
  metric_set(METRIC_WEBHOOK_IN_FLIGHT, (int64_t)w->n_flights);
}

static bool add_header(struct flight *f, const char *name, const char *value) {
  struct buf line = {0};
  buf_printf(&line, "%s: %s", name, value);
  struct curl_slist *longer = line.failed ? NULL : curl_slist_append(f->headers, line.data);
  buf_free(&line);
  if (longer == NULL)
    return false;
  f->headers = longer;
  return true;
}

static bool add_headers(struct flight *f) {
  struct buf id = {0}, signature = {0};
  char timestamp[24];
  int64_t now_s = clock_db_us() / 1000000;
  (void)snprintf(timestamp, sizeof timestamp, "%lld", (long long)now_s);
  webhook_id(&id, f->message.first_id, f->message.n_events, &f->message.body);
  if (!id.failed)
    webhook_sign(&signature, f->target, id.data, now_s, &f->message.body);
  bool good = !id.failed && !signature.failed && add_header(f, "content-type", "application/json") &&
              add_header(f, "webhook-id", id.data) && add_header(f, "webhook-timestamp", timestamp) &&
              add_header(f, "webhook-signature", signature.data) && add_header(f, "expect", "");
  buf_free(&id);
  buf_free(&signature);
  return good;
}

/// What leaves a transfer alone with its troubles. @return false when libcurl refuses
static bool set_limits(CURL *e) {
#if CURL_AT_LEAST_VERSION(7, 87, 0)
  // Else the end of an attempt whose name is still being looked up waits for that, and with it everybody.
  if (curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L) != CURLE_OK)
    return false;
#endif
  return curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, ATTEMPT_MS) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS) == CURLE_OK;
}

static bool set_up(struct flight *f) {
  if (f->easy == NULL)
    f->easy = curl_easy_init();
  if (f->easy == NULL)
    return false;
  CURL *e = f->easy;
  curl_easy_reset(e);
  if (!set_limits(e) || (f->set->ca_file != NULL && curl_easy_setopt(e, CURLOPT_CAINFO, f->set->ca_file) != CURLE_OK))
    return false;
  // Everything that could lead elsewhere is off: redirects, proxies of the environment, other protocols.
  return curl_easy_setopt(e, CURLOPT_URL, f->target->url) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_PROXY, "") == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_OPENSOCKETFUNCTION, open_socket) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_OPENSOCKETDATA, f) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, count_head) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_HEADERDATA, f) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, drop_reply) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_WRITEDATA, f) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_USERAGENT, "stillhere/" PACKAGE_VERSION) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_HTTPHEADER, f->headers) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_POST, 1L) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)f->message.body.len) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_POSTFIELDS, f->message.body.data) == CURLE_OK &&
         curl_easy_setopt(e, CURLOPT_PRIVATE, f) == CURLE_OK && curl_multi_add_handle(f->owner->multi, e) == CURLM_OK;
}

/// Sends a claimed message, which is taken over. What cannot be sent is claimed again when the claim has run out.
/// @param more whether more may be due for the target
static void send_message(struct webhook *w, struct webhook_targets *set, const struct webhook_target *target,
                         const char *token, struct webhook_message *m, bool more) {
  struct flight *f = w->flights;
  while (f->busy)
    f++;
  CURL *easy = f->easy;
  *f = (struct flight){.busy = true, .owner = w, .easy = easy, .target = target, .message = *m};
  f->more = more || m->n_events == WEBHOOK_MESSAGE_EVENTS || m->replay; // whose messages are as long as they were
  *m = (struct webhook_message){0};
  f->set = webhook_targets_share(set); // which a reload may replace meanwhile
  memcpy(f->token, token, sizeof f->token);
  w->n_flights++;
  metric_set(METRIC_WEBHOOK_IN_FLIGHT, (int64_t)w->n_flights);
  if (f->message.first_id == NULL) { // somebody deleted its events
    (void)webhook_delivered(w->db, target->name, token, &f->message);
    flight_end(f);
  } else if (!add_headers(f) || !set_up(f)) {
    log_error("webhook %s: a message cannot be sent: memory ran out", target->name);
    (void)webhook_retry(w->db, target->name, token, &f->message, webhook_pause_ms(f->message.attempts, 0),
                        "memory ran out");
    flight_end(f);
  }
}

// -- what became of it ---------------------------------------------------------------------------------------------

/// The verdict, and words for it.
static enum webhook_verdict judge(struct flight *f, CURLcode code, char *error, size_t size, int64_t *retry_after_s) {
  long status = 0;
  curl_off_t asked = 0;
  (void)curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &status);
  (void)curl_easy_getinfo(f->easy, CURLINFO_RETRY_AFTER, &asked);
  bool ended = code == CURLE_OK || (code == CURLE_WRITE_ERROR && f->received > REPLY_MAX);
  bool answered = ended && f->whole;
  *retry_after_s = answered && (status == 429 || status == 503) ? (int64_t)asked : 0;
  if (answered)
    (void)snprintf(error, size, "status %ld", status);
  else if (f->refused)
    (void)snprintf(error, size, "its address is not a public one (webhook_allow_private)");
  else if (ended)
    (void)snprintf(error, size, "the answer ended inside its head");
  else
    (void)snprintf(error, size, "%s", curl_easy_strerror(code));
  return answered ? webhook_judge(status) : WEBHOOK_AGAIN;
}

static struct health *health_of(struct webhook *w, const struct flight *f) {
  struct health *h = &w->health[f->target - f->set->list];
  if (strcmp(h->name, f->target->name) != 0) { // a reload has moved them
    *h = (struct health){0};
    (void)snprintf(h->name, sizeof h->name, "%s", f->target->name);
  }
  return h;
}

/// Logs the turn from good to bad, and back. A line that is too many is made up for by the next message: the last one
/// is always right.
static void tell_turn(struct health *h, bool good, const char *error) {
  int64_t left_out;
  if (h->failing != good || !log_limit_take_every(&h->turns, LINES_EVERY_US, LINES_BURST, clock_mono_us(), &left_out))
    return;
  h->failing = !good;
  if (good)
    log_info("webhook %s: it works again", h->name);
  else
    log_warning("webhook %s: it has begun to fail: %s", h->name, error);
}

static void tell_death(struct health *h, const char *room_id, const char *error) {
  int64_t left_out;
  if (log_limit_take_every(&h->deaths, LINES_EVERY_US, LINES_BURST, clock_mono_us(), &left_out))
    log_warning("webhook %s: a message of room \"%s\" was given up: %s; left out before: %lld", h->name, room_id, error,
                (long long)left_out);
}

/// @return false when the database could not be told
static bool landed(struct webhook *w, struct flight *f, CURLcode code) {
  char error[160];
  int64_t retry_after_s;
  enum webhook_verdict verdict = judge(f, code, error, sizeof error, &retry_after_s);
  const char *name = f->target->name;
  (void)curl_multi_remove_handle(w->multi, f->easy);
  tell_turn(health_of(w, f), verdict == WEBHOOK_OK, error);
  if (verdict == WEBHOOK_AGAIN && !f->message.lasts)
    verdict = WEBHOOK_REFUSED;
  enum db_status status;
  if (verdict == WEBHOOK_OK) {
    status = webhook_delivered(w->db, name, f->token, &f->message);
    metric_add(METRIC_WEBHOOK_OK, 1);
    if (status == DB_OK)
      metric_add(METRIC_WEBHOOK_EVENTS, f->message.n_events);
  } else if (verdict == WEBHOOK_AGAIN) {
    int64_t wait_ms = webhook_pause_ms(f->message.attempts, retry_after_s);
    status = webhook_retry(w->db, name, f->token, &f->message, wait_ms, error);
    metric_add(METRIC_WEBHOOK_RETRY, 1);
  } else {
    status = webhook_bury(w->db, name, f->token, &f->message, error);
    metric_add(METRIC_WEBHOOK_DEAD, 1);
    tell_death(health_of(w, f), f->message.room_id, error);
  }
  if (status != DB_OK) // the claim runs out, and it is sent again
    log_warning("webhook %s: what became of a message could not be written; it is sent once more", name);
  // One that fails is given its time.
  if (f->more && verdict == WEBHOOK_OK && status == DB_OK) {
    w->hurry = (f->set == w->hurry_of ? w->hurry : 0) | UINT32_C(1) << (f->target - f->set->list);
    w->hurry_of = f->set;
  }
  flight_end(f);
  return status == DB_OK;
}

/// @return false when the database could not be told of one
static bool take_landed(struct webhook *w) {
  int left;
  CURLMsg *message;
  bool told = true;
  while (told && (message = curl_multi_info_read(w->multi, &left)) != NULL) {
    char *flight = NULL;
    CURLcode code = message->data.result;
    if (message->msg == CURLMSG_DONE && curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &flight) == CURLE_OK)
      told = landed(w, (struct flight *)(void *)flight, code);
  }
  return told;
}

// -- the thread ----------------------------------------------------------------------------------------------------

/// How many more messages may be sent to a target now. With many targets each has its share, so that those that hang
/// leave the others theirs.
static int slots_of(const struct webhook *w, const struct webhook_targets *set, const char *name) {
  int used = 0, share = IN_FLIGHT_MAX / (int)set->n;
  for (size_t i = 0; i < IN_FLIGHT_MAX; i++)
    used += w->flights[i].busy && strcmp(w->flights[i].target->name, name) == 0;
  int all = IN_FLIGHT_MAX - (int)w->n_flights;
  int own = (share < IN_FLIGHT_TARGET ? share : IN_FLIGHT_TARGET) - used;
  return own < all ? own : all;
}

/// @param which a bit for each target to be asked, by its place in the set
static void claim(struct webhook *w, struct webhook_targets *set, uint32_t which) {
  size_t first = w->first_target++;
  for (size_t i = 0; i < set->n; i++) {
    size_t place = (first + i) % set->n;
    const struct webhook_target *target = &set->list[place];
    int slots = slots_of(w, set, target->name);
    if (slots <= 0 || (which & UINT32_C(1) << place) == 0)
      continue;
    char token[21];
    struct webhook_message *list;
    size_t n;
    request_id_make(token);
    enum db_status status = webhook_claim(w->db, target->name, token, slots, w->options.give_up_ms, &list, &n);
    if (status == DB_LOST)
      return;
    if (status != DB_OK)
      continue; // the others may be better
    for (size_t j = 0; j < n; j++)
      send_message(w, set, target, token, &list[j], n >= (size_t)slots);
    webhook_messages_free(list, n);
  }
}

static void look_after(struct webhook *w, const struct webhook_targets *set) {
  int64_t now = clock_mono_us();
  struct webhook_counts counts;
  bool more = false;
  if (now >= w->count_due_us) {
    w->count_due_us = now + (set->n > 0 ? COUNT_EVERY_US : IDLE_LOOK_EVERY_US);
    if (webhook_count(w->db, &counts) == DB_OK) {
      metric_set(METRIC_WEBHOOK_BACKLOG, counts.backlog);
      metric_set(METRIC_WEBHOOK_OLDEST, counts.oldest_ms / 1000);
      metric_set(METRIC_WEBHOOK_DEAD_EVENTS, counts.dead);
    }
  }
  if (now >= w->prune_due_us) {
    struct buf given_up = {0};
    (void)webhook_prune(w->db, set, w->options.give_up_ms, &more, &given_up);
    if (given_up.len > 0 || given_up.failed)
      log_warning("webhooks: events were given up, since their target is not configured any more: %s",
                  given_up.failed ? "memory ran out" : given_up.data);
    buf_free(&given_up);
    w->prune_due_us = now + (more ? 0 : set->n > 0 ? PRUNE_EVERY_US : IDLE_LOOK_EVERY_US);
  }
}

static bool run_transfers(struct webhook *w) {
  int running;
  (void)curl_multi_perform(w->multi, &running);
  return take_landed(w);
}

/// Without targets there is still to be looked after what they have left, now and then, over a connection that is not
/// kept.
static void tick(struct webhook *w) {
  static const struct webhook_targets none;
  struct webhook_targets *set = webhook_targets_get();
  bool any = set != NULL && set->n > 0;
  if (w->had_targets && !any)
    w->count_due_us = w->prune_due_us = 0;
  w->had_targets = any;
  if (any && db_connect(w->db) == DB_OK) {
    claim(w, set, UINT32_MAX);
    look_after(w, set);
  } else if (!any && clock_mono_us() >= w->prune_due_us) {
    if (db_connect(w->db) == DB_OK)
      look_after(w, &none);
    else
      w->prune_due_us = clock_mono_us() + PRUNE_EVERY_US;
    db_drop(w->db);
  }
  webhook_targets_put(set);
}

/// Asks for the targets of which more was due than could be taken. All others gather events until the next tick.
static void claim_more(struct webhook *w) {
  struct webhook_targets *set = webhook_targets_get();
  if (set != NULL && set == w->hurry_of && db_connected(w->db))
    claim(w, set, w->hurry);
  webhook_targets_put(set);
}

/// Waits for what is in flight, then gives the rest back. With the first failure of the database it ends: the claims
/// run out by themselves.
static void come_to_an_end(struct webhook *w) {
  bool told = true;
  while (told && w->n_flights > 0 && clock_mono_us() < w->stop_us) {
    told = run_transfers(w);
    if (told && w->n_flights > 0)
      (void)curl_multi_poll(w->multi, NULL, 0, 20, NULL);
  }
  for (size_t i = 0; i < IN_FLIGHT_MAX; i++) {
    struct flight *f = &w->flights[i];
    if (!f->busy)
      continue;
    (void)curl_multi_remove_handle(w->multi, f->easy);
    told = told && webhook_release(w->db, f->target->name, f->token, &f->message) == DB_OK;
    flight_end(f);
  }
}

static void *webhook_main(void *arg) {
  struct webhook *w = arg;
  int64_t due_us = clock_mono_us(), soonest_us = due_us;
  while (!atomic_load(&w->stopping)) {
    int64_t now = clock_mono_us();
    if (now >= due_us || (w->hurry != 0 && now >= soonest_us)) {
      if (now >= due_us)
        tick(w);
      else
        claim_more(w);
      w->hurry = 0;
      soonest_us = clock_mono_us() + CLAIM_PAUSE_MS * INT64_C(1000);
      due_us = now >= due_us ? clock_mono_us() + TICK_MS * INT64_C(1000) : due_us;
    }
    (void)run_transfers(w);
    int64_t wait_ms = ((w->hurry != 0 && soonest_us < due_us ? soonest_us : due_us) - clock_mono_us()) / 1000 + 1;
    (void)curl_multi_poll(w->multi, NULL, 0, wait_ms < 1 ? 1 : (int)wait_ms, NULL);
  }
  come_to_an_end(w);
  return NULL;
}

struct webhook *webhook_start(const struct webhook_options *options) {
  struct webhook *w = calloc(1, sizeof *w);
  if (w == NULL)
    return NULL;
  w->options = *options;
  w->db = db_new(options->db);
  w->multi = curl_multi_init();
  // Like the sweepers', the pruning of instances that were started together need not coincide.
  w->count_due_us = w->prune_due_us = clock_mono_us() + (int64_t)rand_below((uint64_t)FIRST_LOOK_US);
  if (w->db == NULL || w->multi == NULL || (errno = pthread_create(&w->thread, NULL, webhook_main, w)) != 0) {
    (void)curl_multi_cleanup(w->multi);
    db_free(w->db);
    free(w);
    return NULL;
  }
  return w;
}

void webhook_close(struct webhook *w, int grace_ms) {
  w->stop_us = clock_mono_us() + grace_ms * INT64_C(1000);
  atomic_store(&w->stopping, true);
  (void)curl_multi_wakeup(w->multi);
}

void webhook_stop(struct webhook *w) {
  if (w == NULL)
    return;
  if (!atomic_load(&w->stopping))
    webhook_close(w, 0);
  pthread_join(w->thread, NULL);
  for (size_t i = 0; i < IN_FLIGHT_MAX; i++)
    curl_easy_cleanup(w->flights[i].easy);
  (void)curl_multi_cleanup(w->multi);
  db_free(w->db);
  free(w);
}
