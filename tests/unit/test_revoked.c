// SPDX-License-Identifier: Apache-2.0
// Who may not watch: the set of a room's revoked users, and how the tail keeps it between reads and events.
#include "base/buf.h"
#include "live/member_gate.h"
#include "live/revoked.h"
#include "tail_fixture.h"

// -- the set -------------------------------------------------------------------------------------------------------

static struct revoked_set set_of(const char *text) {
  struct revoked_set set = {0};
  assert_true(revoked_parse(&set, text));
  return set;
}

static void expect_set(const struct revoked_set *set, const char *text) {
  struct buf found = {0};
  for (size_t i = 0; i < set->n; i++)
    buf_printf(&found, "%s\n", set->users[i].id);
  assert_string_equal(found.data != NULL ? found.data : "", text);
  buf_free(&found);
}

static void parsing(void **state) {
  (void)state;
  static const struct {
    const char *text, *users;
  } cases[] = {{NULL, ""}, {"", ""}, {"a", "a\n"}, {"B\na\né", "B\na\né\n"}, {"a b\nc,d", "a b\nc,d\n"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct revoked_set set = set_of(cases[i].text);
    expect_set(&set, cases[i].users);
    revoked_clear(&set);
    assert_int_equal(set.n, 0);
  }
}

static void adding_and_removing(void **state) {
  (void)state;
  struct revoked_set set = {0};
  assert_false(revoked_has(&set, "m"));
  assert_false(revoked_remove(&set, "m"));
  const char *users[] = {"m", "a", "z", "é", "B", "mm", "l"};
  for (size_t i = 0; i < sizeof users / sizeof users[0]; i++)
    assert_int_equal(revoked_add(&set, users[i], 5), REVOKED_ADDED);
  assert_int_equal(revoked_add(&set, "mm", 9), REVOKED_KNOWN);
  expect_set(&set, "B\na\nl\nm\nmm\nz\né\n");
  assert_true(revoked_has(&set, "é"));
  assert_false(revoked_has(&set, "mmm"));
  assert_true(revoked_remove(&set, "B"));
  assert_true(revoked_remove(&set, "é"));
  assert_true(revoked_remove(&set, "m"));
  assert_false(revoked_remove(&set, "m"));
  expect_set(&set, "a\nl\nmm\nz\n");
  revoked_clear(&set);
}

static void many(void **state) {
  (void)state;
  struct revoked_set set = {0};
  char name[16];
  for (int i = 999; i >= 0; i--) {
    (void)snprintf(name, sizeof name, "u%03d", i * 7 % 1000);
    assert_int_equal(revoked_add(&set, name, i), REVOKED_ADDED);
  }
  assert_int_equal(set.n, 1000);
  for (int i = 0; i < 1000; i++) {
    (void)snprintf(name, sizeof name, "u%03d", i);
    assert_string_equal(set.users[i].id, name);
  }
  revoked_clear(&set);
}

static void replacing(void **state) {
  (void)state;
  bool grew;
  struct revoked_set set = set_of("a\nb"), fresh = set_of("b");
  assert_true(revoked_replace(&set, &fresh, 10, &grew));
  assert_false(grew);
  expect_set(&set, "b\n");
  revoked_clear(&fresh);

  assert_int_equal(revoked_add(&set, "early", 10), REVOKED_ADDED);
  assert_int_equal(revoked_add(&set, "late", 11), REVOKED_ADDED);
  fresh = set_of("c");
  assert_true(revoked_replace(&set, &fresh, 10, &grew));
  assert_true(grew);
  expect_set(&set, "c\nlate\n"); // what was told up to the read's revision is in the read, or was undone
  revoked_clear(&fresh);

  fresh = set_of("late");
  assert_true(revoked_replace(&set, &fresh, 11, &grew));
  assert_false(grew);
  expect_set(&set, "late\n");
  assert_int_equal(set.users[0].revision, 0);
  revoked_clear(&fresh);
  revoked_clear(&set);
}

static void a_cut_set_stays_cut_until_it_is_read_whole(void **state) {
  (void)state;
  bool grew;
  struct revoked_set set = {0}, fresh = set_of("a");
  fresh.cut = true;
  assert_true(revoked_replace(&set, &fresh, 10, &grew));
  assert_true(set.cut);
  revoked_clear(&fresh);
  assert_int_equal(revoked_add(&set, "b", 11), REVOKED_ADDED);
  assert_true(set.cut);
  fresh = set_of("a\nb");
  assert_true(revoked_replace(&set, &fresh, 11, &grew));
  assert_false(set.cut);
  revoked_clear(&fresh);
  revoked_clear(&set);
}

// -- in the tail ---------------------------------------------------------------------------------------------------

static int told[WORKERS];

static void on_revoked(void *ctx, const char *room_id) {
  assert_string_equal(room_id, ROOM);
  told[(int *)ctx - f.woken]++;
}

static int set_up_told(void **state) {
  (void)set_up(state);
  memset(told, 0, sizeof told);
  for (unsigned i = 0; i < WORKERS; i++)
    tail_tell_revoked(f.tail, i, on_revoked);
  return 0;
}

static void expect_told(int n) {
  deliver();
  for (int i = 0; i < WORKERS; i++)
    assert_int_equal(told[i], n);
  memset(told, 0, sizeof told);
}

// A read that found nothing new but these users, who are revoked.
static void fill_revoked(int64_t asked_us, int64_t head, const char *users, bool cut) {
  struct room_news news = {.head = head, .revoked = users ? strdup(users) : NULL, .revoked_cut = cut};
  tail_fill(f.tail, ROOM, asked_us, &news);
  room_news_free(&news, 1);
}

// A moment after all that has happened so far: the clock may stand still between two readings.
static int64_t later_us(void) {
  int64_t now_us = clock_mono_us();
  while (clock_mono_us() == now_us)
    continue;
  return clock_mono_us();
}

// The database said at the revision that the user was revoked.
static void revoke(int64_t revision, const char *user_id) {
  struct event e = event_at(ROOM, revision, EVENT_MEMBERSHIP_REVOKED);
  free(e.json);
  e.json = malloc(128);
  (void)snprintf(e.json, 128, "{\"revision\":%" PRId64 ",\"user_id\":\"%s\"}", revision, user_id);
  tail_publish(f.tail, &e, 1);
}

static enum standing standing(const char *user_id) {
  return member_standing(f.tail, ROOM, user_id);
}

// The room is in memory at revision 5 with these users.
static void load_revoked(const char *users) {
  expect(5, TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  fill_revoked(later_us(), 5, users, false);
  deliver();
  memset(told, 0, sizeof told);
}

static void what_memory_does_not_have_is_unknown(void **state) {
  (void)state;
  assert_int_equal(standing("a"), STANDING_UNKNOWN);
  expect(5, TAIL_LOADING);
  assert_int_equal(standing("a"), STANDING_UNKNOWN);
  revoke(6, "a"); // the room is being read
  assert_int_equal(standing("a"), STANDING_UNKNOWN);
  assert_int_equal(take_dirty(NULL), 1);
  fill_revoked(later_us(), 6, "a", false);
  assert_int_equal(standing("a"), STANDING_REVOKED);
  assert_int_equal(standing("b"), STANDING_GOOD);
}

static void an_event_counts_at_once(void **state) {
  (void)state;
  load_revoked("a");
  revoke(6, "b");
  assert_int_equal(standing("b"), STANDING_REVOKED);
  assert_int_equal(standing("c"), STANDING_GOOD);
  expect_told(1);
  revoke(7, "b"); // one for each of the user's leases
  expect_told(0);
}

static void an_event_behind_a_gap_counts_too(void **state) {
  (void)state;
  load_revoked(NULL);
  revoke(9, "b");
  assert_int_equal(standing("b"), STANDING_REVOKED);
  expect_told(1);
  assert_int_equal(take_dirty(NULL), 1);
  fill_revoked(later_us(), 9, "b", false);
  assert_int_equal(standing("b"), STANDING_REVOKED);
  expect_told(0);
}

static void an_event_that_memory_has_changes_nothing(void **state) {
  (void)state;
  load_revoked(NULL);
  revoke(6, "b");
  tail_granted(f.tail, ROOM, "b");
  assert_int_equal(take_dirty(NULL), 1);
  fill_revoked(later_us(), 6, NULL, false);
  revoke(6, "b"); // comes late by another way
  assert_int_equal(standing("b"), STANDING_GOOD);
}

static void many_are_told_of_once(void **state) {
  (void)state;
  load_revoked(NULL);
  for (int i = 0; i < 50; i++) {
    char name[16];
    (void)snprintf(name, sizeof name, "u%d", i);
    revoke(6 + i, name);
  }
  expect_told(1);
  revoke(56, "again");
  expect_told(1);
}

static void a_read_that_adds_tells_and_one_that_takes_does_not(void **state) {
  (void)state;
  load_revoked("a");
  fill_revoked(later_us(), 5, "a\nb", false);
  expect_told(1);
  fill_revoked(later_us(), 5, "b", false);
  expect_told(0);
  assert_int_equal(standing("a"), STANDING_GOOD);
  assert_int_equal(standing("b"), STANDING_REVOKED);
}

static void a_read_from_before_an_event_takes_nothing_away(void **state) {
  (void)state;
  load_revoked(NULL);
  int64_t before_us = clock_mono_us();
  revoke(6, "b");
  fill_revoked(before_us, 5, NULL, false);
  assert_int_equal(standing("b"), STANDING_REVOKED);
  expect_told(1);
}

static void a_grant_counts_at_once_and_older_reads_do_not(void **state) {
  (void)state;
  load_revoked("a\nb");
  int64_t before_us = clock_mono_us();
  tail_granted(f.tail, ROOM, "a");
  assert_int_equal(standing("a"), STANDING_GOOD);
  fill_revoked(before_us, 5, "a\nb\nc", false);
  assert_int_equal(standing("b"), STANDING_REVOKED);
  // Whether somebody else was revoked meanwhile that read alone would tell: the database is asked.
  assert_int_equal(standing("a"), STANDING_UNKNOWN);
  assert_int_equal(standing("c"), STANDING_UNKNOWN);
  assert_int_equal(take_dirty(NULL), 1);
  fill_revoked(later_us(), 5, "b\nc", false);
  assert_int_equal(standing("a"), STANDING_GOOD);
  assert_int_equal(standing("c"), STANDING_REVOKED);
  expect_told(1);
}

static void a_first_read_from_before_a_grant_makes_nobody_good(void **state) {
  (void)state;
  expect(5, TAIL_LOADING);
  assert_int_equal(take_dirty(NULL), 1);
  int64_t before_us = clock_mono_us();
  tail_granted(f.tail, ROOM, "a");
  fill_revoked(before_us, 5, "a\nb", false);
  assert_int_equal(standing("b"), STANDING_UNKNOWN);
}

static void a_grant_elsewhere_has_the_room_read(void **state) {
  (void)state;
  load_revoked("a");
  assert_int_equal(take_dirty(NULL), 0);
  tail_refresh(f.tail, ROOM);
  int64_t after = 0;
  assert_int_equal(take_dirty(&after), 1);
  assert_int_equal(after, 5);
  tail_refresh(f.tail, "never"); // is not in memory
  assert_int_equal(take_dirty(NULL), 0);
}

static void more_than_memory_keeps(void **state) {
  (void)state;
  load_revoked(NULL);
  fill_revoked(later_us(), 5, "a", true);
  assert_int_equal(standing("a"), STANDING_REVOKED);
  assert_int_equal(standing("b"), STANDING_UNKNOWN);
  revoke(6, "b");
  assert_int_equal(standing("b"), STANDING_REVOKED);
  assert_int_equal(standing("c"), STANDING_UNKNOWN);
}

static void an_event_that_says_no_user_is_read_up_on(void **state) {
  (void)state;
  load_revoked(NULL);
  publish(ROOM, 6, 6, EVENT_MEMBERSHIP_REVOKED);
  assert_int_equal(standing("a"), STANDING_UNKNOWN);
  assert_int_equal(take_dirty(NULL), 1);
}

static void another_past_is_unknown(void **state) {
  (void)state;
  load_revoked("a");
  epoch_set("fedcba9876543210");
  assert_int_equal(standing("a"), STANDING_UNKNOWN);
}

#define IN_TAIL(test) cmocka_unit_test_setup_teardown(test, set_up_told, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parsing),
      cmocka_unit_test(adding_and_removing),
      cmocka_unit_test(many),
      cmocka_unit_test(replacing),
      cmocka_unit_test(a_cut_set_stays_cut_until_it_is_read_whole),
      IN_TAIL(what_memory_does_not_have_is_unknown),
      IN_TAIL(an_event_counts_at_once),
      IN_TAIL(an_event_behind_a_gap_counts_too),
      IN_TAIL(an_event_that_memory_has_changes_nothing),
      IN_TAIL(many_are_told_of_once),
      IN_TAIL(a_read_that_adds_tells_and_one_that_takes_does_not),
      IN_TAIL(a_read_from_before_an_event_takes_nothing_away),
      IN_TAIL(a_grant_counts_at_once_and_older_reads_do_not),
      IN_TAIL(a_first_read_from_before_a_grant_makes_nobody_good),
      IN_TAIL(a_grant_elsewhere_has_the_room_read),
      IN_TAIL(more_than_memory_keeps),
      IN_TAIL(an_event_that_says_no_user_is_read_up_on),
      IN_TAIL(another_past_is_unknown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
