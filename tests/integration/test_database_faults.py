# SPDX-License-Identifier: Apache-2.0
"""Every way in which a database can fail its clients: each is a 503 in time, and over by itself."""

import os
import signal
import socket
import struct
import subprocess
import threading

from harness import LONG
from harness.case import SLOW, Case, lease, steps, time
from harness.proxy import Proxy

HARNESS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "harness")


class Proxied(Case):
    """Instances that reach the database through a proxy; the test reaches it directly."""

    autostart = False
    instances = 2
    config = {"ttl_min_ms": 100}
    weight = 5
    #: Seconds; longer than the leases live.
    away = 8

    @classmethod
    def begin(cls):
        super().begin()
        cls.proxy = Proxy(os.path.join(cls.pg.socket, ".s.PGSQL.5432"))
        user = "stillhere_app" if cls.runtime_role else "postgres"
        for _ in range(cls.instances):
            cls.start_daemon(wait=False, database_url=cls.proxy.url(cls.database, user))
        for d in cls.daemons:
            d.wait_ready()

    @classmethod
    def finish(cls):
        try:
            return super().finish()
        finally:
            cls.proxy.close()

    def setUp(self):
        super().setUp()
        self.allow_5xx = True
        self.allow_log = [r"."]

    # -- what must hold through every fault ----------------------------------------------------------------------------

    def unavailable(self, reply):
        """Demands a 503 that says when to come again, in time."""
        self.problem(reply, 503)
        self.assertRegex(reply.headers["retry-after"], r"^[1-9]\d*$")
        self.assertLess(reply.seconds, 5.5 * SLOW)

    def lives(self, base):
        """What needs no database answers at once."""
        for path in ("/healthz", "/metrics"):
            reply = self.client.get(base, path)
            self.assertEqual(reply.status, 200, reply)
            self.assertLess(reply.seconds, 1.0 * SLOW, path)

    def renewing(self, base, room, session, ttl_ms, stop):
        """Renews until told to stop, as clients do. @return (what was not plain, the last revision that was accepted)"""
        odd, revision, accepted = [], 1, 1
        while not stop:
            reply = self.hb(base, room, "u-" + session, session, revision + 1, ttl_ms)
            revision += 1
            if reply.status == 200:
                # Where the answer to a commit was lost the daemon asks again, and finds it done.
                if reply["granted"] or reply["decision"] not in ("accepted", "already_applied"):
                    odd.append(reply)
                accepted = revision
                time.sleep(0.3)
            else:
                if reply.status != 503 or "retry-after" not in reply.headers or reply.seconds > 5.5 * SLOW:
                    odd.append((reply, reply.seconds))
                time.sleep(0.1)
        return odd, accepted

    def through(self, begin, end, refuses=True, not_ready=True, hold=None, ttl_ms=6000):
        """A life with a fault in it. @a begin and @a end make it and mend it."""
        room, stop = self.room(), []
        here = ["h%d" % i for i in range(6)]
        for s in here:
            self.grant(room, s, 1, ttl_ms, user="u-" + s)
        head = self.head(room)
        polls = [self.parked(base, room, head, wait_ms=40000) for base in self.bases]
        clients = [self.background(self.renewing, self.bases[i % 2], room, s, ttl_ms, stop) for i, s in enumerate(here)]
        self.pause(1.0)
        began = time.monotonic()
        begin()
        try:
            self.during(room, refuses, not_ready)
            self.pause(max(0.0, began + (self.away if hold is None else hold) - time.monotonic()))
        finally:
            end()
        ended = time.monotonic()
        for i, base in enumerate(self.bases):
            self.wait_until(lambda: self.hb(base, room, "new", "n%d" % i, 1, 60000).status == 200, 10, "a heartbeat")
            self.wait_until(lambda: self.client.get(base, "/readyz").status == 200,
                            max(0.1, ended + 10 * SLOW - time.monotonic()) / SLOW, "readiness")
        self.pause(2.5)  # whoever is to be expired wrongly is by now
        stop.append(True)
        for s, client in zip(here, clients):
            odd, accepted = client.result(20 * SLOW)
            self.assertEqual(odd, [])
            self.assertGreaterEqual(self.stored(room, s, "u-" + s)["revision"], accepted)
        self.whole(room, here, polls, head)

    def during(self, room, refuses, not_ready):
        """Inside the fault."""
        calls = [self.background(self.hb, base, room, "x", "x%d" % i, 1, 60000, fresh=True)
                 for base in self.bases for i in range(3)]
        for base in self.bases:
            self.lives(base)
        for call in calls:
            reply = call.result(30 * SLOW)
            if refuses:
                self.unavailable(reply)
            else:
                self.assertIn(reply.status, (200, 503), reply)
                self.assertLess(reply.seconds, 5.5 * SLOW)
        for base in self.bases:
            self.lives(base)
            if not_ready:
                self.wait_until(lambda: self.client.get(base, "/readyz").status == 503, 5, "the end of readiness")
                self.assertEqual(self.metrics(base)["stillhere_database_up"], 0)

    def whole(self, room, here, polls, head):
        """Nobody was expired, nothing is doubled, and the polls have whole answers."""
        events = self.events(room)
        self.assertEqual([e["revision"] for e in events], list(range(1, len(events) + 1)))
        self.assertEqual([e for e in events if e["kind"] == "lease.expired" and e["user_id"] != "x"], [])
        granted = [(e["user_id"], e["session_id"]) for e in events if e["kind"] == "lease.granted"]
        self.assertEqual(len(granted), len(set(granted)))
        self.assertEqual(len({e["event_id"] for e in events}), len(events))
        for poll in polls:
            answer = self.ok(self.answer(poll, 10))
            self.assertIn(answer["mode"], ("events", "unchanged"))
            self.assertEqual([e["revision"] for e in answer["events"]], list(range(head + 1, answer["revision"] + 1)))
        for base in self.bases:
            self.assertEqual(self.ok(self.poll(base, room, 0))["revision"], len(events))


class Unreachable(Proxied):

    def test_reset_and_refused(self):
        self.through(self.proxy.cut, self.proxy.open)

    def test_silent(self):
        """Nothing comes back: neither an answer nor an end, on old connections and new ones."""
        self.through(self.proxy.vanish, self.proxy.appear)

    def test_slow(self):
        """Every message to the database takes two seconds longer: late or refused in time, and no queue behind it."""
        def begin():
            self.proxy.delay = 2.0

        def end():
            self.proxy.delay = 0.0
        # A database that now and then accepts is not away, and credit is given once for each renewal: so a life that is
        # longer than what a batch takes then.
        self.through(begin, end, refuses=False, not_ready=False, hold=12, ttl_ms=30000)

    def test_flapping(self):
        """Resets again and again, for longer than a lease lives."""
        over = threading.Event()

        def resets():
            while not over.wait(0.4):
                self.proxy.reset()

        thread = threading.Thread(target=resets)

        def end():
            over.set()
            thread.join()
        self.through(thread.start, end, refuses=False, not_ready=False)


class ListenerLost(Proxied):
    """LISTEN goes through the proxy, everything else directly."""

    @classmethod
    def start_daemon(cls, wait=True, **config):
        if "database_url" in config:
            config["database_listen_url"] = config.pop("database_url")
        return super().start_daemon(wait, **config)

    def watched(self, seconds, fault):
        """Joins over one instance, seen by a parked poll and by snapshots of the other, while fault() goes on."""
        room = self.room()
        self.grant(room, "s0", 1)
        quiet = self.room("quiet")  # known to the other instance, watched by nobody
        self.grant(quiet, "s", 1)
        self.ok(self.poll(self.bases[1], quiet))
        head, worst, n, until = 2, 0.0, 0, time.monotonic() + seconds
        while time.monotonic() < until:
            n += 1
            poll = self.parked(self.bases[1], room, head, wait_ms=20000)
            fault()
            self.pause(0.3)
            began = time.monotonic()
            self.grant(room, "s%d" % n, 1)
            answer = self.ok(self.answer(poll, 15))
            worst = max(worst, time.monotonic() - began)
            self.assertEqual(steps(answer["events"]), [(head + 1, "lease.granted", "s%d" % n)])
            head = answer["revision"]
            unwatched = self.grant(quiet, "q%d" % n, 1)["room_revision"]
            self.pause(1.3)
            self.assertEqual(self.ok(self.poll(self.bases[1], quiet))["revision"], unwatched, "at most 1 s behind")
        self.assertLess(worst, 2.5 * SLOW)
        return room, n

    def test_terminated_again_and_again(self):
        room, n = self.watched(8, lambda: self.q(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND "
            "application_name = 'stillhered listener'"))
        self.assertGreater(n, 2)
        self.assertEqual(len(self.events(room)), n + 2)
        self.wait_until(lambda: all(d.status("/readyz") == 200 for d in self.daemons), 10, "readiness")

    def test_silent(self):
        self.proxy.silent = True
        try:
            room, n = self.watched(16, lambda: None)
        finally:
            self.proxy.appear()
        self.assertEqual(len(self.events(room)), n + 2)
        self.wait_until(lambda: all(d.status("/readyz") == 200 for d in self.daemons), 10, "readiness")


class Hog:
    """Takes every connection that a cluster has left, and holds it."""

    def __init__(self, pg):
        self.path = os.path.join(pg.socket, ".s.PGSQL.5432")
        self.held, self.over = [], threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _connect(self):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(5)
        s.connect(self.path)
        words = b"user\0postgres\0database\0postgres\0\0"
        s.sendall(struct.pack("!ii", 8 + len(words), 196608) + words)
        data = b""
        while True:
            more = s.recv(4096)
            data += more
            if not more or b"too many clients" in data or b"C53300" in data:
                s.close()
                return None
            if data[-6:-1] == b"Z\0\0\0\5":
                return s

    def _run(self):
        while not self.over.is_set():
            try:
                s = self._connect()
            except OSError:
                s = None
            if s is None:
                time.sleep(0.005)
            else:
                self.held.append(s)

    def release(self):
        self.over.set()
        self.thread.join()
        for s in self.held:
            s.close()


class Full(Proxied):
    """No connection left, and no room on the disk."""

    own_cluster = True

    @classmethod
    def begin(cls):
        super().begin()
        cls.pg.psql("postgres", "ALTER SYSTEM SET max_connections = 40")
        cls.pg.psql("postgres", "ALTER SYSTEM SET superuser_reserved_connections = 0")
        cls.shim = os.path.join(cls.pg.dir, "full_disk.so")
        cls.flag = os.path.join(cls.pg.dir, "full")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", cls.shim, os.path.join(HARNESS, "full_disk.c"), "-ldl"],
                       check=True)
        cls.pg.stop()
        cls.pg.start_with(LD_PRELOAD=cls.shim, FULL_DISK=cls.flag)
        cls.forget_query()
        for d in cls.daemons:
            d.wait_ready()

    def test_no_connection_left(self):
        self.q("SELECT 1")  # the test keeps its own
        hogs = []

        def begin():
            hogs.append(Hog(self.pg))
            ours = "FROM pg_stat_activity WHERE application_name LIKE 'stillhered%'"
            deadline, none = time.monotonic() + 20 * SLOW, 0
            while none < 10:  # one that is being made has no name yet
                none = none + 1 if self.q("SELECT count(pg_terminate_backend(pid)) " + ours) == "0" else 0
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)

        def end():
            hogs[0].release()
        mark = self.pg.log_size()
        self.through(begin, end)
        with open(self.pg.log, "rb") as f:
            f.seek(mark)
            self.assertIn(b"too many clients already", f.read())

    def test_no_room_on_the_disk(self):
        """What needs a new page of a table fails; what is written in place goes on; nothing of it is half done."""
        room, other = self.room(), self.room("other")
        self.grant(other, "s", 1)
        mark = self.pg.log_size()
        open(self.flag, "w").close()
        acknowledged, refused = [], 0
        try:
            deadline = time.monotonic() + 30 * SLOW
            n = 0
            while refused < 3:
                self.assertLess(time.monotonic(), deadline, "the disk did not fill")
                items = [lease(room, "u%d" % (n + i), "s", 1, 600000, {"pad": "x" * 1500}) for i in range(20)]
                n += len(items)
                reply = self.client.batch(self.bases[n // 20 % 2], items)
                self.assertLess(reply.seconds, 6 * SLOW)
                results = reply["results"] if reply.status == 200 else [{"status": reply.status}] * len(items)
                acknowledged += [item["user_id"] for item, r in zip(items, results) if r.get("decision") == "accepted"]
                bad = [r for r in results if r.get("decision") != "accepted"]
                self.assertEqual({r["status"] for r in bad} - {503}, set(), bad[:1])
                refused += bool(bad)
                for base in self.bases:
                    self.lives(base)
            one = self.hb(self.base, room, "one", "s", 1, 60000, {"pad": "x" * 2000})
            if one.status != 200:
                self.unavailable(one)
        finally:
            os.unlink(self.flag)
        for base in self.bases:
            self.wait_until(lambda: self.hb(base, room, "after", "s", None, 60000).status == 200, 10, "a heartbeat")
            self.wait_until(lambda: self.client.get(base, "/readyz").status == 200, 10, "readiness")
        stored = set(self.q("SELECT user_id FROM stillhere.lease WHERE room_id = '%s'" % room).split())
        self.assertEqual(set(acknowledged) - stored, set())
        events = self.events(room)
        self.assertEqual([e["revision"] for e in events], list(range(1, len(events) + 1)))
        granted = [e["user_id"] for e in events if e["kind"] == "lease.granted"]
        self.assertEqual(sorted(granted), sorted(stored))
        with open(self.pg.log, "rb") as f:
            f.seek(mark)
            self.assertIn(b"No space left on device", f.read())


class Killed(Case):
    """Backends are killed all the time while clients count."""

    weight = 6
    instances = 2
    seconds, revisions, clients = (60, 500, 20) if LONG else (15, 120, 20)

    def count_up(self, room, session, pace):
        """Sends revision after revision, each until it is acknowledged. @return what was not plain"""
        odd, granted = [], 0
        for revision in range(1, self.revisions + 1):
            due = time.monotonic() + pace
            while True:
                reply = self.hb(self.bases[(revision + len(odd)) % 2], room, "u-" + session, session, revision, 600000)
                if reply.status == 200:
                    granted += bool(reply.get("granted"))
                    break
                if reply.status != 503:
                    odd.append(reply)
                    break
                time.sleep(0.02)
            time.sleep(max(0.0, due - time.monotonic()))
        return odd, granted

    def test_a_backend_killed_every_150_ms(self):
        self.allow_5xx, self.allow_log = True, [r"."]
        room, over, killed = self.room(), threading.Event(), []
        killer = self.psql()

        def kill():
            while not over.wait(0.15):
                killed.append(int(killer.value(
                    "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE datname = "
                    "current_database() AND application_name LIKE 'stillhered%' ORDER BY random() LIMIT 1) one")))

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            pace = self.seconds / self.revisions
            futures = [self.background(self.count_up, room, "s%02d" % i, pace) for i in range(self.clients)]
            results = [f.result(8 * self.seconds * SLOW) for f in futures]
        finally:
            over.set()
            thread.join()
        self.assertGreater(sum(killed), self.seconds * 2 / SLOW)
        self.assertEqual([odd for odd, _ in results if odd], [])
        # An answer that was lost with its connection was not told: at most once each.
        self.assertLessEqual(max(granted for _, granted in results), 1)
        self.assertEqual(self.q("SELECT count(*), min(revision), max(revision) FROM stillhere.lease WHERE room_id = '%s'" %
                                room), "%d|%d|%d" % (self.clients, self.revisions, self.revisions))
        events = self.events(room)
        self.assertEqual([e["revision"] for e in events], list(range(1, 2 * self.clients + 1)))
        granted = sorted(e["session_id"] for e in events if e["kind"] == "lease.granted")
        self.assertEqual(granted, ["s%02d" % i for i in range(self.clients)])
        self.assertEqual(sum(e["kind"] == "user.online" for e in events), self.clients)


class Stood(Case):
    """A daemon stands still in the midst of a transaction, and the server ends that."""

    def transactions(self, psql, state):
        """The backends of our daemon that are in a state. @return their numbers as text"""
        return psql.value("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE "
                          "'stillhered%%' AND %s" % state)

    def test_a_transaction_that_the_server_has_ended(self):
        """That request may have failed; its connection poisons nothing, and it is done as a whole or not at all."""
        self.allow_5xx, self.allow_log = True, [r"."]
        room, d, psql, look = self.room(), self.daemons[0], self.psql(), self.psql()
        self.grant(room, "first", 1)
        psql.run("BEGIN")
        psql.run("SELECT 1 FROM stillhere.room WHERE room_id = '%s' FOR UPDATE" % room)
        held = self.background(self.hb, d.base, room, "u", "held", 1, 600000, fresh=True, timeout=60)
        self.wait_until(lambda: self.transactions(look, "wait_event_type = 'Lock'"), 10, "a transaction that waits")
        d.process.send_signal(signal.SIGSTOP)
        try:
            psql.run("COMMIT")
            pid = self.wait_until(lambda: self.transactions(look, "state LIKE 'idle in transaction%'"), 5, "its standing idle")
            if not LONG:  # else by idle_in_transaction_session_timeout, which is 10 s
                psql.run("SELECT pg_terminate_backend(%s)" % pid)
            self.wait_until(lambda: not self.transactions(look, "pid = " + pid), 20, "its end")
        finally:
            d.process.send_signal(signal.SIGCONT)
        reply = held.result(30 * SLOW)
        self.assertIn(reply.status, (200, 503), reply)
        for i in range(200):
            self.assertEqual(self.hb(d.base, room, "u", "free%d" % i, 1).status, 200, i)
        if LONG:
            self.assertIn("25P03", d.text())
        told = [e["session_id"] for e in self.events(room, kind="lease.granted")]
        self.assertEqual([e["revision"] for e in self.events(room)], list(range(1, len(told) + 2)))
        self.assertEqual([s for s in told if s != "held"], ["first"] + ["free%d" % i for i in range(200)])
        self.assertEqual(self.q("SELECT string_agg(session_id, ',' ORDER BY session_id) FROM stillhere.lease WHERE room_id = "
                                "'%s'" % room), ",".join(sorted(told)), "no lease without its event, nor the other way round")
        if reply.status == 200:
            self.assertIn("held", told)
