// SPDX-License-Identifier: Apache-2.0
/// @file
/// Entity tags of presence replies.
#ifndef SH_HTTP_ETAG_H
#define SH_HTTP_ETAG_H

#include <stdbool.h>
#include <stdint.h>

#include "db/epoch.h"

/// Quotes, epoch, dash, revision and the NUL.
#define ETAG_SIZE (EPOCH_SIZE + 24)

/// `"<epoch>-<revision>"`.
void etag_format(char out[ETAG_SIZE], const char *epoch, int64_t revision);

/// Whether the value of an If-None-Match header names @a etag: `*`, or a list with it in strong or weak form. NULL
/// names none.
bool etag_listed(const char *if_none_match, const char *etag);

#endif
