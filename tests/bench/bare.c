// SPDX-License-Identifier: Apache-2.0
// The ceiling of HTTP: libmicrohttpd as stillhered runs it (threads that own a daemon each, external epoll), with the
// same requests and replies of the same size, and nothing behind it.
//
//   bare PORT THREADS BODY-BYTES PUT-REPLY-BYTES
//
// GET with If-None-Match: 304. GET: a shared body. PUT: reads the body as JSON and replies. Ends with standard input.
#include <arpa/inet.h>
#include <jansson.h>
#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

#define BODY_MAX 65536

struct bare {
  uint16_t port;
  struct MHD_Response *body, *put, *unmodified;
};

struct upload {
  size_t len;
  char data[BODY_MAX];
};

static atomic_bool stopping;

static struct MHD_Response *reply_of(size_t len) {
  char *text = wire_alloc(len + 1, 1);
  memset(text, 'x', len);
  struct MHD_Response *r = MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE);
  if (r == NULL) {
    wire_die("response");
  }
  (void)MHD_add_response_header(r, "Content-Type", "application/json");
  (void)MHD_add_response_header(r, "Cache-Control", "no-store");
  (void)MHD_add_response_header(r, "ETag", "\"00000000-0000-0000-0000-000000000000-1\"");
  (void)MHD_add_response_header(r, "X-Request-Id", "00000000-0000-0000-0000-000000000000");
  return r;
}

static enum MHD_Result put(const struct bare *bare, struct MHD_Connection *c, const char *data, size_t *n,
                           struct upload *upload) {
  if (*n > 0) {
    size_t fits = BODY_MAX - upload->len < *n ? BODY_MAX - upload->len : *n;
    memcpy(upload->data + upload->len, data, fits);
    upload->len += fits;
    *n = 0;
    return MHD_YES;
  }
  json_t *document = json_loadb(upload->data, upload->len, 0, NULL);
  bool named = json_is_string(json_object_get(document, "room_id"));
  json_decref(document);
  return named ? MHD_queue_response(c, 200, bare->put) : MHD_NO;
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                                 const char *version, const char *data, size_t *n, void **state) {
  const struct bare *bare = cls;
  (void)url, (void)version;
  if (strcmp(method, "PUT") == 0) {
    if (*state == NULL) {
      struct upload *upload = malloc(sizeof *upload);
      if (upload == NULL) {
        return MHD_NO;
      }
      upload->len = 0;
      *state = upload;
      return MHD_YES;
    }
    return put(bare, c, data, n, *state);
  }
  if (*state == NULL) {
    static char seen;
    *state = &seen;
    return MHD_YES;
  }
  if (MHD_lookup_connection_value(c, MHD_HEADER_KIND, "If-None-Match") != NULL) {
    return MHD_queue_response(c, 304, bare->unmodified);
  }
  return MHD_queue_response(c, 200, bare->body);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why) {
  (void)cls, (void)why;
  const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
  if (length != NULL) { // only a PUT has something of its own
    free(*state);
  }
  *state = NULL;
}

static void *serve(void *cls) {
  struct bare *bare = cls;
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(bare->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  // Each thread listens by itself: the kernel deals the connections out.
  struct MHD_Daemon *daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_ERROR_LOG, bare->port, NULL, NULL, on_access,
                                               bare, MHD_OPTION_SOCK_ADDR, &address, MHD_OPTION_LISTENING_ADDRESS_REUSE,
                                               1U, MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL, MHD_OPTION_END);
  const union MHD_DaemonInfo *info = daemon != NULL ? MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
  struct pollfd ready = {.fd = info != NULL ? info->epoll_fd : -1, .events = POLLIN};
  if (ready.fd < 0) {
    wire_die("listen");
  }
  while (!atomic_load(&stopping)) {
    MHD_UNSIGNED_LONG_LONG ms = 0;
    int wait = MHD_get_timeout(daemon, &ms) == MHD_YES && ms < 100 ? (int)ms : 100;
    (void)poll(&ready, 1, wait);
    (void)MHD_run(daemon);
  }
  MHD_stop_daemon(daemon);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 5) {
    (void)fprintf(stderr, "usage: bare PORT THREADS BODY-BYTES PUT-REPLY-BYTES\n");
    return 2;
  }
  pthread_t threads[64];
  size_t n = (size_t)wire_number(argv[2], 1, 64);
  struct bare bare = {.port = (uint16_t)wire_number(argv[1], 1, 65535),
                      .body = reply_of((size_t)wire_number(argv[3], 0, 1 << 30)),
                      .put = reply_of((size_t)wire_number(argv[4], 0, 1 << 30)),
                      .unmodified = reply_of(0)};
  wire_raise_limits();
  for (size_t i = 0; i < n; i++) {
    if (pthread_create(&threads[i], NULL, serve, &bare) != 0) {
      wire_die("thread");
    }
  }
  char c;
  while (read(STDIN_FILENO, &c, 1) > 0) {
  }
  atomic_store(&stopping, true);
  for (size_t i = 0; i < n; i++) {
    (void)pthread_join(threads[i], NULL);
  }
  MHD_destroy_response(bare.body);
  MHD_destroy_response(bare.put);
  MHD_destroy_response(bare.unmodified);
  return 0;
}
