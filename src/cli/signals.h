// SPDX-License-Identifier: Apache-2.0
/// @file
/// Signals as something to poll: they are blocked and arrive through a descriptor, so that every wait of the command,
/// for the network or for time, ends at once on Ctrl-C. One thread.
#ifndef SH_CLI_SIGNALS_H
#define SH_CLI_SIGNALS_H

#include <stdbool.h>
#include <stdint.h>

/// Blocks SIGINT, SIGTERM and SIGHUP, with @a children SIGCHLD too, and ignores SIGPIPE. Once, before any wait.
/// @return false when there is no descriptor to be had (errno set)
bool signals_open(bool children);

/// Becomes readable when a signal has come.
int signals_fd(void);

/// Takes in what has come. @return how many of the stop signals have come so far
int signals_stops(void);

/// How many stop signals signals_stops() has told of so far, without looking for more.
int signals_seen(void);

/// For a command that draws on the terminal: from now on it is told of a new size and of Ctrl-Z, and Ctrl-\ is a stop
/// signal.
/// @return false when that is not to be had (errno set)
bool signals_take_terminal(void);

/// What has happened to the terminal since this was last asked with @a forget: bits of enum terminal_news.
unsigned signals_terminal(bool forget);

enum terminal_news {
  TERMINAL_RESIZED = 1,
  TERMINAL_SUSPEND = 2,   ///< signals_suspend() is due
  TERMINAL_CONTINUED = 4, ///< others may have drawn meanwhile
};

/// Does what Ctrl-Z does by default, and comes back when the process is continued.
void signals_suspend(void);

/// Waits for a signal or for @a ms to pass. @return whether a stop signal has ever come
bool signals_sleep(int64_t ms);

/// In a child before exec: back to the default.
void signals_reset(void);

#endif
