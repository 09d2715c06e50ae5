// SPDX-License-Identifier: Apache-2.0
// Buffers, JSON output, bodies, heap, mailbox, random numbers, log and metrics.
#include <setjmp.h> // cmocka.h wants these four in front
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/body.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/jsonout.h"
#include "base/log.h"
#include "base/mailbox.h"
#include "base/metric.h"
#include "base/rand.h"
#include "base/strict.h"
#include "base/util.h"

// -- buf -----------------------------------------------------------------------------------------------------------

static void test_buf(void **state) {
  (void)state;
  struct buf b = {0};
  size_t len = 99;
  assert_null(buf_take(&b, &len)); // nothing was ever added
  assert_int_equal(len, 0);

  buf_puts(&b, "ab");
  buf_putc(&b, 'c');
  buf_add(&b, "d\0e", 3);
  buf_add(&b, NULL, 0);
  buf_printf(&b, "%d-%s", 7, "x");
  assert_int_equal(b.len, 9);
  assert_memory_equal(b.data, "abcd\0e7-x", 10); // and a NUL
  char *taken = buf_take(&b, &len);
  assert_int_equal(len, 9);
  assert_memory_equal(taken, "abcd\0e7-x", 10);
  free(taken);
  assert_null(b.data);

  buf_puts(&b, "old");
  buf_reset(&b);
  assert_int_equal(b.len, 0);
  assert_string_equal(b.data, "");
  buf_puts(&b, "new");
  assert_string_equal(b.data, "new");
  buf_free(&b);
  buf_free(&b);
}

static void test_buf_grows(void **state) {
  (void)state;
  struct buf b = {0};
  char word[1000];
  memset(word, 'w', sizeof word - 1);
  word[sizeof word - 1] = '\0';
  for (int i = 0; i < 500; i++) {
    if (i % 3 == 0)
      buf_printf(&b, "%s", word); // mostly more than there is room for
    else if (i % 3 == 1)
      buf_puts(&b, word);
    else
      for (int k = 0; k < 999; k++)
        buf_putc(&b, 'w');
    assert_int_equal(b.data[b.len], 0);
  }
  assert_false(b.failed);
  assert_int_equal(b.len, 500 * 999);
  assert_int_equal(strspn(b.data, "w"), b.len);
  buf_free(&b);
}

static void test_buf_remembers_failure(void **state) {
  (void)state;
  struct buf b = {0};
  buf_puts(&b, "abc");
  assert_false(buf_reserve(&b, SIZE_MAX));
  assert_true(b.failed);
  buf_puts(&b, "more");
  buf_putc(&b, 'x');
  buf_int(&b, 1);
  buf_printf(&b, "%d", 1);
  assert_int_equal(b.len, 3);
  assert_false(buf_reserve(&b, 1));
  assert_null(buf_take(&b, NULL));
  assert_false(b.failed); // empty and valid again
  assert_null(b.data);
  assert_false(buf_reserve(&b, SIZE_MAX));
  buf_reset(&b);
  assert_false(b.failed);
  buf_puts(&b, "again");
  assert_string_equal(b.data, "again");
  buf_free(&b);
}

static void test_buf_int(void **state) {
  (void)state;
  static const int64_t values[] = {0, 1, -1, 9, 10, 99, 100, REVISION_MAX, INT64_MAX, INT64_MIN, -10};
  for (size_t i = 0; i < ARRAY_LEN(values); i++) {
    struct buf b = {0}, expected = {0};
    buf_int(&b, values[i]);
    buf_printf(&expected, "%lld", (long long)values[i]);
    assert_string_equal(b.data, expected.data);
    buf_free(&b);
    buf_free(&expected);
  }
}

// -- jsonout -------------------------------------------------------------------------------------------------------

static void test_json_commas(void **state) {
  (void)state;
  struct buf b = {0};
  jo_object(&b);
  jo_kstr(&b, "a", "x{");
  jo_kstr(&b, "b", NULL);
  jo_kint(&b, "c", -5);
  jo_kbool(&b, "d", true);
  jo_key(&b, "e");
  jo_array(&b);
  jo_object(&b);
  jo_object_end(&b);
  jo_array(&b);
  jo_array_end(&b);
  jo_str(&b, "[");
  jo_str(&b, ":");
  jo_int(&b, 1);
  jo_bool(&b, false);
  jo_null(&b);
  jo_raw(&b, "{\"m\":1}", 7);
  jo_array_end(&b);
  jo_ktime(&b, "t", 0);
  jo_key(&b, "f");
  jo_raw(&b, "[1]", 3);
  jo_object_end(&b);
  assert_string_equal(b.data, "{\"a\":\"x{\",\"b\":null,\"c\":-5,\"d\":true,\"e\":[{},[],\"[\",\":\",1,false,null,"
                              "{\"m\":1}],\"t\":\"1970-01-01T00:00:00.000Z\",\"f\":[1]}");
  buf_free(&b);
}

static void test_json_strings(void **state) {
  (void)state;
  char all[128 + 16];
  size_t len = 0;
  for (int c = 1; c < 128; c++)
    all[len++] = (char)c;
  memcpy(all + len, "\xc3\xa9\xf0\x9f\x98\x80\xe2\x80\xa8", 10);
  struct buf b = {0};
  jo_array(&b);
  jo_str(&b, all);
  jo_strn(&b, "a\0b", 3);
  jo_str(&b, "");
  jo_str(&b, "\"\\\b\f\n\r\t\x1f");
  jo_array_end(&b);
  assert_non_null(strstr(b.data, "\"a\\u0000b\",\"\",\"\\\"\\\\\\b\\f\\n\\r\\t\\u001f\"]"));
  json_t *parsed = json_loads(b.data, JSON_ALLOW_NUL, NULL);
  assert_non_null(parsed);
  assert_string_equal(json_string_value(json_array_get(parsed, 0)), all);
  assert_int_equal(json_string_length(json_array_get(parsed, 1)), 3);
  json_decref(parsed);
  buf_free(&b);
}

// -- body ----------------------------------------------------------------------------------------------------------

static void test_body(void **state) {
  (void)state;
  struct buf b = {0};
  buf_puts(&b, "shared");
  struct body *body = body_take(&b);
  assert_non_null(body);
  assert_null(b.data);
  assert_int_equal(body->len, 6);
  assert_ptr_equal(body_ref(body), body);
  body_unref(body);
  assert_string_equal(body->data, "shared");
  body_unref(body);
  body_unref(NULL);

  body = body_take(&b); // an empty one is one too
  assert_non_null(body);
  assert_int_equal(body->len, 0);
  assert_string_equal(body->data, "");
  body_unref(body);

  (void)buf_reserve(&b, SIZE_MAX);
  assert_null(body_take(&b));
  assert_false(b.failed);
}

// -- heap ----------------------------------------------------------------------------------------------------------

enum { HEAP_NODES = 300 };

/// Checks the order and that every node knows its place.
static void check_heap(const struct heap *h) {
  for (size_t i = 0; i < h->len; i++) {
    assert_int_equal(h->slots[i]->slot, i + 1);
    if (i > 0)
      assert_true(h->slots[(i - 1) / 2]->due_us <= h->slots[i]->due_us);
  }
}

static void test_heap_against_a_model(void **state) {
  (void)state;
  static struct heap_node nodes[HEAP_NODES];
  struct heap h = {0};
  assert_null(heap_first(&h));
  size_t inside = 0;
  for (int step = 0; step < 20000; step++) {
    struct heap_node *node = &nodes[rand_below(HEAP_NODES)];
    if (node->slot == 0 && rand_below(3) != 0) {
      assert_true(heap_add(&h, node, (int64_t)rand_below(100) - 50)); // many are equal
      inside++;
    } else {
      inside -= node->slot != 0;
      heap_remove(&h, node); // also one that is in no heap
      assert_int_equal(node->slot, 0);
    }
    int64_t least = INT64_MAX;
    size_t count = 0;
    for (int i = 0; i < HEAP_NODES; i++) {
      count += nodes[i].slot != 0;
      if (nodes[i].slot != 0 && nodes[i].due_us < least)
        least = nodes[i].due_us;
    }
    assert_int_equal(count, inside);
    assert_int_equal(h.len, inside);
    if (inside == 0)
      assert_null(heap_first(&h));
    else
      assert_true(heap_first(&h)->due_us == least);
    if (step % 100 == 0)
      check_heap(&h);
  }
  int64_t before = INT64_MIN;
  for (struct heap_node *first; (first = heap_first(&h)) != NULL; heap_remove(&h, first)) {
    assert_true(first->due_us >= before);
    before = first->due_us;
  }
  heap_free(&h);
  heap_free(&h);
}

// -- mailbox -------------------------------------------------------------------------------------------------------

enum { POSTERS = 4, LETTERS = 5000 };

struct letter {
  struct mail mail;
  int from, number;
};

static int next_number[POSTERS];
static unsigned out_of_order;

static void deliver_letter(struct mail *mail) {
  struct letter *letter = CONTAINER_OF(mail, struct letter, mail);
  out_of_order += letter->number != next_number[letter->from]++;
  free(letter);
}

struct poster {
  struct mailbox *box;
  int id;
};

static void *post_letters(void *ctx) {
  const struct poster *poster = ctx;
  for (int i = 0; i < LETTERS;) {
    struct mail *chain = NULL, **last = &chain;
    for (int k = 0; k < 1 + i % 3 && i < LETTERS; k++, i++) { // chains of one to three
      struct letter *letter = calloc(1, sizeof *letter);
      if (letter == NULL)
        return NULL;
      *letter = (struct letter){.mail.deliver = deliver_letter, .from = poster->id, .number = i};
      *last = &letter->mail;
      last = &letter->mail.next;
    }
    mailbox_post(poster->box, chain);
  }
  return NULL;
}

static bool readable(const struct mailbox *box, int timeout_ms) {
  struct pollfd p = {.fd = box->fd, .events = POLLIN};
  return poll(&p, 1, timeout_ms) == 1;
}

static void test_mailbox_across_threads(void **state) {
  (void)state;
  struct mailbox box;
  assert_true(mailbox_init(&box));
  struct poster posters[POSTERS];
  pthread_t threads[POSTERS];
  for (int i = 0; i < POSTERS; i++) {
    posters[i] = (struct poster){&box, i};
    assert_int_equal(pthread_create(&threads[i], NULL, post_letters, &posters[i]), 0);
  }
  unsigned got = 0;
  while (got < POSTERS * LETTERS) {
    assert_true(readable(&box, 10000)); // a wake that is lost shows here
    got += mailbox_deliver(&box);
  }
  for (int i = 0; i < POSTERS; i++)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  assert_int_equal(got, POSTERS * LETTERS);
  assert_int_equal(out_of_order, 0);
  (void)mailbox_deliver(&box); // the last wake may have come after the last mail
  assert_false(readable(&box, 0));
  mailbox_destroy(&box);
}

static struct mailbox *own_box;
static int rounds;

static void deliver_again(struct mail *mail) {
  if (++rounds < 3)
    mailbox_post(own_box, mail);
}

static void test_mailbox_ring(void **state) {
  (void)state;
  struct mailbox box;
  assert_true(mailbox_init(&box));
  assert_false(readable(&box, 0));
  assert_int_equal(mailbox_deliver(&box), 0); // with nothing there it does not block
  errno = E2BIG;
  mailbox_ring(&box);
  assert_int_equal(errno, E2BIG); // safe in a signal handler
  assert_true(readable(&box, 0));
  assert_int_equal(mailbox_deliver(&box), 0);
  assert_false(readable(&box, 0));
  mailbox_post(&box, NULL);
  assert_false(readable(&box, 0));

  struct mail mail = {.deliver = deliver_again};
  own_box = &box;
  mailbox_post(&box, &mail);
  for (int i = 1; i <= 3; i++) { // posted while it is delivered: next time, not for ever now
    assert_true(readable(&box, 0));
    assert_int_equal(mailbox_deliver(&box), 1);
    assert_int_equal(rounds, i);
  }
  assert_false(readable(&box, 0));
  mailbox_destroy(&box);
}

// -- rand ----------------------------------------------------------------------------------------------------------

static void test_rand(void **state) {
  (void)state;
  assert_int_equal(rand_below(0), 0);
  unsigned seen[10] = {0};
  for (int i = 0; i < 10000; i++) {
    uint64_t n = rand_below(10);
    assert_true(n < 10);
    seen[n]++;
    assert_int_equal(rand_below(1), 0);
  }
  for (int i = 0; i < 10; i++)
    assert_in_range(seen[i], 800, 1200); // more than six standard deviations
}

static void test_jitter(void **state) {
  (void)state;
  int64_t least = INT64_MAX, most = 0;
  for (int i = 0; i < 10000; i++) {
    int64_t down = jitter_down(30000, 5), up = jitter_up(32000, 16);
    assert_in_range(down, 24000, 30000);
    assert_in_range(up, 32000, 34000);
    least = down < least ? down : least;
    most = down > most ? down : most;
  }
  assert_true(least < 24300 && most > 29700); // the whole range is used
  assert_int_equal(jitter_down(0, 5), 0);
  assert_int_equal(jitter_down(3, 5), 3);
  assert_int_equal(jitter_down(100, 0), 100);
  assert_true(jitter_up(INT64_MAX, 1) == INT64_MAX);
}

static void *make_id(void *ctx) {
  request_id_make(ctx);
  return NULL;
}

static void test_request_id(void **state) {
  (void)state;
  enum { THREADS = 20 };
  char ids[THREADS][21];
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, make_id, ids[i]), 0);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(strlen(ids[i]), 20);
    assert_int_equal(strspn(ids[i], "0123456789abcdefghijklmnopqrstuvwxyz"), 20);
    assert_true(request_id_sane(ids[i], 20));
    for (int k = 0; k < i; k++)
      assert_string_not_equal(ids[i], ids[k]); // each thread has its own seed
  }
}

// -- log -----------------------------------------------------------------------------------------------------------

static int log_read, stderr_kept;

static void catch_log(void) {
  int ends[2];
  assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
  stderr_kept = dup(STDERR_FILENO);
  assert_true(stderr_kept >= 0 && dup2(ends[1], STDERR_FILENO) >= 0);
  (void)close(ends[1]);
  log_read = ends[0];
}

static size_t release_log(char out[8192]) {
  ssize_t n = read(log_read, out, 8191);
  assert_true(dup2(stderr_kept, STDERR_FILENO) >= 0);
  (void)close(stderr_kept);
  (void)close(log_read);
  log_setup(LOG_INFO, LOG_TEXT);
  out[n < 0 ? 0 : n] = '\0';
  return n < 0 ? 0 : (size_t)n;
}

static void test_log_text(void **state) {
  (void)state;
  char out[8192];
  catch_log();
  log_info("plain %d \"quoted\" caf\xc3\xa9", 7);
  log_debug("not at this level");
  log_error("two\nlines\x1b[31m \xc2\x9b red");
  (void)release_log(out);
  int64_t when;
  char *second = strchr(out, '\n') + 1;
  out[RFC3339_SIZE - 1] = '\0';
  assert_true(rfc3339_parse(out, &when));
  second[-1] = '\0';
  assert_string_equal(out + RFC3339_SIZE, "info: plain 7 \"quoted\" caf\xc3\xa9");
  assert_string_equal(second + RFC3339_SIZE, "error: two\\u000alines\\u001b[31m \\u009b red\n");
}

static void test_log_json(void **state) {
  (void)state;
  char out[8192], huge[9000];
  for (size_t i = 0; i + 2 < sizeof huge; i += 2)
    memcpy(huge + i, "\xc3\xa9", 2);
  huge[sizeof huge - 2] = '\0';
  catch_log();
  log_setup(LOG_DEBUG, LOG_JSON);
  log_debug("a \"b\" \\ \n\x7f %s", "\xff\xc3 raw");
  log_warning("%s", huge);
  (void)release_log(out);
  char *newline = strchr(out, '\n');
  assert_non_null(newline);
  *newline = '\0';
  json_t *entry = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
  assert_non_null(entry);
  int64_t when;
  assert_true(rfc3339_parse(json_string_value(json_object_get(entry, "time")), &when));
  assert_string_equal(json_string_value(json_object_get(entry, "level")), "debug");
  assert_string_equal(json_string_value(json_object_get(entry, "message")), "a \"b\" \\ \n\x7f ?? raw");
  json_decref(entry);
  // One that is too long is cut, between characters, and is JSON all the same.
  entry = json_loads(newline + 1, JSON_REJECT_DUPLICATES, NULL);
  assert_non_null(entry);
  assert_in_range(json_string_length(json_object_get(entry, "message")), 3900, 4096);
  json_decref(entry);
}

// -- metric --------------------------------------------------------------------------------------------------------

static void expect_line(const struct buf *b, const char *line) {
  const char *at = strstr(b->data, line);
  if (at == NULL || at == b->data || at[-1] != '\n')
    fail_msg("no line: %s", line);
}

static void test_metrics(void **state) {
  (void)state;
  metric_add(METRIC_HEARTBEAT_ACCEPTED, 3);
  metric_add(METRIC_LONGPOLL_WAITING, 2);
  metric_add(METRIC_LONGPOLL_WAITING, -1);
  metric_set(METRIC_DATABASE_UP, 1);
  metric_add(METRIC_REPLY_SNAPSHOT_TOO_MANY, 1);
  assert_int_equal(metric_get(METRIC_HEARTBEAT_ACCEPTED), 3);
  metric_expiry_lateness(-5);
  metric_expiry_lateness(100);
  metric_expiry_lateness(101);
  metric_expiry_lateness(600000);
  struct buf b = {0};
  metric_render(&b);
  assert_false(b.failed);
  expect_line(&b, "stillhere_heartbeats_total{decision=\"accepted\"} 3\n");
  expect_line(&b, "stillhere_heartbeats_total{decision=\"not_a_member\"} 0\n");
  expect_line(&b, "stillhere_events_total{kind=\"lease.expired\"} 0\n");
  expect_line(&b, "stillhere_longpoll_waiting 1\n");
  expect_line(&b, "stillhere_replies_total{mode=\"snapshot\",reason=\"too_many\"} 1\n");
  expect_line(&b, "stillhere_database_up 1\n");
  expect_line(&b, "# TYPE stillhere_database_up gauge\n");
  expect_line(&b, "# TYPE stillhere_expiry_lateness_seconds histogram\n");
  expect_line(&b, "stillhere_expiry_lateness_seconds_bucket{le=\"0.05\"} 1\n");
  expect_line(&b, "stillhere_expiry_lateness_seconds_bucket{le=\"0.1\"} 2\n"); // the bound belongs to the bucket
  expect_line(&b, "stillhere_expiry_lateness_seconds_bucket{le=\"0.25\"} 3\n");
  expect_line(&b, "stillhere_expiry_lateness_seconds_bucket{le=\"60\"} 3\n");
  expect_line(&b, "stillhere_expiry_lateness_seconds_bucket{le=\"+Inf\"} 4\n");
  expect_line(&b, "stillhere_expiry_lateness_seconds_sum 600.201000\n");
  expect_line(&b, "stillhere_expiry_lateness_seconds_count 4\n");
  expect_line(&b, "stillhere_build_info{version=\"" PACKAGE_VERSION "\"} 1\n");
  expect_line(&b, "# TYPE process_resident_memory_bytes gauge\n");
  expect_line(&b, "# TYPE process_start_time_seconds gauge\n");

  // Each family has one head, in front of all its series; counters end in _total.
  for (const char *line = b.data; *line != '\0'; line = strchr(line, '\n') + 1) {
    if (strncmp(line, "# TYPE ", 7) != 0)
      continue;
    size_t name = strcspn(line + 7, " ");
    char head[128];
    (void)snprintf(head, sizeof head, "# TYPE %.*s ", (int)name, line + 7);
    assert_null(strstr(line + 1, head));
    if (strncmp(line + 7 + name, " counter\n", 9) == 0)
      assert_memory_equal(line + 7 + name - 6, "_total", 6);
  }
  buf_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_buf),
      cmocka_unit_test(test_buf_grows),
      cmocka_unit_test(test_buf_remembers_failure),
      cmocka_unit_test(test_buf_int),
      cmocka_unit_test(test_json_commas),
      cmocka_unit_test(test_json_strings),
      cmocka_unit_test(test_body),
      cmocka_unit_test(test_heap_against_a_model),
      cmocka_unit_test(test_mailbox_across_threads),
      cmocka_unit_test(test_mailbox_ring),
      cmocka_unit_test(test_rand),
      cmocka_unit_test(test_jitter),
      cmocka_unit_test(test_request_id),
      cmocka_unit_test(test_log_text),
      cmocka_unit_test(test_log_json),
      cmocka_unit_test(test_metrics),
  };
  return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
