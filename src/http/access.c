// SPDX-License-Identifier: Apache-2.0
#include "http/access.h"

const struct refusal *access_write(const struct request *r, const char *room_id, const char *user_id,
                                   const char *session_id) {
  (void)r;
  (void)room_id;
  (void)user_id;
  (void)session_id;
  return NULL;
}

const struct refusal *access_read(const struct request *r, const char *room_id) {
  (void)r;
  (void)room_id;
  return NULL;
}

const struct refusal *access_members(const struct request *r, const char *room_id) {
  (void)r;
  (void)room_id;
  return NULL;
}

void request_refused(struct request *r, const struct refusal *refusal) {
  request_problem(r, refusal->status, refusal->code, NULL, "%s", refusal->detail);
}

const char *access_person(const struct request *r) {
  return request_query(r, "user_id");
}
