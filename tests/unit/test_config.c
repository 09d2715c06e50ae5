// SPDX-License-Identifier: Apache-2.0
// The configuration: file, environment, bounds, relations, and what is printed of it.
#include <setjmp.h> // cmocka.h wants these four in front
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/util.h"
#include "config/config.h"
#include "config/keys.h"
#include "config/origins.h"

static int file = -1; ///< in memory, reachable by a path
static char path[64];
static char error[CONFIG_ERROR_SIZE];

static int set_up(void **state) {
  (void)state;
  file = memfd_create("stillhere.conf", MFD_CLOEXEC);
  (void)snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  return file < 0 ? -1 : 0;
}

static int tear_down(void **state) {
  (void)state;
  return close(file);
}

/// @param text the file's content, NULL: no file
/// @param variable one of the environment, or NULL
static bool load(struct config *c, const char *text, const char *variable) {
  if (text != NULL) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
  }
  char copy[512] = "";
  if (variable != NULL)
    (void)snprintf(copy, sizeof copy, "%s", variable);
  char path_variable[] = "PATH=/bin";
  char *environment[] = {path_variable, variable == NULL ? NULL : copy, NULL};
  return config_load(c, text == NULL ? NULL : path, environment, error);
}

/// Expects a failure whose one line contains both words.
static void expect_error(const char *text, const char *variable, const char *word, const char *other) {
  struct config c;
  if (load(&c, text, variable))
    fail_msg("was accepted: %s %s", text == NULL ? "" : text, variable == NULL ? "" : variable);
  if (strstr(error, word) == NULL || strstr(error, other) == NULL || strchr(error, '\n') != NULL)
    fail_msg("'%s' does not say '%s' and '%s'", error, word, other);
  config_free(&c);
}

static void expect_fine(const char *text, const char *variable) {
  struct config c;
  if (!load(&c, text, variable))
    fail_msg("was refused: %s", error);
  assert_string_equal(error, "");
  config_free(&c);
}

static void test_defaults(void **state) {
  (void)state;
  struct config c;
  assert_true(load(&c, NULL, NULL));
  assert_string_equal(c.listen, "127.0.0.1:7470");
  assert_string_equal(c.database_url, "postgresql:///stillhere");
  assert_string_equal(c.database_listen_url, "");
  assert_int_equal(c.auth, 0);
  assert_int_equal(c.membership, MEMBERSHIP_OPEN);
  assert_int_equal(c.ttl_default_ms, 90000);
  assert_int_equal(c.ttl_min_ms, 5000);
  assert_int_equal(c.ttl_max_ms, 3600000);
  assert_int_equal(c.offline_grace_ms, 10000);
  assert_int_equal(c.sweep_interval_ms, 1000);
  assert_int_equal(c.last_seen_flush_ms, 300000);
  assert_int_equal(c.longpoll_default_wait_ms, 25000);
  assert_int_equal(c.longpoll_max_wait_ms, 55000);
  assert_int_equal(c.longpoll_max_waiting, 16000);
  assert_int_equal(c.fanout_window_max_ms, 5000);
  assert_int_equal(c.replay_limit, 1000);
  assert_int_equal(c.renewal_events, 0);
  assert_int_equal(c.event_retention_ms, 86400000);
  assert_int_equal(c.event_retention_count, 10000);
  assert_int_equal(c.tombstone_retention_ms, 86400000);
  assert_int_equal(c.address_rate + c.credential_rate + c.renew_interval_min_ms, 0);
  assert_int_equal(c.max_leases_per_user + c.max_leases_per_room + c.longpoll_max_per_credential, 0);
  assert_int_equal(c.max_body_bytes, 1048576);
  assert_int_equal(c.max_connections, 18000);
  assert_int_equal(c.max_connections_per_ip, 0);
  assert_int_equal(c.request_deadline_ms, 15000);
  assert_int_equal(c.http_workers, 0);
  assert_int_equal(c.log_level, LOG_INFO);
  assert_int_equal(c.log_format, CONFIG_LOG_AUTO);
  assert_int_equal(c.decision_log, CONFIG_DECISIONS_ALL);
  config_free(&c);
  config_free(&c);
}

static void test_file(void **state) {
  (void)state;
  struct config c;
  assert_true(load(&c,
                   "# a comment\n; another\n\nttl_max_ms = 120000\nlisten=[::1]:80\n"
                   "database_url = postgresql://u:p@h1,h2/db?sslmode=disable\nrenewal_events = on ; why not\n"
                   "membership=required\ndecision_log = transitions\nlog_level = debug\nlog_format = json",
                   NULL));
  assert_int_equal(c.ttl_max_ms, 120000);
  assert_string_equal(c.listen, "[::1]:80");
  assert_string_equal(c.database_url, "postgresql://u:p@h1,h2/db?sslmode=disable");
  assert_int_equal(c.renewal_events, 1);
  assert_int_equal(c.membership, MEMBERSHIP_REQUIRED);
  assert_int_equal(c.decision_log, CONFIG_DECISIONS_TRANSITIONS);
  assert_int_equal(c.log_level, LOG_DEBUG);
  assert_int_equal(c.log_format, CONFIG_LOG_JSON);
  config_free(&c);
  expect_fine("", NULL);
}

static void test_environment_wins(void **state) {
  (void)state;
  struct config c;
  assert_true(load(&c, "ttl_min_ms = 7000\nreplay_limit = 5\n", "STILLHERE_TTL_MIN_MS=8000"));
  assert_int_equal(c.ttl_min_ms, 8000);
  assert_int_equal(c.replay_limit, 5);
  config_free(&c);
  assert_true(load(&c, "database_listen_url = host=x\n", "STILLHERE_DATABASE_LISTEN_URL="));
  assert_string_equal(c.database_listen_url, "");
  config_free(&c);
}

static void test_unknown_keys(void **state) {
  (void)state;
  expect_error("ttl_min = 5000\n", NULL, "ttl_min", ":1");
  expect_error("\n\nTTL_MIN_MS = 5000\n", NULL, "TTL_MIN_MS", ":3");
  expect_error(NULL, "STILLHERE_FOO=1", "STILLHERE_FOO", "foo");
  expect_error(NULL, "STILLHERE_=1", "STILLHERE_", "no key");
  expect_error(NULL, "STILLHERE_ttl_min_ms=6000", "STILLHERE_ttl_min_ms", "capitals");
  expect_error(NULL, "STILLHERE_TTL_MIN_MS_=6000", "STILLHERE_TTL_MIN_MS_", "no key");
  expect_error(
      NULL, "STILLHERE_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=1",
      "STILLHERE_AAAA", "no such key");
  // Known to the command, none of the daemon's business.
  expect_fine(NULL, "STILLHERE_CONFIG=/x");
  expect_fine(NULL, "STILLHERE_URL=http://x");
  expect_fine(NULL, "STILLHERE_TOKEN_FILE=/x");
  expect_error(NULL, "STILLHERE_CONFIGS=/x", "STILLHERE_CONFIGS", "no key");
  expect_error("config = /x\n", NULL, "config", "no key");
  expect_fine(NULL, "STILLHERED=1");
  expect_fine(NULL, "XSTILLHERE_FOO=1");
}

static void test_webhook_keys_go_together(void **state) {
  (void)state;
  expect_error("webhook_url = http://x\n", NULL, "webhook_secret_file", "needed as well");
  expect_error(NULL, "STILLHERE_WEBHOOK_SECRET_FILE=/x", "webhook_url", "needed as well");
  expect_error("webhook_allow_private = yes\n", NULL, "webhook_allow_private", "off, on");
  expect_error("auth = basic\n", NULL, "auth", "none, jwt");
}

static void test_bad_values(void **state) {
  (void)state;
  static const char *const bad[] = {
      "-1", "1.5", "5s", "abc", "1e4", "0x1388", "\"5000\"", "99", "9223372036854775808", "2147483648"};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    char line[64], variable[64];
    (void)snprintf(line, sizeof line, "ttl_min_ms = %s\n", bad[i]);
    (void)snprintf(variable, sizeof variable, "STILLHERE_TTL_MIN_MS=%s", bad[i]);
    expect_error(line, NULL, "ttl_min_ms", "100 to 2147483647");
    expect_error(NULL, variable, "STILLHERE_TTL_MIN_MS", "100 to 2147483647");
  }
  expect_error(NULL, "STILLHERE_TTL_MIN_MS=", "ttl_min_ms", "whole number");
  expect_error(NULL, "STILLHERE_TTL_MIN_MS= 6000", "ttl_min_ms", "whole number");
  expect_error(NULL, "STILLHERE_TTL_MIN_MS=60\n00", "ttl_min_ms", "60?00"); // still one line
  expect_error("renewal_events = yes\n", NULL, "renewal_events", "off, on");
  expect_error("membership = Open\n", NULL, "membership", "open, required");
  expect_error("decision_log = some\n", NULL, "decision_log", "all, transitions, off");
  expect_error("max_connections = 1\n", NULL, "max_connections", "2 to");
  expect_error("database_url =\n", NULL, "database_url", "empty");
  expect_error("database_url = my secret\n", NULL, "database_url", "connection URI");
  expect_error("database_listen_url = postgresql://u:hunter2@[h/x\n", NULL, "database_listen_url", "URI");
  assert_null(strstr(error, "hunter2"));
}

static void test_duration_minimum(void **state) {
  (void)state;
  unsigned durations = 0;
  for (size_t i = 0; i < config_key_count; i++) {
    if (config_keys[i].kind != CONFIG_DURATION || config_keys[i].min == 0)
      continue; // 0 turns those off
    durations++;
    // With all others at 100 as well, so that no relation is in the way.
    char text[1024] = "";
    size_t used = 0;
    for (size_t k = 0; k < config_key_count; k++) {
      if (config_keys[k].kind == CONFIG_DURATION && config_keys[k].min != 0)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s = %d\n", config_keys[k].name, i == k ? 99 : 100);
    }
    expect_error(text, NULL, config_keys[i].name, "100 to");
  }
  assert_int_equal(durations, 13);
  char text[1024] = "";
  size_t used = 0;
  for (size_t k = 0; k < config_key_count; k++) {
    if (config_keys[k].kind == CONFIG_DURATION && config_keys[k].min != 0)
      used += (size_t)snprintf(text + used, sizeof text - used, "%s = 100\n", config_keys[k].name);
  }
  expect_fine(text, NULL);
}

static void test_relations(void **state) {
  (void)state;
  expect_error("ttl_min_ms = 3600001\n", NULL, "ttl_min_ms", "ttl_max_ms");
  expect_error("ttl_default_ms = 4999\n", NULL, "ttl_default_ms", "ttl_min_ms");
  expect_error("ttl_default_ms = 3600001\n", NULL, "ttl_default_ms", "ttl_max_ms");
  expect_error("longpoll_default_wait_ms = 55001\n", NULL, "longpoll_default_wait_ms", "longpoll_max_wait_ms");
  expect_error("longpoll_max_waiting = 18000\n", NULL, "longpoll_max_waiting", "max_connections");
  expect_error("longpoll_max_waiting = 20\n", "STILLHERE_MAX_CONNECTIONS=20", "longpoll_max_waiting",
               "max_connections");
  expect_fine("ttl_default_ms = 5000\nttl_max_ms = 5000\nlongpoll_max_waiting = 17999\n", NULL);
  expect_error("renew_interval_min_ms = 1667\n", NULL, "renew_interval_min_ms", "ttl_min_ms");
  expect_fine("renew_interval_min_ms = 1666\n", NULL);
}

static void test_defaults_give_way(void **state) {
  (void)state;
  struct config c;
  assert_true(load(&c, "ttl_max_ms = 60000\nlongpoll_max_wait_ms = 1000\nmax_connections = 20\n", NULL));
  assert_int_equal(c.ttl_default_ms, 60000);
  assert_int_equal(c.longpoll_default_wait_ms, 1000);
  assert_int_equal(c.longpoll_max_waiting, 17);
  config_free(&c);
  assert_true(load(&c, NULL, "STILLHERE_TTL_MIN_MS=100000"));
  assert_int_equal(c.ttl_default_ms, 100000);
  config_free(&c);
  assert_true(load(&c, NULL, "STILLHERE_MAX_CONNECTIONS=2"));
  assert_int_equal(c.longpoll_max_waiting, 1);
  config_free(&c);
}

static void test_only_loopback_without_auth(void **state) {
  (void)state;
  static const char *const good[] = {"127.0.0.1:1", "127.255.0.9:80", "[::1]:7470", "localhost:7470"};
  for (size_t i = 0; i < ARRAY_LEN(good); i++) {
    char variable[128];
    (void)snprintf(variable, sizeof variable, "STILLHERE_LISTEN=%s", good[i]);
    expect_fine(NULL, variable);
  }
  static const char *const bad[] = {"0.0.0.0:7470", "[::]:7470",     "192.168.1.1:1",
                                    "128.0.0.1:1",  "example.org:1", "[::ffff:127.0.0.1]:1",
                                    "127.1:1",      "*:80",          "localhost.evil:1"};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    char variable[128];
    (void)snprintf(variable, sizeof variable, "STILLHERE_LISTEN=%s", bad[i]);
    expect_error(NULL, variable, "listen", "loopback");
  }
}

static void test_unix_socket(void **state) {
  (void)state;
  char line[200], at[120];
  assert_string_equal(listen_path("unix:/run/s.sock"), "/run/s.sock");
  assert_null(listen_path("unix:run/s.sock"));
  assert_null(listen_path("UNIX:/run/s.sock"));
  assert_null(listen_path("127.0.0.1:7470"));
  expect_fine("listen = unix:/run/stillhere/s.sock\n", NULL); // like loopback, as far as auth=none goes
  expect_error("listen = unix:run/s.sock\n", NULL, "listen", "unix:/path");
  expect_error("listen = unix:\n", NULL, "listen", "unix:/path");
  expect_error("listen = unix:/run/\n", NULL, "listen", "unix:/path");
  expect_error("listen = unix:/\n", NULL, "listen", "unix:/path");
  memset(at, 'p', sizeof at);
  at[0] = '/';
  for (int len = 107; len <= 108; len++) {
    at[len] = '\0';
    (void)snprintf(line, sizeof line, "listen = unix:%s\n", at);
    if (len == 107)
      expect_fine(line, NULL);
    else
      expect_error(line, NULL, "listen", "107 bytes");
    at[len] = 'p';
  }
}

static void test_tls_files(void **state) {
  (void)state;
  expect_fine("tls_cert_file = /c\ntls_key_file = /k\n", NULL); // whether they can be used is seen at the start
  expect_error("tls_cert_file = /c\n", NULL, "tls_key_file", "is needed");
  expect_error(NULL, "STILLHERE_TLS_KEY_FILE=/k", "tls_cert_file", "is needed");
}

static void test_cors_origins(void **state) {
  (void)state;
  static const char *const good[] = {
      "",
      "*",
      "https://app.example.org",
      "http://localhost:5173",
      "https://a.example, http://b.example:8080 ,capacitor://localhost",
      "http://[::1]:3000",
      "http://127.0.0.1",
      "chrome-extension://abcdefghijklmnop",
      "https://xn--bcher-kva.example:444",
      "http://h:443",
  };
  static const char *const bad[] = {
      "app.example.org",
      "https://",
      "https://App.example",
      "HTTPS://a.example",
      "https://a.example/",
      "https://a.example/path",
      "https://a.example:443",
      "http://a.example:80",
      "https://a.example:0",
      "https://a.example:65536",
      "https://a.example:",
      "https://*.example",
      "*,https://a.example",
      "https://a.example,*",
      "https://a.example,",
      ",https://a.example",
      "https://a.example,,https://b.example",
      "null",
      "https://a.example https://b.example",
      "https://user@a.example",
      "https://a.example?x",
      "https://[::1",
      "https://[]",
      "://a.example",
      "1x://a.example",
      "https://b\u00fccher.example",
  };
  for (size_t i = 0; i < ARRAY_LEN(good); i++) {
    char variable[256];
    (void)snprintf(variable, sizeof variable, "STILLHERE_CORS_ORIGINS=%s", good[i]);
    expect_fine(NULL, variable);
  }
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    char variable[256];
    (void)snprintf(variable, sizeof variable, "STILLHERE_CORS_ORIGINS=%s", bad[i]);
    expect_error(NULL, variable, "cors_origins", "origins as browsers write them");
  }
  static const char list[] = "https://a.example, http://b.example:8080";
  assert_true(origins_have(list, "https://a.example"));
  assert_true(origins_have(list, "http://b.example:8080"));
  static const char *const foreign[] = {"",
                                        "*",
                                        "null",
                                        "https://a.example,",
                                        "https://a.exampl",
                                        "https://a.example.evil",
                                        "http://a.example",
                                        "https://A.example",
                                        "http://b.example",
                                        " http://b.example:8080",
                                        "https://a.example, http://b.example:8080"};
  for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
    assert_false(origins_have(list, foreign[i]));
  assert_true(origins_any("*"));
  assert_false(origins_any(list));
}

static void test_keys_of_callers(void **state) {
  (void)state;
  expect_error("auth = jwt\n", NULL, "jwt_key_file", "api_keys_file");
  expect_error("auth = jwt\nlisten = 0.0.0.0:80\n", NULL, "jwt_key_file", "api_keys_file");
  expect_fine("auth = jwt\njwt_key_file = /k\nlisten = 0.0.0.0:80\n", NULL);
  expect_fine("auth = jwt\napi_keys_file = /k\n", NULL);
  expect_fine("auth = jwt\napi_keys_file = /k\n", "STILLHERE_JWT_KEY_FILE=/a, /b");
  expect_error("jwt_key_file = /k\n", NULL, "jwt_key_file", "auth is none");
  expect_error("auth = none\n", "STILLHERE_API_KEYS_FILE=/k", "api_keys_file", "auth is none");
  expect_error("auth = jwt\napi_keys_file = /k\n", "STILLHERE_AUTH=none", "api_keys_file", "auth is none");
  expect_error("auth = jwt\njwt_algorithm = none\n", NULL, "jwt_algorithm", "HS256, RS256, ES256");
  expect_error("auth = jwt\njwt_algorithm = hs256\n", NULL, "jwt_algorithm", "HS256, RS256, ES256");
  expect_error("jwt_leeway_ms = 300001\n", NULL, "jwt_leeway_ms", "0 to 300000");
}

static void test_listen_split(void **state) {
  (void)state;
  char host[256], port[6];
  assert_true(listen_split("127.0.0.1:7470", host, port));
  assert_string_equal(host, "127.0.0.1");
  assert_string_equal(port, "7470");
  assert_true(listen_split("[fe80::1%eth0]:65535", host, port));
  assert_string_equal(host, "fe80::1%eth0");
  assert_true(listen_split("h:0", host, port));
  static const char *const bad[] = {
      "",       "7470", ":7470",   "h:",     "h:65536", "h:-1",    "h:x",         "h:123456",
      "::1:80", "[]:1", "[::1]80", "[::1]:", "[::1:80", "::1]:80", "http://h:80", "h :80"};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    if (listen_split(bad[i], host, port))
      fail_msg("'%s' was split", bad[i]);
  }
  char text[300];
  memset(text, 'h', sizeof text);
  memcpy(text + 256, ":80", 4);
  assert_false(listen_split(text, host, port));
  assert_true(listen_split(text + 1, host, port));
  expect_error("listen = 7470\n", NULL, "listen", "host:port");
}

static void test_file_faults(void **state) {
  (void)state;
  expect_error("ttl_min_ms = 6000\nnonsense\n", NULL, ":2", "key = value");
  expect_error("[server]\nttl_min_ms = 6000\n", NULL, "section", "ttl_min_ms");
  expect_error("ttl_min_ms = 6000\nttl_min_ms = 7000\n", NULL, "ttl_min_ms", "second time");
  expect_error("ttl_min_ms = 6000\n  ttl_max_ms = 7000\n", NULL, ":2", "blank");
  char text[400];
  memset(text, 'x', sizeof text);
  memcpy(text, "database_url = host=", 20);
  memcpy(text + 300, "\n", 2);
  expect_error(text, NULL, ":1", "longer than");
  struct config c;
  assert_false(config_load(&c, "/nonexistent/stillhere.conf", NULL, error));
  assert_non_null(strstr(error, "/nonexistent/stillhere.conf"));
  config_free(&c);
  assert_false(config_load(&c, "/tmp", NULL, error));
  assert_non_null(strstr(error, "/tmp"));
  config_free(&c);
}

/// The sample with every key switched on is the default configuration.
static void test_sample(void **state) {
  (void)state;
  char *text = NULL;
  size_t len = 0;
  FILE *out = open_memstream(&text, &len);
  assert_non_null(out);
  config_print_sample(out);
  assert_int_equal(fclose(out), 0);
  expect_fine(text, NULL);
  size_t keys = 0;
  for (char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
    assert_true(strcspn(line, "\n") <= 120);
    if (line[0] == '#' && line[1] != ' ') {
      line[0] = ' ';
      memmove(line, line + 1, strlen(line));
      keys++;
    }
  }
  assert_int_equal(keys, config_key_count);
  struct config c, defaults;
  char *empty = strstr(text, "database_listen_url =\n");
  assert_non_null(empty);
  if (!load(&c, text, NULL))
    fail_msg("%s", error);
  assert_true(load(&defaults, NULL, NULL));
  assert_int_equal(c.auth, defaults.auth);
  assert_memory_equal(&c.membership, &defaults.membership, sizeof c - offsetof(struct config, membership));
  assert_string_equal(c.listen, defaults.listen);
  assert_string_equal(c.database_url, defaults.database_url);
  config_free(&c);
  config_free(&defaults);
  free(text);
}

static void test_man(void **state) {
  (void)state;
  char *text = NULL;
  size_t len = 0;
  FILE *out = open_memstream(&text, &len);
  assert_non_null(out);
  config_print_man(out);
  assert_int_equal(fclose(out), 0);
  for (size_t i = 0; i < config_key_count; i++) {
    char head[64];
    (void)snprintf(head, sizeof head, ".TP\n.B %s\n", config_keys[i].name);
    const char *at = strstr(text, head);
    assert_non_null(at);
    assert_memory_equal(at + strlen(head), "\\&", 2); // no text is taken for a request
  }
  assert_non_null(strstr(text, "Milliseconds, 100 to 2147483647. Default: 90000."));
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_defaults),
      cmocka_unit_test(test_file),
      cmocka_unit_test(test_environment_wins),
      cmocka_unit_test(test_unknown_keys),
      cmocka_unit_test(test_webhook_keys_go_together),
      cmocka_unit_test(test_bad_values),
      cmocka_unit_test(test_duration_minimum),
      cmocka_unit_test(test_relations),
      cmocka_unit_test(test_defaults_give_way),
      cmocka_unit_test(test_only_loopback_without_auth),
      cmocka_unit_test(test_keys_of_callers),
      cmocka_unit_test(test_listen_split),
      cmocka_unit_test(test_unix_socket),
      cmocka_unit_test(test_tls_files),
      cmocka_unit_test(test_cors_origins),
      cmocka_unit_test(test_file_faults),
      cmocka_unit_test(test_sample),
      cmocka_unit_test(test_man),
  };
  return cmocka_run_group_tests_name("config", tests, set_up, tear_down);
}
