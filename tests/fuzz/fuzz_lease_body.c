// SPDX-License-Identifier: Apache-2.0
// The body of PUT /leases, single or a batch.
#include "base/clock.h"
#include "base/jsonout.h"
#include "base/strict.h"
#include "fuzz.h"
#include "http/lease_input.h"
#include "http/request.h"

static struct config config;
static const char request_id[] = "r-1";

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  char error[CONFIG_ERROR_SIZE];
  MUST(config_load(&config, NULL, NULL, error));
  return 0;
}

static void check_problem(const struct input_problem *p) {
  static const char *const codes[] = {"bad_json", "bad_field", "missing_field", "unknown_field"};
  bool known = false;
  for (size_t i = 0; i < ARRAY_LEN(codes); i++)
    known = known || strcmp(p->code, codes[i]) == 0;
  MUST(known && p->detail[0] != '\0');
  MUST(strnlen(p->field, sizeof p->field) < sizeof p->field && strnlen(p->detail, sizeof p->detail) < sizeof p->detail);
  MUST(fuzz_is_utf8(p->field, strlen(p->field)) && fuzz_is_utf8(p->detail, strlen(p->detail)));
  struct buf text = {0};
  problem_json(&text, 400, p->code, p->field[0] != '\0' ? p->field : NULL, p->detail, request_id);
  json_t *back = fuzz_object(text.data, text.len);
  MUST(strcmp(json_string_value(json_object_get(back, "detail")), p->detail) == 0);
  json_decref(back);
  buf_free(&text);
}

/// What is stored reads back as what was sent, and is its own canonical form.
static void check_meta(const char *meta, const json_t *sent) {
  size_t len = strlen(meta);
  MUST(len <= META_MAX && fuzz_is_utf8(meta, len));
  json_t *back = fuzz_object(meta, len);
  MUST(json_equal(back, (json_t *)sent));
  struct input_problem problem;
  char *again = meta_canonical(back, &problem);
  MUST(again != NULL && strcmp(again, meta) == 0);
  free(again);
  json_decref(back);
}

static void check_op(const struct op *op, const json_t *sent) {
  int64_t ignored;
  MUST(op->kind == OP_HEARTBEAT && op->request_id == request_id && op->decision == DECISION_NONE);
  MUST(fuzz_is_ident(op->key.room_id) && fuzz_is_ident(op->key.user_id) && fuzz_is_ident(op->key.session_id));
  const json_t *revision = json_object_get(sent, "revision");
  MUST(op->revision_given == (revision != NULL));
  MUST(revision == NULL || (op->revision >= 1 && op->revision <= REVISION_MAX));
  MUST(revision == NULL || op->revision == json_integer_value(revision));
  MUST(op->ttl_ms >= config.ttl_min_ms && op->ttl_ms <= config.ttl_max_ms);
  const json_t *meta = json_object_get(sent, "meta");
  MUST((op->meta != NULL) == (meta != NULL));
  if (meta != NULL)
    check_meta(op->meta, meta);
  MUST(op->client_time == NULL || rfc3339_parse(op->client_time, &ignored));
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)sent, key, value) {
    MUST(strstr(" room_id user_id session_id revision ttl_ms meta client_time ", key) != NULL);
  }
}

/// The same lease written by us is read as the same.
static void check_again(const struct op *op) {
  struct buf text = {0};
  jo_object(&text);
  jo_kstr(&text, "session_id", op->key.session_id);
  jo_kstr(&text, "user_id", op->key.user_id);
  jo_kstr(&text, "room_id", op->key.room_id);
  if (op->revision_given)
    jo_kint(&text, "revision", op->revision);
  jo_kint(&text, "ttl_ms", op->ttl_ms);
  if (op->meta != NULL) {
    jo_key(&text, "meta");
    jo_raw(&text, op->meta, strlen(op->meta));
  }
  jo_object_end(&text);
  struct lease_input in;
  struct input_problem problem;
  MUST(lease_input_read(&in, text.data, text.len, &config, request_id, &problem));
  MUST(in.n == 1 && !in.batch && in.items[0].ok);
  const struct op *back = &in.items[0].op;
  MUST(strcmp(back->key.room_id, op->key.room_id) == 0 && strcmp(back->key.user_id, op->key.user_id) == 0 &&
       strcmp(back->key.session_id, op->key.session_id) == 0);
  MUST(back->revision_given == op->revision_given && back->revision == op->revision && back->ttl_ms == op->ttl_ms);
  MUST(fuzz_same(back->meta, op->meta));
  lease_input_free(&in);
  buf_free(&text);
}

static void check_items(const struct lease_input *in) {
  const json_t *list = json_object_get(in->root, "leases");
  MUST(in->batch == (list != NULL) && (in->batch ? in->n <= 1000 && in->n == json_array_size(list) : in->n == 1));
  for (size_t i = 0; i < in->n; i++) {
    const struct lease_item *item = &in->items[i];
    MUST(item->refusal == NULL && (in->batch || item->ok));
    if (!item->ok) {
      check_problem(&item->problem);
      continue;
    }
    check_op(&item->op, in->batch ? json_array_get(list, i) : in->root);
    if (i < 4)
      check_again(&item->op);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *body = fuzz_copy(data, size);
  struct lease_input in;
  struct input_problem problem = {0};
  if (lease_input_read(&in, body, size, &config, request_id, &problem))
    check_items(&in);
  else
    check_problem(&problem);
  lease_input_free(&in);
  free(body);
  return 0;
}
