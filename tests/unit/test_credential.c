// SPDX-License-Identifier: Apache-2.0
// Credentials: sharing, room patterns, scopes and what they allow.
#include <setjmp.h> // cmocka.h wants these four in front
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "auth/credential.h"
#include "base/util.h"

static const struct credential *with(unsigned scopes, const char *sub, const char *room, const char *other) {
  struct credential *c = credential_new(CREDENTIAL_TOKEN);
  assert_non_null(c);
  c->scopes = scopes;
  c->name = strdup("somebody");
  if (sub != NULL)
    c->sub = strdup(sub);
  if (room != NULL)
    assert_true(credential_add_room(c, room, strlen(room), 2));
  if (other != NULL)
    assert_true(credential_add_room(c, other, strlen(other), 2));
  return c;
}

static void test_new(void **state) {
  (void)state;
  struct credential *c = credential_new(CREDENTIAL_API_KEY);
  assert_int_equal(c->kind, CREDENTIAL_API_KEY);
  assert_null(c->name);
  assert_null(c->sub);
  assert_null(c->sid);
  assert_int_equal(c->n_rooms, 0);
  assert_int_equal(c->scopes, 0);
  assert_true(c->expires_us == INT64_MAX);
  assert_ptr_equal(credential_ref(c), c);
  credential_unref(c);
  assert_int_equal(c->kind, CREDENTIAL_API_KEY); // still there
  credential_unref(c);
  assert_null(credential_ref(NULL));
  credential_unref(NULL);
}

static void *share(void *arg) {
  for (int i = 0; i < 20000; i++)
    credential_unref(credential_ref(arg));
  return NULL;
}

static void test_shared_by_threads(void **state) {
  (void)state;
  const struct credential *c = with(SCOPE_READ, "an", "a", NULL);
  pthread_t threads[2];
  for (size_t i = 0; i < ARRAY_LEN(threads); i++)
    assert_int_equal(pthread_create(&threads[i], NULL, share, (void *)c), 0);
  for (size_t i = 0; i < ARRAY_LEN(threads); i++)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  assert_string_equal(c->sub, "an");
  credential_unref(c);
}

static void test_scope_words(void **state) {
  (void)state;
  assert_int_equal(scope_parse("presence:read", 13), SCOPE_READ);
  assert_int_equal(scope_parse("presence:write", 14), SCOPE_WRITE);
  assert_int_equal(scope_parse("members:write", 13), SCOPE_MEMBERS);
  assert_int_equal(scope_parse("gateway", 7), SCOPE_GATEWAY);
  assert_int_equal(scope_parse("admin,", 5), SCOPE_ADMIN);
  static const char *const unknown[] = {"", "Admin", "admi", "admins", "presence", "presence:rea", "members:read", "*"};
  for (size_t i = 0; i < ARRAY_LEN(unknown); i++)
    assert_int_equal(scope_parse(unknown[i], strlen(unknown[i])), 0);
}

/// Which scopes a word grants: itself, and what it includes.
static void test_scopes(void **state) {
  (void)state;
  static const struct {
    unsigned given;
    unsigned allowed;
  } cases[] = {
      {0, 0},
      {SCOPE_READ, SCOPE_READ},
      {SCOPE_WRITE, SCOPE_WRITE},
      {SCOPE_MEMBERS, SCOPE_MEMBERS},
      {SCOPE_GATEWAY, SCOPE_GATEWAY | SCOPE_WRITE},
      {SCOPE_ADMIN, SCOPE_READ | SCOPE_WRITE | SCOPE_MEMBERS | SCOPE_GATEWAY | SCOPE_ADMIN},
      {SCOPE_READ | SCOPE_MEMBERS, SCOPE_READ | SCOPE_MEMBERS},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    const struct credential *c = with(cases[i].given, "an", "*", NULL);
    const struct credential *roomless = with(cases[i].given, "an", NULL, NULL);
    for (unsigned bit = SCOPE_READ; bit <= SCOPE_ADMIN; bit <<= 1) {
      assert_int_equal(credential_has(c, (enum scope)bit), (cases[i].allowed & bit) != 0);
      assert_false(credential_has(roomless, (enum scope)bit));
    }
    credential_unref(c);
    credential_unref(roomless);
  }
}

static void test_rooms(void **state) {
  (void)state;
  const struct credential *c = with(SCOPE_READ, "an", "class-7", "lab*");
  static const char *const in[] = {"class-7", "lab", "lab*", "labor", "lab/ä"};
  static const char *const out[] = {"class-", "class-77", "Class-7", "la", "Lab", "", "xlab"};
  for (size_t i = 0; i < ARRAY_LEN(in); i++)
    assert_true(credential_in_room(c, in[i]));
  for (size_t i = 0; i < ARRAY_LEN(out); i++)
    assert_false(credential_in_room(c, out[i]));
  credential_unref(c);
  c = with(SCOPE_READ, "an", "*", NULL);
  assert_true(credential_in_room(c, "anything"));
  credential_unref(c);
  c = with(SCOPE_ADMIN, "an", "a", NULL);
  assert_false(credential_in_room(c, "b")); // an admin of its rooms alone
  credential_unref(c);
  c = with(SCOPE_ADMIN, "an", NULL, NULL);
  assert_false(credential_in_room(c, "a"));
  credential_unref(c);
}

static void test_prefixes(void **state) {
  (void)state;
  const struct credential *c = with(SCOPE_READ, "an", "class-7", "lab-*");
  assert_true(credential_in_rooms(c, "lab-"));
  assert_true(credential_in_rooms(c, "lab-1"));
  assert_false(credential_in_rooms(c, "lab"));     // labor begins so too
  assert_false(credential_in_rooms(c, "class-7")); // and so does class-77
  assert_false(credential_in_rooms(c, ""));
  credential_unref(c);
  c = with(SCOPE_READ, "an", "x", "*");
  assert_true(credential_in_rooms(c, ""));
  assert_true(credential_in_rooms(c, "lab"));
  credential_unref(c);
}

static void test_users(void **state) {
  (void)state;
  static const struct {
    unsigned scopes;
    const char *sub, *user;
    bool is;
  } cases[] = {
      {SCOPE_WRITE, "an", "an", true},   {SCOPE_WRITE, "an", "bo", false},   {SCOPE_WRITE, "an", "an2", false},
      {SCOPE_WRITE, NULL, "an", false},  {SCOPE_MEMBERS, "an", "bo", false}, {SCOPE_GATEWAY, "an", "bo", true},
      {SCOPE_GATEWAY, NULL, "bo", true}, {SCOPE_ADMIN, NULL, "bo", true},    {SCOPE_READ, "an", "AN", false},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    const struct credential *c = with(cases[i].scopes, cases[i].sub, "*", NULL);
    assert_int_equal(credential_is_user(c, cases[i].user), cases[i].is);
    assert_true(credential_is_session(c, "any"));
    credential_unref(c);
  }
  struct credential *c = credential_new(CREDENTIAL_TOKEN);
  c->sid = strdup("tab-1");
  assert_true(credential_is_session(c, "tab-1"));
  assert_false(credential_is_session(c, "tab-2"));
  assert_false(credential_is_session(c, "tab"));
  credential_unref(c);
}

static void test_patterns(void **state) {
  (void)state;
  char longest[131];
  memset(longest, 'a', sizeof longest);
  longest[128] = '*';
  assert_null(room_pattern_problem(longest, 128));
  assert_null(room_pattern_problem(longest, 129)); // the star does not count
  longest[128] = 'a';
  assert_non_null(room_pattern_problem(longest, 129));
  longest[129] = '*';
  assert_non_null(room_pattern_problem(longest, 130));
  static const char *const good[] = {"a", "*", "a*", ".*", "..*", "a b*", "ä*", "/:*", "..."};
  static const char *const bad[] = {"", ".", "..", "**", "*a", "a*b", "a**", "a\n", "a\n*", "\xff", "\xc3*", "\x7f*"};
  for (size_t i = 0; i < ARRAY_LEN(good); i++)
    assert_null(room_pattern_problem(good[i], strlen(good[i])));
  for (size_t i = 0; i < ARRAY_LEN(bad); i++)
    assert_non_null(room_pattern_problem(bad[i], strlen(bad[i])));
}

static void test_room_capacity(void **state) {
  (void)state;
  struct credential *c = credential_new(CREDENTIAL_TOKEN);
  assert_true(credential_add_room(c, "abc", 2, 2));
  assert_true(credential_add_room(c, "c", 1, 2));
  assert_false(credential_add_room(c, "d", 1, 2));
  assert_int_equal(c->n_rooms, 2);
  assert_string_equal(c->rooms[0], "ab");
  credential_unref(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_new),           cmocka_unit_test(test_shared_by_threads),
      cmocka_unit_test(test_scopes),        cmocka_unit_test(test_scope_words),
      cmocka_unit_test(test_rooms),         cmocka_unit_test(test_prefixes),
      cmocka_unit_test(test_users),         cmocka_unit_test(test_patterns),
      cmocka_unit_test(test_room_capacity),
  };
  return cmocka_run_group_tests_name("credential", tests, NULL, NULL);
}
