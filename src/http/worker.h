// SPDX-License-Identifier: Apache-2.0
/// @file
/// An HTTP worker: a thread with its own event loop and its own libmicrohttpd daemon (external polling). It parses,
/// parks, wakes and replies, and alone touches its connections; other threads reach it through its mailbox.
#ifndef SH_HTTP_WORKER_H
#define SH_HTTP_WORKER_H

#include <stdbool.h>
#include <sys/socket.h>

#include "auth/authority.h"
#include "base/mailbox.h"
#include "config/config.h"
#include "live/limits.h"
#include "live/reader.h"
#include "live/tail.h"
#include "live/writer.h"

/// What the handlers of all workers share. Made by main before the threads start; outlives them.
struct service {
  const struct config *config;
  unsigned n_watched; ///< workers over which those who watch are spread
  struct tail *tail;
  struct cursors *cursors;
  struct writer *writer;
  struct reader_pool *readers;
  struct reader_pool *changers;   ///< likewise for changes of members and attendance
  struct decision_log *decisions; ///< for those
  struct lifecycle *lifecycle;    ///< http/lifecycle.h
  struct authority *authority;    ///< asked only where auth is not none
  struct limits *limits;
  struct load *load;
  struct tls *tls;      ///< NULL: plain
  const char *instance; ///< names this process: host, pid and a random part
};

struct worker {
  unsigned id;
  const struct service *service;
  struct mailbox mailbox;
  struct write_outbox outbox; ///< its thread's; sent at the end of each turn of the loop
  struct worker_loop *loop;   ///< private to worker.c
};

/// @return NULL when a resource is missing (logged)
struct worker *worker_start(unsigned id, const struct service *service);

/// Hands over an accepted, non-blocking connection. Any thread. The worker closes it in the end.
void worker_adopt(struct worker *worker, int fd, const struct sockaddr *addr, socklen_t len);

/// Forgets a connection that was counted and is closed without having been handed over. Any thread.
void worker_lost(struct worker *worker, const struct sockaddr *addr);

/// Wakes everything that is parked (WAKE_DRAINING) and refuses to park from then on. Any thread.
void worker_drain(struct worker *worker);

/// Has it look over its parked requests and expel those whose callers may not wait any longer: their key has gone with
/// a reload. Any thread, as often as it likes.
void worker_look_over(struct worker *worker);

/// Waits until nothing is in flight, or @a deadline_us; then closes all connections and ends the thread. The mailbox
/// still takes mail. Whoever has jobs of its requests (writer, readers) must have given them back before.
void worker_stop(struct worker *worker, int64_t deadline_us);

/// Frees a stopped worker, once nobody posts to its mailbox any more. NULL is fine.
void worker_free(struct worker *worker);

#endif
