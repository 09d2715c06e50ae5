// SPDX-License-Identifier: Apache-2.0
/// @file
/// The counters behind /metrics (CONTRACT §10 fixes their names). Relaxed atomics, any thread.
#ifndef SH_BASE_METRIC_H
#define SH_BASE_METRIC_H

#include <stdint.h>

#include "base/buf.h"

/// One entry is one time series. The table in metric.c gives each its name, labels, type and help.
enum metric {
  METRIC_HEARTBEAT_ACCEPTED,
  METRIC_HEARTBEAT_ALREADY_APPLIED,
  METRIC_HEARTBEAT_IGNORED_OLD_REVISION,
  METRIC_HEARTBEAT_SESSION_CLOSED,
  METRIC_HEARTBEAT_MEMBERSHIP_REVOKED,
  METRIC_HEARTBEAT_NOT_A_MEMBER,
  METRIC_HEARTBEAT_TOO_SOON,
  METRIC_HEARTBEAT_TOO_MANY_LEASES,
  METRIC_HEARTBEAT_UNAVAILABLE,
  METRIC_EVENT_LEASE_GRANTED,
  METRIC_EVENT_LEASE_RENEWED,
  METRIC_EVENT_LEASE_EXPIRED,
  METRIC_EVENT_SESSION_CLOSED,
  METRIC_EVENT_MEMBERSHIP_REVOKED,
  METRIC_EVENT_USER_ONLINE,
  METRIC_EVENT_USER_OFFLINE,
  METRIC_LONGPOLL_WAITING,     ///< gauge
  METRIC_LONGPOLL_MAX_WAITING, ///< gauge
  METRIC_STREAMS,              ///< gauge
  METRIC_STREAMS_CUT,          ///< streams whose clients did not read
  METRIC_WAKES,                ///< one for each room wake of a worker
  METRIC_WAKES_FOLDED,         ///< held back until the end of a window
  METRIC_REPLY_EVENTS,
  METRIC_REPLY_UNCHANGED,
  METRIC_REPLY_NOT_MODIFIED,
  METRIC_REPLY_SNAPSHOT_REQUESTED,
  METRIC_REPLY_SNAPSHOT_PRUNED,
  METRIC_REPLY_SNAPSHOT_TOO_MANY,
  METRIC_REPLY_SNAPSHOT_AHEAD,
  METRIC_REPLY_SNAPSHOT_EPOCH,
  METRIC_NOTIFICATIONS,         ///< received from PostgreSQL
  METRIC_CURSORS,               ///< gauge
  METRIC_CURSOR_POSTED,         ///< packets taken from clients
  METRIC_CURSOR_HEARD,          ///< packets taken from other instances
  METRIC_CURSOR_SENT,           ///< packets sent to other instances
  METRIC_DATABASE_UP,           ///< gauge, 0 or 1
  METRIC_CONNECTIONS,           ///< gauge
  METRIC_MAX_CONNECTIONS,       ///< gauge
  METRIC_HTTP_REQUESTS,         ///< all requests answered
  METRIC_HTTP_5XX,              ///< of those, with a status of 500 and more
  METRIC_DECISION_LOG_DROPPED,  ///< lines that could not be kept
  METRIC_OUTAGE_CREDIT_MS,      ///< length of outages that this instance was the first to find, milliseconds
  METRIC_TRANSACTION_RETRIES,   ///< deadlock or serialization failure, tried again
  METRIC_BATCHES,               ///< writer transactions committed
  METRIC_LAST_SEEN_FLUSHES,     ///< transactions of the last-seen writer committed: one statement for each table
  METRIC_LAST_SEEN_FAILURES,    ///< and those that came to nothing
  METRIC_LAST_SEEN_OVERFLOW,    ///< heartbeats that its memory had no room for
  METRIC_LIMITED_ADDRESS,       ///< what was refused by a limit: by address_rate,
  METRIC_LIMITED_CREDENTIAL,    ///< by credential_rate,
  METRIC_LIMITED_RENEWAL,       ///< by renew_interval_min_ms,
  METRIC_LIMITED_USER_LEASES,   ///< by max_leases_per_user,
  METRIC_LIMITED_ROOM_LEASES,   ///< by max_leases_per_room,
  METRIC_LIMITED_WAITING,       ///< by longpoll_max_per_credential,
  METRIC_LIMITED_ALL_WAITING,   ///< by longpoll_max_waiting,
  METRIC_LIMITED_HEADER,        ///< by max_header_bytes,
  METRIC_LIMITED_BATCH,         ///< by max_batch_leases,
  METRIC_LIMITED_BODY,          ///< by max_body_bytes,
  METRIC_LIMITED_CONNECTIONS,   ///< by max_connections,
  METRIC_LIMITED_PER_IP,        ///< by max_connections_per_ip
  METRIC_REFUSED_NO_CREDENTIAL, ///< answers 401, 403 and 429 by their codes
  METRIC_REFUSED_BAD_CREDENTIAL,
  METRIC_REFUSED_TOKEN_EXPIRED,
  METRIC_REFUSED_MISSING_SCOPE,
  METRIC_REFUSED_OUTSIDE_ROOMS,
  METRIC_REFUSED_NOT_YOUR_USER,
  METRIC_REFUSED_NOT_YOUR_SESSION,
  METRIC_REFUSED_MEMBERSHIP_REVOKED,
  METRIC_REFUSED_NOT_A_MEMBER,
  METRIC_REFUSED_TOO_MANY_REQUESTS,
  METRIC_REFUSED_TOO_SOON,
  METRIC_REFUSED_TOO_MANY_LEASES,
  METRIC_REFUSED_TOO_MANY_WAITING,
  METRIC_REFUSED_OTHER,
  METRIC_WEBHOOK_OK, ///< attempts to deliver a message, by what came of them
  METRIC_WEBHOOK_RETRY,
  METRIC_WEBHOOK_DEAD,
  METRIC_WEBHOOK_EVENTS,      ///< events delivered
  METRIC_WEBHOOK_BACKLOG,     ///< gauge: events not delivered yet, of all instances
  METRIC_WEBHOOK_OLDEST,      ///< gauge: how old the oldest of them is, seconds
  METRIC_WEBHOOK_DEAD_EVENTS, ///< gauge: events that were given up
  METRIC_WEBHOOK_IN_FLIGHT,   ///< gauge
  METRIC_COUNT
};

void metric_add(enum metric m, int64_t n);
void metric_set(enum metric m, int64_t value);
int64_t metric_get(enum metric m);

/// Records one expiry's lateness, milliseconds, into the histogram stillhere_expiry_lateness_seconds.
void metric_expiry_lateness(int64_t overdue_ms);

/// Records how long the oldest heartbeat of a committed batch had waited, microseconds, into the histogram
/// stillhere_batch_wait_seconds.
void metric_batch_wait(int64_t waited_us);

/// Sets the gauge stillhere_last_seen_lag_seconds, milliseconds: how old the oldest time is that was not written yet.
void metric_last_seen_lag(int64_t lag_ms);

/// Sets the gauge stillhere_load_factor, in thousandths.
void metric_load_factor(int64_t thousandths);

/// Sets the gauge stillhere_notification_queue_usage: how full PostgreSQL's queue of notifications is, in billionths.
void metric_notification_queue(int64_t billionths);

/// Appends everything in Prometheus text format 0.0.4.
void metric_render(struct buf *b);

#endif
