// SPDX-License-Identifier: Apache-2.0
// Limits: the bucket, whom it is for, that memory of them is bounded, who waits; and the measure of the load.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>

#include "base/metric.h"
#include "live/limits.h"
#include "live/load.h"
#include "store/quota.h"

#define SECOND INT64_C(1000000)

static const struct bucket_size small = {.rate = 10, .burst = 5};

static struct bucket full_bucket(void) {
  return (struct bucket){.micro = 5 * 1000000, .now_us = 1000};
}

static void bucket_gives_its_burst_then_its_rate(void **state) {
  (void)state;
  struct bucket b = full_bucket();
  for (int i = 0; i < 5; i++)
    assert_int_equal(bucket_take(&b, &small, 1, 1, 1000), 0);
  assert_int_equal(bucket_take(&b, &small, 1, 1, 1000), 100);
  assert_int_equal(bucket_take(&b, &small, 1, 1, 1000 + 60000), 40);
  // What is refused takes nothing: after the time that was named it goes through, once.
  assert_int_equal(bucket_take(&b, &small, 1, 1, 1000 + 100000), 0);
  assert_int_equal(bucket_take(&b, &small, 1, 1, 1000 + 100000), 100);
}

static void bucket_does_not_overflow(void **state) {
  (void)state;
  struct bucket b = full_bucket();
  const struct bucket_size fast = {.rate = 1000000, .burst = 1000000};
  // Centuries of pause, then no more than the burst.
  assert_int_equal(bucket_take(&b, &fast, 1000000, 1000000, INT64_MAX / 2), 0);
  assert_int_equal(bucket_take(&b, &fast, 1, 1, INT64_MAX / 2), 1);
  // A clock that stands or goes back gives nothing and takes nothing.
  assert_int_equal(bucket_take(&b, &fast, 1, 1, 5), 1);
}

static void bucket_in_debt(void **state) {
  (void)state;
  struct bucket b = full_bucket();
  assert_int_equal(bucket_take(&b, &small, 25, 5, 1000), 0);
  assert_int_equal(bucket_take(&b, &small, 1, 1, 1000), 2100);
  assert_int_equal(bucket_take(&b, &small, 1, 1, 1000 + 2 * SECOND), 100);
  assert_int_equal(bucket_take(&b, &small, 1, 1, 1000 + 2 * SECOND + 100000), 0);
}

static struct limits *make(int64_t rate, int64_t burst, int64_t waiting) {
  struct config config = {.address_rate = rate,
                          .address_burst = burst,
                          .credential_rate = rate,
                          .credential_burst = burst,
                          .longpoll_max_per_credential = waiting};
  struct limits *limits = limits_new(&config);
  assert_non_null(limits);
  return limits;
}

static struct sockaddr_storage address(const char *text) {
  struct sockaddr_storage s = {0};
  struct sockaddr_in in = {.sin_family = AF_INET};
  struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
  if (inet_pton(AF_INET, text, &in.sin_addr) == 1) {
    memcpy(&s, &in, sizeof in);
  } else {
    assert_int_equal(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
    memcpy(&s, &in6, sizeof in6);
  }
  return s;
}

static bool passes(struct limits *limits, const char *text) {
  struct sockaddr_storage s = address(text);
  return limits_address(limits, (struct sockaddr *)&s, 1) == 0;
}

static void addresses_have_buckets_of_their_own(void **state) {
  (void)state;
  struct limits *limits = make(1, 2, 0);
  int64_t before = metric_get(METRIC_LIMITED_ADDRESS);
  assert_true(passes(limits, "192.0.2.1"));
  assert_true(passes(limits, "192.0.2.1"));
  assert_false(passes(limits, "192.0.2.1"));
  assert_int_equal(metric_get(METRIC_LIMITED_ADDRESS), before + 1);
  assert_true(passes(limits, "192.0.2.2"));
  // Of IPv6 the /64 counts; an IPv4 address inside IPv6 is that IPv4 address.
  assert_true(passes(limits, "2001:db8:0:1::1"));
  assert_true(passes(limits, "2001:db8:0:1:ffff::2"));
  assert_false(passes(limits, "2001:db8:0:1::3"));
  assert_true(passes(limits, "2001:db8:0:2::1"));
  assert_false(passes(limits, "::ffff:192.0.2.1"));
  struct sockaddr unix_socket = {.sa_family = AF_UNIX};
  for (int i = 0; i < 5; i++)
    assert_int_equal(limits_address(limits, &unix_socket, 1), 0);
  limits_free(limits);
}

static void credentials_count_by_kind_and_name(void **state) {
  (void)state;
  struct limits *limits = make(1, 2, 0);
  char an[] = "an", bo[] = "bo";
  struct credential token = {.kind = CREDENTIAL_TOKEN, .name = an}, key = {.kind = CREDENTIAL_API_KEY, .name = an};
  struct credential other = {.kind = CREDENTIAL_TOKEN, .name = bo};
  assert_int_equal(limits_credential(limits, &token, 2), 0);
  int64_t wait_ms = limits_credential(limits, &token, 1);
  assert_in_range(wait_ms, 1, 1000);
  assert_int_equal(limits_credential(limits, &key, 2), 0);
  assert_int_equal(limits_credential(limits, &other, 2), 0);
  for (int i = 0; i < 5; i++)
    assert_int_equal(limits_credential(limits, NULL, 1), 0);
  limits_free(limits);
}

static void a_large_batch_is_taken_on_credit(void **state) {
  (void)state;
  char an[] = "an";
  struct credential token = {.name = an};
  for (int64_t burst = 1; burst <= 3; burst++) {
    struct limits *limits = make(1, burst, 0);
    // As a request does it: one at its head, then the rest of a batch of 11.
    assert_int_equal(limits_credential(limits, &token, 1), 0);
    assert_int_equal(limits_credential_rest(limits, &token, 10), 0);
    assert_in_range(limits_credential(limits, &token, 1), 7000, 11000);
    limits_free(limits);
  }
  struct limits *limits = make(1, 3, 0);
  assert_int_equal(limits_credential(limits, &token, 1), 0);
  assert_int_equal(limits_credential(limits, &token, 1), 0);
  assert_int_not_equal(limits_credential_rest(limits, &token, 10), 0);
  assert_int_equal(limits_credential_rest(limits, &token, 1), 0);
  limits_free(limits);
}

static void off_is_off(void **state) {
  (void)state;
  struct limits *limits = make(0, 1, 0);
  char an[] = "an";
  struct credential token = {.name = an};
  struct sockaddr_storage s = address("192.0.2.1");
  for (int i = 0; i < 100; i++) {
    assert_true(passes(limits, "192.0.2.1"));
    assert_int_equal(limits_credential(limits, &token, 1000), 0);
    assert_true(limits_wait(limits, &token, (struct sockaddr *)&s));
  }
  limits_free(limits);
}

static void memory_of_buckets_is_bounded(void **state) {
  (void)state;
  struct limits *limits = make(1, 1, 0);
  struct sockaddr_in in = {.sin_family = AF_INET};
  assert_true(passes(limits, "192.0.2.1"));
  assert_true(passes(limits, "192.0.2.2"));
  assert_false(passes(limits, "192.0.2.1"));
  for (uint32_t i = 0; i < 300000; i++) {
    in.sin_addr.s_addr = htonl(0x0a000000 + i);
    assert_int_equal(limits_address(limits, (struct sockaddr *)&in, 1), 0);
    if (i % 500 == 0)
      (void)passes(limits, "192.0.2.1"); // used again and again: stays
  }
  in.sin_addr.s_addr = htonl(0x0a000000 + 299999);
  assert_int_not_equal(limits_address(limits, (struct sockaddr *)&in, 1), 0);
  in.sin_addr.s_addr = htonl(0x0a000000);
  assert_int_equal(limits_address(limits, (struct sockaddr *)&in, 1), 0); // forgotten
  limits_free(limits);
}

static void waiters_are_counted_exactly(void **state) {
  (void)state;
  struct limits *limits = make(0, 1, 2);
  char an[] = "an";
  struct credential token = {.kind = CREDENTIAL_TOKEN, .name = an}, key = {.kind = CREDENTIAL_API_KEY, .name = an};
  struct sockaddr_storage s = address("192.0.2.1"), other = address("192.0.2.2");
  const struct sockaddr *here = (struct sockaddr *)&s, *there = (struct sockaddr *)&other;
  assert_true(limits_wait(limits, &token, here));
  assert_true(limits_wait(limits, &token, there));
  assert_false(limits_wait(limits, &token, here));
  assert_true(limits_wait(limits, &key, here));
  assert_true(limits_wait(limits, NULL, here)); // without a credential by address
  assert_true(limits_wait(limits, NULL, here));
  assert_false(limits_wait(limits, NULL, here));
  assert_true(limits_wait(limits, NULL, there));
  assert_true(limits_wait(limits, NULL, NULL));
  limits_wait_over(limits, &token, here);
  assert_true(limits_wait(limits, &token, here));
  assert_false(limits_wait(limits, &token, here));
  for (int i = 0; i < 3; i++)
    limits_wait_over(limits, NULL, here); // one too many does no harm
  assert_true(limits_wait(limits, NULL, here));
  limits_free(limits);
}

// -- the load ------------------------------------------------------------------------------------------------------

static void load_rises_and_falls(void **state) {
  (void)state;
  struct load load = {0};
  int64_t now = 1000 * SECOND;
  assert_int_equal(load_thousandths(&load, now), 1000);
  for (int i = 0; i < 100; i++)
    load_note(&load, LOAD_EASE_US, now += 10000);
  assert_int_equal(load_thousandths(&load, now), 1000);
  // One slow commit does not make a slow database.
  load_note(&load, 2 * LOAD_EASE_US, now);
  assert_in_range(load_thousandths(&load, now), 1000, 1500);
  for (int i = 0; i < 8; i++)
    load_note(&load, LOAD_FULL_US, now += 10000);
  assert_in_range(load_thousandths(&load, now), 3900, LOAD_FACTOR_MAX);
  for (int i = 0; i < 8; i++)
    load_note(&load, 60 * SECOND, now += 10000);
  assert_int_equal(load_thousandths(&load, now), LOAD_FACTOR_MAX);
  // By itself it falls to nothing, and quick commits meanwhile neither hurry nor hold it.
  load = (struct load){0};
  load_note(&load, 2 * LOAD_FULL_US, now);
  int64_t last = LOAD_FACTOR_MAX;
  for (int i = 0; i < 80; i++) {
    now += SECOND / 10;
    load_note(&load, 1000, now);
    int64_t factor = load_thousandths(&load, now);
    assert_true(factor <= last);
    last = factor;
  }
  assert_int_equal(last, 1000);
  assert_false(load.heavy);
}

static void load_lengthens_and_never_shortens(void **state) {
  (void)state;
  struct load load = {0};
  int64_t now = 1000 * SECOND;
  assert_int_equal(load_lengthen(&load, 90000, 3600000, now), 90000);
  load_note(&load, 100 * SECOND, now);
  assert_int_equal(load_lengthen(&load, 90000, 3600000, now), 360000);
  assert_int_equal(load_lengthen(&load, 90000, 100000, now), 100000);
  assert_int_equal(load_lengthen(&load, 90000, 60000, now), 90000);
  assert_int_equal(load_lengthen(&load, INT32_MAX, INT32_MAX, now), INT32_MAX);
}

// -- the quota's arithmetic (its locks and counts: tests/integration/test_limits.py) ---------------------------------

static void quota_fills(void **state) {
  (void)state;
  struct quota_count rooms[] = {{"a", 1}, {"b", 2}}, users[] = {{"u", 0}};
  struct quota quota = {.rooms = {2, rooms, 2}, .users = {2, users, 1}};
  struct lease_key ua = {"a", "u", "1"}, ub = {"b", "u", "1"}, va = {"a", "v", "1"}, vc = {"c", "v", "1"};
  assert_int_equal(quota_look(&quota, &ub), QUOTA_ROOM_FULL);
  assert_int_equal(quota_look(&quota, &ua), QUOTA_FREE);
  quota_take(&quota, &ua);
  assert_int_equal(quota_look(&quota, &va), QUOTA_ROOM_FULL);
  assert_int_equal(quota_look(&quota, &vc), QUOTA_FREE);
  rooms[0].n = 0;
  quota_take(&quota, &ua);
  assert_int_equal(quota_look(&quota, &ua), QUOTA_USER_FULL);
  assert_int_equal(quota_look(&quota, &va), QUOTA_FREE);
  struct quota off = {0};
  assert_int_equal(quota_look(&off, &ua), QUOTA_FREE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bucket_gives_its_burst_then_its_rate),
      cmocka_unit_test(bucket_does_not_overflow),
      cmocka_unit_test(bucket_in_debt),
      cmocka_unit_test(addresses_have_buckets_of_their_own),
      cmocka_unit_test(credentials_count_by_kind_and_name),
      cmocka_unit_test(a_large_batch_is_taken_on_credit),
      cmocka_unit_test(off_is_off),
      cmocka_unit_test(memory_of_buckets_is_bounded),
      cmocka_unit_test(waiters_are_counted_exactly),
      cmocka_unit_test(load_rises_and_falls),
      cmocka_unit_test(load_lengthens_and_never_shortens),
      cmocka_unit_test(quota_fills),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
