// SPDX-License-Identifier: Apache-2.0
/// @file
/// The slow lane of the writer: ops from a batch that met a lock held for long, or a row that cannot be written, run
/// here one by one with a connection of their own. Those that meet the lock again wait until their deadline; the others
/// are through at once, and the writer goes on meanwhile.
#ifndef SH_LIVE_STRAGGLERS_H
#define SH_LIVE_STRAGGLERS_H

#include "live/commit.h"

struct stragglers;

/// Starts the thread. @a options must outlive it. @return NULL when that fails
struct stragglers *stragglers_start(const struct writer_options *options);

/// Takes over a batch. When memory runs out the ops are given back undecided. Writer's thread.
void stragglers_take(struct stragglers *s, const struct op_ref *refs, size_t n);

/// Takes over an op that would meet a lock that is known (of its lease, its room or its user), or whose lease has an op
/// here that is not done, so that it neither blocks the writer nor overtakes. @return false when there is none.
/// Writer's thread
bool stragglers_take_locked(struct stragglers *s, const struct op_ref *ref);

/// Goes on for at most @a grace_ms, gives the rest back undecided, joins and frees. NULL is fine.
void stragglers_stop(struct stragglers *s, int grace_ms);

#endif
