// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"
#include "base/jsonout.h"
#include "store/explain.h"
#include "store/read.h"

#define LEASES_MAX "1000"
#define TOMBSTONES_MAX "100"
#define EVENTS_MAX "20"

// One statement for all tables, so that they are seen at the same moment; the first row is about the user, the others
// about one lease, tombstone or event each. What a column means depends on the part, see the enums.
static const struct db_stmt explain_stmt = {
    .name = "read_explain",
    .sql =
        "WITH c AS MATERIALIZED (SELECT clock_timestamp() AS now),"
        " l AS MATERIALIZED (SELECT * FROM stillhere.lease WHERE room_id = $1 AND user_id = $2"
        "  ORDER BY session_id LIMIT " LEASES_MAX "),"
        " t AS (SELECT * FROM stillhere.tombstone WHERE room_id = $1 AND user_id = $2"
        "  ORDER BY ended_at DESC, session_id LIMIT " TOMBSTONES_MAX "),"
        " e AS (SELECT * FROM stillhere.event WHERE room_id = $1 AND user_id = $2"
        "  ORDER BY revision DESC LIMIT " EVENTS_MAX ")"
        " SELECT 0, 0::int8 AS place, NULL::text, m.role, r.revision, NULL::int8, NULL::int8, m.room_id IS NOT NULL,"
        "  NULL::boolean, c.now AS at, u.online_since, u.offline_at,"
        "  GREATEST(s.last_seen_at, (SELECT max(renewed_at) FROM l)), m.granted_at, m.revoked_at, NULL::text, NULL::text"
        "  FROM c LEFT JOIN stillhere.room r ON r.room_id = $1"
        "  LEFT JOIN stillhere.room_user u ON u.room_id = $1 AND u.user_id = $2"
        "  LEFT JOIN stillhere.room_last_seen s ON s.room_id = $1 AND s.user_id = $2"
        "  LEFT JOIN stillhere.member m ON m.room_id = $1 AND m.user_id = $2"
        " UNION ALL SELECT 1, 0, l.session_id, NULL, l.revision, l.prior_revision, l.ttl_ms, l.revision_given,"
        "  l.expires_at > c.now, l.granted_at, l.renewed_at, l.expires_at, NULL, NULL, NULL, l.request_id, NULL FROM c, l"
        " UNION ALL SELECT 2, 0, session_id, reason, revision, NULL, NULL, NULL, NULL, ended_at, NULL, NULL, NULL, NULL,"
        "  NULL, request_id, event_id FROM t"
        " UNION ALL SELECT 3, revision, session_id, kind, revision, lease_revision, user_sessions, NULL, NULL, at, NULL,"
        "  NULL, NULL, NULL, NULL, request_id, event_id FROM e"
        " ORDER BY 1, 2, 10, 3"};

enum { PART_USER, PART_LEASE, PART_TOMBSTONE, PART_EVENT };
enum {
  COL_PART,
  COL_PLACE,
  COL_SESSION,
  COL_WORD,
  COL_REVISION,
  COL_OTHER_REVISION,
  COL_NUMBER,
  COL_FLAG,
  COL_LIVE,
  COL_AT,
  COL_AT2,
  COL_AT3,
  COL_AT4,
  COL_AT5,
  COL_AT6,
  COL_REQUEST,
  COL_EVENT
};
enum { USER_ROLE = COL_WORD, USER_IS_MEMBER = COL_FLAG, USER_NOW = COL_AT, USER_ONLINE_SINCE, USER_OFFLINE_AT };
enum { USER_LAST_SEEN = COL_AT4, USER_MEMBER_GRANTED, USER_MEMBER_REVOKED };
enum { LEASE_PRIOR = COL_OTHER_REVISION, LEASE_TTL, LEASE_GIVEN, LEASE_GRANTED = COL_AT, LEASE_RENEWED, LEASE_EXPIRES };
enum { EVENT_LEASE_REVISION = COL_OTHER_REVISION, EVENT_SESSIONS };

static int64_t time_or_0(const PGresult *r, int row, int col) {
  return db_null(r, row, col) ? 0 : db_time(r, row, col);
}

static void take_lease(struct explain_facts *f, const PGresult *r, int row) {
  bool live = db_bool(r, row, COL_LIVE);
  const char *session_id = db_text(r, row, COL_SESSION);
  int64_t revision = db_int8(r, row, COL_REVISION);
  int64_t renewed_us = db_time(r, row, LEASE_RENEWED), expires_us = db_time(r, row, LEASE_EXPIRES);
  f->live += live;
  f->overdue += !live;
  if (live && (f->renewed.session_id == NULL || renewed_us > f->renewed.at_us)) {
    f->renewed.session_id = session_id;
    f->renewed.revision = revision;
    f->renewed.at_us = renewed_us;
  }
  if (f->first_end.session_id == NULL || expires_us < f->first_end.at_us) {
    f->first_end.session_id = session_id;
    f->first_end.revision = revision;
    f->first_end.at_us = expires_us;
    f->first_end_live = live;
  }
}

/// The rows come in the order of their end.
static void take_tombstone(struct explain_facts *f, const PGresult *r, int row) {
  f->ended.session_id = db_text(r, row, COL_SESSION);
  f->ended.reason = db_text(r, row, COL_WORD);
  f->ended.revision = db_int8(r, row, COL_REVISION);
  f->ended.at_us = time_bounded(db_time(r, row, COL_AT));
  if (f->first_gone.session_id == NULL)
    f->first_gone = f->ended;
}

static struct explain_facts facts_of(const struct explain_rules *rules, const PGresult *r) {
  struct explain_facts f = {.rules = rules,
                            .now_us = db_time(r, 0, USER_NOW),
                            .last_seen_us = time_bounded(time_or_0(r, 0, USER_LAST_SEEN)),
                            .online_since_us = time_or_0(r, 0, USER_ONLINE_SINCE),
                            .offline_at_us = time_or_0(r, 0, USER_OFFLINE_AT),
                            .member = db_bool(r, 0, USER_IS_MEMBER),
                            .granted_at_us = time_or_0(r, 0, USER_MEMBER_GRANTED),
                            .revoked_at_us = time_or_0(r, 0, USER_MEMBER_REVOKED)};
  for (int row = 1; row < PQntuples(r); row++) {
    if (db_int8(r, row, COL_PART) == PART_LEASE)
      take_lease(&f, r, row);
    else if (db_int8(r, row, COL_PART) == PART_TOMBSTONE)
      take_tombstone(&f, r, row);
  }
  return f;
}

/// Milliseconds from now on, never negative; an infinite wait is as long as a number can say.
static int64_t ms_until(int64_t now_us, int64_t at_us) {
  if (at_us <= now_us)
    return 0;
  int64_t ms = at_us / 1000 - now_us / 1000;
  return ms < REVISION_MAX ? ms : REVISION_MAX;
}

static void ktime_or_null(struct buf *out, const char *key, int64_t unix_us) {
  if (unix_us == 0)
    jo_kstr(out, key, NULL);
  else
    jo_ktime(out, key, unix_us);
}

static void kint_or_null(struct buf *out, const char *key, const PGresult *r, int row, int col) {
  if (db_null(r, row, col))
    jo_kstr(out, key, NULL);
  else
    jo_kint(out, key, db_int8(r, row, col));
}

static const char *text_or_null(const PGresult *r, int row, int col) {
  return db_null(r, row, col) ? NULL : db_text(r, row, col);
}

static void kwords(struct buf *out, const char *key, struct buf *words) {
  out->failed = out->failed || words->failed;
  if (!words->failed)
    jo_kstr(out, key, words->data);
  buf_free(words);
}

static void next_json(struct buf *out, const struct explain_facts *f) {
  struct buf words = {0};
  int64_t at_us;
  if (!explain_next(f, &words, &at_us)) {
    jo_kstr(out, "next", NULL);
    return;
  }
  jo_key(out, "next");
  jo_object(out);
  kwords(out, "what", &words);
  jo_ktime(out, "at", at_us);
  jo_kint(out, "in_ms", ms_until(f->now_us, at_us));
  jo_object_end(out);
}

static void membership_json(struct buf *out, const struct explain_facts *f, const PGresult *r) {
  struct buf words = {0};
  jo_key(out, "membership");
  jo_object(out);
  explain_membership(f, &words);
  kwords(out, "rule", &words);
  jo_kbool(out, "required", f->rules->membership_required);
  jo_key(out, "member");
  if (f->member) {
    jo_object(out);
    jo_kstr(out, "role", db_text(r, 0, USER_ROLE));
    ktime_or_null(out, "granted_at", f->granted_at_us);
    ktime_or_null(out, "revoked_at", f->revoked_at_us);
    jo_object_end(out);
  } else {
    jo_null(out);
  }
  jo_object_end(out);
}

static void user_json(struct buf *out, const struct explain_facts *f, const PGresult *r) {
  struct buf words = {0};
  jo_kint(out, "room_revision", db_null(r, 0, COL_REVISION) ? 0 : db_int8(r, 0, COL_REVISION));
  jo_kstr(out, "state", explain_state(f));
  explain_rule(f, &words);
  kwords(out, "rule", &words);
  next_json(out, f);
  ktime_or_null(out, "online_since", f->online_since_us);
  jo_key(out, "pending_offline");
  if (f->offline_at_us != 0) {
    jo_object(out);
    jo_ktime(out, "offline_at", f->offline_at_us);
    jo_kint(out, "remaining_ms", ms_until(f->now_us, f->offline_at_us));
    jo_object_end(out);
  } else {
    jo_null(out);
  }
  ktime_or_null(out, "last_seen_at", f->last_seen_us);
  if (f->last_seen_us != 0)
    jo_kint(out, "last_seen_ago_ms", f->last_seen_us < f->now_us ? (f->now_us - f->last_seen_us) / 1000 : 0);
  else
    jo_kstr(out, "last_seen_ago_ms", NULL);
  membership_json(out, f, r);
}

static void lease_json(struct buf *out, int64_t now_us, const PGresult *r, int row) {
  jo_kstr(out, "state", db_bool(r, row, COL_LIVE) ? "live" : "expired-unswept");
  jo_kint(out, "revision", db_int8(r, row, COL_REVISION));
  kint_or_null(out, "prior_revision", r, row, LEASE_PRIOR);
  jo_kbool(out, "revision_given", db_bool(r, row, LEASE_GIVEN));
  jo_kint(out, "ttl_ms", db_int8(r, row, LEASE_TTL));
  jo_ktime(out, "granted_at", db_time(r, row, LEASE_GRANTED));
  jo_ktime(out, "renewed_at", db_time(r, row, LEASE_RENEWED));
  jo_ktime(out, "expires_at", db_time(r, row, LEASE_EXPIRES));
  jo_kint(out, "remaining_ms", ms_until(now_us, db_time(r, row, LEASE_EXPIRES)));
}

static void tombstone_json(struct buf *out, const struct explain_facts *f, const PGresult *r, int row) {
  jo_kstr(out, "reason", db_text(r, row, COL_WORD));
  jo_kint(out, "revision", db_int8(r, row, COL_REVISION));
  jo_ktime(out, "ended_at", db_time(r, row, COL_AT));
  jo_ktime(out, "forgotten_at", time_bounded(db_time(r, row, COL_AT)) + f->rules->tombstone_retention_ms * 1000);
}

static void event_json(struct buf *out, const PGresult *r, int row) {
  jo_kstr(out, "kind", db_text(r, row, COL_WORD));
  jo_kint(out, "revision", db_int8(r, row, COL_REVISION));
  jo_ktime(out, "at", db_time(r, row, COL_AT));
  kint_or_null(out, "lease_revision", r, row, EVENT_LEASE_REVISION);
  jo_kint(out, "user_sessions", db_int8(r, row, EVENT_SESSIONS));
}

static void list_json(struct buf *out, const char *key, int part, const struct explain_facts *f, const PGresult *r) {
  jo_key(out, key);
  jo_array(out);
  for (int row = 1; row < PQntuples(r); row++) {
    if (db_int8(r, row, COL_PART) != part)
      continue;
    jo_object(out);
    jo_kstr(out, "session_id", text_or_null(r, row, COL_SESSION));
    if (part == PART_LEASE)
      lease_json(out, f->now_us, r, row);
    else if (part == PART_TOMBSTONE)
      tombstone_json(out, f, r, row);
    else
      event_json(out, r, row);
    if (part != PART_LEASE)
      jo_kstr(out, "event_id", text_or_null(r, row, COL_EVENT));
    jo_kstr(out, "request_id", text_or_null(r, row, COL_REQUEST));
    jo_object_end(out);
  }
  jo_array_end(out);
}

enum db_status read_explain(struct db *db, const struct explain_rules *rules, const char *room_id, const char *user_id,
                            struct buf *out) {
  struct db_params p = {0};
  db_p_text(&p, room_id);
  db_p_text(&p, user_id);
  PGresult *r = NULL;
  enum db_status status = db_run(db, &explain_stmt, &p, &r);
  db_params_clear(&p);
  if (status != DB_OK)
    return status;
  struct explain_facts f = facts_of(rules, r);
  jo_object(out);
  jo_kstr(out, "room_id", room_id);
  jo_kstr(out, "user_id", user_id);
  user_json(out, &f, r);
  list_json(out, "leases", PART_LEASE, &f, r);
  list_json(out, "tombstones", PART_TOMBSTONE, &f, r);
  list_json(out, "events", PART_EVENT, &f, r);
  jo_ktime(out, "server_time", f.now_us);
  jo_object_end(out);
  PQclear(r);
  return out->failed ? DB_FAILED : DB_OK;
}
