# SPDX-License-Identifier: Apache-2.0
"""`stillhere drill` against servers that lie about one kind of event: each lie is found, and named."""

import re

from harness.case import SLOW
from harness.faulty import Faulty
from harness.liar import Liar
from test_stillhere_drill import RENEWS, SILENT, TEACHER, Drills

LEAVES, NOBODY = "student-leaves", "somebody-else"
TOLD = "every change was told once"

#: Of each kind: of whom the drill makes it happen, a session too where only one can be meant.
KINDS = {
    "lease.granted": TEACHER + "/tab-1",
    "lease.renewed": RENEWS + "/tab-1",
    "lease.expired": SILENT + "/tab-1",
    "session.closed": LEAVES + "/tab-1",
    "membership.revoked": SILENT,
    "user.online": TEACHER,
    "user.offline": SILENT,
}

#: What never happens to who stays.
ENDS = ("lease.expired", "session.closed", "membership.revoked", "user.offline")

#: What doubled events are named as, where it is not how often they were told.
DOUBLED = {
    "lease.renewed": "of lease.renewed of student-renews/tab-1, with a lease revision that is not newer",
    "lease.expired": "of lease.expired of student-silent/tab-1, but it had ended",
    # He may have been offline in between, on a slow machine.
    "user.offline": r"told \d times of user.offline of student-(leaves|silent), not \d",
}


class Lies(Drills):
    config = {"ttl_min_ms": 500, "offline_grace_ms": 1000}

    def against(self, server):
        self.addCleanup(server.close)
        return self.drill(server.base, ttl_ms=int(8000 * SLOW))

    def demand_named(self, command, words):
        """It fails, and the last of its verdicts says so in these words, with request ids."""
        self.assertEqual(command.wait(120), 4, command.stdout() + command.stderr())
        text = command.stdout()
        found = re.search(r"(?m)^  NOT SO: +%s\n +(.+)\n +request ids: [a-z0-9, ]+$" % TOLD, text)
        self.assertIsNotNone(found, text)
        self.assertRegex(found.group(1), words, text)
        self.demand_clean(command)

    def demand_all_named(self, servers):
        """@a servers: (words, server). They are tried at the same time: a drill mostly waits."""
        runs = [(words, self.against(server)) for words, server in servers]
        for words, run in runs:
            with self.subTest(words=words):
                self.demand_named(run, words)


def only(kind, tell):
    """A lie about one kind."""
    return lambda event: tell(event) if event["kind"] == kind else [event]


def swallowed(kind):
    return "told of no %s of %s" % (kind, KINDS[kind]), only(kind, lambda event: [])


def doubled(kind):
    words = DOUBLED.get(kind, r"told \d times of %s of %s, not \d" % (kind, KINDS[kind]))
    return words, only(kind, lambda event: [event, event])


def of_somebody_else(kind, other=NOBODY):
    words = r"at revision \d+ of %s of %s\S*, which must not be" % (kind, other)
    return words, only(kind, lambda event: [dict(event, user_id=other)])


def swallowed_of(kind, user):
    """Only those of one user."""
    return ("told of no %s of %s" % (kind, user),
            lambda event: [] if (event["kind"], event["user_id"]) == (kind, user) else [event])


def offline_before_close():
    """The order of the last two is turned around."""
    held = []

    def lie(event):
        if event["kind"] == "session.closed" and event["session_id"] == "tab-2":
            held.append(event)
            return []
        return [event] + held if event["kind"] == "user.offline" and event["user_id"] == LEAVES else [event]
    return "of user.offline of student-leaves, but there is a session", lie


def without_grace():
    """Who closes the last tab is offline at once."""
    def lie(event):
        if event["kind"] == "session.closed" and event["user_sessions"] == 0:
            return [event, {k: v for k, v in dict(event, kind="user.offline").items() if k != "session_id"}]
        return [] if event["kind"] == "user.offline" and event["user_id"] == LEAVES else [event]
    return "of user.offline of student-leaves, before the grace was over", lie


def wrong_count():
    return ("of user.online of teacher, with a wrong number of sessions",
            only("user.online", lambda event: [dict(event, user_sessions=2)]))


class Written(Lies):
    """The server wrote it so: revisions without a gap."""

    def test_each_lie_is_named(self):
        lies = [lie(kind) for lie in (swallowed, doubled, of_somebody_else) for kind in KINDS]
        lies += [of_somebody_else(kind, RENEWS) for kind in ENDS]
        lies += [swallowed_of("user.offline", LEAVES), offline_before_close(), without_grace(), wrong_count()]
        self.demand_all_named((words, Liar(self.base, lie)) for words, lie in lies)


def alter_events(tell, where=""):
    """@a tell: what is told for an event. @a where: part of the requests that are lied to"""
    def alter(method, path, body, status, answer):
        if answer and answer.get("events") and where in path:
            answer["events"] = [one for event in answer["events"] for one in tell(event)]
    return alter


class Altered(Lies):
    """Something between alters what was written: revisions are missing, or come twice."""

    def test_each_lie_is_named(self):
        lies = [(r"left out revision \d+.* told of no %s of %s" % (kind, who), only(kind, lambda event: []))
                for kind, who in KINDS.items()]
        lies += [(r"told twice of revision \d+, %s of " % kind, only(kind, lambda event: [event, event]))
                 for kind in KINDS]
        lies += [("of user.online of student-renews, under the event_id of another",
                  only("user.online", lambda event: [dict(event, event_id="x")])),
                 ("of lease.expired of student-silent/tab-1, without an event_id",
                  only("lease.expired", lambda event: [dict(event, event_id="")])),
                 ("of session.closed of student-leaves/tab-1, under another event_id than the close was answered with",
                  only("session.closed", lambda event: [dict(event, event_id=event["event_id"] + "0")]))]
        servers = [(words, Faulty(self.base, alter_events(lie))) for words, lie in lies]
        another = only("user.offline", lambda event: [dict(event, user_id=NOBODY)])
        words = r"replays revision \d+ as user.offline of %s; when it happened it was user.offline of " % NOBODY
        servers.append((words, Faulty(self.base, alter_events(another, "since=0&wait_ms=0"))))
        self.demand_all_named(servers)
