// SPDX-License-Identifier: Apache-2.0
/// @file
/// A request that is answered with what a job in one of the pools found or did: changes of members and attendance, and
/// reads whose answer is more than JSON and 200. Worker's thread, but for `run`.
#ifndef SH_HTTP_CHANGE_H
#define SH_HTTP_CHANGE_H

#include "base/util.h"
#include "http/request_read.h"
#include "http/worker.h"

/// Part of the handler's own struct, which is zero-initialised.
struct change {
  struct request_read read;
  const struct service *service;
  char request_id[REQUEST_ID_MAX + 1];
  char by[2 * IDENT_MAX + 1]; ///< the credential's name, cut if need be; empty: none
  int64_t hold_us;            ///< the answer waits so long after the job is done
  bool in_doubt;              ///< set by `run` with a DB_FAILED: it may have been done all the same
  int64_t answer_us;          ///< until then, monotonic

  /// Does it, in a thread of the pool, perhaps more than once: again when the database was lost or a lock was in the
  /// way. A result that is no DB_OK is answered 503.
  enum db_status (*run)(struct db *db, struct change *c);
  void (*answer)(struct request *r, struct change *c);
  void (*free)(struct change *c);
};

/// Fills in what is the same for all, submits the job to @a pool, parks the request and answers it in the end. Takes
/// over @a c; NULL (memory ran out) is answered 503. @return what the handler returns
enum request_verdict change_start(struct change *c, struct request *r, struct reader_pool *pool);

/// Writes the members `server_time` and `request_id`, and closes the object.
void change_end_json(struct buf *out, const struct change *c);

/// The name of the credential, or NULL.
const char *change_by(const struct change *c);

#endif
