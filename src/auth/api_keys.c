// SPDX-License-Identifier: Apache-2.0
#include "auth/api_keys.h"

#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "auth/key_file.h"
#include "base/log.h"
#include "base/strict.h"
#include "base/util.h"

#define FILE_MAX_BYTES ((size_t)1 << 20)
/// Each request compares all of them.
#define KEYS_MAX 1000
#define ROOMS_MAX 1000
#define BLANKS " \t\r"

enum field { FIELD_NAME, FIELD_HASH, FIELD_SCOPES, FIELD_ROOMS, FIELD_COUNT };

struct api_key {
  unsigned char digest[SHA256_BYTES];
  struct credential *credential;
};

struct api_keys {
  size_t n;
  struct api_key keys[KEYS_MAX];
};

// -- a line --------------------------------------------------------------------------------------------------------

/// @return NULL, or what is wrong
static const char *read_hash(const char *hex, unsigned char digest[SHA256_BYTES]) {
  gnutls_datum_t text = {.data = (unsigned char *)hex, .size = (unsigned)strlen(hex)};
  size_t size = SHA256_BYTES;
  if (text.size != 2 * SHA256_BYTES || strspn(hex, "0123456789abcdefABCDEF") != text.size ||
      gnutls_hex_decode(&text, digest, &size) != 0 || size != SHA256_BYTES)
    return "the second word must be a SHA-256 of 64 hexadecimal digits";
  return NULL;
}

/// @param list is cut to pieces
static const char *read_scopes(char *list, struct credential *c) {
  while (list != NULL) {
    const char *word = strsep(&list, ",");
    unsigned scope = scope_parse(word, strlen(word));
    if (scope == 0)
      return "the third word must be scopes, separated by commas: presence:read, presence:write, members:write, "
             "gateway, admin";
    c->scopes |= scope;
  }
  return NULL;
}

/// @param list is cut to pieces
static const char *read_rooms(char *list, struct credential *c) {
  size_t capacity = 1;
  for (const char *s = list; *s != '\0'; s++)
    capacity += *s == ',';
  if (capacity > ROOMS_MAX)
    return "there are more than 1000 rooms";
  while (list != NULL) {
    const char *pattern = strsep(&list, ",");
    size_t len = strlen(pattern);
    if (room_pattern_problem(pattern, len) != NULL)
      return "the fourth word must be rooms, separated by commas: names, perhaps with a * at the end";
    if (!credential_add_room(c, pattern, len, capacity))
      return "out of memory";
  }
  return NULL;
}

/// @param[out] words @return whether there are exactly as many as there should be
static bool split(char *line, char *words[FIELD_COUNT]) {
  size_t n = 0;
  for (;;) {
    line += strspn(line, BLANKS);
    if (*line == '\0')
      return n == FIELD_COUNT;
    if (n == FIELD_COUNT)
      return false;
    words[n++] = line;
    line += strcspn(line, BLANKS);
    if (*line != '\0')
      *line++ = '\0';
  }
}

static const char *read_key(struct api_key *key, char *line) {
  char *words[FIELD_COUNT];
  if (!split(line, words))
    return "a line has four words: name, SHA-256, scopes, rooms";
  key->credential = credential_new(CREDENTIAL_API_KEY);
  if (key->credential == NULL)
    return "out of memory";
  if (ident_problem(words[FIELD_NAME], strlen(words[FIELD_NAME])) != NULL)
    return "the first word must be a name of at most 128 bytes of UTF-8";
  key->credential->name = strdup(words[FIELD_NAME]);
  if (key->credential->name == NULL)
    return "out of memory";
  const char *problem = read_hash(words[FIELD_HASH], key->digest);
  if (problem == NULL)
    problem = read_scopes(words[FIELD_SCOPES], key->credential);
  if (problem == NULL)
    problem = read_rooms(words[FIELD_ROOMS], key->credential);
  return problem;
}

// -- the file ------------------------------------------------------------------------------------------------------

static const char *twin_problem(const struct api_keys *keys, const struct api_key *key) {
  for (size_t i = 0; i < keys->n; i++) {
    if (strcmp(keys->keys[i].credential->name, key->credential->name) == 0)
      return "another key has this name";
    if (memcmp(keys->keys[i].digest, key->digest, SHA256_BYTES) == 0)
      return "another key has this hash";
  }
  return NULL;
}

static const char *add_line(struct api_keys *keys, char *line) {
  line += strspn(line, BLANKS);
  if (*line == '\0' || *line == '#')
    return NULL;
  if (keys->n == KEYS_MAX)
    return "there are more than 1000 keys";
  struct api_key key = {0};
  const char *problem = read_key(&key, line);
  if (problem == NULL)
    problem = twin_problem(keys, &key);
  if (problem == NULL)
    keys->keys[keys->n++] = key;
  else
    credential_unref(key.credential);
  return problem;
}

static void warn_of_idle_scopes(const struct api_keys *keys, const char *path) {
  for (size_t i = 0; i < keys->n; i++) {
    const struct credential *c = keys->keys[i].credential;
    if ((c->scopes & SCOPE_WRITE) != 0 && !credential_has(c, SCOPE_GATEWAY))
      log_warning("%s: the key %s speaks for no user, so presence:write lets it write nothing; gateway would", path,
                  c->name);
  }
}

static bool read_lines(struct api_keys *keys, struct key_file *file, const char *path, char *error) {
  if (memchr(file->bytes, '\0', file->len) != NULL) {
    (void)snprintf(error, CONFIG_ERROR_SIZE, "%s: is not a text file", path);
    return false;
  }
  char *next = file->bytes;
  for (int number = 1; next != NULL; number++) {
    const char *problem = add_line(keys, strsep(&next, "\n"));
    if (problem != NULL) {
      (void)snprintf(error, CONFIG_ERROR_SIZE, "%s:%d: %s", path, number, problem);
      return false;
    }
  }
  return true;
}

struct api_keys *api_keys_load(const char *path, char error[CONFIG_ERROR_SIZE]) {
  struct api_keys *keys = calloc(1, sizeof *keys);
  if (keys == NULL) {
    (void)snprintf(error, CONFIG_ERROR_SIZE, "out of memory");
    return NULL;
  }
  struct key_file file = {0};
  bool fine = path[0] == '\0' || (key_file_read(&file, path, FILE_MAX_BYTES, error, CONFIG_ERROR_SIZE) &&
                                  read_lines(keys, &file, path, error));
  key_file_free(&file);
  if (fine) {
    warn_of_idle_scopes(keys, path);
    return keys;
  }
  api_keys_free(keys);
  return NULL;
}

void api_keys_free(struct api_keys *keys) {
  if (keys == NULL)
    return;
  for (size_t i = 0; i < keys->n; i++)
    credential_unref(keys->keys[i].credential);
  explicit_bzero(keys, sizeof *keys);
  free(keys);
}

size_t api_keys_count(const struct api_keys *keys) {
  return keys->n;
}

const struct credential *api_keys_find(const struct api_keys *keys, const unsigned char digest[SHA256_BYTES]) {
  const struct credential *found = NULL;
  for (size_t i = 0; i < keys->n; i++) {
    if (gnutls_memcmp(keys->keys[i].digest, digest, SHA256_BYTES) == 0)
      found = keys->keys[i].credential;
  }
  return credential_ref(found);
}
