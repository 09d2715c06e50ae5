// SPDX-License-Identifier: Apache-2.0
/// @file
/// What a subscriber keeps of a room: a snapshot, and every later event folded into it, each once. One thread.
#ifndef SH_CLI_FOLD_H
#define SH_CLI_FOLD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct fold {
  bool sparse;      ///< only some kinds are asked for: missing revisions mean nothing
  int64_t revision; ///< the last one that is folded in; -1: nothing yet
  char *epoch;      ///< NULL: nothing yet
  json_t *users;    ///< user_id → {"online_since", "offline_at", "sessions": {session_id → meta}}
};

enum fold_result {
  FOLD_APPLIED, ///< folded in
  FOLD_DOUBLE,  ///< had been folded in before: dropped
  FOLD_GAP,     ///< something between is missing: nothing was changed, ask for a replay or a snapshot
  FOLD_FOREIGN, ///< not a presence reply, or memory ran out: nothing was changed
};

/// Frees what it holds; it is as if new.
void fold_clear(struct fold *fold);

/// Folds in one event.
enum fold_result fold_event(struct fold *fold, const json_t *event);

/// Folds in a whole presence reply: replaces all by a snapshot, or takes its events in order, doubles aside.
/// @return FOLD_APPLIED also when nothing was new; FOLD_GAP when some were missing, also at its end
enum fold_result fold_reply(struct fold *fold, const json_t *reply);

/// Who is here: a new object user_id → {session_id → meta}, equal for equal rooms. @return NULL when memory ran out
json_t *fold_state(const struct fold *fold);

#endif
