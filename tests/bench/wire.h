// SPDX-License-Identifier: Apache-2.0
/// What the load generators of the bench share: request files, connections on loopback, and the cutting of replies.
/// One thread; what fails ends the program with a line on standard error.
#ifndef SH_BENCH_WIRE_H
#define SH_BENCH_WIRE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// Ends the program with 1 and a line of the form "NAME: WHAT: error of errno".
_Noreturn void wire_die(const char *what);

/// Memory for @a n things, zeroed. Never NULL: without memory the program ends.
void *wire_alloc(size_t n, size_t size);

/// A string of bytes. Owned by the list it is in.
struct wire_bytes {
  const char *data;
  size_t len;
};

/// Requests, ready to be sent.
struct wire_requests {
  char *text; ///< the file
  struct wire_bytes *list;
  size_t n;
};

/// Reads a file of requests: each is its length in decimal, a newline, and so many bytes. Never released.
void wire_load(struct wire_requests *requests, const char *path);

/// Reads "127.0.0.1:8080".
void wire_address(struct sockaddr_in *address, const char *text);

/// Opens a connection that does not block, and waits until it stands. @a source is the last but one byte of the local
/// address 127.0.x.1, so that the ports of one address are not the limit; 0 leaves the choice to the kernel.
int wire_connect(const struct sockaddr_in *to, unsigned source);

/// Closes with a reset: no port is left behind in TIME_WAIT.
void wire_close(int fd);

/// Sends all of it. These requests fit into a socket's buffer; one that does not is an error. @return false when the
/// connection is gone
bool wire_send(int fd, struct wire_bytes bytes);

/// The reply that a connection is waiting for.
struct wire_reply {
  char *stash; ///< the head, while it is not whole
  size_t stashed;
  size_t missing; ///< bytes of the body that are still to come
  bool in_body;
  int status;
};

enum wire_result {
  WIRE_MORE,  ///< the reply is not whole
  WIRE_WHOLE, ///< it is; its status is in the reply
  WIRE_GONE,  ///< the connection has ended, or what came is no reply
};

/// Reads what has come. After WIRE_WHOLE or WIRE_GONE the reply is ready for the next one. @a total counts bytes.
enum wire_result wire_receive(int fd, struct wire_reply *reply, uint64_t *total);

/// Monotonic time, nanoseconds.
int64_t wire_now(void);

/// Raises the soft limit on open files to the hard one.
void wire_raise_limits(void);

/// A number from @a min to @a max, or the end of the program.
long wire_number(const char *text, long min, long max);

#endif
