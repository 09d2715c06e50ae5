// SPDX-License-Identifier: Apache-2.0
/// @file
/// The configuration: one table of keys (keys.c) that reads the file and the environment, checks bounds, and prints the
/// sample file, the man page's list and the error for an unknown key.
#ifndef SH_CONFIG_CONFIG_H
#define SH_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/log.h"

/// Bytes of a config error line.
#define CONFIG_ERROR_SIZE 512

/// Values of `membership`, `decision_log` and `auth` are indexes into the choices of keys.c, in this order.
enum config_membership { MEMBERSHIP_OPEN, MEMBERSHIP_REQUIRED };
enum config_decision_log { CONFIG_DECISIONS_ALL, CONFIG_DECISIONS_TRANSITIONS, CONFIG_DECISIONS_OFF };
enum config_auth { CONFIG_AUTH_NONE, CONFIG_AUTH_JWT };
enum config_jwt_algorithm { CONFIG_JWT_HS256, CONFIG_JWT_RS256, CONFIG_JWT_ES256 };
enum config_metrics_access { CONFIG_METRICS_OPEN, CONFIG_METRICS_CREDENTIAL };
enum config_log_format { CONFIG_LOG_AUTO, CONFIG_LOG_TEXT, CONFIG_LOG_JSON };

/// All values, durations in milliseconds. Strings are owned by the struct.
struct config {
  char *listen; ///< host:port, [v6]:port, unix:/path
  char *database_url;
  char *database_listen_url;       ///< empty: the same as database_url
  int64_t auth;                    ///< enum config_auth
  int64_t jwt_algorithm;           ///< enum config_jwt_algorithm
  char *jwt_key_file;              ///< paths, separated by commas; may be empty
  char *jwt_audience, *jwt_issuer; ///< empty: not checked
  int64_t jwt_leeway_ms;
  char *api_keys_file;                                            ///< may be empty
  int64_t metrics_access;                                         ///< enum config_metrics_access
  char *tls_cert_file, *tls_key_file, *cors_origins;              ///< may be empty
  char *webhook_url, *webhook_secret_file, *webhook_targets_file; ///< may be empty
  char *webhook_ca_file;                                          ///< empty: the system's
  int64_t membership;
  int64_t ttl_default_ms, ttl_min_ms, ttl_max_ms;
  int64_t offline_grace_ms, sweep_interval_ms, last_seen_flush_ms;
  int64_t longpoll_default_wait_ms, longpoll_max_wait_ms, longpoll_max_waiting;
  int64_t fanout_window_max_ms, replay_limit;
  int64_t renewal_events; ///< 0 off, 1 on
  int64_t event_retention_ms, event_retention_count, tombstone_retention_ms;
  int64_t address_rate, address_burst, credential_rate, credential_burst; ///< requests a second, requests; rate 0: off
  int64_t renew_interval_min_ms;                                          ///< 0: off
  int64_t max_leases_per_user, max_leases_per_room, longpoll_max_per_credential; ///< 0: off
  int64_t max_header_bytes, max_batch_leases;
  int64_t max_body_bytes, max_connections, max_connections_per_ip, request_deadline_ms;
  int64_t webhook_allow_private; ///< 0 off, 1 on
  int64_t webhook_give_up_ms;
  int64_t http_workers; ///< 0: one for each core, at least 2, at most 8
  int64_t log_level;    ///< enum log_level
  int64_t log_format;   ///< enum config_log_format
  int64_t decision_log; ///< enum config_decision_log
};

/// Defaults, then the file (NULL: none), then the environment's STILLHERE_<KEY>. Checks every value and the relations
/// between them (ttl_min_ms <= ttl_default_ms <= ttl_max_ms; longpoll default <= max; longpoll_max_waiting below
/// max_connections; auth=none only on loopback and without keys, auth=jwt with some; TLS files both or none).
/// @param[out] error one line that names the key and says what is accepted
/// @return false then; @a config is to be freed with config_free() in either case
bool config_load(struct config *config, const char *path, char **environment, char error[CONFIG_ERROR_SIZE]);

void config_free(struct config *config);

/// The path of a `listen` of the form unix:/path, which is an absolute one. @return NULL when it is not of that form
const char *listen_path(const char *listen);

/// Splits `listen` into host and port (brackets removed). @return false when it is malformed, or unix:/path
bool listen_split(const char *listen, char host[256], char port[6]);

/// The sample file etc/stillhere.conf, every key commented out at its default.
void config_print_sample(FILE *out);

/// The list of keys as troff, for stillhere.conf(5).
void config_print_man(FILE *out);

#endif
