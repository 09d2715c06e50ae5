// SPDX-License-Identifier: Apache-2.0
#include "base/log_limit.h"

#define INTERVAL_US (INT64_C(1000000) / LOG_LIMIT_PER_S)

bool log_limit_take_every(struct log_limit *limit, int64_t interval_us, int burst, int64_t now_us, int64_t *left_out) {
  int64_t until_us = atomic_load_explicit(&limit->paid_until_us, memory_order_relaxed);
  int64_t next_us;
  do {
    next_us = (until_us > now_us ? until_us : now_us) + interval_us;
    if (next_us > now_us + burst * interval_us) {
      atomic_fetch_add_explicit(&limit->left_out, 1, memory_order_relaxed);
      return false;
    }
  } while (!atomic_compare_exchange_weak_explicit(&limit->paid_until_us, &until_us, next_us, memory_order_relaxed,
                                                  memory_order_relaxed));
  *left_out = atomic_exchange_explicit(&limit->left_out, 0, memory_order_relaxed);
  return true;
}

bool log_limit_take(struct log_limit *limit, int64_t now_us, int64_t *left_out) {
  return log_limit_take_every(limit, INTERVAL_US, LOG_LIMIT_BURST, now_us, left_out);
}
