# SPDX-License-Identifier: Apache-2.0
"""Clients that go away, hang, drip, or do not read: noticed, bounded, and nobody else feels it."""

import select
import socket

from harness import LONG
from harness.bystanders import Bystanders
from harness.case import SLOW, Case, Flock, Wire, lease, presence_path, quote, time
from harness.client import hostport
from harness.process import cpu_seconds, descriptors, raise_own_limit, reset, rss_mib, vanish
from harness.sse import Streams
from harness.tls import Pair

ACCEPT_STREAM = "Accept: text/event-stream\r\n"
#: What a daemon may grow by over twenty rounds, MiB; instrumented builds keep what was freed.
GROWTH_MIB = 10 if SLOW == 1 else 600


def leave(sockets, how):
    for s in sockets:
        if how == "reset":
            reset(s)
        elif how == "close":
            s.close()
        else:
            s.shutdown(socket.SHUT_WR)


class Gone(Case):
    """Gone while they wait."""

    weight = 20
    rounds = 20
    crowd = 500
    bound = 900

    def setUp(self):
        super().setUp()
        raise_own_limit()

    def wait_in(self, room, head, n):
        """Two thirds polls of presence, the rest polls of cursors and streams of both. @return the flocks"""
        cursors = "/rooms/%s/cursors" % quote(room)
        fifth = n // 5
        polls = Flock(self.base, [presence_path(room, head, wait_ms=55000)] * (n - 2 * fifth) +
                      [cursors + "?since=0&wait_ms=55000"] * (fifth - fifth // 2))
        streams = Flock(self.base, [presence_path(room, head)] * fifth + [cursors] * (fifth // 2), ACCEPT_STREAM)
        self.wait_until(lambda: self.waiting(self.base) >= n, 15, "%d that wait" % n)
        return polls, streams

    def goes(self, flocks, how):
        """They leave. @return the seconds until nobody waits any more"""
        began = time.monotonic()
        for flock in flocks:
            leave(flock.sockets, how)
        self.wait_until(lambda: self.waiting(self.base) == 0, 5, "their going (%s)" % how)
        took = time.monotonic() - began
        for flock in flocks:
            flock.close()
        return took

    def settled(self, bound):
        """Waits until no more descriptors than so many are open. @return how many are"""
        d = self.daemons[0]
        self.wait_until(lambda: descriptors(d) <= bound, 8, "the end of their connections")
        return descriptors(d)

    def rounds_of(self, n, rounds, ways):
        room = self.room()
        head = self.grant(room, ttl_ms=3600000)["room_revision"]
        self.waiting(self.base)  # the connection that asks is there from now on
        d = self.daemons[0]
        before = descriptors(d)
        rss = None
        for i in range(rounds):
            self.goes(self.wait_in(room, head, n), ways[i % len(ways)])
            self.settled(before)
            if i == 3:  # by now all is there that is kept
                rss = rss_mib(d)
        self.assertLess(rss_mib(d) - rss, GROWTH_MIB, "memory after %d rounds, from %.0f MiB" % (rounds, rss))
        metrics = self.metrics(self.base)
        for name in ("stillhere_longpoll_waiting", "stillhere_streams"):
            self.assertEqual(metrics[name], 0, name)
        self.assertEqual(self.head(room), head, "nobody's going is an event")

    def test_twenty_rounds(self):
        self.rounds_of(self.crowd, self.rounds, ("close", "reset", "half"))

    def test_half_closed_ones_are_answered_and_ended(self):
        room = self.room()
        head = self.grant(room)["room_revision"]
        polls, streams = self.wait_in(room, head, 20)
        leave(polls.sockets + streams.sockets, "half")
        replies = polls.collect(5 * SLOW)
        for reply in replies:
            if reply != "closed":
                self.assertEqual(reply[0].status, 200)
        for s in polls.sockets + streams.sockets:
            s.settimeout(5 * SLOW)
            while s.recv(65536):
                pass
        polls.close()
        streams.close()

    def test_the_vanished_are_forgotten_when_their_wait_is_over(self):
        """No packet says that they have gone, and none is acknowledged."""
        room = self.room()
        head = self.grant(room)["room_revision"]
        d = self.daemons[0]
        self.waiting(self.base)
        before = descriptors(d)
        polls = Flock(self.base, [presence_path(room, head, wait_ms=4000)] * 50 +
                      ["/rooms/%s/cursors?since=0&wait_ms=4000" % quote(room)] * 20)
        self.addCleanup(polls.close)
        self.wait_until(lambda: self.waiting(self.base) == 70, 3, "70 polls")
        for s in polls.sockets:
            vanish(s)
        self.wait_until(lambda: self.waiting(self.base) == 0, 4 + 5, "the end of their wait")
        self.assertEqual(descriptors(d), before + 70, "nobody has told the daemon")
        if LONG:  # what they do not acknowledge ends their connections, long before an idle one's time is over
            self.wait_until(lambda: descriptors(d) <= before, 55, "the end of their connections")

    def test_a_cancelled_poll_costs_no_heartbeat(self):
        with Bystanders(self):
            room = self.room()
            head = self.grant(room)["room_revision"]
            for how in ("close", "reset", "half") * 2:
                flock = Flock(self.base, [presence_path(room, head)] * 200)
                leave(flock.sockets, how)  # some before they are read, some after
                flock.close()
        self.wait_until(lambda: self.waiting(self.base) == 0, 5, "nobody waits")


class GoneOverTls(Gone):
    """The same where the ends of connections are inside of what is encrypted."""

    crowd = 500 if LONG else 40
    rounds = 20 if LONG else 6

    @classmethod
    def begin(cls):
        super().begin()
        cls.start_daemon(**Pair(cls.directory, "gone").settings).number = 0
        cls.daemons[0], cls.daemons[1] = cls.daemons[1], cls.daemons[0]

    def tidy(self):
        pass

    def goes(self, flocks, how):
        if how == "half":  # close_notify and not a FIN
            for flock in flocks:
                for s in flock.sockets:
                    notify_close(s)
            how = "notified"
            began = time.monotonic()
            self.wait_until(lambda: self.waiting(self.base) == 0, 5, "their going (%s)" % how)
            for flock in flocks:
                flock.close()
            return time.monotonic() - began
        return super().goes(flocks, how)

    def test_half_closed_ones_are_answered_and_ended(self):
        """A close_notify while the connection stays open is an end as well."""
        room = self.room()
        head = self.grant(room)["room_revision"]
        flocks = self.wait_in(room, head, 20)
        self.goes(flocks, "half")


def notify_close(s):
    """Says over TLS that nothing more comes, and leaves the connection open."""
    s.setblocking(False)
    try:
        s.unwrap()
    except OSError:  # wants to read the other side's
        pass


class Slow(Case):
    """Slow in asking. What has begun has a total deadline, whoever goes on dripping."""

    weight = 15
    config = {"request_deadline_ms": 3000}

    def flood(self):
        """Connections that say nothing, one byte, or a little at a time. @return (those that go on, how they go on)"""
        silent = [Wire(self.base) for _ in range(150)]
        for wire, start in zip(silent, (b"", b"G", b"GET /rooms/", b"\r\n", b"P") * 30):
            if start:
                wire.send(start)
        dripping = [Wire(self.base) for _ in range(100)]
        for i, wire in enumerate(dripping):
            wire.send((b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ",
                       b"PUT /leases HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n{",
                       b"PUT /leases HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5",
                       b"GET /rooms/a/presence?since=")[i % 4])
        return silent, dripping

    def test_all_of_them_end_at_the_deadline(self):
        d = self.daemons[0]
        with Bystanders(self):
            self.waiting(self.base)
            before, cpu = descriptors(d), cpu_seconds(d)
            began = time.monotonic()
            silent, dripping = self.flood()
            open_ = {wire.socket: wire for wire in silent + dripping}
            next_drip = began + 1
            while open_ and time.monotonic() - began < 9 * SLOW:
                readable, _, _ = select.select(list(open_), [], [], 0.1)
                for s in readable:
                    try:
                        more = s.recv(4096)
                    except ConnectionResetError:
                        more = b""
                    open_[s].data += more
                    if not more:
                        self.assertGreater(time.monotonic() - began, 2.5, "not before the deadline")
                        del open_[s]
                if time.monotonic() >= next_drip:
                    next_drip += 1
                    for wire in dripping:
                        try:
                            wire.send(b"1")
                        except OSError:
                            pass
            self.assertEqual(len(open_), 0, "still open")
            told = [wire.data[9:12] for wire in dripping if wire.data]
            self.assertEqual(set(told) - {b"408"}, set())
            self.assertGreaterEqual(told.count(b"408"), 70, "those whose request line had come are told why")
            self.settle(before)
            self.assertLess(cpu_seconds(d) - cpu, 0.35 * (time.monotonic() - began) * SLOW, "of a processor")
            for wire in silent + dripping:
                wire.close()

    def settle(self, before):
        # The database may have got connections meanwhile that were not there before.
        self.wait_until(lambda: descriptors(self.daemons[0]) <= before + 8, 8, "the end of their connections")

    def test_the_silent_hold_up_nobody_at_the_door(self):
        """Connections are looked at before they are given to a worker; one that says nothing costs the next no time."""
        with Bystanders(self):
            stop = time.monotonic() + 4
            opened, slowest = [], 0
            while time.monotonic() < stop:
                for _ in range(20):
                    wire = Wire(self.base)
                    if len(opened) % 2:
                        wire.send(b"GET /rooms/" + b"x" * (len(opened) % 700))
                    opened.append(wire)
                slowest = max(slowest, self.client.get(self.base, "/healthz", fresh=True).seconds)
            self.assertLess(slowest, 1.5 * SLOW)
            for wire in opened:
                wire.close()

    def test_bytes_that_are_no_http(self):
        """They are told so, or cut, at once: the first byte of a request says enough."""
        for data in (b"\x00\x01garbage", b"\x00\x01garbage\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 40,
                     b"\x80\x2e\x01\x00\x02", b"\xff\xff\xff\xff", b"\x05\x01\x00", b" GET / HTTP/1.1\r\n\r\n", b"\x00" * 600,
                     b"{\"room_id\":1}", b"\x1b[A"):
            with self.subTest(data=data[:20]), Wire(self.base) as wire:
                began = time.monotonic()
                wire.send(data)
                got = wire.until_eof(2)
                self.assertLess(time.monotonic() - began, 2 * SLOW)
                self.assertEqual(got[9:12], b"400", got[:80])


class Readers(Case):
    """Slow in taking what they asked for."""

    weight = 12
    config = {"request_deadline_ms": 3000}
    bound = 900

    def fill(self, room):
        for part in range(4):
            items = [lease(room, "user-%d-%d" % (part, i), "s", 1, 3600000, {"pad": "x" * 1000}) for i in range(250)]
            self.ok(self.client.batch(self.base, items))

    def ask(self, room):
        """Asks for a snapshot with as little room for it as the system allows."""
        s = socket.socket()
        self.addCleanup(s.close)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        s.connect(hostport(self.base))
        s.sendall(("GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % presence_path(room)).encode())
        return s

    def test_a_hundred_bytes_a_second(self):
        """They hold no worker, and no memory of their own but the kernel's: one body serves them all."""
        room, d = self.room(), self.daemons[0]
        self.fill(room)
        body = self.poll(self.base, room).body
        self.assertGreater(len(body), 1000000)
        self.waiting(self.base)
        before, rss = descriptors(d), rss_mib(d)
        with Bystanders(self):
            before += 3
            socks = [self.ask(room) for _ in range(100)]
            began, cpu = time.monotonic(), cpu_seconds(d)
            got = 0
            while time.monotonic() - began < 6:
                for s in socks:
                    got += len(s.recv(100))
                self.pause(1)
            self.assertGreater(got, 100 * 100)
            self.assertLess(rss_mib(d) - rss, 40 if SLOW == 1 else 600, "a copy each would be %d MiB" %
                            (100 * len(body) >> 20))
            self.assertLess(cpu_seconds(d) - cpu, 3 * SLOW)
            self.assertEqual(self.client.get(self.base, "/healthz", fresh=True).status, 200)
            for s in socks:
                reset(s)
        self.wait_until(lambda: descriptors(d) <= before, 8, "the end of their connections")

    if LONG:  # a minute and a half each

        def test_nothing_at_all(self):
            """Who takes no byte of a reply is cut as an idle connection is, or sooner, with what waited for it."""
            room, d = self.room(), self.daemons[0]
            self.fill(room)
            self.waiting(self.base)
            before = descriptors(d)
            socks = [self.ask(room) for _ in range(30)]
            self.wait_until(lambda: descriptors(d) >= before + 30, 5, "their connections")
            began = time.monotonic()
            self.wait_until(lambda: descriptors(d) <= before, 90, "the end of their connections")
            self.assertGreater(time.monotonic() - began, 15, "a pause is no end")
            for s in socks:
                s.close()

        def test_a_reply_has_an_end(self):
            """Also for one that takes a little again and again: a minute and a half, with the deadline of this daemon."""
            room, d = self.room(), self.daemons[0]
            self.fill(room)
            self.waiting(self.base)
            before = descriptors(d)
            socks = [self.ask(room) for _ in range(30)]
            began = time.monotonic()
            while descriptors(d) > before:
                self.assertLess(time.monotonic() - began, 100 * SLOW)
                for s in socks:
                    try:
                        s.recv(100)
                    except OSError:
                        pass
                self.pause(1)
