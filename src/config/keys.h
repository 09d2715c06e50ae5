// SPDX-License-Identifier: Apache-2.0
/// @file
/// The table of keys, for the files of src/config alone: what each is called, how it is checked, and what is said of it
/// in the sample file and the man page.
#ifndef SH_CONFIG_KEYS_H
#define SH_CONFIG_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum config_kind {
  CONFIG_LISTEN,   ///< host:port or unix:/path, loopback only while there is no authorization
  CONFIG_DATABASE, ///< a PostgreSQL connection string; never repeated in an error, since it may hold a password
  CONFIG_ORIGINS,  ///< a list for config/origins.h
  CONFIG_TEXT,     ///< any text without control characters, perhaps empty
  CONFIG_DURATION, ///< milliseconds
  CONFIG_BYTES,
  CONFIG_COUNT,
  CONFIG_CHOICE, ///< one of `choices`, stored as its index
};

struct config_key {
  const char *name;
  enum config_kind kind;
  size_t offset;              ///< in struct config: a char * up to CONFIG_TEXT, else an int64_t
  const char *initial;        ///< the default, as it would be written
  int64_t min, max;           ///< of a number, both included
  bool may_be_empty;          ///< of a connection string
  const char *const *choices; ///< ends with NULL
  const char *doc;            ///< sentences, without unit, bounds and default: those are made from the rest
};

extern const struct config_key config_keys[];
extern const size_t config_key_count;

/// @return NULL when there is no such key
const struct config_key *config_key_find(const char *name, size_t len);

#endif
