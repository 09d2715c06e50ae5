// SPDX-License-Identifier: Apache-2.0
// Holds many waiting polls, and times the replies to one event.
//
//   park HOST:PORT POLL CONNECTIONS TRIGGER
//
// POLL and TRIGGER are files of requests (wire.h). The connections share the polls out between them; each sends its own
// again after a reply that was not asked for, such as the end of its wait. Commands on standard input, one a line, one
// line of JSON each:
//   count   how many stand, and what has come so far
//   fire    sends TRIGGER on a connection of its own; the time from then to the last reply. Once.
//   quit
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "wire.h"

#define EVENTS 1024
#define PER_SOURCE 5000
#define FIRE_NS INT64_C(30000000000)
/// Connections that are opened before the replies are looked at again.
#define OPEN_STEP 100

struct connection {
  int fd;
  struct wire_bytes poll;
  bool standing, answered;
  struct wire_reply reply;
};

struct park {
  struct wire_requests polls, triggers;
  struct sockaddr_in to;
  struct connection *all, trigger;
  size_t n, standing, again, lost, unfit, answered;
  int epoll_fd;
  int64_t began, first, last, committed; ///< of the event; 0: not yet
  bool firing;
  uint64_t bytes;
};

static void leave(struct park *p, struct connection *c) {
  (void)epoll_ctl(p->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
  wire_close(c->fd);
  c->standing = false;
  p->standing--;
  p->lost++;
}

static void take_poll(struct park *p, struct connection *c) {
  enum wire_result result = wire_receive(c->fd, &c->reply, &p->bytes);
  if (result == WIRE_MORE) {
    return;
  }
  if (result == WIRE_GONE) {
    leave(p, c);
    return;
  }
  if (c->reply.status != 200) {
    p->unfit++;
  }
  if (p->firing && !c->answered) {
    int64_t now = wire_now();
    c->answered = true;
    p->first = p->first > 0 ? p->first : now;
    p->last = now;
    p->answered++;
  } else if (!p->firing) {
    p->again++;
    if (!wire_send(c->fd, c->poll)) {
      leave(p, c);
    }
  }
}

static void take_trigger(struct park *p) {
  enum wire_result result = wire_receive(p->trigger.fd, &p->trigger.reply, &p->bytes);
  if (result == WIRE_MORE) {
    return;
  }
  int status = p->trigger.reply.status;
  if (result == WIRE_GONE || status < 200 || status > 299) {
    errno = EPROTO;
    wire_die("the event was refused");
  }
  p->committed = wire_now();
}

static void look(struct park *p, int wait_ms) {
  struct epoll_event events[EVENTS];
  int n = epoll_wait(p->epoll_fd, events, EVENTS, wait_ms);
  for (int i = 0; i < n; i++) {
    if (events[i].data.ptr == &p->trigger) {
      take_trigger(p);
    } else {
      take_poll(p, events[i].data.ptr);
    }
  }
}

static void watch(struct park *p, struct connection *c) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, c->fd, &event) != 0) {
    wire_die("epoll_ctl");
  }
}

static void open_all(struct park *p) {
  for (size_t i = 0; i < p->n; i++) {
    struct connection *c = &p->all[i];
    c->fd = wire_connect(&p->to, 1 + (unsigned)(i / PER_SOURCE));
    c->poll = p->polls.list[i % p->polls.n];
    c->standing = true;
    p->standing++;
    watch(p, c);
    if (!wire_send(c->fd, c->poll)) {
      leave(p, c);
    }
    if (i % OPEN_STEP == 0) {
      look(p, 0);
    }
  }
  p->trigger.fd = wire_connect(&p->to, 0);
  watch(p, &p->trigger);
}

static double since(const struct park *p, int64_t when) {
  return when > 0 ? (double)(when - p->began) / 1e6 : -1;
}

static void fire(struct park *p) {
  p->firing = true;
  p->answered = 0;
  p->first = p->last = p->committed = 0;
  for (size_t i = 0; i < p->n; i++) {
    p->all[i].answered = false;
  }
  size_t expected = p->standing, lost = p->lost;
  p->began = wire_now();
  if (!wire_send(p->trigger.fd, p->triggers.list[0])) {
    wire_die("the event's connection");
  }
  while ((p->answered + p->lost - lost < expected || p->committed == 0) && wire_now() < p->began + FIRE_NS) {
    look(p, 100);
  }
  printf("{\"expected\":%zu,\"answered\":%zu,\"unfit\":%zu,\"lost\":%zu,\"bytes\":%llu,\"trigger_ms\":%.3f,"
         "\"first_ms\":%.3f,\"last_ms\":%.3f}\n",
         expected, p->answered, p->unfit, p->lost, (unsigned long long)p->bytes, since(p, p->committed),
         since(p, p->first), since(p, p->last));
}

/// @return false when it is time to go
static bool obey(struct park *p, const char *line) {
  if (strcmp(line, "count\n") == 0) {
    printf("{\"standing\":%zu,\"again\":%zu,\"unfit\":%zu,\"lost\":%zu}\n", p->standing, p->again, p->unfit, p->lost);
  } else if (strcmp(line, "fire\n") == 0) {
    fire(p);
  } else {
    return false;
  }
  return fflush(stdout) == 0;
}

int main(int argc, char **argv) {
  if (argc != 5) {
    (void)fprintf(stderr, "usage: park HOST:PORT POLL CONNECTIONS TRIGGER\n");
    return 2;
  }
  struct park p = {.n = (size_t)wire_number(argv[3], 1, 1000000), .epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
  wire_raise_limits();
  wire_address(&p.to, argv[1]);
  wire_load(&p.polls, argv[2]);
  wire_load(&p.triggers, argv[4]);
  if (p.epoll_fd < 0) {
    wire_die("epoll_create1");
  }
  p.all = wire_alloc(p.n, sizeof *p.all);
  open_all(&p);
  char line[64];
  bool on = obey(&p, "count\n");
  while (on) {
    // One command is answered before the next is sent, so none waits in the stream's buffer.
    struct pollfd ready[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = p.epoll_fd, .events = POLLIN}};
    if (poll(ready, 2, -1) < 0 && errno != EINTR) {
      wire_die("poll");
    }
    look(&p, 0);
    if (ready[0].revents != 0) {
      on = fgets(line, sizeof line, stdin) != NULL && obey(&p, line);
    }
  }
  return 0;
}
