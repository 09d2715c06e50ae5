// SPDX-License-Identifier: Apache-2.0
#include "http/request_read.h"

#include "http/worker.h"

static void deliver(struct mail *mail) {
  struct request_read *read = CONTAINER_OF(mail, struct request_read, job.mail);
  read->done = true;
  if (read->request)
    request_wake(read->request, WAKE_DONE);
  else
    read->free(read);
}

bool request_read_submit(struct request_read *read, struct request *r, int64_t deadline_us) {
  read->request = r;
  read->done = false;
  read->job.mail.deliver = deliver;
  read->job.reply_to = &r->worker->mailbox;
  read->job.deadline_us = deadline_us;
  if (reader_submit(read->pool ? read->pool : r->worker->service->readers, &read->job))
    return true;
  read->free(read);
  return false;
}

void request_read_drop(struct request_read *read) {
  if (!read)
    return;
  if (read->done)
    read->free(read);
  else
    read->request = NULL;
}
