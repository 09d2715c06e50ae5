// SPDX-License-Identifier: Apache-2.0
#include "cli/dev_child.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/options.h"
#include "cli/signals.h"

/// A log that is longer than this when a program starts is put aside as `….1`.
#define LOG_KEEP_BYTES (16 << 20)
/// How much of the end of a log is shown.
#define LOG_SHOWN_BYTES 1500
#define HARD_GRACE_MS 5000

bool dev_drop(const struct dev_user *user) {
  if (!user->drop)
    return true;
  return initgroups(user->name, user->gid) == 0 && setgid(user->gid) == 0 && setuid(user->uid) == 0;
}

static int open_log(const char *path) {
  struct stat st;
  if (stat(path, &st) == 0 && st.st_size > LOG_KEEP_BYTES) {
    char aside[4096];
    int len = snprintf(aside, sizeof aside, "%s.1", path);
    if (len > 0 && (size_t)len < sizeof aside)
      (void)rename(path, aside); // a log that stays in place only grows
  }
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0)
    complain("%s cannot be written: %s", path, strerror(errno));
  return fd;
}

/// In the child: becomes the program.
static void become(const struct child *child, char *const argv[], const struct dev_user *user, pid_t parent) {
  setpgid(0, 0);
  signals_reset();
  const char *failed = NULL;
  if (!dev_drop(user))
    failed = "the rights of root cannot be given up";
  // After the change of user, which would clear it. A parent that died before this line is seen by the comparison.
  else if (prctl(PR_SET_PDEATHSIG, child->death_signal) != 0 || getppid() != parent)
    failed = "stillhere dev has ended";
  else if (child->cwd != NULL && chdir(child->cwd) != 0)
    failed = child->cwd;
  if (failed == NULL) {
    execv(argv[0], argv);
    failed = argv[0];
  }
  dprintf(STDERR_FILENO, "%s: %s\n", failed, strerror(errno));
  _exit(127);
}

bool child_start(struct child *child, char *const argv[], const struct dev_user *user) {
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC), log = open_log(child->log);
  int out = child->out == NULL || log < 0 ? -1 : open_log(child->out);
  bool ok = null >= 0 && log >= 0 && (child->out == NULL || out >= 0);
  if (ok) {
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
      dup2(null, STDIN_FILENO);
      dup2(out >= 0 ? out : log, STDOUT_FILENO);
      dup2(log, STDERR_FILENO);
      become(child, argv, user, parent);
    }
    ok = pid > 0;
    if (ok)
      child->pid = pid;
    else
      complain("%s cannot be started: %s", child->name, strerror(errno));
    child->ended = false;
  }
  if (null >= 0)
    close(null);
  if (log >= 0)
    close(log);
  if (out >= 0)
    close(out);
  return ok;
}

bool child_running(struct child *child) {
  if (child->pid == 0 || child->ended)
    return false;
  pid_t pid = waitpid(child->pid, &child->status, WNOHANG);
  child->ended = pid == child->pid || (pid < 0 && errno != EINTR);
  return !child->ended;
}

bool child_wait(struct child *child) {
  while (child_running(child)) {
    if (signals_sleep(1000))
      child_stop(child, SIGTERM, SIGKILL, HARD_GRACE_MS);
  }
  return child->pid != 0 && WIFEXITED(child->status) && WEXITSTATUS(child->status) == 0;
}

void child_stop(struct child *child, int gentle, int hard, int64_t grace_ms) {
  if (!child_running(child))
    return;
  int stops = signals_stops();
  int64_t deadline_us = clock_mono_us() + grace_ms * 1000;
  kill(child->pid, gentle);
  while (child_running(child)) {
    if (clock_mono_us() >= deadline_us || signals_stops() > stops) {
      kill(child->pid, hard);
      hard = SIGKILL;
      deadline_us = clock_mono_us() + (int64_t)HARD_GRACE_MS * 1000;
      stops = signals_stops();
    }
    signals_sleep(100);
  }
}

void child_explain(const struct child *child) {
  if (WIFSIGNALED(child->status))
    complain("%s was ended by signal %d (%s)", child->name, WTERMSIG(child->status),
             strsignal(WTERMSIG(child->status)));
  else
    complain("%s has ended (exit status %d)", child->name, WEXITSTATUS(child->status));
  FILE *log = fopen(child->log, "re");
  if (log == NULL)
    return;
  char text[LOG_SHOWN_BYTES + 1];
  bool cut = fseek(log, -(long)LOG_SHOWN_BYTES, SEEK_END) == 0;
  if (!cut)
    rewind(log);
  size_t len = fread(text, 1, LOG_SHOWN_BYTES, log);
  fclose(log);
  text[len] = '\0';
  const char *start = cut ? strchr(text, '\n') : text;
  if (start != NULL && len > 0)
    fprintf(stderr, "The end of %s:\n%s", child->log, start + (cut ? 1 : 0));
}
