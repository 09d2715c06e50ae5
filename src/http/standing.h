// SPDX-License-Identifier: Apache-2.0
/// @file
/// Whether those who wait for news may go on waiting: a watching request (ROUTE_WATCHES) ends when its caller's
/// credential does, or the membership of the person that the caller acts for. Asked before its handler first runs,
/// before each time that the handler is resumed, and of those who are parked after the keys were reloaded or a
/// membership was revoked. The worker's thread.
#ifndef SH_HTTP_STANDING_H
#define SH_HTTP_STANDING_H

#include "http/access.h"
#include "http/inside.h"

/// Whether the caller of a watching request may go on. @return NULL, or why not: with it goes request_expel()
const struct refusal *standing_check(struct request *r);

/// Calls the route's handler, where the caller may go in: for a watching request with a person once it is known that
/// the person's membership of the room is not revoked. That may park the request.
enum request_verdict standing_begin(struct request *r);

/// When the caller's credential will be over, monotonic; INT64_MAX: never, or the request does not watch.
int64_t standing_until_us(const struct request *r);

/// In the place of r->resumed: expels the caller whose time is over, lets the handler wait on when it was woken for
/// this look alone, and resumes it otherwise.
enum request_verdict standing_resume(struct request *r);

/// Wakes the parked requests whose callers may not go on, so that they are expelled.
void standing_look_over(struct worker_loop *loop);

/// To be given to tail_tell_revoked(); @a ctx is the worker: wakes the parked requests of those who are revoked.
void standing_revoked(void *ctx, const char *room_id);

#endif
