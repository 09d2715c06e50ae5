// SPDX-License-Identifier: Apache-2.0
#include "store/webhook_targets.h"

#include <curl/curl.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "auth/credential.h"
#include "auth/key_file.h"

#define SECRET_FILE_MAX 4096
#define TARGETS_FILE_MAX ((size_t)1 << 20)
#define CA_FILE_MAX ((size_t)4 << 20)
#define SECRET_BYTES_MIN 24
#define SECRET_PREFIX "whsec_"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct webhook_targets *current;

// -- sharing -------------------------------------------------------------------------------------------------------

static void free_set(struct webhook_targets *set) {
  for (size_t i = 0; i < set->n; i++) {
    struct webhook_target *t = &set->list[i];
    for (size_t j = 0; j < t->n_rooms; j++)
      free(t->rooms[j]);
    free(t->rooms);
    free(t->url);
  }
  free(set->ca_file);
  explicit_bzero(set, sizeof *set);
  free(set);
}

void webhook_targets_put(struct webhook_targets *set) {
  if (set == NULL)
    return;
  pthread_mutex_lock(&lock);
  bool last = --set->references == 0;
  pthread_mutex_unlock(&lock);
  if (last)
    free_set(set);
}

struct webhook_targets *webhook_targets_get(void) {
  pthread_mutex_lock(&lock);
  if (current != NULL)
    current->references++;
  struct webhook_targets *set = current;
  pthread_mutex_unlock(&lock);
  return set;
}

struct webhook_targets *webhook_targets_share(struct webhook_targets *set) {
  pthread_mutex_lock(&lock);
  set->references++;
  pthread_mutex_unlock(&lock);
  return set;
}

void webhook_targets_set(struct webhook_targets *set) {
  pthread_mutex_lock(&lock);
  struct webhook_targets *old = current;
  current = set;
  pthread_mutex_unlock(&lock);
  webhook_targets_put(old);
}

// -- reading -------------------------------------------------------------------------------------------------------

const char *webhook_url_problem(const char *url) {
  static const char problem[] = "must be an http or https URL with a host and without user info or fragment";
  char *scheme = NULL, *host = NULL, *part = NULL;
  CURLU *u = curl_url();
  if (u == NULL)
    return "cannot be judged: memory ran out";
  // libcurl would take the host out of http:///host.
  bool good = strstr(url, ":///") == NULL && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
              (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0) &&
              curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK && host[0] != '\0';
  static const CURLUPart none[] = {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_FRAGMENT};
  for (size_t i = 0; good && i < ARRAY_LEN(none); i++) {
    good = curl_url_get(u, none[i], &part, 0) != CURLUE_OK;
    curl_free(part);
    part = NULL;
  }
  curl_free(scheme);
  curl_free(host);
  curl_url_cleanup(u);
  return good ? NULL : problem;
}

static bool read_secret(char *line, struct webhook_secret *secret) {
  size_t prefix = sizeof SECRET_PREFIX - 1;
  if (strncmp(line, SECRET_PREFIX, prefix) != 0)
    return false;
  gnutls_datum_t text = {(unsigned char *)line + prefix, (unsigned)strlen(line + prefix)}, bytes = {NULL, 0};
  if (gnutls_base64_decode2(&text, &bytes) != GNUTLS_E_SUCCESS)
    return false;
  bool good = bytes.size >= SECRET_BYTES_MIN && bytes.size <= WEBHOOK_SECRET_BYTES_MAX;
  if (good) {
    memcpy(secret->bytes, bytes.data, bytes.size);
    secret->len = bytes.size;
  }
  explicit_bzero(bytes.data, bytes.size);
  gnutls_free(bytes.data);
  return good;
}

/// @param key names the culprit in the error
static bool read_secrets(struct webhook_target *t, const char *key, const char *path, char *error) {
  struct key_file file;
  char why[CONFIG_ERROR_SIZE / 2];
  if (!key_file_read(&file, path, SECRET_FILE_MAX, why, sizeof why)) {
    (void)snprintf(error, CONFIG_ERROR_SIZE, "%s: %s", key, why);
    return false;
  }
  bool good = strlen(file.bytes) == file.len;
  char *save = NULL;
  for (char *line = strtok_r(file.bytes, " \t\r\n", &save); line != NULL && good;
       line = strtok_r(NULL, " \t\r\n", &save))
    good = t->n_secrets < WEBHOOK_SECRETS_MAX && read_secret(line, &t->secrets[t->n_secrets++]);
  key_file_free(&file);
  if (good && t->n_secrets > 0)
    return true;
  (void)snprintf(error, CONFIG_ERROR_SIZE,
                 "%s: %.200s must have 1 to %d lines, each whsec_ and 24 to 64 bytes in base64", key, path,
                 WEBHOOK_SECRETS_MAX);
  return false;
}

static const char *read_kinds(struct webhook_target *t, char *list) {
  if (strcmp(list, "*") == 0) {
    t->kinds = EVENT_KINDS_ALL;
    return NULL;
  }
  char *save = NULL;
  for (char *name = strtok_r(list, ",", &save); name != NULL; name = strtok_r(NULL, ",", &save)) {
    int kind = event_kind_parse(name);
    if (kind < 0)
      return "the fourth word must be kinds of events, separated by commas, or *";
    t->kinds |= 1u << kind;
  }
  return t->kinds != 0 ? NULL : "the fourth word must be kinds of events";
}

static const char *read_rooms(struct webhook_target *t, char *list) {
  size_t capacity = 1;
  for (const char *s = list; *s != '\0'; s++)
    capacity += *s == ',';
  t->rooms = calloc(capacity, sizeof *t->rooms);
  char *save = NULL;
  for (char *room = strtok_r(list, ",", &save); room != NULL && t->rooms != NULL; room = strtok_r(NULL, ",", &save)) {
    if (room_pattern_problem(room, strlen(room)) != NULL)
      return "the fifth word must be rooms, separated by commas: names, perhaps with a * at the end";
    t->rooms[t->n_rooms] = strdup(room);
    if (t->rooms[t->n_rooms++] == NULL)
      return "memory ran out";
  }
  return t->n_rooms > 0 ? NULL : "the fifth word must be rooms, or memory ran out";
}

static bool is_target_name(const char *s) {
  size_t len = strlen(s);
  return len >= 1 && len <= WEBHOOK_NAME_MAX &&
         strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == len;
}

static struct webhook_target *add_target(struct webhook_targets *set, const char *name, const char *url) {
  struct webhook_target *t = &set->list[set->n++];
  (void)snprintf(t->name, sizeof t->name, "%s", name);
  t->url = strdup(url);
  return t->url != NULL ? t : NULL;
}

/// One line of webhook_targets_file. @return NULL, or why not; an empty string: @a error says it already
static const char *read_target(struct webhook_targets *set, char *line, char *error) {
  char *words[5], *save = NULL;
  size_t n = 0;
  for (char *word = strtok_r(line, " \t\r", &save); word != NULL; word = strtok_r(NULL, " \t\r", &save)) {
    if (n == ARRAY_LEN(words))
      return "a line has five words: name, URL, secret file, kinds, rooms";
    words[n++] = word;
  }
  if (n == 0 || words[0][0] == '#')
    return NULL;
  if (n != ARRAY_LEN(words))
    return "a line has five words: name, URL, secret file, kinds, rooms";
  if (set->n == WEBHOOK_TARGETS_MAX)
    return "there are more than 32 targets";
  if (!is_target_name(words[0]))
    return "a name must be 1 to 32 of A-Z a-z 0-9 _ -";
  for (size_t i = 0; i < set->n; i++) {
    if (strcmp(set->list[i].name, words[0]) == 0)
      return "a name is used twice";
  }
  const char *problem = webhook_url_problem(words[1]);
  if (problem != NULL)
    return problem;
  struct webhook_target *t = add_target(set, words[0], words[1]);
  if (t == NULL)
    return "memory ran out";
  if (!read_secrets(t, "webhook_targets_file", words[2], error))
    return "";
  problem = read_kinds(t, words[3]);
  return problem != NULL ? problem : read_rooms(t, words[4]);
}

static bool read_targets(struct webhook_targets *set, const char *path, char *error) {
  struct key_file file;
  char why[CONFIG_ERROR_SIZE / 2];
  if (!key_file_read(&file, path, TARGETS_FILE_MAX, why, sizeof why)) {
    (void)snprintf(error, CONFIG_ERROR_SIZE, "webhook_targets_file: %s", why);
    return false;
  }
  const char *problem = strlen(file.bytes) == file.len ? NULL : "there is a NUL";
  int number = 0;
  for (char *line = file.bytes, *end; problem == NULL && line != NULL; line = end) {
    end = strchr(line, '\n');
    if (end != NULL)
      *end++ = '\0';
    number++;
    problem = read_target(set, line, error);
  }
  key_file_free(&file);
  if (problem != NULL && problem[0] != '\0')
    (void)snprintf(error, CONFIG_ERROR_SIZE, "webhook_targets_file: %.200s:%d: %s", path, number, problem);
  return problem == NULL;
}

static bool read_default(struct webhook_targets *set, const struct config *c, char *error) {
  const char *problem = webhook_url_problem(c->webhook_url);
  if (problem != NULL) {
    (void)snprintf(error, CONFIG_ERROR_SIZE, "webhook_url %s", problem);
    return false;
  }
  struct webhook_target *t = add_target(set, "default", c->webhook_url);
  char all[] = "*";
  if (t == NULL || read_rooms(t, all) != NULL) {
    (void)snprintf(error, CONFIG_ERROR_SIZE, "webhook_url: out of memory");
    return false;
  }
  t->kinds = EVENT_KINDS_ALL;
  return read_secrets(t, "webhook_secret_file", c->webhook_secret_file, error);
}

/// Whether the file of authorities has a certificate. libcurl reads it anew with each connection.
static bool read_authorities(struct webhook_targets *set, const char *path, char *error) {
  struct key_file file;
  char why[CONFIG_ERROR_SIZE / 2];
  if (!key_file_read(&file, path, CA_FILE_MAX, why, sizeof why)) {
    (void)snprintf(error, CONFIG_ERROR_SIZE, "webhook_ca_file: %s", why);
    return false;
  }
  gnutls_datum_t text = {(unsigned char *)file.bytes, (unsigned)file.len};
  gnutls_x509_crt_t *list = NULL;
  unsigned n = 0;
  int result = gnutls_x509_crt_list_import2(&list, &n, &text, GNUTLS_X509_FMT_PEM, 0);
  for (unsigned i = 0; result >= 0 && i < n; i++)
    gnutls_x509_crt_deinit(list[i]);
  if (result >= 0)
    gnutls_free(list);
  key_file_free(&file);
  set->ca_file = strdup(path);
  if (result >= 0 && n > 0 && set->ca_file != NULL)
    return true;
  (void)snprintf(error, CONFIG_ERROR_SIZE, "webhook_ca_file: %.200s must have certificates in PEM form%s%s", path,
                 result < 0 ? ": " : "", result < 0 ? gnutls_strerror(result) : "");
  return false;
}

struct webhook_targets *webhook_targets_load(const struct config *config, char error[CONFIG_ERROR_SIZE]) {
  struct webhook_targets *set = calloc(1, sizeof *set);
  if (set == NULL) {
    (void)snprintf(error, CONFIG_ERROR_SIZE, "webhook_url: out of memory");
    return NULL;
  }
  set->references = 1;
  if ((config->webhook_ca_file[0] == '\0' || read_authorities(set, config->webhook_ca_file, error)) &&
      (config->webhook_url[0] == '\0' || read_default(set, config, error)) &&
      (config->webhook_targets_file[0] == '\0' || read_targets(set, config->webhook_targets_file, error)))
    return set;
  free_set(set);
  return NULL;
}

// -- asking --------------------------------------------------------------------------------------------------------

bool webhook_target_wants(const struct webhook_target *target, const char *room_id, enum event_kind kind) {
  if ((target->kinds & 1u << kind) == 0)
    return false;
  for (size_t i = 0; i < target->n_rooms; i++) {
    const char *pattern = target->rooms[i];
    size_t len = strlen(pattern);
    if (pattern[len - 1] == '*' ? strncmp(room_id, pattern, len - 1) == 0 : strcmp(room_id, pattern) == 0)
      return true;
  }
  return false;
}
