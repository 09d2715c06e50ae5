# SPDX-License-Identifier: Apache-2.0
"""What a client knows of its sessions, and which answers it may get.

Each user of a room belongs to one writer, so what was answered comes in order. What was not answered can still happen
later: a frozen instance reads its socket when it wakes. Such a thing makes a state unknown (None) for HAZE seconds,
and then nothing is demanded of it."""

import json
import time
from collections import deque

from .world import ms

HAZE = 30.0


class Stay:
    """One stay of a session as it was acknowledged: the lowest and the highest revision, and the expiry of the latter.
    Under overload the server lengthens ttl, so a later renewal may expire before an earlier one would have."""

    def __init__(self, granted_at, revision, expires_ms):
        self.granted_at, self.first, self.last, self.expires_ms = granted_at, revision, revision, expires_ms


class Person:
    """A user in a room."""

    def __init__(self, room, user):
        self.room, self.user = room, user
        self.sessions = []
        self.revoked = False  # None: unknown
        self.hazy_until = 0.0

    def hazy(self):
        return time.monotonic() < self.hazy_until

    def unanswered(self):
        """A revocation or a grant may still happen, or not."""
        self.hazy_until = time.monotonic() + HAZE
        self.revoked = None

    def settle(self):
        """It is known again that the user is a member; what ended meanwhile is not."""
        if self.revoked is None:
            for s in self.sessions:
                s.live_until = 0.0
        self.revoked = False


class Session:
    def __init__(self, person, name, ttl_ms):
        self.person, self.name, self.ttl_ms = person, name, ttl_ms
        self.acked = 0  # highest revision that was acknowledged
        self.ceiling = 0  # no stored revision can be above: all that were ever sent, and one for each that was left out
        self.closed = False  # None: unknown
        self.inside = False  # as far as the client thinks
        self.live_until = 0.0  # monotonic; the lease cannot run out before
        self.hazy_until = 0.0
        self.stays = []
        self.granted_at_revision = []  # of answers with granted:true
        self.ghosts, self.ghosts_until = 0, 0.0  # heartbeats without a revision that may still happen
        self.metas = {}  # revision -> meta, acknowledged changes
        self.trail = deque(maxlen=14)

    def hazy(self):
        return time.monotonic() < max(self.hazy_until, self.person.hazy_until)

    def surely_live(self):
        return (self.inside and self.closed is False and self.person.revoked is False and not self.hazy() and
                time.monotonic() < self.live_until)

    def fresh(self, rng):
        """A revision that was never sent, and that nothing on the way can make."""
        if self.ghosts and time.monotonic() > self.ghosts_until:
            self.ghosts = 0
        self.ceiling += self.ghosts
        return self.ceiling + rng.choice((1, 1, 1, 1, 2, 7))

    def note(self, text):
        self.trail.append("%s %s" % (time.strftime("%H:%M:%S"), text))

    def __str__(self):
        return "%s/%s/%s" % (self.person.room, self.person.user, self.name)


class Beat:
    """One heartbeat, through all its attempts."""

    def __init__(self, session, revision, meta=None, old=False, twin=False):
        self.session, self.revision, self.meta, self.old, self.twin = session, revision, meta, old, twin
        self.attempts = 0
        self.repeated = False  # whether it may have been applied before the attempt that was answered
        self.accepted = 0  # answers that said so, its twin's included

    def document(self):
        """The JSON of the next attempt."""
        s = self.session
        self.attempts += 1
        if self.revision is None and self.attempts > 1:
            s.ghosts, s.ghosts_until = s.ghosts + 1, time.monotonic() + HAZE
        s.ceiling = s.ceiling + 1 if self.revision is None else max(s.ceiling, self.revision)
        out = {"room_id": s.person.room, "user_id": s.person.user, "session_id": s.name, "ttl_ms": s.ttl_ms}
        if self.revision is not None:
            out["revision"] = self.revision
        if self.meta is not None:
            out["meta"] = self.meta
        return out

    def __str__(self):
        return "%s revision %s%s%s" % (self.session, self.revision, " old" if self.old else "",
                                       ", attempt %d" % self.attempts if self.attempts > 1 else "")


def judge(world, beat, status, doc, sent):
    """Demands of a final answer to a heartbeat what the contract says, and learns from it."""
    s = beat.session
    word = doc.get("decision") or doc.get("code")
    s.note("%s -> %d %s%s" % (beat, status, word, " granted" if doc.get("granted") else ""))
    world.counts["beat " + str(word)] += 1
    # What becomes of a commit is not known when the connection breaks, so the server itself may do it twice as well.
    beat.repeated = beat.attempts > 1 or beat.twin or world.excused(sent, time.monotonic(), 1)
    if beat.revision is None and beat.repeated:
        s.ceiling += 3
    wrong = {"accepted": _accepted, "already_applied": _already, "ignored_old_revision": _old,
             "session_closed": _closed, "membership_revoked": _revoked}.get(word)
    if wrong is None:
        fault = "an answer that cannot be"
    else:
        expected = {"accepted": 200, "already_applied": 200, "ignored_old_revision": 409, "session_closed": 410}
        fault = wrong(beat, doc, sent) if status == expected.get(word, 403) else "a decision with another status"
    if fault:
        world.violate(fault, "%s got %d %s" % (beat, status, json.dumps(doc)[:400]), s)


def _accepted(beat, doc, sent):
    s, lease, granted = beat.session, doc["lease"], doc["granted"]
    r = lease["revision"]
    beat.accepted += 1
    fault = None
    if beat.old:
        fault = "an old message was accepted"
    elif beat.accepted > 1:
        fault = "one revision was accepted twice"
    elif beat.revision is not None and r != beat.revision:
        fault = "accepted with another revision"
    elif r <= s.acked or r > s.ceiling + s.ghosts:
        fault = "accepted with a revision outside %d..%d" % (s.acked + 1, s.ceiling)
    elif s.person.revoked and not s.person.hazy():
        fault = "accepted after an answered revocation"
    elif s.closed and not s.hazy() and (
            beat.revision is None or not (granted or beat.repeated)):
        fault = "a closed session was renewed"
    elif granted and s.surely_live() and time.monotonic() < s.live_until:
        fault = "granted anew while its stay was live"
    elif beat.meta is not None and lease["meta"] != beat.meta:
        fault = "accepted with another meta"
    _learn(beat, lease, granted, sent, True)
    return fault


def _learn(beat, lease, granted, sent, anew):
    s, r = beat.session, lease["revision"]
    expires = ms(lease["expires_at"])
    if s.stays and s.stays[-1].granted_at == lease["granted_at"]:
        stay = s.stays[-1]
        if r >= stay.last:
            stay.last, stay.expires_ms = r, expires
    else:
        s.stays.append(Stay(lease["granted_at"], r, expires))
    if granted:
        s.granted_at_revision.append(r)
    # Without a revision the second time is another renewal, which changes nothing any more.
    if beat.meta is not None and not (beat.revision is None and beat.repeated):
        s.metas[r] = beat.meta
    s.acked, s.inside = max(s.acked, r), True
    if not s.hazy():
        s.closed = False
        if s.person.revoked is None:
            s.person.settle()
    if anew:  # an equal revision leaves the expiry as it was
        s.live_until = max(s.live_until, sent + s.ttl_ms / 1000)


def _already(beat, doc, sent):
    s, lease = beat.session, doc["lease"]
    if beat.revision is None or lease["revision"] != beat.revision:
        return "already applied with another revision"
    if s.person.revoked and not s.person.hazy():
        return "already applied after an answered revocation"
    if s.closed and not s.hazy() and not beat.repeated:
        return "already applied to a closed session"
    if not (beat.old or beat.repeated):
        return "a new revision was taken for an old one"
    if s.stays and s.stays[-1].last == beat.revision and ms(lease["expires_at"]) < s.stays[-1].expires_ms - 1:
        return "an acknowledged expiry has become earlier"
    if not beat.old:
        _learn(beat, lease, False, sent, False)
    return None


def _old(beat, doc, sent):
    s, stored = beat.session, doc.get("stored_revision")
    if beat.revision is None:
        return "a heartbeat without a revision is told that it is old"
    if stored is None or stored < beat.revision or stored < s.acked or stored > s.ceiling + s.ghosts:
        return "an old revision by a stored one outside %d..%d" % (max(s.acked, beat.revision), s.ceiling)
    if not (beat.old or beat.repeated):
        return "a new revision was taken for an old one"
    if beat.old and beat.revision == s.acked == s.ceiling and not s.ghosts and s.surely_live():
        return "a duplicate of a live lease's revision is told that it is older"
    if not beat.old:
        s.inside = False
        _came_and_went(beat)
    return None


def _came_and_went(beat):
    """An attempt without an answer may have begun a stay that is over again, so that its end is the last one."""
    if beat.repeated and beat.session.closed:
        beat.session.closed = None


def _closed(beat, doc, sent):
    s = beat.session
    if beat.revision is not None:
        return "session_closed for a heartbeat with a revision"
    if s.closed is False and not s.hazy():
        return "session_closed for a session that was not closed"
    s.inside = False
    return None


def _revoked(beat, doc, sent):
    s = beat.session
    if s.person.revoked is False and not s.person.hazy():
        return "membership_revoked for a user who is not"
    s.inside = False
    _came_and_went(beat)
    return None


def judge_close(world, s, revision, old, reply, attempts):
    """The same for a close."""
    word = reply.doc.get("decision") or reply.doc.get("code")
    s.note("close ?revision=%s -> %d %s" % (revision, reply.status, word))
    world.counts["close " + str(word)] += 1
    fault = None
    repeated = attempts > 1 or world.excused(reply.sent, reply.done, 1)
    if reply.status == 409 and word == "ignored_old_revision":
        if not old:
            fault = "a close with a new revision is told that it is old"
    elif reply.status == 404:
        if s.acked:
            fault = "a session that was acknowledged does not exist"
    elif reply.status == 200 and word == "accepted":
        if old:
            fault = "an old close was accepted"
        elif s.closed and not s.hazy():
            fault = "closed twice"
        elif s.person.revoked and not s.person.hazy():
            fault = "closed after the revocation had ended it"
    elif reply.status == 200 and word == "already_applied":
        if old:
            fault = "an old close was not refused"
        elif not repeated and s.surely_live():
            fault = "the close of a live session was taken for a repetition"
    else:
        fault = "an answer to a close that cannot be"
    if fault:
        world.violate(fault, "%s ?revision=%s got %d %s" % (s, revision, reply.status, json.dumps(reply.doc)[:400]), s)
    if reply.status == 200:
        s.inside = False
        s.closed = True if word == "accepted" and not s.hazy() else None
        s.acked = max(s.acked, revision or 0)
