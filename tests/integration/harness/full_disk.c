// SPDX-License-Identifier: Apache-2.0
// Put in front of the C library of a PostgreSQL server (LD_PRELOAD): while the file that $FULL_DISK names exists, the
// disk under its tables and indexes has no room left. What is written in place goes through, as on a disk that is full.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int refused(int fd, off_t end) {
  const char *flag = getenv("FULL_DISK");
  if (flag == NULL || access(flag, F_OK) != 0)
    return 0;
  char link[64], path[4096];
  (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  struct stat st;
  if (n < 0 || fstat(fd, &st) != 0)
    return 0;
  path[n] = '\0';
  return strstr(path, "/base/") != NULL && end > st.st_size;
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at) {
  static ssize_t (*real)(int, const void *, size_t, off_t);
  if (real == NULL)
    real = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64");
  if (refused(fd, at + (off_t)n)) {
    errno = ENOSPC;
    return -1;
  }
  return real(fd, bytes, n, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off_t at) {
  return pwrite(fd, bytes, n, at);
}
