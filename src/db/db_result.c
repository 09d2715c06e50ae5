// SPDX-License-Identifier: Apache-2.0
// Values out of binary results.
#include <arpa/inet.h>
#include <assert.h>
#include <endian.h>
#include <string.h>

#include "base/clock.h"
#include "db/db.h"

/// PostgreSQL counts its time from 2000-01-01; this is that moment in Unix microseconds.
#define POSTGRES_EPOCH_US INT64_C(946684800000000)

/// jsonb's binary form begins with a version number, so it cannot be taken as text. Statements cast it.
#define OID_JSONB 3802

bool db_null(const PGresult *r, int row, int col) {
  return PQgetisnull(r, row, col) != 0;
}

static int64_t big_endian_8(const char *bytes) {
  uint64_t wire;
  memcpy(&wire, bytes, sizeof wire);
  return (int64_t)be64toh(wire);
}

int64_t db_int8(const PGresult *r, int row, int col) {
  if (db_null(r, row, col))
    return 0;
  const char *bytes = PQgetvalue(r, row, col);
  uint16_t two;
  uint32_t four;
  switch (PQgetlength(r, row, col)) {
  case 2:
    memcpy(&two, bytes, sizeof two);
    return (int16_t)ntohs(two);
  case 4:
    memcpy(&four, bytes, sizeof four);
    return (int32_t)ntohl(four);
  case 8:
    return big_endian_8(bytes);
  default:
    assert(!"the column is no integer");
    return 0;
  }
}

bool db_bool(const PGresult *r, int row, int col) {
  if (db_null(r, row, col))
    return false;
  assert(PQgetlength(r, row, col) == 1);
  return PQgetvalue(r, row, col)[0] != 0;
}

const char *db_text(const PGresult *r, int row, int col) {
  assert(PQftype(r, col) != OID_JSONB);
  return PQgetvalue(r, row, col); // libpq: an empty string for null
}

int db_text_len(const PGresult *r, int row, int col) {
  return PQgetlength(r, row, col);
}

int64_t db_time(const PGresult *r, int row, int col) {
  if (db_null(r, row, col))
    return 0;
  assert(PQgetlength(r, row, col) == 8);
  int64_t us = big_endian_8(PQgetvalue(r, row, col));
  if (us == INT64_MIN)
    return TIME_MINUS_INFINITY;
  // Infinity is INT64_MAX there too; a date so late that it does not fit counts as infinity.
  return __builtin_add_overflow(us, POSTGRES_EPOCH_US, &us) ? TIME_INFINITY : us;
}
