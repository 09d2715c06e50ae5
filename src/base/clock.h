// SPDX-License-Identifier: Apache-2.0
/// @file
/// The two clocks. Waiting is measured on the monotonic clock of this host. What is said to clients, and everything
/// that judges a lease, is on the database's clock; here is only an estimate of it for display (`server_time`),
/// brought up to date by every thread that talks to the database. The wall clock of this host is never read.
#ifndef SH_BASE_CLOCK_H
#define SH_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/// Infinity of a PostgreSQL timestamp, as Unix microseconds here.
#define TIME_INFINITY INT64_MAX
#define TIME_MINUS_INFINITY INT64_MIN

/// Microseconds on the monotonic clock. Any thread.
int64_t clock_mono_us(void);

/// Tells that the database's clock showed @a db_unix_us at some moment between the two monotonic times.
/// The estimate with the shortest span wins for a while, and it never lets `clock_db_us` run backwards by more than a
/// real step. Any thread.
void clock_db_sample(int64_t db_unix_us, int64_t sent_us, int64_t received_us);

/// The database's clock now, estimated, Unix microseconds; 0 before the first sample. Any thread.
int64_t clock_db_us(void);

/// Bytes of `2026-11-30T15:00:00.000Z` and its NUL.
#define RFC3339_SIZE 25

/// @a unix_us, or the end of the years 0001 to 9999 that it lies beyond; infinity too. A time that was edited by hand
/// may be anything: of bounded ones the difference is a number as well, and PostgreSQL takes them back. Any thread.
int64_t time_bounded(int64_t unix_us);

/// Writes @a unix_us as RFC 3339 UTC with milliseconds, rounded down. What lies outside the years 0001 to 9999,
/// infinity included, is clamped to their ends, so that the output is always a valid time.
void rfc3339_format(char out[RFC3339_SIZE], int64_t unix_us);

/// Reads an RFC 3339 time: upper or lower case `T` and `Z`, offset `Z` or `±hh:mm`, up to 9 digits of a second.
/// Days are checked against the month. @return false when it is not one; @a unix_us is then untouched
bool rfc3339_parse(const char *s, int64_t *unix_us);

#endif
