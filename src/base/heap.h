// SPDX-License-Identifier: Apache-2.0
/// @file
/// A binary min-heap of deadlines. The node sits in the thing that waits. Not thread-safe: one owner.
#ifndef SH_BASE_HEAP_H
#define SH_BASE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// Zero-initialised is "in no heap".
struct heap_node {
  int64_t due_us; ///< monotonic microseconds
  size_t slot;    ///< place in the heap plus one; 0 = in none
};

/// Zero-initialised is empty.
struct heap {
  struct heap_node **slots;
  size_t len, cap;
};

/// Adds @a node with its deadline. @return false when memory ran out
bool heap_add(struct heap *h, struct heap_node *node, int64_t due_us);

/// Takes @a node out; nothing happens when it is in no heap.
void heap_remove(struct heap *h, struct heap_node *node);

/// The node that is due first, still in the heap, or NULL.
struct heap_node *heap_first(const struct heap *h);

/// Releases the slots (the nodes are not ours).
void heap_free(struct heap *h);

#endif
