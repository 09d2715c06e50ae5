# SPDX-License-Identifier: Apache-2.0
"""What stands in the tables: renewals that leave no dead rows behind, and rows that somebody has changed by hand."""

from harness.case import RFC3339, Case, json, lease, presence_path, quote, sql, steps

#: Times that no clock gives.
ODD = ("infinity", "-infinity", "294276-12-31", "4713-01-01 BC")
#: Columns of the tables that hold what clients wrote or did; the server's own notes (pulse and the like) are not among them.
TIMES = ("lease", "tombstone", "event", "member", "room", "room_user", "user_last_seen", "room_last_seen")


def odd_values(value, path=""):
    """What is no time and no duration, although its name says so. @return their paths and values"""
    if isinstance(value, list):
        return [odd for i, item in enumerate(value) for odd in odd_values(item, "%s[%d]" % (path, i))]
    if not isinstance(value, dict):
        return []
    out = []
    for name, item in value.items():
        where = path + "." + name
        if (name == "at" or name.endswith(("_at", "_since"))) and item is not None:
            out += [] if isinstance(item, str) and RFC3339.match(item) else [(where, item)]
        elif name.endswith("_ms") and item is not None:
            out += [] if type(item) is int and abs(item) < 2 ** 53 else [(where, item)]
        else:
            out += odd_values(item, where)
    return out


class Hot(Case):
    """Renewals touch no index: what each of them changes is in none."""

    config = {"decision_log": "off"}

    def updates(self):
        """Updates of leases so far, and how many of them were HOT."""
        self.q("SELECT pg_stat_clear_snapshot()")
        return [int(n) for n in self.q("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = "
                                       "'stillhere' AND relname = 'lease'").split("|")]

    def test_no_index_has_what_a_renewal_changes(self):
        self.assertEqual(self.q("SELECT indexdef FROM pg_indexes WHERE schemaname = 'stillhere' AND tablename = 'lease' "
                                "AND indexdef ~ '(revision|ttl_ms|renewed_at|expires_at|request_id|meta)'"), "")

    def test_renewals_are_hot(self):
        room, users = self.room(), ["u%04d" % i for i in range(1000)]
        size = "SELECT pg_indexes_size('stillhere.lease')"
        start = self.updates()[0]

        def renew(turns):
            for turn in range(turns):
                results = self.ok(self.client.batch(self.base, [lease(room, u, "s") for u in users]))["results"]
                self.assertEqual({r["decision"] for r in results}, {"accepted"})

        def counts(least):
            def told():  # a backend reports with the end of a transaction, once a second at most
                self.pause(0.3)
                self.grant(room, user=users[0])
                return self.updates()[0] >= start + least
            self.wait_until(told, 15, "the statistics")
            return self.updates()

        renew(6)  # pages that are full at first make room once
        before, (updates, hot) = int(self.q(size)), counts(5000)
        renew(20)
        more, more_hot = counts(25000)
        # A snapshot that somebody holds for a moment delays the pruning of pages; an index on what changes gives 0.
        self.assertGreater((more_hot - hot) / (more - updates), 0.7)
        self.assertLess(int(self.q(size)), 2 * before)


class Times(Case):
    """Times that no clock gives, in every table: replies stay JSON, and others do not notice."""

    config = {"ttl_min_ms": 100, "offline_grace_ms": 3600000, "sweep_interval_ms": 3600000}

    def fill(self, room):
        """A row of each kind."""
        for session in ("here", "closed"):
            self.grant(room, session)
        self.ok(self.client.close(self.base, room, "u", "closed"))
        self.grant(room, "gone", user="leaving")
        self.ok(self.client.close(self.base, room, "leaving", "gone"))
        for user in ("member", "banned"):
            self.ok(self.client.request(self.base, "PUT", self.member(room, user), body='{"role":"r"}',
                                        headers={"Content-Type": "application/json"}))
        self.ok(self.client.request(self.base, "DELETE", self.member(room, "banned")))
        reply = self.client.request(self.base, "POST", "/rooms/%s/attendance" % room, headers={
            "Content-Type": "application/json"}, body='{"user_id":"u","action":"sign_in"}')
        self.assertEqual(reply.status, 201, reply)
        # The last-seen writer comes every five minutes; its rows come now.
        for table, columns in (("user_last_seen", "'%s-seen'" % room), ("room_last_seen", "'%s', '%s-seen'" % (room, room))):
            self.q("INSERT INTO stillhere.%s VALUES (%s, now())" % (table, columns))

    def member(self, room, user):
        return "/rooms/%s/members/%s" % (quote(room), quote(user))

    def spoil(self, room, odd):
        """Writes one time into every column of the room's rows. @return the number of columns"""
        columns = [line.split("|") for line in self.q(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'stillhere' AND data_type = "
            "'timestamp with time zone' AND table_name IN (%s)" % ", ".join(sql(t) for t in TIMES)).splitlines()]
        for table, column in columns:
            which = "user_id LIKE '%s%%'" % room if table == "user_last_seen" else "room_id = %s" % sql(room)
            self.q("UPDATE stillhere.%s SET %s = '%s' WHERE %s AND %s IS NOT NULL" % (table, column, odd, which, column))
        # What is there already cannot be changed.
        self.q("INSERT INTO stillhere.attendance (room_id, user_id, action, at) VALUES (%s, 'u', 'sign_in', '%s')" %
               (sql(room), odd))
        return len(columns)

    def paths(self, room):
        q = quote(room)
        out = [presence_path(room), presence_path(room, view="users"), presence_path(room, 0, wait_ms=0),
               presence_path(room, session_id="here", user_id="u"), "/rooms?prefix=" + q, "/users/u/presence",
               "/users/%s-seen/presence" % q, "/last-seen?user_id=u&user_id=leaving&user_id=%s-seen" % q]
        out += ["/rooms/%s/%s" % (q, rest) for rest in ("leases", "last-seen", "last-seen?limit=1", "members", "members/member",
                                                        "attendance", "attendance?format=jsonl", "attendance?format=csv")]
        return out + ["/rooms/%s/users/%s/explain" % (q, user) for user in ("u", "leaving", "member", "banned", "nobody")]

    def test_every_reply_is_json(self):
        for odd in ODD:
            room = self.room("odd")
            self.fill(room)
            fresh = self.start_daemon()
            self.assertGreater(self.spoil(room, odd), 10)
            for base in (self.base, fresh.base):
                for path in self.paths(room):
                    with self.subTest(odd=odd, path=path):
                        reply = self.client.get(base, path)
                        self.assertEqual(reply.status, 200, reply)
                        for line in reply.body.decode().splitlines() if "jsonl" in path else ():
                            self.assertEqual(odd_values(json.loads(line)), [])
                        if "format" not in path:
                            self.assertEqual(odd_values(reply.json()), [])
            self.stop_now(fresh)

    def test_pages_come_to_an_end(self):
        for odd in ODD:
            room = self.room("odd")
            self.fill(room)
            self.spoil(room, odd)
            found, after = [], ""
            while after is not None:
                with self.subTest(odd=odd, after=after):
                    page = self.ok(self.client.get(self.base, "/rooms/%s/last-seen?limit=1%s" % (room, after)))
                    found += [user["user_id"] for user in page["users"]]
                    self.assertEqual(len(found), len(set(found)))
                after = "&after=" + quote(page["next"]) if page.get("next") else None
            self.assertEqual(sorted(found), ["leaving", room + "-seen", "u"])

    def test_others_go_on(self):
        for odd in ODD:
            room, other = self.room("odd"), self.room("other")
            self.fill(room)
            self.grant(other, "silent", 1, 300)
            self.spoil(room, odd)
            swept = self.start_daemon(sweep_interval_ms=1000)
            with self.subTest(odd=odd):
                self.wait_until(lambda: self.events(other, kind="lease.expired"), 6, "the expiry of another lease")
                self.grant(other, "next", base=swept.base)
                self.grant(room, "here", base=swept.base)
                self.ok(self.client.close(swept.base, room, "u", "here"))
                self.grant(room, "anew", user="anew", base=swept.base)
            self.stop_now(swept)


class SetBack(Case):
    """Numbers that somebody has set back or ahead."""

    config = {"ttl_min_ms": 100}

    def test_a_rooms_revision_is_not_given_out_twice(self):
        """A room that was set back goes on behind its newest event, and its watchers with it."""
        for how in ("UPDATE stillhere.room SET revision = 1", "DELETE FROM stillhere.room"):
            with self.subTest(how=how):
                room = self.room()
                for i in range(5):
                    self.grant(room, "s%d" % i)
                before = self.events(room)
                self.q("%s WHERE room_id = %s" % (how, sql(room)))
                answer = self.grant(room, "new")
                self.ok(self.client.close(self.base, room, "u", "s0"))
                now = self.events(room)
                self.assertEqual(now[:len(before)], before)
                self.assertEqual(steps(now[len(before):]), [(7, "lease.granted", "new"), (8, "session.closed", "s0")])
                self.assertEqual(answer["room_revision"], 7)
                self.assertEqual(self.head(room), 8)

                def seen():
                    reply = self.ok(self.poll(self.base, room, 6, wait_ms=0))
                    return reply["mode"] == "events" and steps(reply["events"]) == steps(now[6:])
                self.wait_until(seen, 5, "the events in a poll")

    def test_ids_of_attendance_may_have_gaps(self):
        room, ids = self.room(), []
        path = "/rooms/%s/attendance" % room
        for i in range(6):
            if i == 3:
                self.q("SELECT count(nextval(pg_get_serial_sequence('stillhere.attendance', 'id'))) FROM "
                       "generate_series(1, 40)")
            reply = self.client.request(self.base, "POST", path, headers={"Content-Type": "application/json"},
                                        body='{"user_id":"u","action":"sign_in"}')
            self.assertEqual(reply.status, 201, reply)
            ids.append(reply["id"])
        self.assertGreater(ids[3] - ids[2], 40)
        found, after = [], 0
        while after is not None:
            page = self.ok(self.client.get(self.base, "%s?limit=2&after=%d" % (path, after)))
            found += [row["id"] for row in page["attendance"]]
            after = page["next"]
        self.assertEqual(found, ids)
