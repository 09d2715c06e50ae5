// SPDX-License-Identifier: Apache-2.0
// Binary parameters.
#include <arpa/inet.h>
#include <endian.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "db/db.h"

// Fixed numbers of PostgreSQL's own types.
enum { OID_BOOL = 16, OID_INT8 = 20, OID_INT4 = 23, OID_TEXT = 25 };
enum { OID_BOOL_ARRAY = 1000, OID_INT4_ARRAY = 1007, OID_TEXT_ARRAY = 1009, OID_INT8_ARRAY = 1016 };

/// Bytes of an array's head when it has elements: dimensions, null flag, element type, length, lower bound.
#define ARRAY_FLAG_AT 4

void db_params_clear(struct db_params *p) {
  for (int i = 0; i < p->n; i++)
    free(p->owned[i]);
  *p = (struct db_params){0};
}

/// Adds one value. Takes over @a owned. A NULL @a value is SQL null.
static void add(struct db_params *p, Oid type, const char *value, size_t len, char *owned) {
  if (p->failed || p->n == DB_PARAMS_MAX || len > INT_MAX) {
    p->failed = true;
    free(owned);
    return;
  }
  p->types[p->n] = type;
  p->values[p->n] = value;
  p->lengths[p->n] = (int)len;
  p->owned[p->n] = owned;
  p->n++;
}

static void add_copy(struct db_params *p, Oid type, const void *value, size_t len) {
  char *owned = malloc(len);
  if (owned == NULL) {
    p->failed = true;
    return;
  }
  memcpy(owned, value, len);
  add(p, type, owned, len, owned);
}

void db_p_text(struct db_params *p, const char *s) {
  add(p, OID_TEXT, s, s == NULL ? 0 : strlen(s), NULL);
}

void db_p_int8(struct db_params *p, int64_t v) {
  uint64_t wire = htobe64((uint64_t)v);
  add_copy(p, OID_INT8, &wire, sizeof wire);
}

void db_p_int4(struct db_params *p, int32_t v) {
  uint32_t wire = htonl((uint32_t)v);
  add_copy(p, OID_INT4, &wire, sizeof wire);
}

void db_p_bool(struct db_params *p, bool v) {
  char wire = v ? 1 : 0;
  add_copy(p, OID_BOOL, &wire, sizeof wire);
}

static void put_int4(struct buf *b, uint32_t v) {
  uint32_t wire = htonl(v);
  buf_add(b, &wire, sizeof wire);
}

/// The head of a one-dimensional array; one without elements has no dimension.
static void put_array_head(struct buf *b, Oid element, size_t n) {
  if (n > INT_MAX)
    b->failed = true;
  put_int4(b, n > 0 ? 1 : 0);
  put_int4(b, 0); // no nulls so far
  put_int4(b, element);
  if (n > 0) {
    put_int4(b, (uint32_t)n);
    put_int4(b, 1); // the first index
  }
}

static void put_null(struct buf *b) {
  put_int4(b, UINT32_MAX); // length -1
  if (!b->failed)
    b->data[ARRAY_FLAG_AT + 3] = 1;
}

static void add_array(struct db_params *p, Oid type, struct buf *b) {
  size_t len;
  char *bytes = buf_take(b, &len);
  if (bytes == NULL)
    p->failed = true;
  else
    add(p, type, bytes, len, bytes);
}

void db_p_text_array(struct db_params *p, size_t n, const char *(*at)(const void *ctx, size_t i), const void *ctx) {
  struct buf b = {0};
  put_array_head(&b, OID_TEXT, n);
  for (size_t i = 0; i < n && !b.failed; i++) {
    const char *s = at(ctx, i);
    size_t len = s == NULL ? 0 : strlen(s);
    if (s == NULL) {
      put_null(&b);
    } else if (len > INT_MAX) {
      b.failed = true;
    } else {
      put_int4(&b, (uint32_t)len);
      buf_add(&b, s, len);
    }
  }
  add_array(p, OID_TEXT_ARRAY, &b);
}

static void add_int8_array(struct db_params *p, size_t n, int64_t (*at)(const void *ctx, size_t i), const void *ctx,
                           bool min_is_null) {
  struct buf b = {0};
  put_array_head(&b, OID_INT8, n);
  for (size_t i = 0; i < n && !b.failed; i++) {
    int64_t v = at(ctx, i);
    if (min_is_null && v == INT64_MIN) {
      put_null(&b);
      continue;
    }
    uint64_t wire = htobe64((uint64_t)v);
    put_int4(&b, sizeof wire);
    buf_add(&b, &wire, sizeof wire);
  }
  add_array(p, OID_INT8_ARRAY, &b);
}

void db_p_int8_array(struct db_params *p, size_t n, int64_t (*at)(const void *ctx, size_t i), const void *ctx) {
  add_int8_array(p, n, at, ctx, false);
}

void db_p_int8_null_array(struct db_params *p, size_t n, int64_t (*at)(const void *ctx, size_t i), const void *ctx) {
  add_int8_array(p, n, at, ctx, true);
}

void db_p_int4_array(struct db_params *p, size_t n, int64_t (*at)(const void *ctx, size_t i), const void *ctx) {
  struct buf b = {0};
  put_array_head(&b, OID_INT4, n);
  for (size_t i = 0; i < n && !b.failed; i++) {
    int64_t v = at(ctx, i);
    if (v < INT32_MIN || v > INT32_MAX)
      b.failed = true; // rather none than another number
    put_int4(&b, sizeof(int32_t));
    put_int4(&b, (uint32_t)v);
  }
  add_array(p, OID_INT4_ARRAY, &b);
}

void db_p_bool_array(struct db_params *p, size_t n, int64_t (*at)(const void *ctx, size_t i), const void *ctx) {
  struct buf b = {0};
  put_array_head(&b, OID_BOOL, n);
  for (size_t i = 0; i < n && !b.failed; i++) {
    put_int4(&b, 1);
    buf_putc(&b, at(ctx, i) != 0 ? 1 : 0);
  }
  add_array(p, OID_BOOL_ARRAY, &b);
}
