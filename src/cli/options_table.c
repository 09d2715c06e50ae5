// SPDX-License-Identifier: Apache-2.0
#include "cli/options_table.h"

#include <stdio.h>
#include <string.h>

#define COMMANDS_CLIENT                                                                                                \
  (COMMAND_RENEW | COMMAND_CLOSE | COMMAND_WHO | COMMAND_ROOMS | COMMAND_WATCH | COMMAND_MEMBER | COMMAND_LAST_SEEN |  \
   COMMAND_EXPLAIN | COMMAND_BENCH | COMMAND_DRILL | COMMAND_WEBHOOKS)
#define COMMANDS_ALL (COMMANDS_CLIENT | COMMAND_DEV | COMMAND_TOKEN)

/// The commands, their arguments and how many of them there may be.
const struct command_row command_table[] = {
    {"renew", COMMAND_RENEW, 2, 1002, "renew ROOM USER [SESSION]…",
     "hold a lease: renew it until Ctrl-C, then close it"},
    {"close", COMMAND_CLOSE, 3, 3, "close ROOM USER SESSION", "end a lease now"},
    {"who", COMMAND_WHO, 1, 1, "who ROOM", "who is here, with how many tabs, since when"},
    {"rooms", COMMAND_ROOMS, 0, 0, "rooms", "the rooms and how many are in them"},
    {"watch", COMMAND_WATCH, 1, 1, "watch ROOM", "a room as it is now, and each event as it happens"},
    {"last-seen", COMMAND_LAST_SEEN, 0, 1000, "last-seen USER…", "when these users were active last; or --room ROOM"},
    {"explain", COMMAND_EXPLAIN, 2, 2, "explain ROOM USER", "why a user is shown as they are, and what comes next"},
    {"member", COMMAND_MEMBER, 2, 3, "member VERB ROOM [USER]", "grant, revoke, list or show who may be in a room"},
    {"token", COMMAND_TOKEN, 0, 0, "token", "make a token, or with --api-key a key for a server"},
    {"webhooks", COMMAND_WEBHOOKS, 0, 4, "webhooks [VERB] [TARGET]…",
     "list the targets, show what was given up (dead), or replay it"},
    {"drill", COMMAND_DRILL, 0, 0, "drill", "prove a running deployment right, in ten seconds"},
    {"bench", COMMAND_BENCH, 0, 0, "bench", "put a small load on a deployment and measure it"},
    {"dev", COMMAND_DEV, 0, 0, "dev", "start a private PostgreSQL and the server on it"},
    {"help", COMMAND_HELP, 0, 1, "help [COMMAND]", "print this, or the help of one command"},
};

const struct option_row option_table[] = {
    {"ttl-ms", OPTION_TTL_MS, COMMAND_RENEW | COMMAND_BENCH | COMMAND_DRILL, "N",
     "time to live of a lease, milliseconds"},
    {"meta", OPTION_META, COMMAND_RENEW, "JSON", "a JSON object to show with the session"},
    {"once", OPTION_ONCE, COMMAND_RENEW, NULL, "send one heartbeat and leave the lease to run out"},
    {"no-close", OPTION_NO_CLOSE, COMMAND_RENEW, NULL, "do not close the lease at the end"},
    {"revision", OPTION_REVISION, COMMAND_CLOSE, "N", "close only if the lease is not newer than this revision"},
    {"prefix", OPTION_PREFIX, COMMAND_ROOMS, "TEXT", "only rooms whose name begins so"},
    {"kinds", OPTION_KINDS, COMMAND_WATCH, "A,B", "only these kinds of events"},
    {"since", OPTION_SINCE, COMMAND_WATCH, "N", "begin with the events after room revision N, not with a snapshot"},
    {"epoch", OPTION_EPOCH, COMMAND_WATCH, "E", "the epoch that --since belongs to"},
    {"plain", OPTION_PLAIN, COMMAND_WATCH, NULL, "lines one after the other, on a terminal too"},
    {"room", OPTION_USER_ROOM, COMMAND_LAST_SEEN, "ROOM", "everybody who was ever seen in this room, newest first"},
    {"sessions", OPTION_SESSIONS, COMMAND_BENCH, "N", "how many sessions renew (100)"},
    {"connections", OPTION_CONNECTIONS, COMMAND_BENCH, "N", "over how many connections (16)"},
    {"seconds", OPTION_SECONDS, COMMAND_BENCH, "N", "for how long (10)"},
    {"every-ms", OPTION_EVERY_MS, COMMAND_BENCH, "N", "each session once in so long (500); 0: as fast as it goes"},
    {"data", OPTION_DATA, COMMAND_DEV, "DIR", "where the database and the logs live (~/.local/share/stillhere/dev)"},
    {"listen", OPTION_LISTEN, COMMAND_DEV, "ADDRESS", "where the server listens (127.0.0.1:7470)"},
    {"stillhered", OPTION_STILLHERED, COMMAND_DEV, "PATH", "the server program (found beside this one)"},
    {"role", OPTION_ROLE, COMMAND_MEMBER, "TEXT", "with grant: a word of your own, kept with the member"},
    {"key-file", OPTION_KEY_FILE, COMMAND_TOKEN, "FILE", "what to sign with: the secret, or a private key in PEM"},
    {"algorithm", OPTION_ALGORITHM, COMMAND_TOKEN, "NAME", "HS256 (unless given), RS256 or ES256"},
    {"sub", OPTION_SUB, COMMAND_TOKEN, "USER", "the user that the token speaks for"},
    {"sid", OPTION_SID, COMMAND_TOKEN, "SESSION", "the only session that it may write for"},
    {"rooms", OPTION_ROOMS, COMMAND_TOKEN, "A,B*", "its rooms; a * at the end stands for any rest"},
    {"scope", OPTION_SCOPE, COMMAND_TOKEN, "A,B", "presence:read, presence:write, members:write, gateway, admin"},
    {"ttl", OPTION_TTL, COMMAND_TOKEN, "TIME", "how long it is valid: 90s, 15m, 1h (unless given), 7d"},
    {"audience", OPTION_AUDIENCE, COMMAND_TOKEN, "TEXT", "its aud, where the server has a jwt_audience"},
    {"issuer", OPTION_ISSUER, COMMAND_TOKEN, "TEXT", "its iss, where the server has a jwt_issuer"},
    {"api-key", OPTION_API_KEY, COMMAND_TOKEN, "NAME", "make a random key of this name instead of a token"},
    {"url", OPTION_URL, COMMANDS_CLIENT, "URL", "the server ($STILLHERE_URL, or http://127.0.0.1:7470)"},
    {"token-file", OPTION_TOKEN_FILE, COMMANDS_CLIENT, "FILE", "send the token in it ($STILLHERE_TOKEN_FILE)"},
    {"ca-file", OPTION_CA_FILE, COMMANDS_CLIENT, "FILE", "trust these authorities over https ($STILLHERE_CA_FILE)"},
    {"json", OPTION_JSON, COMMANDS_ALL, NULL, "print JSON, one object a line"},
    {"help", OPTION_HELP, COMMANDS_ALL | COMMAND_HELP, NULL, "print this"},
    {"version", OPTION_VERSION, COMMANDS_ALL | COMMAND_HELP, NULL, "print the version"},
};

const size_t n_commands = ARRAY_LEN(command_table);
const size_t n_options = ARRAY_LEN(option_table);
_Static_assert(ARRAY_LEN(option_table) <= 64, "the options of a line are remembered in 64 bits");

static void print_options(unsigned mask) {
  for (size_t i = 0; i < n_options; i++) {
    if ((option_table[i].commands & mask) == 0)
      continue;
    char left[32];
    snprintf(left, sizeof left, "--%s %s", option_table[i].name,
             option_table[i].argument == NULL ? "" : option_table[i].argument);
    printf("  %-21s %s\n", left, option_table[i].help);
  }
}

void options_help(unsigned command) {
  for (size_t i = 0; i < n_commands; i++) {
    if (command_table[i].command != command)
      continue;
    printf("Usage: stillhere %s [OPTION]…\n%s\n\n", command_table[i].synopsis, command_table[i].help);
    print_options(command);
    return;
  }
  puts("Usage: stillhere COMMAND [ARGUMENT]… [OPTION]…\n\nCommands:");
  for (size_t i = 0; i < n_commands; i++) {
    // The ellipsis is one column wide and three bytes long.
    int pad = strstr(command_table[i].synopsis, "…") == NULL ? 28 : 30;
    printf("  %-*s %s\n", pad, command_table[i].synopsis, command_table[i].help);
  }
  puts("\nOptions of all commands but dev, token and help:");
  print_options(COMMAND_WHO);
  puts("\n`stillhere COMMAND --help` tells the options of one command.\n"
       "Exit status: 0 done, 1 the server said no, 2 wrong usage, 3 the server was not reached,\n"
       "4 the drill found something wrong. stillhere(1) tells all of it.");
}
