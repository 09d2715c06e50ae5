// SPDX-License-Identifier: Apache-2.0
#include "http/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"

#define MODE 0660

/// Locks the directory of @a path, so that of two instances that find a stale socket one cannot remove what the other
/// has just made. @return the descriptor that holds the lock, or -1 with errno
static int lock_directory(const char *path) {
  char directory[sizeof((struct sockaddr_un *)NULL)->sun_path];
  size_t len = (size_t)(strrchr(path, '/') - path);
  if (len >= sizeof directory) {
    errno = ENAMETOOLONG;
    return -1;
  }
  memcpy(directory, path, len);
  directory[len] = '\0';
  int fd = open(len > 0 ? directory : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0 && flock(fd, LOCK_EX) != 0) {
    int error = errno;
    (void)close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

/// @return 0 when the path is free now, or errno
static int make_way(const struct sockaddr_un *address) {
  struct stat there;
  if (lstat(address->sun_path, &there) != 0)
    return errno == ENOENT ? 0 : errno;
  if (!S_ISSOCK(there.st_mode))
    return EEXIST;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return errno;
  bool refused = connect(fd, (const struct sockaddr *)address, sizeof *address) != 0 && errno == ECONNREFUSED;
  (void)close(fd);
  if (!refused)
    return EADDRINUSE; // somebody answers, or it cannot be told
  return unlink(address->sun_path) == 0 || errno == ENOENT ? 0 : errno;
}

/// @return 0 or errno
static int bind_and_listen(int fd, const struct sockaddr_un *address, int backlog) {
  // The mode of the descriptor becomes that of the path, less the umask, so that it is never wider than MODE.
  if (fchmod(fd, MODE) != 0 || bind(fd, (const struct sockaddr *)address, sizeof *address) != 0)
    return errno;
  if (chmod(address->sun_path, MODE) == 0 && listen(fd, backlog) == 0)
    return 0;
  int error = errno;
  (void)unlink(address->sun_path);
  return error;
}

int unix_socket_listen(const char *path, int backlog, struct stat *made) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) {
    log_error("cannot listen on unix:%s: the path is too long", path);
    return -1;
  }
  memcpy(address.sun_path, path, strlen(path) + 1);
  int lock = lock_directory(path);
  int fd = lock < 0 ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int error = fd < 0 ? errno : make_way(&address);
  if (error == 0)
    error = bind_and_listen(fd, &address, backlog);
  if (error == 0 && lstat(path, made) != 0)
    error = errno;
  if (lock >= 0)
    (void)close(lock);
  if (error == 0)
    return fd;
  log_error("cannot listen on unix:%s: %s", path,
            error == EEXIST       ? "there is something that is not a socket"
            : error == EADDRINUSE ? "somebody else listens there"
                                  : strerror(error));
  if (fd >= 0)
    (void)close(fd);
  return -1;
}

void unix_socket_remove(const char *path, const struct stat *made) {
  int lock = lock_directory(path);
  struct stat there;
  if (lock >= 0 && lstat(path, &there) == 0 && there.st_dev == made->st_dev && there.st_ino == made->st_ino)
    (void)unlink(path);
  if (lock >= 0)
    (void)close(lock);
}
