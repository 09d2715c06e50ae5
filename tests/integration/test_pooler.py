# SPDX-License-Identifier: Apache-2.0
"""Behind a pooler that gives a session to somebody else after each transaction, with a direct connection for LISTEN."""

from harness.case import SLOW, Case, lease, steps, time
from harness.pgbouncer import Pgbouncer

#: What the sessions of PostgreSQL that a pooler holds say about themselves.
SETTINGS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "search_path", "jit",
            "plan_cache_mode", "enable_seqscan", "enable_hashjoin", "synchronous_commit", "default_transaction_isolation")


class Pooled(Case):
    """Two instances behind one pooler, with fewer sessions than they have connections."""

    instances = 2
    config = {"ttl_min_ms": 100, "offline_grace_ms": 500}
    weight = 3
    autostart = False
    pooler_settings = {"default_pool_size": 4}
    direct_listen = True
    ready = "/readyz"

    @classmethod
    def begin(cls):
        super().begin()
        cls.pooler = Pgbouncer(cls.pg, cls.directory, **cls.pooler_settings).start()
        cls.pg.psql("postgres", "ALTER DATABASE \"%s\" SET statement_timeout = '77s'" % cls.database)
        for _ in range(cls.instances):
            cls.start_pooled(wait=False)
        for d in cls.daemons:
            d.wait_ready(path=cls.ready)

    @classmethod
    def start_pooled(cls, **more):
        user = "stillhere_app" if cls.runtime_role else "postgres"
        if cls.direct_listen:
            more.setdefault("database_listen_url", cls.pg.url(cls.database, user))
        return cls.start_daemon(database_url=cls.pooler.url(cls.database, user), **more)

    @classmethod
    def finish(cls):
        fault = super().finish()
        cls.pooler.stop()
        return fault

    def sessions(self):
        """What every session of the pool is set to now: {setting: values}. Asked over the pool, so in use meanwhile."""
        rows = [self.pooler.psql(self.database, "SELECT concat_ws('|', %s);" %
                                 ", ".join("current_setting('%s')" % s for s in SETTINGS)) for _ in range(6)]
        return {name: {row.split("|")[i] for row in rows} for i, name in enumerate(SETTINGS)}


class Path(Pooled):

    def test_the_way_of_a_lease(self):
        """Joins, renewals, an expiry, a close and a revocation, seen by watchers of both instances."""
        room = self.room()
        polls = [self.parked(base, room, 0) for base in self.bases]
        first = self.grant(room, "a", 1)
        self.assertTrue(first["granted"])
        for poll in polls:
            events = self.ok(self.answer(poll))["events"]
            self.assertEqual(steps(events), [(1, "lease.granted", "a"), (2, "user.online", None)])
        for revision in range(2, 30):
            answer = self.ok(self.hb(self.bases[revision % 2], room, "u", "a", revision, 60000))
            self.assertEqual((answer["decision"], answer["granted"]), ("accepted", False))
        self.assertEqual(self.ok(self.hb(self.base, room, "u", "a", 29))["decision"], "already_applied")
        self.problem(self.hb(self.base, room, "u", "a", 5), 409, "ignored_old_revision")
        self.grant(room, "short", 1, 800, user="v")
        self.wait_until(lambda: self.events(room, kind="lease.expired"), 0.8 + 3, "the expiry")
        self.assertEqual(self.ok(self.client.close(self.bases[1], room, "u", "a"))["decision"], "accepted")
        self.wait_until(lambda: len(self.events(room, kind="user.offline")) == 2, 5, "the ends of the graces")
        self.grant(room, "b", 1, user="w")
        members = "/rooms/%s/members/w" % room
        reply = self.client.request(self.base, "DELETE", members)
        self.assertEqual(reply.status, 200, reply)
        for base in self.bases:
            self.problem(self.hb(base, room, "w", "b", 9), 403, "membership_revoked")
            snapshot = self.ok(self.poll(base, room))
            self.assertEqual((snapshot["revision"], snapshot["users"]), (self.head(room), []))
            self.assertEqual([e["revision"] for e in self.ok(self.poll(base, room, 0))["events"]],
                             list(range(1, self.head(room) + 1)))
        self.assertEqual(len({self.ok(self.poll(base, room))["epoch"] for base in self.bases}), 1)

    def test_batches_and_clients_at_once(self):
        """More clients than sessions in the pool: nothing that was prepared is missed, nobody sees another's answer."""
        room, revisions = self.room(), 60

        def client(i):
            wrong = []
            for revision in range(1, revisions + 1):
                items = [lease(room, "u%d" % i, "s%d" % k, revision, 60000, {"n": revision} if k == 0 else None)
                         for k in range(3)]
                reply = self.client.batch(self.bases[(i + revision) % 2], items)
                if reply.status != 200:
                    wrong.append(repr(reply))
                    continue
                for k, result in enumerate(reply["results"]):
                    got = result.get("lease", {})
                    if (got.get("user_id"), got.get("session_id"), got.get("revision")) != ("u%d" % i, "s%d" % k, revision):
                        wrong.append(result)
                if revision % 20 == 0:
                    self.ok(self.poll(self.bases[i % 2], room, view="count"))
                    self.ok(self.client.get(self.base, "/last-seen?user_id=u%d" % i))
            return wrong

        self.assertEqual([f.result(90 * SLOW) for f in [self.background(client, i) for i in range(8)]], [[]] * 8)
        self.assertEqual(self.q("SELECT count(*), min(revision), max(revision) FROM stillhere.lease WHERE room_id = '%s'" %
                                room), "24|%d|%d" % (revisions, revisions))
        kinds = [e["kind"] for e in self.events(room)]
        self.assertEqual((kinds.count("lease.granted"), kinds.count("user.online")), (24, 8))

    def test_cursors_between_instances(self):
        room = self.room()
        self.grant(room, "pen", 1)
        watch = self.background(self.client.get, self.bases[1], "/rooms/%s/cursors?since=0" % room, fresh=True)
        self.pause(0.3)
        self.wait_until(lambda: self.client.request(
            self.bases[0], "POST", "/rooms/%s/cursors" % room, body='{"user_id":"u","session_id":"pen","data":{"x":1}}',
            headers={"Content-Type": "application/json"}).status == 202 and watch.done(), 10, "the cursor")
        self.assertEqual(self.ok(watch.result(5))["cursors"][0]["data"], {"x": 1})

    def test_attendance_and_migrations(self):
        room = self.room()
        reply = self.client.request(self.base, "POST", "/rooms/%s/attendance" % room, fresh=True,
                                    body='{"user_id":"u","action":"sign_in"}',
                                    headers={"Content-Type": "application/json", "Idempotency-Key": "k1"})
        self.assertEqual(reply.status, 201, reply)
        self.assertGreater(self.count("schema_migration"), 5)  # by a daemon that knew nothing but the pooler

    def test_settings_are_ours_and_nobody_elses(self):
        """What a transaction needs it brings along; what others have set, or find afterwards, is theirs."""
        room = self.room()
        self.grant(room, "s", 1)
        for name, values in self.sessions().items():
            own = {"statement_timeout": {"77s"}, "lock_timeout": {"0"}, "search_path": {'"$user", public'},
                   "plan_cache_mode": {"auto"}, "enable_seqscan": {"on"}, "enable_hashjoin": {"on"},
                   "idle_in_transaction_session_timeout": {"0"}}
            self.assertEqual(values, own.get(name, values), name)
        # A neighbour behind the same pooler that leaves its mess behind.
        for _ in range(8):
            self.pooler.psql(self.database, "SET synchronous_commit = off; SET TimeZone = 'Asia/Tokyo'; SET search_path = "
                             "nowhere; SET statement_timeout = 1; SET enable_indexscan = off; "
                             "SET default_transaction_isolation = 'serializable';")
        before = self.grant(room, "s", 2)
        for i in range(20):
            base = self.bases[i % 2]
            answer = self.ok(self.hb(base, room, "u", "s", 3 + i, 60000))
            self.assertGreater(answer["lease"]["expires_at"], before["lease"]["renewed_at"])
            self.assertTrue(self.ok(self.hb(base, room, "u", "new%d" % i, 1, 60000))["granted"])
            self.assertEqual(self.ok(self.poll(base, room, view="count"))["counts"]["users"], 1)
        # The lock of another is given up after the writer's own time, and holds up no other.
        psql = self.psql()
        psql.run("BEGIN")
        psql.run("SELECT 1 FROM stillhere.lease WHERE room_id = '%s' AND session_id = 'new0' FOR UPDATE" % room)
        held = self.background(self.hb, self.base, room, "u", "new0", 2, fresh=True)
        self.pause(0.3)
        free = self.hb(self.base, room, "u", "new1", 2)
        self.assertEqual(free.status, 200)
        self.assertLess(free.seconds, 2.5 * SLOW)
        psql.run("COMMIT")
        self.assertEqual(held.result(10 * SLOW).status, 200)

    def test_nothing_is_prepared(self):
        self.grant(self.room(), "s", 1)
        left = {self.pooler.psql(self.database, "SELECT count(*) FROM pg_prepared_statements;") for _ in range(6)}
        self.assertEqual(left, {"0"})

    def test_an_outage_is_credited(self):
        """The pooler away, for both."""
        room, ttl = self.room(), 4000
        self.allow_5xx, self.allow_log = True, [r"."]
        self.grant(room, "here", 1, ttl)
        self.pooler.stop()
        self.pause(ttl / 1000 + 2)
        self.pooler.start()
        self.wait_until(lambda: self.hb(self.base, room, "u", "here", 2, 60000).status == 200, 10, "a heartbeat")
        self.wait_until(lambda: all(d.status("/readyz") == 200 for d in self.daemons), 10, "readiness")
        self.assertEqual(steps(self.events(room)), [(1, "lease.granted", "here"), (2, "user.online", None)])


class Discarding(Pooled):
    """A pooler that resets the session after every transaction as well."""

    instances = 1
    pooler_settings = {"default_pool_size": 2, "server_reset_query": "DISCARD ALL", "server_reset_query_always": 1}

    def test_the_thin_path(self):
        room = self.room()
        for revision in range(1, 20):
            self.grant(room, "s", revision)
        self.grant(room, "other", 1, 500)
        self.wait_until(lambda: self.events(room, kind="lease.expired"), 4, "the expiry")
        self.assertEqual(self.ok(self.client.close(self.base, room, "u", "s"))["decision"], "accepted")


class Deaf(Pooled):
    """Without a direct connection: said clearly, and polled for."""

    direct_listen = False
    ready = "/healthz"

    @classmethod
    def begin(cls):
        super().begin()
        cls.allowed_log = [r"LISTEN does not work"]

    def test_it_is_said_and_nothing_is_late(self):
        self.allow_5xx = True
        for d in self.daemons:
            self.wait_until(lambda: "LISTEN does not work" in d.text(), 8, "the word in the log")
            self.assertIn("database_listen_url", d.text())
            ready = self.client.get(d.base, "/readyz")
            self.assertEqual(ready.status, 503)
            self.assertRegex(ready.body.decode(), "listen|notif")
        room = self.room()
        self.grant(room, "a", 1)
        poll = self.parked(self.bases[1], room, 2)
        began = time.monotonic()
        self.grant(room, "b", 1)
        self.assertEqual(steps(self.ok(self.answer(poll, 10))["events"]), [(3, "lease.granted", "b")])
        self.assertLess(time.monotonic() - began, 3 * SLOW)
        for i in range(3):
            head = self.grant(room, "c%d" % i, 1)["room_revision"]
            self.assertEqual(self.ok(self.poll(self.bases[1], room))["revision"], head)
