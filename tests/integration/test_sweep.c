// SPDX-License-Identifier: Apache-2.0
// The races of the sweeper, step by step on a real PostgreSQL: each test stops between reading what is overdue and the
// claim, and lets something else happen there. TEST_DATABASE_URL names an empty database.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>

#include "base/util.h"
#include "db/migrate.h"
#include "store/heartbeat.h"
#include "store/sweep.h"

/// Nobody touches the pulse here.
#define SILENCE_MS INT64_C(3600000)

static struct db_options options = {
    .application = "test_sweep", .connect_timeout_ms = 5000, .statement_timeout_ms = 20000, .lock_timeout_ms = 10000};
static struct db *one, *two;
static const struct store_rules rules = {.offline_grace_ms = 60000};

static int64_t count(const char *sql) {
  PGresult *r = NULL;
  // A statement is known by its address, so each text has one for the whole run.
  static struct {
    struct db_stmt stmt;
    char name[32];
  } known[32];
  size_t i = 0;
  while (i < ARRAY_LEN(known) - 1 && known[i].stmt.sql != NULL && strcmp(known[i].stmt.sql, sql) != 0) {
    i++;
  }
  (void)snprintf(known[i].name, sizeof known[i].name, "count_%zu", i);
  known[i].stmt = (struct db_stmt){.name = known[i].name, .sql = sql};
  assert_int_equal(db_run(two, &known[i].stmt, NULL, &r), DB_OK);
  int64_t n = db_int8(r, 0, 0);
  PQclear(r);
  return n;
}

static void sql(const char *text) {
  assert_int_equal(db_script(two, text), DB_OK);
}

static enum decision heartbeat(struct db *db, const char *session, int64_t revision) {
  struct op op = {.kind = OP_HEARTBEAT,
                  .key = {"r", "u", session},
                  .revision_given = revision > 0,
                  .revision = revision,
                  .ttl_ms = 60000,
                  .request_id = "test"};
  struct op *ops[1] = {&op};
  struct written written = {0};
  assert_int_equal(store_heartbeats(db, &rules, ops, 1, &written), DB_OK);
  enum decision decision = op.decision;
  op_clear_results(&op);
  written_clear(&written);
  return decision;
}

/// What is overdue now; exactly @a want leases.
static struct overdue *look(size_t want) {
  struct overdue *list;
  size_t n;
  int64_t next_us;
  assert_int_equal(sweep_overdue(one, 1000, NULL, &list, &n, &next_us), DB_OK);
  assert_int_equal(n, want);
  return list;
}

static size_t claim(struct db *db, const struct overdue *list, size_t n) {
  struct written written = {0};
  assert_int_equal(sweep_expire(db, rules.offline_grace_ms, SILENCE_MS, list, n, &written), DB_OK);
  size_t won = written.n_expiries;
  assert_int_equal(written.n_events, won);
  written_clear(&written);
  return won;
}

#define RUN_OUT "UPDATE stillhere.lease SET expires_at = clock_timestamp() - interval '1 s'"
#define EXPIRED "SELECT count(*) FROM stillhere.event WHERE kind = 'lease.expired'"

static int start_afresh(void **state) {
  (void)state;
  sql("TRUNCATE stillhere.room, stillhere.lease, stillhere.tombstone, stillhere.event, stillhere.user_last_seen,"
      " stillhere.member, stillhere.room_user, stillhere.room_last_seen");
  return 0;
}

static void an_overdue_lease_ends_once(void **state) {
  (void)state;
  assert_int_equal(heartbeat(one, "s", 41), DECISION_ACCEPTED);
  sql(RUN_OUT);
  struct overdue *list = look(1);
  assert_int_equal(list[0].revision, 41);
  assert_int_equal(claim(one, list, 1), 1);
  assert_int_equal(claim(one, list, 1), 0);
  assert_int_equal(count(EXPIRED), 1);
  assert_int_equal(count("SELECT count(*) FROM stillhere.lease"), 0);
  assert_int_equal(count("SELECT revision FROM stillhere.tombstone WHERE reason = 'expired'"), 41);
  // Granted, online, expired; the user is in grace.
  assert_int_equal(count("SELECT revision FROM stillhere.room WHERE room_id = 'r'"), 3);
  assert_int_equal(count("SELECT count(*) FROM stillhere.room_user WHERE user_id = 'u' AND offline_at IS NOT NULL"), 1);
  assert_int_equal(count("SELECT count(*) FROM stillhere.room_last_seen WHERE room_id = 'r' AND user_id = 'u'"), 1);
  assert_int_equal(count("SELECT count(*) FROM stillhere.user_last_seen WHERE user_id = 'u'"), 1);
  overdue_free(list, 1);
}

static void read_at_41_renewed_to_42(void **state) {
  (void)state;
  assert_int_equal(heartbeat(one, "s", 41), DECISION_ACCEPTED);
  sql(RUN_OUT);
  struct overdue *list = look(1);
  assert_int_equal(list[0].revision, 41);
  // The renewal comes first, as one that was committed a moment before the expiry would be.
  sql("UPDATE stillhere.lease SET revision = 42, expires_at = clock_timestamp() + interval '1 min'");
  assert_int_equal(claim(one, list, 1), 0);
  assert_int_equal(count(EXPIRED), 0);
  assert_int_equal(count("SELECT revision FROM stillhere.lease"), 42);
  assert_int_equal(count("SELECT revision FROM stillhere.room WHERE room_id = 'r'"), 2);
  overdue_free(list, 1);
}

static void renewed_at_the_same_revision_stays(void **state) {
  (void)state;
  assert_int_equal(heartbeat(one, "s", 41), DECISION_ACCEPTED);
  sql(RUN_OUT);
  struct overdue *list = look(1);
  sql("UPDATE stillhere.lease SET expires_at = clock_timestamp() + interval '1 min'");
  assert_int_equal(claim(one, list, 1), 0);
  assert_int_equal(count(EXPIRED), 0);
  overdue_free(list, 1);
}

static void late_heartbeat_ends_the_old_stay_first(void **state) {
  (void)state;
  assert_int_equal(heartbeat(one, "s", 41), DECISION_ACCEPTED);
  sql(RUN_OUT);
  struct overdue *list = look(1);
  assert_int_equal(heartbeat(two, "s", 41), DECISION_IGNORED_OLD_REVISION);
  assert_int_equal(heartbeat(two, "s", 40), DECISION_IGNORED_OLD_REVISION);
  assert_int_equal(heartbeat(two, "s", 42), DECISION_ACCEPTED);
  assert_int_equal(claim(one, list, 1), 0);
  assert_int_equal(count(EXPIRED " AND lease_revision = 41 AND revision = 3"), 1);
  assert_int_equal(count("SELECT count(*) FROM stillhere.event WHERE kind = 'lease.granted' AND revision = 4"
                         " AND lease_revision = 42 AND user_sessions = 1"),
                   1);
  assert_int_equal(count("SELECT user_sessions FROM stillhere.event WHERE revision = 3"), 0);
  overdue_free(list, 1);
}

struct sweeper_thread {
  struct db *db;
  const struct overdue *list;
  size_t n, won;
  enum db_status status;
  pthread_barrier_t *barrier;
};

static void *sweep_thread(void *arg) {
  struct sweeper_thread *t = arg;
  struct written written = {0};
  pthread_barrier_wait(t->barrier);
  t->status = sweep_expire(t->db, rules.offline_grace_ms, SILENCE_MS, t->list, t->n, &written);
  t->won = written.n_expiries;
  written_clear(&written);
  return NULL;
}

static void two_sweepers_on_revision_43(void **state) {
  (void)state;
  for (int round = 0; round < 30; round++) {
    start_afresh(NULL);
    assert_int_equal(heartbeat(one, "a", 43), DECISION_ACCEPTED);
    assert_int_equal(heartbeat(one, "b", 43), DECISION_ACCEPTED);
    sql(RUN_OUT);
    struct overdue *list = look(2);
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 2);
    struct sweeper_thread t[2] = {{.db = one, .list = list, .n = 2, .barrier = &barrier},
                                  {.db = two, .list = list, .n = 2, .barrier = &barrier}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
      assert_int_equal(pthread_create(&threads[i], NULL, sweep_thread, &t[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
      pthread_join(threads[i], NULL);
      assert_int_equal(t[i].status, DB_OK);
    }
    pthread_barrier_destroy(&barrier);
    assert_int_equal(t[0].won + t[1].won, 2);
    assert_int_equal(count(EXPIRED), 2);
    assert_int_equal(count(EXPIRED " AND lease_revision = 43"), 2);
    assert_int_equal(count("SELECT revision FROM stillhere.room WHERE room_id = 'r'"), 5);
    overdue_free(list, 2);
  }
}

static void a_locked_lease_is_passed_over(void **state) {
  (void)state;
  assert_int_equal(heartbeat(one, "a", 1), DECISION_ACCEPTED);
  assert_int_equal(heartbeat(one, "b", 1), DECISION_ACCEPTED);
  sql(RUN_OUT);
  struct overdue *list = look(2);
  sql("BEGIN; SELECT 1 FROM stillhere.lease WHERE session_id = 'a' FOR UPDATE");
  assert_int_equal(claim(one, list, 2), 1);
  sql("COMMIT");
  assert_int_equal(claim(one, list, 2), 1);
  assert_int_equal(count(EXPIRED), 2);
  overdue_free(list, 2);
}

static void a_failing_event_keeps_the_lease(void **state) {
  (void)state;
  assert_int_equal(heartbeat(one, "s", 1), DECISION_ACCEPTED);
  sql(RUN_OUT);
  struct overdue *list = look(1);
  sql("ALTER TABLE stillhere.event ADD CONSTRAINT broken CHECK (kind <> 'lease.expired')");
  struct written written = {0};
  assert_int_equal(sweep_expire(one, rules.offline_grace_ms, SILENCE_MS, list, 1, &written), DB_FAILED);
  assert_int_equal(written.n_events, 0);
  sql("ALTER TABLE stillhere.event DROP CONSTRAINT broken");
  assert_int_equal(count("SELECT count(*) FROM stillhere.lease"), 1);
  assert_int_equal(count("SELECT count(*) FROM stillhere.tombstone"), 0);
  assert_int_equal(count("SELECT revision FROM stillhere.room WHERE room_id = 'r'"), 2);
  assert_int_equal(claim(one, list, 1), 1);
  overdue_free(list, 1);
}

static void retention_raises_the_floor_with_the_delete(void **state) {
  (void)state;
  for (int i = 1; i <= 20; i++) {
    char session[16];
    (void)snprintf(session, sizeof session, "s%d", i);
    assert_int_equal(heartbeat(one, session, 1), DECISION_ACCEPTED);
  }
  bool more = true;
  assert_int_equal(sweep_retention(one, 3600000, 5, 3600000, &more), DB_OK);
  assert_false(more);
  assert_int_equal(count("SELECT pruned_revision FROM stillhere.room WHERE room_id = 'r'"), 16);
  assert_int_equal(count("SELECT min(revision) FROM stillhere.event"), 17);
  sql("UPDATE stillhere.event SET at = clock_timestamp() - interval '2 h' WHERE revision <= 19");
  assert_int_equal(sweep_retention(one, 3600000, 1000, 3600000, &more), DB_OK);
  assert_int_equal(count("SELECT pruned_revision FROM stillhere.room WHERE room_id = 'r'"), 19);
  assert_int_equal(count("SELECT count(*) FROM stillhere.event"), 2);
}

static int set_up(void **state) {
  (void)state;
  options.url = getenv("TEST_DATABASE_URL");
  if (options.url == NULL) {
    (void)fputs("test_sweep: TEST_DATABASE_URL is not set\n", stderr);
    return -1;
  }
  one = db_new(&options);
  two = db_new(&options);
  if (one == NULL || two == NULL || db_connect(one) != DB_OK || db_connect(two) != DB_OK) {
    return -1;
  }
  return migrate(one) == DB_OK ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  db_free(one);
  db_free(two);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(an_overdue_lease_ends_once, start_afresh),
      cmocka_unit_test_setup(read_at_41_renewed_to_42, start_afresh),
      cmocka_unit_test_setup(renewed_at_the_same_revision_stays, start_afresh),
      cmocka_unit_test_setup(late_heartbeat_ends_the_old_stay_first, start_afresh),
      cmocka_unit_test_setup(two_sweepers_on_revision_43, start_afresh),
      cmocka_unit_test_setup(a_locked_lease_is_passed_over, start_afresh),
      cmocka_unit_test_setup(a_failing_event_keeps_the_lease, start_afresh),
      cmocka_unit_test_setup(retention_raises_the_floor_with_the_delete, start_afresh),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
