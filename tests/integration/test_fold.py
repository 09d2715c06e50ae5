# SPDX-License-Identifier: Apache-2.0
"""A snapshot and the events after it are the server's own state: readers fold them under random load."""

from harness.case import SLOW, Case, json, lease, random, sql, threading, time


class Reader:
    """Follows one room on one instance and folds what it is told."""

    def __init__(self, test, base, room, seed):
        self.test, self.base, self.room = test, base, room
        self.random = random.Random(seed)
        self.state, self.revision, self.epoch = {}, None, None
        self.snapshots = self.events = 0
        self.goal = None  # the revision to stop at
        self.fault = None

    def run(self):
        try:
            deadline = time.monotonic() + 60 * SLOW
            while self.goal is None or self.revision is None or self.revision < self.goal:
                if time.monotonic() > deadline:
                    raise AssertionError("stuck at %r of %r" % (self.revision, self.goal))
                self.step()
        except Exception as e:  # told by the test
            self.fault = "%s, %s at %r: %s: %s" % (self.room, self.base, self.revision, type(e).__name__, e)

    def step(self):
        since = self.revision
        if since is not None and self.random.random() < 0.03:
            since = None  # begins anew, as a client after a reload
        query = {"wait_ms": self.random.choice((0, 50, 300)), "limit": self.random.choice((None, 1, 7, 1000))}
        if since is not None and self.epoch:
            query["epoch"] = self.epoch
        reply = self.test.client.poll(self.base, self.room, since, **query)
        if reply.status != 200:
            raise AssertionError(repr(reply))
        answer = reply.json()
        self.epoch = answer["epoch"]
        if answer["mode"] == "snapshot":
            if self.revision is not None and answer["revision"] < self.revision:
                raise AssertionError("went back to %d" % answer["revision"])
            self.snapshots += 1
            self.state = {(u["user_id"], s["session_id"]): json.dumps(s["meta"] or {}, sort_keys=True)
                          for u in answer["users"] for s in u["sessions"]}
            if answer["counts"] != {"users": len({u for u, _ in self.state}), "sessions": len(self.state)}:
                raise AssertionError("counts %r" % answer["counts"])
        else:
            if answer["from"] != since:
                raise AssertionError("from is %r" % answer["from"])
            expected = since
            for event in answer["events"]:
                expected += 1
                if event["revision"] != expected:
                    raise AssertionError("revision %d after %d" % (event["revision"], expected - 1))
                self.apply(event)
            if answer["revision"] != expected:
                raise AssertionError("covers %d, told %d" % (answer["revision"], expected))
        self.revision = answer["revision"]

    def apply(self, event):
        self.events += 1
        key = (event["user_id"], event["session_id"])
        kind = event["kind"]
        if kind == "lease.granted":
            if key in self.state:
                raise AssertionError("granted twice: %r" % event)
            self.state[key] = json.dumps(event["meta"] or {}, sort_keys=True)
        elif kind == "lease.renewed":
            if key not in self.state:
                raise AssertionError("renewed but not there: %r" % event)
            self.state[key] = json.dumps(event["meta"], sort_keys=True)
        else:
            if self.state.pop(key, None) is None:
                raise AssertionError("ended but not there: %r" % event)
        sessions = sum(1 for user, _ in self.state if user == event["user_id"])
        if sessions != event["user_sessions"]:
            raise AssertionError("user_sessions %d, folded %d: %r" % (event["user_sessions"], sessions, event))


class Fold(Case):
    """Three instances, several writers, several readers on each."""

    weight = 5
    instances = 3
    config = {"ttl_min_ms": 100, "sweep_interval_ms": 200, "replay_limit": 40}

    def writer(self, seed, rooms, stop):
        """Random heartbeats, closes and batches on random instances."""
        rng = random.Random(seed)
        while time.monotonic() < stop:
            room, user, session = rng.choice(rooms), "u%d" % rng.randrange(4), "s%d" % rng.randrange(4)
            base = rng.choice(self.bases)
            meta = rng.choice((None, None, {}, {"n": rng.randrange(3)}))
            ttl = rng.choice((150, 400, 1000, 60000))
            what = rng.random()
            if what < 0.2:
                reply = self.client.close(base, room, user, session)
                expected = (200, 404)
            elif what < 0.35:
                items = [lease(rng.choice(rooms), "u%d" % rng.randrange(4), "s%d" % rng.randrange(4),
                               rng.randrange(1, 10000), ttl, meta) for _ in range(rng.randrange(1, 12))]
                reply = self.client.batch(base, items)
                expected = (200,)
            else:
                revision = rng.choice((None, rng.randrange(1, 10000)))
                reply = self.hb(base, room, user, session, revision, ttl, meta)
                expected = (200, 409, 410)
            if reply.status not in expected:
                return repr(reply)
        return None

    def test_snapshot_and_events_equal_the_database_under_random_load(self):
        seed = random.SystemRandom().randrange(1 << 30)
        rooms = [self.room("r%d" % i) for i in range(3)]
        readers = [Reader(self, base, room, seed + 100 + i) for room in rooms for i, base in enumerate(self.bases * 2)]
        threads = [threading.Thread(target=r.run) for r in readers]
        for t in threads:
            t.start()
        stop = time.monotonic() + 12
        writers = [self.background(self.writer, seed + i, rooms, stop) for i in range(6)]
        self.assertEqual([w.result(60 * SLOW) for w in writers], [None] * 6, "seed %d" % seed)
        # What is left runs out, except the long ones; then every fold must be what the database says.
        self.wait_until(lambda: self.q("SELECT count(*) FROM stillhere.lease WHERE ttl_ms < 60000") == "0", 8,
                        "the last expiries")
        heads = {room: self.head(room) for room in rooms}
        for reader in readers:
            reader.goal = heads[reader.room]
        for t in threads:
            t.join(70 * SLOW)
        self.assertEqual([r.fault for r in readers if r.fault], [], "seed %d" % seed)
        for reader in readers:
            text = self.q("SELECT coalesce(json_agg(json_build_array(user_id, session_id, coalesce(meta, '{}'::json))), "
                          "'[]') FROM stillhere.lease WHERE room_id = %s" % sql(reader.room))
            stored = {(u, s): json.dumps(m, sort_keys=True) for u, s, m in json.loads(text)}
            self.assertEqual(reader.state, stored, "%s on %s, seed %d" % (reader.room, reader.base, seed))
            self.assertEqual(reader.revision, heads[reader.room])
        self.assertGreater(sum(r.events for r in readers), 500)
        for room in rooms:
            self.assertEqual([e["revision"] for e in self.events(room)], list(range(1, heads[room] + 1)), "no gaps")
        self.stories_are_whole(rooms)

    def stories_are_whole(self, rooms):
        """Each session begins, perhaps changes, ends, and begins again with a newer revision."""
        for room in rooms:
            state, last = {}, {}
            for event in self.events(room):
                key = (event["user_id"], event["session_id"])
                begins = event["kind"] == "lease.granted"
                self.assertEqual(state.get(key, False), not begins, event)
                if event["kind"] in ("lease.granted", "lease.renewed"):
                    self.assertGreater(event["lease_revision"], last.get(key, 0), event)
                    state[key] = True
                else:
                    self.assertGreaterEqual(event["lease_revision"], last.get(key, 0), event)
                    state[key] = False
                last[key] = event["lease_revision"]
