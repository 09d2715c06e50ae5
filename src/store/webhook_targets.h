// SPDX-License-Identifier: Apache-2.0
/// @file
/// The targets of webhooks: who is to be told of which events. A set never changes once it is made and is shared by
/// reference count, so that a reload meets nobody in the middle. Any thread but where it says otherwise.
#ifndef SH_STORE_WEBHOOK_TARGETS_H
#define SH_STORE_WEBHOOK_TARGETS_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"
#include "store/lease.h"

#define WEBHOOK_SECRETS_MAX 4
#define WEBHOOK_SECRET_BYTES_MAX 64
#define WEBHOOK_TARGETS_MAX 32
#define WEBHOOK_NAME_MAX 32

struct webhook_secret {
  unsigned char bytes[WEBHOOK_SECRET_BYTES_MAX];
  size_t len;
};

struct webhook_target {
  char name[WEBHOOK_NAME_MAX + 1];
  char *url;
  struct webhook_secret secrets[WEBHOOK_SECRETS_MAX];
  size_t n_secrets;
  unsigned kinds; ///< a bit for each enum event_kind
  char **rooms;   ///< names, or prefixes with `*` at the end
  size_t n_rooms;
};

struct webhook_targets {
  struct webhook_target list[WEBHOOK_TARGETS_MAX];
  size_t n;
  char *ca_file;       ///< PEM file with the authorities that https targets are verified by; NULL: the system's
  unsigned references; ///< its own
};

/// Reads the keys and the files that they name. Main's thread.
/// @param[out] error one line that names the key
/// @return a set with one reference, perhaps without targets; NULL when something is wrong
struct webhook_targets *webhook_targets_load(const struct config *config, char error[CONFIG_ERROR_SIZE]);

/// Makes @a set the current one, whose reference is taken over; NULL: none.
void webhook_targets_set(struct webhook_targets *set);

/// The current set with a reference more, or NULL while there is none.
struct webhook_targets *webhook_targets_get(void);

/// Counts a reference more to a set that the caller has one of. @return @a set
struct webhook_targets *webhook_targets_share(struct webhook_targets *set);

/// Gives a reference back. NULL is fine.
void webhook_targets_put(struct webhook_targets *set);

/// Whether this target is told of such an event.
bool webhook_target_wants(const struct webhook_target *target, const char *room_id, enum event_kind kind);

/// Why @a url cannot be a target. @return NULL when it can, else a static phrase ("must …")
const char *webhook_url_problem(const char *url);

#endif
