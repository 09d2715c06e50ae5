// SPDX-License-Identifier: Apache-2.0
// Making, watching and dropping a connection.
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/rand.h"
#include "db/db_internal.h"

#define BACKOFF_FIRST_MS 100
#define BACKOFF_MAX_MS 2000

/// A connection that breaks sooner than this counts as a failed attempt, or a server that throws everybody out at once
/// would be asked without a pause.
#define SHORT_LIFE_US 1000000

/// While the database is away every thread notices; one line in this time is enough.
#define COMPLAIN_EVERY_US 5000000

struct db *db_new(const struct db_options *options) {
  struct db *db = calloc(1, sizeof *db);
  if (db != NULL)
    db->options = options;
  return db;
}

void db_free(struct db *db) {
  if (db == NULL)
    return;
  db_drop(db);
  free(db);
}

void db_drop(struct db *db) {
  PQfinish(db->conn); // NULL is fine
  db->conn = NULL;
  db->n_prepared = 0;
}

bool db_connected(const struct db *db) {
  return db->conn != NULL && PQstatus(db->conn) == CONNECTION_OK;
}

int db_socket(const struct db *db) {
  return db->conn == NULL ? -1 : PQsocket(db->conn);
}

PGconn *db_raw(struct db *db) {
  return db->conn;
}

static void delay_next_attempt(struct db *db) {
  db->backoff_ms = db->backoff_ms == 0 ? BACKOFF_FIRST_MS : db->backoff_ms * 2;
  if (db->backoff_ms > BACKOFF_MAX_MS)
    db->backoff_ms = BACKOFF_MAX_MS;
  db->refuse_until_us = clock_mono_us() + jitter_down(db->backoff_ms, 2) * 1000;
}

/// libpq's messages have several lines, each with a newline and some with tabs. One line of it, cut to what fits.
static void one_line(char *out, size_t size, const char *message) {
  size_t len = 0;
  for (const char *s = message; *s != '\0' && len + 1 < size; s++) {
    bool blank = *s == ' ' || *s == '\n' || *s == '\t';
    if (!blank)
      out[len++] = *s;
    else if (len > 0 && out[len - 1] != ' ')
      out[len++] = ' ';
  }
  while (len > 0 && out[len - 1] == ' ')
    len--;
  out[len] = '\0';
}

enum db_status db_broke(struct db *db, const char *what, const char *why) {
  char line[512];
  one_line(line, sizeof line, why);
  log_warning("database connection lost (%s, %s): %s", db->options->application, what, line);
  db_drop(db);
  if (clock_mono_us() - db->connected_us < SHORT_LIFE_US)
    delay_next_attempt(db);
  return DB_LOST;
}

/// A failed attempt. Never says the connection string.
static enum db_status refused(struct db *db, const char *why) {
  static _Atomic int64_t complained_us = INT64_MIN / 2;
  int64_t now = clock_mono_us(), before = atomic_load(&complained_us);
  if (now - before >= COMPLAIN_EVERY_US && atomic_compare_exchange_strong(&complained_us, &before, now)) {
    char line[512];
    one_line(line, sizeof line, why);
    log_warning("cannot connect to the database (%s): %s", db->options->application, line);
  }
  db_drop(db);
  delay_next_attempt(db);
  metric_set(METRIC_DATABASE_UP, 0);
  return DB_LOST;
}

/// Notices ("relation already exists, skipping") would else go to standard error. One of them must not be passed over:
/// somebody has cancelled a commit that waited for a synchronous standby, and the server says that it has committed all
/// the same. Known by where it comes from, since the text is translated.
static void on_notice(void *ctx, const PGresult *result) {
  struct db *db = ctx;
  const char *source = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);
  if (source != NULL && strcmp(source, "SyncRepWaitForLSN") == 0)
    db->unreplicated = true;
  const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
  log_debug("database notice: %s", message == NULL ? "" : message);
}

/// A comma-separated list, begun with its element number @a by (modulo its length). @return NULL when memory ran out
static char *turn_list(const char *list, unsigned by) {
  unsigned n = 1;
  for (const char *s = list; *s != '\0'; s++)
    n += *s == ',';
  const char *split = list;
  for (by %= n; by > 0; by--)
    split = strchr(split, ',') + 1;
  if (split == list)
    return strdup(list);
  size_t len = strlen(list), head = (size_t)(split - list) - 1, tail = len - head - 1;
  char *turned = malloc(len + 1);
  if (turned == NULL)
    return NULL;
  memcpy(turned, split, tail);
  turned[tail] = ',';
  memcpy(turned + tail + 1, list, head);
  turned[len] = '\0';
  return turned;
}

/// libpq tries the hosts of a list in their order, and without end waits for one that is silent; our deadline ends the
/// whole attempt then. So that the others get their turn, the next attempt begins with the next host.
static void turn_hosts(const struct db *db, char *turned[3]) {
  static const char *const names[] = {"host", "hostaddr", "port"};
  PQconninfoOption *given = db->timeouts == 0 ? NULL : PQconninfoParse(db->options->url, NULL);
  for (const PQconninfoOption *o = given; o != NULL && o->keyword != NULL; o++) {
    for (int i = 0; i < 3; i++) {
      if (o->val != NULL && strcmp(o->keyword, names[i]) == 0)
        turned[i] = turn_list(o->val, db->timeouts);
    }
  }
  PQconninfoFree(given);
}

/// Begins an attempt. Parameters in front of dbname are defaults that the connection string may change, those behind
/// it are ours.
static PGconn *start(const struct db *db) {
  char *turned[3] = {0};
  turn_hosts(db, turned);
  const char *keywords[20], *values[20];
  int n = 0;
#define PARAMETER(keyword, value) (keywords[n] = (keyword), values[n++] = (value))
  PARAMETER("keepalives", "1");
  PARAMETER("keepalives_idle", "10");
  PARAMETER("keepalives_interval", "5");
  PARAMETER("keepalives_count", "3");
  PARAMETER("tcp_user_timeout", "5000");
  PARAMETER("target_session_attrs", "read-write");
  PARAMETER("dbname", db->options->url);
  PARAMETER("application_name", db->options->application);
  PARAMETER("client_encoding", "UTF8");
  PARAMETER("host", turned[0]); // NULL is as if it were not there
  PARAMETER("hostaddr", turned[1]);
  PARAMETER("port", turned[2]);
#undef PARAMETER
  keywords[n] = values[n] = NULL;
  PGconn *conn = PQconnectStartParams(keywords, values, 1);
  for (int i = 0; i < 3; i++)
    free(turned[i]);
  return conn;
}

/// Drives the attempt. @return NULL when connected, else why not; lives as long as the connection
static const char *finish(struct db *db, int64_t deadline_us) {
  PostgresPollingStatusType state = PGRES_POLLING_WRITING; // libpq's rule: behave as if this had been said
  while (state != PGRES_POLLING_OK) {
    if (state == PGRES_POLLING_FAILED || PQstatus(db->conn) == CONNECTION_BAD)
      return PQerrorMessage(db->conn);
    int64_t left_us = deadline_us - clock_mono_us();
    struct pollfd p = {.fd = PQsocket(db->conn), .events = state == PGRES_POLLING_READING ? POLLIN : POLLOUT};
    int ready = left_us <= 0 ? 0 : poll(&p, 1, (int)((left_us + 999) / 1000));
    if (ready == 0) {
      db->timeouts++;
      return "it did not answer in time";
    }
    if (ready < 0 && errno != EINTR)
      return strerror(errno);
    if (ready > 0)
      state = PQconnectPoll(db->conn);
  }
  return NULL;
}

/// Whether an idle connection is still there: a server that went away has left a goodbye or an end in the socket.
static bool alive(struct db *db) {
  if (!db_connected(db))
    return false;
  struct pollfd p = {.fd = PQsocket(db->conn), .events = POLLIN};
  // Every turn takes what has come in: a parameter's new value, a notice, a notification (kept), an end.
  for (int i = 0; i < 16 && poll(&p, 1, 0) > 0; i++) {
    if (PQconsumeInput(db->conn) == 0 || PQstatus(db->conn) != CONNECTION_OK)
      return false;
  }
  // What somebody else's LISTEN on a shared session brings is for nobody here, and libpq would keep it for ever.
  for (PGnotify *note; db->shared && (note = PQnotifies(db->conn)) != NULL;)
    PQfreemem(note);
  return true;
}

enum db_status db_connect(struct db *db) {
  if (db->in_transaction) // never goes on with a transaction on another connection
    return db_connected(db) ? DB_OK : DB_LOST;
  if (db->conn != NULL) {
    if (alive(db))
      return DB_OK;
    (void)db_broke(db, "idle", PQerrorMessage(db->conn));
  }
  if (clock_mono_us() < db->refuse_until_us)
    return DB_LOST;

  int64_t deadline_us = clock_mono_us() + (int64_t)db->options->connect_timeout_ms * 1000;
  db->conn = start(db);
  if (db->conn == NULL)
    return refused(db, "out of memory");
  (void)PQsetNoticeReceiver(db->conn, on_notice, db);
  db->unreplicated = false;
  const char *why = finish(db, deadline_us);
  if (why == NULL && PQsetnonblocking(db->conn, 1) != 0)
    why = PQerrorMessage(db->conn);
  if (why != NULL)
    return refused(db, why);
  db->connected_us = clock_mono_us();
  if (db_set_up(db) != DB_OK || db_greet(db) != DB_OK)
    return refused(db, "the session could not be set up");
  db->backoff_ms = 0;
  metric_set(METRIC_DATABASE_UP, 1);
  return DB_OK;
}
