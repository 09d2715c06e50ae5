// SPDX-License-Identifier: Apache-2.0
#include "auth/key_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/// @return bytes read, or -1 with errno
static ssize_t read_all(int fd, char *to, size_t max) {
  size_t used = 0;
  while (used < max) {
    ssize_t n = read(fd, to + used, max - used);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return -1;
    if (n == 0)
      break;
    used += (size_t)n;
  }
  return (ssize_t)used;
}

/// @return NULL, or what is wrong
static const char *read_descriptor(struct key_file *file, int fd, size_t max) {
  struct stat st;
  if (fstat(fd, &st) != 0)
    return strerror(errno);
  if (!S_ISREG(st.st_mode))
    return "is not a regular file";
  file->world_readable = (st.st_mode & S_IROTH) != 0;
  // One byte more tells a file that is too long, however it grows meanwhile; another is for the NUL.
  file->bytes = malloc(max + 2);
  if (file->bytes == NULL)
    return "out of memory";
  ssize_t n = read_all(fd, file->bytes, max + 1);
  file->len = n > 0 ? (size_t)n : 0;
  file->bytes[file->len] = '\0';
  if (n < 0)
    return strerror(errno);
  return file->len > max ? "is too long" : NULL;
}

bool key_file_read(struct key_file *file, const char *path, size_t max, char *error, size_t error_size) {
  *file = (struct key_file){0};
  // Without O_NONBLOCK the start would wait for whoever writes into a FIFO.
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  const char *problem = fd < 0 ? strerror(errno) : read_descriptor(file, fd, max);
  if (fd >= 0)
    (void)close(fd);
  if (problem == NULL)
    return true;
  (void)snprintf(error, error_size, "%s: %s", path, problem);
  key_file_free(file);
  return false;
}

void key_file_free(struct key_file *file) {
  if (file->bytes != NULL)
    explicit_bzero(file->bytes, file->len);
  free(file->bytes);
  *file = (struct key_file){0};
}
