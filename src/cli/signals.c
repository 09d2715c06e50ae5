// SPDX-License-Identifier: Apache-2.0
#include "cli/signals.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"

static int fd = -1;
static sigset_t caught;
static int stops;
static unsigned news;

bool signals_open(bool children) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);
  if (children)
    sigaddset(&set, SIGCHLD);
  if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
    return false;
  signal(SIGPIPE, SIG_IGN);
  caught = set;
  fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  return fd >= 0;
}

bool signals_take_terminal(void) {
  sigaddset(&caught, SIGWINCH);
  sigaddset(&caught, SIGTSTP);
  sigaddset(&caught, SIGCONT);
  sigaddset(&caught, SIGQUIT);
  return sigprocmask(SIG_BLOCK, &caught, NULL) == 0 && signalfd(fd, &caught, 0) == fd;
}

void signals_suspend(void) {
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &only, NULL);
  raise(SIGTSTP);
  sigprocmask(SIG_BLOCK, &only, NULL);
}

int signals_fd(void) {
  return fd;
}

int signals_stops(void) {
  struct signalfd_siginfo info;
  while (read(fd, &info, sizeof info) == (ssize_t)sizeof info) {
    if (info.ssi_signo == SIGWINCH)
      news |= TERMINAL_RESIZED;
    else if (info.ssi_signo == SIGTSTP)
      news |= TERMINAL_SUSPEND;
    else if (info.ssi_signo == SIGCONT)
      news |= TERMINAL_CONTINUED;
    else if (info.ssi_signo != SIGCHLD)
      stops++;
  }
  return stops;
}

int signals_seen(void) {
  return stops;
}

unsigned signals_terminal(bool forget) {
  unsigned was = news;
  if (forget)
    news = 0;
  return was;
}

bool signals_sleep(int64_t ms) {
  int64_t deadline_us = clock_mono_us() + ms * 1000;
  for (;;) {
    int64_t left_ms = (deadline_us - clock_mono_us() + 999) / 1000;
    if (left_ms < 0)
      left_ms = 0;
    struct pollfd watched = {.fd = fd, .events = POLLIN};
    int n = poll(&watched, 1, left_ms > 60000 ? 60000 : (int)left_ms);
    if (n < 0 && errno != EINTR)
      return stops > 0;
    // A child's end wakes too: the caller looks what it was.
    if (n > 0 || left_ms == 0)
      return signals_stops() > 0;
  }
}

void signals_reset(void) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  signal(SIGPIPE, SIG_DFL);
}
