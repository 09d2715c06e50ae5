# SPDX-License-Identifier: Apache-2.0
"""What others do in the same database, and what many clients do at once that none of them does alone."""

import json

from harness import LONG
from harness.case import SLOW, Case, Wire, lease, time
from harness.process import rss_mib
from test_database_faults import Hog

#: By how much memory may grow. A sanitizer keeps what was freed for a while.
MOST_MIB = 30 if SLOW == 1 else 400


def get(path):
    return ("GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path).encode()


class Database(Case):
    """Sessions of others in the database."""

    config = {"ttl_min_ms": 100, "offline_grace_ms": 500}
    own_cluster = True  # the queue of notifications is the cluster's, and others' listeners hold back its end
    weight = 4

    def load(self, room, seconds):
        """Heartbeats with and without events, and polls. @return what was not 200"""
        odd, end = [], time.monotonic() + seconds
        n = 0
        while time.monotonic() < end:
            n += 1
            for reply in (self.hb(self.base, room, "u", "s", None, 60000),
                          self.hb(self.base, room, "u", "m", None, 60000, {"n": n}), self.poll(self.base, room)):
                if reply.status != 200:
                    odd.append(reply)
        return odd

    def test_columns_that_come_and_change_type(self):
        """A plan whose result would change is made anew, and no request is lost by it."""
        loads = [self.background(self.load, self.room("l%d" % i), 4 * SLOW) for i in range(4)]
        self.pause(0.5)
        for table in ("lease", "event", "room", "room_user"):
            self.q("ALTER TABLE stillhere.%s ADD COLUMN zz int" % table)
            self.pause(0.2)
            self.q("ALTER TABLE stillhere.%s ALTER COLUMN zz TYPE bigint" % table)
            self.pause(0.2)
            self.q("ALTER TABLE stillhere.%s DROP COLUMN zz" % table)
        for load in loads:
            self.assertEqual(load.result(30 * SLOW), [])

    def test_a_listener_that_stands_in_a_transaction(self):
        """The queue of notifications fills behind it: heartbeats go on, our listener never does the same, and it is told."""
        psql = self.psql()
        psql.run("LISTEN stillhere")
        psql.run("BEGIN")
        psql.run("SELECT 1")
        room = self.room()
        for i in range(10):
            self.ok(self.client.batch(self.base, [lease("%s-%d-%d" % (room, i, k), "u", "s") for k in range(200)]))
        self.wait_until(lambda: self.metrics(self.base)["stillhere_notification_queue_usage"] > 0, 10, "the gauge")
        self.assertEqual(self.q("SELECT DISTINCT state FROM pg_stat_activity WHERE application_name = "
                                "'stillhered listener' AND datname = current_database()"), "idle")
        psql.run("COMMIT")
        self.wait_until(lambda: self.metrics(self.base)["stillhere_notification_queue_usage"] < 1e-6, 10, "its fall")

    def test_an_old_snapshot(self):
        """A transaction that has stood for long keeps dead rows: everything goes on."""
        psql = self.psql()
        psql.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
        psql.run("SELECT count(*) FROM stillhere.lease")
        room = self.room()
        for turn in range(20):
            self.ok(self.client.batch(self.base, [lease(room, "u%d" % i, "s", None, 1500) for i in range(200)]))
        began = time.monotonic()
        self.wait_until(lambda: len(self.events(room, kind="lease.expired")) == 200, 1.5 + 2 + 3, "the expiries")
        self.assertLess(time.monotonic() - began, (1.5 + 2 + 3) * SLOW)
        psql.run("COMMIT")


class Sessions(Case):
    """Many sessions of one person."""

    config = {"ttl_min_ms": 100, "offline_grace_ms": 500}

    def test_reloads_leave_no_orphans(self):
        room = self.room()
        self.ok(self.client.batch(self.base, [lease(room, "u", "s%d" % i, 1, 2000) for i in range(50)]))
        until = time.monotonic() + 4.5
        revision = 1
        while time.monotonic() < until:
            revision += 1
            self.grant(room, "s49", revision, 2000)
            self.pause(0.4)
        ended = [e["session_id"] for e in self.events(room, kind="lease.expired")]
        self.assertEqual(sorted(ended), sorted("s%d" % i for i in range(49)))
        self.assertEqual(self.events(room, kind="user.offline"), [])
        self.assertEqual(self.count("lease", room_id=room), 1)

    def test_two_devices_do_not_fight(self):
        room = self.room()
        for i in range(15):
            self.grant(room, "phone", meta={"status": "online"})
            self.grant(room, "laptop", meta={"status": "away"})
        kinds = [e["kind"] for e in self.events(room)]
        self.assertEqual(kinds, ["lease.granted", "user.online", "lease.granted"])

    def test_renewals_at_the_very_moment_of_the_expiry(self):
        """Whatever was accepted is there, or has ended at that revision or a later one."""
        room, told = self.room(), {}

        def client(number):
            session, revision = "s%02d" % number, 0
            end = time.monotonic() + 6
            while time.monotonic() < end:
                revision += 1
                reply = self.hb(self.base, room, "u%d" % number, session, revision, 500)
                self.assertEqual(reply.status, 200, reply)
                told[session] = revision
                time.sleep(0.5 + ((number * 7 + revision * 3) % 11 - 5) * 0.01)

        for future in [self.background(client, i) for i in range(20)]:
            future.result(30 * SLOW)
        stored = dict(line.split("|") for line in self.q(
            "SELECT session_id, revision FROM stillhere.lease WHERE room_id = '%s' UNION ALL SELECT session_id, revision "
            "FROM stillhere.tombstone t WHERE room_id = '%s' AND NOT EXISTS (SELECT FROM stillhere.lease l WHERE l.room_id "
            "= t.room_id AND l.user_id = t.user_id AND l.session_id = t.session_id)" % (room, room)).splitlines())
        self.assertEqual({s: r for s, r in told.items() if int(stored[s]) < r}, {})
        events = self.events(room)
        for session in told:
            steps = [e["kind"] for e in events if e["session_id"] == session and e["kind"].startswith("lease.")]
            self.assertEqual(steps, (["lease.granted", "lease.expired"] * len(steps))[:len(steps)], session)


class Large(Case):
    """Requests of a thousand leases, and somebody beside them with one."""

    config = {"ttl_min_ms": 100, "offline_grace_ms": 500}
    weight = 2

    def beside(self, items):
        """Three clients send the batch twice each. @return how long they took, and the heartbeats of another, worst
        last"""
        room, ttl, took, waits = self.room(), 60000, [], []

        def client(number):
            for turn in range(2):
                began = time.monotonic()
                reply = self.client.batch(self.base, items(number, turn), timeout=60 * SLOW)
                self.assertEqual(reply.status, 200, reply)
                took.append(time.monotonic() - began)

        self.grant(room, "s", None, ttl)
        clients = [self.background(client, i) for i in range(3)]
        while not all(c.done() for c in clients):
            began = time.monotonic()
            reply = self.hb(self.base, room, "u", "s", None, ttl)
            waits.append(time.monotonic() - began)
            self.assertEqual(reply.status, 200, reply)
            if SLOW == 1:  # a sanitizer makes the database's part a real wait
                self.assertEqual(reply.json()["lease"]["ttl_ms"], ttl)
        for c in clients:
            c.result()
        return sorted(took), sorted(waits)

    def test_one_lease_hundreds_of_times(self):
        """Each time is a round trip; they are spread over many transactions, and come out in their order."""
        room = self.room()
        before = self.metrics(self.base)["stillhere_batches_total"]
        took, waits = self.beside(lambda number, turn: [
            lease(room, "u%d" % number, "s", turn * 400 + i + 1, 60000, {"i": i}) for i in range(400)])
        self.assertGreater(self.metrics(self.base)["stillhere_batches_total"] - before, 2 * 400 / 8)
        # In one transaction the other's heartbeat would take as long as they do.
        self.assertLess(waits[len(waits) // 2], took[0] / 5)
        self.assertEqual(self.q("SELECT DISTINCT revision FROM stillhere.lease WHERE room_id = '%s'" % room), "800")

    def test_a_thousand_leases(self):
        room = self.room()
        took, waits = self.beside(lambda number, turn: [
            lease(room, "u%d-%d-%d" % (number, turn, i), "s", 1, 60000) for i in range(1000)])
        self.assertEqual(self.count("lease", room_id=room), 6000)
        self.assertLess(waits[len(waits) // 2], took[len(took) // 2])


    def crowd(self, base, room, ttl, n):
        """Sends as many requests of one lease, a thousand times each. @return their connections, open"""
        body = json.dumps({"leases": [lease(room, "crowd", "s", None, ttl)] * 1000}).encode()
        head = "PUT /leases HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        wires = [Wire(base) for _ in range(n)]
        for wire in wires:
            wire.send(head.encode() + body)
        return wires

    def test_a_stop_with_a_crowd_in_the_queue(self):
        """What cannot be done in time is given back, and the rest of the stop has its time: last-seen is written."""
        self.allow_5xx = True
        d = self.start_daemon(last_seen_flush_ms=60000)
        room = self.room()
        self.ok(self.hb(d.base, room, "seen", "s"))
        wires = self.crowd(d.base, room, 60000, 40)
        self.pause(0.5)
        self.stop_now(d)
        for wire in wires:
            wire.close()
        self.assertNotIn("took too long", d.tail(50))
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.user_last_seen WHERE user_id = 'seen'"), "1")

    def test_a_crowd_that_names_one_lease_and_goes(self):
        """Nobody waits for what it has left behind, nobody's ttl is stretched by it, and it is given up at its deadline."""
        room, ttl = self.room(), 60000
        self.grant(room, "s", None, ttl)
        crowd = self.crowd(self.base, room, ttl, 40)
        self.pause(1)
        for wire in crowd:
            wire.close()

        def beside(seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                reply = self.hb(self.base, room, "u", "s", None, ttl)
                self.assertEqual((reply.status, reply.json()["lease"]["ttl_ms"]), (200, ttl))
                time.sleep(0.02)

        beside(6 * SLOW)
        undecided = 'stillhere_heartbeats_total{decision="unavailable"}'
        before = self.metrics(self.base)[undecided]
        self.assertGreater(before, 0, "the crowd was too small")
        beside(2)
        self.assertEqual(self.metrics(self.base)[undecided], before)


class Memory(Case):
    """What strangers name must not stay in memory."""

    own_cluster = True
    weight = 3

    def test_rooms_that_nobody_is_in(self):
        each = 25000 if LONG else 2500

        def ask(first):
            with Wire(self.base) as wire:
                for i in range(first, first + each, 50):
                    wire.send(b"".join(get("/rooms/nobody-%d/presence" % k) for k in range(i, i + 50)))
                    for _ in range(50):
                        self.assertEqual(wire.reply(20).status, 200)
        ask(0)
        before = rss_mib(self.daemons[0])
        for future in [self.background(ask, each * (k + 1)) for k in range(4)]:
            future.result(120 * SLOW)
        self.assertLess(rss_mib(self.daemons[0]) - before, MOST_MIB)

    def test_rooms_that_somebody_was_in(self):
        """Each with a lease, and never asked for again: what is kept is when they were seen, until it is written."""
        each, sizes, d = 20000 if LONG else 1000, [], self.start_daemon(last_seen_flush_ms=500)
        for turn in range(6):
            items = [lease("was-%d-%d" % (turn, i), "u%d" % i, "s", 1, 3600000) for i in range(each)]
            for at in range(0, each, 1000):
                self.ok(self.client.batch(d.base, items[at:at + 1000]))
            sizes.append(rss_mib(d))
        self.assertLess(sizes[-1] - sizes[0], MOST_MIB / 3, sizes)
        self.stop_now(d)

    def test_heartbeats_while_the_database_is_away(self):
        self.allow_5xx, self.allow_log = True, [r"."]
        self.grant(self.room())
        self.forget_query()
        self.pg.stop("immediate")
        seconds = 300 if LONG else 8
        end = time.monotonic() + seconds
        before, n = rss_mib(self.daemons[0]), [0]

        def client(number):
            turn = 0
            while time.monotonic() < end:
                turn += 1
                reply = self.client.batch(self.base, [lease("away", "u-%d-%d-%d" % (number, turn, i), "s")
                                                      for i in range(200)])
                self.assertIn(reply.status, (200, 503))
                n[0] += 200

        clients = [self.background(client, i) for i in range(8)]
        self.pause(seconds / 2)
        halfway = rss_mib(self.daemons[0])
        for future in clients:
            future.result(seconds + 60 * SLOW)
        after = rss_mib(self.daemons[0])
        self.pg.start()
        self.daemons[0].wait_ready()
        self.assertGreater(n[0], 1000)
        self.assertLess(rss_mib(self.daemons[0]) - before, MOST_MIB)
        self.assertLess(after - halfway, MOST_MIB / 3, "it goes on growing")


class Crowded(Case):
    """PostgreSQL has no connection left when the daemon starts."""

    own_cluster = True
    autostart = False

    def test_started_while_there_is_no_room(self):
        self.allow_5xx, self.allow_log = True, [r"."]
        for setting in ("max_connections = 30", "superuser_reserved_connections = 0"):
            self.pg.psql("postgres", "ALTER SYSTEM SET " + setting)
        self.pg.stop()
        self.pg.start()
        hog = Hog(self.pg)
        try:
            self.wait_until(lambda: len(hog.held) > 10, 20, "a full house")
            d = self.start_daemon(wait=False)
            self.pause(3)
            self.assertTrue(d.alive())
            self.assertEqual(d.status("/healthz"), 200)
            self.assertEqual(d.status("/readyz"), 503)
        finally:
            hog.release()
        self.wait_until(lambda: d.status("/readyz") == 200, 10, "readiness")
        self.stop_now(d)


class KeptAlive(Case):
    def test_a_connection_that_rests(self):
        """Longer than what balancers keep open (60 s) with --long, and in any case beyond a request's deadline."""
        with Wire(self.base) as wire:
            for _ in range(2):
                wire.send(get("/healthz"))
                self.assertEqual(wire.reply(10).status, 200)
                time.sleep(65 if LONG else 17)
            wire.send(get("/healthz"))
            self.assertEqual(wire.reply(10).status, 200)
