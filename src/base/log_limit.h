// SPDX-License-Identifier: Apache-2.0
/// @file
/// How often one kind of line may be logged, where what it tells of is in the hands of strangers. Lock-free, any
/// thread.
#ifndef SH_BASE_LOG_LIMIT_H
#define SH_BASE_LOG_LIMIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/// Lines a second in the long run, and at once after a silence.
#define LOG_LIMIT_PER_S 5
#define LOG_LIMIT_BURST 20

/// Of one kind of line. Zero-initialise.
struct log_limit {
  _Atomic int64_t paid_until_us; ///< when what was written is forgotten: an interval later for each line
  _Atomic int64_t left_out;
};

/// Asks for one line more. @param now_us monotonic
/// @param[out] left_out with true, how many were not written since the last one that was
/// @return whether it may be written
bool log_limit_take(struct log_limit *limit, int64_t now_us, int64_t *left_out);

/// The same for what repeats by itself until somebody sees to it: @a burst lines at once after a silence, in the long
/// run one every @a interval_us. The same two for all calls with one limit.
bool log_limit_take_every(struct log_limit *limit, int64_t interval_us, int burst, int64_t now_us, int64_t *left_out);

#endif
