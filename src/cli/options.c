// SPDX-License-Identifier: Apache-2.0
#include "cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strict.h"
#include "cli/http.h"
#include "cli/options_table.h"

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "unknown"
#endif

/// As many as fit into the bits of `seen`.
#define OPTIONS_MAX 64
#define TTL_DEFAULT_S 3600
/// The server takes no token that is valid for longer than ten years.
#define TTL_MAX_S (INT64_C(3652) * 86400)

void complain(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  fputs("stillhere: ", stderr);
  vfprintf(stderr, fmt, args);
  fputc('\n', stderr);
  va_end(args);
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
  case OPTION_USER_ROOM:
    return &o->room;
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

/// The first address replaces that of the environment, the second is the drill's.
static bool add_url(struct options *o, const char *url) {
  if (o->n_urls == 2) {
    complain("--url is given at most twice, and that to drill");
    return false;
  }
  *(o->n_urls == 0 ? &o->url : &o->second_url) = url;
  o->n_urls++;
  return true;
}

/// Takes in one option. @return false when its value is wrong (said)
static bool apply(struct options *o, int id, const char *value) {
  switch (id) {
  case OPTION_JSON:
    o->json = true;
    return true;
  case OPTION_PLAIN:
    o->plain = true;
    return true;
  case OPTION_URL:
    return add_url(o, value);
  case OPTION_SESSIONS:
    return parse_number("sessions", value, 1, 10000, &o->sessions);
  case OPTION_CONNECTIONS:
    return parse_number("connections", value, 1, 256, &o->connections);
  case OPTION_SECONDS:
    return parse_number("seconds", value, 1, 3600, &o->seconds);
  case OPTION_EVERY_MS:
    return parse_number("every-ms", value, 0, 3600000, &o->every_ms);
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
  struct option getopt_table[OPTIONS_MAX + 1] = {{0}};
  for (size_t i = 0; i < n_options; i++) {
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
  for (size_t i = 0; i < n_options; i++) {
    if ((seen & UINT64_C(1) << i) != 0 && (option_table[i].commands & o->command) == 0) {
      complain("%s takes no option --%s, see stillhere %s --help", command_table[row].name, option_table[i].name,
               command_table[row].name);
      return false;
    }
  }
  if (o->n_args < command_table[row].args_min || o->n_args > command_table[row].args_max) {
    complain("usage: stillhere %s", command_table[row].synopsis);
    return false;
  }
  for (int i = 0; i < o->n_args; i++) {
    const char *problem = ident_problem(o->args[i], strlen(o->args[i]));
    if (problem != NULL) {
      complain("the name \"%s\" %s", o->args[i], problem);
      return false;
    }
  }
  if (o->second_url != NULL && o->command != COMMAND_DRILL) {
    complain("only drill takes --url twice");
    return false;
  }
  if (o->command == COMMAND_LAST_SEEN && (o->room == NULL) == (o->n_args == 0)) {
    complain("usage: stillhere last-seen USER… or stillhere last-seen --room ROOM");
    return false;
  }
  for (int i = 2; o->command == COMMAND_RENEW && i < o->n_args; i++) {
    for (int j = i + 1; j < o->n_args; j++) {
      if (strcmp(o->args[i], o->args[j]) == 0) {
        complain("the session \"%s\" is named twice", o->args[i]);
        return false;
      }
    }
  }
  if (o->epoch != NULL && o->since < 0) {
    complain("--epoch needs --since");
    return false;
  }
  return true;
}

/// A server's address: scheme and host, perhaps with a path that ours go behind; or unix:/path.
static bool check_url(const char *url) {
  bool known = strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0;
  if (strncmp(url, "unix:/", 6) == 0)
    return true;
  size_t len = strlen(url);
  if (!known || len > 1024 || strpbrk(url, "?# \t\r\n") != NULL || !http_url_sane(url)) {
    complain("the address \"%s\" is not like http://127.0.0.1:7470 or unix:/path; see --url and STILLHERE_URL", url);
    return false;
  }
  return true;
}

/// Over http as well: who names a file means one that is there.
static bool check_ca_file(const char *path) {
  char byte;
  FILE *file = path == NULL ? NULL : fopen(path, "re");
  bool good = path == NULL || (file != NULL && (fread(&byte, 1, 1, file) == 1 || !ferror(file)));
  if (!good)
    complain("%s cannot be read: %s. See --ca-file and STILLHERE_CA_FILE", path, strerror(errno));
  if (file != NULL)
    fclose(file);
  return good;
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
                              .sessions = 100,
                              .connections = 16,
                              .seconds = 10,
                              .every_ms = 500,
                              .ttl_s = TTL_DEFAULT_S,
                              .listen = "127.0.0.1:7470"};
  uint64_t seen = 0;
  bool help = false, version = false;
  *code = EXIT_USAGE;
  if (!read_options(options, argc, argv, &seen, &help, &version))
    return false;
  const char *name = optind < argc ? argv[optind] : NULL;
  if (name != NULL && strcmp(name, "help") == 0 && argc - optind <= 2 && seen == 0 && !help) {
    help = true;
    name = argv[++optind];
  }
  size_t row = 0;
  while (name != NULL && row < n_commands && strcmp(command_table[row].name, name) != 0)
    row++;
  if (name != NULL && row == n_commands) {
    complain("there is no command \"%s\", see stillhere --help", name);
    return false;
  }
  if (help || version) {
    *code = EXIT_DONE;
    if (version)
      puts("stillhere " PACKAGE_VERSION);
    else
      options_help(name == NULL ? 0 : command_table[row].command);
    return false;
  }
  if (name == NULL) {
    complain("which command? See stillhere --help");
    return false;
  }
  options->command = command_table[row].command;
  options->args = argv + optind + 1;
  options->n_args = argc - optind - 1;
  return check_command(options, seen, row) && check_url(options->url) &&
         (options->second_url == NULL || check_url(options->second_url)) && check_ca_file(options->ca_file);
}

void options_free(struct options *options) {
  json_decref(options->meta);
  options->meta = NULL;
}
