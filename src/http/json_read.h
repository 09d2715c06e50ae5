// SPDX-License-Identifier: Apache-2.0
/// @file
/// The plain kind of GET: one query in a reader thread, whose JSON text is the reply. For lists and for people who ask.
#ifndef SH_HTTP_JSON_READ_H
#define SH_HTTP_JSON_READ_H

#include "db/db.h"
#include "http/request.h"

/// Reads the database and appends the whole JSON object to @a out. Runs in a reader thread.
typedef enum db_status json_query(struct db *db, const void *args, struct buf *out);

/// Starts the query, parks the request and answers it in the end: 200, or 503 when the database was not to be had in
/// time. @param args for the query: one piece of memory, taken over and released with free(). NULL (memory ran out)
/// is answered 503. @return what the handler returns
enum request_verdict json_read(struct request *r, json_query *query, void *args);

#endif
