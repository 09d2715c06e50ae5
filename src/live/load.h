// SPDX-License-Identifier: Apache-2.0
/// @file
/// How heavily the database is loaded, by how long heartbeats wait for their commit, and what follows: before anybody
/// is refused, leases are granted for longer, so that clients, who renew after a third of that, come less often. Falls
/// back by itself. A slow database counts, one that is away does not.
#ifndef SH_LIVE_LOAD_H
#define SH_LIVE_LOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/// Zero-initialised is at ease.
struct load {
  _Atomic int64_t zero_us; ///< monotonic: when the measure, which falls steadily, comes to nothing
  bool heavy;              ///< the writer's: what the log has said last
};

/// A heartbeat without a load waits less than this, microseconds.
#define LOAD_EASE_US INT64_C(500000)
/// With waits of this length the factor is at its largest.
#define LOAD_FULL_US INT64_C(2000000)
/// That factor, in thousandths.
#define LOAD_FACTOR_MAX 4000

/// Notes that a batch was committed whose oldest heartbeat had waited so long. The measure goes half of the way up to
/// it; down it goes by itself, a quarter of a second in each. The writer's thread.
void load_note(struct load *load, int64_t waited_us, int64_t now_us);

/// The factor at @a now_us (monotonic), in thousandths: 1000 to LOAD_FACTOR_MAX. Any thread.
int64_t load_thousandths(const struct load *load, int64_t now_us);

/// A ttl times the factor, up to @a max_ms. Never less than @a ttl_ms. Any thread.
int32_t load_lengthen(const struct load *load, int32_t ttl_ms, int64_t max_ms, int64_t now_us);

#endif
