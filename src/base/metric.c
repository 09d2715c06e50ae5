// SPDX-License-Identifier: Apache-2.0
#include "base/metric.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "base/histogram.h"
#include "base/process_metric.h"
#include "base/util.h"

static _Atomic int64_t values[METRIC_COUNT];

/// Series of one family are neighbours in the enum, so that the family's head is written once.
static const struct {
  const char *family;
  const char *type;
  const char *help; // said by the family's first series
  const char *labels;
} series[METRIC_COUNT] = {
    [METRIC_HEARTBEAT_ACCEPTED] = {"stillhere_heartbeats_total", "counter", "Heartbeats by decision.",
                                   "decision=\"accepted\""},
    [METRIC_HEARTBEAT_ALREADY_APPLIED] = {"stillhere_heartbeats_total", "counter", NULL,
                                          "decision=\"already_applied\""},
    [METRIC_HEARTBEAT_IGNORED_OLD_REVISION] = {"stillhere_heartbeats_total", "counter", NULL,
                                               "decision=\"ignored_old_revision\""},
    [METRIC_HEARTBEAT_SESSION_CLOSED] = {"stillhere_heartbeats_total", "counter", NULL, "decision=\"session_closed\""},
    [METRIC_HEARTBEAT_MEMBERSHIP_REVOKED] = {"stillhere_heartbeats_total", "counter", NULL,
                                             "decision=\"membership_revoked\""},
    [METRIC_HEARTBEAT_NOT_A_MEMBER] = {"stillhere_heartbeats_total", "counter", NULL, "decision=\"not_a_member\""},
    [METRIC_HEARTBEAT_TOO_SOON] = {"stillhere_heartbeats_total", "counter", NULL, "decision=\"too_soon\""},
    [METRIC_HEARTBEAT_TOO_MANY_LEASES] = {"stillhere_heartbeats_total", "counter", NULL,
                                          "decision=\"too_many_leases\""},
    [METRIC_HEARTBEAT_UNAVAILABLE] = {"stillhere_heartbeats_total", "counter", NULL, "decision=\"unavailable\""},
    [METRIC_EVENT_LEASE_GRANTED] = {"stillhere_events_total", "counter", "Events written by this instance, by kind.",
                                    "kind=\"lease.granted\""},
    [METRIC_EVENT_LEASE_RENEWED] = {"stillhere_events_total", "counter", NULL, "kind=\"lease.renewed\""},
    [METRIC_EVENT_LEASE_EXPIRED] = {"stillhere_events_total", "counter", NULL, "kind=\"lease.expired\""},
    [METRIC_EVENT_SESSION_CLOSED] = {"stillhere_events_total", "counter", NULL, "kind=\"session.closed\""},
    [METRIC_EVENT_MEMBERSHIP_REVOKED] = {"stillhere_events_total", "counter", NULL, "kind=\"membership.revoked\""},
    [METRIC_EVENT_USER_ONLINE] = {"stillhere_events_total", "counter", NULL, "kind=\"user.online\""},
    [METRIC_EVENT_USER_OFFLINE] = {"stillhere_events_total", "counter", NULL, "kind=\"user.offline\""},
    [METRIC_LONGPOLL_WAITING] = {"stillhere_longpoll_waiting", "gauge", "Polls that wait right now.", NULL},
    [METRIC_LONGPOLL_MAX_WAITING] = {"stillhere_longpoll_max_waiting", "gauge",
                                     "Polls that may wait at the same time, as configured.", NULL},
    [METRIC_STREAMS] = {"stillhere_streams", "gauge", "Open streams of server-sent events.", NULL},
    [METRIC_STREAMS_CUT] = {"stillhere_streams_cut_total", "counter",
                            "Streams that were cut because their clients did not read.", NULL},
    [METRIC_WAKES] = {"stillhere_wakes_total", "counter", "Wakes of a room's watchers, one for each worker.", NULL},
    [METRIC_WAKES_FOLDED] = {"stillhere_folded_wakes_total", "counter",
                             "Wakes and returning polls that were held back until the end of a room's window.", NULL},
    [METRIC_REPLY_EVENTS] = {"stillhere_replies_total", "counter", "Presence replies by mode and reason.",
                             "mode=\"events\",reason=\"\""},
    [METRIC_REPLY_UNCHANGED] = {"stillhere_replies_total", "counter", NULL, "mode=\"unchanged\",reason=\"\""},
    [METRIC_REPLY_NOT_MODIFIED] = {"stillhere_replies_total", "counter", NULL, "mode=\"not_modified\",reason=\"\""},
    [METRIC_REPLY_SNAPSHOT_REQUESTED] = {"stillhere_replies_total", "counter", NULL,
                                         "mode=\"snapshot\",reason=\"requested\""},
    [METRIC_REPLY_SNAPSHOT_PRUNED] = {"stillhere_replies_total", "counter", NULL,
                                      "mode=\"snapshot\",reason=\"pruned\""},
    [METRIC_REPLY_SNAPSHOT_TOO_MANY] = {"stillhere_replies_total", "counter", NULL,
                                        "mode=\"snapshot\",reason=\"too_many\""},
    [METRIC_REPLY_SNAPSHOT_AHEAD] = {"stillhere_replies_total", "counter", NULL, "mode=\"snapshot\",reason=\"ahead\""},
    [METRIC_REPLY_SNAPSHOT_EPOCH] = {"stillhere_replies_total", "counter", NULL, "mode=\"snapshot\",reason=\"epoch\""},
    [METRIC_NOTIFICATIONS] = {"stillhere_notifications_total", "counter", "Notifications received from PostgreSQL.",
                              NULL},
    [METRIC_CURSORS] = {"stillhere_cursors", "gauge", "Cursors in memory.", NULL},
    [METRIC_CURSOR_POSTED] = {"stillhere_cursor_packets_total", "counter",
                              "Packets of cursors: taken from clients, taken from and sent to other instances.",
                              "way=\"posted\""},
    [METRIC_CURSOR_HEARD] = {"stillhere_cursor_packets_total", "counter", NULL, "way=\"heard\""},
    [METRIC_CURSOR_SENT] = {"stillhere_cursor_packets_total", "counter", NULL, "way=\"sent\""},
    [METRIC_DATABASE_UP] = {"stillhere_database_up", "gauge",
                            "Whether the newest attempt to connect to the database succeeded.", NULL},
    [METRIC_CONNECTIONS] = {"stillhere_connections", "gauge", "Open HTTP connections.", NULL},
    [METRIC_MAX_CONNECTIONS] = {"stillhere_max_connections", "gauge",
                                "HTTP connections that may be open at the same time, as configured.", NULL},
    [METRIC_HTTP_REQUESTS] = {"stillhere_http_requests_total", "counter", "HTTP requests answered.", NULL},
    [METRIC_HTTP_5XX] = {"stillhere_http_5xx_total", "counter", "HTTP requests answered with a status of 500 and more.",
                         NULL},
    [METRIC_DECISION_LOG_DROPPED] = {"stillhere_decision_log_dropped_total", "counter",
                                     "Lines of the decision log that could not be kept.", NULL},
    [METRIC_OUTAGE_CREDIT_MS] = {"stillhere_outage_credit_ms_total", "counter",
                                 "Length of the outages that this instance was the first to find.", NULL},
    [METRIC_TRANSACTION_RETRIES] = {"stillhere_transaction_retries_total", "counter",
                                    "Transactions tried again after a deadlock or a serialization failure.", NULL},
    [METRIC_BATCHES] = {"stillhere_batches_total", "counter", "Transactions committed by the writer.", NULL},
    [METRIC_LAST_SEEN_FLUSHES] = {"stillhere_last_seen_flushes_total", "counter",
                                  "Transactions that wrote last-seen times: one statement for each table.", NULL},
    [METRIC_LAST_SEEN_FAILURES] = {"stillhere_last_seen_failures_total", "counter",
                                   "Transactions of last-seen times that failed; they are tried again.", NULL},
    [METRIC_LAST_SEEN_OVERFLOW] = {"stillhere_last_seen_overflow_total", "counter",
                                   "Heartbeats that the last-seen writer had no room for; their leases carry the time.",
                                   NULL},
    [METRIC_LIMITED_ADDRESS] = {"stillhere_limited_total", "counter", "What was refused by a limit, by its key.",
                                "limit=\"address_rate\""},
    [METRIC_LIMITED_CREDENTIAL] = {"stillhere_limited_total", "counter", NULL, "limit=\"credential_rate\""},
    [METRIC_LIMITED_RENEWAL] = {"stillhere_limited_total", "counter", NULL, "limit=\"renew_interval_min_ms\""},
    [METRIC_LIMITED_USER_LEASES] = {"stillhere_limited_total", "counter", NULL, "limit=\"max_leases_per_user\""},
    [METRIC_LIMITED_ROOM_LEASES] = {"stillhere_limited_total", "counter", NULL, "limit=\"max_leases_per_room\""},
    [METRIC_LIMITED_WAITING] = {"stillhere_limited_total", "counter", NULL, "limit=\"longpoll_max_per_credential\""},
    [METRIC_LIMITED_ALL_WAITING] = {"stillhere_limited_total", "counter", NULL, "limit=\"longpoll_max_waiting\""},
    [METRIC_LIMITED_HEADER] = {"stillhere_limited_total", "counter", NULL, "limit=\"max_header_bytes\""},
    [METRIC_LIMITED_BATCH] = {"stillhere_limited_total", "counter", NULL, "limit=\"max_batch_leases\""},
    [METRIC_LIMITED_BODY] = {"stillhere_limited_total", "counter", NULL, "limit=\"max_body_bytes\""},
    [METRIC_LIMITED_CONNECTIONS] = {"stillhere_limited_total", "counter", NULL, "limit=\"max_connections\""},
    [METRIC_LIMITED_PER_IP] = {"stillhere_limited_total", "counter", NULL, "limit=\"max_connections_per_ip\""},
    [METRIC_REFUSED_NO_CREDENTIAL] = {"stillhere_refused_total", "counter",
                                      "Answers 401, 403 and 429, items of batches too, by code.",
                                      "code=\"no_credential\""},
    [METRIC_REFUSED_BAD_CREDENTIAL] = {"stillhere_refused_total", "counter", NULL, "code=\"bad_credential\""},
    [METRIC_REFUSED_TOKEN_EXPIRED] = {"stillhere_refused_total", "counter", NULL, "code=\"token_expired\""},
    [METRIC_REFUSED_MISSING_SCOPE] = {"stillhere_refused_total", "counter", NULL, "code=\"missing_scope\""},
    [METRIC_REFUSED_OUTSIDE_ROOMS] = {"stillhere_refused_total", "counter", NULL, "code=\"outside_rooms\""},
    [METRIC_REFUSED_NOT_YOUR_USER] = {"stillhere_refused_total", "counter", NULL, "code=\"not_your_user\""},
    [METRIC_REFUSED_NOT_YOUR_SESSION] = {"stillhere_refused_total", "counter", NULL, "code=\"not_your_session\""},
    [METRIC_REFUSED_MEMBERSHIP_REVOKED] = {"stillhere_refused_total", "counter", NULL, "code=\"membership_revoked\""},
    [METRIC_REFUSED_NOT_A_MEMBER] = {"stillhere_refused_total", "counter", NULL, "code=\"not_a_member\""},
    [METRIC_REFUSED_TOO_MANY_REQUESTS] = {"stillhere_refused_total", "counter", NULL, "code=\"too_many_requests\""},
    [METRIC_REFUSED_TOO_SOON] = {"stillhere_refused_total", "counter", NULL, "code=\"too_soon\""},
    [METRIC_REFUSED_TOO_MANY_LEASES] = {"stillhere_refused_total", "counter", NULL, "code=\"too_many_leases\""},
    [METRIC_REFUSED_TOO_MANY_WAITING] = {"stillhere_refused_total", "counter", NULL, "code=\"too_many_waiting\""},
    [METRIC_REFUSED_OTHER] = {"stillhere_refused_total", "counter", NULL, "code=\"other\""},
    [METRIC_WEBHOOK_OK] = {"stillhere_webhook_deliveries_total", "counter",
                           "Attempts to deliver a message to a webhook, by what came of them.", "result=\"ok\""},
    [METRIC_WEBHOOK_RETRY] = {"stillhere_webhook_deliveries_total", "counter", NULL, "result=\"retry\""},
    [METRIC_WEBHOOK_DEAD] = {"stillhere_webhook_deliveries_total", "counter", NULL, "result=\"dead\""},
    [METRIC_WEBHOOK_EVENTS] = {"stillhere_webhook_events_delivered_total", "counter", "Events delivered to webhooks.",
                               NULL},
    [METRIC_WEBHOOK_BACKLOG] = {"stillhere_webhook_backlog", "gauge",
                                "Events in the database that webhooks have not been told yet, counted up to 100000.",
                                NULL},
    [METRIC_WEBHOOK_OLDEST] = {"stillhere_webhook_oldest_seconds", "gauge",
                               "How old the oldest event is that a webhook has not been told yet.", NULL},
    [METRIC_WEBHOOK_DEAD_EVENTS] = {"stillhere_webhook_dead", "gauge",
                                    "Events in the database that were given up for a webhook, counted up to 100000.",
                                    NULL},
    [METRIC_WEBHOOK_IN_FLIGHT] = {"stillhere_webhook_in_flight", "gauge",
                                  "Messages that this instance is sending to webhooks.", NULL},
};

static struct histogram lateness = {
    .name = "stillhere_expiry_lateness_seconds",
    .help = "How long after its expiry a lease was ended.",
    .bounds = {{10000, "0.01"},
               {50000, "0.05"},
               {100000, "0.1"},
               {250000, "0.25"},
               {500000, "0.5"},
               {1000000, "1"},
               {2000000, "2"},
               {5000000, "5"},
               {10000000, "10"},
               {60000000, "60"}},
};

static struct histogram batch_wait = {
    .name = "stillhere_batch_wait_seconds",
    .help = "How long the oldest heartbeat of each committed batch had waited for it.",
    .bounds = {{500, "0.0005"},
               {1000, "0.001"},
               {2500, "0.0025"},
               {5000, "0.005"},
               {10000, "0.01"},
               {25000, "0.025"},
               {100000, "0.1"},
               {500000, "0.5"},
               {2000000, "2"},
               {5000000, "5"}},
};

static _Atomic int64_t last_seen_lag_ms;

static _Atomic int64_t load_thousandths = 1000;

static _Atomic int64_t queue_billionths;

void metric_add(enum metric m, int64_t n) {
  atomic_fetch_add_explicit(&values[m], n, memory_order_relaxed);
}

void metric_set(enum metric m, int64_t value) {
  atomic_store_explicit(&values[m], value, memory_order_relaxed);
}

int64_t metric_get(enum metric m) {
  return atomic_load_explicit(&values[m], memory_order_relaxed);
}

void metric_expiry_lateness(int64_t overdue_ms) {
  histogram_add(&lateness, overdue_ms > INT64_MAX / 1000 ? INT64_MAX / 1000 : overdue_ms * 1000);
}

void metric_batch_wait(int64_t waited_us) {
  histogram_add(&batch_wait, waited_us);
}

void metric_last_seen_lag(int64_t lag_ms) {
  atomic_store_explicit(&last_seen_lag_ms, lag_ms < 0 ? 0 : lag_ms, memory_order_relaxed);
}

static void render_last_seen_lag(struct buf *b) {
  static const char name[] = "stillhere_last_seen_lag_seconds";
  int64_t ms = atomic_load_explicit(&last_seen_lag_ms, memory_order_relaxed);
  buf_printf(b, "# HELP %s Age of the oldest heartbeat whose time is not in the last-seen tables yet.\n", name);
  buf_printf(b, "# TYPE %s gauge\n%s %" PRId64 ".%03d\n", name, name, ms / 1000, (int)(ms % 1000));
}

void metric_load_factor(int64_t thousandths) {
  atomic_store_explicit(&load_thousandths, thousandths, memory_order_relaxed);
}

static void render_load_factor(struct buf *b) {
  static const char name[] = "stillhere_load_factor";
  int64_t n = atomic_load_explicit(&load_thousandths, memory_order_relaxed);
  buf_printf(b, "# HELP %s By how much leases are lengthened since the database is slow; 1: not.\n", name);
  buf_printf(b, "# TYPE %s gauge\n%s %" PRId64 ".%03d\n", name, name, n / 1000, (int)(n % 1000));
}

void metric_notification_queue(int64_t billionths) {
  atomic_store_explicit(&queue_billionths, billionths < 0 ? 0 : billionths, memory_order_relaxed);
}

static void render_notification_queue(struct buf *b) {
  static const char name[] = "stillhere_notification_queue_usage";
  int64_t n = atomic_load_explicit(&queue_billionths, memory_order_relaxed);
  buf_printf(b, "# HELP %s How full PostgreSQL's queue of notifications is; 1: full, and commits with events fail.\n",
             name);
  buf_printf(b, "# TYPE %s gauge\n%s %" PRId64 ".%09d\n", name, name, n / 1000000000, (int)(n % 1000000000));
}

void metric_render(struct buf *b) {
  const char *family = "";
  for (size_t i = 0; i < METRIC_COUNT; i++) {
    if (strcmp(family, series[i].family) != 0) {
      family = series[i].family;
      buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", family, series[i].help, family, series[i].type);
    }
    buf_puts(b, family);
    if (series[i].labels != NULL)
      buf_printf(b, "{%s}", series[i].labels);
    buf_putc(b, ' ');
    buf_int(b, metric_get((enum metric)i));
    buf_putc(b, '\n');
  }
  histogram_render(b, &lateness);
  histogram_render(b, &batch_wait);
  render_last_seen_lag(b);
  render_load_factor(b);
  render_notification_queue(b);
  process_metric_render(b);
}
