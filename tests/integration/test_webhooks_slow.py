# SPDX-License-Identifier: Apache-2.0
"""Webhooks to receivers that never come to an end: their attempts do, and nobody else waits for them."""

import socket
import threading

from harness import LONG
from harness.case import SLOW, time
from harness.process import rss_mib
from test_webhooks import Base

#: Rooms with one session each, of which two events tell, and the seconds over which they come.
ROOMS, SECONDS = (1500, 60) if LONG else (250, 6)

#: What an attempt may take: the daemon gives it up after 10 s.
ATTEMPT_S = 10


class Endless:
    """Takes requests, answers each with the beginning of a reply, and then with a drip for ever, or with nothing.
    Remembers how long each connection lasted."""

    def __init__(self, head, drip):
        self.head, self.drip = head, drip
        self.lock, self.lasted = threading.Lock(), []
        self.server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = "http://127.0.0.1:%d/hook" % self.server.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.one, args=(connection,), daemon=True).start()

    def one(self, connection):
        began = None
        try:
            with connection:
                connection.settimeout(60 * SLOW)
                connection.recv(65536)
                began = time.monotonic()
                connection.sendall(self.head)
                while self.drip:
                    connection.sendall(self.drip)
                    time.sleep(0.2)
                while connection.recv(65536):
                    pass
        except OSError:
            pass
        if began is not None:
            with self.lock:
                self.lasted.append(time.monotonic() - began)

    def close(self):
        self.server.close()


class Slow(Base):
    """One that says nothing, one that drips for ever, one that is fine."""

    weight = 5

    def test_the_fine_one_is_told_at_once(self):
        silent, dripping = Endless(b"", None), Endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x")
        fine = self.receiver()
        for r in (silent, dripping):
            self.addCleanup(r.close)
        d = self.start_daemon(webhook_targets_file=self.targets(
            ("silent", silent, "*", "*"), ("dripping", dripping, "*", "*"), ("fine", fine, "*", "*")))
        asked, puts, rooms = {}, [], []
        began, before = time.monotonic(), None
        for i in range(ROOMS):
            room = self.room()
            reply = self.hb(d.base, room, "u", "s", 1, 3600000)
            self.ok(reply)
            asked[room] = time.monotonic()
            puts.append(reply.seconds)
            rooms.append(room)
            if i == ROOMS // 2:
                before = rss_mib(d)
            self.pause(max(0.0, began + SECONDS * (i + 1) / ROOMS - time.monotonic()))
        self.got_all(fine, *rooms, seconds=15)
        lags = sorted(delivery.at - asked[delivery.room] for delivery in fine.all())
        puts.sort()
        self.assertEqual(len(fine.events()), 2 * ROOMS, "each event once")
        self.assertLess(lags[len(lags) * 99 // 100], 2 * SLOW, "the fine one is told at once")
        self.assertLess(puts[len(puts) * 99 // 100], 0.3 * SLOW, "heartbeats do not wait")
        self.wait_until(lambda: silent.lasted and dripping.lasted, 2 * ATTEMPT_S, "the end of an attempt")
        self.assertLess(rss_mib(d) - before, 10 if SLOW == 1 else 200, "memory")
        for r in (silent, dripping):
            with r.lock:
                self.near(max(r.lasted), ATTEMPT_S / 2, ATTEMPT_S + 3 * SLOW, "an attempt")
        self.end(d)
