# SPDX-License-Identifier: Apache-2.0
"""Limits: how often, how many, how large, each with its answer and its counter, and others unaffected by it."""

import hashlib
import os
import socket

from harness.case import Case, Wire, json, lease, presence_path, quote, time
from harness.client import hostport, take_reply


class Limited(Case):
    """Helpers."""

    def limited(self, key, base=None):
        return self.metrics(base or self.base)['stillhere_limited_total{limit="%s"}' % key]

    def refused(self, reply, code, low=1, high=3600):
        """Demands a 429 with a Retry-After between two bounds. @return the problem"""
        problem = self.problem(reply, 429, code)
        self.near(int(reply.headers["retry-after"]), low, high, "Retry-After")
        return problem


class Address(Limited):
    """address_rate: 20 a second, 30 at once."""

    config = {"address_rate": 20, "address_burst": 30}

    def from_other(self, path):
        """A GET from 127.0.0.2."""
        with socket.create_connection(hostport(self.base), 5, source_address=("127.0.0.2", 0)) as s:
            s.sendall(("GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path).encode())
            data = b""
            while True:
                more = s.recv(65536)
                if not more:
                    return take_reply(data)[0]
                data += more

    def test_burst_then_rate(self):
        self.pause(2)  # the bucket is full
        replies = [self.client.get(self.base, "/healthz") for _ in range(60)]
        good = [r for r in replies if r.status == 200]
        self.near(len(good), 30, 50, "requests let in")
        for reply in replies:
            if reply.status != 200:
                self.refused(reply, "too_many_requests", 1, 1)
        self.assertEqual(self.from_other("/healthz").status, 200)
        self.assertIn(b'stillhere_limited_total{limit="address_rate"} %d\n' % (60 - len(good)),
                      self.from_other("/metrics").body)
        self.pause(1.2)
        self.assertEqual(self.client.get(self.base, "/healthz").status, 200)

    def test_refused_body_keeps_connection(self):
        self.pause(2)
        room = self.room()
        statuses = []
        with Wire(self.base) as wire:
            for i in range(60):
                body = json.dumps(lease(room, "u", "s%d" % i))
                wire.send(("PUT /leases HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" %
                           (len(body), body)).encode())
                statuses.append(wire.reply().status)
        self.assertEqual(set(statuses), {200, 429})
        self.assertEqual(self.count("lease", room_id=room), statuses.count(200))
        self.pause(1)


class Credential(Limited):
    """credential_rate: 20 a second, 50 at once; API keys that differ in their name only."""

    autostart = False

    @classmethod
    def begin(cls):
        super().begin()
        keys = os.path.join(cls.directory, "keys")
        with open(keys, "w") as f:
            for name in ("noisy", "quiet", "large", "waits"):
                digest = hashlib.sha256(cls.secret(name).encode()).hexdigest()
                f.write("%s %s gateway,presence:read *\n" % (name, digest))
        os.chmod(keys, 0o600)
        cls.start_daemon(auth="jwt", api_keys_file=keys, credential_rate=20, credential_burst=50,
                         longpoll_max_per_credential=2)

    @staticmethod
    def secret(name):
        return name * 8

    def bearer(self, name):
        return {"Authorization": "Bearer " + self.secret(name)}

    def put(self, name, room, session, **more):
        return self.client.hb(self.base, room, "u", session, headers=self.bearer(name), **more)

    def test_flood_by_one(self):
        room = self.room()
        before = self.limited("credential_rate")
        started = time.monotonic()
        noisy = self.background(lambda: [self.put("noisy", room, "n%d" % i) for i in range(300)])
        quiet = [self.put("quiet", room, "q%d" % i) for i in range(40)]
        self.assertEqual({r.status for r in quiet}, {200})
        self.assertLess(sorted(r.seconds for r in quiet)[38], self.within(0.5))
        replies = noisy.result()
        passed = sum(r.status == 200 for r in replies)
        self.near(passed, 50, 51 + 20 * (time.monotonic() - started), "requests let in")
        for reply in replies:
            if reply.status != 200:
                self.refused(reply, "too_many_requests", 1, 1)
        self.assertEqual(self.limited("credential_rate"), before + 300 - passed)
        self.assertEqual(self.count("lease", room_id=room), passed + 40)

    def test_batch_counts_its_leases(self):
        room = self.room()
        batch = [lease(room, "u", "s%d" % i) for i in range(120)]
        # More than the bucket ever holds: taken since it is full, and paid for afterwards.
        reply = self.client.batch(self.base, batch, headers=self.bearer("large"))
        self.assertEqual({r["decision"] for r in self.ok(reply)["results"]}, {"accepted"})
        reply = self.put("large", room, "later")
        self.refused(reply, "too_many_requests", 3, 4)  # 70 in debt
        self.pause(int(reply.headers["retry-after"]))
        self.ok(self.put("large", room, "later"))
        # As a whole, and nothing of it.
        renewals = [lease(room, "u", "s%d" % i, 10) for i in range(40)]
        reply = self.client.batch(self.base, renewals, headers=self.bearer("large"))
        self.refused(reply, "too_many_requests", 1, 2)
        self.assertEqual(self.count("lease", room_id=room, revision=10), 0)

    def test_waiting_by_credential(self):
        room = self.room()
        self.ok(self.put("quiet", room, "s"))
        head = self.head(room)
        waiting = [self.parked(self.base, room, head, wait_ms=20000, headers=self.bearer("waits")) for _ in range(2)]
        reply = self.poll(self.base, room, head, wait_ms=20000, headers=self.bearer("waits"))
        self.refused(reply, "too_many_waiting")
        other = self.parked(self.base, room, head, wait_ms=20000, headers=self.bearer("quiet"))
        self.ok(self.put("quiet", room, "wakes"))
        for future in waiting + [other]:
            self.assertEqual(self.ok(self.answer(future))["mode"], "events")
        self.wait_until(lambda: self.waiting(self.base) == 0, 5)
        future = self.parked(self.base, room, self.head(room), wait_ms=300, headers=self.bearer("waits"))
        self.assertEqual(self.ok(self.answer(future))["mode"], "unchanged")


class Renewals(Limited):
    """renew_interval_min_ms."""

    config = {"renew_interval_min_ms": 1600}

    def test_too_soon(self):
        room = self.room()
        count = 'stillhere_heartbeats_total{decision="too_soon"}'
        before = self.metrics(self.base)[count]
        self.assertEqual(self.limited("renew_interval_min_ms"), before)
        self.grant(room, revision=5, ttl_ms=5000)
        row = self.stored(room, "s")
        for more in ({"revision": 6}, {}, {"revision": 7, "meta": {"a": 1}}):
            with self.subTest(more=more):
                problem = self.refused(self.hb(self.base, room, "u", "s", **more), "too_soon", 1, 2)
                self.assertEqual(problem["decision"], "too_soon")
                self.assertEqual(problem["stored_revision"], 5)
                self.near(problem["retry_after_ms"], 1, 1600)
        self.assertEqual(self.stored(room, "s"), row)
        # What would change nothing is told so.
        self.assertEqual(self.ok(self.hb(self.base, room, "u", "s", 5))["decision"], "already_applied")
        self.problem(self.hb(self.base, room, "u", "s", 4), 409, "ignored_old_revision")
        self.assertEqual(self.limited("renew_interval_min_ms"), before + 3)
        self.assertEqual(self.metrics(self.base)[count], before + 3)
        self.wait_until(lambda: self.daemons[0].output().count('"too_soon"') == before + 3, 5, "the decision log")
        self.pause(problem["retry_after_ms"] / 1000)
        self.assertEqual(self.ok(self.hb(self.base, room, "u", "s", 6))["decision"], "accepted")
        problem = self.refused(self.hb(self.base, room, "u", "s", 7), "too_soon")
        self.pause(problem["retry_after_ms"] / 1000)
        answer = self.ok(self.hb(self.base, room, "u", "s", 7, meta={"a": 1}))
        self.assertEqual((answer["decision"], answer["lease"]["meta"]), ("accepted", {"a": 1}))

    def test_new_stay_is_free_of_it(self):
        room = self.room()
        self.grant(room, revision=1)
        self.ok(self.client.close(self.base, room, "u", "s"))
        self.assertTrue(self.grant(room, revision=2)["granted"])
        self.age(room)
        self.assertTrue(self.grant(room)["granted"])

    def test_items_of_a_batch(self):
        room = self.room()
        self.grant(room, "old")
        items = [lease(room, "u", "new"), lease(room, "u", "old"), lease(room, "u", "new")]
        reply = self.client.batch(self.base, items)
        results = self.ok(reply)["results"]
        self.assertEqual([r["decision"] for r in results], ["accepted", "too_soon", "too_soon"])
        self.problem_object(results[2], 429, "too_soon")
        self.near(results[2]["retry_after_ms"], 1, 1600)

    def test_interval_that_is_told_is_one_that_is_taken(self):
        for i in range(30):
            after_ms = self.grant(self.room(), ttl_ms=5000)["renew_after_ms"]
            self.near(after_ms, 1600, 1667)


class Quotas(Limited):
    """max_leases_per_user: 3; max_leases_per_room: 5; on two instances."""

    instances = 2
    config = {"max_leases_per_user": 3, "max_leases_per_room": 5, "sweep_interval_ms": 3600000}

    def live(self, **where):
        return self.count("lease", **where)

    def test_user(self):
        rooms = [self.room() for _ in range(4)]
        user = rooms[0]
        before = self.limited("max_leases_per_user")
        for room in rooms[:3]:
            self.grant(room, user=user)
        problem = self.refused(self.hb(self.base, rooms[3], user, "s"), "too_many_leases")
        self.assertIn("user", problem["detail"])
        self.assertEqual(self.stored(rooms[3], "s", user), None)
        self.assertEqual(self.head(rooms[3]), 0)
        self.grant(rooms[3], user=user + "-other")
        self.assertFalse(self.grant(rooms[0], user=user)["granted"])
        self.assertEqual(self.limited("max_leases_per_user"), before + 1)
        # A place is free when a lease is closed, and when it has run out, swept or not.
        self.ok(self.client.close(self.base, rooms[0], user, "s"))
        self.grant(rooms[3], user=user)
        self.refused(self.hb(self.base, rooms[0], user, "s", 9), "too_many_leases")
        self.assertEqual(self.tombstone(rooms[0], "s", user)["reason"], "closed")
        self.age(rooms[1], user=user)
        self.assertTrue(self.grant(rooms[0], user=user, revision=9)["granted"])
        self.refused(self.hb(self.base, rooms[1], user, "s"), "too_many_leases")
        self.problem(self.hb(self.base, rooms[1], user, "s", 1), 409, "ignored_old_revision")

    def test_room(self):
        room = self.room()
        before = self.limited("max_leases_per_room")
        items = [lease(room, "u%d" % i, "s") for i in range(8)]
        results = self.ok(self.client.batch(self.base, items))["results"]
        decisions = sorted(r["decision"] for r in results)
        self.assertEqual(decisions, ["accepted"] * 5 + ["too_many_leases"] * 3)
        self.assertEqual(self.live(room_id=room), 5)
        self.assertEqual(self.limited("max_leases_per_room"), before + 3)
        inside = [r["lease"]["user_id"] for r in results if r["decision"] == "accepted"]
        problem = self.refused(self.hb(self.bases[1], room, "late", "s"), "too_many_leases")
        self.assertIn("room", problem["detail"])
        for user in inside:
            self.assertFalse(self.grant(room, user=user)["granted"])
        self.ok(self.client.close(self.base, room, inside[0], "s"))
        self.grant(room, user="late", base=self.bases[1])
        self.refused(self.hb(self.base, room, inside[0], "s", 10), "too_many_leases")
        self.assertEqual(self.metrics(self.base)['stillhere_heartbeats_total{decision="too_many_leases"}'],
                         self.limited("max_leases_per_room") + self.limited("max_leases_per_user"))

    def at_once(self, calls):
        return [f.result() for f in [self.background(self.hb, self.bases[i % 2], *call, fresh=True)
                                     for i, call in enumerate(calls)]]

    def test_room_at_once(self):
        for _ in range(5):
            room = self.room()
            replies = self.at_once([(room, "u%d" % i, "s") for i in range(30)])
            self.assertEqual(sorted({r.status for r in replies}), [200, 429])
            self.assertEqual(sum(r.status == 200 for r in replies), 5)
            self.assertEqual(self.live(room_id=room), 5)
            self.assertEqual(len(self.events(room, kind="lease.granted")), 5)

    def test_user_at_once(self):
        for _ in range(5):
            user = self.room()
            replies = self.at_once([(self.room(), user, "s") for i in range(20)])
            self.assertEqual(sum(r.status == 200 for r in replies), 3)
            self.assertEqual(self.live(user_id=user), 3)

    def test_crossed_at_once(self):
        """Rooms and users in different orders: whoever waits for whom, nobody waits in a circle."""
        rooms = [self.room() for _ in range(4)]
        for turn in range(4):
            futures = []
            for i in range(8):
                order = rooms if i % 2 else list(reversed(rooms))
                items = [lease(room, "%s-%d" % (rooms[0], (i + turn) % 5), "s%d-%d" % (turn, i)) for room in order]
                futures.append(self.background(self.client.batch, self.bases[i % 2], items))
            for f in futures:
                self.assertEqual({r.get("status", 200) for r in self.ok(f.result())["results"]} - {200, 429}, set())
        for room in rooms:
            self.near(self.live(room_id=room), 0, 5)


class Waiting(Limited):
    """longpoll_max_per_credential: 2; with auth=none it is for each address."""

    config = {"longpoll_max_per_credential": 2, "longpoll_max_waiting": 3}

    def stream(self, path, headers=""):
        wire = Wire(self.base)
        self.addCleanup(wire.close)
        wire.send(("GET %s HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n%s\r\n" % (path, headers)).encode())
        return wire

    def none_waits(self):
        self.wait_until(lambda: self.waiting(self.base) == 0, 10, "the end of all waiting")

    def test_polls(self):
        room = self.room()
        head = self.grant(room)["room_revision"]
        before = self.limited("longpoll_max_per_credential")
        first = self.parked(self.base, room, head, wait_ms=1000)
        second = self.parked(self.base, room, head, wait_ms=20000)
        self.refused(self.poll(self.base, room, head, wait_ms=20000), "too_many_waiting")
        self.assertEqual(self.limited("longpoll_max_per_credential"), before + 1)
        # Without a wait nobody is refused.
        self.assertEqual(self.ok(self.poll(self.base, room, head, wait_ms=0))["mode"], "unchanged")
        self.ok(self.poll(self.base, room))
        self.assertEqual(self.ok(self.answer(first))["mode"], "unchanged")
        third = self.parked(self.base, room, head, wait_ms=20000)
        self.refused(self.poll(self.base, room, head, wait_ms=20000), "too_many_waiting")
        self.grant(room, "wakes")
        for future in (second, third):
            self.assertEqual(self.ok(self.answer(future))["mode"], "events")
        self.none_waits()

    def test_heartbeat_is_acknowledged(self):
        room = self.room()
        head = self.grant(room)["room_revision"]
        futures = [self.parked(self.base, room, head, wait_ms=20000) for _ in range(2)]
        answer = self.ok(self.hb(self.base, self.room("o"), "u", "s", query="?since=9"))
        self.assertEqual(answer["decision"], "accepted")
        answer = self.ok(self.hb(self.base, room, "u", "s", query="?since=%d" % head))
        self.assertEqual(answer["decision"], "accepted")
        self.grant(room, "wakes")
        for future in futures:
            self.ok(self.answer(future))
        self.none_waits()

    def test_streams_and_cursors_count_and_leave(self):
        room = self.room()
        head = self.grant(room)["room_revision"]
        cursors = "/rooms/%s/cursors" % quote(room)
        wires = [self.stream(presence_path(room)), self.stream(cursors)]
        self.wait_until(lambda: self.waiting(self.base) == 2, 5, "two streams")
        self.refused(self.poll(self.base, room, head, wait_ms=20000), "too_many_waiting")
        self.refused(self.client.get(self.base, cursors, headers={"Accept": "text/event-stream"}), "too_many_waiting")
        self.refused(self.client.get(self.base, presence_path(room), headers={"Accept": "text/event-stream"}),
                     "too_many_waiting")
        self.refused(self.client.get(self.base, cursors + "?since=0&wait_ms=20000"), "too_many_waiting")
        # A client that goes away leaves its place.
        for wire in wires:
            wire.close()
        self.none_waits()
        futures = [self.parked(self.base, room, head, wait_ms=500) for _ in range(2)]
        for future in futures:
            self.assertEqual(self.ok(self.answer(future))["mode"], "unchanged")
        self.none_waits()


class AllWaiting(Limited):
    """longpoll_max_waiting is everybody's: 503."""

    config = {"longpoll_max_waiting": 1}

    def test_polls(self):
        self.allow_5xx = True
        room = self.room()
        head = self.grant(room)["room_revision"]
        future = self.parked(self.base, room, head, wait_ms=500)
        reply = self.poll(self.base, room, head, wait_ms=20000)
        self.problem(reply, 503, "too_many_waiting")
        self.assertIn("retry-after", reply.headers)
        self.assertEqual(self.limited("longpoll_max_waiting"), 1)
        self.ok(self.answer(future))


class Sizes(Limited):
    """max_header_bytes, max_batch_leases, max_body_bytes."""

    config = {"max_batch_leases": 10, "max_body_bytes": 4096}

    def head_of(self, size, method="GET", path="/healthz", more=""):
        """A head of so many bytes, padded with a header."""
        head = "%s %s HTTP/1.1\r\nHost: x\r\n%sX-Pad: %%s\r\n\r\n" % (method, path, more)
        return (head % ("p" * (size - len(head) + 2))).encode()

    def demand(self, base, max_bytes):
        room = self.room()
        with Wire(base) as wire:
            body = json.dumps(lease(room, "u", "s")).encode()
            for size in (300, max_bytes, 300, max_bytes):  # one connection serves them one after the other
                wire.send(self.head_of(size))
                self.assertEqual(wire.reply().status, 200, size)
                wire.send(self.head_of(size, "PUT", "/leases", "Content-Length: %d\r\n" % len(body)) + body)
                self.assertEqual(wire.reply().status, 200, size)
        before = self.limited("max_header_bytes", base)
        for size in (max_bytes + 1, max_bytes + 1000):
            with Wire(base) as wire:
                wire.send(self.head_of(size))
                self.problem(wire.reply(), 431, "header_too_large")
                self.assertIsNone(wire.reply())
            with Wire(base) as wire:
                wire.send(("GET /healthz?%s HTTP/1.1\r\nHost: x\r\n\r\n" % ("q" * (size - 35))).encode())
                self.problem(wire.reply(), 414, "target_too_long")
        self.assertEqual(self.limited("max_header_bytes", base), before + 4)
        with Wire(base) as wire:
            wire.send(self.head_of(max_bytes * 4))
            self.assertEqual(wire.reply().status, 431)
        with Wire(base) as wire:
            wire.send(b"GET /" + b"q" * max_bytes * 4 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(wire.reply().status, 414)
        fields = "".join("X-Field-%d: v\r\n" % i for i in range(20))
        with Wire(base) as wire:
            wire.send(self.head_of(max_bytes, more=fields))
            self.assertEqual(wire.reply().status, 200)

    def test_header_by_default(self):
        self.demand(self.base, 14336)

    def test_header_as_configured(self):
        for size in (4096, 65536):
            with self.subTest(size=size):
                d = self.start_daemon(max_header_bytes=size)
                self.demand(d.base, size)
                self.stop_now(d)

    def test_batch(self):
        room = self.room()
        items = [lease(room, "u", "s%d" % i) for i in range(11)]
        before = self.limited("max_batch_leases")
        self.problem(self.client.batch(self.base, items), 400, "bad_field", "leases")
        self.assertEqual(self.limited("max_batch_leases"), before + 1)
        self.assertEqual(self.count("lease", room_id=room), 0)
        self.assertEqual(len(self.ok(self.client.batch(self.base, items[:10]))["results"]), 10)

    def test_body(self):
        room = self.room()
        before = self.limited("max_body_bytes")
        reply = self.client.put_json(self.base, lease(room, "u", "s", meta={"a": "x" * 4096}), fresh=True)
        self.problem(reply, 413, "body_too_large")
        with Wire(self.base) as wire:
            wire.send(b"PUT /leases HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            wire.send(b"1000\r\n" + b" " * 4096 + b"\r\n" + b"1\r\n \r\n")
            self.problem(wire.reply(), 413, "body_too_large")
        self.assertEqual(self.limited("max_body_bytes"), before + 2)
        self.assertEqual(self.count("lease", room_id=room), 0)


class Connections(Limited):
    """max_connections and max_connections_per_ip: what is beyond is answered and closed."""

    autostart = False

    def ask(self, d, at="127.0.0.1"):
        """Opens a connection from an address. @return it, and the status of the answer on it"""
        s = socket.create_connection(hostport(d.base), 5, source_address=(at, 0))
        self.addCleanup(s.close)
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        reply, data = None, b""
        while reply is None:
            more = s.recv(65536)
            self.assertTrue(more, data)
            data += more
            reply = (take_reply(data) or [None])[0]
        return s, reply

    def fill(self, d, most):
        """Opens connections until one is refused. @return those that were not"""
        held = []
        while True:
            connection, reply = self.ask(d)
            if reply.status != 200:
                break
            held.append(connection)
        self.near(len(held), most - 1, most)  # the harness may hold one too
        self.problem(reply, 503, "too_many_connections")
        self.near(int(reply.headers["retry-after"]), 1, 3)
        return held

    def test_of_one_address(self):
        d = self.start_daemon(max_connections_per_ip=4)
        self.fill(d, 4)
        self.assertIn(b'stillhere_limited_total{limit="max_connections_per_ip"} 1\n', self.ask(d, "127.0.0.2")[1].body)

    def test_of_all(self):
        d = self.start_daemon(max_connections=4, longpoll_max_waiting=1)
        held = self.fill(d, 4)
        self.problem(self.ask(d, "127.0.0.2")[1], 503, "too_many_connections")
        held[0].close()
        counted = b'stillhere_limited_total{limit="max_connections"} '
        self.wait_until(lambda: counted in self.ask(d)[1].body, 5, "a free place")
