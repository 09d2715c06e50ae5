// SPDX-License-Identifier: Apache-2.0
#include "http/worker.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "http/inside.h"
#include "http/peers.h"
#include "http/standing.h"
#include "http/tls.h"
#include "live/cursors.h"

/// Events taken from the kernel in one turn.
#define EVENTS_MAX 256
/// The longest sleep of the loop, so that no sum overflows.
#define SLEEP_MAX_US 60000000
/// How often a handshake that waits for its client is looked at, milliseconds; see fruitless_pause().
#define FRUITLESS_PAUSE_MS 5
/// How long replies that are under way may still take once the time for stopping is over.
#define ABORT_GRACE_US 500000

// -- libmicrohttpd's callbacks -------------------------------------------------------------------------------------

static void on_log(void *cls, const char *fmt, va_list args) __attribute__((format(printf, 2, 0)));
static void on_log(void *cls, const char *fmt, va_list args) {
  conn_head_refused(cls, fmt);
  char line[512];
  int len = vsnprintf(line, sizeof line, fmt, args);
  if (len <= 0)
    return;
  line[strcspn(line, "\n")] = '\0';
  log_debug("libmicrohttpd: %s", line); // nearly all of it is about what clients do
}

static void on_panic(void *cls, const char *file, unsigned int line, const char *reason) {
  (void)cls;
  log_error("libmicrohttpd gives up at %s:%u: %s", file != NULL ? file : "?", line, reason != NULL ? reason : "?");
  abort();
}

/// Leaves escapes as they are: the target is decoded by us, after it has been split.
static size_t on_unescape(void *cls, struct MHD_Connection *connection, char *s) {
  (void)cls;
  (void)connection;
  return strlen(s);
}

/// The request line is there: what is returned becomes the request's context.
static void *on_target(void *cls, const char *target, struct MHD_Connection *connection) {
  struct worker_loop *loop = cls;
  loop->progress++;
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  if (info == NULL || info->socket_context == NULL)
    return NULL;
  struct request *r = request_new(info->socket_context, connection, target);
  // The request has its own copy and reads the query by itself. Libmicrohttpd, whose buffer this is, would split it
  // next and needs more memory for a short parameter than the parameter has bytes; where that runs out the connection
  // hangs.
  char *query = strchr(target, '?');
  if (query != NULL)
    query[1] = '\0';
  return r;
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                                 const char *version, const char *upload, size_t *upload_size, void **con_cls) {
  struct worker_loop *loop = cls;
  (void)connection;
  (void)url;
  loop->progress++;
  if (*con_cls == NULL)
    return MHD_NO; // there was no memory for it
  return request_step(*con_cls, method, version, upload, upload_size);
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **con_cls,
                         enum MHD_RequestTerminationCode code) {
  (void)cls;
  (void)connection;
  (void)code;
  if (*con_cls != NULL)
    request_free(*con_cls);
  *con_cls = NULL;
}

// -- the loop ------------------------------------------------------------------------------------------------------

/// While a TLS handshake waits for the client, libmicrohttpd 0.9.75 keeps its connection among the ready ones and wants
/// to be run again at once, for as long as the client likes. Where a run has done nothing at all, the next one is left
/// to the next event: sockets that become ready wake the loop as ever. @return the pause
static int64_t fruitless_pause(const struct worker_loop *loop, int64_t mhd_ms) {
  return mhd_ms == 0 && loop->tls && loop->fruitless ? FRUITLESS_PAUSE_MS : mhd_ms;
}

static void run_mhd(struct worker_loop *loop) {
  uint64_t progress = loop->progress, moves = tls_conn_moves();
  if (MHD_run(loop->daemon) != MHD_YES)
    log_error("libmicrohttpd refuses to run");
  loop->fruitless = loop->progress == progress && tls_conn_moves() == moves;
}

/// Milliseconds that the loop may sleep, rounded up so that it does not wake too early and spin.
static int sleep_ms(struct worker_loop *loop, int64_t now_us) {
  if (loop->woken != NULL)
    return 0;
  int64_t due_us = now_us + SLEEP_MAX_US;
  struct heap *const heaps[] = {&loop->waits, &loop->conns, &loop->windows};
  for (size_t i = 0; i < ARRAY_LEN(heaps); i++) {
    const struct heap_node *node = heap_first(heaps[i]);
    if (node != NULL && node->due_us < due_us)
      due_us = node->due_us;
  }
  if (loop->stopping && due_us > now_us + ABORT_GRACE_US / 10)
    due_us = now_us + ABORT_GRACE_US / 10;
  int64_t ms = due_us > now_us ? (due_us - now_us + 999) / 1000 : 0;
  MHD_UNSIGNED_LONG_LONG mhd_ms;
  if (MHD_get_timeout(loop->daemon, &mhd_ms) == MHD_YES && mhd_ms < (MHD_UNSIGNED_LONG_LONG)ms) {
    int64_t pause = fruitless_pause(loop, (int64_t)mhd_ms);
    ms = pause < ms ? pause : ms;
  }
  return (int)ms;
}

/// Waits for libmicrohttpd's events, which MHD_run() takes by itself, and for ours. With poll(2): libmicrohttpd's epoll
/// inside ours would have the kernel go through both for every packet, also while nobody waits.
static void take_events(struct worker_loop *loop, int timeout_ms) {
  struct pollfd fds[2] = {{.fd = loop->epoll_fd, .events = POLLIN}, {.fd = loop->mhd_fd, .events = POLLIN}};
  if (poll(fds, 2, timeout_ms) < 0) {
    if (errno != EINTR)
      log_error("poll: %s", strerror(errno));
    return;
  }
  if (fds[0].revents == 0)
    return;
  struct epoll_event events[EVENTS_MAX];
  int n = epoll_wait(loop->epoll_fd, events, EVENTS_MAX, 0);
  if (n < 0 && errno != EINTR)
    log_error("epoll_wait: %s", strerror(errno));
  bool mail = false;
  for (int i = 0; i < n; i++) {
    if (events[i].data.ptr == &loop->worker->mailbox)
      mail = true;
    else
      conn_event(events[i].data.ptr, events[i].events);
  }
  if (mail)
    (void)mailbox_deliver(&loop->worker->mailbox);
}

/// @return whether the loop is over
static bool stop_now(struct worker_loop *loop, int64_t now_us) {
  if (!loop->stopping)
    return false;
  if (loop->n_requests == 0)
    return true;
  if (now_us < loop->stop_deadline_us)
    return false;
  if (!loop->aborting) {
    log_warning("worker %u gives up on %u requests", loop->worker->id, loop->n_requests);
    loop->aborting = true;
  }
  park_abort(loop);
  // MHD_stop_daemon() must not find a suspended connection.
  return loop->woken == NULL && now_us >= loop->stop_deadline_us + ABORT_GRACE_US;
}

static void *loop_main(void *arg) {
  struct worker_loop *loop = arg;
  for (;;) {
    int64_t now_us = clock_mono_us();
    if (stop_now(loop, now_us))
      break;
    take_events(loop, sleep_ms(loop, now_us));
    now_us = clock_mono_us();
    conn_expire(loop, now_us);
    park_expire(loop, now_us);
    watch_expire(loop, now_us);
    park_resume(loop);
    run_mhd(loop);
    if (loop->worker->outbox.first != NULL)
      writer_send(loop->worker->service->writer, &loop->worker->outbox);
  }
  (void)mailbox_deliver(&loop->worker->mailbox);
  MHD_stop_daemon(loop->daemon);
  return NULL;
}

// -- from other threads --------------------------------------------------------------------------------------------

struct adoption {
  struct mail mail;
  struct worker *worker;
  int fd;
  socklen_t len;
  struct sockaddr_storage addr;
};

void worker_lost(struct worker *worker, const struct sockaddr *addr) {
  struct lifecycle *lifecycle = worker->service->lifecycle;
  peers_leave(lifecycle->peers, addr);
  atomic_fetch_sub(&lifecycle->connections, 1);
  metric_add(METRIC_CONNECTIONS, -1);
}

static void adopt(struct mail *mail) {
  struct adoption *a = CONTAINER_OF(mail, struct adoption, mail);
  struct worker_loop *loop = a->worker->loop;
  loop->adopted = false;
  enum MHD_Result ok = MHD_add_connection(loop->daemon, a->fd, (const struct sockaddr *)&a->addr, a->len);
  if (ok != MHD_YES) // it has closed the descriptor
    log_warning("libmicrohttpd did not take a connection: %s", strerror(errno));
  if (!loop->adopted)
    worker_lost(a->worker, (const struct sockaddr *)&a->addr);
  free(a);
}

void worker_adopt(struct worker *worker, int fd, const struct sockaddr *addr, socklen_t len) {
  struct adoption *a = len <= sizeof a->addr ? calloc(1, sizeof *a) : NULL;
  if (a == NULL) {
    (void)close(fd);
    worker_lost(worker, addr);
    return;
  }
  a->mail.deliver = adopt;
  a->worker = worker;
  a->fd = fd;
  a->len = len;
  memcpy(&a->addr, addr, len);
  mailbox_post(&worker->mailbox, &a->mail);
}

static void drain(struct mail *mail) {
  struct worker_loop *loop = CONTAINER_OF(mail, struct worker_loop, drain_mail);
  loop->draining = true;
  park_wake_all(loop, WAKE_DRAINING);
}

void worker_drain(struct worker *worker) {
  worker->loop->drain_mail.deliver = drain;
  mailbox_post(&worker->mailbox, &worker->loop->drain_mail);
}

static void look_over(struct mail *mail) {
  struct worker_loop *loop = CONTAINER_OF(mail, struct worker_loop, look_mail);
  atomic_store(&loop->look_posted, false); // before the look: what changes from now on is worth another one
  standing_look_over(loop);
}

void worker_look_over(struct worker *worker) {
  if (atomic_exchange(&worker->loop->look_posted, true))
    return;
  worker->loop->look_mail.deliver = look_over;
  mailbox_post(&worker->mailbox, &worker->loop->look_mail);
}

static void stop(struct mail *mail) {
  struct worker_loop *loop = CONTAINER_OF(mail, struct worker_loop, stop_mail);
  loop->stopping = true;
}

// -- start and stop ------------------------------------------------------------------------------------------------

static struct MHD_Daemon *start_daemon(struct worker_loop *loop) {
  // Our own acceptor stays below max_connections. MHD must never reach its limit: 0.9.75 hangs when it does.
  unsigned limit = (unsigned)loop->worker->service->config->max_connections * 2 + 64;
  size_t memory = connection_memory(loop->worker->service->config);
  static const char priorities[] = TLS_PRIORITIES;
  struct MHD_OptionItem tls[] = {
      {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(uintptr_t)tls_conn_certificate},
      {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)priorities},
      {MHD_OPTION_END, 0, NULL},
  };
  static struct MHD_OptionItem plain[] = {{MHD_OPTION_END, 0, NULL}};
  loop->tls = loop->worker->service->tls != NULL;
  unsigned flags = MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
  if (loop->tls)
    flags |= MHD_USE_TLS;
  return MHD_start_daemon(flags, 0, NULL, NULL, on_access, loop, MHD_OPTION_EXTERNAL_LOGGER, on_log, loop,
                          MHD_OPTION_CONNECTION_LIMIT, limit, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)KEEPALIVE_S,
                          MHD_OPTION_CONNECTION_MEMORY_LIMIT, memory, MHD_OPTION_UNESCAPE_CALLBACK, on_unescape, NULL,
                          MHD_OPTION_URI_LOG_CALLBACK, on_target, loop, MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
                          MHD_OPTION_NOTIFY_CONNECTION, conn_notify, loop, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
                          MHD_OPTION_ARRAY, loop->tls ? tls : plain, MHD_OPTION_END);
}

static bool epoll_add(int epoll_fd, int fd, void *ptr) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = ptr};
  return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/// Makes everything but the thread. On failure what was made is released by worker_free().
static bool prepare(struct worker *worker) {
  struct worker_loop *loop = worker->loop;
  loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (loop->epoll_fd < 0)
    return false;
  loop->daemon = start_daemon(loop);
  if (loop->daemon == NULL)
    return false;
  const union MHD_DaemonInfo *info = MHD_get_daemon_info(loop->daemon, MHD_DAEMON_INFO_EPOLL_FD);
  if (info == NULL)
    return false;
  loop->mhd_fd = info->epoll_fd;
  return epoll_add(loop->epoll_fd, worker->mailbox.fd, &worker->mailbox);
}

void worker_free(struct worker *worker) {
  if (worker == NULL)
    return;
  if (worker->loop != NULL) {
    (void)mailbox_deliver(&worker->mailbox); // wakes that came late: their mail frees itself
    heap_free(&worker->loop->waits);
    heap_free(&worker->loop->conns);
    watch_free_all(worker->loop);
    heap_free(&worker->loop->windows);
    if (worker->loop->epoll_fd >= 0)
      (void)close(worker->loop->epoll_fd);
    free(worker->loop);
  }
  mailbox_destroy(&worker->mailbox);
  free(worker);
}

struct worker *worker_start(unsigned id, const struct service *service) {
  MHD_set_panic_func(on_panic, NULL);
  struct worker *worker = calloc(1, sizeof *worker);
  if (worker == NULL || !mailbox_init(&worker->mailbox)) {
    log_error("worker %u does not start: %s", id, strerror(errno));
    free(worker);
    return NULL;
  }
  worker->id = id;
  worker->service = service;
  worker->loop = calloc(1, sizeof *worker->loop);
  bool ok = worker->loop != NULL;
  if (ok) {
    worker->loop->worker = worker;
    worker->loop->epoll_fd = -1;
    ok = prepare(worker);
  }
  if (ok) {
    cursors_add_worker(service->cursors, id, &worker->mailbox, watch_cursors_woken, worker);
    tail_add_worker(service->tail, id, &worker->mailbox, watch_room_woken, worker);
    tail_tell_revoked(service->tail, id, standing_revoked);
    errno = pthread_create(&worker->loop->thread, NULL, loop_main, worker->loop);
    ok = errno == 0;
  }
  if (!ok) {
    log_error("worker %u does not start: %s", id, strerror(errno));
    if (worker->loop != NULL && worker->loop->daemon != NULL)
      MHD_stop_daemon(worker->loop->daemon);
    worker_free(worker);
    return NULL;
  }
  return worker;
}

void worker_stop(struct worker *worker, int64_t deadline_us) {
  worker->loop->stop_deadline_us = deadline_us;
  worker->loop->stop_mail.deliver = stop;
  mailbox_post(&worker->mailbox, &worker->loop->stop_mail);
  (void)pthread_join(worker->loop->thread, NULL);
}
