// SPDX-License-Identifier: Apache-2.0
#include "base/heap.h"

#include <stdlib.h>

static void place(struct heap *h, size_t at, struct heap_node *node) {
  h->slots[at] = node;
  node->slot = at + 1;
}

/// Moves the node at @a at towards the root until its parent is due no later.
static void sift_up(struct heap *h, size_t at) {
  struct heap_node *node = h->slots[at];
  while (at > 0) {
    size_t parent = (at - 1) / 2;
    if (h->slots[parent]->due_us <= node->due_us)
      break;
    place(h, at, h->slots[parent]);
    at = parent;
  }
  place(h, at, node);
}

/// Moves the node at @a at away from the root until both children are due no earlier.
static void sift_down(struct heap *h, size_t at) {
  struct heap_node *node = h->slots[at];
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= h->len)
      break;
    if (child + 1 < h->len && h->slots[child + 1]->due_us < h->slots[child]->due_us)
      child++;
    if (node->due_us <= h->slots[child]->due_us)
      break;
    place(h, at, h->slots[child]);
    at = child;
  }
  place(h, at, node);
}

bool heap_add(struct heap *h, struct heap_node *node, int64_t due_us) {
  if (h->len == h->cap) {
    size_t cap = h->cap == 0 ? 64 : h->cap * 2;
    struct heap_node **slots = reallocarray(h->slots, cap, sizeof(struct heap_node *));
    if (slots == NULL)
      return false;
    h->slots = slots;
    h->cap = cap;
  }
  node->due_us = due_us;
  place(h, h->len++, node);
  sift_up(h, h->len - 1);
  return true;
}

void heap_remove(struct heap *h, struct heap_node *node) {
  if (node->slot == 0)
    return;
  size_t at = node->slot - 1;
  struct heap_node *last = h->slots[--h->len];
  node->slot = 0;
  if (last == node)
    return;
  place(h, at, last);
  if (last->due_us < node->due_us)
    sift_up(h, at);
  else
    sift_down(h, at);
}

struct heap_node *heap_first(const struct heap *h) {
  return h->len == 0 ? NULL : h->slots[0];
}

void heap_free(struct heap *h) {
  free(h->slots);
  *h = (struct heap){0};
}
