// SPDX-License-Identifier: Apache-2.0
/// @file
/// The handlers that the table of routes (route.c) names. Each is called once its whole request has arrived.
#ifndef SH_HTTP_HANDLERS_H
#define SH_HTTP_HANDLERS_H

#include "http/request.h"

enum request_verdict h_lease_put(struct request *r);          ///< PUT /leases
enum request_verdict h_lease_delete(struct request *r);       ///< DELETE /rooms/{room}/leases/{user}/{session}
enum request_verdict h_presence_get(struct request *r);       ///< GET /rooms/{room}/presence
enum request_verdict h_cursor_post(struct request *r);        ///< POST /rooms/{room}/cursors
enum request_verdict h_cursors_get(struct request *r);        ///< GET /rooms/{room}/cursors
enum request_verdict h_leases_get(struct request *r);         ///< GET /rooms/{room}/leases
enum request_verdict h_rooms_get(struct request *r);          ///< GET /rooms
enum request_verdict h_user_presence_get(struct request *r);  ///< GET /users/{user}/presence
enum request_verdict h_last_seen_get(struct request *r);      ///< GET /last-seen
enum request_verdict h_room_last_seen_get(struct request *r); ///< GET /rooms/{room}/last-seen
enum request_verdict h_member_put(struct request *r);         ///< PUT /rooms/{room}/members/{user}
enum request_verdict h_member_delete(struct request *r);      ///< DELETE /rooms/{room}/members/{user}
enum request_verdict h_member_get(struct request *r);         ///< GET /rooms/{room}/members/{user}
enum request_verdict h_members_get(struct request *r);        ///< GET /rooms/{room}/members
enum request_verdict h_attendance_post(struct request *r);    ///< POST /rooms/{room}/attendance
enum request_verdict h_attendance_get(struct request *r);     ///< GET /rooms/{room}/attendance
enum request_verdict h_explain_get(struct request *r);        ///< GET /rooms/{room}/users/{user}/explain
enum request_verdict h_webhooks_get(struct request *r);       ///< GET /webhooks
enum request_verdict h_webhooks_dead_get(struct request *r);  ///< GET /webhooks/dead
enum request_verdict h_webhooks_replay(struct request *r);    ///< POST /webhooks/replay
enum request_verdict h_page(struct request *r);               ///< GET / and GET /www/{file}
enum request_verdict h_healthz(struct request *r);            ///< GET /healthz
enum request_verdict h_readyz(struct request *r);             ///< GET /readyz
enum request_verdict h_metrics(struct request *r);            ///< GET /metrics
enum request_verdict h_openapi(struct request *r);            ///< GET /openapi.json

#endif
