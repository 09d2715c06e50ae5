// SPDX-License-Identifier: Apache-2.0
/// @file
/// Counts open connections by client address, for max_connections_per_ip. An IPv6 client counts by its /64, since it
/// can choose the rest itself.
#ifndef SH_HTTP_PEERS_H
#define SH_HTTP_PEERS_H

#include <stdbool.h>
#include <sys/socket.h>

struct peers;

/// @param limit connections for each address. @return NULL when memory ran out
struct peers *peers_new(int limit);
void peers_free(struct peers *peers);

/// Counts one connection. Any thread.
/// @return false when the address has its limit already, or memory ran out; not counted then. Always true for a NULL
/// @a peers, and for what has no address (a unix socket)
bool peers_enter(struct peers *peers, const struct sockaddr *addr);

/// The connection is closed. Any thread. NULL @a peers is fine.
void peers_leave(struct peers *peers, const struct sockaddr *addr);

#endif
