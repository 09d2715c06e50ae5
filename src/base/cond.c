// SPDX-License-Identifier: Apache-2.0
#include "base/cond.h"

#include <time.h>

bool cond_init(pthread_cond_t *cond) {
  pthread_condattr_t attr;
  if (pthread_condattr_init(&attr) != 0)
    return false;
  bool ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 && pthread_cond_init(cond, &attr) == 0;
  (void)pthread_condattr_destroy(&attr);
  return ok;
}

void cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t due_us) {
  struct timespec due = {.tv_sec = due_us / 1000000, .tv_nsec = due_us % 1000000 * 1000};
  (void)pthread_cond_timedwait(cond, lock, &due);
}
