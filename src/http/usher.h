// SPDX-License-Identifier: Apache-2.0
/// @file
/// Which worker a new connection goes to. libmicrohttpd looks at every suspended connection of a worker whenever one of
/// them is resumed, so a worker that has thousands of polls waiting pays for them with each heartbeat. Therefore
/// connections that begin with a poll or a stream go to workers of their own. A look at the first bytes of a connection
/// tells; a client that sends other things later is served all the same, just less cheaply.
///
/// All functions are for the acceptor's thread.
#ifndef SH_HTTP_USHER_H
#define SH_HTTP_USHER_H

#include <stdbool.h>
#include <sys/socket.h>

#include "http/worker.h"

struct usher;

/// @param workers the first half for what is answered at once, the second for what waits; at least one each. Where TLS
/// hides the first bytes all are for everything. @return NULL (errno) when a resource is missing
struct usher *usher_new(struct worker *const *workers, unsigned n_workers, bool tls);

/// Hands on what is still undecided, and frees. NULL is fine.
void usher_free(struct usher *usher);

/// A connection that was accepted and counted. It goes to its worker at once, or when its first bytes have come, at the
/// latest after a moment. One whose first byte begins no request is told so and closed.
void usher_take(struct usher *usher, int fd, const struct sockaddr *addr, socklen_t len);

/// Becomes readable when there is something to do.
int usher_fd(const struct usher *usher);

/// Milliseconds until there is something to do in any case, -1: nothing.
int usher_timeout_ms(const struct usher *usher);

/// Does it.
void usher_run(struct usher *usher);

/// Whether a request can begin with this byte. Pure.
bool usher_may_begin(char byte);

/// Whether a request that begins with these bytes may wait. Pure. @return 1 yes, 0 no, -1 not known yet
int usher_may_wait(const char *bytes, size_t len);

#endif
