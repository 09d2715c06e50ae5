// SPDX-License-Identifier: Apache-2.0
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEAD_MAX 8192
#define CONNECT_MS 10000

void wire_die(const char *what) {
  (void)fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
  exit(1);
}

void *wire_alloc(size_t n, size_t size) {
  void *memory = calloc(n > 0 ? n : 1, size);
  if (memory == NULL) {
    wire_die("memory");
  }
  return memory;
}

static _Noreturn void bad(const char *what) {
  errno = EINVAL;
  wire_die(what);
}

long wire_number(const char *text, long min, long max) {
  char *end = NULL;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || value < min || value > max) {
    bad(text);
  }
  return value;
}

int64_t wire_now(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void wire_raise_limits(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// -- requests ---------------------------------------------------------------------------------------------------------

static char *read_file(const char *path, size_t *len) {
  FILE *f = fopen(path, "rb");
  if (f == NULL || fseek(f, 0, SEEK_END) != 0) {
    wire_die(path);
  }
  long size = ftell(f);
  if (size < 0 || fseek(f, 0, SEEK_SET) != 0) {
    wire_die(path);
  }
  *len = (size_t)size;
  char *text = malloc(*len + 1);
  if (text == NULL) {
    wire_die("memory");
  }
  if (fread(text, 1, *len, f) != *len) {
    wire_die(path);
  }
  text[*len] = '\0';
  (void)fclose(f);
  return text;
}

void wire_load(struct wire_requests *requests, const char *path) {
  size_t len, room = 0;
  char *at = read_file(path, &len), *end = at + len;
  *requests = (struct wire_requests){.text = at};
  while (at < end) {
    char *rest = NULL;
    unsigned long n = strtoul(at, &rest, 10);
    if (rest == at || *rest != '\n' || n == 0 || n > (size_t)(end - rest - 1)) {
      bad(path);
    }
    if (requests->n == room) {
      room = room > 0 ? 2 * room : 1024;
      struct wire_bytes *more = realloc(requests->list, room * sizeof *more);
      if (more == NULL) {
        wire_die("memory");
      }
      requests->list = more;
    }
    requests->list[requests->n++] = (struct wire_bytes){rest + 1, n};
    at = rest + 1 + n;
  }
  if (requests->n == 0) {
    bad(path);
  }
}

// -- connections ------------------------------------------------------------------------------------------------------

void wire_address(struct sockaddr_in *address, const char *text) {
  char host[64];
  const char *colon = strrchr(text, ':');
  if (colon == NULL || (size_t)(colon - text) >= sizeof host) {
    bad(text);
  }
  memcpy(host, text, (size_t)(colon - text));
  host[colon - text] = '\0';
  *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)wire_number(colon + 1, 1, 65535))};
  if (inet_pton(AF_INET, host, &address->sin_addr) != 1) {
    bad(text);
  }
}

static void bind_source(int fd, unsigned source) {
  struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001U | source << 8)};
  int one = 1;
  // The port is chosen when the other end is known: until then it would be taken for all of them.
  (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
  if (bind(fd, (struct sockaddr *)&from, sizeof from) != 0) {
    wire_die("bind");
  }
}

int wire_connect(const struct sockaddr_in *to, unsigned source) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
  if (fd < 0) {
    wire_die("socket");
  }
  if (source > 0) {
    bind_source(fd, source);
  }
  if (connect(fd, (const struct sockaddr *)to, sizeof *to) != 0) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    socklen_t size = sizeof errno;
    if (errno != EINPROGRESS || poll(&p, 1, CONNECT_MS) != 1) {
      wire_die("connect");
    }
    int error = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
      errno = error;
      wire_die("connect");
    }
  }
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

void wire_close(int fd) {
  struct linger reset = {.l_onoff = 1, .l_linger = 0};
  (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  (void)close(fd);
}

bool wire_send(int fd, struct wire_bytes bytes) {
  ssize_t n = send(fd, bytes.data, bytes.len, MSG_NOSIGNAL);
  if (n == (ssize_t)bytes.len) {
    return true;
  }
  if (n >= 0 || errno == EAGAIN) {
    bad("a request does not fit into the socket");
  }
  return false;
}

// -- replies ----------------------------------------------------------------------------------------------------------

/// The value of Content-Length, 0 where there is none.
static size_t content_length(const char *head, const char *end) {
  static const char name[] = "\r\nContent-Length:";
  for (const char *at = head; at + sizeof name < end; at++) {
    if (*at == '\r' && strncasecmp(at, name, sizeof name - 1) == 0) {
      return strtoul(at + sizeof name - 1, NULL, 10);
    }
  }
  return 0;
}

static void reset(struct wire_reply *reply) {
  free(reply->stash);
  *reply = (struct wire_reply){.status = reply->status};
}

static enum wire_result gone(struct wire_reply *reply) {
  reset(reply);
  reply->status = 0;
  return WIRE_GONE;
}

static enum wire_result body(struct wire_reply *reply, size_t n) {
  if (n > reply->missing) {
    return gone(reply); // more than was asked for
  }
  reply->missing -= n;
  if (reply->missing > 0) {
    return WIRE_MORE;
  }
  reset(reply);
  return WIRE_WHOLE;
}

/// The head is in @a text, with what follows it, or is not whole.
static enum wire_result head(struct wire_reply *reply, const char *text, size_t len) {
  const char *end = memmem(text, len, "\r\n\r\n", 4);
  if (end == NULL) {
    if (reply->stash == text) {
      return WIRE_MORE;
    }
    reply->stash = malloc(HEAD_MAX + 1);
    if (reply->stash == NULL) {
      wire_die("memory");
    }
    memcpy(reply->stash, text, len);
    reply->stashed = len;
    return WIRE_MORE;
  }
  if (len < 12 || strncmp(text, "HTTP/1.", 7) != 0) {
    return gone(reply);
  }
  reply->status = (int)strtol(text + 9, NULL, 10);
  bool bodiless = reply->status == 204 || reply->status == 304;
  reply->missing = bodiless ? 0 : content_length(text, end + 2);
  reply->in_body = true;
  return body(reply, len - (size_t)(end + 4 - text));
}

enum wire_result wire_receive(int fd, struct wire_reply *reply, uint64_t *total) {
  static char buffer[65536 + 1];
  char *to = buffer;
  size_t room = reply->in_body ? sizeof buffer - 1 : HEAD_MAX;
  if (reply->stash != NULL) {
    to = reply->stash + reply->stashed;
    room = HEAD_MAX - reply->stashed;
  }
  ssize_t n = room > 0 ? recv(fd, to, room, 0) : 0;
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return WIRE_MORE;
  }
  if (n <= 0) {
    return gone(reply);
  }
  *total += (uint64_t)n;
  to[n] = '\0';
  if (reply->in_body) {
    return body(reply, (size_t)n);
  }
  if (reply->stash == NULL) {
    return head(reply, buffer, (size_t)n);
  }
  reply->stashed += (size_t)n;
  return head(reply, reply->stash, reply->stashed);
}
