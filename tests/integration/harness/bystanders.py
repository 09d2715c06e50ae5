# SPDX-License-Identifier: Apache-2.0
"""Ordinary clients that must notice nothing of what others do: sessions that renew, and a watcher that polls."""

import threading
import time

from . import SLOW
from .client import Client

SESSIONS, THREADS = 20, 2


class Bystanders:
    """Around what a hostile client does: `with Bystanders(test): …`. At the end nobody of them may have seen an error,
    missed an event, or waited for longer than most_s."""

    def __init__(self, test, base=None, most_s=3.0):
        self.test, self.base = test, base or test.base
        self.most_s = most_s * SLOW
        self.room = test.room("bystanders")
        self.faults, self.slowest, self.renewals = [], 0.0, 0
        self.seen = 0
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.begun = threading.Barrier(THREADS + 2)  # all have their connection and their lease, and this thread
        self.threads = [threading.Thread(target=self.guard, args=(self.renew, i), daemon=True) for i in range(THREADS)]
        self.threads.append(threading.Thread(target=self.guard, args=(self.watch,), daemon=True))

    def guard(self, run, *args):
        try:
            run(*args)
        except Exception as e:
            self.fault(repr(e))
            self.begun.abort()

    def fault(self, text):
        with self.lock:
            self.faults.append(text)

    def took(self, seconds):
        with self.lock:
            self.slowest = max(self.slowest, seconds)

    def renew(self, part):
        client, revision = Client(), 0
        while not self.stopping.is_set():
            revision += 1
            for i in range(part, SESSIONS, THREADS):
                meta = {"n": revision} if i == 0 and revision % 10 == 0 else None
                reply = client.hb(self.base, self.room, "u%d" % i, "s", revision, 60000, meta)
                self.took(reply.seconds)
                if reply.status != 200 or reply["lease"]["revision"] != revision:
                    return self.fault("a heartbeat: %r" % reply)
                with self.lock:
                    self.renewals += 1
            if revision == 1:
                self.begun.wait(20 * SLOW)
            self.stopping.wait(0.1)

    def watch(self):
        client = Client()
        since = 0
        first = True
        while not self.stopping.is_set():
            reply = client.poll(self.base, self.room, since, wait_ms=300)
            self.took(reply.seconds - 0.32)
            if reply.status != 200:
                return self.fault("a poll: %r" % reply)
            answer = reply.json()
            if answer["mode"] == "snapshot":
                return self.fault("the watcher got a snapshot: %r" % reply)
            for event in answer["events"]:
                since += 1
                if event["revision"] != since or event["kind"] not in ("lease.granted", "user.online", "lease.renewed"):
                    return self.fault("an event after %d: %r" % (since, event))
            since = answer["revision"]
            if first:
                self.begun.wait(20 * SLOW)
                first = False
        self.seen = since

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        try:
            self.begun.wait(30 * SLOW)
        except threading.BrokenBarrierError:
            raise AssertionError("the bystanders did not begin: %r" % self.faults)
        return self

    def __exit__(self, kind, *unused):
        # Whatever it was, what it did to them shows in their next requests at the latest.
        deadline = time.monotonic() + 20 * SLOW
        while kind is None and self.renewals < 3 * SESSIONS and not self.faults and time.monotonic() < deadline:
            time.sleep(0.02)
        self.stopping.set()
        for thread in self.threads:
            thread.join(40 * SLOW)
        if kind is not None:
            return
        self.test.assertEqual(self.faults, [])
        self.test.assertLess(self.slowest, self.most_s, "how long a bystander waited")
        self.test.assertGreaterEqual(self.seen, 2 * SESSIONS, "the watcher has seen who came")
        self.test.assertGreaterEqual(self.renewals, 2 * SESSIONS, "they were there all the while")
