// SPDX-License-Identifier: Apache-2.0
#include "store/room.h"

#include "store/notify.h"

static const struct db_stmt make_stmt = {
    .name = "room_make",
    .sql = "INSERT INTO stillhere.room (room_id, revision) VALUES ($1, 0) ON CONFLICT (room_id) DO NOTHING",
};

static const struct db_stmt lock_stmt = {
    .name = "room_lock",
    .sql = "SELECT 1 FROM stillhere.room WHERE room_id = $1 FOR UPDATE",
};

enum db_status room_lock(struct db *db, const char *room_id) {
  struct db_params p = {0};
  db_p_text(&p, room_id);
  const struct db_step steps[] = {{&make_stmt, &p}, {&lock_stmt, &p}};
  PGresult *results[2] = {0};
  enum db_status status = db_pipeline(db, steps, 2, results);
  PQclear(results[0]);
  PQclear(results[1]);
  db_params_clear(&p);
  return status;
}

enum db_status room_refresh(struct db *db, const char *room_id) {
  struct room_head head = {room_id, NOTIFY_REFRESH};
  struct payloads payloads;
  enum db_status status = payloads_make(&payloads, &head, 1) ? DB_OK : DB_FAILED;
  if (status == DB_OK) {
    struct db_params p = {0};
    notify_params(&p, &payloads);
    status = db_run(db, &notify_stmt, &p, NULL);
    db_params_clear(&p);
  }
  payloads_free(&payloads);
  return status;
}
