// SPDX-License-Identifier: Apache-2.0
#include "http/turn_away.h"

#include <microhttpd.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rand.h"
#include "base/util.h"

void turn_away(int fd, int status, const char *code, const char *detail) {
  char id[REQUEST_ID_MAX + 1], body[384], retry[32] = "", reply[768];
  const char *title = MHD_get_reason_phrase_for((unsigned)status);
  request_id_make(id);
  int body_len = snprintf(body, sizeof body,
                          "{\"type\":\"urn:stillhere:problem:%s\",\"title\":\"%s\",\"status\":%d,\"code\":\"%s\","
                          "\"detail\":\"%s\",\"request_id\":\"%s\"}",
                          code, title, status, code, detail, id);
  if (status == 503)
    (void)snprintf(retry, sizeof retry, "Retry-After: %d\r\n", 1 + (int)rand_below(3));
  int len = snprintf(reply, sizeof reply,
                     "HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\nCache-Control: no-store\r\n"
                     "X-Request-Id: %s\r\n%sConnection: close\r\nContent-Length: %d\r\n\r\n%s",
                     status, title, id, retry, body_len, body);
  if (body_len < (int)sizeof body && len < (int)sizeof reply)
    (void)send(fd, reply, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT);
  (void)shutdown(fd, SHUT_WR);
  // What has arrived is taken out: a close with unread data sends a reset, which can overtake the reply.
  char request[4096];
  (void)recv(fd, request, sizeof request, MSG_DONTWAIT);
  (void)close(fd);
}
