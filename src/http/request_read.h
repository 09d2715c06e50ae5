// SPDX-License-Identifier: Apache-2.0
/// @file
/// A query in the reader pool for one parked request. Either may end first: a request that is answered meanwhile drops
/// its read, which then frees itself when it comes back. Worker's thread, but for job.run.
#ifndef SH_HTTP_REQUEST_READ_H
#define SH_HTTP_REQUEST_READ_H

#include "http/request.h"
#include "live/reader.h"

/// Part of the read's own struct, which has copies of all that it needs.
struct request_read {
  struct read_job job;      ///< the maker sets job.run, nothing else
  struct reader_pool *pool; ///< which one; NULL: the readers
  struct request *request;  ///< NULL: dropped
  bool done;                ///< it came back; job.status says how
  void (*free)(struct request_read *read);
};

/// Hands @a read to the pool; the request is woken with WAKE_DONE when it is done. @return false when the pool takes no
/// more; the read has been freed then
bool request_read_submit(struct request_read *read, struct request *r, int64_t deadline_us);

/// The request needs the read no more: frees it, now or when it comes back. NULL is fine.
void request_read_drop(struct request_read *read);

#endif
