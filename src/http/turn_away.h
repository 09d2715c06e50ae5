// SPDX-License-Identifier: Apache-2.0
/// @file
/// The answer to connections that never get as far as a worker.
#ifndef SH_HTTP_TURN_AWAY_H
#define SH_HTTP_TURN_AWAY_H

/// Answers a problem by hand without reading and without waiting, and closes @a fd. A 503 says when to come again.
/// Where TLS is spoken nothing can be said: close such a connection instead. Any thread.
/// @param detail plain ASCII without quotes
void turn_away(int fd, int status, const char *code, const char *detail);

#endif
