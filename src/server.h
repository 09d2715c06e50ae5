// SPDX-License-Identifier: Apache-2.0
/// @file
/// The server as a whole: its parts made and joined in order, and torn down in reverse. Main's thread alone.
#ifndef SH_SERVER_H
#define SH_SERVER_H

#include <stdbool.h>

#include "config/config.h"

/// server_stop() is through in less than so many seconds.
#define SERVER_STOP_S 9

struct server;

/// Starts everything. The signals that main waits for must be blocked before. @a config must outlive the server, which
/// lowers its max_connections to what the limit of descriptors allows.
/// @return NULL when a part does not start (logged); nothing is left running then
struct server *server_start(struct config *config);

/// Whether it met, after its start, what waiting cannot cure; it sends the process a SIGTERM then.
bool server_failed(const struct server *s);

/// Takes over what can change while it runs (key files, certificates) from a configuration that was just loaded; what
/// cannot be read stays as it was (logged).
void server_reload(struct server *s, const struct config *fresh);

/// Answers what waits, flushes, joins all threads and frees.
void server_stop(struct server *s);

/// Reports a state to systemd, where that is built in.
void server_tell_systemd(const char *state);

#endif
