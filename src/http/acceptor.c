// SPDX-License-Identifier: Apache-2.0
#include "http/acceptor.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "http/lifecycle.h"
#include "http/peers.h"
#include "http/turn_away.h"
#include "http/unix_socket.h"
#include "http/usher.h"

#define BACKLOG 4096
/// Pause when the process or the system has no descriptor left.
#define PAUSE_MS 100
/// The same complaint is not logged more often than this.
#define COMPLAINT_US 5000000
/// A client that for so long takes nothing of what it is sent is cut by the kernel: it has vanished, or is there and
/// does not read. Streams have a longer time, and are cut by us (stream.c).
#define UNACKNOWLEDGED_MS 30000

struct acceptor {
  const struct service *service;
  struct usher *usher;
  int listen_fd, stop_fd;
  const char *path; ///< of a unix socket; NULL: a port
  struct stat made; ///< what was made at the path
  pthread_t thread;
  int64_t full_us, starved_us; ///< when the last complaint of each kind was logged; 0: never
};

/// @return whether it is time for another complaint
static bool may_complain(int64_t *last_us) {
  int64_t now_us = clock_mono_us();
  if (*last_us != 0 && now_us - *last_us < COMPLAINT_US)
    return false;
  *last_us = now_us;
  return true;
}

static void deal(struct acceptor *a, int fd, const struct sockaddr *addr, socklen_t len) {
  struct lifecycle *lifecycle = a->service->lifecycle;
  bool full = atomic_load(&lifecycle->connections) >= a->service->config->max_connections;
  if (full || !peers_enter(lifecycle->peers, addr)) {
    metric_add(full ? METRIC_LIMITED_CONNECTIONS : METRIC_LIMITED_PER_IP, 1);
    if (a->service->tls != NULL)
      (void)close(fd);
    else
      turn_away(fd, 503, "too_many_connections", "this server has as many connections as it takes");
    if (may_complain(&a->full_us))
      log_warning("connections are turned away: max_connections or max_connections_per_ip is reached");
    return;
  }
  int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  atomic_fetch_add(&lifecycle->connections, 1);
  metric_add(METRIC_CONNECTIONS, 1);
  usher_take(a->usher, fd, addr, len);
}

/// @return false when there is nothing more to accept now
static bool accept_one(struct acceptor *a) {
  struct sockaddr_storage addr = {0};
  socklen_t len = sizeof addr;
  int fd = accept4(a->listen_fd, (struct sockaddr *)&addr, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) {
    deal(a, fd, (const struct sockaddr *)&addr, len);
    return true;
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK)
    return false;
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    if (may_complain(&a->starved_us))
      log_error("connections cannot be accepted: %s", strerror(errno));
    struct pollfd stop = {.fd = a->stop_fd, .events = POLLIN};
    (void)poll(&stop, 1, PAUSE_MS); // the socket stays readable: without a pause this would spin
    return false;
  }
  return true; // EINTR, ECONNABORTED and errors of that one connection
}

static void *acceptor_main(void *arg) {
  struct acceptor *a = arg;
  struct pollfd fds[3] = {{.fd = a->listen_fd, .events = POLLIN},
                          {.fd = a->stop_fd, .events = POLLIN},
                          {.fd = usher_fd(a->usher), .events = POLLIN}};
  do {
    if (poll(fds, 3, usher_timeout_ms(a->usher)) < 0)
      continue;
    usher_run(a->usher);
    for (int i = 0; i < BACKLOG && accept_one(a); i++)
      continue;
  } while (fds[1].revents == 0);
  return NULL;
}

static int listen_on(const struct addrinfo *address) {
  int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return -1;
  int on = 1;
  unsigned timeout_ms = UNACKNOWLEDGED_MS;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms); // connections inherit it
  if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
    return fd;
  int error = errno;
  (void)close(fd);
  errno = error;
  return -1;
}

/// @return a listening socket, or -1 (logged)
static int open_port(const char *listen_text) {
  char host[256], port[6];
  if (!listen_split(listen_text, host, port)) {
    log_error("listen: '%s' is neither HOST:PORT nor unix:/PATH", listen_text);
    return -1;
  }
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
  int error = getaddrinfo(host[0] != '\0' ? host : NULL, port, &hints, &list);
  if (error != 0) {
    log_error("cannot listen on %s: %s", listen_text, gai_strerror(error));
    return -1;
  }
  int fd = -1;
  for (const struct addrinfo *address = list; address != NULL && fd < 0; address = address->ai_next)
    fd = listen_on(address);
  if (fd < 0)
    log_error("cannot listen on %s: %s", listen_text, strerror(errno));
  freeaddrinfo(list);
  return fd;
}

/// The ready line, with the port that the kernel chose where the configuration says 0.
static void announce(const struct acceptor *a) {
  const char *tls = a->service->tls != NULL ? " (TLS)" : "";
  if (a->path != NULL) {
    log_info("listening on unix:%s%s", a->path, tls);
    return;
  }
  struct sockaddr_storage addr = {0};
  socklen_t len = sizeof addr;
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getsockname(a->listen_fd, (struct sockaddr *)&addr, &len) == 0 &&
      getnameinfo((struct sockaddr *)&addr, len, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) == 0)
    log_info(addr.ss_family == AF_INET6 ? "listening on [%s]:%s%s" : "listening on %s:%s%s", host, port, tls);
}

static void close_socket(struct acceptor *a) {
  if (a->path != NULL)
    unix_socket_remove(a->path, &a->made);
  (void)close(a->listen_fd);
}

struct acceptor *acceptor_start(const struct service *service, struct worker *const *workers, unsigned n_workers) {
  struct acceptor *a = calloc(1, sizeof *a);
  if (a == NULL)
    return NULL;
  *a = (struct acceptor){.service = service, .listen_fd = -1, .stop_fd = -1};
  a->path = listen_path(service->config->listen);
  a->usher = usher_new(workers, n_workers, service->tls != NULL);
  if (a->usher == NULL) {
    log_error("the acceptor does not start: %s", strerror(errno));
    free(a);
    return NULL;
  }
  a->listen_fd = a->path != NULL ? unix_socket_listen(a->path, BACKLOG, &a->made) : open_port(service->config->listen);
  if (a->listen_fd >= 0)
    a->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (a->stop_fd >= 0) {
    errno = pthread_create(&a->thread, NULL, acceptor_main, a);
    if (errno == 0) {
      announce(a);
      return a;
    }
  }
  if (a->listen_fd >= 0) {
    log_error("the acceptor does not start: %s", strerror(errno));
    close_socket(a);
  }
  if (a->stop_fd >= 0)
    (void)close(a->stop_fd);
  usher_free(a->usher);
  free(a);
  return NULL;
}

void acceptor_stop(struct acceptor *a) {
  if (a == NULL)
    return;
  uint64_t one = 1;
  while (write(a->stop_fd, &one, sizeof one) < 0 && errno == EINTR)
    continue;
  (void)pthread_join(a->thread, NULL);
  usher_free(a->usher);
  close_socket(a);
  (void)close(a->stop_fd);
  free(a);
}
