// SPDX-License-Identifier: Apache-2.0
#include "cli/options.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strict.h"

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "unknown"
#endif

#define COMMANDS_CLIENT (COMMAND_RENEW | COMMAND_CLOSE | COMMAND_WHO | COMMAND_ROOMS | COMMAND_WATCH | COMMAND_MEMBER)
#define COMMANDS_ALL (COMMANDS_CLIENT | COMMAND_DEV | COMMAND_TOKEN)

#define TTL_DEFAULT_S 3600
/// The server takes no token that is valid for longer than ten years.
#define TTL_MAX_S (INT64_C(3652) * 86400)

/// The commands, their arguments and how many of them there may be.
static const struct {
  const char *name;
  enum command command;
  int args_min, args_max;
  const char *synopsis;
  const char *help;
} commands[] = {
    {"renew", COMMAND_RENEW, 2, 1002, "renew ROOM USER [SESSION]…",
     "hold a lease: renew it until Ctrl-C, then close it"},
    {"close", COMMAND_CLOSE, 3, 3, "close ROOM USER SESSION", "end a lease now"},
    {"who", COMMAND_WHO, 1, 1, "who ROOM", "who is here, with how many tabs, since when"},
    {"rooms", COMMAND_ROOMS, 0, 0, "rooms", "the rooms and how many are in them"},
    {"watch", COMMAND_WATCH, 1, 1, "watch ROOM", "print each event of a room as it happens"},
    {"member", COMMAND_MEMBER, 2, 3, "member VERB ROOM [USER]", "grant, revoke, list or show who may be in a room"},
    {"token", COMMAND_TOKEN, 0, 0, "token", "make a token, or with --api-key a key for a server"},
    {"dev", COMMAND_DEV, 0, 0, "dev", "start a private PostgreSQL and the server on it"},
};

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
};

static const struct {
  const char *name;
  enum option_id id;
  unsigned commands;
  const char *argument; ///< NULL: takes none
  const char *help;
} option_table[] = {
    {"ttl-ms", OPTION_TTL_MS, COMMAND_RENEW, "N", "time to live of the lease, milliseconds (the server's default)"},
    {"meta", OPTION_META, COMMAND_RENEW, "JSON", "a JSON object to show with the session"},
    {"once", OPTION_ONCE, COMMAND_RENEW, NULL, "send one heartbeat and leave the lease to run out"},
    {"no-close", OPTION_NO_CLOSE, COMMAND_RENEW, NULL, "do not close the lease at the end"},
    {"revision", OPTION_REVISION, COMMAND_CLOSE, "N", "close only if the lease is not newer than this revision"},
    {"prefix", OPTION_PREFIX, COMMAND_ROOMS, "TEXT", "only rooms whose name begins so"},
    {"kinds", OPTION_KINDS, COMMAND_WATCH, "A,B", "only these kinds of events"},
    {"since", OPTION_SINCE, COMMAND_WATCH, "N", "begin with the events after room revision N, not with a snapshot"},
    {"epoch", OPTION_EPOCH, COMMAND_WATCH, "E", "the epoch that --since belongs to"},
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
    {"help", OPTION_HELP, COMMANDS_ALL, NULL, "print this"},
    {"version", OPTION_VERSION, COMMANDS_ALL, NULL, "print the version"},
};

void complain(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  fputs("stillhere: ", stderr);
  vfprintf(stderr, fmt, args);
  fputc('\n', stderr);
  va_end(args);
}

static void print_options(unsigned mask) {
  for (size_t i = 0; i < ARRAY_LEN(option_table); i++) {
    if ((option_table[i].commands & mask) == 0)
      continue;
    char left[32];
    snprintf(left, sizeof left, "--%s %s", option_table[i].name,
             option_table[i].argument == NULL ? "" : option_table[i].argument);
    printf("  %-21s %s\n", left, option_table[i].help);
  }
}

/// @param command 0: help of the program
static void print_help(unsigned command) {
  for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
    if (commands[i].command != command)
      continue;
    printf("Usage: stillhere %s [OPTION]…\n%s\n\n", commands[i].synopsis, commands[i].help);
    print_options(command);
    return;
  }
  puts("Usage: stillhere COMMAND [ARGUMENT]… [OPTION]…\n\nCommands:");
  for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
    // The ellipsis is one column wide and three bytes long.
    int pad = strstr(commands[i].synopsis, "…") == NULL ? 28 : 30;
    printf("  %-*s %s\n", pad, commands[i].synopsis, commands[i].help);
  }
  puts("\nOptions of all commands but dev and token:");
  print_options(COMMAND_WHO);
  puts("\n`stillhere COMMAND --help` tells the options of one command.\n"
       "Exit status: 0 done, 1 the server said no, 2 wrong usage, 3 the server was not reached.");
}

static bool parse_number(const char *name, const char *text, int64_t min, int64_t max, int64_t *out) {
  if (strict_int(text, strlen(text), min, max, out))
    return true;
  complain("--%s takes a whole number from %lld to %lld, not \"%s\"", name, (long long)min, (long long)max, text);
  return false;
}

/// Seconds, or with a unit behind the number: s, m, h or d.
static bool parse_ttl(const char *text, int64_t *out) {
  static const struct {
    char unit;
    int64_t seconds;
  } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
  size_t len = strlen(text);
  int64_t factor = 1, n;
  for (size_t i = 0; i < ARRAY_LEN(units) && len > 0; i++) {
    if (text[len - 1] == units[i].unit) {
      factor = units[i].seconds;
      len--;
      break;
    }
  }
  if (!strict_int(text, len, 1, TTL_MAX_S / factor, &n)) {
    complain("--ttl takes a time like 90s, 15m, 1h or 7d, ten years at most, not \"%s\"", text);
    return false;
  }
  *out = n * factor;
  return true;
}

static bool parse_meta(struct options *o, const char *text) {
  json_error_t error;
  json_t *meta = json_loads(text, JSON_REJECT_DUPLICATES, &error);
  if (meta == NULL) {
    complain("--meta is not JSON: %s (column %d)", error.text, error.column);
    return false;
  }
  if (!json_is_object(meta)) {
    json_decref(meta);
    complain("--meta takes a JSON object, like '{\"color\":\"#c33\"}'");
    return false;
  }
  json_decref(o->meta);
  o->meta = meta;
  return true;
}

/// Where the text of an option goes. @return NULL when it is none that is taken as it is
static const char **text_option(struct options *o, int id) {
  switch (id) {
  case OPTION_URL:
    return &o->url;
  case OPTION_TOKEN_FILE:
    return &o->token_file;
  case OPTION_CA_FILE:
    return &o->ca_file;
  case OPTION_PREFIX:
    return &o->prefix;
  case OPTION_KINDS:
    return &o->kinds;
  case OPTION_EPOCH:
    return &o->epoch;
  case OPTION_DATA:
    return &o->data;
  case OPTION_LISTEN:
    return &o->listen;
  case OPTION_STILLHERED:
    return &o->stillhered;
  case OPTION_ROLE:
    return &o->role;
  case OPTION_KEY_FILE:
    return &o->key_file;
  case OPTION_ALGORITHM:
    return &o->algorithm;
  case OPTION_SUB:
    return &o->sub;
  case OPTION_SID:
    return &o->sid;
  case OPTION_ROOMS:
    return &o->rooms;
  case OPTION_SCOPE:
    return &o->scope;
  case OPTION_AUDIENCE:
    return &o->audience;
  case OPTION_ISSUER:
    return &o->issuer;
  case OPTION_API_KEY:
    return &o->api_key;
  default:
    return NULL;
  }
}

/// Takes in one option. @return false when its value is wrong (said)
static bool apply(struct options *o, int id, const char *value) {
  switch (id) {
  case OPTION_JSON:
    o->json = true;
    return true;
  case OPTION_TTL_MS:
    return parse_number("ttl-ms", value, 1, INT32_MAX, &o->ttl_ms);
  case OPTION_META:
    return parse_meta(o, value);
  case OPTION_ONCE:
    o->once = true;
    return true;
  case OPTION_NO_CLOSE:
    o->no_close = true;
    return true;
  case OPTION_REVISION:
    return parse_number("revision", value, 1, REVISION_MAX, &o->revision);
  case OPTION_SINCE:
    return parse_number("since", value, 0, REVISION_MAX, &o->since);
  case OPTION_TTL:
    return parse_ttl(value, &o->ttl_s);
  default: {
    const char **text = text_option(o, id);
    if (text != NULL)
      *text = value;
    return text != NULL;
  }
  }
}

/// Reads all options of the line, wherever they stand, and collects which they were.
/// @param[out] seen bits by place in option_table
static bool read_options(struct options *o, int argc, char **argv, uint64_t *seen, bool *help, bool *version) {
  struct option getopt_table[ARRAY_LEN(option_table) + 1] = {{0}};
  for (size_t i = 0; i < ARRAY_LEN(option_table); i++) {
    int takes = option_table[i].argument == NULL ? no_argument : required_argument;
    getopt_table[i] = (struct option){option_table[i].name, takes, NULL, (int)option_table[i].id};
  }
  opterr = 0;
  int place = -1;
  for (int id; (id = getopt_long(argc, argv, ":h", getopt_table, &place)) != -1;) {
    if (id == '?' || id == ':') {
      complain(id == ':' ? "option %s needs a value" : "there is no option %s, see stillhere --help", argv[optind - 1]);
      return false;
    }
    if (id == 'h' || id == OPTION_HELP) {
      *help = true;
    } else if (id == OPTION_VERSION) {
      *version = true;
    } else {
      *seen |= UINT64_C(1) << place;
      if (!apply(o, id, optarg))
        return false;
    }
  }
  return true;
}

/// Checks that the options and the arguments fit the command.
static bool check_command(struct options *o, uint64_t seen, size_t row) {
  for (size_t i = 0; i < ARRAY_LEN(option_table); i++) {
    if ((seen & UINT64_C(1) << i) != 0 && (option_table[i].commands & o->command) == 0) {
      complain("%s takes no option --%s, see stillhere %s --help", commands[row].name, option_table[i].name,
               commands[row].name);
      return false;
    }
  }
  if (o->n_args < commands[row].args_min || o->n_args > commands[row].args_max) {
    complain("usage: stillhere %s", commands[row].synopsis);
    return false;
  }
  for (int i = 0; i < o->n_args; i++) {
    const char *problem = ident_problem(o->args[i], strlen(o->args[i]));
    if (problem != NULL) {
      complain("the name \"%s\" %s", o->args[i], problem);
      return false;
    }
  }
  if (o->epoch != NULL && o->since < 0) {
    complain("--epoch needs --since");
    return false;
  }
  return true;
}

/// The server's address: scheme and host, without a slash at the end, since paths are appended; or unix:/path.
static bool check_url(struct options *o) {
  size_t len = strlen(o->url);
  bool known = strncmp(o->url, "http://", 7) == 0 || strncmp(o->url, "https://", 8) == 0;
  if (strncmp(o->url, "unix:/", 6) == 0)
    return true;
  if (!known || len > 1024 || strpbrk(o->url, "?# \t\r\n") != NULL) {
    complain("the address \"%s\" is not like http://127.0.0.1:7470 or unix:/path; see --url and STILLHERE_URL", o->url);
    return false;
  }
  return true;
}

static const char *from_environment(const char *name) {
  const char *value = getenv(name);
  return value == NULL || *value == '\0' ? NULL : value;
}

bool options_parse(struct options *options, int argc, char **argv, int *code) {
  const char *url = from_environment("STILLHERE_URL");
  *options = (struct options){.url = url == NULL ? URL_DEFAULT : url,
                              .token_file = from_environment("STILLHERE_TOKEN_FILE"),
                              .ca_file = from_environment("STILLHERE_CA_FILE"),
                              .since = -1,
                              .ttl_s = TTL_DEFAULT_S,
                              .listen = "127.0.0.1:7470"};
  uint64_t seen = 0;
  bool help = false, version = false;
  *code = EXIT_USAGE;
  if (!read_options(options, argc, argv, &seen, &help, &version))
    return false;
  const char *name = optind < argc ? argv[optind] : NULL;
  size_t row = 0;
  while (name != NULL && row < ARRAY_LEN(commands) && strcmp(commands[row].name, name) != 0)
    row++;
  if (name != NULL && row == ARRAY_LEN(commands)) {
    complain("there is no command \"%s\", see stillhere --help", name);
    return false;
  }
  if (help || version) {
    *code = EXIT_DONE;
    if (version)
      puts("stillhere " PACKAGE_VERSION);
    else
      print_help(name == NULL ? 0 : commands[row].command);
    return false;
  }
  if (name == NULL) {
    complain("which command? See stillhere --help");
    return false;
  }
  options->command = commands[row].command;
  options->args = argv + optind + 1;
  options->n_args = argc - optind - 1;
  return check_command(options, seen, row) && check_url(options);
}

void options_free(struct options *options) {
  json_decref(options->meta);
  options->meta = NULL;
}
