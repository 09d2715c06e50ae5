// SPDX-License-Identifier: Apache-2.0
/// @file
/// Random numbers for jitter and request ids. Each thread has its own generator, seeded from the kernel. Not for keys.
#ifndef SH_BASE_RAND_H
#define SH_BASE_RAND_H

#include <stdint.h>

/// Uniform in [0, @a bound); 0 when @a bound is 0. Any thread.
uint64_t rand_below(uint64_t bound);

/// @a value less a random part of up to 1/@a part of it (CONTRACT §2: part 5 is 20 %).
int64_t jitter_down(int64_t value, int64_t part);

/// @a value plus a random part of up to 1/@a part of it.
int64_t jitter_up(int64_t value, int64_t part);

/// Writes a new request id: 20 lower-case base-32 characters and a NUL.
void request_id_make(char out[21]);

#endif
