// SPDX-License-Identifier: Apache-2.0
#include "server.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_LIBSYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "auth/authority.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/rand.h"
#include "db/db.h"
#include "http/acceptor.h"
#include "http/lifecycle.h"
#include "http/peers.h"
#include "http/tls.h"
#include "http/worker.h"
#include "live/cursor_bus.h"
#include "live/cursors.h"
#include "live/decision_log.h"
#include "live/last_seen.h"
#include "live/listener.h"
#include "live/load.h"
#include "live/reader.h"
#include "live/sweeper.h"
#include "live/tail.h"
#include "live/webhook.h"
#include "live/writer.h"
#include "schema.h"

#define WORKERS_DEFAULT_MIN 2
#define WORKERS_DEFAULT_MAX 8
#define READER_THREADS 4
#define READER_QUEUE_MAX 4096
/// Changes of members and attendance have threads of their own, so that no read stands behind a locked row.
#define CHANGER_THREADS 2
#define CHANGER_QUEUE_MAX 1024
/// Heartbeats that wait for the writer: more than a second's worth, less than clients' patience.
#define WRITER_QUEUE_MAX 65536
#define TAIL_IDLE_MS 120000
/// Newest events of a room in memory; a cursor further back reads the database.
#define EVENTS_IN_MEMORY 256
/// And at most in a storm, though not more than a reader gets at all (replay_limit).
#define EVENTS_IN_STORM 4096
#define TAIL_ROOMS_MAX 20000
/// Cursors in memory: some 30 MB at the most.
#define CURSORS_ROOM_MAX 2000
#define CURSORS_TOTAL_MAX 20000
/// Descriptors beside the clients' connections: database, event loops, logs, and some in reserve.
#define DESCRIPTORS_RESERVED ((rlim_t)(64 + 4 * TAIL_WORKERS_MAX))

// The steps of stopping. Their sum stays below SERVER_STOP_S.
#define STOP_REQUESTS_MS 3000
#define STOP_WRITER_MS 2000
#define STOP_LAST_SEEN_MS 1000
#define STOP_WEBHOOK_MS 3000 // beside STOP_REQUESTS_MS, and so not in the sum
#define STOP_WORKERS_MS 1000
#define STOP_LOG_MS 500

/// The parts that have a connection to the database, each with its own name and patience.
enum role {
  ROLE_STARTER,
  ROLE_WRITER,
  ROLE_STRAGGLERS,
  ROLE_READER,
  ROLE_SWEEPER,
  ROLE_LISTEN,
  ROLE_TAIL,
  ROLE_LAST_SEEN,
  ROLE_CURSORS,
  ROLE_CHANGER,
  ROLE_WEBHOOK,
  ROLE_COUNT
};

static const struct db_options role_defaults[ROLE_COUNT] = {
    // A statement that takes longer than this is given up, so that a client hears 503 within 5 s. The writer gives a
    // lock little time, since others wait behind it: what meets one goes to the stragglers.
    [ROLE_STARTER] = {NULL, "stillhered start", 3000, 10000, 5000, false},
    [ROLE_WRITER] = {NULL, "stillhered writer", 2000, 3000, 250, true},
    [ROLE_STRAGGLERS] = {NULL, "stillhered stragglers", 2000, 3000, 50, true},
    [ROLE_READER] = {NULL, "stillhered reader", 2000, 3000, 1000, true},
    [ROLE_SWEEPER] = {NULL, "stillhered sweeper", 3000, 10000, 100, false},
    [ROLE_LISTEN] = {NULL, "stillhered listener", 3000, 5000, 1000, false},
    [ROLE_TAIL] = {NULL, "stillhered tail", 2000, 3000, 1000, true},
    [ROLE_LAST_SEEN] = {NULL, "stillhered last seen", 2000, 3000, 250, false},
    [ROLE_CURSORS] = {NULL, "stillhered cursors", 2000, 3000, 1000, true},
    [ROLE_CHANGER] = {NULL, "stillhered changer", 2000, 3000, 250, true},
    [ROLE_WEBHOOK] = {NULL, "stillhered webhook", 2000, 3000, 1000, true},
};

struct server {
  struct config *config; ///< main's
  char instance[128];
  struct db_options db[ROLE_COUNT];
  struct lifecycle lifecycle;
  struct service service;
  struct authority *authority;
  struct load load;
  struct decision_log *decisions;
  struct worker *workers[TAIL_WORKERS_MAX];
  unsigned n_workers;
  struct acceptor *acceptor;

  // Made by the starter's thread once the tables are there; seen by others after lifecycle.migrated.
  pthread_t starter;
  bool starter_runs;
  atomic_bool stopping; ///< tells the starter to end
  atomic_bool failed;   ///< the starter met what waiting cannot cure
  struct cursor_bus *cursor_bus;
  struct listener *listener;
  struct last_seen *last_seen;
  struct sweeper *sweeper;
  struct webhook *webhook;
};

void server_tell_systemd(const char *state) {
#ifdef HAVE_LIBSYSTEMD
  (void)sd_notify(0, state);
#else
  (void)state;
#endif
}

static void sleep_ms(long ms) {
  struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  (void)nanosleep(&t, NULL);
}

// -- starting ------------------------------------------------------------------------------------------------------

/// Starts everything that works on the tables.
static bool start_parts(struct server *s) {
  const struct config *c = s->config;
  s->last_seen = last_seen_start(&s->db[ROLE_LAST_SEEN], c->last_seen_flush_ms);
  if (s->last_seen == NULL)
    return false;
  struct writer_options writer = {
      .db = &s->db[ROLE_WRITER],
      .stragglers_db = &s->db[ROLE_STRAGGLERS],
      .rules = {.membership_required = c->membership == MEMBERSHIP_REQUIRED,
                .renewal_events = c->renewal_events != 0,
                .renew_interval_min_ms = c->renew_interval_min_ms,
                .max_leases_per_user = c->max_leases_per_user,
                .max_leases_per_room = c->max_leases_per_room,
                .offline_grace_ms = c->offline_grace_ms,
                .silence_ms = sweeper_silence_ms(c->sweep_interval_ms)},
      .max_queued = WRITER_QUEUE_MAX,
      .tail = s->service.tail,
      .log = s->decisions,
      .last_seen = s->last_seen,
      .load = &s->load,
  };
  struct sweeper_options sweeper = {
      .db = &s->db[ROLE_SWEEPER],
      .sweep_interval_ms = c->sweep_interval_ms,
      .ttl_min_ms = c->ttl_min_ms,
      .ttl_max_ms = c->ttl_max_ms,
      .offline_grace_ms = c->offline_grace_ms,
      .event_retention_ms = c->event_retention_ms,
      .event_retention_count = c->event_retention_count,
      .tombstone_retention_ms = c->tombstone_retention_ms,
      .tail = s->service.tail,
      .log = s->decisions,
  };
  s->cursor_bus = cursor_bus_start(&s->db[ROLE_CURSORS], s->service.cursors, s->service.tail);
  if (s->cursor_bus != NULL)
    s->listener = listener_start(&s->db[ROLE_LISTEN], &s->db[ROLE_TAIL], s->service.tail, s->service.cursors);
  if (s->listener != NULL)
    s->service.readers = reader_start(&s->db[ROLE_READER], READER_THREADS, READER_QUEUE_MAX);
  if (s->service.readers != NULL)
    s->service.changers = reader_start(&s->db[ROLE_CHANGER], CHANGER_THREADS, CHANGER_QUEUE_MAX);
  if (s->service.changers != NULL)
    s->service.writer = writer_start(&writer);
  if (s->service.writer != NULL)
    s->sweeper = sweeper_start(&sweeper);
  if (s->sweeper != NULL)
    s->webhook = webhook_start(&(struct webhook_options){.db = &s->db[ROLE_WEBHOOK],
                                                         .allow_private = c->webhook_allow_private != 0,
                                                         .give_up_ms = c->webhook_give_up_ms});
  return s->webhook != NULL;
}

static void *starter_main(void *arg) {
  struct server *s = arg;
  enum db_status status = schema_wait(&s->db[ROLE_STARTER], &s->stopping);
  if (status == DB_FAILED)
    atomic_store(&s->failed, true);
  if (status == DB_OK) {
    if (start_parts(s)) {
      atomic_store(&s->lifecycle.migrated, true);
    } else {
      log_error("a thread cannot be started: %s", strerror(errno));
      atomic_store(&s->failed, true);
    }
  }
  if (atomic_load(&s->failed)) {
    (void)kill(getpid(), SIGTERM);
    return NULL;
  }
  while (!atomic_load(&s->stopping) && !tail_listening(s->service.tail))
    sleep_ms(20);
  if (!atomic_load(&s->stopping)) {
    log_info("ready");
    server_tell_systemd("STATUS=ready");
  }
  return NULL;
}

/// Raises the limit of descriptors as far as it goes, and lowers max_connections to what it allows.
static void fit_descriptors(struct config *config) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return;
  rlim_t wanted = (rlim_t)config->max_connections + DESCRIPTORS_RESERVED;
  if (limit.rlim_cur < wanted && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0)
      return;
  }
  if (limit.rlim_cur >= wanted)
    return;
  int64_t fit = limit.rlim_cur > 2 * DESCRIPTORS_RESERVED ? (int64_t)(limit.rlim_cur - DESCRIPTORS_RESERVED)
                                                          : (int64_t)limit.rlim_cur / 2;
  log_warning("max_connections is lowered from %lld to %lld: only %llu files may be open (RLIMIT_NOFILE)",
              (long long)config->max_connections, (long long)fit, (unsigned long long)limit.rlim_cur);
  config->max_connections = fit;
  // Waiting polls must leave room for heartbeats and health checks.
  if (config->longpoll_max_waiting > fit * 8 / 10)
    config->longpoll_max_waiting = fit * 8 / 10;
}

static void name_instance(struct server *s) {
  char host[65] = "", random[21];
  (void)gethostname(host, sizeof host - 1);
  request_id_make(random);
  (void)snprintf(s->instance, sizeof s->instance, "%s:%ld:%.8s", host[0] != '\0' ? host : "localhost", (long)getpid(),
                 random);
}

static void set_up_db_options(struct server *s) {
  const struct config *c = s->config;
  memcpy(s->db, role_defaults, sizeof s->db);
  for (int i = 0; i < ROLE_COUNT; i++)
    s->db[i].url = c->database_url;
  if (c->database_listen_url != NULL && c->database_listen_url[0] != '\0')
    s->db[ROLE_LISTEN].url = c->database_listen_url;
}

static bool start_workers(struct server *s) {
  long n = (long)s->config->http_workers;
  if (n == 0) {
    n = sysconf(_SC_NPROCESSORS_ONLN);
    n = n < WORKERS_DEFAULT_MIN ? WORKERS_DEFAULT_MIN : n > WORKERS_DEFAULT_MAX ? WORKERS_DEFAULT_MAX : n;
  }
  // As many again for those who wait (http/usher.h).
  n *= 2;
  if (n > TAIL_WORKERS_MAX)
    n = TAIL_WORKERS_MAX;
  s->service.n_watched = (unsigned)(s->service.tls != NULL ? n : n / 2);
  for (long i = 0; i < n; i++) {
    s->workers[i] = worker_start((unsigned)i, &s->service);
    if (s->workers[i] == NULL)
      return false;
    s->n_workers++;
  }
  return true;
}

/// Reads the targets of webhooks. @param again for a reload: the log is told how many
/// @return false when they cannot be used (logged); nothing has changed then
static bool load_targets(const struct config *config, bool again) {
  char error[CONFIG_ERROR_SIZE];
  struct webhook_targets *set = webhook_targets_load(config, error);
  if (set == NULL) {
    log_error("%s%s", error, again ? "; the targets of webhooks stay as they were" : "");
    return false;
  }
  if (again)
    log_info("the targets of webhooks are reloaded: %zu", set->n);
  webhook_targets_set(set);
  return true;
}

/// @return false when a part does not start (logged); what did start is stopped by stop()
static bool start(struct server *s) {
  static const enum decision_log_level levels[] = {[CONFIG_DECISIONS_ALL] = DECISION_LOG_ALL,
                                                   [CONFIG_DECISIONS_TRANSITIONS] = DECISION_LOG_TRANSITIONS,
                                                   [CONFIG_DECISIONS_OFF] = DECISION_LOG_OFF};
  struct config *c = s->config;
  if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    log_error("the server does not start: libcurl cannot be set up");
    return false;
  }
  if (!load_targets(c, false))
    return false;
  fit_descriptors(c);
  metric_set(METRIC_LONGPOLL_MAX_WAITING, c->longpoll_max_waiting);
  metric_set(METRIC_MAX_CONNECTIONS, c->max_connections);
  name_instance(s);
  set_up_db_options(s);
  struct tail_options tail = {.replay_limit = (int)c->replay_limit,
                              .events_per_room = EVENTS_IN_MEMORY,
                              .events_in_storm =
                                  c->replay_limit < EVENTS_IN_STORM ? (int)c->replay_limit : EVENTS_IN_STORM,
                              .idle_ms = TAIL_IDLE_MS,
                              .rooms_max = TAIL_ROOMS_MAX};
  s->authority = authority_new(c);
  s->service =
      (struct service){.config = c, .lifecycle = &s->lifecycle, .instance = s->instance, .authority = s->authority};
  s->service.limits = limits_new(c);
  s->service.load = &s->load;
  s->service.tail = tail_new(&tail);
  s->service.cursors =
      cursors_new(&(struct cursors_options){.room_max = CURSORS_ROOM_MAX, .total_max = CURSORS_TOTAL_MAX});
  s->decisions = decision_log_start(STDOUT_FILENO, levels[c->decision_log], s->instance);
  s->service.decisions = s->decisions;
  if (c->max_connections_per_ip > 0)
    s->lifecycle.peers = peers_new((int)c->max_connections_per_ip);
  if (s->authority == NULL || s->service.limits == NULL || s->service.tail == NULL || s->service.cursors == NULL ||
      s->decisions == NULL || (c->max_connections_per_ip > 0 && s->lifecycle.peers == NULL)) {
    if (s->authority != NULL) // which has said itself why it is missing
      log_error("the server does not start: %s", strerror(errno));
    return false;
  }
  tail_on_event(s->service.tail, cursors_event, s->service.cursors);
  if (c->tls_cert_file[0] != '\0') {
    s->service.tls = tls_new(c->tls_cert_file, c->tls_key_file);
    if (s->service.tls == NULL)
      return false;
  }
  if (!start_workers(s))
    return false;
  s->acceptor = acceptor_start(&s->service, s->workers, s->n_workers);
  if (s->acceptor == NULL)
    return false;
  // With the database away the service is up, though not ready: systemd need not wait for more.
  server_tell_systemd("READY=1\nSTATUS=waiting for the database");
  errno = pthread_create(&s->starter, NULL, starter_main, s);
  s->starter_runs = errno == 0;
  if (!s->starter_runs)
    log_error("the server does not start: %s", strerror(errno));
  return s->starter_runs;
}

// -- stopping ------------------------------------------------------------------------------------------------------

/// Not ready, waiting polls answered, no new connections; requests under way go on to their end.
static void drain(struct server *s) {
  atomic_store(&s->lifecycle.draining, true);
  acceptor_stop(s->acceptor);
  for (unsigned i = 0; i < s->n_workers; i++)
    worker_drain(s->workers[i]);
  // Quiet for a moment, since a request may be in a socket that was accepted just now.
  int quiet = 0;
  for (int ms = 0; ms < STOP_REQUESTS_MS && quiet < 5; ms += 20) {
    sleep_ms(20);
    quiet = atomic_load(&s->lifecycle.requests) == 0 ? quiet + 1 : 0;
  }
}

/// Tears down in reverse. Whoever posts to the workers' mailboxes ends before the workers are freed, and whoever uses
/// the tail before the listener.
static void stop(struct server *s) {
  atomic_store(&s->stopping, true);
  // What webhooks have sent is answered while requests come to their end.
  if (atomic_load(&s->lifecycle.migrated))
    webhook_close(s->webhook, STOP_WEBHOOK_MS);
  drain(s);
  if (s->starter_runs)
    (void)pthread_join(s->starter, NULL);
  if (s->service.writer != NULL)
    writer_stop(s->service.writer, STOP_WRITER_MS);
  last_seen_stop(s->last_seen, STOP_LAST_SEEN_MS);
  if (s->service.readers != NULL)
    reader_stop(s->service.readers);
  reader_stop(s->service.changers);
  if (s->sweeper != NULL)
    sweeper_stop(s->sweeper);
  webhook_stop(s->webhook);
  webhook_targets_set(NULL);
  int64_t deadline_us = clock_mono_us() + STOP_WORKERS_MS * INT64_C(1000);
  for (unsigned i = 0; i < s->n_workers; i++)
    worker_stop(s->workers[i], deadline_us);
  writer_free(s->service.writer);
  reader_free(s->service.readers);
  reader_free(s->service.changers);
  if (s->listener != NULL)
    listener_stop(s->listener);
  cursor_bus_stop(s->cursor_bus);
  for (unsigned i = 0; i < s->n_workers; i++)
    worker_free(s->workers[i]);
  if (s->decisions != NULL)
    decision_log_stop(s->decisions, STOP_LOG_MS);
  if (s->service.tail != NULL)
    tail_free(s->service.tail);
  cursors_free(s->service.cursors);
  peers_free(s->lifecycle.peers);
}

// -- for main ------------------------------------------------------------------------------------------------------

struct server *server_start(struct config *config) {
  struct server *s = calloc(1, sizeof *s);
  if (s == NULL)
    return NULL;
  s->config = config;
  if (start(s))
    return s;
  server_stop(s);
  return NULL;
}

bool server_failed(const struct server *s) {
  return atomic_load(&s->failed);
}

void server_reload(struct server *s, const struct config *fresh) {
  authority_reload(s->authority, fresh);
  (void)load_targets(fresh, true);
  for (unsigned i = 0; i < s->n_workers; i++)
    worker_look_over(s->workers[i]);
  bool tls = fresh->tls_cert_file[0] != '\0';
  if (s->service.tls != NULL && tls)
    tls_reload(s->service.tls, fresh->tls_cert_file, fresh->tls_key_file);
  else if (tls || s->service.tls != NULL)
    log_warning("tls_cert_file: to begin or to end with TLS takes a restart");
}

void server_stop(struct server *s) {
  stop(s);
  authority_free(s->authority);
  limits_free(s->service.limits);
  tls_free(s->service.tls);
  free(s);
}
