// SPDX-License-Identifier: Apache-2.0
/// @file
/// Programs that `stillhere dev` starts, watches and stops. None outlives it, not even a kill -9 of it.
#ifndef SH_CLI_DEV_CHILD_H
#define SH_CLI_DEV_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/// Whom a program runs as.
struct dev_user {
  bool drop; ///< false: as whoever we are
  const char *name;
  uid_t uid;
  gid_t gid;
};

struct child {
  const char *name; ///< for messages
  const char *log;  ///< file that standard error goes to, appended
  const char *out;  ///< file that standard output goes to; NULL: the same as log
  const char *cwd;  ///< NULL: ours
  int death_signal; ///< what it gets when we die
  pid_t pid;        ///< 0: not started
  bool ended;
  int status; ///< of waitpid(), once ended
};

/// Gives up the rights of root for @a user, if that is asked for. In a child only. @return false on failure
bool dev_drop(const struct dev_user *user);

/// Starts the program @a argv[0] (a path) in a process group of its own, so that Ctrl-C on the terminal reaches us
/// alone and we stop the programs in order. @return false on failure (said)
bool child_start(struct child *child, char *const argv[], const struct dev_user *user);

/// Whether it runs; takes note of its end.
bool child_running(struct child *child);

/// Waits for its end, or a stop signal, which kills it. @return true when it ended with status 0
bool child_wait(struct child *child);

/// Sends @a gentle and waits @a grace_ms; then, or when another Ctrl-C comes, @a hard; 5 s later SIGKILL.
void child_stop(struct child *child, int gentle, int hard, int64_t grace_ms);

/// Says on standard error how it ended, with the last lines of its log.
void child_explain(const struct child *child);

#endif
