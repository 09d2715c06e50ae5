# SPDX-License-Identifier: Apache-2.0
"""Those who write: threads with sessions of their own, a thread for late and doubled messages, and a steady gateway."""

import heapq
import queue
import threading
import time

from harness.client import quote

from .people import Beat, Person, Session, judge, judge_close


class Patient(threading.Thread):
    """A client that asks again until it is answered, with what it asked before."""

    def __init__(self, world, name):
        super().__init__(name=name, daemon=True)
        self.world, self.rng = world, world.random(name)
        self.error = None

    def run(self):
        try:
            self.work()
        except Exception as e:  # a client that dies silently would make an idle soak pass
            self.world.violate("the thread %s has died" % self.name, "%s: %s" % (type(e).__name__, e))
            raise

    def insist(self, method, path, document=None, headers=None, unanswered=None):
        """Asks until there is a final answer. @a document may be a function, called for each attempt.
        @return (Reply, number of attempts)"""
        attempts = 0
        while True:
            attempts += 1
            body = document() if callable(document) else document
            reply = self.world.call(self.world.pick(self.rng), method, path, body, headers)
            if reply.final:
                return reply, attempts
            if unanswered:
                unanswered()
            time.sleep(self.rng.uniform(0.05, 0.3))


class Writer(Patient):
    """Joins, renews, closes, falls silent, revokes and signs in, at random."""

    def __init__(self, world, number, strays):
        super().__init__(world, "writer%d" % number)
        self.strays = strays
        self.people, self.heap, self.attendance = [], [], {}
        self.sent_keys = set()
        o = world.options
        for k in range(o.people):
            person = Person("room %d/%s" % (k % o.rooms, "é:ß"), "u%d-%d" % (number, k))
            self.people.append(person)
            for name in range(self.rng.choice((1, 1, 2, 3))):
                s = Session(person, "s%d" % name, self.rng.choice(o.ttls))
                person.sessions.append(s)
        self.sessions = [s for p in self.people for s in p.sessions]
        for i, s in enumerate(self.sessions):
            heapq.heappush(self.heap, (time.monotonic() + self.rng.uniform(0, 3), i))
        self.interval, self.serial = 1.0, 0

    def work(self):
        while not self.world.load_over.is_set():
            due, i = self.heap[0]
            left = due - time.monotonic()
            if left > 0:
                self.world.load_over.wait(min(left, 0.2))
                continue
            heapq.heappop(self.heap)
            s = self.sessions[i]
            # Those who wait for it are late after an outage; the load must not pile up.
            pause = self.act(s) or self.rng.expovariate(1 / self.interval)
            heapq.heappush(self.heap, (max(due + pause, time.monotonic() - 1), i))
        for p in self.people:  # so that whoever is revoked at the end is known to be
            if p.revoked is None:
                self.grant(p)

    # -- what may happen -----------------------------------------------------------------------------------------------

    def act(self, s):
        """One thing to do for a session. @return a pause in seconds where it is to be a special one"""
        person, dice = s.person, self.rng.random()
        if person.revoked or (person.revoked is None and not person.hazy()):
            if person.revoked is None or dice < 0.3:
                return self.grant(person)
            return self.beat(Beat(s, s.fresh(self.rng)))
        if not s.inside:
            return self.enter(s, dice)
        for share, action in ((0.46, self.renew), (0.14, self.renew_without), (0.10, self.change), (0.05, self.repeat),
                              (0.05, self.twin), (0.07, self.batch), (0.06, self.close), (0.04, self.silence),
                              (0.02, self.attend), (0.006, self.revoke)):
            dice -= share
            if dice < 0:
                return action(s)
        return self.renew(s)

    def enter(self, s, dice):
        if s.acked and dice < 0.15:
            return self.old(s)
        if dice < 0.4:
            return self.beat(Beat(s, None))
        if dice < 0.5 and s.acked:
            return self.close(s)  # once more
        self.beat(Beat(s, s.fresh(self.rng), self.meta() if dice < 0.7 else None))

    def renew(self, s):
        self.beat(Beat(s, s.fresh(self.rng)))

    def renew_without(self, s):
        self.beat(Beat(s, None))

    def change(self, s):
        self.beat(Beat(s, s.fresh(self.rng) if self.rng.random() < 0.7 else None, self.meta()))

    def old(self, s):
        self.beat(Beat(s, self.rng.randint(max(1, s.acked - 3), s.acked), old=True))

    def repeat(self, s):
        """What was acknowledged already, now or later, from somebody else at the same time."""
        self.old(s)
        self.strays.put((time.monotonic() + self.rng.uniform(0, 8), Beat(s, s.acked, old=True)))

    def twin(self, s):
        """The same heartbeat twice at once."""
        beat = Beat(s, s.fresh(self.rng), twin=True)
        s.ceiling = max(s.ceiling, beat.revision)
        self.strays.put((0, beat))
        self.beat(beat)

    def silence(self, s):
        s.note("falls silent")
        s.inside = False
        # Half of them come back about when the sweeper does.
        ttl = s.ttl_ms / 1000
        return self.rng.choice((ttl * self.rng.uniform(0.8, 2.2), ttl + self.rng.uniform(-0.1, 1.2)))

    def meta(self):
        self.serial += 1
        return {"n": "%s-%d" % (self.name, self.serial), "pad": "x" * self.rng.randint(0, 60)}

    # -- how it is asked -----------------------------------------------------------------------------------------------

    def beat(self, beat):
        reply, _ = self.insist("PUT", "/leases", beat.document)
        self.judge(beat, reply.status, reply.doc, reply.sent)

    def judge(self, beat, status, doc, sent):
        judge(self.world, beat, status, doc, sent)

    def batch(self, s):
        """Some sessions in one request, one of them twice."""
        some = [x for x in self.rng.sample(self.sessions, min(len(self.sessions), self.rng.randint(2, 12)))
                if x.person.revoked is False]
        if not some:
            return
        beats = [Beat(x, x.fresh(self.rng) if self.rng.random() < 0.8 else None) for x in some]
        if beats[0].revision is not None and not some[0].ghosts:
            beats.append(Beat(some[0], beats[0].revision + 1))
        while beats:
            reply, _ = self.insist("PUT", "/leases", lambda: {"leases": [b.document() for b in beats]})
            results = reply.doc.get("results") if reply.status == 200 else None
            if results is None or len(results) != len(beats):
                self.world.violate("an answer to a batch that cannot be", "%d %r" % (reply.status, reply.doc), s)
                return
            again = []
            for b, result in zip(beats, results):
                status = result.get("status", 200)
                if status < 500:
                    self.judge(b, status, result, reply.sent)
                else:
                    again.append(b)
                    self.world.unavailable(0, "PUT", "/leases (an item of a batch)",
                                           type(reply)(status, result, reply.sent, reply.done))
            beats = again
            if beats:
                time.sleep(0.1)

    def close(self, s):
        dice = self.rng.random()
        old = dice < 0.1 and s.acked > 1
        revision = self.rng.randint(1, s.acked - 1) if old else None if dice < 0.4 else s.fresh(self.rng)
        s.ceiling = max(s.ceiling, revision or 0)
        path = "/rooms/%s/leases/%s/%s" % (quote(s.person.room), quote(s.person.user), quote(s.name))

        def unanswered():
            if revision is None:
                s.hazy_until = time.monotonic() + 30

        reply, attempts = self.insist("DELETE", path + ("" if revision is None else "?revision=%d" % revision),
                                      unanswered=unanswered)
        judge_close(self.world, s, revision, old, reply, attempts)

    def attend(self, s):
        self.world.counts["attendance"] += 1
        out = self.rng.random() < 0.2
        self.serial += 1
        key = "%s-%d" % (self.name, self.serial)
        document = {"user_id": s.person.user, "action": "sign_out" if out else "sign_in", "session_id": s.name}

        def unanswered():
            if out:
                s.hazy_until, s.closed = time.monotonic() + 30, None

        was_live = s.surely_live
        self.sent_keys.add((s.person.room, s.person.user, key))
        reply, attempts = self.insist("POST", "/rooms/%s/attendance" % quote(s.person.room), document,
                                      {"Idempotency-Key": key}, unanswered)
        s.note("attendance %s -> %d" % (document["action"], reply.status))
        repeated = attempts > 1 or self.world.excused(reply.sent, reply.done, 1)
        if reply.status not in (200, 201) or (reply.status == 200 and not repeated):
            self.world.violate("an answer to attendance that cannot be", "%d %r" % (reply.status, reply.doc), s)
            return
        self.attendance[(s.person.room, s.person.user, key)] = reply.doc["id"]
        if out:
            s.closed = True if was_live() and not repeated else None
            s.inside = False

    def revoke(self, s):
        """Revokes, and then tries to get in on every instance."""
        person = s.person
        path = "/rooms/%s/members/%s" % (quote(person.room), quote(person.user))
        reply, _ = self.insist("DELETE", path, unanswered=person.unanswered)
        for x in person.sessions:
            x.note("revoked -> %d" % reply.status)
            x.inside, x.closed = False, x.closed and None
        if reply.status != 200:
            self.world.violate("an answer to a revocation that cannot be", "%d %r" % (reply.status, reply.doc), s)
            return
        person.revoked = None if person.hazy() else True
        self.world.counts["revocations"] += 1
        for i in range(len(self.world.instances)):
            beat = Beat(s, s.fresh(self.rng))
            reply = self.world.call(i, "PUT", "/leases", beat.document())
            if reply.final:
                self.judge(beat, reply.status, reply.doc, reply.sent)

    def grant(self, person):
        path = "/rooms/%s/members/%s" % (quote(person.room), quote(person.user))
        reply, _ = self.insist("PUT", path, {"role": "student"}, unanswered=person.unanswered)
        for x in person.sessions:
            x.note("member again -> %d" % reply.status)
        if reply.status != 200:
            self.world.violate("an answer to a grant that cannot be", "%d %r" % (reply.status, reply.doc),
                               person.sessions[0])
        elif not person.hazy():
            person.settle()


class Strays(Patient):
    """Messages that come late, or twice at the same time, from somebody else."""

    def __init__(self, world):
        super().__init__(world, "strays")
        self.inbox = queue.Queue()
        self.late = []

    def put(self, item):
        self.inbox.put(item)

    def work(self):
        n = 0
        while not (self.world.load_over.is_set() and self.inbox.empty()):
            try:
                when, beat = self.inbox.get(timeout=0.02)
                n += 1
                heapq.heappush(self.late, (when, n, beat))
            except queue.Empty:
                pass
            while self.late and self.late[0][0] <= time.monotonic():
                self.send(heapq.heappop(self.late)[2])

    def send(self, beat):
        """Once, whatever comes of it. Its owner goes on meanwhile, so only what can never be is demanded."""
        s = beat.session
        document = {"room_id": s.person.room, "user_id": s.person.user, "session_id": s.name, "ttl_ms": s.ttl_ms,
                    "revision": beat.revision}
        if beat.meta is not None:
            document["meta"] = beat.meta
        reply = self.world.call(self.world.pick(self.rng), "PUT", "/leases", document)
        word = reply.doc.get("decision") if reply.final else None
        s.note("a stray revision %d -> %s %s" % (beat.revision, reply.status, word))
        self.world.counts["stray " + str(word)] += 1
        if word == "accepted":
            beat.accepted += 1
            if beat.old or beat.accepted > 1:
                self.world.violate("a doubled message was accepted", "%s: %r" % (beat, reply.doc), s)


class Steady(Patient):
    """A gateway that renews its sessions in time, whatever happens. None of them may ever end: one instance is not
    waited for for long, and what the database is away for is credited."""

    TTL = 8000
    TIMEOUT = 1.5

    def __init__(self, world):
        super().__init__(world, "steady")
        self.sessions = [Session(Person("steady", "u%d" % i), "s", self.TTL) for i in range(24)]
        self.at = 0
        self.late = False  # this machine has kept us from renewing: nothing can be demanded then

    def work(self):
        last = time.monotonic()
        while not self.world.load_over.is_set():
            self.round()
            # Time that this thread was not allowed to run is nobody's fault.
            if time.monotonic() - last > self.TTL / 1000 * 0.7 and not self.world.excused(last, time.monotonic()):
                self.late = True
            last = time.monotonic()
            self.world.load_over.wait(self.TTL / 4000)

    def round(self):
        beats = [Beat(s, s.ceiling + 1) for s in self.sessions]
        first = not self.sessions[0].acked
        while beats:
            body = {"leases": [b.document() for b in beats]}
            reply = self.world.call(self.at, "PUT", "/leases", body, timeout=self.TIMEOUT)
            if reply.status != 200:
                self.at = (self.at + 1) % len(self.world.instances)
                time.sleep(0.2)
                continue
            again = []
            for b, result in zip(beats, reply.doc["results"]):
                if result.get("status", 200) >= 500:
                    again.append(b)
                    continue
                judge(self.world, b, result.get("status", 200), result, reply.sent)
                if not first and not self.late and (result.get("granted") or result.get("status", 200) != 200):
                    self.world.violate("a session that kept renewing has ended", "%s got %r" % (b, result), b.session)
            beats = again
            if beats:
                time.sleep(0.1)
