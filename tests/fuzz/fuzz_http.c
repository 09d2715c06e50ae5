// SPDX-License-Identifier: Apache-2.0
// All that a client sends on one connection, then the end of its side: through libmicrohttpd, the framing, the routes
// and the handlers, in a worker's thread as in the daemon. There is no database: the linker (--wrap) puts what is below
// in the place of the writer and of the readers, and of the clock, which leaps ahead while the worker has nothing to
// say. Every connection must come to its end, every reply must be whole, and what reaches the writer must be sound.
//
// An input with an Authorization header goes to a worker that asks for one, others to a worker with auth=none.
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"

#define assert_true(condition) MUST(condition)
#define assert_int_equal(a, b) MUST((a) == (b))
#define assert_non_null(pointer) MUST((pointer) != NULL)
#include "../unit/auth_fixture.h"

#include "base/clock.h"
#include "base/jsonout.h"
#include "base/log.h"
#include "http/inside.h"
#include "live/cursors.h"

/// Leaps of the clock after which a connection has hung: far more than all deadlines together.
#define LEAPS_MAX 60
/// How often the worker has to wait in vain, with nothing said to us, before the clock leaps.
#define IDLE_TURNS 2
#define EVENTS 3

static struct config config, asking_config;
static struct lifecycle lifecycle;
static struct load load;
static struct service service, asking_service;
static struct worker *worker, *asking_worker;
static struct worker *_Atomic serving; ///< whose turn it is; NULL before the first input
static _Atomic int64_t leapt_us;
static atomic_uint idle_turns, submitted;

// -- in the place of the rest of the daemon ------------------------------------------------------------------------

int64_t __real_clock_mono_us(void);
int64_t __wrap_clock_mono_us(void);
int __real_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
enum tail_verdict __real_tail_look(struct tail *tail, unsigned id, const struct presence_query *query,
                                   struct tail_answer *answer);
enum tail_verdict __wrap_tail_look(struct tail *tail, unsigned id, const struct presence_query *query,
                                   struct tail_answer *answer);
bool __real_tail_current(struct tail *tail, unsigned id, const char *room_id, int64_t asked_us);
bool __wrap_tail_current(struct tail *tail, unsigned id, const char *room_id, int64_t asked_us);
bool __wrap_writer_submit(struct writer *writer, struct write_outbox *outbox, struct write_job *job);
void __wrap_log_write(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool __wrap_reader_submit(struct reader_pool *pool, struct read_job *job);

int64_t __wrap_clock_mono_us(void) {
  return __real_clock_mono_us() + atomic_load(&leapt_us);
}

/// Whatever a client sends, it is no error of the server's.
void __wrap_log_write(enum log_level level, const char *fmt, ...) {
  if (level == LOG_ERROR)
    fprintf(stderr, "an error was logged: %s\n", fmt);
  MUST(level != LOG_ERROR);
}

/// The worker looks at the clock often, since it may leap.
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms) {
  int ready = __real_poll(fds, n, timeout_ms < 0 || timeout_ms > 1 ? 1 : timeout_ms);
  const struct worker *w = atomic_load(&serving);
  if (ready == 0 && timeout_ms != 0 && w != NULL && pthread_equal(pthread_self(), w->loop->thread))
    atomic_fetch_add(&idle_turns, 1);
  return ready;
}

static void fill(struct tail *tail, const char *room_id) {
  struct room_news news = {.head = EVENTS, .n_events = EVENTS, .events = calloc(EVENTS, sizeof *news.events)};
  MUST(news.events != NULL);
  for (int i = 0; i < EVENTS; i++) {
    char *json = NULL;
    MUST(asprintf(&json, "{\"revision\":%d,\"kind\":\"lease.granted\"}", i + 1) > 0);
    news.events[i] = (struct event){.revision = i + 1, .kind = EVENT_LEASE_GRANTED, .json = json};
  }
  tail_fill(tail, room_id, clock_mono_us(), &news);
  room_news_free(&news, 1);
}

/// Every room that is asked about has the same three events.
static void fill_dirty(struct tail *tail) {
  char *ids[16];
  int64_t after[16];
  size_t n;
  while ((n = tail_take_dirty(tail, ids, after, ARRAY_LEN(ids))) > 0) {
    for (size_t i = 0; i < n; i++) {
      fill(tail, ids[i]);
      free(ids[i]);
    }
  }
  tail_evict(tail);
}

static void fill_snapshot(struct tail *tail, const struct presence_query *query) {
  struct buf text = {0};
  jo_object(&text);
  jo_kstr(&text, "room_id", query->room_id);
  jo_kstr(&text, "mode", "snapshot");
  jo_kint(&text, "revision", EVENTS);
  struct body *body = body_take(&text);
  MUST(body != NULL);
  tail_fill_snapshot(tail, query->room_id, query->view, clock_mono_us(), body, EVENTS);
  body_unref(body);
}

enum tail_verdict __wrap_tail_look(struct tail *tail, unsigned id, const struct presence_query *query,
                                   struct tail_answer *answer) {
  MUST(fuzz_is_ident(query->room_id) && query->since >= 0 && query->since <= REVISION_MAX);
  MUST(query->limit >= 1 && query->limit <= 1000 && query->kinds != 0 && (query->kinds & ~EVENT_KINDS_ALL) == 0);
  enum tail_verdict verdict = __real_tail_look(tail, id, query, answer);
  for (int i = 0; i < 2 && (verdict == TAIL_LOADING || verdict == TAIL_READ_SNAPSHOT); i++) {
    if (verdict == TAIL_READ_SNAPSHOT)
      fill_snapshot(tail, query);
    fill_dirty(tail);
    verdict = __real_tail_look(tail, id, query, answer);
  }
  return verdict;
}

bool __wrap_tail_current(struct tail *tail, unsigned id, const char *room_id, int64_t asked_us) {
  MUST(fuzz_is_ident(room_id));
  if (!__real_tail_current(tail, id, room_id, asked_us))
    fill_dirty(tail);
  return __real_tail_current(tail, id, room_id, asked_us);
}

/// What a heartbeat or a close has become on its way here.
static void check_op(const struct op *op) {
  MUST(fuzz_is_ident(op->key.room_id) && fuzz_is_ident(op->key.user_id) && fuzz_is_ident(op->key.session_id));
  MUST(!op->revision_given || (op->revision >= 1 && op->revision <= REVISION_MAX));
  MUST(op->request_id != NULL && strlen(op->request_id) >= 1 && strlen(op->request_id) <= REQUEST_ID_MAX);
  MUST(op->decision == DECISION_NONE);
  if (op->kind == OP_CLOSE)
    return;
  MUST(op->ttl_ms >= config.ttl_min_ms && op->ttl_ms <= config.ttl_max_ms);
  if (op->meta != NULL)
    json_decref(fuzz_object(op->meta, strlen(op->meta)));
}

bool __wrap_writer_submit(struct writer *writer, struct write_outbox *outbox, struct write_job *job) {
  (void)writer;
  (void)outbox;
  MUST(job->n_ops >= 1 && job->n_ops <= 1000);
  for (size_t i = 0; i < job->n_ops; i++) {
    struct op *op = job->ops[i];
    check_op(op);
    op->decision = DECISION_ACCEPTED;
    op->granted = true;
    op->stored_revision = op->revision_given ? op->revision : 1;
    op->room_revision = EVENTS;
    op->lease = (struct lease){.key = op->key, .revision = op->stored_revision, .ttl_ms = op->ttl_ms};
  }
  atomic_fetch_add(&submitted, 1);
  mailbox_post(job->reply_to, &job->mail);
  return true;
}

/// The database is away.
bool __wrap_reader_submit(struct reader_pool *pool, struct read_job *job) {
  (void)pool;
  job->status = DB_LOST;
  mailbox_post(job->reply_to, &job->mail);
  return true;
}

/// A line of the file of API keys. @return allocated
static char *key_line(const char *key, const char *scopes, const char *rooms) {
  unsigned char digest[32];
  char hex[65], *line = NULL;
  MUST(gnutls_hash_fast(GNUTLS_DIG_SHA256, key, strlen(key), digest) == 0);
  for (size_t i = 0; i < sizeof digest; i++)
    (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
  MUST(asprintf(&line, "%s %s %s %s\n", key, hex, scopes, rooms) > 0);
  return line;
}

/// The configuration of the worker that asks for credentials: keys `reader`, `gateway` and `admin`, tokens by SECRET.
static void configure_asking(void) {
  static struct memory_file secret, keys;
  char *reader = key_line("reader", "presence:read", "r"), *gateway = key_line("gateway", "gateway", "r*"),
       *admin = key_line("admin", "admin", "*"), *text = NULL, *files[2] = {NULL}, error[CONFIG_ERROR_SIZE];
  MUST(asprintf(&text, "%s%s%s", reader, gateway, admin) > 0);
  secret = memory_text(SECRET);
  keys = memory_text(text);
  MUST(asprintf(&files[0], "STILLHERE_JWT_KEY_FILE=%s", secret.path) > 0);
  MUST(asprintf(&files[1], "STILLHERE_API_KEYS_FILE=%s", keys.path) > 0);
  static char jwt[] = "STILLHERE_AUTH=jwt", metrics[] = "STILLHERE_METRICS_ACCESS=credential",
              rate[] = "STILLHERE_CREDENTIAL_RATE=5", burst[] = "STILLHERE_CREDENTIAL_BURST=10";
  char *environment[] = {jwt, metrics, rate, burst, files[0], files[1], NULL};
  MUST(config_load(&asking_config, NULL, environment, error));
  char *const made[] = {reader, gateway, admin, text, files[0], files[1]};
  for (size_t i = 0; i < ARRAY_LEN(made); i++)
    free(made[i]);
}

static void make_services(void) {
  const struct tail_options tail = {.replay_limit = 2, .events_per_room = 10, .idle_ms = 60000, .rooms_max = 50};
  service = (struct service){.config = &config,
                             .n_watched = 2,
                             .tail = tail_new(&tail),
                             .cursors = cursors_new(&(struct cursors_options){.room_max = 10, .total_max = 100}),
                             .lifecycle = &lifecycle,
                             .limits = limits_new(&config),
                             .load = &load,
                             .instance = "fuzz"};
  asking_service = service;
  asking_service.config = &asking_config;
  asking_service.limits = limits_new(&asking_config);
  asking_service.authority = authority_new(&asking_config);
  MUST(service.tail != NULL && service.cursors != NULL && service.limits != NULL);
  MUST(asking_service.limits != NULL && asking_service.authority != NULL);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  char error[CONFIG_ERROR_SIZE];
  static char origins[] = "STILLHERE_CORS_ORIGINS=https://a.example";
  char *environment[] = {origins, NULL};
  MUST(config_load(&config, NULL, environment, error));
  configure_asking();
  make_services();
  atomic_store(&lifecycle.migrated, true);
  epoch_set("0123456789abcdef");
  int64_t now_us = clock_mono_us();
  clock_db_sample(INT64_C(1800000000000000), now_us, now_us);
  tail_set_listening(service.tail, true);
  worker = worker_start(0, &service);
  asking_worker = worker_start(1, &asking_service);
  MUST(worker != NULL && asking_worker != NULL);
  return 0;
}

// -- the client ----------------------------------------------------------------------------------------------------

/// Nothing has come for a moment. Once the worker too has nothing to do but to wait, the clock leaps: a little, which
/// ends what lingers, and then far, which ends any wait.
static void pass_time(unsigned *seen, int *leaps) {
  if (atomic_load(&idle_turns) - *seen < IDLE_TURNS)
    return;
  MUST(++*leaps < LEAPS_MAX);
  atomic_fetch_add(&leapt_us, *leaps < 4 ? 1100000 : 10000000);
  *seen = atomic_load(&idle_turns);
}

/// Sends all, says that this was all, and reads to the end.
static void converse(int fd, const uint8_t *data, size_t size, struct buf *out) {
  size_t sent = 0;
  int leaps = 0;
  unsigned seen = atomic_load(&idle_turns);
  bool half_closed = false;
  for (;;) {
    struct pollfd pfd = {.fd = fd, .events = (short)(POLLIN | (sent < size ? POLLOUT : 0))};
    if (__real_poll(&pfd, 1, 1) == 0) {
      pass_time(&seen, &leaps);
      continue;
    }
    seen = atomic_load(&idle_turns);
    if (sent < size && (pfd.revents & POLLOUT) != 0) {
      ssize_t n = send(fd, data + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      sent = n > 0 ? sent + (size_t)n : n < 0 && errno != EAGAIN ? size : sent;
    }
    if (sent >= size && !half_closed)
      half_closed = shutdown(fd, SHUT_WR) == 0 || errno != EINTR;
    if ((pfd.revents & (POLLIN | POLLHUP | POLLERR)) == 0)
      continue;
    char bytes[4096];
    ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN))
      return;
    if (n > 0)
      buf_add(out, bytes, (size_t)n);
  }
}

/// The worker has forgotten the connection and every request of it.
static void settle(void) {
  int leaps = 0;
  unsigned seen = atomic_load(&idle_turns);
  while (atomic_load(&lifecycle.connections) != 0 || atomic_load(&lifecycle.requests) != 0) {
    (void)__real_poll(NULL, 0, 1);
    pass_time(&seen, &leaps);
  }
  MUST(atomic_load(&lifecycle.waiting) == 0);
}

/// The value of a header of the reply that begins at @a head, or NULL; it ends at the line's end.
static const char *header(const char *head, const char *end, const char *name) {
  size_t len = strlen(name);
  for (const char *line = head; (line = memmem(line, (size_t)(end - line), "\r\n", 2)) != NULL && line < end;) {
    line += 2;
    if ((size_t)(end - line) > len && strncasecmp(line, name, len) == 0 && line[len] == ':')
      return line + len + 1 + strspn(line + len + 1, " ");
  }
  return NULL;
}

static void check_json(const char *head, const char *end, const char *body, size_t len, int status) {
  const char *type = header(head, end, "Content-Type");
  if (type == NULL || header(head, end, "Content-Encoding") != NULL)
    return;
  bool problem = strncmp(type, "application/problem+json", 24) == 0;
  if (!problem && strncmp(type, "application/json", 16) != 0)
    return;
  json_t *object = fuzz_object(body, len);
  MUST(status >= 400 || !problem);
  MUST(problem || status < 400 || json_is_string(json_object_get(object, "status"))); // /readyz
  MUST(!problem || json_integer_value(json_object_get(object, "status")) == status);
  MUST(!problem || json_string_length(json_object_get(object, "code")) > 0);
  json_decref(object);
}

/// Nothing that is refused has come to the writer, which here accepts everything: told where there is one reply alone.
static void check_refused(const struct buf *out, int status, unsigned n_submitted) {
  bool alone = memmem(out->data + 1, out->len - 1, "HTTP/1.", 7) == NULL;
  MUST(!alone || status < 400 || status == 503 || n_submitted == 0);
}

/// The first reply of a connection. Later ones are told from bodies by their lengths alone, so they are not looked at.
static void check_reply(const struct buf *out, bool head_only, unsigned n_submitted) {
  if (out->len == 0)
    return;
  MUST(out->len > 12 && strncmp(out->data, "HTTP/1.", 7) == 0);
  int status = (int)strtol(out->data + 9, NULL, 10);
  MUST(status == 100 || (status >= 200 && status < 300) || status == 304 || (status >= 400 && status < 500) ||
       status == 501 || status == 503 || status == 505);
  check_refused(out, status, n_submitted);
  const char *end = memmem(out->data, out->len, "\r\n\r\n", 4);
  MUST(end != NULL);
  const char *length = header(out->data, end + 2, "Content-Length"), *body = end + 4;
  if (length == NULL || head_only || status == 100 || status == 204 || status == 304)
    return;
  size_t len = (size_t)strtoul(length, NULL, 10);
  MUST((size_t)(out->data + out->len - body) >= len);
  check_json(out->data, end + 2, body, len, status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  int ends[2];
  MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  atomic_fetch_add(&lifecycle.connections, 1);
  struct worker *w = memmem(data, size, "Authorization", 13) != NULL ? asking_worker : worker;
  atomic_store(&serving, w);
  worker_adopt(w, ends[0], (const struct sockaddr *)&addr, sizeof addr);
  struct buf out = {0};
  unsigned before = atomic_load(&submitted);
  converse(ends[1], data, size, &out);
  MUST(close(ends[1]) == 0 && !out.failed);
  settle();
  check_reply(&out, size >= 5 && memcmp(data, "HEAD ", 5) == 0, atomic_load(&submitted) - before);
  buf_free(&out);
  return 0;
}
