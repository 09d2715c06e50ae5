// SPDX-License-Identifier: Apache-2.0
#include "http/usher.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <utlist.h>

#include "base/clock.h"
#include "http/turn_away.h"

/// A client that connects and says nothing is not waited for any longer than this.
#define PATIENCE_US 50000
/// The longest beginning that is looked at: a method and a path with one room in it.
#define LOOK_MAX 512
#define EVENTS_MAX 64

/// A connection whose first bytes have not come.
struct silent {
  int fd;
  socklen_t len;
  struct sockaddr_storage addr;
  int64_t due_us; ///< monotonic
  struct silent *prev, *next;
};

/// Workers that take turns.
struct group {
  struct worker *const *workers; ///< at least one
  unsigned n, next;              ///< n: how many take connections
};

struct usher {
  struct group quick, waiting;
  struct group nobody; ///< takes none: what goes to it is turned away
  bool blind;
  int epoll_fd;
  struct silent *silent; ///< the oldest first
};

int usher_may_wait(const char *bytes, size_t len) {
  static const char start[] = "GET /rooms/";
  size_t start_len = sizeof start - 1;
  if (memcmp(bytes, start, len < start_len ? len : start_len) != 0)
    return 0;
  if (len < start_len)
    return -1;
  // The room has no slash in it, or an encoded one; what follows it tells.
  const char *room = bytes + start_len, *end = bytes + len;
  const char *slash = memchr(room, '/', (size_t)(end - room));
  const char *blank = memchr(room, ' ', (size_t)(end - room));
  if (slash == NULL || (blank != NULL && blank < slash))
    return blank != NULL ? 0 : -1;
  static const char *const kinds[] = {"/presence", "/cursors"};
  size_t left = (size_t)(end - slash);
  bool open = false;
  for (size_t i = 0; i < 2; i++) {
    size_t kind_len = strlen(kinds[i]);
    if (memcmp(slash, kinds[i], left < kind_len ? left : kind_len) != 0)
      continue;
    if (left >= kind_len)
      return 1;
    open = true;
  }
  return open ? -1 : 0;
}

bool usher_may_begin(char byte) {
  // The first letter of a method, or an empty line that is passed over. Libmicrohttpd takes a NUL for one too and waits
  // on; what else it is not told about here would wait as well, for a line that does not come.
  bool letter = (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9');
  return letter || (byte != '\0' && strchr("\r\n!#$%&'*+-.^_`|~", byte) != NULL);
}

static void hand_to(struct group *group, int fd, const struct sockaddr *addr, socklen_t len) {
  if (group->n == 0) {
    turn_away(fd, 400, "bad_request", "this is not HTTP");
    worker_lost(group->workers[0], addr);
    return;
  }
  worker_adopt(group->workers[group->next], fd, addr, len);
  group->next = (group->next + 1) % group->n;
}

/// Whose connection it is by its first bytes. @return NULL: they say nothing yet, and @a must is not set
static struct group *judge(struct usher *u, int fd, bool must) {
  char bytes[LOOK_MAX];
  ssize_t n = recv(fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
  bool over = n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  if (n > 0 && !usher_may_begin(bytes[0]))
    return &u->nobody;
  int may_wait = n > 0 ? usher_may_wait(bytes, (size_t)n) : -1;
  if (may_wait < 0 && !over && !must && n < (ssize_t)sizeof bytes)
    return NULL;
  return may_wait == 1 ? &u->waiting : &u->quick;
}

/// @return false when there is no memory to wait with
static bool wait_for(struct usher *u, int fd, const struct sockaddr *addr, socklen_t len) {
  struct silent *s = len <= sizeof s->addr ? malloc(sizeof *s) : NULL;
  if (s == NULL)
    return false;
  *s = (struct silent){.fd = fd, .len = len, .due_us = clock_mono_us() + PATIENCE_US};
  memcpy(&s->addr, addr, len);
  struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = s};
  if (epoll_ctl(u->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
    free(s);
    return false;
  }
  DL_APPEND(u->silent, s);
  return true;
}

void usher_take(struct usher *u, int fd, const struct sockaddr *addr, socklen_t len) {
  struct group *group = u->blind ? &u->quick : judge(u, fd, false);
  if (group == NULL && !wait_for(u, fd, addr, len))
    group = &u->quick;
  if (group != NULL)
    hand_to(group, fd, addr, len);
}

/// Looks again at one that was silent. @param must its time is over
static void look_again(struct usher *u, struct silent *s, bool must) {
  struct group *group = judge(u, s->fd, must);
  if (group == NULL)
    return;
  // First of all: from then on the descriptor is the worker's, who may close it at once.
  (void)epoll_ctl(u->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
  DL_DELETE(u->silent, s);
  hand_to(group, s->fd, (const struct sockaddr *)&s->addr, s->len);
  free(s);
}

int usher_fd(const struct usher *u) {
  return u->epoll_fd;
}

int usher_timeout_ms(const struct usher *u) {
  if (u->silent == NULL)
    return -1;
  int64_t left_us = u->silent->due_us - clock_mono_us();
  return left_us > 0 ? (int)((left_us + 999) / 1000) : 0;
}

void usher_run(struct usher *u) {
  struct epoll_event events[EVENTS_MAX];
  // Each event is of another connection, and none is freed but by its own.
  int n = epoll_wait(u->epoll_fd, events, EVENTS_MAX, 0);
  for (int i = 0; i < n; i++)
    look_again(u, events[i].data.ptr, false);
  int64_t now_us = clock_mono_us();
  while (u->silent != NULL && u->silent->due_us <= now_us)
    look_again(u, u->silent, true);
}

struct usher *usher_new(struct worker *const *workers, unsigned n_workers, bool tls) {
  struct usher *u = calloc(1, sizeof *u);
  if (u == NULL)
    return NULL;
  unsigned n_quick = tls ? n_workers : n_workers / 2;
  u->blind = tls;
  u->quick = (struct group){.workers = workers, .n = n_quick};
  u->waiting = (struct group){.workers = workers + n_quick, .n = n_workers - n_quick};
  u->nobody = (struct group){.workers = workers};
  u->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (u->epoll_fd < 0) {
    free(u);
    return NULL;
  }
  return u;
}

void usher_free(struct usher *u) {
  if (u == NULL)
    return;
  while (u->silent != NULL)
    look_again(u, u->silent, true);
  (void)close(u->epoll_fd);
  free(u);
}
