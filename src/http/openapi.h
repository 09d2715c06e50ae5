// SPDX-License-Identifier: Apache-2.0
/// @file
/// doc/openapi.json, built in by doc/embed.sh. It never changes; any thread may read it.
#ifndef SH_HTTP_OPENAPI_H
#define SH_HTTP_OPENAPI_H

#include <stddef.h>

extern const char openapi_document[]; ///< UTF-8, with a NUL behind it
extern const size_t openapi_document_len;

#endif
