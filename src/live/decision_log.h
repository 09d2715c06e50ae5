// SPDX-License-Identifier: Apache-2.0
/// @file
/// The decision log (CONTRACT §10): one JSON line for every lease decision and every expiry, on standard output. The
/// lines go through a bounded buffer to a thread of their own, so that a slow reader never holds up a worker; what does
/// not fit is counted, and the count is written as a line once there is room again.
#ifndef SH_LIVE_DECISION_LOG_H
#define SH_LIVE_DECISION_LOG_H

#include <stdint.h>

#include "store/op.h"

enum decision_log_level { DECISION_LOG_OFF, DECISION_LOG_TRANSITIONS, DECISION_LOG_ALL };

struct decision_log;

/// Starts the thread that writes to @a fd. @a instance names this process in each line. @return NULL on failure
struct decision_log *decision_log_start(int fd, enum decision_log_level level, const char *instance);

/// A decided (or undecided) op. Never blocks. Any thread.
void decision_log_op(struct decision_log *log, const struct op *op);

/// An expiry, decision "expired". Never blocks. Any thread.
void decision_log_expiry(struct decision_log *log, const struct lease_key *key, int64_t revision, const char *event_id,
                         const char *request_id, int64_t overdue_ms);

/// Writes what is left, for at most @a grace_ms, joins and frees.
void decision_log_stop(struct decision_log *log, int grace_ms);

#endif
