// SPDX-License-Identifier: Apache-2.0
// Revocations, step by step on a real PostgreSQL: what each writes, and what happens when something else comes in
// between, which the row of the room, held by another connection, allows. TEST_DATABASE_URL names an empty database.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <pthread.h>

#include "base/clock.h"
#include "db/migrate.h"
#include "store/heartbeat.h"
#include "store/revoke.h"

static struct db_options options = {
    .application = "test_revoke", .connect_timeout_ms = 5000, .statement_timeout_ms = 20000, .lock_timeout_ms = 10000};
/// The first two run what is tested, the others hold locks and look.
static struct db *one, *two, *holder, *other;
static const struct store_rules rules = {.offline_grace_ms = 60000};

static int64_t count(const char *text) {
  PGresult *r = PQexec(db_raw(other), text);
  assert_int_equal(PQresultStatus(r), PGRES_TUPLES_OK);
  int64_t n = strtoll(PQgetvalue(r, 0, 0), NULL, 10);
  PQclear(r);
  return n;
}

static void sql(struct db *db, const char *text) {
  assert_int_equal(db_script(db, text), DB_OK);
}

static enum decision heartbeat(struct db *db, const char *session) {
  struct op op = {
      .kind = OP_HEARTBEAT, .key = {"r", "u", session}, .ttl_ms = 60000, .request_id = "beat", .revision_given = false};
  struct op *ops[1] = {&op};
  struct written written = {0};
  assert_int_equal(store_heartbeats(db, &rules, ops, 1, &written), DB_OK);
  enum decision decision = op.decision;
  op_clear_results(&op);
  written_clear(&written);
  return decision;
}

static enum db_status revoke(struct db *db, struct revocation *result, struct written *written) {
  return store_revoke(db, "r", "u", "ban", rules.offline_grace_ms, result, written);
}

/// The kinds of the events from revision @a from on.
static void expect_events(int64_t from, const char *kinds) {
  char text[256];
  (void)snprintf(text, sizeof text,
                 "SELECT string_agg(kind || coalesce(':' || session_id, ''), ' ' ORDER BY revision) FROM"
                 " stillhere.event WHERE revision >= %lld",
                 (long long)from);
  PGresult *r = PQexec(db_raw(other), text);
  assert_int_equal(PQresultStatus(r), PGRES_TUPLES_OK);
  assert_string_equal(PQgetvalue(r, 0, 0), kinds);
  PQclear(r);
}

/// What holds after each of them: nobody is left, and the room's revision is its last event's.
static void expect_nobody(void) {
  assert_int_equal(count("SELECT count(*) FROM stillhere.lease WHERE user_id = 'u'"), 0);
  assert_int_equal(count("SELECT count(*) FROM stillhere.room_user WHERE user_id = 'u'"), 0);
  assert_int_equal(count("SELECT count(*) FROM stillhere.member WHERE revoked_at IS NOT NULL"), 1);
  assert_int_equal(count("SELECT revision - (SELECT count(*) FROM stillhere.event) FROM stillhere.room"), 0);
}

static int start_afresh(void **state) {
  (void)state;
  sql(other, "TRUNCATE stillhere.room, stillhere.lease, stillhere.tombstone, stillhere.event,"
             " stillhere.user_last_seen, stillhere.member, stillhere.room_user, stillhere.room_last_seen");
  return 0;
}

// -- what it writes ------------------------------------------------------------------------------------------------

static void it_ends_every_session(void **state) {
  (void)state;
  const char *sessions[] = {"c", "a", "b"};
  for (int i = 0; i < 3; i++)
    assert_int_equal(heartbeat(one, sessions[i]), DECISION_ACCEPTED);
  struct revocation x = {0};
  struct written written = {0};
  assert_int_equal(revoke(one, &x, &written), DB_OK);
  assert_true(x.applied);
  assert_null(x.event_id);
  assert_int_equal(x.n_leases, 3);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(x.leases[i].session_id[0], "abc"[i]);
    assert_int_equal(x.leases[i].revision, 1);
    assert_non_null(strstr(x.leases[i].event_id, ":r:"));
  }
  assert_string_equal(x.member.user_id, "u");
  assert_int_equal(x.member.granted_at_us, 0);
  assert_true(x.member.revoked_at_us > 0);
  assert_int_equal(written.n_events, 4);
  assert_int_equal(written.n_expiries, 0);
  expect_events(5, "membership.revoked:a membership.revoked:b membership.revoked:c user.offline");
  assert_int_equal(count("SELECT count(*) FROM stillhere.tombstone WHERE reason = 'revoked' AND request_id = 'ban'"),
                   3);
  expect_nobody();
  written_clear(&written);
  revocation_clear(&x);
}

static void again_it_writes_nothing(void **state) {
  (void)state;
  assert_int_equal(heartbeat(one, "s"), DECISION_ACCEPTED);
  struct revocation x = {0}, again = {0};
  struct written written = {0};
  assert_int_equal(revoke(one, &x, &written), DB_OK);
  assert_int_equal(revoke(two, &again, &written), DB_OK);
  assert_false(again.applied);
  assert_int_equal(again.n_leases, 0);
  assert_null(again.event_id);
  assert_int_equal(again.member.revoked_at_us, x.member.revoked_at_us);
  assert_int_equal(written.n_events, 0);
  assert_int_equal(count("SELECT revision FROM stillhere.room"), 4);
  written_clear(&written);
  revocation_clear(&x);
  revocation_clear(&again);
}

static void nobody_can_be_banned(void **state) {
  (void)state;
  struct revocation x = {0};
  struct written written = {0};
  assert_int_equal(revoke(one, &x, &written), DB_OK);
  assert_true(x.applied);
  assert_int_equal(x.n_leases, 0);
  assert_non_null(x.event_id);
  assert_int_equal(written.n_events, 1);
  expect_events(1, "membership.revoked");
  assert_int_equal(count("SELECT count(*) FROM stillhere.user_last_seen"), 0);
  expect_nobody();
  written_clear(&written);
  revocation_clear(&x);
}

static void what_had_run_out_ends_as_expired(void **state) {
  (void)state;
  for (int live = 0; live < 2; live++) {
    start_afresh(NULL);
    assert_int_equal(heartbeat(one, "z"), DECISION_ACCEPTED);
    sql(other, "UPDATE stillhere.lease SET expires_at = clock_timestamp() - interval '1 s'");
    if (live)
      assert_int_equal(heartbeat(one, "a"), DECISION_ACCEPTED);
    struct revocation x = {0};
    struct written written = {0};
    assert_int_equal(revoke(one, &x, &written), DB_OK);
    assert_int_equal(x.n_leases, live);
    assert_int_equal(x.event_id == NULL, live);
    assert_int_equal(written.n_expiries, 1);
    assert_string_equal(written.expiries[0].request_id, "beat");
    expect_events(3 + live, live ? "lease.expired:z membership.revoked:a user.offline"
                                 : "lease.expired:z membership.revoked user.offline");
    expect_nobody();
    written_clear(&written);
    revocation_clear(&x);
  }
}

static void a_failure_leaves_all_as_it_was(void **state) {
  (void)state;
  assert_int_equal(heartbeat(one, "s"), DECISION_ACCEPTED);
  sql(other, "ALTER TABLE stillhere.event ADD CONSTRAINT broken CHECK (kind <> 'membership.revoked')");
  struct revocation x = {0};
  struct written written = {0};
  assert_int_equal(revoke(one, &x, &written), DB_FAILED);
  sql(other, "ALTER TABLE stillhere.event DROP CONSTRAINT broken");
  assert_false(x.applied);
  assert_null(x.leases);
  assert_null(x.event_id);
  assert_int_equal(written.n_events, 0);
  assert_int_equal(count("SELECT count(*) FROM stillhere.lease"), 1);
  assert_int_equal(count("SELECT count(*) FROM stillhere.member"), 0);
  assert_int_equal(count("SELECT revision FROM stillhere.room"), 2);
  assert_int_equal(revoke(one, &x, &written), DB_OK);
  assert_int_equal(x.n_leases, 1);
  expect_nobody();
  written_clear(&written);
  revocation_clear(&x);
}

// -- what comes in between -----------------------------------------------------------------------------------------

struct revoker {
  pthread_t thread;
  enum db_status status;
  struct revocation result;
  struct written written;
};

static void *revoke_thread(void *arg) {
  struct revoker *x = arg;
  x->status = revoke(one, &x->result, &x->written);
  return NULL;
}

static void *heartbeat_thread(void *arg) {
  enum decision *decision = arg;
  *decision = heartbeat(two, "s");
  return NULL;
}

/// Waits until so many of our connections wait for a lock.
static void wait_blocked(int64_t n) {
  int64_t until_us = clock_mono_us() + INT64_C(10000000);
  while (count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
               " AND wait_event_type = 'Lock'") < n) {
    assert_true(clock_mono_us() < until_us);
    (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
  }
}

/// Holds the row of the room, which a revocation then waits for, with its first look at the leases behind it.
static void begin_revocation(struct revoker *x) {
  *x = (struct revoker){0};
  sql(other, "INSERT INTO stillhere.room (room_id, revision) VALUES ('r', 0) ON CONFLICT DO NOTHING");
  sql(holder, "BEGIN; SELECT 1 FROM stillhere.room WHERE room_id = 'r' FOR UPDATE");
  assert_int_equal(pthread_create(&x->thread, NULL, revoke_thread, x), 0);
  wait_blocked(1);
}

static void end_revocation(struct revoker *x, size_t n_leases) {
  pthread_join(x->thread, NULL);
  assert_int_equal(x->status, DB_OK);
  assert_true(x->result.applied);
  assert_int_equal(x->result.n_leases, n_leases);
  assert_int_equal(x->result.event_id == NULL, n_leases > 0);
  expect_nobody();
  written_clear(&x->written);
  revocation_clear(&x->result);
}

#define ADD_LEASE(session)                                                                                             \
  "INSERT INTO stillhere.lease (room_id, user_id, session_id, revision, revision_given, ttl_ms, granted_at,"           \
  " renewed_at, expires_at, request_id)"                                                                               \
  " SELECT 'r', 'u', '" session "', 7, true, 60000, now(), now(), now() + interval '1 min', 'beat';"

static void the_first_lease_comes_in_between(void **state) {
  (void)state;
  struct revoker x;
  begin_revocation(&x);
  sql(holder, ADD_LEASE("s") " COMMIT");
  end_revocation(&x, 1);
  expect_events(1, "membership.revoked:s");
  assert_int_equal(count("SELECT revision FROM stillhere.tombstone"), 7);
  assert_int_equal(count("SELECT count(*) FROM stillhere.user_last_seen WHERE user_id = 'u'"), 1);
}

static void one_more_lease_comes_in_between(void **state) {
  (void)state;
  assert_int_equal(heartbeat(one, "m"), DECISION_ACCEPTED);
  struct revoker x;
  begin_revocation(&x);
  sql(holder, ADD_LEASE("a") ADD_LEASE("z") " COMMIT");
  end_revocation(&x, 3);
  expect_events(3, "membership.revoked:a membership.revoked:m membership.revoked:z user.offline");
}

/// The newer lease is held by somebody who wants the room next: waiting for it would be a deadlock.
static void a_newer_lease_is_held(void **state) {
  (void)state;
  assert_int_equal(heartbeat(one, "m"), DECISION_ACCEPTED);
  struct revoker x;
  begin_revocation(&x);
  sql(two, ADD_LEASE("z"));
  sql(two, "BEGIN; UPDATE stillhere.lease SET revision = 8 WHERE session_id = 'z'");
  sql(holder, "COMMIT");
  wait_blocked(1); // it has started over, and waits for the lease without holding the room
  // Shorter than PostgreSQL lets a deadlock be, which would put it right in its own way.
  sql(two, "SET LOCAL lock_timeout = 500; SELECT 1 FROM stillhere.room WHERE room_id = 'r' FOR UPDATE; COMMIT");
  end_revocation(&x, 2);
  expect_events(3, "membership.revoked:m membership.revoked:z user.offline");
  assert_int_equal(count("SELECT revision FROM stillhere.tombstone WHERE session_id = 'z'"), 8);
}

static void a_lease_goes_in_between(void **state) {
  (void)state;
  sql(other, "INSERT INTO stillhere.room (room_id, revision) VALUES ('r', 0);" ADD_LEASE("s"));
  sql(holder, "BEGIN; DELETE FROM stillhere.lease");
  struct revoker x = {0};
  assert_int_equal(pthread_create(&x.thread, NULL, revoke_thread, &x), 0);
  wait_blocked(1);
  sql(holder, "COMMIT");
  end_revocation(&x, 0);
  expect_events(1, "membership.revoked");
}

static void a_grant_behind_it_is_decided_anew(void **state) {
  (void)state;
  for (int known = 0; known < 2; known++) {
    start_afresh(NULL);
    if (known)
      sql(other, "INSERT INTO stillhere.member (room_id, user_id, granted_at) VALUES ('r', 'u', now())");
    struct revoker x;
    begin_revocation(&x);
    enum decision decision;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, heartbeat_thread, &decision), 0);
    wait_blocked(2);
    sql(holder, "COMMIT");
    pthread_join(thread, NULL);
    assert_int_equal(decision, DECISION_MEMBERSHIP_REVOKED);
    end_revocation(&x, 0);
    expect_events(1, "membership.revoked");
  }
}

static void a_grant_before_it_is_ended(void **state) {
  (void)state;
  sql(other, "INSERT INTO stillhere.room (room_id, revision) VALUES ('r', 0)");
  sql(holder, "BEGIN; SELECT 1 FROM stillhere.room WHERE room_id = 'r' FOR UPDATE");
  enum decision decision;
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, heartbeat_thread, &decision), 0);
  wait_blocked(1);
  struct revoker x = {0};
  assert_int_equal(pthread_create(&x.thread, NULL, revoke_thread, &x), 0);
  wait_blocked(2);
  sql(holder, "COMMIT");
  pthread_join(thread, NULL);
  pthread_join(x.thread, NULL);
  assert_int_equal(x.status, DB_OK);
  // The heartbeat came first, unless the revocation had its row of the member before: either way nothing is left.
  assert_int_equal(x.result.n_leases, decision == DECISION_ACCEPTED ? 1 : 0);
  assert_true(decision == DECISION_ACCEPTED || decision == DECISION_MEMBERSHIP_REVOKED);
  expect_nobody();
  written_clear(&x.written);
  revocation_clear(&x.result);
}

static void both_at_the_same_instant(void **state) {
  (void)state;
  int came_first = 0;
  for (int round = 0; round < 50; round++) {
    start_afresh(NULL);
    struct revoker x = {0};
    enum decision decision;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, heartbeat_thread, &decision), 0);
    (void)nanosleep(&(struct timespec){.tv_nsec = round % 10 * 300000}, NULL);
    assert_int_equal(pthread_create(&x.thread, NULL, revoke_thread, &x), 0);
    pthread_join(thread, NULL);
    came_first += decision == DECISION_ACCEPTED;
    end_revocation(&x, decision == DECISION_ACCEPTED ? 1 : 0);
  }
  assert_true(came_first > 0); // else the rounds have tried only one order
}

// -- all of them ---------------------------------------------------------------------------------------------------

static int set_up(void **state) {
  (void)state;
  options.url = getenv("TEST_DATABASE_URL");
  if (options.url == NULL) {
    (void)fputs("test_revoke: TEST_DATABASE_URL is not set\n", stderr);
    return -1;
  }
  struct db **all[] = {&one, &two, &holder, &other};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    *all[i] = db_new(&options);
    if (*all[i] == NULL || db_connect(*all[i]) != DB_OK)
      return -1;
  }
  return migrate(one) == DB_OK ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  db_free(one);
  db_free(two);
  db_free(holder);
  db_free(other);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(it_ends_every_session, start_afresh),
      cmocka_unit_test_setup(again_it_writes_nothing, start_afresh),
      cmocka_unit_test_setup(nobody_can_be_banned, start_afresh),
      cmocka_unit_test_setup(what_had_run_out_ends_as_expired, start_afresh),
      cmocka_unit_test_setup(a_failure_leaves_all_as_it_was, start_afresh),
      cmocka_unit_test_setup(the_first_lease_comes_in_between, start_afresh),
      cmocka_unit_test_setup(one_more_lease_comes_in_between, start_afresh),
      cmocka_unit_test_setup(a_newer_lease_is_held, start_afresh),
      cmocka_unit_test_setup(a_lease_goes_in_between, start_afresh),
      cmocka_unit_test_setup(a_grant_behind_it_is_decided_anew, start_afresh),
      cmocka_unit_test_setup(a_grant_before_it_is_ended, start_afresh),
      cmocka_unit_test_setup(both_at_the_same_instant, start_afresh),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
