// SPDX-License-Identifier: Apache-2.0
/// @file
/// The deliverer of webhooks: a thread that claims what is due every 250 ms, and sooner while there is more than it
/// could take, sends it over libcurl's multi interface and writes down what became of it. At least once, in order
/// within a room and target, with the same id and bytes each time, signed as the Standard Webhooks specification says.
/// Any instance may deliver what another has written.
#ifndef SH_LIVE_WEBHOOK_H
#define SH_LIVE_WEBHOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "db/db.h"
#include "store/webhook_targets.h"

struct webhook;

struct webhook_options {
  const struct db_options *db; ///< outlives it
  bool allow_private;          ///< addresses that are not of the public internet may be reached too
  int64_t give_up_ms;
};

/// Starts the thread; it looks at the current targets (store/webhook_targets.h) and is idle while there are none.
/// curl_global_init() was called before. @return NULL when that fails
struct webhook *webhook_start(const struct webhook_options *options);

/// Begins the end: no more is claimed, what is in flight has @a grace_ms to be answered, and the rest is given back for
/// others to send at once. Does not wait. Main thread, once.
void webhook_close(struct webhook *w, int grace_ms);

/// Waits for that end, or makes it at once when there was no webhook_close(), and frees. Main thread. NULL is fine.
void webhook_stop(struct webhook *w);

/// The webhook-id. Of one event: its id, in which all but A-Z a-z 0-9 - _ : is percent-encoded. Of several: that of the
/// first, and a hash of the body, so that what has other neighbours has another id. Pure. Memory that ran out is noted
/// in @a out.
void webhook_id(struct buf *out, const char *first_id, int n_events, const struct buf *body);

/// The webhook-signature: `v1,` and base64 of HMAC-SHA256 over `id.timestamp.body`, for each secret, separated by a
/// blank. Pure. Memory that ran out is noted in @a out.
void webhook_sign(struct buf *out, const struct webhook_target *target, const char *id, int64_t timestamp_s,
                  const struct buf *body);

/// What a reply's status means.
enum webhook_verdict { WEBHOOK_OK, WEBHOOK_AGAIN, WEBHOOK_REFUSED };
enum webhook_verdict webhook_judge(long status);

/// The pause after the failed attempt number @a attempts (from 0): 1 s doubling up to an hour, of which a random half
/// is taken off; not less than @a retry_after_s, which counts up to an hour.
int64_t webhook_pause_ms(int attempts, int64_t retry_after_s);

#endif
