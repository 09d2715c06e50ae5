// SPDX-License-Identifier: Apache-2.0
/// @file
/// `stillhere dev`: a private PostgreSQL and the server on it, in the foreground, until Ctrl-C. Data and logs stay in
/// one directory for the next start.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/dev_postgres.h"
#include "cli/http.h"
#include "cli/signals.h"
#include "cli/text.h"

#define READY_MS 60000
#define READY_LOOK_MS 50
/// Who waits longer than this is told for what.
#define SILENT_MS 1800
/// The server promises to be gone 10 s after SIGTERM.
#define STOP_GRACE_MS 12000
/// How long a start waits for the end of an earlier one that was killed.
#define LOCK_WAIT_MS 15000
/// The room of the examples.
#define ROOM "class-7"

extern char **environ;

/// What needs no quotes in a shell.
#define PLAIN_IN_SHELL "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-"

struct dev {
  const struct options *options;
  char dir[4096];
  char log[4200], decisions[4200];
  char program[4200]; ///< stillhered
  char self[4096];    ///< this program, for the examples
  char url[300];
  struct dev_postgres postgres;
  struct child server;
  struct http *http;
};

/// Makes @a path and what is missing above it.
static bool make_dirs(const char *path, mode_t mode) {
  char part[4096];
  size_t len = strlen(path);
  if (len == 0 || len >= sizeof part)
    return false;
  memcpy(part, path, len + 1);
  for (char *slash = strchr(part + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    if (mkdir(part, 0755) != 0 && errno != EEXIST)
      return false;
    *slash = '/';
  }
  return mkdir(part, mode) == 0 || errno == EEXIST;
}

static bool choose_dir(struct dev *dev) {
  const char *home = getenv("HOME"), *xdg = getenv("XDG_DATA_HOME");
  char path[4096];
  int len;
  if (dev->options->data != NULL)
    len = snprintf(path, sizeof path, "%s", dev->options->data);
  else if (geteuid() == 0)
    len = snprintf(path, sizeof path, "/var/lib/stillhere-dev");
  else if (xdg != NULL && xdg[0] == '/')
    len = snprintf(path, sizeof path, "%s/stillhere/dev", xdg);
  else
    len = snprintf(path, sizeof path, "%s/.local/share/stillhere/dev", home == NULL ? "" : home);
  // Root's PostgreSQL runs as another user, who has to pass through.
  bool ok = len > 0 && (size_t)len < sizeof path && make_dirs(path, geteuid() == 0 ? 0711 : 0700);
  char *real = ok ? realpath(path, NULL) : NULL;
  // The names of the files in it must fit behind it.
  ok = real != NULL && strlen(real) + 64 < sizeof dev->dir;
  if (ok)
    snprintf(dev->dir, sizeof dev->dir, "%s", real);
  else
    complain("the directory %s cannot be used: %s. Choose another with --data", path, strerror(errno));
  free(real);
  return ok;
}

/// One `dev` a directory. The lock is inherited by the programs we start, so that it also stands while those of a
/// killed `dev` are still ending.
static bool lock_dir(const struct dev *dev) {
  char path[4200];
  snprintf(path, sizeof path, "%s/lock", dev->dir);
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  if (fd < 0) {
    complain("%s cannot be opened: %s", path, strerror(errno));
    return false;
  }
  int64_t deadline_us = clock_mono_us() + (int64_t)LOCK_WAIT_MS * 1000;
  for (bool told = false; flock(fd, LOCK_EX | LOCK_NB) != 0; told = true) {
    if (!told)
      fprintf(stderr, "Waiting for an earlier stillhere dev in %s to end …\n", dev->dir);
    if (signals_sleep(200))
      return false;
    if (clock_mono_us() > deadline_us) {
      complain("another stillhere dev runs in %s. Stop it, or choose another directory with --data", dev->dir);
      return false;
    }
  }
  return true;
}

/// Looks for stillhered where it stands after a build and after an installation.
static bool find_server(struct dev *dev) {
  ssize_t len = readlink("/proc/self/exe", dev->self, sizeof dev->self - 1);
  dev->self[len > 0 ? len : 0] = '\0';
  if (dev->options->stillhered != NULL) {
    snprintf(dev->program, sizeof dev->program, "%s", dev->options->stillhered);
  } else {
    const char *slash = strrchr(dev->self, '/');
    int dir_len = slash == NULL ? 0 : (int)(slash - dev->self);
    snprintf(dev->program, sizeof dev->program, "%.*s/stillhered", dir_len, dev->self);
    if (access(dev->program, X_OK) != 0)
      snprintf(dev->program, sizeof dev->program, "%.*s/../sbin/stillhered", dir_len, dev->self);
    for (const char *at = getenv("PATH"); access(dev->program, X_OK) != 0 && at != NULL && *at != '\0';) {
      size_t n = strcspn(at, ":");
      snprintf(dev->program, sizeof dev->program, "%.*s/stillhered", (int)n, at);
      at += n + (at[n] == ':');
    }
  }
  if (access(dev->program, X_OK) == 0)
    return true;
  complain("the server program stillhered is not found. Say where it is with --stillhered PATH");
  return false;
}

/// What is set for other databases and for the command itself must not reach the programs we start.
static bool set_environment(const struct dev *dev) {
  for (char **entry = environ; *entry != NULL;) {
    size_t len = strcspn(*entry, "=");
    char name[64];
    bool ours = strncmp(*entry, "PG", 2) == 0 && len < sizeof name;
    if (ours) {
      snprintf(name, sizeof name, "%.*s", (int)len, *entry);
      unsetenv(name); // moves the rest up
    } else {
      entry++;
    }
  }
  unsetenv("STILLHERE_URL");
  unsetenv("STILLHERE_TOKEN_FILE");
  unsetenv("STILLHERE_DATABASE_LISTEN_URL");
  return setenv("STILLHERE_DATABASE_URL", dev->postgres.url, 1) == 0 &&
         setenv("STILLHERE_LISTEN", dev->options->listen, 1) == 0 && setenv("STILLHERE_LOG_FORMAT", "text", 0) == 0;
}

/// Starts the server and waits until it says that it is ready.
static bool start_server(struct dev *dev) {
  char *argv[] = {dev->program, NULL};
  struct http_reply reply = {0};
  bool taken = http_send(dev->http, "GET", "/healthz", NULL, 1000, &reply) == HTTP_ANSWERED;
  http_reply_clear(&reply);
  if (taken) {
    complain("something answers at %s already: stop it, or use another address with --listen", dev->url);
    return false;
  }
  dev->server = (struct child){.name = "stillhered", .log = dev->log, .out = dev->decisions, .death_signal = SIGTERM};
  struct dev_user same = {0};
  if (!child_start(&dev->server, argv, &same))
    return false;
  int64_t began_us = clock_mono_us(), deadline_us = began_us + (int64_t)READY_MS * 1000;
  bool ready = false, told = false;
  for (;;) {
    // Its end is looked for first: another program on that address might answer in its place.
    bool running = child_running(&dev->server);
    if (!running) {
      child_explain(&dev->server);
      break;
    }
    ready = http_send(dev->http, "GET", "/readyz", NULL, 2000, &reply) == HTTP_ANSWERED && reply.status == 200 &&
            child_running(&dev->server);
    if (ready || signals_sleep(READY_LOOK_MS))
      break;
    if (!told && clock_mono_us() - began_us > (int64_t)SILENT_MS * 1000) {
      fprintf(stderr, "Waiting for the server to get ready …\n");
      told = true;
    }
    if (clock_mono_us() > deadline_us) {
      complain("the server does not get ready (%s/readyz), see %s", dev->url, dev->log);
      break;
    }
  }
  http_reply_clear(&reply);
  return ready;
}

/// The revision of the example room, so that the printed cursors fit an old room too.
static int64_t room_revision(const struct dev *dev) {
  struct http_reply reply = {0};
  int64_t revision = 0;
  if (http_send(dev->http, "GET", "/rooms/" ROOM "/presence?view=count", NULL, 5000, &reply) == HTTP_ANSWERED)
    revision = number_of(reply.json, "revision", 0);
  http_reply_clear(&reply);
  return revision;
}

static void welcome(const struct dev *dev) {
  if (dev->options->json) {
    json_t *line =
        json_pack("{ss ss ss ss ss ss}", "url", dev->url, "data", dev->dir, "database_url", dev->postgres.url, "log",
                  dev->log, "decisions", dev->decisions, "postgres_log", dev->postgres.log);
    print_json(line);
    json_decref(line);
    return;
  }
  // The session is named after the room's revision as well: one that an earlier run closed stays closed.
  // The renewal writes two events: the session's lease.granted and the person's user.online.
  int64_t head = room_revision(dev);
  const char *quote = strspn(dev->self, PLAIN_IN_SHELL) == strlen(dev->self) ? "" : "'";
  bool elsewhere = strcmp(dev->url, URL_DEFAULT) != 0;
  const char *option = elsewhere ? " --url " : "", *url = elsewhere ? dev->url : "";
  printf("stillhere is running at %s\n"
         "Open it in a browser to see who is here.\n\n"
         "1. Renew a lease, in another terminal; repeat it within 15 s to stay:\n"
         "   curl -sS -X PUT %s/leases -d '{\"room_id\":\"" ROOM
         "\",\"user_id\":\"an\",\"session_id\":\"tab-%lld\",\"ttl_ms\":15000}'\n"
         "2. Watch the room; the answer comes as soon as there is something new:\n"
         "   curl -sS '%s/rooms/" ROOM "/presence?since=%lld&wait_ms=25000'\n"
         "3. Stop renewing, and wait for the one lease.expired that follows:\n"
         "   curl -sS '%s/rooms/" ROOM "/presence?since=%lld&kinds=lease.expired&wait_ms=25000'\n\n"
         "The same without curl:\n"
         "   %s%s%s renew " ROOM " an%s%s\n"
         "   %s%s%s watch " ROOM "%s%s\n\n"
         "Data       %s (kept for the next start)\n"
         "Logs       %s, %s\n"
         "Decisions  %s\n\n"
         "Ctrl-C stops it.\n",
         dev->url, dev->url, (long long)head + 1, dev->url, (long long)head, dev->url, (long long)head + 1, quote,
         dev->self, quote, option, url, quote, dev->self, quote, option, url, dev->dir, dev->log, dev->postgres.log,
         dev->decisions);
  fflush(stdout);
}

/// Runs until a stop signal, or until one of the programs ends by itself.
static int stay(struct dev *dev) {
  for (;;) {
    if (!child_running(&dev->server)) {
      child_explain(&dev->server);
      return EXIT_REFUSED;
    }
    if (!child_running(&dev->postgres.child)) {
      child_explain(&dev->postgres.child);
      return EXIT_REFUSED;
    }
    if (signals_sleep(60000))
      return EXIT_DONE;
  }
}

static bool prepare(struct dev *dev) {
  int len = snprintf(dev->url, sizeof dev->url, "http://%s", dev->options->listen);
  if (strncmp(dev->options->listen, "unix:", 5) == 0 || len < 0 || (size_t)len >= sizeof dev->url) {
    complain("--listen takes an address like 127.0.0.1:7470");
    return false;
  }
  if (!find_server(dev) || !choose_dir(dev) || !lock_dir(dev))
    return false;
  snprintf(dev->log, sizeof dev->log, "%s/stillhered.log", dev->dir);
  snprintf(dev->decisions, sizeof dev->decisions, "%s/decisions.log", dev->dir);
  dev->http = http_open(dev->url, NULL);
  if (dev->http == NULL)
    complain("memory ran out");
  return dev->http != NULL;
}

int cmd_dev(const struct options *options) {
  struct dev *dev = calloc(1, sizeof *dev);
  if (dev == NULL) {
    complain("memory ran out");
    return EXIT_REFUSED;
  }
  dev->options = options;
  int code = EXIT_REFUSED;
  if (prepare(dev) && dev_postgres_prepare(&dev->postgres, dev->dir) && set_environment(dev) &&
      dev_postgres_start(&dev->postgres) && start_server(dev)) {
    welcome(dev);
    code = stay(dev);
  }
  if (signals_stops() > 0) {
    fputs("Stopping …\n", stderr);
    code = EXIT_DONE;
  }
  child_stop(&dev->server, SIGTERM, SIGKILL, STOP_GRACE_MS);
  dev_postgres_stop(&dev->postgres);
  http_close(dev->http);
  free(dev);
  return code;
}
