# SPDX-License-Identifier: Apache-2.0
"""A revocation in the midst of heartbeats and cursors on three instances: after its answer nobody takes one more."""

from harness import LONG
from harness.case import Case, json, presence_path, quote, random, sql, threading, time
from harness.client import Flock
from harness.sse import Streams

ROUNDS = 100 if LONG else 3
SESSIONS = 50
#: The user who is revoked, and another one of the room.
BAD, GOOD = "mallory", "grace"
GOOD_SESSIONS = 5
#: How long it goes on after the answer.
AFTER = 0.5


class Shot:
    """One request and what became of it."""

    def __init__(self, kind, user, instance, sent, reply):
        self.kind, self.user, self.instance, self.sent = kind, user, instance, sent
        self.status, self.body = reply.status, reply.body

    @property
    def accepted(self):
        return self.status in (200, 202)

    @property
    def code(self):
        return None if self.accepted else json.loads(self.body)["code"]

    def __repr__(self):
        return "<%s of %s on %d: %d %r>" % (self.kind, self.user, self.instance, self.status, self.body[:200])


class Race(Case):
    instances = 3
    config = {"decision_log": "off"}

    def member(self, method, room, base):
        path = "/rooms/%s/members/%s" % (quote(room), BAD)
        return self.ok(self.client.request(base, method, path, body="{}" if method == "PUT" else None))

    def heartbeat(self, instance, room, user, session):
        sent = time.monotonic()
        return Shot("heartbeat", user, instance, sent, self.hb(self.bases[instance], room, user, session))

    def cursor(self, instance, room, user, session):
        body = json.dumps({"user_id": user, "session_id": session, "data": {"n": random.random()}})
        sent = time.monotonic()
        reply = self.client.request(self.bases[instance], "POST", "/rooms/%s/cursors" % quote(room), body,
                                    {"Content-Type": "application/json"})
        return Shot("cursor", user, instance, sent, reply)

    def hammer(self, shoot, instance, room, over):
        """Shoots until it is over: mostly for the one, sometimes for the other. @return the shots"""
        shots = []
        while not over.is_set():
            good = random.random() < 0.2
            user, n = (GOOD, GOOD_SESSIONS) if good else (BAD, SESSIONS)
            shots.append(shoot(instance, room, user, "s%d" % random.randrange(n)))
        return shots

    def cursors(self, base, room):
        """The users who have a cursor there."""
        reply = self.client.get(base, "/rooms/%s/cursors" % quote(room))
        return {c["user_id"] for c in self.ok(reply)["cursors"]}

    def watch(self, room):
        """Polls and streams of both on every instance, which only an expulsion ends."""
        polls, streams = [], []
        head = self.head(room)
        for base in self.bases:
            paths = [presence_path(room, head, kinds="lease.renewed", user_id=user, session_id="s0", wait_ms=50000)
                     for user in (BAD, GOOD)]
            polls.append(Flock(base, paths))
            streams.append(Streams(base, paths + ["/rooms/%s/cursors?user_id=%s" % (quote(room), BAD)]))
            self.addCleanup(polls[-1].close)
            self.addCleanup(streams[-1].close)
        for s in streams:
            self.assertTrue(s.collect(lambda s=s: all(r.retry is not None for r in s.readers)))
        self.wait_until(lambda: all(self.waiting(b) >= 5 for b in self.bases), 10, "the watchers")
        return polls, streams

    def check_watchers(self, polls, streams, answered):
        for flock in polls:
            bad, good = flock.collect(self.within(2), 1)
            self.assertIsNotNone(bad, "the poll of the revoked user goes on")
            self.problem(bad[0], 403, "membership_revoked")
            self.assertLess(bad[1], answered + self.within(2))
            self.assertIsNone(good)
            flock.close()
        for s in streams:
            self.assertTrue(s.collect(lambda s=s: s[0].whole and s[2].whole, 2), "a stream of the revoked user goes on")
            for reader in (s[0], s[2]):
                self.assertEqual(reader.messages[-1].event, "problem")
                self.problem_object(reader.messages[-1].json(), 403, "membership_revoked")
            self.assertFalse(s[1].whole)
            s.close()

    def check_shots(self, shots, called, answered):
        """No shot that was sent after the answer is accepted, and before the call every one is.
        @return which (kind, instance) had a shot that was accepted before, and which one that was sent after"""
        for shot in shots:
            if shot.user == GOOD or shot.sent > answered:
                self.assertEqual(shot.accepted, shot.user == GOOD, shot)
            if not shot.accepted:
                self.assertEqual([shot.status, shot.code], [403, "membership_revoked"], shot)
        mine = [s for s in shots if s.user == BAD]
        return ({(s.kind, s.instance) for s in mine if s.accepted and s.sent < called},
                {(s.kind, s.instance) for s in mine if s.sent > answered})

    def check_events(self, room, since):
        """Each stay has exactly one end, and none goes on."""
        self.assertEqual(self.count("lease", room_id=room, user_id=BAD), 0)
        self.assertEqual(self.count("lease", room_id=room, user_id=GOOD), GOOD_SESSIONS)
        events = [e for e in self.events(room) if e["revision"] > since]
        self.assertEqual({e["user_id"] for e in events}, {BAD})
        of = {kind: sorted(e["session_id"] for e in events if e["kind"] == kind)
              for kind in ("lease.granted", "membership.revoked")}
        self.assertEqual(of["membership.revoked"], of["lease.granted"])
        self.assertEqual(of["lease.granted"], sorted("s%d" % i for i in range(SESSIONS)))
        self.assertEqual([e["kind"] for e in events if e["kind"].startswith("user.")], ["user.online", "user.offline"])

    def round(self, room):
        since = self.head(room)
        for i in range(SESSIONS):
            self.grant(room, "s%d" % i, user=BAD, base=self.bases[i % self.instances])
        polls, streams = self.watch(room)
        over = threading.Event()
        hammers = [self.background(self.hammer, shoot, instance, room, over)
                   for shoot in (self.heartbeat, self.cursor) for instance in range(self.instances) for _ in range(2)]
        time.sleep(0.2 + random.random() * 0.3)
        called = time.monotonic()
        self.member("DELETE", room, random.choice(self.bases))
        answered = time.monotonic()
        time.sleep(AFTER)
        over.set()
        shots = [shot for h in hammers for shot in h.result(30)]
        hit = self.check_shots(shots, called, answered)
        self.check_watchers(polls, streams, answered)
        for base in self.bases:
            self.wait_until(lambda b=base: BAD not in self.cursors(b, room), 1, "the end of the cursors")
        self.check_events(room, since)
        return hit

    def test_nothing_is_accepted_after_the_answer(self):
        room = self.room()
        for i in range(GOOD_SESSIONS):
            self.grant(room, "s%d" % i, user=GOOD)
        before, after = set(), set()
        for number in range(ROUNDS):
            with self.subTest(round=number):
                hit = self.round(room)
                before, after = before | hit[0], after | hit[1]
                self.member("PUT", room, random.choice(self.bases))
                for instance in range(self.instances):
                    for shot in (self.heartbeat(instance, room, BAD, "s0"), self.cursor(instance, room, BAD, "s0")):
                        self.assertTrue(shot.accepted, shot)
                self.assertEqual(self.member("DELETE", room, self.base)["decision"], "accepted")
                self.member("PUT", room, self.base)
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.tombstone WHERE room_id = %s AND reason <> 'revoked'" %
                                sql(room)), "0")
        # Of all rounds together: on a busy machine a single one may be over before somebody's turn comes.
        everywhere = {(kind, i) for kind in ("heartbeat", "cursor") for i in range(self.instances)}
        self.assertEqual([everywhere - before, everywhere - after], [set(), set()], "not tried before, or after")
