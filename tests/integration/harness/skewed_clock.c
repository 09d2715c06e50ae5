// SPDX-License-Identifier: Apache-2.0
// Put in front of the C library of a daemon (LD_PRELOAD): its wall clock is wrong by $CLOCK_SKEW_S seconds. The
// monotonic clock, which local waits go by, is right.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long skew(void) {
  const char *text = getenv("CLOCK_SKEW_S");
  return text != NULL ? strtol(text, NULL, 10) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
  long result = syscall(SYS_clock_gettime, clock, t);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    t->tv_sec += skew();
  return (int)result;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
  (void)zone;
  struct timespec now;
  (void)clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *to) {
  struct timespec now;
  (void)clock_gettime(CLOCK_REALTIME, &now);
  if (to != NULL)
    *to = now.tv_sec;
  return now.tv_sec;
}
