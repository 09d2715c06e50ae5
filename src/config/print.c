// SPDX-License-Identifier: Apache-2.0
// The table of keys for readers: the sample file and the man page.
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "config/config.h"
#include "config/keys.h"

/// Columns of the sample file.
#define SAMPLE_WIDTH 100

/// Unit, bounds and default, as the last sentences of a key's text.
static void describe_value(struct buf *b, const struct config_key *key) {
  switch (key->kind) {
  case CONFIG_DURATION:
    buf_printf(b, " Milliseconds, %" PRId64 " to %" PRId64 ".", key->min, key->max);
    break;
  case CONFIG_BYTES:
    buf_printf(b, " Bytes, %" PRId64 " to %" PRId64 ".", key->min, key->max);
    break;
  case CONFIG_COUNT:
    buf_printf(b, " A number, %" PRId64 " to %" PRId64 ".", key->min, key->max);
    break;
  case CONFIG_CHOICE:
    buf_puts(b, " One of: ");
    for (int i = 0; key->choices[i] != NULL; i++)
      buf_printf(b, "%s%s", i == 0 ? "" : ", ", key->choices[i]);
    buf_putc(b, '.');
    break;
  case CONFIG_LISTEN:
  case CONFIG_DATABASE:
  case CONFIG_ORIGINS:
  case CONFIG_TEXT:
    break;
  }
}

/// Writes text as comment lines, broken between words.
static void print_comment(FILE *out, const char *text) {
  size_t column = 0;
  while (*text != '\0') {
    size_t word = strcspn(text, " ");
    if (column > 0 && column + 1 + word > SAMPLE_WIDTH) {
      (void)fputc('\n', out);
      column = 0;
    }
    column += (size_t)fprintf(out, "%s%.*s", column == 0 ? "# " : " ", (int)word, text);
    text += word;
    text += *text == ' ';
  }
  (void)fputc('\n', out);
}

void config_print_sample(FILE *out) {
  print_comment(out,
                "Configuration of stillhered. Every key stands here at its default; to change one, take the # away. "
                "The environment wins: STILLHERE_ and the key in capitals, for example STILLHERE_LISTEN. An "
                "unknown key or a bad value stops the start. See stillhere.conf(5).");
  struct buf text = {0};
  for (size_t i = 0; i < config_key_count; i++) {
    const struct config_key *key = &config_keys[i];
    buf_reset(&text);
    buf_puts(&text, key->doc);
    describe_value(&text, key);
    (void)fputc('\n', out);
    if (!text.failed)
      print_comment(out, text.data);
    (void)fprintf(out, "#%s =%s%s\n", key->name, key->initial[0] == '\0' ? "" : " ", key->initial);
  }
  buf_free(&text);
}

/// Writes text with the characters that troff would take as its own escaped.
static void print_troff(FILE *out, const char *text) {
  for (; *text != '\0'; text++) {
    if (*text == '\\')
      (void)fputs("\\e", out);
    else if (*text == '-')
      (void)fputs("\\-", out);
    else if (*text == '~')
      (void)fputs("\\(ti", out);
    else if (*text == '\'')
      (void)fputs("\\(aq", out);
    else
      (void)fputc(*text, out);
  }
}

void config_print_man(FILE *out) {
  struct buf text = {0};
  for (size_t i = 0; i < config_key_count; i++) {
    const struct config_key *key = &config_keys[i];
    buf_reset(&text);
    buf_puts(&text, key->doc);
    describe_value(&text, key);
    buf_printf(&text, " Default: %s.", key->initial[0] == '\0' ? "empty" : key->initial);
    (void)fprintf(out, ".TP\n.B %s\n\\&", key->name);
    if (!text.failed)
      print_troff(out, text.data);
    (void)fputc('\n', out);
  }
  buf_free(&text);
}
