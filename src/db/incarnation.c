// SPDX-License-Identifier: Apache-2.0
// What a new connection asks first: the clock, and which incarnation of the database this is.
//
// What the server says of itself names a restore into another database or cluster, and a promotion. It does not name a
// data directory that an older copy of itself has taken the place of: system, timeline and oids are the same. There are
// two signs of that. The log is shorter than it has been, which whoever was there before knows; and the files are
// others, which shows in when the inode of a file was last changed that the server never touches, to a role that may
// look. Either makes a new word in stillhere.incarnation, and the epoch is made of it too.
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/rand.h"
#include "db/db_internal.h"
#include "db/epoch.h"

/// Every thread meets a server that was left behind; one line in this time is enough.
#define TELL_EVERY_US 5000000

/// The epoch as far as the server knows it: null on a standby, where there is no timeline to write on yet. What is
/// flushed outlives a crash; what is only inserted may not.
static const struct db_stmt stmt_greet = {
    .name = "greet",
    .sql = "SELECT clock_timestamp(), to_regclass('stillhere.room') IS NOT NULL,"
           " CASE WHEN pg_is_in_recovery() THEN NULL ELSE"
           "  left(encode(sha256(convert_to(concat_ws(':',"
           "   (SELECT system_identifier FROM pg_control_system()),"
           "   left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),"
           "   (SELECT oid FROM pg_database WHERE datname = current_database()),"
           "   coalesce(to_regclass('stillhere.room')::oid, 0)), 'UTF8')), 'hex'), 16) END,"
           " CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_insert_lsn() - '0/0')::int8 END,"
           " CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0')::int8 END,"
           " coalesce(has_table_privilege(to_regclass('stillhere.incarnation'), 'SELECT'), false),"
           " has_function_privilege('pg_stat_file(text)', 'EXECUTE'),"
           " (SELECT system_identifier FROM pg_control_system()),"
           " CASE WHEN NOT pg_is_in_recovery() THEN"
           "  ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int8 END"};

enum { COL_NOW, COL_TABLES, COL_SERVER, COL_INSERTED, COL_FLUSHED, COL_WORD, COL_FILES, COL_SYSTEM, COL_TIMELINE };

// $1 is the epoch as far as the server knows it. Without a word that is all.
#define EPOCH_AND_WORD                                                                                                 \
  "CASE i.word WHEN '' THEN $1 ELSE left(encode(sha256(convert_to($1 || ':' || i.word, 'UTF8')), 'hex'), 16) END, i.word"

static const struct db_stmt stmt_word = {.name = "incarnation",
                                         .sql = "SELECT " EPOCH_AND_WORD ", false, NULL::text"
                                                " FROM stillhere.incarnation i"};

static const struct db_stmt stmt_word_and_files = {
    .name = "incarnation_files",
    .sql = "SELECT " EPOCH_AND_WORD ", i.files IS DISTINCT FROM f.files, f.files"
           " FROM stillhere.incarnation i, (SELECT extract(epoch FROM change)::text AS files"
           " FROM pg_stat_file('PG_VERSION')) f"};

/// Of several who find the same, one puts its word in. Files that were not known before change nothing else.
static const struct db_stmt stmt_change = {.name = "incarnation_change",
                                           .sql = "UPDATE stillhere.incarnation SET files = coalesce($3, files),"
                                                  " word = CASE WHEN $4 OR files <> $3 THEN $2 ELSE word END"
                                                  " WHERE word = $1 AND ($4 OR files IS DISTINCT FROM $3)"};

struct incarnation {
  char server[EPOCH_SIZE]; ///< the epoch as far as the server knows it
  bool may_see_files;
  char epoch[EPOCH_SIZE];
  char word[65];
  bool other_files;
  char files[65]; ///< empty: not known
};

static void copy_text(char *to, size_t size, const PGresult *r, int col) {
  (void)snprintf(to, size, "%s", db_null(r, 0, col) ? "" : db_text(r, 0, col));
}

static enum db_status read_word(struct db *db, struct incarnation *in) {
  struct db_params p = {0};
  PGresult *r = NULL;
  db_p_text(&p, in->server);
  enum db_status status = db_run(db, in->may_see_files ? &stmt_word_and_files : &stmt_word, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  if (PQntuples(r) == 1) {
    copy_text(in->epoch, sizeof in->epoch, r, 0);
    copy_text(in->word, sizeof in->word, r, 1);
    in->other_files = db_bool(r, 0, 2);
    copy_text(in->files, sizeof in->files, r, 3);
  } else { // somebody has emptied the table
    (void)snprintf(in->epoch, sizeof in->epoch, "%s", in->server);
    in->other_files = false;
  }
  PQclear(r);
  return DB_OK;
}

static enum db_status change_word(struct db *db, const struct incarnation *in, bool went_back) {
  char word[21];
  request_id_make(word);
  struct db_params p = {0};
  db_p_text(&p, in->word);
  db_p_text(&p, word);
  db_p_text(&p, in->files[0] != '\0' ? in->files : NULL);
  db_p_bool(&p, went_back);
  enum db_status status = db_run(db, &stmt_change, &p, NULL);
  db_params_clear(&p);
  return status;
}

/// @param went_back may be set though there is no table for it yet; the epoch is the server's then
static enum db_status find_epoch(struct db *db, struct incarnation *in, const struct epoch_mark *before,
                                 int64_t inserted) {
  enum db_status status = read_word(db, in);
  if (status != DB_OK)
    return status;
  bool went_back = strcmp(in->epoch, before->epoch) == 0 && inserted < before->flushed;
  if (!went_back && !in->other_files)
    return DB_OK;
  status = change_word(db, in, went_back);
  return status == DB_OK ? read_word(db, in) : status;
}

/// The old primary is back and takes writes, though a standby was promoted in its place. Where there is a list of
/// addresses the next attempt begins with another. Whoever goes back on purpose, or puts back a copy of before,
/// restarts the daemons, which know nothing of a promotion then.
static enum db_status refuse_left_behind(struct db *db) {
  static _Atomic int64_t told_us = INT64_MIN / 2;
  int64_t now = clock_mono_us(), before = atomic_load(&told_us);
  if (now - before >= TELL_EVERY_US && atomic_compare_exchange_strong(&told_us, &before, now))
    log_error("the database server is on an older timeline than was seen before: a promotion has left it behind, and"
              " nothing is written to it; where it was put back on purpose, restart this daemon");
  db->timeouts++;
  return DB_LOST;
}

enum db_status db_greet(struct db *db) {
  PGresult *r;
  struct epoch_mark before;
  epoch_mark(&before); // before it is asked how far the log is
  int64_t sent_us = clock_mono_us();
  enum db_status status = db_run(db, &stmt_greet, NULL, &r);
  if (status != DB_OK)
    return status;
  clock_db_sample(db_time(r, 0, COL_NOW), sent_us, clock_mono_us());
  bool standby = db_null(r, 0, COL_SERVER), tables = db_bool(r, 0, COL_TABLES), word = db_bool(r, 0, COL_WORD);
  struct incarnation in = {.may_see_files = db_bool(r, 0, COL_FILES)};
  copy_text(in.server, sizeof in.server, r, COL_SERVER);
  (void)snprintf(in.epoch, sizeof in.epoch, "%s", in.server);
  int64_t inserted = standby ? 0 : db_int8(r, 0, COL_INSERTED), flushed = standby ? 0 : db_int8(r, 0, COL_FLUSHED);
  bool left_behind = !standby && !epoch_timeline(db_int8(r, 0, COL_SYSTEM), db_int8(r, 0, COL_TIMELINE));
  PQclear(r);
  if (left_behind)
    return refuse_left_behind(db);
  if (standby) {
    log_debug("the database server is in recovery");
    return DB_LOST;
  }
  if (!tables)
    return DB_OK;
  if (word)
    status = find_epoch(db, &in, &before, inserted);
  if (status != DB_OK)
    return status;
  bool changed = epoch_set(in.epoch);
  epoch_saw(in.epoch, flushed);
  if (changed)
    log_warning("the epoch of the database has changed: it was restored, moved or promoted");
  return DB_OK;
}
