// SPDX-License-Identifier: Apache-2.0
/// @file
/// A histogram of durations for /metrics: how many fell below each bound, and their sum. Relaxed atomics, any thread.
#ifndef SH_BASE_HISTOGRAM_H
#define SH_BASE_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/buf.h"

#define HISTOGRAM_BOUNDS 10

/// A bound in microseconds, and as Prometheus wants to read it.
struct histogram_bound {
  int64_t us;
  const char *seconds;
};

/// Made by its name, help and bounds; the rest is zero.
struct histogram {
  const char *name, *help;
  struct histogram_bound bounds[HISTOGRAM_BOUNDS];
  _Atomic int64_t counts[HISTOGRAM_BOUNDS + 1]; ///< each bucket by itself; the last has no bound
  _Atomic int64_t sum_us;
};

/// Counts one duration, microseconds. What is negative counts as nought. A bound belongs to its bucket.
void histogram_add(struct histogram *h, int64_t us);

/// Appends it in Prometheus text format, head included.
void histogram_render(struct buf *b, const struct histogram *h);

#endif
