// SPDX-License-Identifier: Apache-2.0
#include "base/jsonout.h"
#include "store/read.h"

static const struct db_stmt session_stmt = {
    .name = "read_session",
    .sql = "SELECT l.revision, l.expires_at > clock_timestamp(), t.revision, t.reason"
           " FROM (SELECT 1) one"
           " LEFT JOIN stillhere.lease l ON l.room_id = $1 AND l.user_id = $2 AND l.session_id = $3"
           " LEFT JOIN stillhere.tombstone t ON t.room_id = $1 AND t.user_id = $2 AND t.session_id = $3"};

enum { COL_REVISION, COL_LIVE, COL_LAST_REVISION, COL_REASON };

enum db_status read_session(struct db *db, const struct lease_key *key, struct buf *out) {
  struct db_params p = {0};
  db_p_text(&p, key->room_id);
  db_p_text(&p, key->user_id);
  db_p_text(&p, key->session_id);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &session_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  const char *state = "unknown";
  int64_t revision = 0;
  if (!db_null(r, 0, COL_REVISION)) {
    state = db_bool(r, 0, COL_LIVE) ? "live" : "expired";
    revision = db_int8(r, 0, COL_REVISION);
  } else if (!db_null(r, 0, COL_LAST_REVISION)) {
    state = db_text(r, 0, COL_REASON); // the table's own words are the contract's
    revision = db_int8(r, 0, COL_LAST_REVISION);
  }
  jo_object(out);
  jo_kstr(out, "state", state);
  jo_kint(out, "revision", revision);
  jo_object_end(out);
  PQclear(r);
  return out->failed ? DB_FAILED : DB_OK;
}
