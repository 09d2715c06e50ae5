# SPDX-License-Identifier: Apache-2.0
"""When users were last seen: the tables of the batch writer, and the replies that never lag behind (CONTRACT §5)."""

import re

from harness.case import RFC3339, SLOW, Case, instant, json, quote, sql, threading, time

FLUSHES = "stillhere_last_seen_flushes_total"
#: A statement of the writer, as PostgreSQL logs it.
STATEMENT = re.compile(r"execute last_seen_(users|rooms)\b")


def ids_query(users):
    return "/last-seen?" + "&".join("user_id=" + quote(u) for u in users)


class Seen(Case):
    """Helpers."""

    def column(self, user):
        """What is written down for a user, seconds, or None."""
        text = self.q("SELECT to_json(last_seen_at) FROM stillhere.user_last_seen WHERE user_id = %s" % sql(user))
        return instant(json.loads(text)) if text else None

    def columns(self, like):
        text = self.q("SELECT coalesce(json_object_agg(user_id, last_seen_at), '{}') FROM stillhere.user_last_seen"
                      " WHERE user_id LIKE %s" % sql(like))
        return {user: instant(at) for user, at in json.loads(text).items()}

    def in_room(self, room):
        text = self.q("SELECT coalesce(json_object_agg(user_id, last_seen_at), '{}') FROM stillhere.room_last_seen"
                      " WHERE room_id = %s" % sql(room))
        return {user: instant(at) for user, at in json.loads(text).items()}

    def user(self, user, base=None):
        return self.ok(self.client.get(base or self.base, "/users/%s/presence" % quote(user)))

    def listed(self, *users, base=None):
        return self.ok(self.client.get(base or self.base, ids_query(users)))["users"]

    def renew_all(self, room, users, ttl_ms=60000, base=None):
        """A heartbeat for each. @return user -> renewed_at, seconds"""
        out = {}
        for at in range(0, len(users), 500):
            items = [{"room_id": room, "user_id": u, "session_id": "s", "ttl_ms": ttl_ms} for u in users[at:at + 500]]
            for result in self.ok(self.client.batch(base or self.base, items))["results"]:
                self.assertEqual(result["decision"], "accepted")
                out[result["lease"]["user_id"]] = instant(result["lease"]["renewed_at"])
        return out

    def as_new(self, written, renewed, slack=0.002):
        """Whether every time is written, to the millisecond that replies are cut to."""
        return all(written.get(u, 0) >= at - slack for u, at in renewed.items())


class Replies(Seen):
    """The writer writes nothing by itself within this class: what replies say comes from the leases."""

    instances = 2
    config = {"ttl_min_ms": 100, "last_seen_flush_ms": 3600000}

    def test_a_user_across_rooms(self):
        user, rooms = "u/" + self.room(), [self.room("b"), self.room("a"), self.room("é")]
        self.assertEqual({k: v for k, v in self.user(user).items() if k != "server_time"},
                         {"user_id": user, "online": False, "rooms": [], "sessions": 0, "last_seen_at": None,
                          "last_seen_ago_ms": None})
        for room in rooms:
            self.grant(room, "one", user=user)
        last = self.grant(rooms[0], "two", user=user)
        for base in self.bases:
            document = self.user(user, base)
            self.assertEqual(document["rooms"], sorted(rooms, key=lambda r: r.encode()))
            self.assertEqual([document["online"], document["sessions"]], [True, 4])
            self.assertEqual(document["last_seen_at"], last["lease"]["renewed_at"])
            self.assertRegex(document["server_time"], RFC3339)
            ago = instant(document["server_time"]) - instant(document["last_seen_at"])
            self.near(document["last_seen_ago_ms"] / 1000, ago - 0.0021, ago + 0.0021, "the same clock for both")

    def test_only_live_leases_are_online_but_all_are_seen(self):
        """An expired lease that no sweep has ended yet: held by a lock, as a sweep would meet it."""
        room, user = self.room(), "held-" + self.room()
        answer = self.ok(self.hb(self.base, room, user, "s", 1, 400))
        lock = self.psql()
        lock.run("BEGIN")
        lock.run("SELECT 1 FROM stillhere.lease WHERE room_id = %s FOR UPDATE" % sql(room))
        self.pause(0.6)
        self.assertIsNotNone(self.stored(room, "s", user))
        document = self.user(user)
        self.assertEqual([document["online"], document["rooms"], document["sessions"]], [False, [], 0])
        self.assertEqual(document["last_seen_at"], answer["lease"]["renewed_at"])
        self.assertGreaterEqual(document["last_seen_ago_ms"], 500)
        (entry,) = self.listed(user)
        self.assertEqual([entry["online"], entry["last_seen_at"]], [False, answer["lease"]["renewed_at"]])
        (entry,) = self.ok(self.client.get(self.base, "/rooms/%s/last-seen" % quote(room)))["users"]
        self.assertEqual([entry["online"], entry["last_seen_at"]], [False, answer["lease"]["renewed_at"]])
        lock.run("COMMIT")

    def test_the_last_heartbeat_not_the_end(self):
        """Last seen is when the user was there, not when the lease ran out, was swept or closed."""
        room = self.room()
        expired = self.ok(self.hb(self.base, room, "expires-" + room, "s", 1, 800))
        closed = self.grant(room, "s", user="closes-" + room)
        self.pause(0.3)
        self.ok(self.client.close(self.base, room, "closes-" + room, "s"))
        self.wait_until(lambda: self.events(room, kind="lease.expired"), 5, "the expiry")
        for who, answer in (("expires-", expired), ("closes-", closed)):
            with self.subTest(who=who):
                document = self.user(who + room)
                self.assertEqual([document["online"], document["last_seen_at"]],
                                 [False, answer["lease"]["renewed_at"]])
                self.near(self.column(who + room), instant(answer["lease"]["renewed_at"]) - 0.002,
                          instant(answer["lease"]["renewed_at"]) + 0.002)
                self.assertEqual(self.in_room(room)[who + room], self.column(who + room))

    def test_a_list_in_the_order_asked(self):
        room = self.room()
        names = ["é-" + room, "b&" + room, "a=" + room, "c+" + room]
        for name in names:
            self.grant(room, "s", user=name)
        asked = [names[1], "never-" + room, names[0], names[3], names[1], names[2]]
        entries = self.listed(*asked)
        self.assertEqual([e["user_id"] for e in entries], asked)
        self.assertEqual(entries[1], {"user_id": asked[1], "last_seen_at": None, "last_seen_ago_ms": None,
                                      "online": False})
        self.assertEqual(entries[0], entries[4])
        self.assertTrue(all(e["online"] for e in entries if e is not entries[1]))

    def test_as_many_ids_as_a_request_line_holds(self):
        thousand = ["u%d" % i for i in range(1000)]
        self.assertEqual([e["user_id"] for e in self.listed(*thousand)], thousand)
        self.problem(self.client.get(self.base, ids_query(thousand + ["x"])), 400, "bad_parameter", "user_id")
        uuids = ["%08x-0000-4000-8000-%012x" % (i, i) for i in range(300)]
        self.assertEqual(len(self.listed(*uuids)), 300)
        reply = self.client.get(self.base, ids_query(["%0128d" % i for i in range(200)]), fresh=True)
        self.assertIn(reply.status, (414, 431))
        self.assertLess(reply.seconds, 2 * SLOW)

    def test_many_short_parameters_do_not_hang(self):
        for path in ("/healthz?" + "a&" * 400, "/rooms?" + "&".join(["limit=1"] * 300)):
            reply = self.client.get(self.base, path, fresh=True)
            self.problem(reply, 400, "bad_parameter")
            self.assertLess(reply.seconds, 2 * SLOW)

    def test_what_is_refused(self):
        for query in ("", "?", "?user_id=", "?user_id", "?user_id=a&user_id=", "?user_id=%00", "?user_id=..",
                      "?user_id=a&limit=1", "?user=a", "?user_id=%ff", "?user_id=" + "x" * 129, "?user_id=a%0ab"):
            with self.subTest(query=query):
                self.problem(self.client.get(self.base, "/last-seen" + query), 400)
        room = "/rooms/%s/last-seen" % quote(self.room())
        for query in ("?limit=0", "?limit=1001", "?limit=x", "?limit=1&limit=2", "?after=", "?after=x", "?after=1-zz",
                      "?after=-616e", "?user_id=a", "?after=1-00"):
            with self.subTest(query=query):
                self.problem(self.client.get(self.base, room + query), 400, "bad_parameter")
        self.problem(self.client.get(self.base, "/users/%00/presence"), 400)
        self.problem(self.client.get(self.base, "/users/an/presence?x=1"), 400)
        self.problem(self.client.request(self.base, "PUT", "/last-seen"), 405)

    # -- of a room -----------------------------------------------------------------------------------------------------

    def pages(self, room, limit):
        """All pages in order. @return their users"""
        out, after = [], ""
        while True:
            document = self.ok(self.client.get(self.base, "/rooms/%s/last-seen?limit=%d%s" %
                                               (quote(room), limit, after)))
            self.assertRegex(document["server_time"], RFC3339)
            out.append(document["users"])
            if document["next"] is None:
                return out
            self.assertEqual(len(document["users"]), limit)
            after = "&after=" + document["next"]

    def test_a_room_newest_first_and_in_pages(self):
        room = self.room()
        self.assertEqual(self.pages(room, 10), [[]])
        names = ["u%02d" % i for i in range(23)]
        for name in names:
            self.grant(room, "s", user=name)
        self.grant(room, "other", user="u05")  # comes to the front, and is listed once
        self.ok(self.client.close(self.base, room, "u07", "s"))  # offline, and keeps its place
        expected = ["u05"] + [n for n in reversed(names) if n != "u05"]
        for limit in (1, 4, 23, 1000):
            with self.subTest(limit=limit):
                users = [u for page in self.pages(room, limit) for u in page]
                self.assertEqual([u["user_id"] for u in users], expected)
                self.assertEqual([u["user_id"] for u in users if not u["online"]], ["u07"])
                ages = [u["last_seen_ago_ms"] for u in users]
                self.assertEqual(ages, sorted(ages))

    def test_pages_are_stable_where_times_are_equal(self):
        room = self.room()
        names = ["é", "z", "a", "A", "b c", "%", "0"] + ["n%d" % i for i in range(20)]
        values = ", ".join("(%s, %s, '2026-01-01 00:00:00.123456+00')" % (sql(room), sql(n)) for n in names)
        self.q("INSERT INTO stillhere.room_last_seen VALUES " + values)
        expected = sorted(names, key=lambda n: n.encode())
        for limit in (1, 2, 5, 26, 27):
            with self.subTest(limit=limit):
                self.assertEqual([u["user_id"] for page in self.pages(room, limit) for u in page], expected)

    def test_online_in_another_room_only(self):
        room, user = self.room(), "moves-" + self.room()
        self.grant(room, "s", user=user)
        self.ok(self.client.close(self.base, room, user, "s"))
        elsewhere = self.grant(self.room("else"), "s", user=user)
        (entry,) = self.pages(room, 10)[0]
        self.assertFalse(entry["online"])
        self.assertLess(instant(entry["last_seen_at"]), instant(elsewhere["lease"]["renewed_at"]))
        self.assertTrue(self.listed(user)[0]["online"])

    def test_head_and_the_clients_time(self):
        room, user = self.room(), "clock-" + self.room()
        self.ok(self.hb(self.base, room, user, "s", 1, 60000, client_time="2099-01-01T00:00:00Z"))
        self.problem(self.hb(self.base, room, user, "s", 2, 60000, last_seen="2099-01-01T00:00:00Z"), 400)
        self.assertLess(self.user(user)["last_seen_ago_ms"], 5000 * SLOW)
        self.assertTrue(self.user(user)["last_seen_at"] < "2099")
        reply = self.client.request(self.base, "HEAD", "/users/%s/presence" % quote(user))
        self.assertEqual([reply.status, reply.body], [200, b""])

    def test_the_view(self):
        room, user = self.room(), "view-" + self.room()
        answer = self.grant(room, "s", user=user)
        row = "SELECT to_json(v) FROM stillhere.last_seen v WHERE user_id = %s" % sql(user)
        shown = json.loads(self.q(row))
        self.assertIsNone(self.column(user))  # not written down yet: the lease says it
        self.near(instant(shown["last_seen_at"]), instant(answer["lease"]["renewed_at"]) - 0.001,
                  instant(answer["lease"]["renewed_at"]) + 0.001)
        self.assertTrue(shown["online"])
        self.ok(self.client.close(self.base, room, user, "s"))
        self.assertEqual(json.loads(self.q(row)), dict(shown, online=False))

    def test_single_users_are_found_by_index(self):
        self.q("ANALYZE stillhere.lease")
        plan = self.q("SET enable_seqscan = off; EXPLAIN SELECT * FROM stillhere.last_seen WHERE user_id = 'x';"
                      " RESET enable_seqscan")
        self.assertIn("lease_user", plan)
        self.assertIn("user_last_seen_pkey", plan)
        self.assertNotIn("Seq Scan", plan)
        # No index on what a flush changes.
        self.assertEqual(self.q("SELECT indexdef FROM pg_indexes WHERE schemaname = 'stillhere'"
                                " AND indexdef LIKE '%last_seen_at%'"), "")


class Writer(Seen):
    """The batch writer at a short interval."""

    instances = 1
    weight = 6
    config = {"ttl_min_ms": 100, "last_seen_flush_ms": 2000, "decision_log": "off"}

    def flushes(self):
        return int(self.metrics(self.base)[FLUSHES])

    def test_one_statement_per_table_and_flush(self):
        """1000 users renew all the time: every two seconds each table is written once, and never backwards."""
        self.q("ALTER DATABASE \"%s\" SET log_statement = 'all'" % self.database)
        self.addCleanup(self.q, "ALTER DATABASE \"%s\" RESET log_statement" % self.database)
        d = self.start_daemon()  # one whose connections log
        self.addCleanup(self.stop_now, d)
        room, users = self.room(), ["m%04d" % i for i in range(1000)]
        mark, began = self.pg.log_size(), time.monotonic()
        before = {}
        while time.monotonic() - began < 9:
            renewed = self.renew_all(room, users, base=d.base)
            now = self.columns("m%")
            for user, at in before.items():
                self.assertGreaterEqual(now[user], at, user)
            before = now
        seconds = time.monotonic() - began
        self.wait_until(lambda: self.as_new(self.columns("m%"), renewed), 5, "the last flush")
        self.assertEqual(self.in_room(room), self.columns("m%"))
        flushes = int(self.metrics(d.base)[FLUSHES])
        self.near(flushes, 3 if SLOW == 1 else 1, (seconds + 5 * SLOW) / 2 + 2, "flushes")
        statements = [m.group(1) for line in self.pg.log_lines(mark, self.database) for m in [STATEMENT.search(line)]
                      if m]
        self.assertEqual(statements.count("users"), flushes)
        self.assertEqual(statements.count("rooms"), flushes)

    def test_a_plain_flush(self):
        room = self.room()
        renewed = self.renew_all(room, [room + "-%d" % i for i in range(100)])
        self.wait_until(lambda: self.as_new(self.columns(room + "%"), renewed), 5, "the flush")
        self.assertEqual(set(self.in_room(room)), set(renewed))
        self.wait_until(lambda: self.metrics(self.base)["stillhere_last_seen_lag_seconds"] == 0, 5, "a lag of nothing")
        flushes = self.flushes()
        self.pause(2.5)
        self.assertEqual(self.flushes(), flushes, "nothing new, and yet it was flushed")

    def test_sessions_and_rooms_of_one_user_in_one_flush(self):
        """Many sightings of one user are one row, and the newest of them; each room has its own newest."""
        user, rooms, renewed = self.room(), [self.room("a"), self.room("b")], {}
        for turn in range(10):
            for room in rooms:
                self.pause(0.02)  # so that one is newer by more than what replies are cut to
                for session in ("s", "t"):
                    renewed[room] = instant(self.grant(room, session, user=user)["lease"]["renewed_at"])
        newest = max(renewed.values())
        self.wait_until(lambda: (self.column(user) or 0) >= newest - 0.002, 5, "the flush")
        self.near(self.column(user), newest - 0.002, newest + 0.002)
        for room in rooms:
            self.wait_until(lambda: self.as_new(self.in_room(room), {user: renewed[room]}), 5, "the flush of the room")
            self.near(self.in_room(room)[user], renewed[room] - 0.002, renewed[room] + 0.002)

    def test_only_forward(self):
        room = self.room()
        self.q("INSERT INTO stillhere.user_last_seen VALUES (%s, '2099-01-01 00:00:00+00')" % sql(room))
        self.q("INSERT INTO stillhere.room_last_seen VALUES (%s, %s, '2099-01-01 00:00:00+00')" % (sql(room), sql(room)))
        self.renew_all(room, [room, room + "-2"])
        self.wait_until(lambda: self.column(room + "-2"), 5, "the flush")
        self.assertEqual(self.q("SELECT extract(year FROM last_seen_at) FROM stillhere.user_last_seen"
                                " WHERE user_id = %s" % sql(room)), "2099")
        self.assertEqual(self.q("SELECT extract(year FROM last_seen_at) FROM stillhere.room_last_seen"
                                " WHERE user_id = %s" % sql(room)), "2099")

    def test_a_locked_row_holds_up_neither_heartbeats_nor_other_users(self):
        room = self.room()
        users = [room + "-%02d" % i for i in range(50)]
        self.renew_all(room, users)
        self.wait_until(lambda: len(self.columns(room + "%")) == 50, 5, "the first flush")
        lock = self.psql()
        lock.run("BEGIN")
        lock.run("SELECT 1 FROM stillhere.user_last_seen WHERE user_id = %s FOR UPDATE" % sql(users[20]))
        held = self.column(users[20])
        renewed, slow, until = {}, [], time.monotonic() + 6
        while time.monotonic() < until:
            for user in users[15:25]:
                reply = self.hb(self.base, room, user, "s", None, 60000)
                renewed[user] = instant(self.ok(reply)["lease"]["renewed_at"])
                slow.append(reply.seconds)
            self.pause(0.05)
        slow.sort()
        self.assertLess(slow[len(slow) * 99 // 100], 0.25 * SLOW, "a heartbeat waited for the locked row")
        others = {u: at for u, at in renewed.items() if u != users[20]}
        self.wait_until(lambda: self.as_new(self.columns(room + "%"), others), 8, "the others")
        self.assertEqual(self.column(users[20]), held)
        self.assertGreater(self.metrics(self.base)["stillhere_last_seen_failures_total"], 0)
        self.near(self.metrics(self.base)["stillhere_last_seen_lag_seconds"], 1, 60 * SLOW, "the lag says so")
        lock.run("COMMIT")
        # Merged back, and written without another heartbeat.
        self.wait_until(lambda: self.as_new(self.columns(room + "%"), renewed), 8, "the held one")

    def test_a_failed_flush_is_tried_again(self):
        room = self.room()
        lock = self.psql()
        lock.run("BEGIN")
        lock.run("LOCK TABLE stillhere.user_last_seen IN SHARE MODE")
        failures = lambda: self.metrics(self.base)["stillhere_last_seen_failures_total"]
        before = failures()
        renewed = self.renew_all(room, [room + "-%d" % i for i in range(5)])
        # All five together, and in halves until each stood alone.
        self.wait_until(lambda: failures() >= before + 9, 12, "the failures")
        self.assertEqual(self.columns(room + "%"), {})
        lock.run("COMMIT")
        self.wait_until(lambda: self.as_new(self.columns(room + "%"), renewed), 12, "the next flush")

    def test_a_row_that_cannot_be_written_is_left_out(self):
        self.allow_log = [r"statement last_seen_rooms failed"]
        room = self.room()
        self.q("ALTER TABLE stillhere.room_last_seen ADD CONSTRAINT no_poison CHECK (user_id NOT LIKE '%-poison')")
        self.addCleanup(self.q, "ALTER TABLE stillhere.room_last_seen DROP CONSTRAINT no_poison")
        poison = room + "-poison"
        renewed = self.renew_all(room, [room + "-%02d" % i for i in range(99)] + [poison])
        del renewed[poison]
        self.wait_until(lambda: self.as_new(self.in_room(room), renewed), 8, "99 of 100")
        log = self.daemons[0].text()
        self.assertEqual(log.count("cannot be written"), 1)
        self.pause(3)
        self.assertEqual(self.daemons[0].text().count("cannot be written"), 1, "it is tried for ever")
        # The constraint's violations in PostgreSQL's log are this test's own.
        type(self).pg_mark = self.pg.log_size()

    def test_two_instances_and_ends_of_leases_do_not_meet_in_a_deadlock(self):
        """Flushes of two instances and the ends of the same users' leases, in different rooms and orders."""
        second = self.start_daemon(last_seen_flush_ms=100)
        third = self.start_daemon(last_seen_flush_ms=100)
        self.addCleanup(self.stop_now, second)
        self.addCleanup(self.stop_now, third)
        users = ["%s-%03d" % (self.room("u"), i) for i in range(200)]
        rooms = [self.room("z"), self.room("a")]
        wrong, stop = [], threading.Event()

        def client(n):
            order = users if n % 2 else users[::-1]
            base = (second, third)[n % 2].base
            while not stop.is_set():
                items = [{"room_id": rooms[(n + i) % 2], "user_id": u, "session_id": "s%d" % n, "ttl_ms": 60000}
                         for i, u in enumerate(order)]
                if self.client.batch(base, items).status != 200:
                    wrong.append("batch")
                for i, u in enumerate(order[::20]):
                    reply = self.client.close(base, rooms[(n + i * 20) % 2], u, "s%d" % n)
                    if reply.status != 200:
                        wrong.append(reply)

        threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        self.pause(5)
        stop.set()
        for t in threads:
            t.join()
        self.assertEqual(wrong[:3], [])
        # check_after() looks for "deadlock detected" in PostgreSQL's log.


class Hot(Seen):
    """Flushes touch no index. In a database of its own: whatever else has a transaction open in the same one keeps the
    versions of before from being pruned, and pages full."""

    config = {"last_seen_flush_ms": 100, "decision_log": "off"}

    def updates(self, table):
        """Updates of a table so far, and how many of them were HOT."""
        self.q("SELECT pg_stat_clear_snapshot()")
        return [int(n) for n in self.q("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = "
                                       "'stillhere' AND relname = '%s'" % table).split("|")]

    def test_flushes_stay_hot(self):
        for table in ("user_last_seen", "room_last_seen"):  # an ANALYZE would be such a transaction
            self.q("ALTER TABLE stillhere.%s SET (autovacuum_enabled = off)" % table)
        room, users = self.room(), ["h%04d" % i for i in range(500)]
        self.renew_all(room, users)
        self.wait_until(lambda: len(self.columns("h%")) == 500, 5, "the first flush")
        before = {t: self.updates(t) for t in ("user_last_seen", "room_last_seen")}
        for _ in range(20):
            renewed = self.renew_all(room, users)
            self.wait_until(lambda: self.as_new(self.columns("h%"), renewed), 5, "a flush")

        def told():  # a backend reports with the end of a transaction, once a second at most
            self.renew_all(room, users[:1])
            self.pause(0.3)
            return all(self.updates(t)[0] >= before[t][0] + 10000 for t in before)
        self.wait_until(told, 20, "the statistics")
        for table, (updates, hot) in before.items():
            more, more_hot = self.updates(table)
            # Others on the machine may delay what frees a page; with an index on the time it would be none at all.
            self.assertGreater((more_hot - hot) / (more - updates), 0.7, table)


class Stops(Seen):
    """Nothing is lost by a stop or a crash."""

    autostart = False
    config = {"last_seen_flush_ms": 30000, "ttl_min_ms": 100}

    def test_sigterm_flushes(self):
        d = self.start_daemon()
        room = self.room()
        renewed = self.renew_all(room, [room + "-%03d" % i for i in range(100)], base=d.base)
        self.stop_now(d)
        self.assertTrue(self.as_new(self.columns(room + "%"), renewed))
        self.assertEqual(self.in_room(room), self.columns(room + "%"))

    def test_sigterm_does_not_wait_for_a_lock(self):
        d = self.start_daemon()
        room = self.room()
        users = [room + "-%03d" % i for i in range(100)]
        self.q("INSERT INTO stillhere.user_last_seen VALUES (%s, '2026-01-01 00:00:00+00')" % sql(users[50]))
        renewed = self.renew_all(room, users, base=d.base)
        lock = self.psql()
        lock.run("BEGIN")
        lock.run("SELECT 1 FROM stillhere.user_last_seen WHERE user_id = %s FOR UPDATE" % sql(users[50]))
        began = time.monotonic()
        self.stop_now(d)
        self.assertLess(time.monotonic() - began, 4 * SLOW)
        lock.run("COMMIT")
        # What was not written is in the lease.
        d = self.start_daemon()
        entries = self.listed(*users, base=d.base)
        self.assertEqual({e["user_id"]: instant(e["last_seen_at"]) for e in entries}, renewed)
        self.stop_now(d)

    def test_after_a_kill_the_reply_is_as_new_as_the_last_accepted_heartbeat(self):
        d = self.start_daemon()
        room = self.room()
        users = [room + "-%03d" % i for i in range(50)]
        renewed, stop = {}, threading.Event()

        def client(part):
            while not stop.is_set():
                for user in part:
                    try:
                        reply = self.client.hb(d.base, room, user, "s", None, 60000)
                    except OSError:
                        return
                    except Exception:  # a reply that was cut off
                        return
                    if reply.status == 200:
                        renewed[user] = instant(reply["lease"]["renewed_at"])

        threads = [threading.Thread(target=client, args=(users[n::4],)) for n in range(4)]
        for t in threads:
            t.start()
        self.pause(1.5)
        d.kill()
        stop.set()
        for t in threads:
            t.join()
        self.forget(d)
        self.assertEqual(len(renewed), 50)
        # The first flush comes at a random moment, perhaps in this one: but what it wrote is old by now.
        self.assertFalse(self.as_new(self.columns(room + "%"), renewed))
        d = self.start_daemon()
        for entry in self.listed(*users, base=d.base):
            self.assertGreaterEqual(instant(entry["last_seen_at"]), renewed[entry["user_id"]], entry)
        self.stop_now(d)
