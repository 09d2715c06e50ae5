# SPDX-License-Identifier: Apache-2.0
"""A snapshot and the events after it are the server's own state: readers fold them under random load."""

from harness.case import SLOW, Case, instant, json, lease, random, sql, threading, time

#: Short, and with a sweep that is not much slower, so that users do go offline between two heartbeats.
GRACE_MS = 300


def ms(text):
    return round(instant(text) * 1000)


def meta_text(meta):
    return json.dumps(meta or {}, sort_keys=True)


class User:
    """Somebody in a room: online since when (ms), until when in grace or None, and the sessions with their meta."""

    def __init__(self, online_since=None, offline_at=None, sessions=()):
        self.online_since, self.offline_at, self.sessions = online_since, offline_at, dict(sessions)

    def frozen(self):
        return (self.online_since, self.offline_at, tuple(sorted(self.sessions.items())))


class Room:
    """A room as its events tell it. Each event must be possible where it comes."""

    def __init__(self):
        self.users = {}
        self.coming = None  # a user whose first session has begun: the next event is their user.online

    @classmethod
    def of_snapshot(cls, answer):
        room = cls()
        for u in answer["users"]:
            sessions = {s["session_id"]: meta_text(s["meta"]) for s in u["sessions"]}
            if ("offline_at" in u) == bool(sessions):
                raise AssertionError("in grace or not: %r" % u)
            offline_at = ms(u["offline_at"]) if "offline_at" in u else None
            room.users[u["user_id"]] = User(ms(u["online_since"]), offline_at, sessions)
        counts = {"users": len(room.users), "sessions": sum(len(u.sessions) for u in room.users.values())}
        if answer["counts"] != counts or len(answer["users"]) != len(room.users):
            raise AssertionError("counts %r of %r" % (answer["counts"], answer["users"]))
        return room

    def frozen(self):
        return {name: user.frozen() for name, user in self.users.items()}

    def apply(self, event):
        coming, self.coming = self.coming, None
        if coming is not None and (event["kind"], event["user_id"]) != ("user.online", coming):
            raise AssertionError("%s came without user.online: %r" % (coming, event))
        if event["kind"] in ("user.online", "user.offline"):
            self.apply_to_user(event, coming)
        else:
            self.apply_to_session(event)
        user = self.users.get(event["user_id"])
        sessions = len(user.sessions) if user else 0
        if sessions != event["user_sessions"]:
            raise AssertionError("user_sessions %d, folded %d: %r" % (event["user_sessions"], sessions, event))

    def apply_to_user(self, event, coming):
        name, at = event["user_id"], ms(event["at"])
        if "session_id" in event:
            raise AssertionError("of no session: %r" % event)
        if event["kind"] == "user.online":
            if coming is None:
                raise AssertionError("online without a first session: %r" % event)
            self.users[name].online_since = at
        else:
            user = self.users.pop(name, None)
            if user is None or user.offline_at is None:
                raise AssertionError("offline, but not in grace: %r" % event)
            if at < user.offline_at:
                raise AssertionError("offline before %d: %r" % (user.offline_at, event))

    def apply_to_session(self, event):
        name, session, kind, at = event["user_id"], event["session_id"], event["kind"], ms(event["at"])
        user = self.users.get(name)
        if kind == "lease.granted":
            if user is None:
                user = self.users[name] = User()
                self.coming = name
            if session in user.sessions:
                raise AssertionError("granted twice: %r" % event)
            if user.offline_at is not None and at > user.offline_at:
                raise AssertionError("back after the grace that ended at %d, without user.offline and user.online: %r" %
                                     (user.offline_at, event))
            user.offline_at = None
            user.sessions[session] = meta_text(event["meta"])
        elif user is None or session not in user.sessions:
            raise AssertionError("not there: %r" % event)
        elif kind == "lease.renewed":
            user.sessions[session] = meta_text(event["meta"])
        else:
            del user.sessions[session]
            if not user.sessions:
                user.offline_at = at + GRACE_MS


class Reader:
    """Follows one room on one instance and folds what it is told."""

    def __init__(self, test, base, room, seed):
        self.test, self.base, self.room = test, base, room
        self.random = random.Random(seed)
        self.state, self.revision, self.epoch = Room(), None, None
        self.snapshots = self.events = self.same = self.graces = 0
        self.history = {}  # revision -> the state after it, frozen
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
            state = Room.of_snapshot(answer)
            self.graces += sum(u.offline_at is not None for u in state.users.values())
            if self.revision == answer["revision"]:
                self.same += 1
                if state.frozen() != self.state.frozen():
                    raise AssertionError("the snapshot of %d is %r, folded %r" %
                                         (self.revision, state.frozen(), self.state.frozen()))
            self.state = state
            self.history[answer["revision"]] = state.frozen()
        else:
            if answer["from"] != since:
                raise AssertionError("from is %r" % answer["from"])
            expected = since
            for event in answer["events"]:
                expected += 1
                if event["revision"] != expected:
                    raise AssertionError("revision %d after %d" % (event["revision"], expected - 1))
                self.events += 1
                self.state.apply(event)
                self.history[expected] = self.state.frozen()
            if answer["revision"] != expected:
                raise AssertionError("covers %d, told %d" % (answer["revision"], expected))
        self.revision = answer["revision"]


class Fold(Case):
    """Three instances, several writers, several readers on each."""

    weight = 5
    instances = 3
    config = {"ttl_min_ms": 100, "sweep_interval_ms": 200, "replay_limit": 40, "offline_grace_ms": GRACE_MS}

    @staticmethod
    def who(rng):
        """A user and a session: some are busy with several, others come so seldom that they go offline in between."""
        user = rng.choices(range(6), (60, 40, 20, 3, 2, 1))[0]
        return "u%d" % user, "s%d" % rng.randrange(max(1, 4 - user))

    def writer(self, seed, rooms, stop):
        """Random heartbeats, closes and batches on random instances."""
        rng = random.Random(seed)
        while time.monotonic() < stop:
            room, (user, session) = rng.choice(rooms), self.who(rng)
            base = rng.choice(self.bases)
            meta = rng.choice((None, None, {}, {"n": rng.randrange(3)}))
            ttl = rng.choice((150, 400, 1000, 60000))
            what = rng.random()
            if what < 0.2:
                reply = self.client.close(base, room, user, session)
                expected = (200, 404)
            elif what < 0.35:
                items = [lease(rng.choice(rooms), *self.who(rng), rng.randrange(1, 10000), ttl, meta)
                         for _ in range(rng.randrange(1, 12))]
                reply = self.client.batch(base, items)
                expected = (200,)
            else:
                revision = rng.choice((None, rng.randrange(1, 10000)))
                reply = self.hb(base, room, user, session, revision, ttl, meta)
                expected = (200, 409, 410)
            if reply.status not in expected:
                return repr(reply)
        return None

    def frame(self, room):
        """What the tables say about a room, in one statement: (revision, the state as a Room freezes it)."""
        text = self.q("""
            SELECT json_build_array(coalesce((SELECT revision FROM stillhere.room WHERE room_id = {0}), 0),
              coalesce((SELECT json_agg(json_build_array(user_id, floor(extract(epoch FROM online_since) * 1000)::int8,
                                                         floor(extract(epoch FROM offline_at) * 1000)::int8))
                FROM stillhere.room_user WHERE room_id = {0}), '[]'),
              coalesce((SELECT json_agg(json_build_array(user_id, session_id, coalesce(meta, '{{}}'::json)))
                FROM stillhere.lease WHERE room_id = {0}), '[]'))""".format(sql(room)))
        revision, users, leases = json.loads(text)
        state = {name: User(online_since, offline_at) for name, online_since, offline_at in users}
        for name, session, meta in leases:
            self.assertIn(name, state, "a session of nobody in room_user")
            state[name].sessions[session] = meta_text(meta)
        return revision, {name: user.frozen() for name, user in state.items()}

    def frames_until(self, stop, rooms):
        """Frames of all rooms while it goes on. @return [(room, revision, state)]"""
        frames = []
        while time.monotonic() < stop:
            frames += [(room,) + self.frame(room) for room in rooms]
            self.pause(0.02)
        return frames

    def test_snapshot_and_events_equal_the_database_under_random_load(self):
        seed = random.SystemRandom().randrange(1 << 30)
        rooms = [self.room("r%d" % i) for i in range(3)]
        readers = [Reader(self, base, room, seed + 100 + i) for room in rooms for i, base in enumerate(self.bases * 2)]
        threads = [threading.Thread(target=r.run) for r in readers]
        for t in threads:
            t.start()
        stop = time.monotonic() + 12
        writers = [self.background(self.writer, seed + i, rooms, stop) for i in range(6)]
        frames = self.frames_until(stop, rooms)
        self.assertEqual([w.result(60 * SLOW) for w in writers], [None] * 6, "seed %d" % seed)
        # What is left runs out, except the long ones; then every fold must be what the database says.
        left = ("SELECT (SELECT count(*) FROM stillhere.lease WHERE ttl_ms < 60000) + "
                "(SELECT count(*) FROM stillhere.room_user WHERE offline_at IS NOT NULL)")
        self.wait_until(lambda: self.q(left) == "0", 8, "the last expiries and offlines")
        last = [(room,) + self.frame(room) for room in rooms]
        heads = {room: revision for room, revision, _ in last}
        for reader in readers:
            reader.goal = heads[reader.room]
        for t in threads:
            t.join(70 * SLOW)
        self.assertEqual([r.fault for r in readers if r.fault], [], "seed %d" % seed)
        for room, revision, state in last:
            for reader in (r for r in readers if r.room == room):
                self.assertEqual([reader.revision, reader.state.frozen()], [revision, state],
                                 "%s on %s, seed %d" % (room, reader.base, seed))
        self.folds_equal_the_tables(readers, frames, seed)
        self.assertGreater(sum(r.events for r in readers), 500)
        for room in rooms:
            self.assertEqual([e["revision"] for e in self.events(room)], list(range(1, heads[room] + 1)), "no gaps")
            self.assertGreater(self.count("event", room_id=room, kind="user.offline"), 3, "somebody went")
        self.assertGreater(sum(r.graces for r in readers), 10, "users in grace in snapshots")
        self.assertGreater(sum(r.same for r in readers), 20, "snapshots of a revision that was folded")
        self.stories_are_whole(rooms)

    def folds_equal_the_tables(self, readers, frames, seed):
        """Whoever has passed a revision at which the tables were read had the same state then, graces included."""
        compared = graces = 0
        for room, revision, state in frames:
            for reader in (r for r in readers if r.room == room and revision in r.history):
                self.assertEqual(reader.history[revision], state,
                                 "%s at %d on %s, seed %d" % (room, revision, reader.base, seed))
                compared += 1
                graces += sum(offline_at is not None for _, offline_at, _ in state.values())
        self.assertGreater(compared, 100)
        self.assertGreater(graces, 20)

    def stories_are_whole(self, rooms):
        """Each session begins, perhaps changes, ends, and begins again with a newer revision; each user comes, goes,
        and comes again."""
        for room in rooms:
            state, last, online = {}, {}, set()
            for event in self.events(room):
                user, key = event["user_id"], (event["user_id"], event["session_id"])
                if event["kind"].startswith("user."):
                    self.assertEqual(user in online, event["kind"] == "user.offline", event)
                    online ^= {user}
                    continue
                begins = event["kind"] == "lease.granted"
                self.assertEqual(state.get(key, False), not begins, event)
                if event["kind"] in ("lease.granted", "lease.renewed"):
                    self.assertGreater(event["lease_revision"], last.get(key, 0), event)
                    state[key] = True
                else:
                    self.assertGreaterEqual(event["lease_revision"], last.get(key, 0), event)
                    state[key] = False
                last[key] = event["lease_revision"]
            present = set(self.q("SELECT user_id FROM stillhere.room_user WHERE room_id = %s" % sql(room)).split())
            self.assertEqual(online, present, room)
