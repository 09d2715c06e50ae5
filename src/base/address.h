// SPDX-License-Identifier: Apache-2.0
/// @file
/// A client's address as a number, for counting by it.
#ifndef SH_BASE_ADDRESS_H
#define SH_BASE_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/// An IPv4 address (also one mapped into IPv6) as it is; of an IPv6 address the upper half, since a client can choose
/// the rest itself. The two cannot meet: the upper half of a routed IPv6 address has bits above the lowest 32.
/// @return false for NULL and for what has no such address, a unix socket; @a key is 0 then
bool address_key(const struct sockaddr *addr, uint64_t *key);

/// Whether it is an address of the public internet: not loopback, private, link-local, shared (CGNAT), multicast,
/// reserved, for documentation or for benchmarks. Of an IPv6 address with an IPv4 one in it (mapped, NAT64, 6to4) that
/// one counts. Other families are not.
bool address_is_public(const struct sockaddr *addr);

#endif
