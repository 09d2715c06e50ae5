// SPDX-License-Identifier: Apache-2.0
// TLS of one connection, where libmicrohttpd leaves something to do: the certificate, refusals by hand, and a count of
// what moves.
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "http/inside.h"
#include "http/tls.h"

/// Each worker is one thread, so the thread's count is the worker's.
static _Thread_local uint64_t moves;

bool tls_conn_says_bye(const struct conn *conn) {
  enum { ALERT = 21, APPLICATION_DATA = 23, HIDDEN_ALERT = 2 + 1 + 16 };
  unsigned char head[5];
  if (conn->tls == NULL || recv(conn->fd, head, sizeof head, MSG_PEEK | MSG_DONTWAIT) != (ssize_t)sizeof head)
    return false;
  // TLS 1.3 hides what a record is, but not its length: two bytes, their kind, and the tag. Nobody sends a request that
  // begins with two bytes in a record of their own; if somebody does, the poll before it ends early.
  return head[0] == ALERT || (head[0] == APPLICATION_DATA && head[3] == 0 && head[4] == HIDDEN_ALERT &&
                              gnutls_protocol_get_version(conn->tls) == GNUTLS_TLS1_3);
}

uint64_t tls_conn_moves(void) {
  return moves;
}

// GnuTLS's own reading and writing with a count added. The transport stays the descriptor.

static ssize_t pull(gnutls_transport_ptr_t transport, void *data, size_t size) {
  ssize_t n = recv((int)(intptr_t)transport, data, size, 0);
  moves += n > 0;
  return n;
}

static ssize_t push(gnutls_transport_ptr_t transport, const giovec_t *parts, int n_parts) {
  struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)n_parts};
  ssize_t n = sendmsg((int)(intptr_t)transport, &message, MSG_NOSIGNAL);
  moves += n > 0;
  return n;
}

bool tls_conn_begin(struct conn *conn, struct MHD_Connection *connection) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
  if (info == NULL || info->tls_session == NULL)
    return false;
  conn->tls = info->tls_session;
  conn->pair = tls_pair_get(conn->loop->worker->service->tls);
  gnutls_transport_set_pull_function(conn->tls, pull);
  gnutls_transport_set_vec_push_function(conn->tls, push);
  return true;
}

void tls_conn_end(struct conn *conn) {
  tls_pair_unref(conn->pair); // GnuTLS has let go of it: MHD ends the session before it tells of the close
  conn->pair = NULL;
  conn->tls = NULL;
}

int tls_conn_certificate(gnutls_session_t session, const gnutls_datum_t *issuers, int n_issuers,
                         const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **chain,
                         unsigned *n_chain, gnutls_privkey_t *key) {
  (void)issuers;
  (void)n_issuers;
  (void)algorithms;
  (void)n_algorithms;
  struct MHD_Connection *connection = gnutls_session_get_ptr(session); // set by MHD, which has no closure for this
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  const struct conn *conn = info != NULL ? info->socket_context : NULL;
  if (conn == NULL || conn->pair == NULL)
    return -1;
  tls_pair_show(conn->pair, chain, n_chain, key);
  return 0;
}

void tls_conn_refuse(struct conn *conn, const char *response, size_t len) {
  if (len > 0)
    (void)gnutls_record_send(conn->tls, response, len);
  (void)gnutls_bye(conn->tls, GNUTLS_SHUT_WR);
}
