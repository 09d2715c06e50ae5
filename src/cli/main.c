// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/http.h"
#include "cli/signals.h"

static int run(const struct options *options) {
  switch (options->command) {
  case COMMAND_RENEW:
    return cmd_renew(options);
  case COMMAND_CLOSE:
    return cmd_close(options);
  case COMMAND_WHO:
    return cmd_who(options);
  case COMMAND_ROOMS:
    return cmd_rooms(options);
  case COMMAND_WATCH:
    return cmd_watch(options);
  case COMMAND_MEMBER:
    return cmd_member(options);
  case COMMAND_TOKEN:
    return cmd_token(options);
  case COMMAND_LAST_SEEN:
    return cmd_last_seen(options);
  case COMMAND_EXPLAIN:
    return cmd_explain(options);
  case COMMAND_BENCH:
    return cmd_bench(options);
  case COMMAND_DRILL:
    return cmd_drill(options);
  case COMMAND_WEBHOOKS:
    return cmd_webhooks(options);
  case COMMAND_DEV:
    return cmd_dev(options);
  case COMMAND_HELP:
    break;
  }
  return EXIT_USAGE;
}

int main(int argc, char **argv) {
  // Names are UTF-8 whatever the locale says, and how wide they are is told in a locale with UTF-8 alone.
  if (setlocale(LC_CTYPE, "") == NULL || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
    (void)setlocale(LC_CTYPE, "C.UTF-8");
  struct options options;
  int code;
  if (options_parse(&options, argc, argv, &code)) {
    if (signals_open(options.command == COMMAND_DEV)) {
      http_trust(options.ca_file);
      code = run(&options);
    } else {
      complain("signals cannot be set up: %s", strerror(errno));
      code = EXIT_REFUSED;
    }
  }
  options_free(&options);
  if (fflush(stdout) != 0 && code == EXIT_DONE) {
    complain("the output could not be written: %s", strerror(errno));
    code = EXIT_REFUSED;
  }
  return code;
}
