// SPDX-License-Identifier: Apache-2.0
/// @file
/// How one thread hands finished work to another: a list under a lock, and an eventfd that an event loop can wait on.
/// Many may post, one owner takes.
#ifndef SH_BASE_MAILBOX_H
#define SH_BASE_MAILBOX_H

#include <pthread.h>
#include <stdbool.h>

/// A piece of mail, part of the thing that is handed over.
struct mail {
  struct mail *next;
  /// Called in the owner's thread by mailbox_deliver(); may free the mail.
  void (*deliver)(struct mail *mail);
};

struct mailbox {
  pthread_mutex_t lock; ///< a leaf: nothing else is locked while it is held
  struct mail *first, **last;
  bool rung; ///< the eventfd has been written and not yet read, so that a burst costs one write
  int fd;    ///< becomes readable when there is mail; the owner puts it into its epoll
};

/// @return false (errno set) when there is no descriptor to be had
bool mailbox_init(struct mailbox *box);

/// Releases the descriptor; mail that is still inside is not delivered.
void mailbox_destroy(struct mailbox *box);

/// Adds one mail (or a chain of them, joined by `next`, ending in NULL) and wakes the owner. Order is kept. Any thread.
void mailbox_post(struct mailbox *box, struct mail *mail);

/// Takes all mail that is there and calls `deliver` on each, in order. Owner's thread.
/// @return how many
unsigned mailbox_deliver(struct mailbox *box);

/// Wakes the owner without mail. Any thread, also from a signal handler.
void mailbox_ring(struct mailbox *box);

#endif
