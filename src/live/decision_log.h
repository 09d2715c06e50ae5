// SPDX-License-Identifier: Apache-2.0
/// @file
/// The decision log (CONTRACT §10): one JSON line for every lease decision and every expiry, on standard output. The
/// lines go through a bounded buffer to a thread of their own, so that a slow reader never holds up a worker; what does
/// not fit is counted, and the count is written as a line once there is room again.
#ifndef SH_LIVE_DECISION_LOG_H
#define SH_LIVE_DECISION_LOG_H

#include <stdint.h>

#include "base/buf.h"
#include "store/op.h"
#include "store/written.h"

enum decision_log_level { DECISION_LOG_OFF, DECISION_LOG_TRANSITIONS, DECISION_LOG_ALL };

struct decision_log;

/// Starts the thread that writes to @a fd. @a instance names this process in each line. @return NULL on failure
struct decision_log *decision_log_start(int fd, enum decision_log_level level, const char *instance);

/// Lines that are put together by one thread and then queued in one go. Zero-initialise.
struct decision_lines {
  struct buf text;
  unsigned n;
  int64_t now_us; ///< of the database, as of the first line
};

/// Adds the line of a decided (or undecided) op, unless the level leaves it out.
void decision_lines_op(const struct decision_log *log, struct decision_lines *lines, const struct op *op);

/// Adds the line of an expiry, decision "expired".
void decision_lines_expiry(const struct decision_log *log, struct decision_lines *lines, const struct expiry *expiry);

/// What was decided about a membership: a line for itself, and one for each lease that ended with it. And what was
/// recorded in attendance.
struct membership_line {
  const char *what;     ///< "membership", "revocation" for a lease that ended with it, or "attendance"
  struct lease_key key; ///< session_id is NULL in a membership's own
  const char *event_id; ///< may be NULL
  int64_t revision;     ///< of the ended lease; 0: none
  const char *decision, *request_id;
  const char *by; ///< the credential's name; NULL: none
};

/// Adds it, whatever the level but off.
void decision_lines_membership(const struct decision_log *log, struct decision_lines *lines,
                               const struct membership_line *line);

/// Queues the lines, or counts them as dropped; @a lines is empty afterwards. Never blocks. Any thread.
void decision_log_write(struct decision_log *log, struct decision_lines *lines);

/// Writes what is left, for at most @a grace_ms, joins and frees.
void decision_log_stop(struct decision_log *log, int grace_ms);

#endif
