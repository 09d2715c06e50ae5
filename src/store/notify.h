// SPDX-License-Identifier: Apache-2.0
/// @file
/// What a notification says: which rooms moved, and how far. One transaction sends as few as fit, since each NOTIFY
/// serialises commits and a payload over 8000 bytes would abort the write.
#ifndef SH_STORE_NOTIFY_H
#define SH_STORE_NOTIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "db/db.h"

/// The one notification channel.
#define NOTIFY_CHANNEL "stillhere_rooms"

/// Bytes of a payload at most; PostgreSQL allows less than 8000.
#define NOTIFY_PAYLOAD_MAX 7900

/// In the place of a revision: no event, but the room's members have changed and the room is to be read anew.
#define NOTIFY_REFRESH 0

struct room_head {
  const char *room_id;
  int64_t revision;
};

/// Payloads of the form `["room",revision,"room",revision…]`.
struct payloads {
  char **list;
  size_t n;
};

/// @return false when memory ran out; free with payloads_free() in either case
bool payloads_make(struct payloads *payloads, const struct room_head *heads, size_t n);
void payloads_free(struct payloads *payloads);

/// Sends an array of payloads.
extern const struct db_stmt notify_stmt;
void notify_params(struct db_params *p, const struct payloads *payloads);

#endif
