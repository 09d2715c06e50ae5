// SPDX-License-Identifier: Apache-2.0
#include "http/lease_input.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/metric.h"

char *meta_canonical(const json_t *meta, struct input_problem *problem) {
  return input_canonical(meta, "meta", META_MAX, problem);
}

static bool read_int(const json_t *value, const char *field, int64_t min, int64_t max, int64_t *out,
                     struct input_problem *p) {
  if (!json_is_integer(value)) {
    return input_refuse(p, "bad_field", field, "%s must be an integer, not %s", field, input_type_name(value));
  }
  int64_t v = json_integer_value(value);
  if (v < min || v > max) {
    return input_refuse(p, "bad_field", field, "%s must be from %lld to %lld", field, (long long)min, (long long)max);
  }
  *out = v;
  return true;
}

static bool read_client_time(const json_t *value, struct op *op, struct input_problem *p) {
  int64_t ignored;
  if (!json_is_string(value) || !rfc3339_parse(json_string_value(value), &ignored)) {
    return input_refuse(p, "bad_field", "client_time",
                        "client_time must be an RFC 3339 time such as 2026-11-30T15:00:00Z");
  }
  op->client_time = json_string_value(value);
  return true;
}

static bool read_field(const char *key, const json_t *value, const struct config *config, struct lease_item *item) {
  struct op *op = &item->op;
  struct input_problem *p = &item->problem;
  if (strcmp(key, "room_id") == 0) {
    return input_ident(value, key, &op->key.room_id, p);
  }
  if (strcmp(key, "user_id") == 0) {
    return input_ident(value, key, &op->key.user_id, p);
  }
  if (strcmp(key, "session_id") == 0) {
    return input_ident(value, key, &op->key.session_id, p);
  }
  if (strcmp(key, "revision") == 0) {
    op->revision_given = true;
    return read_int(value, key, 1, REVISION_MAX, &op->revision, p);
  }
  if (strcmp(key, "ttl_ms") == 0) {
    int64_t ttl_ms = 0;
    bool ok = read_int(value, key, config->ttl_min_ms, config->ttl_max_ms, &ttl_ms, p);
    op->ttl_ms = (int32_t)ttl_ms;
    return ok;
  }
  if (strcmp(key, "meta") == 0) {
    if (!json_is_object(value)) {
      return input_refuse(p, "bad_field", key, "meta must be an object, not %s", input_type_name(value));
    }
    op->meta = item->meta_text = meta_canonical(value, p);
    return op->meta != NULL;
  }
  if (strcmp(key, "client_time") == 0) {
    return read_client_time(value, op, p);
  }
  return input_refuse(p, "unknown_field", key, "there is no field \"%.64s\" in a lease", key);
}

/// Reads one lease. @return item->ok
static bool read_item(const json_t *value, const struct config *config, const char *request_id,
                      struct lease_item *item) {
  struct op *op = &item->op;
  struct input_problem *p = &item->problem;
  op->kind = OP_HEARTBEAT;
  op->request_id = request_id;
  op->ttl_ms = (int32_t)config->ttl_default_ms;
  if (!json_is_object(value)) {
    return input_refuse(p, "bad_field", "leases", "a lease must be an object, not %s", input_type_name(value));
  }
  const char *key;
  json_t *child;
  json_object_foreach((json_t *)value, key, child) {
    if (!read_field(key, child, config, item)) {
      return false;
    }
  }
  const char *missing = op->key.room_id == NULL      ? "room_id"
                        : op->key.user_id == NULL    ? "user_id"
                        : op->key.session_id == NULL ? "session_id"
                                                     : NULL;
  if (missing != NULL) {
    return input_refuse(p, "missing_field", missing, "%s is missing", missing);
  }
  item->ok = true;
  return true;
}

static bool read_batch(struct lease_input *in, const json_t *list, const struct config *config, const char *request_id,
                       struct input_problem *problem) {
  const char *key;
  json_t *child;
  json_object_foreach(in->root, key, child) {
    if (strcmp(key, "leases") != 0) {
      return input_refuse(problem, "unknown_field", key, "there is no field \"%.64s\" beside \"leases\"", key);
    }
  }
  if (!json_is_array(list)) {
    return input_refuse(problem, "bad_field", "leases", "leases must be an array, not %s", input_type_name(list));
  }
  if (json_array_size(list) > (size_t)config->max_batch_leases) {
    metric_add(METRIC_LIMITED_BATCH, 1);
    return input_refuse(problem, "bad_field", "leases", "leases has %zu elements; at most %lld are taken at once",
                        json_array_size(list), (long long)config->max_batch_leases);
  }
  in->batch = true;
  in->n = json_array_size(list);
  in->items = calloc(in->n > 0 ? in->n : 1, sizeof *in->items);
  if (in->items == NULL) {
    in->n = 0;
    return input_refuse(problem, "unavailable", NULL, "out of memory");
  }
  for (size_t i = 0; i < in->n; i++) {
    (void)read_item(json_array_get(list, i), config, request_id, &in->items[i]);
  }
  return true;
}

bool lease_input_read(struct lease_input *in, const char *body, size_t len, const struct config *config,
                      const char *request_id, struct input_problem *problem) {
  *in = (struct lease_input){0};
  json_error_t error;
  in->root = json_loadb(len > 0 ? body : "", len, JSON_REJECT_DUPLICATES, &error);
  if (in->root == NULL) {
    return input_refuse(problem, "bad_json", NULL, "the body is not JSON: %s (line %d, column %d)", error.text,
                        error.line, error.column);
  }
  if (!json_is_object(in->root)) {
    return input_refuse(problem, "bad_json", NULL, "the body must be a JSON object, not %s", input_type_name(in->root));
  }
  const json_t *list = json_object_get(in->root, "leases");
  if (list != NULL) {
    return read_batch(in, list, config, request_id, problem);
  }
  in->n = 1;
  in->items = calloc(1, sizeof *in->items);
  if (in->items == NULL) {
    in->n = 0;
    return input_refuse(problem, "unavailable", NULL, "out of memory");
  }
  if (!read_item(in->root, config, request_id, &in->items[0])) {
    *problem = in->items[0].problem;
    return false;
  }
  return true;
}

void lease_input_free(struct lease_input *in) {
  for (size_t i = 0; i < in->n; i++) {
    op_clear_results(&in->items[i].op);
    free(in->items[i].meta_text);
  }
  free(in->items);
  json_decref(in->root);
  *in = (struct lease_input){0};
}
