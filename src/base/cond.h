// SPDX-License-Identifier: Apache-2.0
/// @file
/// Conditions that are waited for on the monotonic clock, on which all deadlines of the process are.
#ifndef SH_BASE_COND_H
#define SH_BASE_COND_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/// @return false when a resource is missing. Released with pthread_cond_destroy()
bool cond_init(pthread_cond_t *cond);

/// Waits until it is signalled or until @a due_us (clock_mono_us()), with @a lock held. It may return early, as
/// pthread_cond_timedwait() may: look again.
void cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t due_us);

#endif
