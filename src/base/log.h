// SPDX-License-Identifier: Apache-2.0
/// @file
/// The log: one line an entry on standard error, as text or JSON. Never a token, a password or a connection string.
/// The decision log has a writer of its own (live/decision_log.h).
#ifndef SH_BASE_LOG_H
#define SH_BASE_LOG_H

#include "base/util.h"

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };
enum log_format { LOG_TEXT, LOG_JSON };

/// Sets the lowest level that is written and the form. Before it is called: info, text. Any thread, at start or SIGHUP.
void log_setup(enum log_level level, enum log_format format);

/// Writes one entry with one write(2), so that lines of different threads never mix. Control characters in the text
/// are escaped. Any thread. @a fmt has no newline at its end.
void log_write(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

#endif
