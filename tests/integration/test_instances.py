# SPDX-License-Identifier: Apache-2.0
"""Instances that stand still, and instances whose clock is wrong: the database's clock alone judges."""

import os
import signal
import subprocess
from unittest import mock

from harness import LONG
from harness.case import ENVIRONMENT, SLOW, Case, instant, steps, time
from harness.process import cpu_seconds
from harness.tokens import Key, bearer

HARNESS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "harness")

#: How long an instance is stopped: longer than its connections may be idle in a transaction, and than a lease lives.
STOPPED = 60 if LONG else 20


class Stopped(Case):
    """Three instances, one of which is stopped while it holds its connections."""

    instances = 3
    config = {"ttl_min_ms": 100, "offline_grace_ms": 1000}
    weight = 5

    def renewing(self, base, room, session, stop):
        """Renews a short lease, at any instance that is well. @return what was not plain"""
        odd, revision = [], 1
        while not stop:
            revision += 1
            reply = self.hb(base, room, "u-" + session, session, revision, 4000)
            if reply.status != 200 or reply["granted"] or reply["decision"] != "accepted":
                odd.append(reply)
            time.sleep(0.5)
        return odd

    def test_stopped_and_continued(self):
        room, stop, (a, b, c) = self.room(), [], self.daemons
        for s in ("h0", "h1", "h2", "h3"):
            self.grant(room, s, 1, 4000, user="u-" + s, base=c.base)
        self.grant(room, "silent", 1, 4000, user="silent", base=c.base)
        self.grant(room, "long", 1, 600000, user="long", base=c.base)
        head = self.head(room)
        poll = self.parked(c.base, room, head, wait_ms=50000)
        clients = [self.background(self.renewing, (a, b)[i % 2].base, room, "h%d" % i, stop) for i in range(4)]
        c.process.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            self.pause(0.3)  # until each of its threads stands still
            # What comes while it stands still stays in its socket, and is old when it wakes.
            late = self.background(self.hb, c.base, room, "u-h0", "h0", 2, 4000, fresh=True, timeout=STOPPED + 60)
            self.wait_until(lambda: self.events(room, kind="lease.expired"), 4 + 4, "the expiry, by the others")
            self.wait_until(lambda: self.events(room, kind="user.offline"), 6, "the end of the grace, by the others")
            self.grant(room, "new", 1, 600000, base=a.base)
            self.pause(max(0.0, began + STOPPED - time.monotonic()))
        finally:
            before, woken = cpu_seconds(c), time.monotonic()
            c.process.send_signal(signal.SIGCONT)
        answer = self.ok(self.answer(poll, 5))
        known = head
        while True:  # its watchers catch up
            self.assertIn(answer["mode"], ("events", "unchanged"))
            self.assertEqual([e["revision"] for e in answer["events"]], list(range(known + 1, answer["revision"] + 1)))
            known = answer["revision"]
            if known == self.head(room):
                break
            answer = self.ok(self.poll(c.base, room, known, wait_ms=5000))
        reply = late.result(30 * SLOW)
        self.assertIn(reply.status, (200, 409, 503), reply)  # h0 has gone on elsewhere meanwhile
        self.client.server_errors[:] = [e for e in self.client.server_errors if reply.status != 503]
        self.wait_until(lambda: c.status("/readyz") == 200, 10, "readiness")
        self.grant(room, "back", 1, 600000, base=c.base)
        self.pause(3.0)
        self.assertLess(cpu_seconds(c) - before, 0.2 * SLOW * (time.monotonic() - woken), "it makes up for nothing")
        stop.append(True)
        self.assertEqual([odd for f in clients for odd in f.result(20 * SLOW)], [])
        events = self.events(room)
        self.assertEqual([e["revision"] for e in events], list(range(1, len(events) + 1)))
        self.assertEqual([(e["session_id"], e["lease_revision"]) for e in events if e["kind"] == "lease.expired"],
                         [("silent", 1)])
        self.assertLess(int(self.events(room, kind="lease.expired")[0]["overdue_ms"]), 4000 * SLOW)
        self.assertEqual([e["user_id"] for e in events if e["kind"] == "user.offline"], ["silent"])
        granted = [e["session_id"] for e in events if e["kind"] == "lease.granted"]
        self.assertEqual(len(granted), len(set(granted)))


class WrongClocks(Case):
    """One instance is right, one an hour ahead, one an hour behind. Only what the clock on the wall says: waiting goes by
    the monotonic clock."""

    autostart = False
    offsets = (0, 3600, -3600)
    weight = 2

    @classmethod
    def begin(cls):
        super().begin()
        shim = os.path.join(cls.directory, "skewed_clock.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, os.path.join(HARNESS, "skewed_clock.c")], check=True)
        for offset in cls.offsets:
            with mock.patch.dict(os.environ, LD_PRELOAD=shim, CLOCK_SKEW_S=str(offset),
                                 ASAN_OPTIONS="abort_on_error=0:exitcode=99:detect_leaks=1:verify_asan_link_order=0"):
                cls.start_daemon(wait=False)
        for d in cls.daemons:
            d.wait_ready()

    def tidy(self):
        pass


class Skewed(WrongClocks):
    config = {"ttl_min_ms": 100, "offline_grace_ms": 700}

    def now(self):
        return float(self.q("SELECT extract(epoch FROM clock_timestamp())"))

    def test_they_are_wrong(self):
        """The log has the clock on the wall: the fault is really there."""
        for d, offset in zip(self.daemons, self.offsets):
            stamp = d.text().split()[0]
            self.near(instant(stamp) - self.now(), offset - 600, offset + 600, "the clock of " + d.name)

    def test_all_times_are_the_databases(self):
        room = self.room()
        for i, base in enumerate(self.bases):
            before = self.now()
            answer = self.grant(room, "s%d" % i, 1, 30000, user="u%d" % i, base=base)
            after = self.now()
            for value, extra in ((answer["server_time"], 0), (answer["lease"]["granted_at"], 0),
                                 (answer["lease"]["renewed_at"], 0), (answer["lease"]["expires_at"], 30)):
                self.near(instant(value) - extra, before - 0.5, after + 0.5, value)
            self.near(answer["renew_after_ms"], 7500, 10000)
            self.near(instant(self.ok(self.poll(base, room))["server_time"]), before - 0.5, self.now() + 0.5)
        for base in self.bases:
            for one in self.ok(self.client.get(base, "/rooms/%s/leases" % room))["leases"]:
                self.near(one["remaining_ms"], 30000 - 10000 * SLOW, 30000)
            users = self.ok(self.client.get(base, "/last-seen?user_id=u0&user_id=u1&user_id=u2"))["users"]
            for user in users:
                self.assertTrue(user["online"])
                self.near(instant(user["last_seen_at"]), self.now() - 10 * SLOW, self.now() + 0.5)
                self.near(user["last_seen_ago_ms"], 0, 10000 * SLOW)

    def test_leases_last_as_long_as_they_should(self):
        room, ttl = self.room(), 1500
        ends = {}
        for i, base in enumerate(self.bases):
            answer = self.grant(room, "s%d" % i, 1, ttl, user="u%d" % i, base=base)
            ends["s%d" % i] = instant(answer["lease"]["expires_at"])
        # One renewed alternately by those who disagree by two hours never ends.
        self.grant(room, "kept", 1, ttl, user="kept")
        for revision in range(2, 14):
            self.assertFalse(self.grant(room, "kept", revision, ttl, user="kept", base=self.bases[1 + revision % 2])["granted"])
            self.pause(0.3)
        self.wait_until(lambda: len(self.events(room, kind="lease.expired")) >= 3, 5, "the expiries")
        for event in self.events(room, kind="lease.expired"):
            if event["session_id"] in ends:
                self.near(instant(event["at"].replace("+00:00", "Z")[:19] + ".000Z") + 1, ends[event["session_id"]],
                          ends[event["session_id"]] + 3 + 2 * SLOW, event["session_id"])
        granted = [e["session_id"] for e in self.events(room, kind="lease.granted")]
        self.assertEqual(sorted(granted), ["kept", "s0", "s1", "s2"])
        self.wait_until(lambda: len(self.events(room, kind="user.offline")) >= 3, 6, "the ends of the graces")

    def test_watchers_of_all(self):
        room = self.room()
        polls = [self.parked(base, room, 0, wait_ms=10000) for base in self.bases]
        self.grant(room, "s", 1, base=self.bases[1])
        for poll in polls:
            self.assertEqual(steps(self.ok(self.answer(poll))["events"]), [(1, "lease.granted", "s"), (2, "user.online", None)])
        began = time.monotonic()
        answer = self.ok(self.poll(self.bases[2], room, 2, wait_ms=1500))
        self.assertEqual(answer["mode"], "unchanged")
        self.near(time.monotonic() - began, 1.4, 1.5 + 2 * SLOW)


class SkewedTokens(WrongClocks):
    """Tokens, too, are judged by the database's clock."""

    @classmethod
    def begin(cls):
        cls.key = Key(ENVIRONMENT["directory"], "skew")
        os.chmod(cls.key.file, 0o644)
        cls.config = {"auth": "jwt", "jwt_key_file": cls.key.file}
        super().begin()

    def test_each_ends_when_it_says(self):
        for base in self.bases:
            for seconds, status in ((60, 200), (-120, 401)):
                token = self.key.token(sub="u", rooms=["*"], scope="admin", exp=int(time.time()) + seconds)
                self.assertEqual(self.client.get(base, "/rooms", headers=bearer(token)).status, status, (base, seconds))
