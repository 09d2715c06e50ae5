// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "http/inside.h"
#include "http/peers.h"

/// How long a client that was refused in the midst of its upload may take to notice.
#define REFUSED_LINGER_US 2000000
/// How long after a half-close requests that were sent before it may still be begun.
#define CLOSED_LINGER_US 1000000

static void conn_started(struct worker_loop *loop, struct MHD_Connection *connection, void **socket_context) {
  loop->adopted = true;
  struct conn *conn = calloc(1, sizeof *conn);
  if (conn == NULL) // without one, request_new() is never called and the connection is closed at its first request
    return;
  conn->loop = loop;
  conn->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
  *socket_context = conn;
  if (loop->tls && !tls_conn_begin(conn, connection))
    log_warning("a connection has no TLS session"); // it finds no certificate, so its handshake fails
  // libmicrohttpd does not look at the sockets of suspended requests, and in epoll mode it misses a FIN that arrives
  // together with the request. The pointer in the event is safe: connections are freed in MHD_run() only, and no event
  // is kept across it.
  // Over TLS the end of the client's side can come as data.
  struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET | (conn->tls != NULL ? EPOLLIN : 0), .data.ptr = conn};
  if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, conn->fd, &event) != 0)
    log_warning("a connection cannot be watched for hang-up: %s", strerror(errno));
  conn_set_deadline(conn, clock_mono_us() + loop->worker->service->config->request_deadline_ms * 1000);
}

static void conn_closed(struct worker_loop *loop, struct MHD_Connection *connection, struct conn *conn) {
  struct lifecycle *lifecycle = loop->worker->service->lifecycle;
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  if (info != NULL && info->client_addr != NULL)
    peers_leave(lifecycle->peers, info->client_addr);
  atomic_fetch_sub(&lifecycle->connections, 1);
  metric_add(METRIC_CONNECTIONS, -1);
  if (conn == NULL)
    return;
  // Where libmicrohttpd runs out of memory for a second time on one request it forgets to say that the request is over.
  if (conn->request != NULL)
    request_free(conn->request);
  tls_conn_end(conn);
  (void)epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
  heap_remove(&loop->conns, &conn->deadline);
  free(conn);
}

void conn_notify(void *cls, struct MHD_Connection *connection, void **socket_context,
                 enum MHD_ConnectionNotificationCode code) {
  struct worker_loop *loop = cls;
  loop->progress++;
  if (code == MHD_CONNECTION_NOTIFY_STARTED)
    conn_started(loop, connection, socket_context);
  else
    conn_closed(loop, connection, *socket_context);
}

void conn_set_deadline(struct conn *conn, int64_t due_us) {
  heap_remove(&conn->loop->conns, &conn->deadline);
  if (due_us != INT64_MAX && !heap_add(&conn->loop->conns, &conn->deadline, due_us))
    (void)shutdown(conn->fd, SHUT_RDWR); // no memory to watch over it
}

void conn_begin_request(struct conn *conn, struct request *r) {
  conn->request = r;
  int64_t due_us = r->arrived_us + conn->loop->worker->service->config->request_deadline_ms * 1000;
  // The time for the head began with the connection, unless this is what a half-closed client had sent before.
  if (!conn->client_closed && conn->deadline.slot != 0 && conn->deadline.due_us < due_us)
    due_us = conn->deadline.due_us;
  conn_set_deadline(conn, due_us);
}

void conn_end_request(struct conn *conn) {
  conn->request = NULL;
  if (conn->client_closed)
    conn_set_deadline(conn, clock_mono_us() + CLOSED_LINGER_US);
}

void conn_replied(struct conn *conn) {
  const struct config *config = conn->loop->worker->service->config;
  conn_set_deadline(conn, clock_mono_us() + (KEEPALIVE_S * INT64_C(1000) + config->request_deadline_ms) * 1000);
}

void conn_client_closed(struct conn *conn) {
  conn->client_closed = true;
  if (conn->request == NULL)
    conn_set_deadline(conn, clock_mono_us() + CLOSED_LINGER_US);
  else if (!conn->request->told_gone)
    request_wake(conn->request, WAKE_GONE);
}

void conn_event(struct conn *conn, uint32_t events) {
  bool waits = conn->request != NULL && conn->request->counted_waiting;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0 || (waits && tls_conn_says_bye(conn)))
    conn_client_closed(conn);
}

/// The connection whose head is complete, while we have not been told so: the one that is being refused.
static struct conn *head_in_hand(const struct worker_loop *loop) {
  for (size_t i = 0; i < loop->conns.len; i++) {
    struct conn *conn = CONTAINER_OF(loop->conns.slots[i], struct conn, deadline);
    const struct request *r = conn->request;
    // Before that there is no size; where an answer is on its way already, there is a status.
    if (r != NULL && r->phase == PHASE_HEAD &&
        MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE) != NULL &&
        MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_HTTP_STATUS) == NULL)
      return conn;
  }
  return NULL;
}

void conn_head_refused(struct worker_loop *loop, const char *fmt) {
  static const struct {
    const char *says;
    int status;
    const char *code, *detail;
  } refusals[] = {
      {"Failed to parse `Content-Length' header.", 400, "bad_framing", "Content-Length is not a plain number"},
      {"Too large value of 'Content-Length' header.", 413, "body_too_large", "the body is longer than max_body_bytes"},
      {"Not enough memory in pool to parse cookies!", 431, "header_too_large", "the Cookie header is too long"},
      {"Not enough memory in pool to allocate header record!", 431, "header_too_large", "there are too many cookies"},
  };
  for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
    if (strncmp(fmt, refusals[i].says, strlen(refusals[i].says)) != 0)
      continue;
    struct conn *conn = head_in_hand(loop);
    // What libmicrohttpd sends after this finds the socket shut.
    if (conn != NULL)
      request_refuse(conn->request, true, refusals[i].status, refusals[i].code, refusals[i].detail);
  }
}

void conn_expire(struct worker_loop *loop, int64_t now_us) {
  struct heap_node *node;
  while ((node = heap_first(&loop->conns)) != NULL && node->due_us <= now_us) {
    struct conn *conn = CONTAINER_OF(node, struct conn, deadline);
    struct request *r = conn->request;
    if (r != NULL && (r->phase == PHASE_HEAD || r->phase == PHASE_BODY))
      request_refuse(r, true, 408, "too_slow", "the request did not arrive in time");
    heap_remove(&loop->conns, node);
    (void)shutdown(conn->fd, SHUT_RDWR); // MHD notices, and closes
    log_debug("a connection was cut at its deadline");
  }
}

void conn_refuse(struct conn *conn, const char *response, size_t len) {
  // What does not fit into the socket at once belongs to a client that does not read; it is not worth a wait.
  if (conn->tls != NULL)
    tls_conn_refuse(conn, response, len);
  else
    (void)send(conn->fd, response, len, MSG_NOSIGNAL | MSG_DONTWAIT);
  (void)shutdown(conn->fd, SHUT_WR);
  int64_t due_us = clock_mono_us() + REFUSED_LINGER_US;
  if (conn->deadline.slot == 0 || conn->deadline.due_us > due_us)
    conn_set_deadline(conn, due_us);
}
