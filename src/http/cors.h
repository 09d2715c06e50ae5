// SPDX-License-Identifier: Apache-2.0
/// @file
/// Calls from pages of other origins (cors_origins). A reply to an allowed origin says so, whatever it is: errors,
/// streams and refusals by hand too, since a page that may not read an error cannot act on it. Others get no such
/// header, and their browsers keep the reply from them. Cookies play no part (there is no
/// Access-Control-Allow-Credentials): a page shows its token in a header. The worker's thread.
#ifndef SH_HTTP_CORS_H
#define SH_HTTP_CORS_H

#include "http/request.h"

/// Reads the origin from the headers, once.
void cors_read(struct request *r);

/// Adds the headers of a reply with @a status. @return false when memory ran out
bool cors_add(const struct request *r, int status, struct MHD_Response *response);

/// The same as lines of text, for a refusal by hand.
void cors_text(const struct request *r, int status, struct buf *out);

#endif
