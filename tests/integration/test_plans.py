# SPDX-License-Identifier: Apache-2.0
"""How PostgreSQL reaches the rows of a batch: by key, in the order of the batch, whatever it believes of the table."""

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

    def test_a_users_leases_in_all_rooms_go_by_user(self):
        self.explain_all()
        d = self.start_daemon(max_leases_per_user=10)
        room = self.room()
        plans = self.logged(lambda: self.batch(d, room, 0))
        counts = [p for p in plans if "WHERE l.user_id" in p]
        self.assertTrue(counts, plans)
        for plan in counts:
            self.assertRegex(plan, r"Index (Only )?Scan using lease_user on lease")
