# SPDX-License-Identifier: Apache-2.0
"""The end: nothing moves any more, and the database is compared with all that was promised."""

import json
import time
from datetime import datetime, timezone

from harness import SLOW

from .people import ms
from .readers import Fold, Sightings

BEGINS, ENDS = "lease.granted", ("lease.expired", "session.closed", "membership.revoked")


#: An expiry may be so late, in milliseconds, when nothing is wrong: 2 s, and what a loaded machine adds.
LATE_MS = 5000 * SLOW


def as_sent(row):
    """An event's row as readers get it."""
    e = {k: v for k, v in row.items() if v is not None and k not in ("room_id", "meta")}
    at = datetime.fromisoformat(row["at"]).astimezone(timezone.utc)
    e["at"] = at.strftime("%Y-%m-%dT%H:%M:%S.") + "%03dZ" % (at.microsecond // 1000)
    if row["kind"] in ("lease.granted", "lease.renewed"):
        e["meta"] = row["meta"] or {}
    return e


class DbStay:
    """One stay as the events tell it; end is None while it lasts."""

    def __init__(self, first, begun_ms):
        self.first, self.begun_ms = first, begun_ms
        self.last = self.end = self.end_ms = None


def settle(world, seconds=120):
    """Waits until every lease has ended and nobody is in grace. @return the rooms' revisions"""
    deadline = time.monotonic() + seconds * SLOW
    while True:
        left = world.psql("SELECT (SELECT count(*) FROM stillhere.lease) || ' leases, ' || "
                          "(SELECT count(*) FROM stillhere.room_user) || ' users'")
        if left == "0 leases, 0 users":
            break
        if time.monotonic() > deadline:
            world.violate("the rooms do not become empty", left + " are left")
            break
        time.sleep(0.25)
    return dict(rows(world, "SELECT room_id, revision FROM stillhere.room"))


def rows(world, sql):
    """A query's rows as lists."""
    text = world.psql("SELECT json_agg(json_build_array(%s)) FROM (%s) q" %
                      (", ".join("q." + c.split()[-1].split(".")[-1] for c in
                                 sql[len("SELECT "):sql.index(" FROM")].split(", ")), sql))
    return json.loads(text) if text else []


class Verification:
    def __init__(self, world, sightings, writers, steady):
        self.world, self.sightings = world, sightings
        self.sessions = {(s.person.room, s.person.user, s.name): s for w in writers for s in w.sessions}
        self.sessions.update({(s.person.room, s.person.user, s.name): s for s in steady.sessions})
        self.writers, self.steady = writers, steady
        self.stays, self.meta_events = {}, {}
        self.events = 0

    def run(self, heads):
        self.rooms(heads)
        self.acknowledged()
        self.tombstones()
        self.attendance()

    # -- the events of each room ---------------------------------------------------------------------------------------

    def rooms(self, heads):
        lives = {}
        for room, revision, text, who in self.sightings.lives:
            lives.setdefault(room, []).append((revision, text, who))
        for room in sorted(set(heads) | set(lives)):
            quoted = room.replace("'", "''")
            text = self.world.psql("SELECT coalesce(json_agg(e ORDER BY revision), '[]') FROM stillhere.event e "
                                   "WHERE room_id = '%s'" % quoted)
            self.room(room, heads.get(room, 0), json.loads(text), sorted(lives.get(room, ())))
        for room, revision in self.sightings.seen:
            if revision > heads.get(room, 0):
                self.world.violate("an event was read that is not there", "%s %d" % (room, revision))

    def room(self, room, head, events, lives):
        if [e["revision"] for e in events] != list(range(1, head + 1)):
            have = {e["revision"] for e in events}
            self.world.violate("a gap in a room's revisions", "%s: head %d, %d events, missing %s" % (
                room, head, len(events), [r for r in range(1, head + 1) if r not in have][:5]))
        ids = {e["event_id"] for e in events}
        if len(ids) != len(events) or any(not i.endswith(":%s:%d" % (room, e["revision"])) for i, e in
                                          ((e["event_id"], e) for e in events)):
            self.world.violate("event ids that are not unique, or none", room)
        fold, states, at = Fold(), RoomState(self, room), 0
        for e in events:
            while at < len(lives) and lives[at][0] < e["revision"]:
                self.compare(room, lives[at], fold)
                at += 1
            fold.apply(e)
            states.apply(e)
            seen = self.sightings.seen.get((room, e["revision"]))
            if seen not in (None, Sightings.digest(as_sent(e))):
                self.violate("an event was read that differs from the database's", e)
            self.events += 1
        for life in lives[at:]:
            self.compare(room, life, fold)
        if fold.online or fold.sessions:
            self.world.violate("the events do not end with an empty room", "%s: %s" % (room, fold.text()))

    def compare(self, room, life, fold):
        revision, text, who = life
        if text != fold.text():
            self.world.violate("a reader's fold differs from the database's events",
                               "%s at %d:\n  reader %s\n  events %s" % (who, revision, text, fold.text()))

    def violate(self, what, event, key=None):
        self.world.violate(what, json.dumps(event), self.sessions.get(key))

    # -- what was acknowledged -----------------------------------------------------------------------------------------

    def acknowledged(self):
        for key, s in self.sessions.items():
            have = self.stays.get(key, [])
            used = []
            for stay in s.stays:
                match = [i for i, d in enumerate(have) if d.first <= stay.first and
                         (d.last is None or stay.last <= d.last)]
                if not match:
                    self.world.violate("an acknowledged stay is not among the events", "%s revisions %d..%d: %r" %
                                       (s, stay.first, stay.last, [(d.first, d.last, d.end) for d in have][-8:]), s)
                    continue
                d = have[match[-1]]
                used.append(match[-1])
                if d.end == "lease.expired" and d.last == stay.last and d.end_ms < stay.expires_ms - 2:
                    self.world.violate("expired before its acknowledged expiry", "%s revision %d by %d ms" %
                                       (s, stay.last, stay.expires_ms - d.end_ms), s)
            if len(set(used)) != len(used):
                self.world.violate("two acknowledged stays are one in the events", str(s), s)
            for r in s.granted_at_revision:
                if r not in [d.first for d in have]:
                    self.world.violate("a grant was answered that has no event", "%s revision %d" % (s, r), s)
            for r, meta in s.metas.items():
                if self.meta_events.get(key + (r,)) != [meta]:
                    self.world.violate("an acknowledged meta has not exactly one event", "%s revision %d: %r" %
                                       (s, r, self.meta_events.get(key + (r,))), s)

    def tombstones(self):
        found = rows(self.world, "SELECT room_id, user_id, session_id, revision, reason FROM stillhere.tombstone")
        reasons = {"lease.expired": "expired", "session.closed": "closed", "membership.revoked": "revoked"}
        stones = {tuple(r[:3]): r[3:] for r in found}
        for key, s in self.sessions.items():
            if key not in stones:
                if s.acked:
                    self.world.violate("an acknowledged session has no tombstone", "%s revision %d" % (s, s.acked), s)
                continue
            revision, reason = stones[key]
            if not s.acked <= revision <= s.ceiling + s.ghosts:
                self.world.violate("a stored revision outside of what was sent", "%s: %d, acknowledged %d, sent %d" %
                                   (s, revision, s.acked, s.ceiling), s)
            end = self.stays[key][-1].end if key in self.stays else None
            if reasons.get(end) != reason:
                self.world.violate("a tombstone for another reason than the event", "%s: %s, %s" % (s, reason, end), s)

    def attendance(self):
        stored = {}
        for room, user, key, i in rows(self.world, "SELECT room_id, user_id, idempotency_key, id FROM "
                                                   "stillhere.attendance"):
            stored.setdefault((room, user, key), []).append(i)
        for w in self.writers:
            for key, i in w.attendance.items():
                if stored.get(key) != [i]:
                    self.world.violate("attendance is not there once", "%r: %r, answered %r" %
                                       (key, stored.get(key), i))
        if set(stored) - set().union(*[w.sent_keys for w in self.writers]):
            self.world.violate("attendance that nobody sent", repr(list(stored)[:3]))


class RoomState:
    """The rules that the events of one room keep among each other."""

    def __init__(self, verification, room):
        self.v, self.room = verification, room
        self.live = {}  # user -> set of sessions
        self.online, self.last_end = set(), {}
        self.grace_ms = verification.world.options.grace_ms

    def apply(self, e):
        user, session = e["user_id"], e["session_id"]
        key = (self.room, user, session)
        mine = self.live.setdefault(user, set())
        at = ms(e["at"])
        if e["kind"] in ("lease.granted", "lease.renewed"):
            self.v.meta_events.setdefault(key + (e["lease_revision"],), []).append(e["meta"])
        if e["kind"] == BEGINS:
            self.begins(e, key, mine, at)
        elif e["kind"] in ENDS:
            self.ends(e, key, mine, at)
        elif e["kind"] == "lease.renewed":
            if session not in mine:
                self.v.violate("renewed while it was not there", e, key)
        elif e["kind"] == "user.online":
            if user in self.online or not mine:
                self.v.violate("user.online that is not right", e)
            self.online.add(user)
        elif e["kind"] == "user.offline":
            self.offline(e, mine, at)
        if e["user_sessions"] != len(mine):
            self.v.violate("user_sessions is not %d" % len(mine), e, key)
        # Between a first session's grant and its user.online lies nothing of the same user.
        if mine and user not in self.online and e["kind"] != BEGINS:
            self.v.violate("a user with a session is not online", e, key)

    def begins(self, e, key, mine, at):
        stays = self.v.stays.setdefault(key, [])
        if key[2] in mine:
            self.v.violate("granted twice without an end", e, key)
        if stays and (stays[-1].last or 0) >= e["lease_revision"]:
            self.v.violate("granted with a revision that is not newer", e, key)
        mine.add(key[2])
        stays.append(DbStay(e["lease_revision"], at))
        self.last_end.pop(key[1], None)

    def ends(self, e, key, mine, at):
        if key[2] is None:  # the revocation of a user without a session, who may have been in grace
            self.last_end[key[1]] = (at, e["kind"])
            return
        if key[2] not in mine:
            self.v.violate("ended without a beginning", e, key)
            return
        mine.discard(key[2])
        stay = self.v.stays[key][-1]
        stay.last, stay.end, stay.end_ms = e["lease_revision"], e["kind"], at
        self.last_end[key[1]] = (at, e["kind"])
        if (e["overdue_ms"] or 0) > LATE_MS and not self.v.world.excused_at(at - e["overdue_ms"], at):
            self.v.violate("expired late without a fault", e, key)
        if self.room == "steady" and at < self.v.world.load_ended_ms and not self.v.steady.late:
            self.v.violate("a session that kept renewing has ended", e, key)

    def offline(self, e, mine, at):
        user = e["user_id"]
        if user not in self.online or mine:
            self.v.violate("user.offline that is not right", e)
        self.online.discard(user)
        ended_at, kind = self.last_end.get(user, (0, None))
        if at < ended_at + self.grace_ms - 2 and kind != "membership.revoked":
            self.v.violate("user.offline before the grace was over", e)
