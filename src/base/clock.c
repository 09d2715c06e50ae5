// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <pthread.h>
#include <time.h>

#define SECOND_US INT64_C(1000000)
#define DAY_S INT64_C(86400)

/// Two clocks drift apart by less than one in this many parts, and never agree better than the slack.
#define DRIFT_PARTS 1000
#define SLACK_US 1000

/// After this long any sample replaces the estimate, however long its round trip took.
#define ESTIMATE_MAX_AGE_US (60 * SECOND_US)

/// 0001-01-01T00:00:00Z and 10000-01-01T00:00:00Z.
#define YEAR_1_US (INT64_C(-62135596800) * SECOND_US)
#define YEAR_10000_US (INT64_C(253402300800) * SECOND_US)

/// database time = monotonic time + offset, give or take `doubt`.
static struct {
  pthread_mutex_t lock; // a leaf, held for a few instructions
  bool known;
  int64_t offset_us;
  int64_t doubt_us; // half the round trip of the sample that it comes from
  int64_t taken_us; // monotonic time of that sample
  int64_t floor_us; // the latest time that was given out
} estimate = {.lock = PTHREAD_MUTEX_INITIALIZER};

int64_t clock_mono_us(void) {
  struct timespec ts;
  (void)clock_gettime(CLOCK_MONOTONIC, &ts); // cannot fail: the clock exists and ts is ours
  return (int64_t)ts.tv_sec * SECOND_US + ts.tv_nsec / 1000;
}

void clock_db_sample(int64_t db_unix_us, int64_t sent_us, int64_t received_us) {
  if (received_us < sent_us || db_unix_us == TIME_INFINITY || db_unix_us == TIME_MINUS_INFINITY)
    return;
  int64_t doubt = (received_us - sent_us) / 2;
  int64_t offset = db_unix_us - (sent_us + doubt);

  pthread_mutex_lock(&estimate.lock);
  int64_t age = received_us - estimate.taken_us;
  int64_t drift = age > 0 ? age / DRIFT_PARTS : 0;
  int64_t apart = offset > estimate.offset_us ? offset - estimate.offset_us : estimate.offset_us - offset;
  // When even the widest reading of both samples does not let them agree, the clock was stepped (or it is another
  // database's clock): then the new one is right, and time may go back.
  bool stepped = estimate.known && apart > estimate.doubt_us + doubt + drift + SLACK_US;
  if (!estimate.known || stepped || doubt <= estimate.doubt_us + drift || age > ESTIMATE_MAX_AGE_US) {
    if (!estimate.known || stepped)
      estimate.floor_us = INT64_MIN;
    estimate.known = true;
    estimate.offset_us = offset;
    estimate.doubt_us = doubt;
    estimate.taken_us = received_us;
  }
  pthread_mutex_unlock(&estimate.lock);
}

int64_t clock_db_us(void) {
  int64_t now = 0;
  pthread_mutex_lock(&estimate.lock);
  if (estimate.known) {
    now = clock_mono_us() + estimate.offset_us;
    if (now < estimate.floor_us)
      now = estimate.floor_us;
    else
      estimate.floor_us = now;
  }
  pthread_mutex_unlock(&estimate.lock);
  return now;
}

/// Division that rounds towards minus infinity.
static int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b < 0);
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar. The year begins in March here, so that the leap day comes
/// last and the days before a month are a linear formula; an era is 400 years, 146097 days.
static int64_t days_from_civil(int64_t year, int month, int day) {
  int64_t y = month <= 2 ? year - 1 : year;
  int64_t era = floor_div(y, 400);
  int64_t year_of_era = y - era * 400;
  int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719468;
}

/// The inverse of days_from_civil().
static void civil_from_days(int64_t days, int *year, int *month, int *day) {
  int64_t z = days + 719468;
  int64_t era = floor_div(z, 146097);
  int64_t day_of_era = z - era * 146097;
  int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  int64_t m = (5 * day_of_year + 2) / 153;
  *day = (int)(day_of_year - (153 * m + 2) / 5 + 1);
  *month = (int)(m < 10 ? m + 3 : m - 9);
  *year = (int)(year_of_era + era * 400 + (*month <= 2));
}

static void put_digits(char *at, int width, int64_t value) {
  while (width > 0) {
    at[--width] = (char)('0' + value % 10);
    value /= 10;
  }
}

int64_t time_bounded(int64_t unix_us) {
  if (unix_us < YEAR_1_US)
    return YEAR_1_US;
  return unix_us < YEAR_10000_US ? unix_us : YEAR_10000_US - 1;
}

void rfc3339_format(char out[RFC3339_SIZE], int64_t unix_us) {
  unix_us = time_bounded(unix_us);
  int64_t seconds = floor_div(unix_us, SECOND_US);
  int64_t micros = unix_us - seconds * SECOND_US;
  int64_t days = floor_div(seconds, DAY_S);
  int64_t rest = seconds - days * DAY_S;
  int year, month, day;
  civil_from_days(days, &year, &month, &day);

  static const char shape[RFC3339_SIZE] = "0000-00-00T00:00:00.000Z";
  for (size_t i = 0; i < RFC3339_SIZE; i++)
    out[i] = shape[i];
  put_digits(out, 4, year);
  put_digits(out + 5, 2, month);
  put_digits(out + 8, 2, day);
  put_digits(out + 11, 2, rest / 3600);
  put_digits(out + 14, 2, rest / 60 % 60);
  put_digits(out + 17, 2, rest % 60);
  put_digits(out + 20, 3, micros / 1000);
}

/// Reads exactly @a width digits within [@a min, @a max] and moves on.
static bool take_digits(const char **s, int width, int min, int max, int *out) {
  int value = 0;
  for (int i = 0; i < width; i++) {
    if (**s < '0' || **s > '9')
      return false;
    value = value * 10 + (*(*s)++ - '0');
  }
  *out = value;
  return value >= min && value <= max;
}

static bool take_char(const char **s, char c) {
  if (**s != c)
    return false;
  (*s)++;
  return true;
}

static int days_of_month(int year, int month) {
  static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  return month == 2 && leap ? 29 : days[month - 1];
}

/// `.` and 1 to 9 digits, where there is a dot. What is below a microsecond is cut off.
static bool take_fraction(const char **s, int64_t *micros) {
  *micros = 0;
  if (!take_char(s, '.'))
    return true;
  int digits = 0;
  int64_t nanos = 0;
  for (; **s >= '0' && **s <= '9'; (*s)++, digits++) {
    if (digits == 9)
      return false;
    nanos = nanos * 10 + (**s - '0');
  }
  if (digits == 0)
    return false;
  for (; digits < 9; digits++)
    nanos *= 10;
  *micros = nanos / 1000;
  return true;
}

/// `Z`, `z` or `±hh:mm`, as seconds east.
static bool take_offset(const char **s, int64_t *east) {
  *east = 0;
  if (take_char(s, 'Z') || take_char(s, 'z'))
    return true;
  int sign = **s == '-' ? -1 : 1;
  int hours, minutes;
  if (!take_char(s, '+') && !take_char(s, '-'))
    return false;
  if (!take_digits(s, 2, 0, 23, &hours) || !take_char(s, ':') || !take_digits(s, 2, 0, 59, &minutes))
    return false;
  *east = (int64_t)sign * (hours * 3600 + minutes * 60);
  return true;
}

bool rfc3339_parse(const char *s, int64_t *unix_us) {
  int year, month, day, hour, minute, second;
  int64_t micros, east;
  if (!take_digits(&s, 4, 0, 9999, &year) || !take_char(&s, '-') || !take_digits(&s, 2, 1, 12, &month) ||
      !take_char(&s, '-') || !take_digits(&s, 2, 1, days_of_month(year, month), &day))
    return false;
  if (!take_char(&s, 'T') && !take_char(&s, 't'))
    return false;
  if (!take_digits(&s, 2, 0, 23, &hour) || !take_char(&s, ':') || !take_digits(&s, 2, 0, 59, &minute) ||
      !take_char(&s, ':') || !take_digits(&s, 2, 0, 60, &second) || !take_fraction(&s, &micros) ||
      !take_offset(&s, &east) || *s != '\0')
    return false;
  int64_t minute_start = days_from_civil(year, month, day) * DAY_S + (int64_t)hour * 3600 + (int64_t)minute * 60 - east;
  // A leap second is the 61st second of a day's last minute (UTC). It is read as the second after it.
  if (second == 60 && minute_start - floor_div(minute_start, DAY_S) * DAY_S != DAY_S - 60)
    return false;
  *unix_us = (minute_start + second) * SECOND_US + micros;
  return true;
}
