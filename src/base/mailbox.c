// SPDX-License-Identifier: Apache-2.0
#include "base/mailbox.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

bool mailbox_init(struct mailbox *box) {
  *box = (struct mailbox){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (box->fd < 0)
    return false;
  int error = pthread_mutex_init(&box->lock, NULL);
  if (error != 0) {
    (void)close(box->fd);
    errno = error;
    return false;
  }
  box->last = &box->first;
  return true;
}

void mailbox_destroy(struct mailbox *box) {
  (void)close(box->fd);
  (void)pthread_mutex_destroy(&box->lock);
}

void mailbox_ring(struct mailbox *box) {
  int saved = errno; // a signal handler must leave it alone
  uint64_t one = 1;
  // EAGAIN means that the counter is full, and then it is readable anyway.
  while (write(box->fd, &one, sizeof one) < 0 && errno == EINTR)
    continue;
  errno = saved;
}

void mailbox_post(struct mailbox *box, struct mail *mail) {
  if (mail == NULL)
    return;
  struct mail *last = mail;
  while (last->next != NULL)
    last = last->next;
  pthread_mutex_lock(&box->lock);
  *box->last = mail;
  box->last = &last->next;
  // Rung under the lock: an owner who has taken the mail may close the box, and nobody must write to it after that.
  if (!box->rung) {
    box->rung = true;
    mailbox_ring(box);
  }
  pthread_mutex_unlock(&box->lock);
}

unsigned mailbox_deliver(struct mailbox *box) {
  uint64_t count;
  // Emptied before the list is taken, so that mail which comes in between rings again or is taken now.
  while (read(box->fd, &count, sizeof count) < 0 && errno == EINTR)
    continue;
  pthread_mutex_lock(&box->lock);
  struct mail *mail = box->first;
  box->first = NULL;
  box->last = &box->first;
  box->rung = false;
  pthread_mutex_unlock(&box->lock);

  unsigned delivered = 0;
  while (mail != NULL) {
    struct mail *next = mail->next;
    mail->next = NULL;
    mail->deliver(mail);
    mail = next;
    delivered++;
  }
  return delivered;
}
