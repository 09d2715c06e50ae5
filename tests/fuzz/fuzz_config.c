// SPDX-License-Identifier: Apache-2.0
// The configuration: a file and, behind a line of `---`, the environment, one variable on each line.
#include <sys/mman.h>
#include <unistd.h>

#include "config/config.h"
#include "config/keys.h"
#include "config/origins.h"
#include "fuzz.h"

#define VARIABLES_MAX 100

static int file_fd;
static char file_path[64];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  file_fd = memfd_create("stillhere.conf", MFD_CLOEXEC);
  MUST(file_fd >= 0);
  (void)snprintf(file_path, sizeof file_path, "/proc/self/fd/%d", file_fd);
  return 0;
}

static const char *text_of(const struct config *config, const struct config_key *key) {
  return *(char *const *)(const void *)((const char *)config + key->offset);
}

static int64_t number_of(const struct config *config, const struct config_key *key) {
  return *(const int64_t *)(const void *)((const char *)config + key->offset);
}

static int64_t choices_of(const struct config_key *key) {
  int64_t n = 0;
  while (key->choices[n] != NULL)
    n++;
  return n;
}

static void check_value(const struct config *config, const struct config_key *key) {
  if (key->kind > CONFIG_TEXT) {
    int64_t value = number_of(config, key);
    if (key->kind == CONFIG_CHOICE)
      MUST(value >= 0 && value < choices_of(key));
    else
      MUST(value >= key->min && value <= key->max);
    return;
  }
  const char *text = text_of(config, key);
  MUST(text != NULL);
  for (const char *c = text; *c != '\0'; c++)
    MUST(((unsigned char)*c >= 0x20 && *c != 0x7f) || key->kind == CONFIG_ORIGINS);
  if (key->kind == CONFIG_ORIGINS)
    MUST(origins_problem(text) == NULL);
}

static void check_relations(const struct config *c) {
  char host[256], port[6];
  MUST(c->ttl_min_ms <= c->ttl_default_ms && c->ttl_default_ms <= c->ttl_max_ms);
  MUST(c->longpoll_default_wait_ms <= c->longpoll_max_wait_ms && c->longpoll_max_waiting < c->max_connections);
  MUST((c->tls_cert_file[0] == '\0') == (c->tls_key_file[0] == '\0'));
  MUST((listen_path(c->listen) != NULL) != listen_split(c->listen, host, port));
  if (c->auth == CONFIG_AUTH_NONE && listen_path(c->listen) == NULL)
    MUST(strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 || strchr(host, ':') != NULL);
  MUST(c->auth == CONFIG_AUTH_NONE || c->jwt_key_file[0] != '\0' || c->api_keys_file[0] != '\0');
}

/// A variable that sets a key to what it is.
static char *variable_of(const struct config *config, const struct config_key *key) {
  char *out = NULL;
  int n;
  if (key->kind <= CONFIG_TEXT)
    n = asprintf(&out, "STILLHERE_%s=%s", key->name, text_of(config, key));
  else if (key->kind == CONFIG_CHOICE)
    n = asprintf(&out, "STILLHERE_%s=%s", key->name, key->choices[number_of(config, key)]);
  else
    n = asprintf(&out, "STILLHERE_%s=%lld", key->name, (long long)number_of(config, key));
  MUST(n > 0);
  for (char *c = out; *c != '='; c++)
    *c = *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
  return out;
}

/// All that was accepted, said once more by the environment alone, is the same configuration.
static void check_again(const struct config *config) {
  char *variables[VARIABLES_MAX] = {NULL}, error[CONFIG_ERROR_SIZE];
  MUST(config_key_count < VARIABLES_MAX);
  for (size_t i = 0; i < config_key_count; i++)
    variables[i] = variable_of(config, &config_keys[i]);
  struct config same;
  MUST(config_load(&same, NULL, variables, error));
  for (size_t i = 0; i < config_key_count; i++) {
    const struct config_key *key = &config_keys[i];
    if (key->kind <= CONFIG_TEXT)
      MUST(strcmp(text_of(&same, key), text_of(config, key)) == 0);
    else
      MUST(number_of(&same, key) == number_of(config, key));
    free(variables[i]);
  }
  config_free(&same);
}

static void check_error(const char *error) {
  size_t len = strnlen(error, CONFIG_ERROR_SIZE);
  MUST(len > 0 && len < CONFIG_ERROR_SIZE);
  for (size_t i = 0; i < len; i++)
    MUST((unsigned char)error[i] >= 0x20 && error[i] != 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char mark[] = "---\n";
  const uint8_t *found = size > 0 ? memmem(data, size, mark, sizeof mark - 1) : NULL;
  size_t len = found != NULL ? (size_t)(found - data) : size;
  MUST(ftruncate(file_fd, 0) == 0 && pwrite(file_fd, data, len, 0) == (ssize_t)len);
  char *lines = fuzz_string(found != NULL ? found + sizeof mark - 1 : data + size,
                            found != NULL ? size - len - (sizeof mark - 1) : 0);
  char *variables[VARIABLES_MAX + 1] = {NULL}, *rest = lines, error[CONFIG_ERROR_SIZE];
  for (int i = 0; i < VARIABLES_MAX && rest != NULL; i++)
    variables[i] = strsep(&rest, "\n");
  struct config config;
  if (config_load(&config, file_path, variables, error)) {
    MUST(error[0] == '\0');
    for (size_t i = 0; i < config_key_count; i++)
      check_value(&config, &config_keys[i]);
    check_relations(&config);
    check_again(&config);
  } else {
    check_error(error);
  }
  config_free(&config);
  free(lines);
  return 0;
}
