// SPDX-License-Identifier: Apache-2.0
/// @file
/// The command line of `stillhere`: one table of options that says which command takes which, and that also prints the
/// help.
#ifndef SH_CLI_OPTIONS_H
#define SH_CLI_OPTIONS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/util.h"

/// What the program returns to the shell.
enum exit_code {
  EXIT_DONE = 0,        ///< it worked
  EXIT_REFUSED = 1,     ///< the server said no (4xx), or a part that `dev` started failed
  EXIT_USAGE = 2,       ///< the command line is wrong
  EXIT_UNREACHABLE = 3, ///< no answer, or 5xx, also after trying again
  EXIT_WRONG = 4,       ///< the drill ran, and something was not as it should be
};

/// Where the server is looked for when nobody says.
#define URL_DEFAULT "http://127.0.0.1:7470"

/// Bits, so that an option can belong to several commands.
enum command {
  COMMAND_RENEW = 1,
  COMMAND_CLOSE = 2,
  COMMAND_WHO = 4,
  COMMAND_ROOMS = 8,
  COMMAND_WATCH = 16,
  COMMAND_DEV = 32,
  COMMAND_MEMBER = 64,
  COMMAND_TOKEN = 128,
  COMMAND_LAST_SEEN = 256,
  COMMAND_EXPLAIN = 512,
  COMMAND_BENCH = 1024,
  COMMAND_DRILL = 2048,
  COMMAND_WEBHOOKS = 4096,
  COMMAND_HELP = 8192, ///< options_parse() has done it
};

/// Strings belong to argv or the environment, but for meta.
struct options {
  enum command command;
  const char *url;        ///< http:, https: or unix:/path
  const char *second_url; ///< of drill; NULL: one address
  int n_urls;             ///< how many were on the command line
  const char *token_file; ///< NULL: no token is sent
  const char *ca_file;    ///< NULL: the authorities that the system trusts
  bool json;
  char **args; ///< what follows the command: names of rooms, users, sessions; for member a verb first
  int n_args;

  int64_t ttl_ms; ///< 0: the server's default
  json_t *meta;   ///< NULL: none
  bool once;
  bool no_close;
  int64_t revision; ///< 0: not given
  const char *prefix;
  const char *kinds;
  int64_t since; ///< -1: not given
  const char *epoch;
  const char *data;
  const char *listen;
  const char *stillhered;

  bool plain;
  const char *room; ///< of last-seen; NULL: not given
  int64_t sessions, connections, seconds, every_ms;

  const char *role; ///< NULL: not given
  const char *key_file, *algorithm, *api_key;
  const char *sub, *sid, *audience, *issuer; ///< NULL: not in the token
  const char *rooms, *scope;
  int64_t ttl_s;
};

/// Reads the command line. Prints help, the version, or what is wrong with it.
/// @return false when the program is to end with @a code
bool options_parse(struct options *options, int argc, char **argv, int *code);

void options_free(struct options *options);

/// One line on standard error: `stillhere: …`.
void complain(const char *fmt, ...) PRINTF_LIKE(1, 2);

#endif
