// SPDX-License-Identifier: Apache-2.0
/// @file
/// What the files of the HTTP room share among themselves: connections, the loop's state, the steps of a request.
/// Everything here belongs to one worker's thread. Handlers do not include this.
#ifndef SH_HTTP_INSIDE_H
#define SH_HTTP_INSIDE_H

#include <gnutls/abstract.h>
#include <pthread.h>
#include <stdatomic.h>

#include "http/lifecycle.h"
#include "http/request.h"
#include "http/route.h"
#include "http/worker.h"

/// Where a request stands. (What other houses call ACTIVE is everything but PARKED and WOKEN.)
enum request_phase {
  PHASE_HEAD,     ///< the request line is there; headers are coming
  PHASE_BODY,     ///< the body is coming
  PHASE_HANDLING, ///< with its handler, or answered
  PHASE_PARKED,   ///< waits; suspended in libmicrohttpd from its next call on
  PHASE_WOKEN,    ///< `resumed` is to be called
  PHASE_REFUSED,  ///< answered by hand before the body was there; what still comes is thrown away
  PHASE_ABORTED,  ///< the server gives up on it: the connection is to be closed
};

/// A connection, from accept to close. MHD's socket context.
struct conn {
  struct worker_loop *loop;
  int fd;
  struct gnutls_session_int *tls; ///< NULL: plain
  const struct tls_pair *pair;    ///< the certificate that it began with; NULL: plain
  struct request *request;        ///< the one that has begun, if any
  struct heap_node deadline;      ///< at its end the connection is shut down, so that a dripping client cannot hold it
  bool client_closed;             ///< the client will send nothing more
};

/// The requests of this worker that watch one room.
struct room_watch;

struct worker_loop {
  struct worker *worker;
  pthread_t thread;
  struct MHD_Daemon *daemon;
  int epoll_fd, mhd_fd;
  struct heap waits;      ///< parked requests by their deadline
  struct heap conns;      ///< connections by their deadline
  struct heap windows;    ///< rooms by the end of the window in which their wakes are folded
  struct request *parked; ///< all parked requests
  struct request *woken;  ///< to be resumed in the next turn
  struct room_watch *rooms;
  unsigned n_requests;
  bool tls;          ///< its connections speak TLS
  bool fruitless;    ///< the last MHD_run() called nobody and moved no byte
  uint64_t progress; ///< calls by MHD, counted
  bool adopted;      ///< MHD has taken the connection that is being handed over
  bool draining, stopping, aborting;
  int64_t stop_deadline_us;
  struct mail drain_mail, stop_mail, look_mail;
  atomic_bool look_posted; ///< look_mail is on its way
};

// -- conn.c --------------------------------------------------------------------------------------------------------

/// How long an idle keep-alive connection is kept, seconds: longer than the 60 s after which balancers let go.
#define KEEPALIVE_S 75

/// MHD's NOTIFY_CONNECTION callback; @a cls is the loop.
void conn_notify(void *cls, struct MHD_Connection *connection, void **socket_context,
                 enum MHD_ConnectionNotificationCode code);

/// Sets when the connection is shut down at the latest; INT64_MAX: not by us.
void conn_set_deadline(struct conn *conn, int64_t due_us);

/// A request has begun, has been answered (its last byte may still be on the way), is over.
void conn_begin_request(struct conn *conn, struct request *r);
void conn_replied(struct conn *conn);
void conn_end_request(struct conn *conn);

/// An epoll event says that the client has closed or half-closed.
void conn_client_closed(struct conn *conn);

/// An epoll event of the connection: it was closed, or over TLS something has come that may say so.
void conn_event(struct conn *conn, uint32_t events);

/// Libmicrohttpd logs something. Where it says that it refuses a head that it has read, its 0.9.75 goes on to write the
/// head of its own answer twice, without asking us: so we answer before it does. @param fmt what it logs, unformatted
void conn_head_refused(struct worker_loop *loop, const char *fmt);

/// Shuts down what is past its deadline at @a now_us.
void conn_expire(struct worker_loop *loop, int64_t now_us);

/// Sends a whole response by hand and says that nothing more will come, but goes on reading for a moment: a close with
/// unread data makes the kernel send a reset, which can overtake the response. For refusals in the midst of an upload,
/// where MHD takes no response. Over TLS too: between two requests, or while one is read, nothing of MHD's is half
/// sent.
void conn_refuse(struct conn *conn, const char *response, size_t len);

// -- tls_conn.c ----------------------------------------------------------------------------------------------------

/// A connection begins (with the certificate that is in use now) and ends. @return false when it cannot be served
bool tls_conn_begin(struct conn *conn, struct MHD_Connection *connection);
void tls_conn_end(struct conn *conn);

/// GnuTLS asks for the certificate of the connection that MHD keeps with @a session.
int tls_conn_certificate(struct gnutls_session_int *session, const gnutls_datum_t *issuers, int n_issuers,
                         const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **chain,
                         unsigned *n_chain, gnutls_privkey_t *key);

/// Sends @a response, as much of it as the socket takes, and says that nothing more will come.
void tls_conn_refuse(struct conn *conn, const char *response, size_t len);

/// Whether what the client sent last is the end of its side (close_notify), while nobody reads from it.
bool tls_conn_says_bye(const struct conn *conn);

/// How often bytes have moved over TLS in this thread.
uint64_t tls_conn_moves(void);

// -- park.c --------------------------------------------------------------------------------------------------------

/// MHD calls again for a parked request: suspends it.
void park_suspend(struct request *r);

/// Wakes what is past its deadline at @a now_us.
void park_expire(struct worker_loop *loop, int64_t now_us);

/// Resumes all woken requests in one go, since each scan of the suspended ones costs MHD the same for one as for many.
void park_resume(struct worker_loop *loop);

/// Wakes all parked requests.
void park_wake_all(struct worker_loop *loop, enum wake_reason reason);

/// Resumes all parked requests in order to close their connections: their time is over.
void park_abort(struct worker_loop *loop);

/// MHD has called for a woken request, perhaps before the loop came to resume it.
void park_taken(struct request *r);

/// The request is answered or over: takes it out of everything that waits.
void park_forget(struct request *r);

// -- watch.c (for handlers: http/request.h and http/fold.h) ----------------------------------------------------------

/// The tail's call for a room; @a ctx is the worker. With @a news it has changed, else a read of it is over.
void watch_room_woken(void *ctx, const char *room_id, bool news);

/// The cursors' call for a room; @a ctx is the worker.
void watch_cursors_woken(void *ctx, const char *room_id);

/// Ends the windows that are over at @a now_us.
void watch_expire(struct worker_loop *loop, int64_t now_us);

/// Forgets all rooms, when no request is left.
void watch_free_all(struct worker_loop *loop);

// -- request.c -----------------------------------------------------------------------------------------------------

/// Begins a request when its request line is there. @return NULL when memory ran out
struct request *request_new(struct conn *conn, struct MHD_Connection *connection, const char *target);

void request_free(struct request *r);

/// One call of MHD's access handler.
enum MHD_Result request_step(struct request *r, const char *method, const char *version, const char *upload,
                             size_t *upload_size);

/// Answers before the request has arrived, and closes the connection after it.
void request_refuse(struct request *r, bool body_expected, int status, const char *code, const char *detail);

// -- reply.c -------------------------------------------------------------------------------------------------------

/// Queues and lets go of @a response; NULL means that there was no memory for it.
void reply_queue(struct request *r, int status, struct MHD_Response *response, const char *content_type,
                 const struct reply_headers *headers);

// -- stream.c (for handlers: http/stream.h) ------------------------------------------------------------------------

/// Nothing more comes: what is queued is sent, then the response is whole.
void stream_end(struct request *r);

/// Gives the stream up, with the connection.
void stream_abort(struct request *r);

/// The request is over.
void stream_forget(struct request *r);

// -- framing.c -----------------------------------------------------------------------------------------------------

/// What the headers say about the message. libmicrohttpd is lenient (it believes the first of two lengths, for
/// example), so that a proxy in front can see other requests than it does; what is ambiguous is refused here.
struct framing {
  int status; ///< 0, or the status of the refusal
  const char *code, *detail;
  bool has_body;
  bool crowded;    ///< the reply's head may find no room in the connection's memory: libmicrohttpd would say nothing
  bool asks_first; ///< Expect: nothing of the body is sent before we have answered
  int64_t length;  ///< the declared Content-Length; 0 when there is none
};

/// Memory of a connection, in bytes: the longest head, and beside it what libmicrohttpd notes of its fields and the
/// head of the reply. All of it is touched once a connection has served two requests: by default 10 000 have 170 MiB.
size_t connection_memory(const struct config *config);

/// Reads the headers once; also takes the request id, the content encoding and the
/// origin. @param method as libmicrohttpd gave it: the head begins there
void framing_read(struct request *r, const char *method, const char *version, struct framing *framing);

// -- query.c -------------------------------------------------------------------------------------------------------

/// Splits and decodes r->raw_query in place and checks it against the route's names.
/// @return true; or false when a 400 has been sent
bool query_read(struct request *r);

#endif
