// SPDX-License-Identifier: Apache-2.0
/// @file
/// What a decided op says to its client (CONTRACT §2, §3).
#ifndef SH_HTTP_LEASE_REPLY_H
#define SH_HTTP_LEASE_REPLY_H

#include "base/buf.h"
#include "http/request.h"
#include "store/op.h"

/// Appends the reply of a heartbeat or close as an object that is still open: the accepted form, or a problem object.
/// @return its status
int lease_reply_open(struct buf *b, const struct op *op, const struct request *r);

/// Sends the reply of one op. @a members, where not NULL, is more text for the object, beginning with a comma.
void lease_reply_send(struct request *r, const struct op *op, const struct buf *members);

#endif
