// SPDX-License-Identifier: Apache-2.0
/// @file
/// The files of the live page, built in by src/www/embed.sh. They never change; any thread may read them.
#ifndef SH_HTTP_WWW_H
#define SH_HTTP_WWW_H

#include <stddef.h>

struct www_file {
  const char *name; ///< below /www/: "style.css"; "" is the page itself, at /
  const char *type; ///< Content-Type
  const char *data; ///< not NUL-terminated
  size_t len;
};

extern const struct www_file www_files[];
extern const size_t www_file_count;

#endif
