// SPDX-License-Identifier: Apache-2.0
/// @file
/// Reading the small files that hold keys. What they contain never gets into a message. Main's thread.
#ifndef SH_AUTH_KEY_FILE_H
#define SH_AUTH_KEY_FILE_H

#include <stdbool.h>
#include <stddef.h>

struct key_file {
  char *bytes; ///< followed by a NUL, which @a len does not count
  size_t len;
  bool world_readable; ///< anybody on this host may read it
};

/// Reads a regular file whole.
/// @param max bytes that it may have at most
/// @param[out] error one line that names the file
/// @return false when it cannot be read; @a file is then empty
bool key_file_read(struct key_file *file, const char *path, size_t max, char *error, size_t error_size);

/// Wipes and frees the bytes.
void key_file_free(struct key_file *file);

#endif
