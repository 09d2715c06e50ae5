// SPDX-License-Identifier: Apache-2.0
/// @file
/// The commands and the options of `stillhere` as tables, from which the command line is read and the help is printed.
#ifndef SH_CLI_OPTIONS_TABLE_H
#define SH_CLI_OPTIONS_TABLE_H

#include <stddef.h>

#include "cli/options.h"

/// A command, its arguments and how many of them there may be.
struct command_row {
  const char *name;
  enum command command;
  int args_min, args_max;
  const char *synopsis;
  const char *help;
};

extern const struct command_row command_table[];
extern const size_t n_commands;

enum option_id {
  OPTION_HELP = 256,
  OPTION_VERSION,
  OPTION_URL,
  OPTION_JSON,
  OPTION_TOKEN_FILE,
  OPTION_CA_FILE,
  OPTION_TTL_MS,
  OPTION_META,
  OPTION_ONCE,
  OPTION_NO_CLOSE,
  OPTION_REVISION,
  OPTION_PREFIX,
  OPTION_KINDS,
  OPTION_SINCE,
  OPTION_EPOCH,
  OPTION_DATA,
  OPTION_LISTEN,
  OPTION_STILLHERED,
  OPTION_ROLE,
  OPTION_KEY_FILE,
  OPTION_ALGORITHM,
  OPTION_SUB,
  OPTION_SID,
  OPTION_ROOMS,
  OPTION_SCOPE,
  OPTION_TTL,
  OPTION_AUDIENCE,
  OPTION_ISSUER,
  OPTION_API_KEY,
  OPTION_USER_ROOM,
  OPTION_PLAIN,
  OPTION_SESSIONS,
  OPTION_CONNECTIONS,
  OPTION_SECONDS,
  OPTION_EVERY_MS,
};

struct option_row {
  const char *name;
  enum option_id id;
  unsigned commands;    ///< bits: who takes it
  const char *argument; ///< NULL: takes none
  const char *help;
};

/// At most 64.
extern const struct option_row option_table[];
extern const size_t n_options;

/// Prints the help of a command; 0: of the program.
void options_help(unsigned command);

#endif
