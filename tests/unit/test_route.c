// SPDX-License-Identifier: Apache-2.0
// How a raw request target finds its route: split first, decode each segment once, refuse what is ambiguous.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/util.h"
#include "http/handlers.h"
#include "http/route.h"

struct found {
  enum route_result result;
  const struct route *route;
  char *params[PATH_PARAMS_MAX];
  char allow[ALLOW_SIZE];
  const char *problem;
};

static struct found find(const char *method, const char *path) {
  struct found f;
  memset(&f, 0xa5, sizeof f); // what is not set by route_find() would be noticed
  f.result = route_find(method, path, &f.route, f.params, f.allow, &f.problem);
  return f;
}

static void clear(struct found *f) {
  for (int i = 0; i < PATH_PARAMS_MAX; i++)
    free(f->params[i]);
}

static void expect_room(const char *path, const char *room) {
  struct found f = find("GET", path);
  assert_int_equal(f.result, ROUTE_FOUND);
  assert_ptr_equal(f.route->handle, h_presence_get);
  assert_string_equal(f.params[0], room);
  assert_null(f.params[1]);
  assert_null(f.problem);
  clear(&f);
}

static void expect(const char *method, const char *path, enum route_result result) {
  struct found f = find(method, path);
  if (f.result != result)
    print_message("%s %s\n", method, path);
  assert_int_equal(f.result, result);
  assert_true((f.problem != NULL) == (result == ROUTE_BAD_PATH));
  assert_true((f.route != NULL) == (result == ROUTE_FOUND) || result == ROUTE_BAD_PATH);
  clear(&f);
}

static void expect_allow(const char *method, const char *path, const char *allow) {
  struct found f = find(method, path);
  assert_int_equal(f.result, ROUTE_BAD_METHOD);
  assert_string_equal(f.allow, allow);
  clear(&f);
}

static void every_route_is_found(void **state) {
  (void)state;
  static const struct {
    const char *method, *path;
    enum request_verdict (*handle)(struct request *r);
  } table[] = {
      {"PUT", "/leases", h_lease_put},
      {"DELETE", "/rooms/r/leases/u/s", h_lease_delete},
      {"GET", "/rooms/r/presence", h_presence_get},
      {"GET", "/rooms/r/leases", h_leases_get},
      {"GET", "/rooms", h_rooms_get},
      {"GET", "/last-seen", h_last_seen_get},
      {"GET", "/users/u/presence", h_user_presence_get},
      {"GET", "/rooms/r/last-seen", h_room_last_seen_get},
      {"GET", "/rooms/r/users/u/explain", h_explain_get},
      {"GET", "/healthz", h_healthz},
      {"GET", "/readyz", h_readyz},
      {"GET", "/metrics", h_metrics},
  };
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    struct found f = find(table[i].method, table[i].path);
    assert_int_equal(f.result, ROUTE_FOUND);
    assert_ptr_equal(f.route->handle, table[i].handle);
    clear(&f);
  }
}

static void parameters_come_in_order(void **state) {
  (void)state;
  struct found f = find("DELETE", "/rooms/the%20room/leases/%C3%A9va/tab%2F1");
  assert_int_equal(f.result, ROUTE_FOUND);
  assert_string_equal(f.params[0], "the room");
  assert_string_equal(f.params[1], "\xc3\xa9va");
  assert_string_equal(f.params[2], "tab/1");
  clear(&f);
}

static void segments_are_decoded_once(void **state) {
  (void)state;
  expect_room("/rooms/a%2Fb/presence", "a/b");
  expect_room("/rooms/a%2fb/presence", "a/b");
  expect_room("/rooms/a%252Fb/presence", "a%2Fb");
  expect_room("/rooms/a+b/presence", "a+b");
  expect_room("/rooms/a%2Bb/presence", "a+b");
  expect_room("/rooms/a%3Ab:c/presence", "a:b:c");
  expect_room("/rooms/%E2%82%AC/presence", "\xe2\x82\xac");
  expect_room("/rooms/\xe2\x82\xac/presence", "\xe2\x82\xac");
  expect_room("/rooms/.../presence", "...");
  expect_room("/rooms/leases/presence", "leases");
  expect_room("/%72ooms/r/presence", "r");
}

static void bad_paths_are_refused(void **state) {
  (void)state;
  static const char *const paths[] = {
      "",
      "rooms",
      "*",
      "//rooms/r1/presence",
      "/rooms//presence",
      "/rooms/r1/presence/",
      "/rooms/",
      "/rooms/r1%00evil/presence",
      "/rooms/r1%00/presence",
      "/rooms/%2e%2e/presence",
      "/rooms/%2E/presence",
      "/rooms/./presence",
      "/rooms/a/../r1/presence",
      "/rooms/r%zz/presence",
      "/rooms/r1%/presence",
      "/rooms/r1%4/presence",
      "/rooms/%ff/presence",
      "/rooms/%C3/presence",
      "/rooms/%ED%A0%80/presence",
      "/rooms/a%0Ab/presence",
      "/rooms/a%7F/presence",
      "/nowhere/%2e%2e",
      "/nowhere/%",
      "/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17/..",
  };
  for (size_t i = 0; i < ARRAY_LEN(paths); i++)
    expect("GET", paths[i], ROUTE_BAD_PATH);
}

static void identifiers_have_a_longest_length(void **state) {
  (void)state;
  char path[256], room[IDENT_MAX + 2];
  memset(room, 'r', sizeof room);
  room[IDENT_MAX] = '\0';
  (void)snprintf(path, sizeof path, "/rooms/%s/presence", room);
  expect_room(path, room);
  room[IDENT_MAX] = 'r';
  room[IDENT_MAX + 1] = '\0';
  (void)snprintf(path, sizeof path, "/rooms/%s/presence", room);
  expect("GET", path, ROUTE_BAD_PATH);
}

static void the_root_is_a_path_of_its_own(void **state) {
  (void)state;
  struct found f = find("GET", "/");
  assert_int_equal(f.result, ROUTE_FOUND);
  assert_ptr_equal(f.route->handle, h_page);
  assert_null(f.params[0]);
  clear(&f);
  expect("HEAD", "/", ROUTE_FOUND);
  expect_allow("PUT", "/", "GET, HEAD, OPTIONS");
  expect("GET", "//", ROUTE_BAD_PATH);
}

static void unknown_paths_are_not_found(void **state) {
  (void)state;
  expect("GET", "/nowhere", ROUTE_NOT_FOUND);
  expect("GET", "/room", ROUTE_NOT_FOUND);
  expect("GET", "/roomss", ROUTE_NOT_FOUND);
  expect("GET", "/Rooms", ROUTE_NOT_FOUND);
  expect("GET", "/rooms/r", ROUTE_NOT_FOUND);
  expect("GET", "/rooms/r/presence/x", ROUTE_NOT_FOUND);
  expect("GET", "/rooms%2Fr%2Fpresence", ROUTE_NOT_FOUND);
  expect("GET", "/{room}", ROUTE_NOT_FOUND);
  expect("GET", "/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17/18", ROUTE_NOT_FOUND);
  expect("DELETE", "/rooms/r/leases/u", ROUTE_NOT_FOUND);
}

static void other_methods_are_told_what_is_allowed(void **state) {
  (void)state;
  expect_allow("POST", "/leases", "PUT, OPTIONS");
  expect_allow("GET", "/leases", "PUT, OPTIONS");
  expect_allow("put", "/leases", "PUT, OPTIONS");
  expect_allow("", "/leases", "PUT, OPTIONS");
  expect_allow("TRACE", "/rooms/r/presence", "GET, HEAD, OPTIONS");
  expect_allow("OPTIONS", "/rooms/r/leases", "GET, HEAD, OPTIONS");
  expect_allow("HEAD", "/rooms/r/leases/u/s", "DELETE, OPTIONS");
  expect("OPTIONS", "/nowhere", ROUTE_NOT_FOUND);
}

static void head_finds_get(void **state) {
  (void)state;
  struct found f = find("HEAD", "/rooms");
  assert_int_equal(f.result, ROUTE_FOUND);
  assert_ptr_equal(f.route->handle, h_rooms_get);
  clear(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_route_is_found),
      cmocka_unit_test(parameters_come_in_order),
      cmocka_unit_test(segments_are_decoded_once),
      cmocka_unit_test(bad_paths_are_refused),
      cmocka_unit_test(identifiers_have_a_longest_length),
      cmocka_unit_test(the_root_is_a_path_of_its_own),
      cmocka_unit_test(unknown_paths_are_not_found),
      cmocka_unit_test(other_methods_are_told_what_is_allowed),
      cmocka_unit_test(head_finds_get),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
