// SPDX-License-Identifier: Apache-2.0
// Put in front of the C library of a daemon (LD_PRELOAD): names that no server knows. The answer for hanging.test takes
// 25 s, and rebound.test has an address of the public internet and one that is not.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result) {
  lookup *real = (lookup *)dlsym(RTLD_NEXT, "getaddrinfo");
  if (node != NULL && strcmp(node, "hanging.test") == 0) {
    sleep(25);
    return EAI_AGAIN;
  }
  if (node == NULL || strcmp(node, "rebound.test") != 0)
    return real(node, service, hints, result);
  struct addrinfo *inside = NULL;
  int status = real("127.0.0.1", service, hints, &inside);
  // Nobody has this address. Where there is no IPv6 it is left out.
  if (status != 0 || real("3fff:1000::1", service, hints, result) != 0) {
    *result = inside;
    return status;
  }
  struct addrinfo *last = *result;
  while (last->ai_next != NULL)
    last = last->ai_next;
  last->ai_next = inside;
  return 0;
}
