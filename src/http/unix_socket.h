// SPDX-License-Identifier: Apache-2.0
/// @file
/// Listening on a path of the file system (listen = unix:/path): as safe against a stale socket, another instance and a
/// foreign file as a port is by itself.
#ifndef SH_HTTP_UNIX_SOCKET_H
#define SH_HTTP_UNIX_SOCKET_H

#include <sys/stat.h>

/// Makes the socket with mode 0660 and listens. One that is there already is replaced if nobody answers on it; anything
/// else at the path stays, and is an error.
/// @param[out] made what is at the path now, for unix_socket_remove()
/// @return a non-blocking descriptor, or -1 (logged)
int unix_socket_listen(const char *path, int backlog, struct stat *made);

/// Takes the path away, unless it is another's by now. Call it before the close of the descriptor, which keeps the
/// inode from being used again and a successor from thinking that nobody answers.
void unix_socket_remove(const char *path, const struct stat *made);

#endif
