// SPDX-License-Identifier: Apache-2.0
/// @file
/// What a client accepts: the headers Accept and Accept-Encoding, with their weights (RFC 9110 §12). Pure functions;
/// NULL is a header that was not sent.
#ifndef SH_HTTP_ACCEPT_H
#define SH_HTTP_ACCEPT_H

#include <stdbool.h>

/// Whether @a accept prefers text/event-stream to JSON. It must name that type; where it names application/json with
/// the same weight too, and for wildcards, JSON is the answer.
bool accept_event_stream(const char *accept);

/// How much @a accept wants @a type ("text/csv"), in thousandths: by its name, else by its kind (`text/*`), else by
/// `*/*`.
int accept_weight(const char *accept, const char *type);

/// Whether @a accept_encoding allows gzip, by its name or by `*`, and does not prefer the plain form.
bool accept_gzip(const char *accept_encoding);

#endif
