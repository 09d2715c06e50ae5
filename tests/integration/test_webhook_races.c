// SPDX-License-Identifier: Apache-2.0
// Webhooks against their own housekeeping, on a real PostgreSQL: events are written without a pause while lanes are
// emptied, deleted as idle, or given up because their target is gone. TEST_DATABASE_URL names an empty database.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include "base/util.h"
#include "db/migrate.h"
#include "store/webhook.h"

/// Three rooms at a time get a few events, and then none any more: what the last one misses nobody makes up for.
#define ROOMS 3
#define SETS 100
#define TURNS 4 // a condition below has it too

static struct db_options options = {.application = "test_webhook_races",
                                    .connect_timeout_ms = 5000,
                                    .statement_timeout_ms = 20000,
                                    .lock_timeout_ms = 10000,
                                    .by_key = true};
static struct db *look;
static atomic_bool writing;
static atomic_int faults; // threads cannot assert

static void sql(struct db *db, const char *text) {
  if (db_connect(db) != DB_OK || db_script(db, text) != DB_OK)
    faults++;
}

static int64_t count(const char *where) {
  static struct db_stmt stmts[8];
  static char texts[8][200];
  static size_t n;
  // A statement is known by its address.
  struct db_stmt *stmt = &stmts[n];
  (void)snprintf(texts[n], sizeof texts[n], "SELECT count(*) FROM stillhere.webhook_%s", where);
  static const char *const names[] = {"count_0", "count_1", "count_2", "count_3",
                                      "count_4", "count_5", "count_6", "count_7"};
  *stmt = (struct db_stmt){.name = names[n], .sql = texts[n]};
  n++;
  PGresult *r = NULL;
  assert_int_equal(db_run(look, stmt, NULL, &r), DB_OK);
  int64_t value = db_int8(r, 0, 0);
  PQclear(r);
  return value;
}

// -- one event in each room, in one transaction --------------------------------------------------------------------

static enum db_status write_work(struct db *db, void *ctx) {
  int turn = *(int *)ctx;
  int64_t revision = turn % TURNS + 1;
  char rooms[ROOMS][16];
  struct event events[ROOMS];
  struct transition x[ROOMS];
  char id[32], json[] = "{\"at\":\"now\"}";
  (void)snprintf(id, sizeof id, "e:r:%lld", (long long)revision);
  memset(x, 0, sizeof x);
  for (int i = 0; i < ROOMS; i++) {
    (void)snprintf(rooms[i], sizeof rooms[i], "%c%d", 'a' + i, turn / TURNS);
    events[i] = (struct event){.room_id = rooms[i], .revision = revision, .kind = EVENT_LEASE_GRANTED, .json = json};
    x[i].event_id = id;
  }
  return webhook_write(db, events, x, ROOMS);
}

static void *write_events(void *unused) {
  (void)unused;
  struct db *db = db_new(&options);
  for (int turn = 0; turn < SETS * TURNS; turn++) {
    if (db_transaction(db, write_work, &turn) != DB_OK)
      faults++;
  }
  db_free(db);
  atomic_store(&writing, false);
  return NULL;
}

static void start_writing(pthread_t *writer) {
  sql(look, "TRUNCATE stillhere.webhook_event, stillhere.webhook_lane");
  atomic_store(&writing, true);
  assert_int_equal(pthread_create(writer, NULL, write_events, NULL), 0);
}

// -- the tests -----------------------------------------------------------------------------------------------------

static void *delete_idle(void *unused) {
  (void)unused;
  struct db *db = db_new(&options);
  struct webhook_targets set = {.n = 1, .list = {{.name = "t"}}};
  while (atomic_load(&writing)) {
    bool more;
    struct buf given_up = {0};
    sql(db, "UPDATE stillhere.webhook_lane SET due_at = due_at - interval '2 days' WHERE room_id IN"
            " (SELECT room_id FROM stillhere.webhook_lane WHERE newest <= done FOR UPDATE SKIP LOCKED)");
    if (webhook_prune(db, &set, 86400000, &more, &given_up) != DB_OK || given_up.len > 0)
      faults++;
  }
  db_free(db);
  return NULL;
}

/// Takes all that is due. @param[in,out] through for each room: the highest revision that it had
static int64_t deliver(struct db *db, int64_t (*through)[SETS]) {
  struct webhook_message *list;
  size_t n;
  int64_t events = 0;
  if (webhook_claim(db, "t", "token", 8, 86400000, &list, &n) != DB_OK)
    faults++;
  for (size_t i = 0; i < n; i++) {
    int64_t *seen = &through[list[i].room_id[0] - 'a'][strtol(list[i].room_id + 1, NULL, 10)];
    if (list[i].n_events != list[i].through - *seen || webhook_delivered(db, "t", "token", &list[i]) != DB_OK)
      faults++;
    *seen = list[i].through;
    events += list[i].n_events;
  }
  webhook_messages_free(list, n);
  return events;
}

static void idle_lanes_are_deleted_without_an_event(void **state) {
  (void)state;
  pthread_t writer, housekeeper;
  start_writing(&writer);
  assert_int_equal(pthread_create(&housekeeper, NULL, delete_idle, NULL), 0);
  struct db *db = db_new(&options);
  static int64_t through[ROOMS][SETS];
  int64_t events = 0, last;
  do {
    bool over = !atomic_load(&writing);
    last = deliver(db, through);
    events += last;
    if (over && last == 0)
      break;
  } while (true);
  pthread_join(writer, NULL);
  pthread_join(housekeeper, NULL);
  db_free(db);
  assert_int_equal(faults, 0);
  assert_int_equal(events, ROOMS * SETS * TURNS);
  assert_int_equal(count("event"), 0);
}

static void what_is_given_up_with_its_target_is_all_there_is(void **state) {
  (void)state;
  pthread_t writer;
  bool more, over;
  int64_t told = 0;
  static const struct webhook_targets none;
  start_writing(&writer);
  struct db *db = db_new(&options);
  do {
    over = !atomic_load(&writing);
    struct buf given_up = {0};
    assert_int_equal(webhook_prune(db, &none, 0, &more, &given_up), DB_OK);
    if (given_up.len > 0)
      told += strtoll(given_up.data, NULL, 10); // of the one target that there is
    buf_free(&given_up);
  } while (!over);
  pthread_join(writer, NULL);
  db_free(db);
  assert_int_equal(faults, 0);
  assert_int_equal(count("event WHERE dead_at IS NULL"), 0);
  assert_int_equal(count("event"), ROOMS * SETS * TURNS);
  assert_int_equal(told, ROOMS * SETS * TURNS);
  assert_int_equal(count("lane WHERE newest <> done OR newest <> 4"), 0);
}

int main(void) {
  options.url = getenv("TEST_DATABASE_URL");
  if (options.url == NULL) {
    (void)fprintf(stderr, "TEST_DATABASE_URL must name an empty database\n");
    return 1;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(idle_lanes_are_deleted_without_an_event),
      cmocka_unit_test(what_is_given_up_with_its_target_is_all_there_is),
  };
  struct webhook_targets *set = calloc(1, sizeof *set);
  look = db_new(&options);
  if (set == NULL || look == NULL || db_connect(look) != DB_OK || migrate(look) != DB_OK)
    return 1;
  set->n = set->references = 1;
  set->list[0] = (struct webhook_target){.name = "t", .kinds = EVENT_KINDS_ALL, .n_rooms = 1};
  set->list[0].rooms = calloc(1, sizeof *set->list[0].rooms);
  if (set->list[0].rooms == NULL || (set->list[0].rooms[0] = strdup("*")) == NULL)
    return 1;
  webhook_targets_set(set);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  webhook_targets_set(NULL);
  db_free(look);
  return failed;
}
