# SPDX-License-Identifier: Apache-2.0
"""The database goes, hangs, comes back; instances are stopped, killed, frozen (CONTRACT §10)."""

import glob
import os
import signal

from harness.case import SLOW, Case, Flock, lease, presence_path, random, steps, time
from harness.roles import SCRIPT

#: An error in the log is right while the database is away.
ANY = [r"."]


class Outage(Case):
    """A cluster of its own, two instances."""

    own_cluster = True
    instances = 2
    weight = 6

    def setUp(self):
        super().setUp()
        self.allow_5xx = True
        self.allow_log = ANY

    def unavailable(self, reply, seconds=5):
        """Demands a 503 that says when to come again, in time."""
        self.problem(reply, 503)
        self.assertRegex(reply.headers["retry-after"], r"^[1-9]\d*$")
        self.assertLess(reply.seconds, (seconds + 0.5) * SLOW)

    def recovered(self, seconds=10):
        self.wait_until(lambda: all(d.status("/readyz") == 200 for d in self.daemons), seconds, "readiness")
        room = self.room("after")
        for i, base in enumerate(self.bases):
            self.wait_until(lambda: self.hb(base, room, "u", "s%d" % i).status == 200, seconds, "a heartbeat")

    def test_a_stopped_database(self):
        room = self.room()
        self.grant(room, "s", 1)
        self.pg.stop("immediate")
        try:
            calls = [(self.hb, "u", "s", 2), (self.client.close, "u", "s"),
                     (lambda base, room, **more: self.client.get(base, "/rooms/%s/leases" % room, **more),)]
            futures = [self.background(call, base, room, *args, fresh=True) for call, *args in calls
                       for base in self.bases]
            batch = self.background(self.client.batch, self.base, [lease(room, "u", "s", 2)])
            for base in self.bases:
                health = self.client.get(base, "/healthz")
                self.assertEqual(health.status, 200)
                self.assertLess(health.seconds, 0.5 * SLOW)
                self.assertEqual(self.client.get(base, "/readyz").status, 503)
                self.assertEqual(self.metrics(base)["stillhere_database_up"], 0)
            for future in futures:
                self.unavailable(future.result(30 * SLOW))
            batch = batch.result(30 * SLOW)
            self.assertTrue(batch.status == 503 or batch["results"][0]["status"] == 503, batch)
        finally:
            self.pg.start()
            self.forget_query()
        self.recovered()
        self.assertEqual(self.grant(room, "s", 2)["granted"], False)
        self.assertEqual(self.metrics(self.base)["stillhere_database_up"], 1)

    def test_a_poll_parked_through_an_outage(self):
        room = self.room()
        self.grant(room, "a", 1)
        poll = self.parked(self.bases[0], room, 2, wait_ms=30000)
        self.pg.stop("fast")
        self.pause(1.0)
        self.pg.start()
        self.forget_query()
        self.wait_until(lambda: self.hb(self.bases[1], room, "u", "b", 1).status == 200, 10, "a heartbeat")
        answer = self.ok(self.answer(poll, 12))
        self.assertEqual(steps(answer["events"]), [(3, "lease.granted", "b")])
        self.recovered()

    def test_a_database_that_hangs(self):
        room = self.room()
        self.grant(room, "s", 1)
        self.pg.freeze(True)
        try:
            futures = [self.background(self.hb, base, room, "u", "s%d" % i, 1, fresh=True)
                       for i in range(10) for base in self.bases]
            self.pause(0.5)
            for base in self.bases:
                health = self.client.get(base, "/healthz")
                self.assertEqual(health.status, 200)
                self.assertLess(health.seconds, 0.5 * SLOW)
            for future in futures:
                self.unavailable(future.result(30 * SLOW))
            self.unavailable(self.hb(self.base, room, "u", "s", 2))
        finally:
            self.pg.freeze(False)
        self.recovered(15)
        self.assertEqual(self.grant(room, "s", 3)["lease"]["revision"], 3)

    def test_started_while_the_database_is_away(self):
        self.pg.stop("fast")
        d = self.start_daemon(wait=False)
        try:
            d.wait_ready(path="/healthz")
            self.assertEqual(d.status("/readyz"), 503)
            self.unavailable(self.hb(d.base, self.room(), "u", "s", 1))
            self.pause(1.0)
            self.assertTrue(d.alive())
        finally:
            self.pg.start()
            self.forget_query()
        d.wait_ready(10)
        self.grant(self.room(), base=d.base)
        self.recovered()
        self.stop_now(d)

    def test_stopped_while_the_database_is_away(self):
        d = self.start_daemon()
        self.pg.stop("immediate")
        try:
            self.background(self.hb, d.base, self.room(), "u", "s", 1, fresh=True)
            self.pause(0.2)
            began = time.monotonic()
            self.assertIsNone(d.stop())
            self.assertLess(time.monotonic() - began, 10 * SLOW)
            self.forget(d)
        finally:
            self.pg.start()
            self.forget_query()
        self.recovered()

    def test_a_database_that_has_become_read_only(self):
        room = self.room()
        self.grant(room, "s", 1)
        name = self.database
        cut = ("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '%s' AND "
               "pid <> pg_backend_pid()" % name)
        self.pg.psql("postgres", 'ALTER DATABASE "%s" SET default_transaction_read_only = on' % name)
        self.pg.psql("postgres", cut)
        self.forget_query()
        self.pause(0.3)
        for base in self.bases:
            self.unavailable(self.hb(base, room, "u", "s", 2))
            self.assertEqual(self.client.get(base, "/readyz").status, 503)
        self.pg.psql("postgres", 'ALTER DATABASE "%s" RESET default_transaction_read_only' % name)
        self.recovered(5)
        self.assertEqual(self.grant(room, "s", 2)["granted"], False)

    def test_connections_that_have_become_read_only(self):
        """As after a demotion that leaves the connections standing: they are given up, and new ones are made."""
        room = self.room()
        self.grant(room, "s", 1)
        self.pg.psql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on")
        self.pg.psql("postgres", "SELECT pg_reload_conf()")
        try:
            self.pause(0.5)
            for base in self.bases:
                self.unavailable(self.hb(base, room, "u", "s", 2))
                self.wait_until(lambda: self.client.get(base, "/readyz").status == 503, 5, "not ready")
        finally:
            self.pg.psql("postgres", "ALTER SYSTEM RESET default_transaction_read_only")
            self.pg.psql("postgres", "SELECT pg_reload_conf()")
        self.recovered(5)
        self.assertEqual(self.grant(room, "s", 2)["granted"], False)

    def test_acknowledged_means_durable(self):
        """The moment the last of many answers arrives the database crashes: all is there afterwards."""
        room = self.room()
        # A careless administrator does not change that.
        self.pg.psql("postgres", 'ALTER DATABASE "%s" SET synchronous_commit = off' % self.database)
        d = self.start_daemon()
        futures = [self.background(self.hb, d.base, room, "u%d" % i, "s", i + 1, 600000, fresh=True)
                   for i in range(100)]
        answers = [f.result(30 * SLOW) for f in futures]
        self.pg.stop("immediate")
        self.pg.start()
        self.forget_query()
        for answer in answers:
            self.assertEqual(answer.status, 200)
        stored = dict(line.split("|") for line in self.q("SELECT user_id, revision FROM stillhere.lease WHERE room_id = "
                                                         "'%s'" % room).splitlines())
        self.assertEqual(stored, {"u%d" % i: str(i + 1) for i in range(100)})
        events = self.events(room)
        self.assertEqual([e["revision"] for e in events], list(range(1, 201)))
        self.assertEqual([e["kind"] for e in events], ["lease.granted", "user.online"] * 100)
        self.assertEqual([e["user_id"] for e in events[0::2]], [e["user_id"] for e in events[1::2]])
        self.pg.psql("postgres", 'ALTER DATABASE "%s" RESET synchronous_commit' % self.database)
        self.recovered()
        self.assertEqual(self.grant(room, "later", 1)["room_revision"], 202)
        self.stop_now(d)

    def test_a_crash_under_load_loses_no_acknowledged_revision(self):
        room, stop = self.room(), time.monotonic() + 4

        def client(i):
            best = revision = 0
            while time.monotonic() < stop:
                revision += 1
                reply = self.hb(self.bases[i % 2], room, "u", "s%d" % i, revision, 600000)
                if reply.status == 200:
                    best = revision
                else:
                    self.unavailable(reply)
                    self.pause(0.05)
            return best

        futures = [self.background(client, i) for i in range(8)]
        for _ in range(2):
            self.pause(1.0)
            self.pg.stop("immediate")
            self.pg.start()
        self.forget_query()
        for i, future in enumerate(futures):
            best = future.result(60 * SLOW)
            self.assertGreater(best, 0)
            self.assertGreaterEqual(self.stored(room, "s%d" % i)["revision"], best)
        events = self.events(room)
        self.assertEqual([e["revision"] for e in events], list(range(1, 10)))
        self.assertEqual([e["kind"] for e in events], ["lease.granted", "user.online"] + ["lease.granted"] * 7)
        self.recovered()

    def test_a_statement_timeout_poisons_nothing(self):
        """A role with short timeouts and a locked row: that heartbeat fails or waits, the next ones pass."""
        room = self.room()
        self.grant(room, "locked", 1)
        timeouts = {"statement_timeout": "200ms", "idle_in_transaction_session_timeout": "1ms", "lock_timeout": "5ms"}
        for name, value in timeouts.items():
            self.pg.psql("postgres", 'ALTER DATABASE "%s" SET %s = \'%s\'' % (self.database, name, value))
        d = self.start_daemon()
        psql = self.psql()
        for name in timeouts:
            psql.run("SET %s = 0" % name)
        psql.run("BEGIN")
        psql.run("SELECT 1 FROM stillhere.lease WHERE room_id = '%s' AND session_id = 'locked' FOR UPDATE" % room)
        held = self.background(self.hb, d.base, room, "u", "locked", 2, fresh=True)
        self.pause(2.0)
        psql.run("COMMIT")
        reply = held.result(20 * SLOW)
        self.assertIn(reply.status, (200, 503))
        for i in range(200):
            self.assertEqual(self.hb(d.base, room, "u", "free%d" % i, 1).status, 200)
        self.assertEqual(steps(self.events(room)), [(1, "lease.granted", "locked"), (2, "user.online", None)] +
                         [(i + 3, "lease.granted", "free%d" % i) for i in range(200)])
        self.assertEqual(self.count("lease", room_id=room), 201)
        for name in timeouts:
            self.pg.psql("postgres", 'ALTER DATABASE "%s" RESET %s' % (self.database, name))
        self.stop_now(d)


class Instances(Case):
    """Several instances that start, stop, die and freeze."""

    instances = 2
    config = {"ttl_min_ms": 100}
    weight = 4

    def test_sigterm_with_five_hundred_parked_polls(self):
        room = self.room()
        self.grant(room, "a", 1)
        d = self.start_daemon()
        flock = Flock(d.base, [presence_path(room, 2)] * 500)
        self.wait_until(lambda: self.waiting(d.base) == 500, 10, "500 parked polls")
        began = time.monotonic()
        d.terminate()
        replies = flock.collect(10 * SLOW)
        self.assertEqual([r for r in replies if r in (None, "closed")], [], "each gets a whole answer")
        for reply, _ in replies:
            self.assertEqual(reply.status, 200)
            self.assertIn(reply.json()["mode"], ("unchanged", "events"))
            self.assertEqual(reply.json()["revision"], 2)
        self.assertIsNone(d.stop())
        self.assertLess(time.monotonic() - began, 10 * SLOW)
        self.assertEqual(d.complaints([]), [])
        self.forget(d)
        flock.close()

    def test_sigterm_under_load_tells_the_truth(self):
        room, d = self.room(), self.start_daemon()

        def client(i):
            best = revision = 0
            while True:
                revision += 1
                try:
                    reply = self.hb(d.base, room, "u", "s%d" % i, revision)
                except OSError:
                    return best
                except Exception as e:  # a connection that was closed
                    return best if "Remote" in type(e).__name__ or "BadStatus" in type(e).__name__ else repr(e)
                if reply.status == 200:
                    best = revision
                else:
                    self.assertEqual(reply.status, 503)

        self.allow_5xx = True
        futures = [self.background(client, i) for i in range(16)]
        self.pause(1.0)
        self.assertIsNone(d.stop())
        self.assertEqual(d.complaints([]), [])
        self.forget(d)
        for i, future in enumerate(futures):
            best = future.result(30 * SLOW)
            self.assertGreater(best, 0)
            self.assertGreaterEqual(self.stored(room, "s%d" % i)["revision"], best)

    def test_draining_is_not_ready(self):
        room = self.room()
        self.grant(room, "a", 1)
        d = self.start_daemon()
        self.assertEqual(d.status("/readyz"), 200)
        d.terminate()
        self.wait_until(lambda: d.status("/readyz") != 200, 5, "the end of readiness")
        self.stop_now(d)

    def test_sigint_stops_as_well(self):
        d = self.start_daemon()
        d.terminated = True
        d.process.send_signal(signal.SIGINT)
        self.stop_now(d)

    def test_a_second_signal_means_at_once(self):
        """Also while requests that cannot end hold up the first one; nothing is lost that was acknowledged."""
        room, d = self.room(), self.start_daemon()
        self.grant(room, "s", 1, base=d.base)
        psql = self.psql()
        psql.run("BEGIN")
        psql.run("SELECT 1 FROM stillhere.lease WHERE room_id = '%s' FOR UPDATE" % room)
        self.background(self.hb, d.base, room, "u", "s", 2, fresh=True)
        self.pause(0.2)
        d.terminate()
        self.wait_until(lambda: d.status("/healthz") is None or "stopping" in d.text(), 5, "the stop")
        d.process.send_signal(signal.SIGTERM)
        d.process.wait(2 * SLOW)
        # Threads that were not joined are the meaning of it: ThreadSanitizer's word for that is no fault.
        self.assertIn(d.process.returncode, (0, 1, 66))
        self.assertEqual([line for line in d.complaints([])
                          if "thread leak" not in line and "ThreadSanitizer: reported" not in line], [])
        self.forget(d)
        psql.run("COMMIT")
        self.assertGreaterEqual(self.stored(room, "s")["revision"], 1)

    def test_sighup_ends_nothing(self):
        d = self.start_daemon()
        d.process.send_signal(signal.SIGHUP)
        d.process.send_signal(signal.SIGPIPE)
        self.pause(0.3)
        self.grant(self.room(), base=d.base)
        self.stop_now(d)

    def test_several_migrate_an_empty_database_at_once(self):
        migrations = len(glob.glob(os.path.join(os.path.dirname(SCRIPT), "0*.sql")))
        for round_ in range(2):
            name = self.database + "_empty%d" % round_
            self.pg.create_database(name)
            daemons = [self.start_daemon(wait=False, database=name) for _ in range(4)]
            try:
                for d in daemons:
                    d.wait_ready()
                for i, d in enumerate(daemons):
                    self.grant("r", "s%d" % i, base=d.base)
                self.assertEqual(self.pg.psql(name, "SELECT number, count(*) FROM stillhere.schema_migration "
                                              "GROUP BY number ORDER BY number"),
                                 "\n".join("%d|1" % (n + 1) for n in range(migrations)))
            finally:
                for d in daemons:
                    self.stop_now(d)
                self.pg.drop_database(name)

    def test_a_database_that_is_newer_is_refused(self):
        name = self.database + "_newer"
        self.pg.create_database(name)
        d = self.start_daemon(database=name)
        self.stop_now(d)
        columns = self.pg.psql(name, "SELECT string_agg(column_name, ',') FROM information_schema.columns WHERE "
                               "table_schema = 'stillhere' AND table_name = 'schema_migration'")
        self.assertIn("number", columns)
        others = [c for c in columns.split(",") if c != "number"]
        self.pg.psql(name, "INSERT INTO stillhere.schema_migration (number%s) SELECT 9999%s FROM "
                     "stillhere.schema_migration WHERE number = 1" % ("".join("," + c for c in others),
                                                                      "".join("," + c for c in others)))
        d = self.start_daemon(wait=False, database=name)
        self.wait_until(lambda: not d.alive(), 10, "the refusal")
        self.assertNotIn(d.process.returncode, (0, -6, -11))
        self.assertIn("9999", d.text())
        self.forget(d)
        self.pg.drop_database(name)

    def test_kill_9_of_one_instance_changes_nothing_for_the_other(self):
        room, d = self.room(), self.start_daemon()
        answers = [self.grant(room, "s%d" % i, i + 1, 2000, base=d.base) for i in range(20)]
        self.assertEqual([a["room_revision"] for a in answers], list(range(2, 22)))
        poll = self.parked(self.base, room, 21)
        stop = time.monotonic() + 1.0
        futures = [self.background(self.renewals, d.base, room, "k%d" % i, stop) for i in range(8)]
        self.pause(0.3)
        d.process.kill()
        d.process.wait()
        self.forget(d)
        for i, future in enumerate(futures):
            best = future.result(20 * SLOW)
            self.assertGreaterEqual(self.stored(room, "k%d" % i, "k")["revision"], best)
        self.ok(self.answer(poll, 5))
        self.assertEqual(self.grant(room, "s0", 21, 60000)["granted"], False)
        self.wait_until(lambda: len(self.events(room, kind="lease.expired", user_id="u")) >= 19, 6, "the expiries")
        self.pause(0.5)
        ended = [e["session_id"] for e in self.events(room, kind="lease.expired")
                 if e["session_id"].startswith("s")]
        self.assertEqual(sorted(ended), sorted(a["lease"]["session_id"] for a in answers[1:]))
        self.assertEqual(sorted((e["user_id"], e["kind"]) for e in self.events(room) if e["kind"].startswith("user.")),
                         [("k", "user.online"), ("u", "user.online")])

    def renewals(self, base, room, session, stop):
        """Renews until the daemon is gone. @return the highest acknowledged revision"""
        best = revision = 0
        while time.monotonic() < stop:
            revision += 1
            try:
                if self.hb(base, room, "k", session, revision, 60000).status == 200:
                    best = revision
            except Exception:
                break
        return best

    def test_a_frozen_instance_leaves_the_sweep_to_others(self):
        room, d = self.room(), self.start_daemon()
        self.grant(room, "gone", 1, 1500, base=d.base)
        self.grant(room, "moves", 1, 3500, base=d.base)
        d.process.send_signal(signal.SIGSTOP)
        try:
            self.wait_until(lambda: self.events(room, kind="lease.expired"), 1.5 + 2 + 1, "the expiry")
            self.assertEqual(self.grant(room, "moves", 2, 60000)["lease"]["revision"], 2)
            self.pause(2.2)
        finally:
            d.process.send_signal(signal.SIGCONT)
        self.pause(2.0)
        events = self.events(room)
        self.assertEqual([e["revision"] for e in events], list(range(1, len(events) + 1)))
        kinds = [(e["kind"], e["session_id"]) for e in events]
        self.assertEqual([k for k in kinds if k[0].startswith("user.")], [("user.online", None)])
        self.assertEqual(kinds.count(("lease.expired", "gone")), 1)
        self.assertLessEqual(kinds.count(("lease.expired", "moves")), 0 if SLOW == 1 else 1)
        self.assertEqual(self.grant(room, "moves", 3, base=d.base)["granted"], False)
        self.assertEqual(self.ok(self.poll(d.base, room))["revision"], self.head(room))
        self.stop_now(d)

    def test_many_rooms_in_opposite_order_make_no_deadlock(self):
        """Batches over the same leases and rooms, in random order, on both instances; deadlocks fail the test."""
        rooms = [self.room() for _ in range(12)]

        def client(seed):
            rng = random.Random(seed)
            for round_ in range(25):
                items = [lease(room, "u", "s%d" % s, None, rng.choice((150, 60000)), {"n": rng.randrange(9)})
                         for room in rooms for s in range(3)]
                rng.shuffle(items)
                reply = self.client.batch(self.bases[seed % 2], items)
                if reply.status != 200:
                    return repr(reply)
                if rng.random() < 0.5:
                    self.client.close(self.bases[seed % 2], rng.choice(rooms), "u", "s0")
            return None

        self.assertEqual([f.result(120 * SLOW) for f in [self.background(client, i) for i in range(8)]], [None] * 8)
        self.assertEqual(self.q("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"), "0")
        for room in rooms:
            revisions = [e["revision"] for e in self.events(room)]
            self.assertEqual(revisions, list(range(1, len(revisions) + 1)))
