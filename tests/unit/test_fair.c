// SPDX-License-Identifier: Apache-2.0
// Which ops make the next batch, and in which order.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "live/fair.h"

#define DEADLINE_US 5000

/// A job whose op number i is about lease i % leases.
static struct write_job *job_new(const char *room, size_t n, size_t leases, int64_t submitted_us) {
  struct write_job *job = calloc(1, sizeof *job);
  struct op *ops = calloc(n, sizeof *ops);
  job->ops = calloc(n, sizeof *job->ops);
  job->n_ops = n;
  job->submitted_us = submitted_us;
  job->deadline_us = DEADLINE_US;
  for (size_t i = 0; i < n; i++) {
    char *session = malloc(16);
    snprintf(session, 16, "s%zu", i % leases);
    ops[i] = (struct op){.key = {room, "u", session}, .revision = (int64_t)i};
    job->ops[i] = &ops[i];
  }
  return job;
}

static void job_free(struct write_job *job) {
  for (size_t i = 0; i < job->n_ops; i++) {
    free((char *)job->ops[i]->key.session_id);
  }
  free(job->ops[0]);
  free(job->ops);
  free(job);
}

static size_t next(struct fair *f, struct op_ref refs[STORE_BATCH_MAX]) {
  int64_t since_us = 1000;
  return fair_next(f, refs, 1000, &since_us);
}

static size_t count_of(const struct op_ref *refs, size_t n, const struct write_job *job) {
  size_t found = 0;
  for (size_t i = 0; i < n; i++) {
    found += refs[i].job == job;
  }
  return found;
}

static void test_a_large_request_goes_in_shares(void **state) {
  (void)state;
  struct fair *f = fair_new();
  struct write_job *job = job_new("r", 1000, 1000, 1);
  struct op_ref refs[STORE_BATCH_MAX];
  assert_true(fair_empty(f));
  assert_true(fair_add(f, job));
  assert_false(fair_empty(f));
  for (int64_t at = 0; at < 1000;) {
    size_t n = next(f, refs);
    assert_int_equal(n, FAIR_SHARE);
    for (size_t i = 0; i < n; i++) {
      assert_int_equal(refs[i].op->revision, at++);
    }
  }
  assert_true(fair_empty(f));
  assert_int_equal(next(f, refs), 0);
  fair_free(f);
  job_free(job);
}

static void test_one_lease_again_and_again(void **state) {
  (void)state;
  struct fair *f = fair_new();
  struct write_job *same = job_new("r", 1000, 1, 1), *other = job_new("other", 1, 1, 1),
                   *late = job_new("r", 1000, 1, 1);
  struct op_ref refs[STORE_BATCH_MAX];
  assert_true(fair_add(f, same));
  assert_true(fair_add(f, late));
  assert_true(fair_add(f, other));
  assert_int_equal(next(f, refs), FAIR_ROUNDS + 1);
  assert_ptr_equal(refs[0].job, other);
  size_t batches = 1;
  for (int64_t at = FAIR_ROUNDS; at < 2000; batches++) {
    size_t n = next(f, refs);
    assert_int_equal(n, FAIR_ROUNDS);
    for (size_t i = 0; i < n; i++, at++) {
      assert_ptr_equal(refs[i].job, at < 1000 ? same : late); // on one lease nothing overtakes
      assert_int_equal(refs[i].op->revision, at % 1000);
    }
  }
  assert_int_equal(batches, 2000 / FAIR_ROUNDS);
  fair_free(f);
  job_free(same);
  job_free(late);
  job_free(other);
}

static void test_the_small_come_first_and_leave_something(void **state) {
  (void)state;
  struct fair *f = fair_new();
  struct write_job *large = job_new("large", 300, 300, 1), *small[STORE_BATCH_MAX];
  struct op_ref refs[STORE_BATCH_MAX];
  assert_true(fair_add(f, large));
  for (size_t i = 0; i < STORE_BATCH_MAX; i++) {
    small[i] = job_new(i % 2 == 0 ? "even" : "odd", 1, 1, 1);
    ((struct op *)small[i]->ops[0])->key.user_id = small[i]->ops[0]->key.session_id; // the users do not matter
    char *session = (char *)small[i]->ops[0]->key.session_id;
    snprintf(session, 16, "m%zu", i);
    assert_true(fair_add(f, small[i]));
  }
  size_t n = next(f, refs);
  assert_int_equal(n, STORE_BATCH_MAX);
  assert_int_equal(count_of(refs, n, large), FAIR_LARGE_MIN);
  for (size_t i = 0; i < n - FAIR_LARGE_MIN; i++) {
    assert_ptr_equal(refs[i].job, small[i]);
  }
  n = next(f, refs);
  assert_int_equal(n, FAIR_LARGE_MIN + 50);
  assert_int_equal(count_of(refs, n, large), 50);
  assert_ptr_equal(refs[0].job, small[STORE_BATCH_MAX - FAIR_LARGE_MIN]);
  assert_true(fair_empty(f));
  for (size_t i = 0; i < STORE_BATCH_MAX; i++) {
    job_free(small[i]);
  }
  job_free(large);
  fair_free(f);
}

static void test_waiting_counts_once(void **state) {
  (void)state;
  struct fair *f = fair_new();
  struct write_job *old = job_new("old", 500, 500, 7), *young = job_new("young", 1, 1, 9);
  struct op_ref refs[STORE_BATCH_MAX];
  int64_t since_us = 100;
  assert_true(fair_add(f, old));
  assert_true(fair_add(f, young));
  assert_int_equal(fair_next(f, refs, 100, &since_us), FAIR_SHARE + 1);
  assert_int_equal(since_us, 7);
  since_us = 100;
  assert_int_equal(fair_next(f, refs, 100, &since_us), FAIR_SHARE);
  assert_int_equal(since_us, 100); // its own length is not the database's slowness
  fair_free(f);
  job_free(old);
  job_free(young);
}

static void test_waiting_for_ones_own_lease_does_not_count(void **state) {
  (void)state;
  struct fair *f = fair_new();
  struct write_job *jobs[3];
  struct op_ref refs[STORE_BATCH_MAX];
  for (int i = 0; i < 3; i++) {
    jobs[i] = job_new("r", FAIR_ROUNDS, 1, 1 + i);
    assert_true(fair_add(f, jobs[i]));
  }
  int64_t since_us = 100;
  assert_int_equal(fair_next(f, refs, 100, &since_us), FAIR_ROUNDS);
  assert_int_equal(since_us, 1);
  for (int i = 0; i < 2; i++) {
    since_us = 100;
    assert_int_equal(fair_next(f, refs, 100, &since_us), FAIR_ROUNDS);
    assert_int_equal(since_us, 100);
  }
  fair_free(f);
  for (int i = 0; i < 3; i++) {
    job_free(jobs[i]);
  }
}

static void test_what_is_past_its_deadline_comes_at_once(void **state) {
  (void)state;
  struct fair *f = fair_new();
  struct write_job *dead = job_new("r", 1000, 1, 1), *live = job_new("r", 1, 1, 9);
  live->deadline_us = 2 * DEADLINE_US;
  struct op_ref refs[STORE_BATCH_MAX];
  assert_true(fair_add(f, dead));
  assert_true(fair_add(f, live));
  int64_t since_us = 2 * DEADLINE_US;
  assert_int_equal(fair_next(f, refs, DEADLINE_US, &since_us), 1001);
  assert_int_equal(count_of(refs, 1001, dead), 1000);
  assert_int_equal(since_us, 9); // how long the dead have waited says nothing about the database
  assert_true(fair_empty(f));
  fair_free(f);
  job_free(dead);
  job_free(live);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_large_request_goes_in_shares),
      cmocka_unit_test(test_one_lease_again_and_again),
      cmocka_unit_test(test_the_small_come_first_and_leave_something),
      cmocka_unit_test(test_waiting_counts_once),
      cmocka_unit_test(test_waiting_for_ones_own_lease_does_not_count),
      cmocka_unit_test(test_what_is_past_its_deadline_comes_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
