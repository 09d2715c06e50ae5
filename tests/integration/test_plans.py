# SPDX-License-Identifier: Apache-2.0
"""How PostgreSQL reaches the rows of a batch: by key, in the order of the batch, whatever it believes of the table."""

import re

from harness.case import Case, lease


class Plans(Case):
    autostart = False

    def explained(self, d, room):
        """Renews fifty leases. @return the plans of the statement that did it, from PostgreSQL's log"""
        since = self.pg.log_size()
        self.ok(self.client.batch(d.base, [lease(room, "u%d" % i, "s") for i in range(50)]))
        with open(self.pg.log, "rb") as f:
            f.seek(since)
            text = f.read().decode("utf-8", "replace")
        found = re.findall(r"Query Text: UPDATE stillhere\.lease AS l SET revision.*?(?=\n\d{4}-|\Z)", text, re.DOTALL)
        self.assertTrue(found, "no plan in the log:\n" + text[-2000:])
        return found

    def test_renewals_go_by_key_when_vacuum_has_seen_no_row(self):
        for setting in ("session_preload_libraries = auto_explain", "auto_explain.log_min_duration = 0"):
            self.pg.psql("postgres", 'ALTER DATABASE "%s" SET %s' % (self.database, setting))
        first = self.start_daemon()
        self.q("VACUUM ANALYZE stillhere.lease")
        self.assertEqual(self.q("SELECT reltuples FROM pg_class WHERE oid = 'stillhere.lease'::regclass"), "0")
        self.q("ALTER TABLE stillhere.lease SET (autovacuum_enabled = off)")
        room = self.room("early")
        self.ok(self.client.batch(first.base, [lease(room, "u%d" % i, "s") for i in range(50)]))
        for plan in self.explained(first, room):
            self.assertRegex(plan, r"Function Scan on i\b.*\n.*Index Scan using lease_pkey on lease l\b.*\n\s+Index Cond")
            self.assertNotIn("Join Filter", plan)
