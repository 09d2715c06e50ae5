// SPDX-License-Identifier: Apache-2.0
#include "base/address.h"

#include <netinet/in.h>
#include <string.h>

bool address_key(const struct sockaddr *addr, uint64_t *key) {
  *key = 0;
  if (addr == NULL)
    return false;
  if (addr->sa_family == AF_INET) {
    struct sockaddr_in in;
    memcpy(&in, addr, sizeof in);
    *key = ntohl(in.sin_addr.s_addr);
    return true;
  }
  if (addr->sa_family != AF_INET6)
    return false;
  struct sockaddr_in6 in6;
  memcpy(&in6, addr, sizeof in6);
  const unsigned char *bytes = in6.sin6_addr.s6_addr;
  int from = IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr) ? 12 : 0, to = from == 12 ? 16 : 8;
  for (int i = from; i < to; i++)
    *key = *key << 8 | bytes[i];
  return true;
}

static bool v4_is_public(uint32_t a) {
  static const struct {
    uint32_t net;
    int bits;
  } reserved[] = {{0x00000000, 8},  {0x0a000000, 8},  {0x64400000, 10}, {0x7f000000, 8},  {0xa9fe0000, 16},
                  {0xac100000, 12}, {0xc0000000, 24}, {0xc0000200, 24}, {0xc0586300, 24}, {0xc0a80000, 16},
                  {0xc6120000, 15}, {0xc6336400, 24}, {0xcb007100, 24}, {0xe0000000, 3}};
  for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++) {
    if ((a ^ reserved[i].net) >> (32 - reserved[i].bits) == 0)
      return false;
  }
  return true;
}

static uint32_t v4_at(const unsigned char *b) {
  return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static bool v6_is_public(const unsigned char *b) {
  static const unsigned char zeros[12], nat64[12] = {0x00, 0x64, 0xff, 0x9b};
  static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
  // The first 96 bits empty: the unspecified address, loopback, and IPv4 in an old form.
  if (memcmp(b, zeros, sizeof zeros) == 0)
    return false;
  if (memcmp(b, mapped, sizeof mapped) == 0 || memcmp(b, nat64, sizeof nat64) == 0)
    return v4_is_public(v4_at(b + 12));
  if (b[0] == 0x20 && b[1] == 0x02)
    return v4_is_public(v4_at(b + 2));
  // 2000::/3 is all that is given out; of 2001::/23 (with Teredo) and 2001:db8::/32 nothing is reached by itself.
  bool special = b[0] == 0x20 && b[1] == 0x01 && (b[2] < 2 || (b[2] == 0x0d && b[3] == 0xb8));
  bool documentation = b[0] == 0x3f && b[1] == 0xff && b[2] < 0x10;
  return b[0] >> 5 == 1 && !special && !documentation;
}

bool address_is_public(const struct sockaddr *addr) {
  if (addr->sa_family == AF_INET) {
    struct sockaddr_in in;
    memcpy(&in, addr, sizeof in);
    return v4_is_public(ntohl(in.sin_addr.s_addr));
  }
  if (addr->sa_family != AF_INET6)
    return false;
  struct sockaddr_in6 in6;
  memcpy(&in6, addr, sizeof in6);
  return v6_is_public(in6.sin6_addr.s6_addr);
}
