// SPDX-License-Identifier: Apache-2.0
/// @file
/// `stillhere drill`: proves a running deployment right, or says what is wrong with it.
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/rand.h"
#include "cli/commands.h"
#include "cli/drill.h"
#include "cli/text.h"

/// As short as a server takes it by default.
#define TTL_MS 5000

static bool passed(const struct drill *d) {
  for (int i = 0; i < N_CHECKS; i++) {
    if (d->findings[i].wrong || !d->findings[i].reached)
      return false;
  }
  return true;
}

static const char *why(const struct finding *f) {
  return f->wrong ? f->why : f->reached ? "" : "the drill did not come so far";
}

static void tell_as_json(const struct drill *d) {
  json_t *checks = json_array();
  for (int i = 0; i < N_CHECKS; i++) {
    const struct finding *f = &d->findings[i];
    json_array_append_new(checks, json_pack("{s:s, s:b, s:s, s:O?}", "check", drill_words(i), "ok",
                                            f->reached && !f->wrong, "why", why(f), "request_ids", f->requests));
  }
  json_t *verdict = json_pack("{s:s, s:s, s:I, s:o}", "verdict", passed(d) ? "passed" : "failed", "room_id", d->room,
                              "after_ms", (json_int_t)((clock_mono_us() - d->began_us) / 1000), "checks", checks);
  print_json(verdict);
  json_decref(verdict);
}

static void tell(const struct drill *d) {
  if (d->options->json) {
    tell_as_json(d);
    return;
  }
  printf("\nThe drill %s on %s%s%s:\n", passed(d) ? "passed" : "FAILED", d->url[0], d->n_urls > 1 ? " and " : "",
         d->n_urls > 1 ? d->url[1] : "");
  for (int i = 0; i < N_CHECKS; i++) {
    const struct finding *f = &d->findings[i];
    char cleaned[sizeof f->why];
    printf("  %-7s %s\n", f->wrong ? "NOT SO:" : f->reached ? "yes:" : "open:", drill_words(i));
    if (f->wrong || !f->reached)
      printf("          %s\n", text_clean(cleaned, sizeof cleaned, why(f)));
    size_t j;
    json_t *id;
    json_array_foreach(f->requests, j, id) {
      printf("%s%s", j == 0 ? "          request ids: " : ", ", json_string_value(id));
    }
    if (json_array_size(f->requests) > 0)
      putchar('\n');
  }
}

int cmd_drill(const struct options *options) {
  char word[21];
  request_id_make(word);
  struct drill d = {.options = options,
                    .url = {options->url, options->second_url == NULL ? options->url : options->second_url},
                    .n_urls = options->second_url == NULL ? 1 : 2,
                    .began_us = clock_mono_us(),
                    .ttl_ms = options->ttl_ms > 0 ? options->ttl_ms : TTL_MS,
                    .late = {.revision = -1},
                    .keepers = {{.user = TEACHER, .session = SESSION}, {.user = RENEWS, .session = SESSION}},
                    .board = {.fold = {.revision = -1}}};
  snprintf(d.room, sizeof d.room, "drill-%.10s", word);
  if (!drill_open(&d)) {
    complain("memory ran out");
    drill_close(&d);
    return EXIT_REFUSED;
  }
  bool ended = drill_enter(&d) && drill_cursors(&d) && drill_expiry(&d) && drill_stayed(&d) && drill_gap(&d) &&
               drill_revoke(&d) && drill_grace(&d) && drill_reconnect(&d) && drill_told(&d);
  if (d.room_used)
    drill_clean(&d);
  bool wrong = false;
  for (int i = 0; i < N_CHECKS; i++)
    wrong = wrong || d.findings[i].wrong;
  int code = ended || wrong ? passed(&d) ? EXIT_DONE : EXIT_WRONG : d.code;
  if (ended || wrong)
    tell(&d);
  for (int i = 0; i < N_CHECKS; i++)
    json_decref(d.findings[i].requests);
  drill_close(&d);
  return code == EXIT_DONE && !ended ? EXIT_REFUSED : code;
}
