# SPDX-License-Identifier: Apache-2.0
"""Those who watch: each folds a snapshot and events for a while and leaves; what it has then is compared with what the
room's events fold to at that revision."""

import hashlib
import json
import time

from harness.client import dial, presence_path
from harness.sse import Reader as StreamReader

from .load import Patient


class Fold:
    """A room as a reader sees it: who is online, and the meta of each session."""

    def __init__(self):
        self.online, self.sessions = set(), {}

    @classmethod
    def of(cls, snapshot):
        fold = cls()
        for u in snapshot["users"]:
            fold.online.add(u["user_id"])
            for s in u["sessions"]:
                fold.sessions[u["user_id"] + " " + s["session_id"]] = s.get("meta") or {}
        return fold

    def apply(self, e):
        kind, key = e["kind"], "%s %s" % (e["user_id"], e.get("session_id"))
        if kind in ("lease.granted", "lease.renewed"):
            self.sessions[key] = e.get("meta") or {}
        elif kind in ("lease.expired", "session.closed", "membership.revoked"):
            self.sessions.pop(key, None)
        elif kind == "user.online":
            self.online.add(e["user_id"])
        elif kind == "user.offline":
            self.online.discard(e["user_id"])

    def text(self):
        return json.dumps([sorted(self.online), sorted(self.sessions.items())], sort_keys=True)


class Sightings:
    """Every event that anybody was sent, to see that it is the same everywhere."""

    def __init__(self, world):
        self.world = world
        self.seen = {}  # (room, revision) -> digest
        self.lives = []  # (room, revision, fold as text, who)

    @staticmethod
    def digest(event):
        return hashlib.md5(json.dumps(event, sort_keys=True).encode()).digest()

    def see(self, room, event, epoch, who):
        digest = self.digest(event)
        key = (room, event["revision"])
        first = self.seen.setdefault(key, digest)
        if first != digest:
            self.world.violate("an event is not the same for all", "%s sees %r" % (who, event))
        if event["event_id"] != "%s:%s:%d" % (epoch, room, event["revision"]):
            self.world.violate("an event id that is none", "%s sees %r" % (who, event))
        self.world.counts["events read"] += 1


class Watcher(Patient):
    """What the two kinds of readers have in common."""

    def __init__(self, world, number, sightings, rooms):
        super().__init__(world, "%s%d" % (type(self).__name__.lower(), number))
        self.sightings, self.rooms = sightings, rooms
        self.room = self.fold = self.epoch = None
        self.revision = 0
        self.leave_at = 0.0

    def work(self):
        while not self.world.readers_over.is_set():
            last = self.world.heads is not None
            self.room = self.rng.choice(self.rooms)
            self.fold, self.revision, self.epoch = None, None, None
            self.leave_at = time.monotonic() + self.rng.choice((3, 10, 30, 90)) * self.rng.uniform(0.5, 1.5)
            self.live()
            if self.fold is not None:
                self.sightings.lives.append((self.room, self.revision, self.fold.text(), str(self)))
                self.world.counts["readers' lives"] += 1
            if last:
                return

    def done(self):
        """Whether to leave: at the end everybody stays until the head is reached."""
        if self.world.readers_over.is_set():
            return True
        if self.world.heads is not None:
            return self.revision is not None and self.revision >= self.world.heads.get(self.room, 0)
        return time.monotonic() > self.leave_at

    def __str__(self):
        return "%s (%s at %s)" % (self.name, self.room, self.revision)

    def take_snapshot(self, doc, expected):
        self.world.counts["snapshots"] += 1
        if doc["reason"] not in expected:
            self.world.violate("a snapshot for a wrong reason", "%s: %s" % (self, doc["reason"]))
        if self.revision is not None and doc["revision"] < self.revision:
            self.world.violate("a snapshot from before", "%s: %s" % (self, doc["revision"]))
        if self.epoch not in (None, doc["epoch"]):
            self.world.violate("the epoch has changed", "%s: %s" % (self, doc["epoch"]))
        self.fold, self.revision, self.epoch = Fold.of(doc), doc["revision"], doc["epoch"]

    def take_event(self, e):
        if e["revision"] != self.revision + 1:
            self.world.violate("a gap in what a reader is sent", "%s gets %r" % (self, e))
        self.sightings.see(self.room, e, self.epoch, self)
        self.fold.apply(e)
        self.revision = e["revision"]


class Poller(Watcher):
    def live(self):
        i = self.world.pick(self.rng)
        while not self.done():
            if self.rng.random() < 0.05:
                i = self.world.pick(self.rng)
            reply = self.world.call(i, "GET", presence_path(
                self.room, self.revision, epoch=self.epoch, wait_ms=self.rng.choice((0, 2000, 4000)),
                limit=self.rng.choice((None, None, 7))), timeout=9)
            if not reply.final:
                i = self.world.pick(self.rng)
                time.sleep(0.1)
                continue
            self.take(reply)
            if reply.doc.get("mode") == "unchanged":
                time.sleep(0.05)  # some ask without waiting

    def take(self, reply):
        self.world.counts["replies read"] += 1
        doc = reply.doc
        mode = doc.get("mode")
        if reply.status != 200 or mode not in ("snapshot", "events", "unchanged"):
            self.world.violate("an answer to a poll that cannot be", "%s: %d %r" % (self, reply.status, doc))
            return
        if mode == "snapshot":
            self.take_snapshot(doc, ("requested",) if self.revision is None else ("too_many",))
            return
        if doc["from"] != self.revision or doc["epoch"] != self.epoch:
            self.world.violate("an answer from elsewhere", "%s: from %s" % (self, doc["from"]))
        for e in doc["events"]:
            self.take_event(e)
        if doc["revision"] != self.revision:
            self.world.violate("a reply that does not cover what it says", "%s: %s" % (self, doc["revision"]))


class Streamer(Watcher):
    def live(self):
        while not self.done():
            i = self.world.pick(self.rng)
            began = time.monotonic()
            try:
                self.stream(i)
            except OSError as e:
                now = time.monotonic()
                self.world.down_until[i] = now + 0.5
                # A stream may be cut at any time that a fault is on, also one that has just begun.
                if not self.world.excused(now - 1, now + 1):
                    self.world.violate("a stream broke without a fault", "%s after %.1f s: %s" % (self, now - began, e))
                time.sleep(0.1)

    def stream(self, i):
        """One connection, until it ends or it is time to leave."""
        header = "" if self.revision is None else "Last-Event-ID: %d\r\n" % self.revision
        path = presence_path(self.room, epoch=self.epoch)
        quiet_since, leave_at = time.monotonic(), time.monotonic() + self.rng.uniform(2, 60)
        first = True
        s = dial(self.world.instances[i].base, 5)
        try:
            s.sendall(("GET %s HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n%s\r\n" % (path, header)).encode())
            s.settimeout(0.3)
            reader = StreamReader()
            while not self.done() and time.monotonic() < leave_at:
                try:
                    data = s.recv(65536)
                except TimeoutError:
                    if time.monotonic() - quiet_since > 21:
                        raise OSError("nothing for 21 s, not even a comment")
                    continue
                if not data:
                    raise OSError("the server has closed")
                quiet_since = time.monotonic()
                reader.feed(data)
                if reader.status not in (None, 200):
                    self.refused(i, reader)
                    return
                for m in reader.messages:
                    self.take(m, first)
                    first = False
                reader.messages.clear()
        finally:
            s.close()

    def refused(self, i, reader):
        now = time.monotonic()
        self.world.down_until[i] = now + 0.5
        if reader.status != 503 or not self.world.excused(now - 1, now):
            self.world.violate("a stream is refused", "%s: %s" % (self, reader.status))
        time.sleep(0.2)

    def take(self, message, first):
        self.world.counts["messages streamed"] += 1
        doc = message.json()
        if message.event == "snapshot":
            allowed = ("requested",) if self.revision is None else ("too_many",)
            self.take_snapshot(doc, allowed)
        elif self.fold is None:
            self.world.violate("a stream without a snapshot", "%s gets %r" % (self, doc))
        else:
            if message.event != doc["kind"] or message.id != str(doc["revision"]):
                self.world.violate("a message whose head differs from its body", "%s: %r" % (self, message))
            self.take_event(doc)
