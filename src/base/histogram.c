// SPDX-License-Identifier: Apache-2.0
#include "base/histogram.h"

#include <inttypes.h>

void histogram_add(struct histogram *h, int64_t us) {
  if (us < 0) {
    us = 0;
  }
  int i = 0;
  while (i < HISTOGRAM_BOUNDS && us > h->bounds[i].us) {
    i++;
  }
  atomic_fetch_add_explicit(&h->counts[i], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&h->sum_us, us, memory_order_relaxed);
}

void histogram_render(struct buf *b, const struct histogram *h) {
  buf_printf(b, "# HELP %s %s\n# TYPE %s histogram\n", h->name, h->help, h->name);
  int64_t total = 0;
  for (int i = 0; i <= HISTOGRAM_BOUNDS; i++) {
    total += atomic_load_explicit(&h->counts[i], memory_order_relaxed);
    const char *bound = i < HISTOGRAM_BOUNDS ? h->bounds[i].seconds : "+Inf";
    buf_printf(b, "%s_bucket{le=\"%s\"} %" PRId64 "\n", h->name, bound, total);
  }
  int64_t sum = atomic_load_explicit(&h->sum_us, memory_order_relaxed);
  buf_printf(b, "%s_sum %" PRId64 ".%06d\n%s_count %" PRId64 "\n", h->name, sum / 1000000, (int)(sum % 1000000),
             h->name, total);
}
