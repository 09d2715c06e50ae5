// SPDX-License-Identifier: Apache-2.0
// The file of API keys.
#include "fuzz.h"

#define assert_true(condition) MUST(condition)
#define assert_int_equal(a, b) MUST((a) == (b))
#define assert_non_null(pointer) MUST((pointer) != NULL)
#include "../unit/auth_fixture.h"

#include "auth/api_keys.h"
#include "base/log.h"

static struct memory_file file;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  log_setup(LOG_ERROR, LOG_TEXT);
  file = memory_text("");
  return 0;
}

/// Takes the next word of a line. @return NULL when there is none
static char *next_word(char **line) {
  *line += strspn(*line, " \t\r");
  char *word = *line;
  *line += strcspn(word, " \t\r");
  if (**line != '\0')
    *(*line)++ = '\0';
  return word[0] != '\0' ? word : NULL;
}

static void read_digest(const char *hex, unsigned char digest[SHA256_BYTES]) {
  MUST(strlen(hex) == 2 * SHA256_BYTES);
  for (int i = 0; i < SHA256_BYTES; i++) {
    char two[3] = {hex[2 * i], hex[2 * i + 1], '\0'}, *end;
    digest[i] = (unsigned char)strtoul(two, &end, 16);
    MUST(end == two + 2);
  }
}

static size_t count_commas(const char *list) {
  size_t n = 0;
  for (; *list != '\0'; list++)
    n += *list == ',';
  return n;
}

/// The key of a line, which is in the file that was accepted.
static void check_key(const struct api_keys *keys, char *line) {
  char *name = next_word(&line), *hash = next_word(&line), *scopes = next_word(&line), *rooms = next_word(&line);
  MUST(name != NULL && hash != NULL && scopes != NULL && rooms != NULL && next_word(&line) == NULL);
  unsigned char digest[SHA256_BYTES];
  read_digest(hash, digest);
  const struct credential *c = api_keys_find(keys, digest);
  MUST(c != NULL && c->kind == CREDENTIAL_API_KEY && strcmp(c->name, name) == 0 && fuzz_is_ident(name));
  MUST(c->sub == NULL && c->sid == NULL && c->expires_us == INT64_MAX);
  MUST(c->scopes != 0 && c->n_rooms == count_commas(rooms) + 1 && c->n_rooms <= 1000);
  for (size_t i = 0; i < c->n_rooms; i++)
    MUST(c->rooms[i][0] != '\0' && room_pattern_problem(c->rooms[i], strlen(c->rooms[i])) == NULL);
  credential_unref(c);
}

static void check_keys(const struct api_keys *keys, char *text) {
  size_t n = 0;
  for (char *line; (line = strsep(&text, "\n")) != NULL;) {
    line += strspn(line, " \t\r");
    if (line[0] == '\0' || line[0] == '#')
      continue;
    check_key(keys, line);
    n++;
  }
  MUST(api_keys_count(keys) == n && n <= 1000);
}

/// An error names the file, and does not repeat what is in it.
static void check_error(const char *error, const char *text) {
  MUST(strncmp(error, file.path, strlen(file.path)) == 0 && strlen(error) < CONFIG_ERROR_SIZE);
  for (const char *at = text; *at != '\0';) {
    size_t len = strcspn(at, " \t\r\n");
    char *word = strndup(at, len);
    MUST(len < 40 || strstr(error, word) == NULL);
    free(word);
    at += len + (at[len] != '\0');
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  MUST(ftruncate(file.fd, 0) == 0 && pwrite(file.fd, data, size, 0) == (ssize_t)size);
  char *text = fuzz_string(data, size), error[CONFIG_ERROR_SIZE] = "";
  struct api_keys *keys = api_keys_load(file.path, error);
  if (keys != NULL) {
    MUST(strlen(text) == size); // a NUL is refused
    check_keys(keys, text);
  } else {
    check_error(error, text);
  }
  api_keys_free(keys);
  free(text);
  return 0;
}
