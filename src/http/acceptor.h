// SPDX-License-Identifier: Apache-2.0
/// @file
/// The acceptor: a thread that owns the listening socket, deals accepted connections to the workers (http/usher.h), and
/// turns away what is beyond the limits. libmicrohttpd's own accepting spreads unevenly and cannot be stopped cleanly.
#ifndef SH_HTTP_ACCEPTOR_H
#define SH_HTTP_ACCEPTOR_H

#include "http/worker.h"

struct acceptor;

/// Listens as the configuration says and starts the thread; logs `listening on HOST:PORT`, with the real port, or
/// `listening on unix:/PATH`; behind either ` (TLS)`.
/// @param workers outlive the acceptor; see usher_new(). @return NULL when that fails (logged)
struct acceptor *acceptor_start(const struct service *service, struct worker *const *workers, unsigned n_workers);

/// Takes what the kernel has already accepted, closes the listening socket, joins and frees. NULL is fine.
void acceptor_stop(struct acceptor *acceptor);

#endif
