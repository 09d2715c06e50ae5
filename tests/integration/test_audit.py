# SPDX-License-Identifier: Apache-2.0
"""One student's lesson, and the decision log of it, line by line: who did what, with which credential, and what came
of it (doc/security.md, "Reading an audit trail")."""

from harness.case import json, quote
from harness.tokens import Guarded, bearer

FIELDS = {"time", "instance", "what", "room_id", "user_id", "session_id", "event_id", "prior_revision", "new_revision",
          "decision", "request_id"}


class Audit(Guarded):
    instances = 2
    config = {"ttl_min_ms": 100, "sweep_interval_ms": 100, "membership": "required", "decision_log": "all"}

    def lines(self):
        """What the decision logs of all instances say about the student, in no order across instances."""
        out = []
        for number, d in enumerate(self.daemons):
            entries = [json.loads(line) for line in d.output().split("\n") if line]
            out += [dict(e, asked=number) for e in entries if e.get("user_id") == self.user and e["room_id"] == self.room_id]
        return out

    def told(self, n=1):
        """Waits for n more lines. @return them; the instance that told them is their `asked`"""
        known = len(self.story)
        self.wait_until(lambda: len(self.lines()) >= known + n, 10, "%d more lines" % n)
        new = [e for e in self.lines() if e not in self.story]
        self.assertEqual(len(new), n, new)
        self.story += new
        return new

    def send(self, at, method, path, credential, request_id, body=None):
        headers = dict(bearer(credential), **{"X-Request-Id": request_id, "Content-Type": "application/json"})
        return self.client.request(self.bases[at], method, path, None if body is None else json.dumps(body), headers)

    def beat(self, at, session, credential, request_id, **more):
        body = dict({"room_id": self.room_id, "user_id": self.user, "session_id": session, "ttl_ms": 60000}, **more)
        return self.send(at, "PUT", "/leases", credential, request_id, body)

    def expect(self, line, at, what, session, decision, request_id, by, prior=None, new=None, kind=None):
        """One line, whole. @a at None: any instance; @a by None: there is no credential behind it"""
        with self.subTest(request_id=request_id, line=line):
            self.assertLessEqual(FIELDS, set(line))
            self.assertEqual((line["what"], line["session_id"], line["decision"], line["request_id"], line.get("by")),
                             (what, session, decision, request_id, by))
            self.assertEqual((line["prior_revision"], line["new_revision"]), (prior, new))
            if at is not None:
                self.assertEqual(line["asked"], at)
            self.assertIsNotNone(line["instance"])
            if kind is None:
                self.assertIsNone(line["event_id"])
            else:
                (event,) = [e for e in self.events(self.room_id) if e["event_id"] == line["event_id"]]
                self.assertEqual((event["kind"], event["user_id"], event["session_id"]), (kind, self.user, session))

    def test_a_lesson(self):
        self.room_id, self.user, self.story = self.room("lesson"), "an-4711", []
        school = self.keys.add("school-office", "members:write,presence:read")
        self.reload()
        student = self.key.token(sub=self.user, rooms=[self.room_id])
        stranger = self.key.token(sub="bo", rooms=["*"])
        member = "/rooms/%s/members/%s" % (quote(self.room_id), self.user)
        attendance = "/rooms/%s/attendance" % quote(self.room_id)

        # Before the lesson: not a member yet.
        self.problem(self.beat(0, "tab-1", student, "too-early"), 403, "not_a_member")
        self.expect(*self.told(), 0, "heartbeat", "tab-1", "not_a_member", "too-early", self.user)
        self.ok(self.send(0, "PUT", member, school, "enrol", {"role": "student"}))
        self.expect(*self.told(), 0, "membership", None, "granted", "enrol", "school-office")

        # Two tabs, renewals, a change of what they show.
        self.ok(self.beat(0, "tab-1", student, "join-1"))
        self.expect(*self.told(), 0, "heartbeat", "tab-1", "accepted", "join-1", self.user, None, 1, "lease.granted")
        self.ok(self.beat(1, "tab-2", student, "join-2", revision=10))
        self.expect(*self.told(), 1, "heartbeat", "tab-2", "accepted", "join-2", self.user, None, 10, "lease.granted")
        self.ok(self.beat(1, "tab-1", student, "renew-1"))
        self.expect(*self.told(), 1, "heartbeat", "tab-1", "accepted", "renew-1", self.user, 1, 2)
        self.ok(self.beat(0, "tab-1", student, "hand-up", meta={"hand": True}))
        self.expect(*self.told(), 0, "heartbeat", "tab-1", "accepted", "hand-up", self.user, 2, 3, "lease.renewed")
        self.ok(self.beat(1, "tab-2", student, "twice", revision=10))
        self.expect(*self.told(), 1, "heartbeat", "tab-2", "already_applied", "twice", self.user, 10, 10)
        self.problem(self.beat(1, "tab-2", student, "late", revision=9), 409, "ignored_old_revision")
        self.expect(*self.told(), 1, "heartbeat", "tab-2", "ignored_old_revision", "late", self.user, 10, 10)

        # What was said explicitly.
        signed = self.send(0, "POST", attendance, student, "sign-in", {"user_id": self.user, "action": "sign_in"})
        self.assertEqual(signed.status, 201, signed)
        self.expect(*self.told(), 0, "attendance", None, "sign_in", "sign-in", self.user)

        # Somebody else tries to speak for the student: that is no decision about a lease; the log has it.
        self.problem(self.beat(0, "tab-9", stranger, "not-me"), 403, "not_your_user")

        # One tab is closed, one falls silent.
        self.ok(self.send(0, "DELETE", "/rooms/%s/leases/%s/tab-2" % (quote(self.room_id), self.user), student, "leave-2"))
        self.expect(*self.told(), 0, "close", "tab-2", "accepted", "leave-2", self.user, 10, 10, "session.closed")
        self.ok(self.beat(1, "tab-3", student, "phone", ttl_ms=300))
        self.expect(*self.told(), 1, "heartbeat", "tab-3", "accepted", "phone", self.user, None, 1, "lease.granted")
        self.expect(*self.told(), None, "expiry", "tab-3", "expired", "phone", None, 1, 1, "lease.expired")

        # The end: signed out by the office, revoked, and refused from then on.
        signed = self.send(1, "POST", attendance, school, "sign-out", {"user_id": self.user, "action": "sign_out"})
        self.assertEqual(signed.status, 201, signed)
        self.expect(*self.told(), 1, "attendance", None, "sign_out", "sign-out", "school-office")
        self.ok(self.send(1, "DELETE", member, school, "expel"))
        first, second = sorted(self.told(2), key=lambda e: e["what"])
        self.expect(first, 1, "membership", None, "revoked", "expel", "school-office")
        self.expect(second, 1, "revocation", "tab-1", "revoked", "expel", "school-office", 3, 3, "membership.revoked")
        self.problem(self.beat(0, "tab-1", student, "refused"), 403, "membership_revoked")
        (line,) = self.told()
        self.expect(line, 0, "heartbeat", "tab-1", "membership_revoked", "refused", self.user, line["prior_revision"],
                    line["new_revision"])

        self.check_whole()
        self.check_attendance(attendance, school)
        self.check_refusal()

    def check_whole(self):
        """Each event of a lease has exactly one line, each line's request is one of the lesson's, no line is missing."""
        told = [e["event_id"] for e in self.story if e["event_id"] is not None]
        events = [e["event_id"] for e in self.events(self.room_id) if not e["kind"].startswith("user.")]
        self.assertEqual(sorted(told), sorted(events))
        self.assertEqual(len({e["instance"] for e in self.story}), 2)
        self.pause(0.3)
        self.assertEqual(len(self.lines()), len(self.story), "lines that nobody caused")

    def check_attendance(self, path, school):
        rows = self.ok(self.client.get(self.base, path, headers=bearer(school)))["attendance"]
        self.assertEqual([(row["action"], row["request_id"], row["by"]) for row in rows],
                         [("sign_in", "sign-in", self.user), ("sign_out", "sign-out", "school-office")])

    def check_refusal(self):
        """The log tells of the stranger: what was refused, and to whom."""
        (line,) = [line for line in self.daemons[0].text().splitlines() if "not-me" in line]
        for word in ("403", "not_your_user", "bo"):
            self.assertIn(word, line)

    def test_without_credentials_nobody_is_named(self):
        """auth=none: the lines are the same, and `by` is null."""
        d = self.start_daemon(auth="none", jwt_key_file="", api_keys_file="", membership="open")
        room = self.room()
        self.ok(self.hb(d.base, room, "u", "s", 1, headers={"X-Request-Id": "anonymous"}))
        self.wait_until(lambda: room in d.output(), 5, "the line")
        (line,) = [e for e in map(json.loads, d.output().splitlines()) if e.get("room_id") == room]
        self.assertEqual((line["request_id"], line["by"]), ("anonymous", None))
        self.stop_now(d)
