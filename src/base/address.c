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
