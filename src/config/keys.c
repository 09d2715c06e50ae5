// SPDX-License-Identifier: Apache-2.0
#include "config/keys.h"

#include <string.h>

#include "base/util.h"
#include "config/config.h"

/// What a column `integer` of milliseconds holds: almost 25 days.
#define MS_OF_INT4 INT32_MAX

#define DAY_MS INT64_C(86400000)
#define TEN_YEARS_MS (3653 * DAY_MS)

/// Anything shorter is a mistake in the unit.
#define DURATION_MIN_MS 100

static const char *const auth_choices[] = {"none", "jwt", NULL};
static const char *const algorithm_choices[] = {"HS256", "RS256", "ES256", NULL};
static const char *const metrics_choices[] = {"open", "credential", NULL};
static const char *const membership_choices[] = {"open", "required", NULL};
static const char *const switch_choices[] = {"off", "on", NULL};
static const char *const level_choices[] = {"error", "warning", "info", "debug", NULL};
static const char *const format_choices[] = {"auto", "text", "json", NULL};
static const char *const decision_choices[] = {"all", "transitions", "off", NULL};

#define FIELD(name) #name, .offset = offsetof(struct config, name)
#define TEXT(name) FIELD(name), .kind = CONFIG_TEXT, .initial = ""
#define DURATION(name, initial_ms, max_ms)                                                                             \
  FIELD(name), .kind = CONFIG_DURATION, .initial = (initial_ms), .min = DURATION_MIN_MS, .max = (max_ms)
#define COUNT(name, initial_count, min_count, max_count)                                                               \
  FIELD(name), .kind = CONFIG_COUNT, .initial = (initial_count), .min = (min_count), .max = (max_count)
#define CHOICE(name, initial_choice, all)                                                                              \
  FIELD(name), .kind = CONFIG_CHOICE, .initial = (initial_choice), .choices = (all)

const struct config_key config_keys[] = {
    {FIELD(listen), .kind = CONFIG_LISTEN, .initial = "127.0.0.1:7470",
     .doc =
         "Address and port to listen on: host:port, or [address]:port for IPv6; or unix:/path, a socket in the file "
         "system, which is made with mode 0660. While auth is none it must be a loopback address (127.0.0.0/8, [::1] "
         "or localhost) or a unix socket."},
    {FIELD(database_url), .kind = CONFIG_DATABASE, .initial = "postgresql:///stillhere",
     .doc = "The PostgreSQL database, as a connection URI or a key=value string of libpq. It may name several hosts. "
            "Unless it says otherwise, target_session_attrs is read-write. A password is better kept in a "
            "password file (~/.pgpass) or a service file than here. A pooler in transaction mode may be in between."},
    {FIELD(database_listen_url), .kind = CONFIG_DATABASE, .initial = "", .may_be_empty = true,
     .doc = "The same database over a direct connection, for LISTEN, where database_url goes through a pooler that "
            "cannot do that. Empty: database_url is used."},
    {CHOICE(auth, "none", auth_choices),
     .doc = "How callers are told apart. none: everybody who can connect may do everything. jwt: each request shows a "
            "token or an API key in its Authorization header, and jwt_key_file or api_keys_file says which are good."},
    {CHOICE(jwt_algorithm, "HS256", algorithm_choices),
     .doc = "The only algorithm with which tokens may be signed; what a token says of itself does not count."},
    {TEXT(jwt_key_file),
     .doc =
         "The key with which tokens are verified. HS256: a file with the secret's bytes, 32 at least (one newline at "
         "the end does not count). RS256 and ES256: a public key in PEM, of RSA with 2048 bits at least or on the "
         "curve P-256. Up to 8 files, separated by commas, while a key is replaced; a token's kid may name one by "
         "the file's name without directory and extension. SIGHUP reads the list and the files again, and leaves "
         "all keys as they were when one cannot be used."},
    {TEXT(jwt_audience), .doc = "What a token's aud must be or contain. Empty: aud is not looked at."},
    {TEXT(jwt_issuer), .doc = "What a token's iss must be. Empty: iss is not looked at."},
    {FIELD(jwt_leeway_ms), .kind = CONFIG_DURATION, .initial = "30000", .min = 0, .max = 300000,
     .doc = "By how much the clock of whoever signs tokens may differ from the database's: a token is good for so long "
            "after its exp, and so long before its nbf."},
    {TEXT(api_keys_file),
     .doc =
         "Named keys for servers and dashboards, one on each line: name, SHA-256 of the key in hexadecimal, scopes "
         "and rooms, the latter two separated by commas. A room is a name, or a prefix with * at its end. Lines that "
         "begin with # are comments. SIGHUP reads the file again; a file without keys revokes all of them."},
    {CHOICE(metrics_access, "open", metrics_choices),
     .doc = "Who may read /metrics while auth is not none. open: everybody who can connect. credential: whoever shows "
            "one with the scope presence:read."},
    {TEXT(tls_cert_file),
     .doc = "Certificate chain in PEM, the server's own certificate first; with tls_key_file the server speaks TLS 1.3 "
            "and 1.2, and nothing else. SIGHUP reads both files again, for new connections."},
    {TEXT(tls_key_file), .doc = "The private key of tls_cert_file, in PEM and not encrypted."},
    {FIELD(cors_origins), .kind = CONFIG_ORIGINS, .initial = "",
     .doc = "Origins, separated by commas, whose pages may call this server from a browser, such as "
            "https://app.example.org; * alone for any. Empty: none but the server's own."},
    {CHOICE(membership, "open", membership_choices),
     .doc =
         "open: whoever may call may hold a lease, unless the membership was revoked. required: an active membership "
         "of the room is needed (PUT /rooms/{room}/members/{user})."},
    {DURATION(ttl_default_ms, "90000", MS_OF_INT4),
     .doc = "How long a lease lasts when the heartbeat does not say. Unless it is set it gives way to ttl_min_ms and "
            "ttl_max_ms."},
    {DURATION(ttl_min_ms, "5000", MS_OF_INT4), .doc = "The shortest ttl_ms that a heartbeat may ask for."},
    {DURATION(ttl_max_ms, "3600000", MS_OF_INT4), .doc = "The longest ttl_ms that a heartbeat may ask for."},
    {DURATION(offline_grace_ms, "10000", DAY_MS),
     .doc =
         "How long a user stays online after the last session ended: user.offline comes then, unless a session came."},
    {DURATION(sweep_interval_ms, "1000", 3600000),
     .doc = "How often expired leases are looked for. A lease is ended at most this long, and a little, after its "
            "expiry; the promise of 2 seconds holds up to the default."},
    {DURATION(last_seen_flush_ms, "300000", DAY_MS),
     .doc = "How often the tables stillhere.user_last_seen and stillhere.room_last_seen are brought up to date with "
            "heartbeats of living leases, for dashboards that read SQL. The end of a lease is written at once, and "
            "replies over HTTP are always current."},
    {DURATION(longpoll_default_wait_ms, "25000", 3600000),
     .doc =
         "How long a poll waits when it does not say. Unless it is set it gives way to longpoll_max_wait_ms. Keep it "
         "below the timeout of any proxy in front."},
    {DURATION(longpoll_max_wait_ms, "55000", 3600000), .doc = "The longest wait; what asks for more waits this long."},
    {COUNT(longpoll_max_waiting, "16000", 1, 1000000),
     .doc = "Polls that may wait at the same time; more are answered 503. It must be below max_connections, so that "
            "heartbeats always get in. Unless it is set it is at most eight ninths of that."},
    {DURATION(fanout_window_max_ms, "5000", 60000),
     .doc =
         "The longest time for which changes of a busy room are gathered into one wake. The first change in a quiet room "
         "goes out at once and begins a window of 10 ms for each watcher beyond ten, at most this; what changes inside it "
         "goes out together at its end. So 300 watchers see changes up to 2.9 s late, in a storm only."},
    {COUNT(replay_limit, "1000", 1, 100000),
     .doc = "A reader who is more events than this behind gets a snapshot instead."},
    {CHOICE(renewal_events, "off", switch_choices),
     .doc = "on: every accepted renewal is an event, so everybody who watches is woken by every heartbeat."},
    {DURATION(event_retention_ms, "86400000", TEN_YEARS_MS), .doc = "How long events are kept."},
    {COUNT(event_retention_count, "10000", 1, 10000000),
     .doc = "How many events of one room are kept, the newest ones."},
    {DURATION(tombstone_retention_ms, "86400000", TEN_YEARS_MS),
     .doc = "How long an ended lease is remembered, so that a late heartbeat cannot bring it back."},
    {COUNT(address_rate, "0", 0, 1000000),
     .doc = "Requests a second that one client address (of IPv6, one /64) may make of this instance in the long run; "
            "more are answered 429. 0 means no limit. Behind a proxy all clients have the proxy's address."},
    {COUNT(address_burst, "200", 1, 1000000), .doc = "How many of them may come at once after a pause."},
    {COUNT(credential_rate, "0", 0, 1000000),
     .doc = "Requests a second that one credential (a token's sub, an API key) may make of this instance in the long "
            "run; a batch counts as its leases. More are answered 429. 0 means no limit."},
    {COUNT(credential_burst, "200", 1, 1000000),
     .doc = "How many of them may come at once after a pause. A batch of more leases is taken when nothing else has "
            "come for long enough, and paid for afterwards."},
    {FIELD(renew_interval_min_ms), .kind = CONFIG_DURATION, .initial = "0", .min = 0, .max = 3600000,
     .doc = "The shortest time between two renewals of one lease; one that comes sooner is answered 429. At most a "
            "third of ttl_min_ms. 0 means no limit."},
    {COUNT(max_leases_per_user, "0", 0, 1000000),
     .doc = "Live leases that one user may hold in all rooms together; one more is answered 429, renewals never are. 0 "
            "means no limit."},
    {COUNT(max_leases_per_room, "0", 0, 10000000),
     .doc = "Live leases that a room may have; one more is answered 429, renewals never are. 0 means no limit. With a "
            "limit each new lease counts those of its room."},
    {COUNT(longpoll_max_per_credential, "0", 0, 1000000),
     .doc = "Polls and streams that one credential (while auth is none, one client address) may have waiting at this "
            "instance at the same time; more are answered 429. 0 means no limit of its own."},
    {FIELD(max_header_bytes), .kind = CONFIG_BYTES, .initial = "14336", .min = 4096, .max = 65536,
     .doc =
         "The longest request line and headers together; longer ones are answered 431, or 414 where it is the request "
         "line. Each connection takes this and 3072 bytes more of memory, in which there is room for 30 header fields "
         "behind the longest head, and for more behind others; cookies are kept there twice."},
    {COUNT(max_batch_leases, "1000", 1, 1000), .doc = "Leases that one PUT may carry; more are answered 400."},
    {FIELD(max_body_bytes), .kind = CONFIG_BYTES, .initial = "1048576", .min = 1024, .max = 67108864,
     .doc = "The largest request body; a larger one is answered 413."},
    {COUNT(max_connections, "18000", 2, 1000000),
     .doc = "Connections that may be open at the same time. The limit on open files must allow for them."},
    {COUNT(max_connections_per_ip, "0", 0, 1000000),
     .doc = "The same for one client address; 0 means no limit of its own."},
    {DURATION(request_deadline_ms, "15000", 3600000),
     .doc = "How long a request may take to arrive, first byte to last; then the connection is closed."},
    {COUNT(http_workers, "0", 0, 16),
     .doc =
         "Threads that serve HTTP, and as many again for connections that begin with a poll or a stream; 0 means one "
         "of each for every core, 2 to 8."},
    {TEXT(webhook_url),
     .doc = "Where all events of all rooms are posted, signed with webhook_secret_file: an http or https URL without "
            "user info and fragment. It is the target named default. Empty: none. SIGHUP reads this and the next three "
            "keys again, and leaves all targets as they were when something is wrong."},
    {TEXT(webhook_secret_file),
     .doc = "The secret with which messages to webhook_url are signed: a file with a line of whsec_ and 24 to 64 bytes "
            "in base64. With up to 4 lines there are as many signatures, while a secret is replaced."},
    {TEXT(webhook_targets_file),
     .doc = "Further targets, one on each line: name, URL, secret file, kinds and rooms, the latter two separated by "
            "commas; * for all. A room is a name, or a prefix with * at its end. Lines that begin with # are "
            "comments."},
    {TEXT(webhook_ca_file),
     .doc =
         "The authorities that https targets of webhooks are verified by: a file of certificates in PEM form. Empty: "
         "those that the system trusts."},
    {CHOICE(webhook_allow_private, "off", switch_choices),
     .doc = "Whether webhooks may be sent to addresses that are not of the public internet: loopback, private, "
            "link-local and the like."},
    {DURATION(webhook_give_up_ms, "86400000", TEN_YEARS_MS),
     .doc = "For how long a message is tried again before it is given up. What was given up is kept for 30 days and "
            "can be sent again."},
    {CHOICE(log_level, "info", level_choices), .doc = "The least important entries that are logged."},
    {CHOICE(log_format, "auto", format_choices),
     .doc = "Form of the log on standard error. auto: text on a terminal, json otherwise."},
    {CHOICE(decision_log, "all", decision_choices),
     .doc = "One JSON line on standard output for every lease decision and expiry. transitions leaves out plain "
            "accepted renewals."},
};

const size_t config_key_count = ARRAY_LEN(config_keys);

static bool is_name(const char *s, const char *name, size_t len) {
  return strlen(s) == len && memcmp(s, name, len) == 0;
}

const struct config_key *config_key_find(const char *name, size_t len) {
  for (size_t i = 0; i < config_key_count; i++) {
    if (is_name(config_keys[i].name, name, len))
      return &config_keys[i];
  }
  return NULL;
}
