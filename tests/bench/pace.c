// SPDX-License-Identifier: Apache-2.0
// Requests at a given rate, whatever the replies do: how long each took, counted from the moment it was due, so that a
// server that stands still is charged for what had to wait meanwhile.
//
//   pace HOST:PORT REQUESTS CONNECTIONS RATE SECONDS
//
// The gaps are random (a Poisson process), as those of clients that know nothing of each other are. Prints one line of
// JSON when it is done; SIGTERM ends it early. wrk sends the next request when the last was answered, and so cannot
// measure this.
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

#include "wire.h"

#define EVENTS 256
/// How long after the last request replies are still waited for.
#define DRAIN_NS INT64_C(10000000000)

struct connection {
  int fd;
  bool busy;
  int64_t due; ///< of the request that is under way
  struct wire_reply reply;
};

struct pace {
  struct wire_requests requests;
  struct connection *all;
  size_t *idle, n_idle; ///< a stack of indices
  int epoll_fd;
  int64_t *due; ///< when each request is due, as a list that was made before
  size_t n_due, next, done, errors, behind_max;
  uint32_t *took_us;
  uint64_t bytes;
};

static volatile sig_atomic_t stopping;

static void on_term(int signal) {
  (void)signal;
  stopping = 1;
}

static double uniform(void) {
  return (double)random() / ((double)RAND_MAX + 1.0);
}

static void plan(struct pace *p, double rate, double seconds) {
  size_t room = (size_t)(rate * seconds * 1.2) + 100;
  p->due = wire_alloc(room, sizeof *p->due);
  p->took_us = wire_alloc(room, sizeof *p->took_us);
  for (double at = -log(1.0 - uniform()) / rate; at < seconds && p->n_due < room; at += -log(1.0 - uniform()) / rate) {
    p->due[p->n_due++] = (int64_t)(at * 1e9);
  }
}

static void open_all(struct pace *p, const struct sockaddr_in *to, size_t n) {
  p->all = wire_alloc(n, sizeof *p->all);
  p->idle = wire_alloc(n, sizeof *p->idle);
  p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (p->epoll_fd < 0) {
    wire_die("epoll_create1");
  }
  for (size_t i = 0; i < n; i++) {
    p->all[i].fd = wire_connect(to, 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = i};
    if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, p->all[i].fd, &event) != 0) {
      wire_die("epoll_ctl");
    }
    p->idle[p->n_idle++] = i;
  }
}

/// Sends what is due, as far as there are idle connections. What finds none waits, and its time runs on.
static void send_due(struct pace *p, int64_t began, int64_t now) {
  while (p->next < p->n_due && began + p->due[p->next] <= now && p->n_idle > 0) {
    struct connection *c = &p->all[p->idle[--p->n_idle]];
    c->busy = true;
    c->due = began + p->due[p->next++];
    if (!wire_send(c->fd, p->requests.list[(size_t)random() % p->requests.n])) {
      p->errors++;
      p->took_us[p->done++] = UINT32_MAX;
      c->busy = false; // and is not used again
    }
  }
  size_t behind = 0;
  while (p->next + behind < p->n_due && began + p->due[p->next + behind] <= now && behind <= p->behind_max) {
    behind++;
  }
  if (behind > p->behind_max) {
    p->behind_max = behind;
  }
}

static void take(struct pace *p, size_t i) {
  struct connection *c = &p->all[i];
  enum wire_result result = wire_receive(c->fd, &c->reply, &p->bytes);
  if (result == WIRE_MORE) {
    return;
  }
  if (result == WIRE_GONE) {
    (void)epoll_ctl(p->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
  } else {
    p->idle[p->n_idle++] = i;
  }
  if (!c->busy) {
    return;
  }
  c->busy = false;
  int64_t us = (wire_now() - c->due) / 1000;
  p->took_us[p->done++] = us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
  if (result == WIRE_GONE || c->reply.status >= 400 || c->reply.status < 200) {
    p->errors++;
  }
}

static void run(struct pace *p, double seconds) {
  struct epoll_event events[EVENTS];
  int64_t began = wire_now(), end = began + (int64_t)(seconds * 1e9) + DRAIN_NS, now;
  while (p->done < p->n_due && (now = wire_now()) < end) {
    if (stopping && p->n_due > p->next) {
      p->n_due = p->next;
      end = now + DRAIN_NS;
      continue;
    }
    send_due(p, began, now);
    int64_t until = end;
    if (p->next < p->n_due && p->n_idle > 0) {
      until = began + p->due[p->next];
    }
    int64_t wait = until > now ? until - now : 0;
    struct timespec t = {.tv_sec = wait / 1000000000, .tv_nsec = wait % 1000000000};
    struct pollfd readable = {.fd = p->epoll_fd, .events = POLLIN};
    if (ppoll(&readable, 1, &t, NULL) != 1) {
      continue;
    }
    int n = epoll_wait(p->epoll_fd, events, EVENTS, 0);
    for (int i = 0; i < n; i++) {
      take(p, events[i].data.u64);
    }
  }
}

static int by_size(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

static double ms(const struct pace *p, double part) {
  if (p->done == 0) {
    return 0;
  }
  size_t i = (size_t)(part * (double)p->done);
  return p->took_us[i < p->done ? i : p->done - 1] / 1000.0;
}

int main(int argc, char **argv) {
  if (argc != 6) {
    (void)fprintf(stderr, "usage: pace HOST:PORT REQUESTS CONNECTIONS RATE SECONDS\n");
    return 2;
  }
  static struct pace p;
  struct sockaddr_in to;
  wire_raise_limits();
  wire_address(&to, argv[1]);
  wire_load(&p.requests, argv[2]);
  double rate = (double)wire_number(argv[4], 1, 10000000), seconds = (double)wire_number(argv[5], 1, 100000);
  srandom((unsigned)wire_now());
  struct sigaction action = {.sa_handler = on_term};
  if (sigaction(SIGTERM, &action, NULL) != 0) {
    wire_die("sigaction");
  }
  plan(&p, rate, seconds);
  open_all(&p, &to, (size_t)wire_number(argv[3], 1, 100000));
  run(&p, seconds);
  qsort(p.took_us, p.done, sizeof *p.took_us, by_size);
  printf("{\"due\":%zu,\"done\":%zu,\"errors\":%zu,\"behind_max\":%zu,\"p50_ms\":%.3f,\"p90_ms\":%.3f,\"p99_ms\":%.3f,"
         "\"p999_ms\":%.3f,\"max_ms\":%.3f}\n",
         p.n_due, p.done, p.errors, p.behind_max, ms(&p, 0.5), ms(&p, 0.9), ms(&p, 0.99), ms(&p, 0.999), ms(&p, 1));
  return 0;
}
