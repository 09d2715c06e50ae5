// SPDX-License-Identifier: Apache-2.0
#include "http/stream.h"

#include <linux/tcp.h> // more fields than the C library's
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/rand.h"
#include "base/sse.h"
#include "base/strict.h"
#include "http/accept.h"
#include "http/access.h"
#include "http/inside.h"

/// When a client whose stream broke comes back: this and a random part up to as much again, milliseconds.
#define RETRY_MS 2000
#define KEEPALIVE_MS 15000
/// What libmicrohttpd asks for at once; its own buffer for the connection is smaller.
#define BLOCK_SIZE 4096
#define BEHIND_BYTES (STREAM_BYTES_MAX / 4)
/// What the kernel may hold for a client that does not read.
#define SEND_BUFFER (128 * 1024)
/// The kernel cuts by itself whoever takes nothing, and says nothing of it (acceptor.c). With streams it comes later
/// than we do.
#define KERNEL_CUTS_MS (2 * (unsigned)(STREAM_STUCK_US / 1000))

/// Bytes that wait to be sent.
struct piece {
  struct piece *prev, *next;
  struct body *body; ///< holds `data`, or
  char *text;        ///< is `data`
  const char *data;
  size_t len;
};

/// Owned by the response: it lives until libmicrohttpd lets go of that, perhaps longer than the request.
struct stream {
  struct request *request; ///< NULL: it is over
  struct MHD_Connection *connection;
  struct piece *pieces;
  unsigned n;
  size_t bytes;  ///< of all pieces
  size_t offset; ///< of those, sent of the first piece
  uint64_t read; ///< bytes that libmicrohttpd has taken

  // What was seen of the client at the last look at it.
  bool owed;         ///< something is on its way to it
  uint64_t accepted; ///< bytes that it had acknowledged
  int64_t moved_us;  ///< when that number was seen to grow, or nothing was owed
  bool suspended;
  bool ended;   ///< nothing more comes
  bool cut;     ///< the connection is to be closed as it is
  bool open;    ///< counted as open
  bool awaited; ///< the request is parked until nothing is queued
  int64_t keepalive_us;
  enum request_verdict (*resumed)(struct request *r, enum wake_reason reason); ///< of stream_park_behind()
};

static void piece_free(struct piece *piece) {
  body_unref(piece->body);
  free(piece->text);
  free(piece);
}

static void drop_first(struct stream *s) {
  struct piece *piece = s->pieces;
  DL_DELETE(s->pieces, piece);
  s->n--;
  s->bytes -= piece->len;
  s->offset = 0;
  piece_free(piece);
}

static void over(struct stream *s) {
  if (s->open)
    metric_add(METRIC_STREAMS, -1);
  s->open = false;
}

// -- libmicrohttpd's callbacks -------------------------------------------------------------------------------------

static ssize_t on_read(void *cls, uint64_t pos, char *out, size_t max) {
  (void)pos;
  struct stream *s = cls;
  if (s->cut)
    return MHD_CONTENT_READER_END_WITH_ERROR;
  size_t n = 0;
  while (n < max && s->pieces != NULL) {
    size_t left = s->pieces->len - s->offset;
    size_t take = left < max - n ? left : max - n;
    memcpy(out + n, s->pieces->data + s->offset, take);
    n += take;
    s->read += take;
    s->offset += take;
    if (take == left)
      drop_first(s);
  }
  if (s->awaited && s->pieces == NULL && s->request != NULL) {
    s->awaited = false;
    request_wake(s->request, WAKE_DONE);
  }
  if (n > 0)
    return (ssize_t)n;
  if (s->ended)
    return MHD_CONTENT_READER_END_OF_STREAM;
  MHD_suspend_connection(s->connection);
  s->suspended = true;
  return 0;
}

static void on_free(void *cls) {
  struct stream *s = cls;
  if (s->request != NULL)
    s->request->stream = NULL;
  over(s);
  while (s->pieces != NULL)
    drop_first(s);
  free(s);
}

static void resume(struct stream *s) {
  if (!s->suspended)
    return;
  s->suspended = false;
  MHD_resume_connection(s->connection);
}

// -- inside the HTTP room ------------------------------------------------------------------------------------------

void stream_end(struct request *r) {
  struct stream *s = r->stream;
  s->ended = true;
  over(s);
  resume(s);
}

void stream_abort(struct request *r) {
  struct stream *s = r->stream;
  s->cut = true;
  over(s);
  while (s->pieces != NULL)
    drop_first(s);
  // A send that does not get on is ended by this, a suspended one by the resume.
  (void)shutdown(r->conn->fd, SHUT_RDWR);
  resume(s);
}

void stream_forget(struct request *r) {
  if (r->stream == NULL)
    return;
  over(r->stream);
  r->stream->request = NULL;
  r->stream = NULL;
}

// -- for handlers --------------------------------------------------------------------------------------------------

/// Looks at how far the client is.
static void look_at(struct stream *s, int64_t now_us) {
  struct tcp_info info = {0};
  socklen_t len = sizeof info;
  // Over a Unix socket nothing is acknowledged: there what libmicrohttpd can send counts.
  bool known = getsockopt(s->request->conn->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0;
  uint64_t accepted = known ? info.tcpi_bytes_acked : s->read;
  s->owed = s->pieces != NULL || info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0;
  if (!s->owed || accepted != s->accepted)
    s->moved_us = now_us;
  s->accepted = accepted;
}

static void set_keepalive(struct stream *s) {
  s->keepalive_us = clock_mono_us() + jitter_down(KEEPALIVE_MS, 15) * 1000;
}

static bool say_retry(struct request *r) {
  struct buf text = {0};
  buf_printf(&text, "retry: %d\n\n", RETRY_MS + (int)rand_below(RETRY_MS + 1));
  return stream_send(r, &text, NULL, NULL);
}

bool stream_begin(struct request *r, const struct reply_headers *headers) {
  struct stream *s = calloc(1, sizeof *s);
  if (s == NULL)
    return false;
  struct MHD_Response *response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_SIZE, on_read, s, on_free);
  if (response == NULL) {
    free(s);
    return false;
  }
  s->request = r;
  s->connection = r->connection;
  s->open = true;
  s->moved_us = clock_mono_us();
  r->stream = s;
  metric_add(METRIC_STREAMS, 1);
  set_keepalive(s);
  // The reference is the connection's now, or the stream is gone again.
  reply_queue(r, 200, response, "text/event-stream", headers);
  if (r->stream == NULL)
    return false;
  // A host that has vanished sends neither FIN nor reset; a keep-alive that is not acknowledged tells.
  int send_buffer = SEND_BUFFER;
  unsigned cuts_ms = KERNEL_CUTS_MS;
  if (setsockopt(r->conn->fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer) != 0)
    log_debug("a stream's socket keeps its own send buffer");
  (void)setsockopt(r->conn->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &cuts_ms, sizeof cuts_ms); // not of a Unix socket
  return say_retry(r);
}

bool stream_open(const struct request *r) {
  return r->stream != NULL && r->stream->open;
}

static bool push(struct stream *s, struct body *body, char *text, size_t len) {
  struct piece *piece = calloc(1, sizeof *piece);
  if (piece == NULL) {
    free(text);
    return false;
  }
  *piece = (struct piece){.body = body != NULL ? body_ref(body) : NULL, .text = text};
  piece->data = body != NULL ? body->data : text;
  piece->len = body != NULL ? body->len : len;
  DL_APPEND(s->pieces, piece);
  s->n++;
  s->bytes += piece->len;
  return true;
}

static bool push_buf(struct stream *s, struct buf *b) {
  if (b == NULL)
    return true;
  bool failed = b->failed;
  size_t len = 0;
  char *text = buf_take(b, &len);
  if (text == NULL)
    return !failed;
  if (len > 0)
    return push(s, NULL, text, len);
  free(text);
  return true;
}

static void cut(struct request *r) {
  metric_add(METRIC_STREAMS_CUT, 1);
  log_info("a stream was cut: its client does not take what waits for it");
  stream_abort(r);
}

bool stream_send(struct request *r, struct buf *prefix, struct body *body, struct buf *suffix) {
  struct stream *s = r->stream;
  bool ok = s != NULL && s->open;
  // What is over the limit already is cut, not what one large message brings over it.
  if (ok && (s->bytes > STREAM_BYTES_MAX || s->n > STREAM_PIECES_MAX)) {
    cut(r);
    ok = false;
  }
  ok = ok && push_buf(s, prefix) && (body == NULL || body->len == 0 || push(s, body, NULL, 0)) && push_buf(s, suffix);
  if (ok) {
    resume(s);
    return true;
  }
  if (prefix != NULL)
    buf_free(prefix);
  if (suffix != NULL)
    buf_free(suffix);
  if (s != NULL && s->open)
    stream_abort(r);
  return false;
}

bool stream_behind(const struct request *r) {
  return r->stream != NULL && r->stream->bytes > BEHIND_BYTES;
}

/// What the handler that waits for an empty queue sees of its wake.
static enum request_verdict drained(struct request *r, enum wake_reason reason) {
  struct stream *s = r->stream;
  s->awaited = false;
  if (reason == WAKE_DEADLINE)
    cut(r);
  return s->resumed(r, reason);
}

void stream_park_behind(struct request *r,
                        enum request_verdict (*resumed)(struct request *r, enum wake_reason reason)) {
  struct stream *s = r->stream;
  s->resumed = resumed;
  s->awaited = true;
  look_at(s, clock_mono_us());
  request_park(r, s->moved_us + STREAM_STUCK_US, drained);
  if (s->pieces == NULL)
    request_wake(r, WAKE_DONE);
}

int64_t stream_keepalive_due(const struct request *r) {
  const struct stream *s = r->stream;
  if (s == NULL)
    return INT64_MAX;
  int64_t stuck_us = s->moved_us + STREAM_STUCK_US;
  return s->owed && stuck_us < s->keepalive_us ? stuck_us : s->keepalive_us;
}

bool stream_keepalive(struct request *r, int64_t id) {
  if (!stream_open(r))
    return false;
  int64_t now_us = clock_mono_us();
  if (now_us < stream_keepalive_due(r))
    return true;
  struct stream *s = r->stream;
  look_at(s, now_us);
  if (now_us - s->moved_us >= STREAM_STUCK_US) {
    cut(r);
    return false;
  }
  if (now_us < s->keepalive_us)
    return true;
  set_keepalive(s);
  struct buf text = {0};
  buf_puts(&text, ": keep-alive\n");
  if (id >= 0)
    buf_printf(&text, "id: %lld\n", (long long)id);
  buf_putc(&text, '\n');
  return stream_send(r, &text, NULL, NULL);
}

static const char *header(const struct request *r, const char *name) {
  return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

bool stream_wanted(const struct request *r) {
  struct buf list = {0};
  request_header_list(r, MHD_HTTP_HEADER_ACCEPT, &list);
  bool wanted = !r->head_only && !list.failed && accept_event_stream(list.data);
  buf_free(&list);
  return wanted;
}

bool stream_last_id(struct request *r, bool *given, int64_t *id) {
  const char *value = header(r, "Last-Event-ID");
  // White space around a field's value is no part of it (RFC 9110 §5.5); libmicrohttpd leaves what stands behind it.
  size_t len = value != NULL ? strlen(value) : 0;
  while (len > 0 && (value[len - 1] == ' ' || value[len - 1] == '\t'))
    len--;
  *given = len > 0;
  if (!*given || strict_int(value, len, 0, REVISION_MAX, id))
    return true;
  request_problem(r, 400, "bad_header", "Last-Event-ID", "Last-Event-ID must be plain digits, at most 2^53-1");
  return false;
}

void request_expel(struct request *r, int status, const char *code, const char *detail) {
  if (!stream_open(r)) {
    request_refused(r, &(struct refusal){status, code, detail});
    return;
  }
  access_note(r, status, code);
  struct buf problem = {0}, text = {0};
  problem_json(&problem, status, code, NULL, detail, r->id);
  if (!problem.failed)
    sse_message(&text, -1, "problem", problem.data, problem.len);
  buf_free(&problem);
  (void)stream_send(r, &text, NULL, NULL);
}
