# SPDX-License-Identifier: Apache-2.0
"""The end of an instance: everybody who waits is answered, nobody is told what is not so, and a deploy is no event."""

import threading

from harness import LONG
from harness.case import SLOW, Case, Client, Flock, Wire, lease, presence_path, quote, random, time
from harness.process import raise_own_limit
from harness.sse import Streams
from harness.tls import Pair
from harness.watchers import Watchers

#: Descriptors of this process beside its clients' connections.
SPARE = 200


class Masses(Case):
    """SIGTERM while ten thousand wait and others are in the midst of something."""

    autostart = False
    weight = 25

    def renewing(self, d, room, session):
        """Renews until the daemon is gone. @return (the highest revision that was acknowledged, sent, a fault)"""
        client = Client()
        acknowledged = revision = 0
        while True:
            revision += 1
            try:
                reply = client.hb(d.base, room, session, "s", revision, 600000)
            except Exception:  # cut off: nothing was said
                return acknowledged, revision, None
            if reply.status == 200:
                answer = reply.json()
                if (answer["decision"], answer["lease"]["revision"]) != ("accepted", revision):
                    return acknowledged, revision, repr(reply)
                acknowledged = revision
            elif reply.status != 503 or "retry-after" not in reply.headers:
                return acknowledged, revision, repr(reply)

    def test_ten_thousand_polls(self):
        allowed = raise_own_limit()
        n = min(10000, allowed - SPARE)
        if n < 10000:
            print("only %d polls instead of 10000: this process may have %d descriptors" % (n, allowed), flush=True)
        self.assertGreaterEqual(n, 500, "RLIMIT_NOFILE is too low for this test")
        d = self.start_daemon()
        rooms = [self.room() for _ in range(50)]
        for room in rooms:
            self.grant(room, "a", 1, base=d.base)
        renewed = self.room("renewed")
        flock = Flock(d.base, [presence_path(rooms[i % 50], 2, wait_ms=55000) for i in range(n)])
        self.addCleanup(flock.close)
        self.wait_until(lambda: self.waiting(d.base) >= n, 30, "%d parked polls" % n)
        futures = [self.background(self.renewing, d, renewed, "u%d" % i) for i in range(8)]
        self.pause(0.5)
        began = time.monotonic()
        d.terminate()
        ended = self.background(d.process.wait)
        replies = flock.collect(10 * SLOW)
        self.assertEqual(ended.result(20 * SLOW), 0)
        self.assertLess(time.monotonic() - began, 10 * SLOW)
        self.assertEqual(sum(r in (None, "closed") for r in replies), 0, "each gets a whole answer")
        for i, (reply, _) in enumerate(replies):
            self.assertEqual(reply.status, 200)
            answer = reply.json()
            self.assertEqual((answer["mode"], answer["revision"], answer["room_id"], answer["events"]),
                             ("unchanged", 2, rooms[i % 50], []))
            self.assertEqual(reply.headers.get("connection", "").lower(), "close")
            self.assertIn("content-length", reply.headers)
        self.assertEqual([data for data in flock.data if data], [], "nothing comes behind an answer")
        self.assertEqual(d.complaints([]), [])
        self.forget(d)
        for i, future in enumerate(futures):
            acknowledged, sent, fault = future.result(20 * SLOW)
            self.assertIsNone(fault)
            self.assertGreater(acknowledged, 0)
            stored = self.stored(renewed, "s", "u%d" % i)["revision"]
            self.near(stored, acknowledged, sent, "what is stored of u%d" % i)

    def mixed(self, d, slow_readers):
        """Polls, streams and cursor polls that wait; then SIGTERM: each has a proper end."""
        room = self.room()
        head = self.grant(room, "a", 1, base=d.base)["room_revision"]
        cursors = "/rooms/%s/cursors" % quote(room)
        big = self.room("big")
        if slow_readers:
            for part in range(4):
                items = [lease(big, "u%d-%d" % (part, i), "s", 1, meta={"pad": "x" * 1500}) for i in range(250)]
                self.ok(self.client.batch(d.base, items))
        polls = Flock(d.base, [presence_path(room, head, wait_ms=30000)] * 40 +
                      [cursors + "?since=0&wait_ms=30000"] * 40)
        streams = Streams(d.base, [presence_path(room, head)] * 40 + [cursors] * 40)
        lazy = Streams(d.base, [presence_path(big)] * slow_readers, receive_buffer=4096) if slow_readers else None
        greedy = [Wire(d.base) for _ in range(slow_readers)]
        for wire in greedy:  # they ask for far more than a socket holds, and never read
            wire.send(("GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % presence_path(big)).encode())
        with streams:
            self.wait_until(lambda: self.waiting(d.base) >= 160 + slow_readers, 10, "all wait")
            self.assertTrue(streams.collect(lambda: all(streams[i].retry for i in range(80)), 10))
            began = time.monotonic()
            d.terminate()
            replies = polls.collect(10 * SLOW)
            self.assertTrue(streams.collect(lambda: all(s.whole or s.broken for s in streams.readers), 10))
            self.assertIsNone(d.stop())
            self.assertLess(time.monotonic() - began, 10 * SLOW)
        self.assertEqual([s.broken for s in streams.readers if s.broken], [], "a stream ends with its last chunk")
        for reply in replies:
            self.assertNotIn(reply, (None, "closed"))
            self.assertEqual(reply[0].status, 200)
        self.assertEqual({r[0]["mode"] for r in replies[:40]}, {"unchanged"})
        self.assertEqual({len(r[0]["cursors"]) for r in replies[40:]}, {0})
        self.assertEqual(d.complaints([]), [])
        self.forget(d)
        polls.close()
        for wire in greedy:
            wire.close()
        if lazy:
            lazy.close()

    def test_polls_streams_and_cursors(self):
        self.mixed(self.start_daemon(), 0)

    def test_readers_that_do_not_read(self):
        self.mixed(self.start_daemon(), 20)

    def test_over_tls(self):
        self.mixed(self.start_daemon(**Pair(self.directory, "stop").settings), 0)

    def test_connections_that_have_said_nothing_or_half(self):
        d = self.start_daemon()
        wires = [Wire(d.base) for _ in range(60)]
        for i, wire in enumerate(wires):
            wire.send((b"", b"G", b"PUT /leases HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")[i % 3])
        self.pause(0.2)
        began = time.monotonic()
        self.assertIsNone(d.stop())
        self.assertLess(time.monotonic() - began, 10 * SLOW)
        self.assertEqual(d.complaints([]), [])
        self.forget(d)
        for wire in wires:
            wire.until_eof(5)
            wire.close()


class Session:
    """A client that renews as it is told and goes to another instance when one does not serve it."""

    def __init__(self, number, rooms):
        self.room, self.user = rooms[number % len(rooms)], "u%d" % number
        self.revision, self.due, self.retries = 0, 0.0, 0
        self.faults = []

    def renew(self, client, bases):
        self.revision += 1
        tries = list(range(len(bases)))
        random.shuffle(tries)
        for attempt in range(60):
            base = bases[tries[attempt % len(tries)]]
            try:
                reply = client.hb(base, self.room, self.user, "s", self.revision, 9000, timeout=10)
            except Exception:
                reply = None
            if reply is not None and reply.status == 200:
                return self.judge(reply, attempt)
            if reply is not None and reply.status != 503:
                return self.faults.append(repr(reply))
            self.retries += 1
            if attempt >= len(tries):
                time.sleep(0.02)
        self.faults.append("revision %d: no instance would have it" % self.revision)

    def judge(self, reply, attempt):
        answer = reply.json()
        # An attempt whose answer was lost may have been committed; then this one has it already.
        fine = ("accepted", "already_applied") if attempt else ("accepted",)
        if answer["decision"] not in fine or answer["lease"]["revision"] != self.revision:
            self.faults.append(repr(reply))
        elif answer["decision"] == "accepted" and answer["granted"] != (self.revision == 1):
            self.faults.append("granted anew: %r" % reply)
        self.due = time.monotonic() + 0.25


class Rolling(Case):
    """Three instances are replaced one after the other under load."""

    instances = 3
    weight = 25
    rounds = 4 if LONG else 1

    def drive(self, sessions, bases, stop):
        client = Client()
        while not stop.is_set():
            for session in sessions:
                if time.monotonic() >= session.due:
                    session.renew(client, bases)
            stop.wait(0.01)

    def test_a_rolling_restart(self):
        self.allow_5xx = True
        rooms, stop = [self.room() for _ in range(3)], threading.Event()
        sessions = [Session(i, rooms) for i in range(60)]
        bases = list(self.bases)
        threads = [threading.Thread(target=self.drive, args=(sessions[i::4], bases, stop)) for i in range(4)]
        self.addCleanup(stop.set)
        for thread in threads:
            thread.start()
        self.wait_until(lambda: all(s.revision >= 2 for s in sessions), 15, "all sessions")
        epoch = self.ok(self.poll(self.base, rooms[0]))["epoch"]
        watchers = [Watchers(base, room, 5, 0, epoch, wait_ms=5000).start() for base in bases for room in rooms]
        for w in watchers:
            self.addCleanup(w.stop)
        expected = 2 * len(sessions) // len(rooms)
        for _ in range(self.rounds):
            for d in list(self.daemons):
                self.stop_now(d)
                self.start_daemon(port=d.port)
                self.pause(0.3)
        self.pause(1.0)
        stop.set()
        for thread in threads:
            thread.join(40 * SLOW)
        self.assertEqual([f for s in sessions for f in s.faults][:5], [])
        for w in watchers:
            late = w.wait(10 * SLOW, lambda watcher: watcher.since == expected)
            self.assertEqual([(x.wrong, x.since) for x in late], [])
            for one in w.all:
                self.assertEqual([r for r, _ in one.events], list(range(1, expected + 1)))
        for room in rooms:
            kinds = [e["kind"] for e in self.events(room)]
            self.assertEqual(sorted(kinds), ["lease.granted"] * (expected // 2) + ["user.online"] * (expected // 2),
                             "nothing but the joins")
        for session in sessions:
            self.assertEqual(self.stored(session.room, "s", session.user)["revision"], session.revision)
        self.assertGreater(min(s.revision for s in sessions), 5)
        self.assertGreater(sum(s.retries for s in sessions), 0, "the restarts were noticed")
