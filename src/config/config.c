// SPDX-License-Identifier: Apache-2.0
#include "config/config.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <ini.h>
#include <libpq-fe.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "base/strict.h"
#include "base/util.h"
#include "config/keys.h"
#include "config/origins.h"

#define ENV_PREFIX "STILLHERE_"

/// More than the table has; checked at the start of config_load().
#define KEYS_MAX 64

/// Variables of the command that the daemon may well meet in its environment.
static const char *const foreign_variables[] = {"STILLHERE_CONFIG", "STILLHERE_URL", "STILLHERE_TOKEN_FILE",
                                                "STILLHERE_CA_FILE"};

struct loader {
  struct config *config;
  char *error; ///< CONFIG_ERROR_SIZE bytes; empty while all is well
  const char *path;
  FILE *file;
  int line;      ///< of the file, from 1
  bool too_long; ///< a line did not fit into the INI reader
  bool in_file[KEYS_MAX];
  bool given[KEYS_MAX]; ///< by file or environment
};

/// Notes the first problem; later ones would only bury it.
static bool fail(struct loader *l, const char *fmt, ...) PRINTF_LIKE(2, 3);
static bool fail(struct loader *l, const char *fmt, ...) {
  if (l->error[0] != '\0')
    return false;
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(l->error, CONFIG_ERROR_SIZE, fmt, args);
  va_end(args);
  for (char *s = l->error; *s != '\0'; s++) {
    if ((unsigned char)*s < 0x20 || *s == 0x7f)
      *s = '?'; // one line, whatever the value was
  }
  return false;
}

static bool has_control_character(const char *s) {
  for (; *s != '\0'; s++) {
    if ((unsigned char)*s < 0x20 || *s == 0x7f)
      return true;
  }
  return false;
}

// -- values --------------------------------------------------------------------------------------------------------

const char *listen_path(const char *listen) {
  static const char prefix[] = "unix:";
  bool is_path = strncmp(listen, prefix, sizeof prefix - 1) == 0 && listen[sizeof prefix - 1] == '/';
  return is_path ? listen + sizeof prefix - 1 : NULL;
}

bool listen_split(const char *listen, char host[256], char port[6]) {
  const char *colon = strrchr(listen, ':');
  if (colon == NULL)
    return false;
  const char *from = listen, *to = colon;
  if (*from == '[') {
    if (to - from < 3 || to[-1] != ']')
      return false;
    from++;
    to--;
  }
  size_t host_len = (size_t)(to - from), port_len = strlen(colon + 1);
  int64_t number;
  if (host_len == 0 || host_len > 255 || port_len > 5 || !strict_int(colon + 1, port_len, 0, 65535, &number))
    return false;
  bool bracketed = from != listen;
  for (const char *s = from; s < to; s++) {
    // Without brackets a colon could be the port's or the address's.
    if (*s == '[' || *s == ']' || *s == '/' || *s == ' ' || (*s == ':' && !bracketed))
      return false;
  }
  memcpy(host, from, host_len);
  host[host_len] = '\0';
  memcpy(port, colon + 1, port_len + 1);
  return true;
}

static bool is_loopback(const char *host) {
  struct in_addr v4;
  struct in6_addr v6;
  if (inet_pton(AF_INET, host, &v4) == 1)
    return ntohl(v4.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, host, &v6) == 1)
    return IN6_IS_ADDR_LOOPBACK(&v6);
  // Any other name is what its resolver makes of it today.
  return strcmp(host, "localhost") == 0;
}

/// Whether libpq understands the string. What it says against it may repeat the password, so that is not passed on.
static bool is_connection_string(const char *s) {
  PQconninfoOption *options = PQconninfoParse(s, NULL);
  PQconninfoFree(options);
  return options != NULL;
}

static bool is_listen(const char *value) {
  char host[256], port[6];
  const char *path = listen_path(value);
  if (has_control_character(value))
    return false;
  if (path == NULL)
    return listen_split(value, host, port);
  size_t len = strlen(path);
  return len < sizeof((struct sockaddr_un *)NULL)->sun_path && path[len - 1] != '/';
}

/// @return NULL when the text is fine, else what is accepted
static const char *text_problem(const struct config_key *key, const char *value) {
  if (key->kind == CONFIG_LISTEN)
    return is_listen(value) ? NULL : "must be host:port, [address]:port or unix:/path (a path of at most 107 bytes)";
  if (key->kind == CONFIG_ORIGINS)
    return origins_problem(value);
  if (key->kind == CONFIG_TEXT)
    return has_control_character(value) ? "must not contain control characters" : NULL;
  if (value[0] == '\0')
    return key->may_be_empty ? NULL : "must not be empty";
  if (has_control_character(value) || !utf8_valid(value, strlen(value)) || !is_connection_string(value))
    return "must be a PostgreSQL connection URI (postgresql://…) or a key=value string";
  return NULL;
}

static bool set_text(struct loader *l, const struct config_key *key, const char *where, const char *value) {
  const char *problem = text_problem(key, value);
  if (problem != NULL)
    return fail(l, "%s: %s %s", where, key->name, problem);
  char **field = (char **)(void *)((char *)l->config + key->offset);
  char *copy = strdup(value);
  if (copy == NULL)
    return fail(l, "%s: out of memory", key->name);
  free(*field);
  *field = copy;
  return true;
}

static bool set_choice(struct loader *l, const struct config_key *key, const char *where, const char *value,
                       int64_t *field) {
  char accepted[128];
  size_t used = 0;
  for (int64_t i = 0; key->choices[i] != NULL; i++) {
    if (strcmp(key->choices[i], value) == 0) {
      *field = i;
      return true;
    }
    int n = snprintf(accepted + used, sizeof accepted - used, "%s%s", i == 0 ? "" : ", ", key->choices[i]);
    assert(n > 0 && (size_t)n < sizeof accepted - used); // the choices are ours and short
    used += (size_t)n;
  }
  return fail(l, "%s: %s must be one of: %s; not '%.64s'", where, key->name, accepted, value);
}

static bool set_value(struct loader *l, const struct config_key *key, const char *where, const char *value) {
  if (key->kind <= CONFIG_TEXT)
    return set_text(l, key, where, value);
  int64_t *field = (int64_t *)(void *)((char *)l->config + key->offset);
  if (key->kind == CONFIG_CHOICE)
    return set_choice(l, key, where, value, field);
  if (strict_int(value, strlen(value), key->min, key->max, field))
    return true;
  const char *unit = key->kind == CONFIG_DURATION ? " milliseconds" : key->kind == CONFIG_BYTES ? " bytes" : "";
  return fail(l, "%s: %s must be a whole number from %lld to %lld%s, not '%.64s'", where, key->name,
              (long long)key->min, (long long)key->max, unit, value);
}

static bool unknown(struct loader *l, const char *where, const char *name) {
  return fail(l, "%s: there is no key %.64s", where, name);
}

// -- sources -------------------------------------------------------------------------------------------------------

static bool set_defaults(struct loader *l) {
  for (size_t i = 0; i < config_key_count; i++) {
    if (!set_value(l, &config_keys[i], "default", config_keys[i].initial))
      return false;
  }
  return true;
}

/// Reads lines for inih, which gives neither line numbers to its handler nor a word when it cuts a long line in two.
static char *read_line(char *line, int size, void *ctx) {
  struct loader *l = ctx;
  if (l->error[0] != '\0' || fgets(line, size, l->file) == NULL)
    return NULL;
  l->line++;
  if (strchr(line, '\n') == NULL && !feof(l->file)) {
    (void)fail(
        l, "%s:%d: the line is longer than %d characters (or has a NUL); a long value can be set in the environment",
        l->path, l->line, size - 2);
    return NULL;
  }
  return line;
}

static int on_pair(void *ctx, const char *section, const char *name, const char *value) {
  struct loader *l = ctx;
  char where[CONFIG_ERROR_SIZE / 2];
  (void)snprintf(where, sizeof where, "%s:%d", l->path, l->line);
  if (section[0] != '\0')
    return fail(l, "%s: there are no sections, but [%.64s] was found before %.64s", where, section, name);
  const struct config_key *key = config_key_find(name, strlen(name));
  if (key == NULL)
    return unknown(l, where, name);
  size_t index = (size_t)(key - config_keys);
  if (l->in_file[index])
    return fail(l, "%s: %s is set a second time (a line that begins with a blank continues the one before)", where,
                name);
  l->in_file[index] = l->given[index] = true;
  return set_value(l, key, where, value);
}

static bool read_file(struct loader *l) {
  l->file = fopen(l->path, "re");
  if (l->file == NULL)
    return fail(l, "%s: %s", l->path, strerror(errno));
  int bad_line = ini_parse_stream(read_line, l, on_pair, l);
  if (ferror(l->file))
    (void)fail(l, "%s: cannot be read", l->path);
  else if (bad_line < 0)
    (void)fail(l, "%s: out of memory", l->path);
  else if (bad_line > 0)
    (void)fail(l, "%s:%d: neither `key = value` nor a comment", l->path, bad_line);
  (void)fclose(l->file);
  return l->error[0] == '\0';
}

static bool is_foreign(const char *variable, size_t len) {
  for (size_t i = 0; i < ARRAY_LEN(foreign_variables); i++) {
    if (strlen(foreign_variables[i]) == len && memcmp(foreign_variables[i], variable, len) == 0)
      return true;
  }
  return false;
}

static bool read_variable(struct loader *l, const char *variable) {
  size_t prefix = sizeof ENV_PREFIX - 1, len = strcspn(variable, "=");
  if (strncmp(variable, ENV_PREFIX, prefix) != 0 || variable[len] != '=' || is_foreign(variable, len))
    return true;
  char where[80], name[64];
  (void)snprintf(where, sizeof where, "%.*s", (int)(len < sizeof where ? len : sizeof where - 1), variable);
  size_t name_len = len - prefix;
  if (name_len >= sizeof name)
    return fail(l, "%s…: there is no such key", where);
  for (size_t i = 0; i < name_len; i++) {
    char c = variable[prefix + i];
    if (c >= 'a' && c <= 'z')
      return fail(l, "%s: there is no such key (the names of variables are in capitals)", where);
    name[i] = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
  }
  name[name_len] = '\0';
  const struct config_key *key = config_key_find(name, name_len);
  if (key == NULL)
    return unknown(l, where, name);
  l->given[key - config_keys] = true;
  return set_value(l, key, where, variable + len + 1);
}

// -- the whole -----------------------------------------------------------------------------------------------------

static bool is_given(const struct loader *l, const char *name) {
  const struct config_key *key = config_key_find(name, strlen(name));
  assert(key != NULL);
  return l->given[key - config_keys];
}

/// A default that nobody chose makes way for what somebody did choose.
static void fit_defaults(struct loader *l) {
  struct config *c = l->config;
  if (!is_given(l, "ttl_default_ms") && c->ttl_min_ms <= c->ttl_max_ms) {
    if (c->ttl_default_ms < c->ttl_min_ms)
      c->ttl_default_ms = c->ttl_min_ms;
    if (c->ttl_default_ms > c->ttl_max_ms)
      c->ttl_default_ms = c->ttl_max_ms;
  }
  if (!is_given(l, "longpoll_default_wait_ms") && c->longpoll_default_wait_ms > c->longpoll_max_wait_ms)
    c->longpoll_default_wait_ms = c->longpoll_max_wait_ms;
  if (!is_given(l, "longpoll_max_waiting")) {
    int64_t most = c->max_connections * 8 / 9;
    if (c->longpoll_max_waiting > most)
      c->longpoll_max_waiting = most;
  }
}

/// Keys that nobody would be asked for are a mistake that is noticed too late.
static bool check_who_may(struct loader *l) {
  const struct config *c = l->config;
  char host[256], port[6];
  bool tokens = c->jwt_key_file[0] != '\0', api_keys = c->api_keys_file[0] != '\0';
  if (c->auth == CONFIG_AUTH_JWT)
    return tokens || api_keys || fail(l, "auth is jwt, so jwt_key_file or api_keys_file must be set");
  if (tokens || api_keys)
    return fail(l, "%s is set, but auth is none: nobody would be asked for a credential; auth = jwt does",
                tokens ? "jwt_key_file" : "api_keys_file");
  if (listen_path(c->listen) == NULL && (!listen_split(c->listen, host, port) || !is_loopback(host)))
    return fail(l, "listen must be a loopback address or a unix socket while auth is none, not '%.64s'", c->listen);
  return true;
}

static bool check_relations(struct loader *l) {
  const struct config *c = l->config;
  if (c->ttl_min_ms > c->ttl_max_ms)
    return fail(l, "ttl_min_ms (%lld) must not be above ttl_max_ms (%lld)", (long long)c->ttl_min_ms,
                (long long)c->ttl_max_ms);
  if (c->ttl_default_ms < c->ttl_min_ms || c->ttl_default_ms > c->ttl_max_ms)
    return fail(l, "ttl_default_ms (%lld) must be between ttl_min_ms (%lld) and ttl_max_ms (%lld)",
                (long long)c->ttl_default_ms, (long long)c->ttl_min_ms, (long long)c->ttl_max_ms);
  if (c->longpoll_default_wait_ms > c->longpoll_max_wait_ms)
    return fail(l, "longpoll_default_wait_ms (%lld) must not be above longpoll_max_wait_ms (%lld)",
                (long long)c->longpoll_default_wait_ms, (long long)c->longpoll_max_wait_ms);
  if (c->longpoll_max_waiting >= c->max_connections)
    return fail(l, "longpoll_max_waiting (%lld) must be below max_connections (%lld)",
                (long long)c->longpoll_max_waiting, (long long)c->max_connections);
  if (c->renew_interval_min_ms > c->ttl_min_ms / 3)
    return fail(l,
                "renew_interval_min_ms (%lld) must not be above a third of ttl_min_ms (%lld): clients renew so often",
                (long long)c->renew_interval_min_ms, (long long)c->ttl_min_ms);
  if ((c->tls_cert_file[0] == '\0') != (c->tls_key_file[0] == '\0'))
    return fail(l, "%s is needed as well where %s is set",
                c->tls_cert_file[0] == '\0' ? "tls_cert_file" : "tls_key_file",
                c->tls_cert_file[0] == '\0' ? "tls_key_file" : "tls_cert_file");
  if ((c->webhook_url[0] == '\0') != (c->webhook_secret_file[0] == '\0'))
    return fail(l, "%s is needed as well where %s is set",
                c->webhook_url[0] == '\0' ? "webhook_url" : "webhook_secret_file",
                c->webhook_url[0] == '\0' ? "webhook_secret_file" : "webhook_url");
  return check_who_may(l);
}

bool config_load(struct config *config, const char *path, char **environment, char error[CONFIG_ERROR_SIZE]) {
  assert(config_key_count <= KEYS_MAX);
  *config = (struct config){0};
  error[0] = '\0';
  struct loader l = {.config = config, .error = error, .path = path};
  if (!set_defaults(&l) || (path != NULL && !read_file(&l)))
    return false;
  for (char **variable = environment; variable != NULL && *variable != NULL; variable++) {
    if (!read_variable(&l, *variable))
      return false;
  }
  fit_defaults(&l);
  return check_relations(&l);
}

void config_free(struct config *config) {
  for (size_t i = 0; i < config_key_count; i++) {
    if (config_keys[i].kind <= CONFIG_TEXT)
      free(*(char **)(void *)((char *)config + config_keys[i].offset));
  }
  *config = (struct config){0};
}
