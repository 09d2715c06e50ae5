// SPDX-License-Identifier: Apache-2.0
#include "base/rand.h"

#include <stdbool.h>
#include <sys/random.h>
#include <sys/types.h>

#include "base/clock.h"

/// xoshiro256**, one for each thread, so that nothing is shared and nothing is locked.
static _Thread_local struct {
  uint64_t s[4];
  bool seeded;
} generator;

/// Spreads a poor seed over all bits (splitmix64).
static uint64_t mix(uint64_t *x) {
  uint64_t z = *x += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static void seed(void) {
  if (getrandom(generator.s, sizeof generator.s, GRND_NONBLOCK) != (ssize_t)sizeof generator.s) {
    // Early at boot the kernel may have no randomness yet. Jitter needs none; request ids of two threads still differ.
    uint64_t x = (uint64_t)clock_mono_us() ^ (uint64_t)(uintptr_t)&generator;
    for (int i = 0; i < 4; i++)
      generator.s[i] = mix(&x);
  }
  generator.s[0] |= 1; // all zero is the one state that it never leaves
  generator.seeded = true;
}

static uint64_t rotate(uint64_t x, int k) {
  return (x << k) | (x >> (64 - k));
}

static uint64_t next(void) {
  if (!generator.seeded)
    seed();
  uint64_t *s = generator.s;
  uint64_t result = rotate(s[1] * 5, 7) * 9;
  uint64_t t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = rotate(s[3], 45);
  return result;
}

uint64_t rand_below(uint64_t bound) {
  if (bound == 0)
    return 0;
  // The lowest (2^64 mod bound) draws are thrown away, or small results would come a little too often.
  uint64_t reject_below = (0 - bound) % bound;
  uint64_t draw;
  do
    draw = next();
  while (draw < reject_below);
  return draw % bound;
}

int64_t jitter_down(int64_t value, int64_t part) {
  if (value <= 0 || part <= 0)
    return value;
  return value - (int64_t)rand_below((uint64_t)(value / part) + 1);
}

int64_t jitter_up(int64_t value, int64_t part) {
  if (value <= 0 || part <= 0)
    return value;
  int64_t extra = (int64_t)rand_below((uint64_t)(value / part) + 1);
  return extra > INT64_MAX - value ? INT64_MAX : value + extra;
}

void request_id_make(char out[21]) {
  static const char alphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";
  uint64_t bits = 0;
  for (int i = 0; i < 20; i++) {
    if (i % 10 == 0)
      bits = next();
    out[i] = alphabet[bits >> 59];
    bits <<= 5;
  }
  out[20] = '\0';
}
