# SPDX-License-Identifier: Apache-2.0
"""How PostgreSQL reaches the rows of a batch: by key, in the order of the batch, whatever it believes of the table."""

import json
import re

from harness.case import Case, lease


#: By all of its key, row by row.
BY_KEY = (r"Index Scan using %s_pkey on %s\b.*\n\s+Index Cond: \(\(room_id = .*?\) AND \(user_id = .*?\) AND "
          r"\(session_id = ")


class Plans(Case):
    autostart = False

    def setUp(self):
        super().setUp()
        if self.q("SELECT to_regclass('stillhere.lease')"):
            self.q("TRUNCATE stillhere.lease, stillhere.tombstone")

    def logged(self, action):
        """@return the plans of what PostgreSQL runs meanwhile, from its log"""
        since = self.pg.log_size()
        action()
        with open(self.pg.log, "rb") as f:
            f.seek(since)
            text = f.read().decode("utf-8", "replace")
        return re.findall(r"Query Text: .*?(?=\n\d{4}-|\Z)", text, re.DOTALL)

    def by_key(self, plans, words, table):
        found = [p for p in plans if words in p]
        self.assertTrue(found, plans)
        for plan in found:
            self.assertRegex(plan, r"Function Scan on i\b.*\n")
            self.assertRegex(plan, BY_KEY % (table, table))
            self.assertNotIn("Join Filter", plan)

    def batch(self, d, room, first, n=50):
        self.ok(self.client.batch(d.base, [lease(room, "u%d" % i, "s") for i in range(first, first + n)]))

    def explained(self, d, room, new=1000):
        """Renews and grants fifty leases each, closes one, and looks at how their rows were reached."""
        renewed = self.logged(lambda: self.batch(d, room, 0))
        self.by_key(renewed, "UPDATE stillhere.lease AS l SET revision", "lease")
        granted = self.logged(lambda: self.batch(d, room, new))
        self.by_key(granted, "(SELECT * FROM stillhere.tombstone WHERE", "tombstone")
        closed = self.logged(lambda: self.ok(self.client.close(d.base, room, "u%d" % new, "s")))
        self.by_key(closed, "(SELECT * FROM stillhere.lease WHERE", "lease")

    def explain_all(self):
        for setting in ("session_preload_libraries = auto_explain", "auto_explain.log_min_duration = 0"):
            self.pg.psql("postgres", 'ALTER DATABASE "%s" SET %s' % (self.database, setting))

    def analyze(self, rows):
        for table in ("lease", "tombstone"):
            self.q("ALTER TABLE stillhere.%s SET (autovacuum_enabled = off)" % table)
            self.q("VACUUM ANALYZE stillhere.%s" % table)
        self.assertEqual(self.q("SELECT reltuples FROM pg_class WHERE oid = 'stillhere.lease'::regclass"), str(rows))

    def test_by_key_when_vacuum_has_seen_no_row(self):
        self.explain_all()
        d = self.start_daemon()
        self.analyze(0)
        room = self.room("early")
        self.batch(d, room, 0)
        self.explained(d, room)
        self.batch(d, room, 2000, 1000)
        self.explained(d, room, 3000)

    def test_by_key_when_vacuum_has_seen_few_rows(self):
        self.explain_all()
        d = self.start_daemon()
        room = self.room("few")
        self.batch(d, room, 0, 5)
        self.analyze(5)
        self.batch(d, room, 5, 45)
        self.explained(d, room)

    def test_by_key_when_everybody_has_many_sessions(self):
        """The index by user would have as few of them as the primary key seems to."""
        self.explain_all()
        d = self.start_daemon()
        room = self.room("one")
        self.batch(d, room, 0)
        for k in range(4):
            self.ok(self.client.batch(d.base, [lease("%s-%d" % (room, k), "u0", "s%d" % i) for i in range(1000)]))
        self.analyze(4050)
        self.explained(d, room)

    def night(self):
        """Many rows were there, nearly all are gone, and VACUUM has counted the rest: all pages, hardly a row."""
        d = self.start_daemon()
        tables = ("lease", "room_user", "room", "tombstone", "event", "member", "room_last_seen", "user_last_seen")
        for table in tables:
            self.q("ALTER TABLE stillhere.%s SET (autovacuum_enabled = off)" % table)
        room = self.room("evening")
        for first in range(0, 3000, 1000):
            self.batch(d, "%s-%d" % (room, first), first, 1000)
            self.batch(d, room, first, 1000)
        self.batch(d, "~late", 0, 1)  # the last in every order, so that the pages before it stay
        self.q("INSERT INTO stillhere.tombstone (room_id, user_id, session_id, revision, reason, ended_at, event_id)"
               " SELECT room_id, user_id, session_id, 1, 'closed', now(), 'e' || user_id FROM stillhere.lease")
        self.q("INSERT INTO stillhere.member (room_id, user_id, role, granted_at) SELECT room_id, user_id, 'member', now()"
               " FROM stillhere.room_user")
        for table in tables:
            self.q("DELETE FROM stillhere.%s WHERE %s <> %s" % (
                table, *(("user_id", "'u2999'") if table == "user_last_seen" else ("room_id", "'~late'"))))
            self.q("VACUUM ANALYZE stillhere.%s" % table)
        self.assertLess(int(self.q("SELECT reltuples FROM pg_class WHERE oid = 'stillhere.lease'::regclass")), 3)
        self.assertGreater(int(self.q("SELECT relpages FROM pg_class WHERE oid = 'stillhere.lease'::regclass")), 50)
        self.stop_now(d)

    def morning(self, base, room):
        """A bit of everything that looks rows up by key."""
        users = range(50)
        self.ok(self.client.batch(base, [lease(room, "u%d" % i, "s") for i in users]))
        self.ok(self.client.batch(base, [lease(room, "u%d" % i, "s", meta={"n": 1}) for i in users]))
        self.ok(self.client.batch(base, [lease(room, "u%d" % i, "short", None, 1000) for i in users]))
        for method, path, body in (("POST", "cursors", {"user_id": "u1", "session_id": "s", "data": {}}),
                                   ("PUT", "members/u0", {"role": "member"}), ("DELETE", "members/u0", None)):
            reply = self.client.request(base, method, "/rooms/%s/%s" % (room, path), body and json.dumps(body),
                                        {"Content-Type": "application/json"} if body else None)
            self.assertIn(reply.status, (200, 201, 202, 204), reply)
        for i in (1, 2, 3):
            self.ok(self.client.close(base, room, "u%d" % i, "s"))
        self.ok(self.client.batch(base, [lease(room, "u%d" % i, "s", 100) for i in (1, 2, 3)]))
        for view in ("sessions", "users", "count"):
            self.ok(self.client.poll(base, room, view=view))
        self.wait_until(lambda: len(self.events(room, kind="lease.expired")) == 49, 15, "the ends")
        for path in ("/rooms/%s/users/u4/explain", "/rooms/%s/last-seen", "/rooms/%s/leases"):
            self.ok(self.client.get(base, path % room))
        self.ok(self.client.get(base, "/last-seen?user_id=u4&user_id=u5"))

    def test_by_key_the_morning_after(self):
        self.explain_all()
        self.night()
        d = self.start_daemon(ttl_min_ms=500, last_seen_flush_ms=500)
        room = self.room()
        plans = self.logged(lambda: self.morning(d.base, room))
        for words in ("UPDATE stillhere.lease x", "DELETE FROM stillhere.lease", "DELETE FROM stillhere.tombstone",
                      "LEFT JOIN stillhere.room_user u", "DELETE FROM stillhere.room_user", "UPDATE stillhere.room r SET revision",
                      "FROM stillhere.member m", "SKIP LOCKED"):
            self.assertTrue([p for p in plans if words in p], words)
        # Pruning, which looks at few rows in the background, may go through a table while that has one page.
        bad = [p for p in plans if re.search(r"Join Filter: .*_id", p) and "WITH old AS" not in p]
        self.assertFalse(bad, "\n".join(bad))

    def test_what_is_too_old_is_asked_of_an_index(self):
        """Not read and judged row by row: there are days of it, and the sweeper looks every few seconds."""
        d = self.start_daemon()
        self.q("INSERT INTO stillhere.event (room_id, revision, event_id, kind, at, user_id, user_sessions)"
               " SELECT 'kept', n, 'e:kept:' || n, 'user.online', now(), 'u', 1 FROM generate_series(1, 20000) n")
        self.q("INSERT INTO stillhere.tombstone (room_id, user_id, session_id, revision, reason, ended_at, event_id)"
               " SELECT 'kept', 'u', n, 1, 'closed', now(), n FROM generate_series(1, 20000) n")
        self.q("INSERT INTO stillhere.room (room_id, revision) VALUES ('kept', 20000)")
        self.stop_now(d)
        for table in ("event", "tombstone"):
            self.q("VACUUM ANALYZE stillhere." + table)
        self.explain_all()
        plans = self.logged(lambda: (self.start_daemon(), self.pause(6)))
        for words, column in (("FROM stillhere.event WHERE at <", "at"), ("FROM stillhere.tombstone WHERE ended_at <", "ended_at")):
            found = [p for p in plans if words in p]
            self.assertTrue(found, words)
            for plan in found:
                self.assertRegex(plan, r"Index Cond: \(%s < " % column)

    def test_a_users_leases_in_all_rooms_go_by_user(self):
        self.explain_all()
        d = self.start_daemon(max_leases_per_user=10)
        room = self.room()
        plans = self.logged(lambda: self.batch(d, room, 0))
        counts = [p for p in plans if "WHERE l.user_id" in p]
        self.assertTrue(counts, plans)
        for plan in counts:
            self.assertRegex(plan, r"Index (Only )?Scan using lease_user on lease")
