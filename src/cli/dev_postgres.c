// SPDX-License-Identifier: Apache-2.0
#include "cli/dev_postgres.h"

#include <errno.h>
#include <ftw.h>
#include <glob.h>
#include <libpq-fe.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strict.h"
#include "cli/http.h"
#include "cli/options.h"
#include "cli/signals.h"

/// The superuser of the cluster and the name of the database.
#define DB_USER "stillhere"
#define DB_NAME "stillhere"
/// Names the socket file; no port is opened.
#define DB_PORT "5432"
/// Crash recovery after a power cut can take a while.
#define START_MS 120000
#define START_LOOK_MS 50
/// Who waits longer than this is told for what.
#define SILENT_US INT64_C(1800000)
#define STOP_GRACE_MS 30000

static bool path_join(char *out, size_t size, const char *dir, const char *name) {
  int len = snprintf(out, size, "%s/%s", dir, name);
  if (len > 0 && (size_t)len < size)
    return true;
  complain("the path %s/%s is too long", dir, name);
  return false;
}

/// PostgreSQL does not run as root: then its owner, or nobody, is taken.
static bool choose_user(struct dev_user *user) {
  *user = (struct dev_user){.drop = geteuid() == 0};
  if (!user->drop)
    return true;
  const struct passwd *entry = getpwnam("postgres");
  if (entry == NULL)
    entry = getpwnam("nobody");
  if (entry == NULL || entry->pw_uid == 0) {
    complain("PostgreSQL does not run as root, and there is neither a user postgres nor nobody");
    return false;
  }
  user->name = entry->pw_name;
  user->uid = entry->pw_uid;
  user->gid = entry->pw_gid;
  return true;
}

static bool has_programs(const char *bindir) {
  char path[4200];
  static const char *const names[] = {"postgres", "initdb"};
  for (size_t i = 0; i < ARRAY_LEN(names); i++) {
    int len = snprintf(path, sizeof path, "%s/%s", bindir, names[i]);
    if (len <= 0 || (size_t)len >= sizeof path || access(path, X_OK) != 0)
      return false;
  }
  return true;
}

/// First line of what a program prints. @return false when there is none
static bool first_line(const char *command, char *out, size_t size) {
  FILE *pipe = popen(command, "re");
  if (pipe == NULL)
    return false;
  bool ok = fgets(out, (int)size, pipe) != NULL;
  pclose(pipe);
  if (ok)
    out[strcspn(out, "\n")] = '\0';
  return ok && out[0] != '\0';
}

/// Debian's place. @param version the major version wanted, NULL for the newest
static bool find_in_lib(const char *version, char *out, size_t size) {
  char pattern[128];
  snprintf(pattern, sizeof pattern, "/usr/lib/postgresql/%s/bin", version == NULL ? "*" : version);
  glob_t found;
  int64_t best = -1;
  if (glob(pattern, 0, NULL, &found) != 0)
    return false;
  for (size_t i = 0; i < found.gl_pathc; i++) {
    const char *number = found.gl_pathv[i] + strlen("/usr/lib/postgresql/");
    int64_t major;
    if (strict_int(number, strcspn(number, "/"), 1, 10000, &major) && major > best && has_programs(found.gl_pathv[i])) {
      best = major;
      snprintf(out, size, "%s", found.gl_pathv[i]);
    }
  }
  globfree(&found);
  return best > 0;
}

static bool find_in_path(char *out, size_t size) {
  const char *path = getenv("PATH");
  for (const char *at = path; at != NULL && *at != '\0';) {
    size_t len = strcspn(at, ":");
    int written = snprintf(out, size, "%.*s", (int)len, at);
    if (len > 0 && written > 0 && (size_t)written < size && has_programs(out))
      return true;
    at += len + (at[len] == ':');
  }
  return false;
}

/// The major version that made the cluster, or NULL when there is no cluster yet.
static const char *cluster_version(const struct dev_postgres *pg, char out[16]) {
  char path[4200];
  snprintf(path, sizeof path, "%s/PG_VERSION", pg->data);
  FILE *file = fopen(path, "re");
  if (file == NULL)
    return NULL;
  bool ok = fgets(out, 16, file) != NULL;
  fclose(file);
  out[ok ? strspn(out, "0123456789") : 0] = '\0';
  return out;
}

static bool find_programs(struct dev_postgres *pg) {
  char version[16];
  const char *wanted = cluster_version(pg, version);
  if (wanted != NULL && find_in_lib(wanted, pg->bindir, sizeof pg->bindir))
    return true;
  bool found =
      (first_line("pg_config --bindir 2>/dev/null", pg->bindir, sizeof pg->bindir) && has_programs(pg->bindir)) ||
      find_in_lib(NULL, pg->bindir, sizeof pg->bindir) || find_in_path(pg->bindir, sizeof pg->bindir);
  if (!found) {
    complain("PostgreSQL is not found (looked for postgres and initdb by pg_config, in /usr/lib/postgresql and in "
             "PATH). Install it: apt-get install postgresql");
    return false;
  }
  return true;
}

/// Whether the user that PostgreSQL runs as gets into @a dir.
static bool reachable(const struct dev_user *user, const char *dir) {
  if (!user->drop)
    return true;
  pid_t pid = fork();
  if (pid == 0)
    _exit(dev_drop(user) && access(dir, X_OK) == 0 ? 0 : 1);
  int status = 1;
  while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
    ;
  if (pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
    return true;
  complain("as root, PostgreSQL runs as user %s, who has no way into %s. Choose another directory with --data",
           user->name, dir);
  return false;
}

/// A directory that only the database's user may enter.
static bool private_dir(const struct dev_user *user, const char *path) {
  bool ok = mkdir(path, 0700) == 0 || errno == EEXIST;
  if (ok && user->drop)
    ok = lchown(path, user->uid, user->gid) == 0;
  ok = ok && chmod(path, 0700) == 0;
  if (!ok)
    complain("the directory %s cannot be made ready: %s", path, strerror(errno));
  return ok;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
  (void)st;
  (void)type;
  (void)ftw;
  return remove(path);
}

/// Makes the cluster in a directory beside and renames it when it is whole, so that an interrupted start leaves nothing
/// half-made behind.
static bool make_cluster(struct dev_postgres *pg) {
  char version[16], fresh[4200], initdb[4200];
  if (cluster_version(pg, version) != NULL)
    return true;
  if (!path_join(initdb, sizeof initdb, pg->bindir, "initdb"))
    return false;
  snprintf(fresh, sizeof fresh, "%s.new", pg->data);
  if (nftw(fresh, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT) {
    complain("the left-over %s cannot be removed: %s", fresh, strerror(errno));
    return false;
  }
  if (!private_dir(&pg->user, fresh))
    return false;
  fprintf(stderr, "Making a database in %s …\n", pg->data);
  // Trust is enough: the socket is the only way in, and it lies in a directory that only its owner may enter.
  char *argv[] = {initdb, "-D", fresh, "-U", DB_USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-instructions",
                  NULL};
  struct child child = {.name = "initdb", .log = pg->log, .cwd = fresh, .death_signal = SIGTERM};
  if (!child_start(&child, argv, &pg->user))
    return false;
  if (!child_wait(&child)) {
    child_explain(&child);
    return false;
  }
  if (rename(fresh, pg->data) != 0) {
    complain("%s cannot be put in place: %s", pg->data, strerror(errno));
    return false;
  }
  return true;
}

/// The socket's directory: under @a dir, or under /tmp where that path is too long for a socket.
static bool make_socket_dir(struct dev_postgres *pg, const char *dir) {
  char file[8192];
  struct sockaddr_un address;
  if (!path_join(pg->socket, sizeof pg->socket, dir, "run"))
    return false;
  snprintf(file, sizeof file, "%s/.s.PGSQL." DB_PORT ".lock", pg->socket);
  if (strlen(file) < sizeof address.sun_path)
    return private_dir(&pg->user, pg->socket);
  snprintf(pg->socket, sizeof pg->socket, "/tmp/stillhere-dev-XXXXXX");
  if (mkdtemp(pg->socket) == NULL) {
    complain("no directory for a socket can be made in /tmp: %s", strerror(errno));
    pg->socket[0] = '\0';
    return false;
  }
  pg->socket_temporary = true;
  return private_dir(&pg->user, pg->socket);
}

bool dev_postgres_prepare(struct dev_postgres *pg, const char *dir) {
  if (!choose_user(&pg->user) || !path_join(pg->data, sizeof pg->data, dir, "postgres") ||
      !path_join(pg->log, sizeof pg->log, dir, "postgres.log") || !reachable(&pg->user, dir) || !find_programs(pg) ||
      !make_cluster(pg) || !make_socket_dir(pg, dir))
    return false;
  struct buf url = {0};
  buf_puts(&url, "postgresql:///" DB_NAME);
  http_query_add(&url, "host", pg->socket);
  http_query_add(&url, "port", DB_PORT);
  http_query_add(&url, "user", DB_USER);
  bool ok = !url.failed && url.len < sizeof pg->url;
  if (ok)
    memcpy(pg->url, url.data, url.len + 1);
  else
    complain("memory ran out");
  buf_free(&url);
  return ok;
}

/// Makes the database where it is missing.
static bool make_database(const struct dev_postgres *pg) {
  const char *const keys[] = {"host", "port", "user", "dbname", "connect_timeout", NULL};
  const char *const values[] = {pg->socket, DB_PORT, DB_USER, "postgres", "10", NULL};
  PGconn *connection = PQconnectdbParams(keys, values, 0);
  bool ok = connection != NULL && PQstatus(connection) == CONNECTION_OK;
  if (ok) {
    PGresult *found = PQexec(connection, "SELECT 1 FROM pg_database WHERE datname = '" DB_NAME "'");
    ok = PQresultStatus(found) == PGRES_TUPLES_OK;
    if (ok && PQntuples(found) == 0) {
      PGresult *made = PQexec(connection, "CREATE DATABASE " DB_NAME);
      ok = PQresultStatus(made) == PGRES_COMMAND_OK;
      PQclear(made);
    }
    PQclear(found);
  }
  if (!ok)
    complain("the database cannot be made: %s", connection == NULL ? "memory ran out" : PQerrorMessage(connection));
  PQfinish(connection);
  return ok;
}

/// Waits until it takes connections.
static bool wait_until_up(struct dev_postgres *pg) {
  const char *const keys[] = {"host", "port", "user", "dbname", "connect_timeout", NULL};
  const char *const values[] = {pg->socket, DB_PORT, DB_USER, "postgres", "2", NULL};
  int64_t began_us = clock_mono_us(), deadline_us = began_us + (int64_t)START_MS * 1000;
  bool told = false;
  while (PQpingParams(keys, values, 0) != PQPING_OK) {
    if (signals_sleep(START_LOOK_MS))
      return false;
    if (!told && clock_mono_us() - began_us > SILENT_US) {
      fprintf(stderr, "Waiting for PostgreSQL to start …\n");
      told = true;
    }
    if (!child_running(&pg->child)) {
      child_explain(&pg->child);
      return false;
    }
    if (clock_mono_us() > deadline_us) {
      complain("PostgreSQL does not take connections, see %s", pg->log);
      return false;
    }
  }
  return true;
}

bool dev_postgres_start(struct dev_postgres *pg) {
  char program[4200], permissions[] = "unix_socket_permissions=0700", port[] = "port=" DB_PORT;
  if (!path_join(program, sizeof program, pg->bindir, "postgres"))
    return false;
  char *argv[] = {program,
                  "-D",
                  pg->data,
                  "-k",
                  pg->socket,
                  "-c",
                  "listen_addresses=",
                  "-c",
                  port,
                  "-c",
                  permissions,
                  "-c",
                  "logging_collector=off",
                  NULL};
  pg->child = (struct child){.name = "postgres", .log = pg->log, .cwd = pg->data, .death_signal = SIGINT};
  return child_start(&pg->child, argv, &pg->user) && wait_until_up(pg) && make_database(pg);
}

void dev_postgres_stop(struct dev_postgres *pg) {
  // SIGINT is the fast shutdown, SIGQUIT the immediate one: recovery at the next start, nothing lost.
  child_stop(&pg->child, SIGINT, SIGQUIT, STOP_GRACE_MS);
  if (pg->socket_temporary)
    (void)rmdir(pg->socket); // empty by now, unless the server was killed
}
