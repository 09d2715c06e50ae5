# SPDX-License-Identifier: Apache-2.0
"""The soak in small, with a handful of faults, so that it stays able to run; and what it finds in made-up events."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

from harness.case import SLOW, Case

SOAK = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "soak", "soak")
sys.path.append(os.path.dirname(SOAK))
from soaklib import people, readers, verify  # noqa: E402

FAULTS = "kill,term,freeze,database_immediate,terminate_backends,cut"


class SoakShort(Case):
    weight = 25
    autostart = False

    def soak(self, *args):
        """Runs it. @return (exit code, its result, what it printed)"""
        result = os.path.join(self.directory, "soak.json")
        done = subprocess.run([sys.executable, SOAK, "--quick", "--rate", "100", "--directory", self.directory,
                               "--json", result] + list(args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=240 * SLOW)
        self.assertTrue(os.path.exists(result), done.stdout[-4000:])
        with open(result, encoding="utf-8") as f:
            return done.returncode, json.load(f), done.stdout

    def test_all_holds(self):
        code, result, text = self.soak("--seconds", "12", "--seed", "7", "--faults", FAULTS)
        self.assertEqual(code, 0, text[-8000:])
        self.assertTrue(result["passed"])
        self.assertEqual(result["violations"], [])
        self.assertGreaterEqual(len(result["faults"]), 2, text)
        for name, least in (("heartbeats accepted", 100), ("events", 100), ("events read", 50),
                            ("replies to polls", 20), ("messages streamed", 20), ("readers' lives", 5)):
            self.assertGreaterEqual(result["totals"][name], least, name)
        self.assertIn("all held", text)


class Judge:
    """A world that only writes down what is violated."""

    def __init__(self):
        self.options = SimpleNamespace(grace_ms=1000)
        self.found, self.load_ended_ms = [], 0

    def violate(self, what, detail, session=None):
        self.found.append(what)

    def excused(self, *unused):
        return False

    excused_at = excused


class Rules(Case):
    """What the end of a soak demands of the events, with events that keep to it and events that do not."""

    autostart = False

    def event(self, kind, session="s", lease_revision=1, user_sessions=0, at="2026-01-01T00:00:00.000Z", **more):
        return dict({"kind": kind, "user_id": "u", "session_id": session, "lease_revision": lease_revision,
                     "meta": None, "user_sessions": user_sessions, "at": at, "overdue_ms": None,
                     "request_id": None}, **more)

    def found(self, *events, head=None, lives=(), session=None):
        """What is wrong with a room that has these events."""
        world = Judge()
        steady = SimpleNamespace(sessions=[session] if session else [], late=False)
        v = verify.Verification(world, readers.Sightings(world), [], steady)
        numbered = [dict(e, revision=i + 1, event_id="e:room:%d" % (i + 1)) for i, e in enumerate(events)]
        v.room("room", len(events) if head is None else head, numbered, lives)
        v.acknowledged()
        return world.found

    def stay(self, first=1, last=1, kind="lease.expired"):
        return [self.event("lease.granted", lease_revision=first, user_sessions=1),
                self.event("user.online", None, None, 1), self.event(kind, lease_revision=last)]

    def offline(self, at="2026-01-01T00:00:01.000Z"):
        return self.event("user.offline", None, None, at=at)

    def test_what_is_right(self):
        self.assertEqual(self.found(*self.stay(), self.offline()), [])

    def test_gaps_and_doubles(self):
        good = self.stay() + [self.offline()]
        self.assertIn("a gap in a room's revisions", self.found(*good, head=5))
        again = self.event("lease.granted", lease_revision=2, user_sessions=1)
        self.assertIn("granted twice without an end", self.found(good[0], good[1], again, *good[2:]))
        self.assertIn("ended without a beginning", self.found(*good[:3], good[2], good[3]))
        self.assertIn("granted with a revision that is not newer", self.found(*good, *good))

    def test_users(self):
        early = self.offline("2026-01-01T00:00:00.900Z")
        self.assertEqual(self.found(*self.stay(), early), ["user.offline before the grace was over"])
        at_once = self.stay(kind="membership.revoked")
        self.assertEqual(self.found(*at_once, early), [])
        self.assertIn("the events do not end with an empty room", self.found(*self.stay()))
        self.assertIn("user.online that is not right", self.found(*self.stay()[:2], *self.stay()[1:], self.offline()))

    def test_readers(self):
        good = self.stay() + [self.offline()]
        fold = readers.Fold()
        fold.apply(good[0])
        fold.apply(good[1])
        self.assertEqual(self.found(*good, lives=[(2, fold.text(), "r")]), [])
        self.assertIn("a reader's fold differs from the database's events",
                      self.found(*good, lives=[(3, fold.text(), "r")]))

    def test_acknowledged_stays(self):
        session = people.Session(people.Person("room", "u"), "s", 1000)
        at_ms = people.ms("2026-01-01T00:00:00.000Z")
        session.stays = [people.Stay("x", 1, at_ms)]
        good = self.stay() + [self.offline()]
        self.assertEqual(self.found(*good, session=session), [])
        session.stays[0].expires_ms = at_ms + 10
        self.assertEqual(self.found(*good, session=session), ["expired before its acknowledged expiry"])
        session.stays = [people.Stay("x", 2, at_ms)]
        self.assertEqual(self.found(*good, session=session), ["an acknowledged stay is not among the events"])
        session.stays, session.granted_at_revision = [], [2]
        self.assertEqual(self.found(*good, session=session), ["a grant was answered that has no event"])
