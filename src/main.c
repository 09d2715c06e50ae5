// SPDX-License-Identifier: Apache-2.0
// stillhered: options and signals. What the server consists of is in server.c.
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "config/config.h"
#include "schema.h"
#include "server.h"

enum { EXIT_CLEAN = 0, EXIT_FAULT = 1, EXIT_USAGE = 2 };

static void apply_log_settings(const struct config *config) {
  enum log_format format = config->log_format == CONFIG_LOG_TEXT || (config->log_format == CONFIG_LOG_AUTO && isatty(2))
                               ? LOG_TEXT
                               : LOG_JSON;
  log_setup((enum log_level)config->log_level, format);
}

// -- signals -------------------------------------------------------------------------------------------------------

static void on_second_signal(int signal_number) {
  (void)signal_number;
  _exit(EXIT_FAULT);
}

static void on_watchdog(int signal_number) {
  static const char line[] = "stillhered: stopping took too long; leaving now\n";
  (void)signal_number;
  ssize_t n = write(STDERR_FILENO, line, sizeof line - 1);
  (void)n;
  _exit(EXIT_CLEAN);
}

/// From now on one more SIGTERM or SIGINT ends the process at once, and so does the watchdog.
static void arm_second_signal(void) {
  struct sigaction second = {.sa_handler = on_second_signal}, watchdog = {.sa_handler = on_watchdog};
  (void)sigaction(SIGTERM, &second, NULL);
  (void)sigaction(SIGINT, &second, NULL);
  (void)sigaction(SIGALRM, &watchdog, NULL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGALRM);
  (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  (void)alarm(SERVER_STOP_S);
}

static void reload(struct server *s, const char *config_path) {
  struct config fresh;
  char error[CONFIG_ERROR_SIZE];
  if (config_load(&fresh, config_path, environ, error)) {
    apply_log_settings(&fresh);
    server_reload(s, &fresh);
    log_info(
        "SIGHUP: log_level and log_format are reloaded; of keys, certificates and webhooks the lines before tell; all else "
        "takes a restart");
  } else {
    log_error("SIGHUP: nothing is reloaded: %s", error);
  }
  config_free(&fresh);
}

/// Blocked in all threads and waited for in this one.
static void block_signals(sigset_t *set) {
  sigemptyset(set);
  sigaddset(set, SIGTERM);
  sigaddset(set, SIGINT);
  sigaddset(set, SIGHUP);
  (void)pthread_sigmask(SIG_BLOCK, set, NULL);
  struct sigaction ignore = {.sa_handler = SIG_IGN};
  (void)sigaction(SIGPIPE, &ignore, NULL);
}

/// What callers have shown is in memory for a while, and must not come to lie in a file: a crash leaves no core. Who
/// wants one raises the limit of the process that runs (prlimit --core).
static void leave_no_core(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_CORE, &limit) == 0) {
    limit.rlim_cur = 0;
    (void)setrlimit(RLIMIT_CORE, &limit);
  }
}

static void wait_for_stop(struct server *s, const char *config_path, const sigset_t *set) {
  for (;;) {
    int signal_number = sigwaitinfo(set, NULL);
    if (signal_number == SIGHUP)
      reload(s, config_path);
    else if (signal_number == SIGTERM || signal_number == SIGINT)
      return;
  }
}

static int serve(struct config *config, const char *config_path) {
  sigset_t set;
  leave_no_core();
  block_signals(&set);
  apply_log_settings(config);
  struct server *server = server_start(config);
  if (server == NULL)
    return EXIT_FAULT;
  wait_for_stop(server, config_path, &set);
  arm_second_signal();
  server_tell_systemd("STOPPING=1");
  log_info("stopping");
  bool failed = server_failed(server);
  server_stop(server);
  if (failed)
    return EXIT_FAULT;
  log_info("stopped");
  return EXIT_CLEAN;
}

// -- options -------------------------------------------------------------------------------------------------------

static const char help[] = "Usage: stillhered [OPTION]...\n"
                           "The presence server: who is still here?\n"
                           "\n"
                           "  -c, --config FILE       read the configuration from FILE; without it, there are only\n"
                           "                          the defaults and the environment's STILLHERE_<KEY>\n"
                           "      --check-config      check the configuration, though not the files that it names,\n"
                           "                          and exit\n"
                           "      --migrate           bring the database's schema up to date and exit; database_url\n"
                           "                          names the schema's owner for that\n"
                           "      --print-sample-config\n"
                           "                          print a configuration file with every key at its default\n"
                           "      --print-config-man  print the keys as troff, for stillhere.conf(5)\n"
                           "      --version           print the version and exit\n"
                           "      --help              print this and exit\n"
                           "\n"
                           "SIGTERM stops, SIGHUP reloads log_level, log_format, the keys of callers, the\n"
                           "certificate and the targets of webhooks.\n"
                           "Exit status: 0 stopped, 1 a failure, 2 a bad option or configuration.\n";

enum option_code { OPTION_CHECK = 256, OPTION_MIGRATE, OPTION_SAMPLE, OPTION_MAN, OPTION_VERSION, OPTION_HELP };

static const struct option options[] = {
    {"config", required_argument, NULL, 'c'},
    {"check-config", no_argument, NULL, OPTION_CHECK},
    {"migrate", no_argument, NULL, OPTION_MIGRATE},
    {"print-sample-config", no_argument, NULL, OPTION_SAMPLE},
    {"print-config-man", no_argument, NULL, OPTION_MAN},
    {"version", no_argument, NULL, OPTION_VERSION},
    {"help", no_argument, NULL, OPTION_HELP},
    {NULL, 0, NULL, 0},
};

/// @return EXIT_FAULT when standard output did not take it all
static int printed(void) {
  return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_CLEAN : EXIT_FAULT;
}

int main(int argc, char **argv) {
  static struct config config;
  const char *config_path = NULL;
  bool check = false, migrate_only = false;
  int code;
  while ((code = getopt_long(argc, argv, "c:", options, NULL)) != -1) {
    switch (code) {
    case 'c':
      config_path = optarg;
      break;
    case OPTION_CHECK:
      check = true;
      break;
    case OPTION_MIGRATE:
      migrate_only = true;
      break;
    case OPTION_SAMPLE:
      config_print_sample(stdout);
      return printed();
    case OPTION_MAN:
      config_print_man(stdout);
      return printed();
    case OPTION_VERSION:
      (void)puts("stillhered " PACKAGE_VERSION);
      return printed();
    case OPTION_HELP:
      (void)fputs(help, stdout);
      return printed();
    default: // getopt_long() has said what is wrong
      return EXIT_USAGE;
    }
  }
  if (optind < argc) {
    (void)fprintf(stderr, "stillhered: unexpected argument '%s'\n", argv[optind]);
    return EXIT_USAGE;
  }
  char error[CONFIG_ERROR_SIZE];
  int status = EXIT_CLEAN;
  if (!config_load(&config, config_path, environ, error)) {
    (void)fprintf(stderr, "stillhered: %s\n", error);
    status = EXIT_USAGE;
  } else if (!check && migrate_only) {
    apply_log_settings(&config);
    status = schema_migrate(&config) ? EXIT_CLEAN : EXIT_FAULT;
  } else if (!check) {
    status = serve(&config, config_path);
  }
  config_free(&config);
  return status;
}
