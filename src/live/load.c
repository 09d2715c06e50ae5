// SPDX-License-Identifier: Apache-2.0
#include "live/load.h"

#include "base/log.h"

/// The measure falls by this part of the time that passes. So it is a straight line, and the moment at which it comes
/// to nothing says all of it.
#define FALL 4

static int64_t measure_us(const struct load *load, int64_t now_us) {
  int64_t zero_us = atomic_load_explicit(&load->zero_us, memory_order_relaxed);
  return zero_us > now_us ? (zero_us - now_us) / FALL : 0;
}

int64_t load_thousandths(const struct load *load, int64_t now_us) {
  int64_t us = measure_us(load, now_us);
  if (us <= LOAD_EASE_US)
    return 1000;
  if (us >= LOAD_FULL_US)
    return LOAD_FACTOR_MAX;
  return 1000 + (us - LOAD_EASE_US) * (LOAD_FACTOR_MAX - 1000) / (LOAD_FULL_US - LOAD_EASE_US);
}

void load_note(struct load *load, int64_t waited_us, int64_t now_us) {
  int64_t us = measure_us(load, now_us);
  if (waited_us > us) {
    us += (waited_us - us) / 2;
    atomic_store_explicit(&load->zero_us, now_us + us * FALL, memory_order_relaxed);
  }
  bool heavy = us > LOAD_EASE_US;
  if (heavy && !load->heavy)
    log_warning("heartbeats wait %lld ms for the database: leases are granted for longer until that is over",
                (long long)waited_us / 1000);
  else if (!heavy && load->heavy)
    log_info("heartbeats do not wait for the database any more: leases are as long as asked for again");
  load->heavy = heavy;
}

int32_t load_lengthen(const struct load *load, int32_t ttl_ms, int64_t max_ms, int64_t now_us) {
  int64_t longer_ms = ttl_ms * load_thousandths(load, now_us) / 1000;
  if (longer_ms > max_ms)
    longer_ms = max_ms;
  return longer_ms > ttl_ms ? (int32_t)longer_ms : ttl_ms;
}
