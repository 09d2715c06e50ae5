// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "http/accept.h"

struct expected {
  const char *header;
  bool wanted;
};

#define CHECK(function, table)                                                                                         \
  for (size_t i = 0; i < sizeof(table) / sizeof((table)[0]); i++) {                                                    \
    if (function((table)[i].header) != (table)[i].wanted)                                                              \
      fail_msg("\"%s\" is not %d", (table)[i].header ? (table)[i].header : "(none)", (table)[i].wanted);               \
  }

static void test_event_stream(void **state) {
  (void)state;
  static const struct expected table[] = {
      {NULL, false},
      {"", false},
      {"*/*", false},
      {"text/*", false},
      {"text/html", false},
      {"application/json", false},
      {"text/event-stream", true},
      {"Text/Event-Stream", true},
      {"text/event-stream;charset=utf-8", true},
      {"text/event-stream ; q=0.5", true},
      {"text/event-stream;q=0", false},
      {"text/event-stream;q=0.000", false},
      {"text/event-stream;q=x", false},
      {"text/event-stream;q=1.5", false},
      {"text/event-stream;q=0.0001", false},
      {"text/event-streams", false},
      {"xtext/event-stream", false},
      // JSON is the default wherever both are as welcome.
      {"text/event-stream, application/json", false},
      {"application/json, text/event-stream", false},
      {"application/json;q=0.9, text/event-stream", true},
      {"application/json, text/event-stream;q=0.9", false},
      {"text/event-stream, */*", true},
      {"text/event-stream;q=0.5, */*;q=0.8", false},
      {"text/event-stream, application/*;q=0.2, */*", true},
      {"text/event-stream;q=0.5, application/*;q=0.6, */*;q=0.1", false},
      {"text/html, text/event-stream, */*;q=0.8", true},
      {" ,, text/event-stream ,", true},
      // A comma or a type inside a quoted string is none.
      {"text/html;a=\"text/event-stream, \"", false},
      {"text/html;a=\"\\\", text/event-stream\"", false},
      {"text/html;a=\"x\", text/event-stream", true},
      {"text/event-stream;a=\"b;q=0\"", true},
      {"text/event-stream;a=\"unclosed", true},
  };
  CHECK(accept_event_stream, table);
}

static void test_gzip(void **state) {
  (void)state;
  static const struct expected table[] = {
      {NULL, false},
      {"", false},
      {"identity", false},
      {"gzip", true},
      {"GZIP", true},
      {"x-gzip", true},
      {"gzip, deflate, br, zstd", true},
      {"deflate, br", false},
      {"br;q=1.0, gzip;q=0.8, *;q=0.1", true},
      {"gzip;q=0", false},
      {"gzip;q=0, *", false},
      {"gzip;q=0.0", false},
      {"gzip; q=0", false},
      {"gzip ;q=0.001", true},
      {"gzip;q=1", true},
      {"gzip;q=", false},
      {"*", true},
      {"*;q=0", false},
      {"*;q=0, gzip", true},
      {"identity, gzip;q=0.5", false},
      {"identity;q=0.5, gzip", true},
      {"identity, gzip", true},
      {"identity;q=0", false},
      {"gzipped", false},
      {"gzi", false},
  };
  CHECK(accept_gzip, table);
}

static void test_weight(void **state) {
  (void)state;
  static const struct {
    const char *header;
    int csv, json;
  } table[] = {{NULL, 0, 0},
               {"", 0, 0},
               {"text/csv", 1000, 0},
               {"TEXT/CSV; charset=utf-8", 1000, 0},
               {"text/csvs", 0, 0},
               {"text/*;q=0.5", 500, 0},
               {"text/*;q=0.5, text/csv;q=0.1", 100, 0},
               {"*/*;q=0.3", 300, 300},
               {"*/*;q=0.3, text/*", 1000, 300},
               {"text/csv;q=0, */*", 0, 1000},
               {"text/, text/c*, */csv", 0, 0},
               {"application/json;q=0.2, text/csv;q=0.9", 900, 200}};
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    int csv = accept_weight(table[i].header, "text/csv"), json = accept_weight(table[i].header, "application/json");
    if (csv != table[i].csv || json != table[i].json)
      fail_msg("\"%s\" weighs %d and %d", table[i].header ? table[i].header : "(none)", csv, json);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_event_stream),
      cmocka_unit_test(test_gzip),
      cmocka_unit_test(test_weight),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
