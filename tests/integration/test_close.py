# SPDX-License-Identifier: Apache-2.0
"""Closing a lease: DELETE /rooms/{room}/leases/{user}/{session} (CONTRACT §3)."""

from harness.case import REVISION_MAX, Case, quote, steps

OLD = "ignored_old_revision"
#: What a user's first session in a room writes.
BEGUN = ["lease.granted", "user.online"]


class Close(Case):
    instances = 3
    # The grace outlasts each test: its end is the matter of test_users.
    config = {"ttl_min_ms": 100, "sweep_interval_ms": 200, "offline_grace_ms": 600000}

    def close(self, room, revision=None, session="s", base=None, **more):
        return self.client.close(base or self.base, room, "u", session, revision, **more)

    def expire(self, room, revision=5):
        """A lease that has run out and been swept."""
        self.grant(room, "s", revision, 200)
        self.wait_until(lambda: self.tombstone(room, "s"), 5, "the sweep")

    def test_close_is_accepted(self):
        room = self.room()
        epoch = self.grant(room, "s", 5)["epoch"]
        answer = self.ok(self.close(room, headers={"X-Request-Id": "bye"}))
        self.assertEqual(answer["decision"], "accepted")
        self.assertEqual([answer["event_id"], answer["room_revision"]], ["%s:%s:3" % (epoch, room), 3])
        self.assertIsNone(self.stored(room, "s"))
        self.assertEqual(steps(self.events(room)), [(1, "lease.granted", "s"), (2, "user.online", None),
                                                    (3, "session.closed", "s")])
        event = self.events(room)[2]
        self.assertEqual([event[k] for k in ("kind", "session_id", "lease_revision", "user_sessions", "request_id",
                                             "event_id")],
                         ["session.closed", "s", 5, 0, "bye", answer["event_id"]])
        tombstone = self.tombstone(room, "s")
        self.assertEqual([tombstone["revision"], tombstone["reason"], tombstone["event_id"]],
                         [5, "closed", answer["event_id"]])

    def test_close_writes_last_seen(self):
        room = self.room()
        self.ok(self.hb(self.base, room, "seen-" + room, "s", 1))
        self.ok(self.client.close(self.base, room, "seen-" + room, "s"))
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.user_last_seen WHERE user_id = 'seen-%s' AND "
                                "last_seen_at > now() - interval '1 minute'" % room), "1")

    def test_again_is_already_applied(self):
        room = self.room()
        self.grant(room, "s", 5)
        first = self.ok(self.close(room))
        for revision in (None, 5):
            again = self.ok(self.close(room, revision))
            self.assertEqual(again["decision"], "already_applied")
            self.assertEqual(again.get("event_id", first["event_id"]), first["event_id"])
        self.assertEqual([e["kind"] for e in self.events(room)], BEGUN + ["session.closed"])

    def test_after_expiry_is_already_applied(self):
        room = self.room()
        self.expire(room)
        for revision in (None, 5, 6):
            self.assertEqual(self.ok(self.close(room, revision))["decision"], "already_applied")
        self.assertEqual([e["kind"] for e in self.events(room)], BEGUN + ["lease.expired"])

    def test_expired_but_not_swept_is_already_applied_and_tells_of_the_expiry(self):
        room = self.room()
        self.grant(room, "s", 5)
        self.age(room)
        self.assertEqual(self.ok(self.close(room))["decision"], "already_applied")
        self.wait_until(lambda: len(self.events(room)) == 3, 3, "the expiry")
        self.assertEqual([e["kind"] for e in self.events(room)], BEGUN + ["lease.expired"])

    def test_an_older_revision_is_refused(self):
        room = self.room()
        self.grant(room, "s", 5)
        reply = self.close(room, 4)
        document = self.problem(reply, 409, OLD)
        self.assertEqual([document["decision"], document["stored_revision"]], [OLD, 5])
        self.assertEqual(self.stored(room, "s")["revision"], 5)
        self.ok(self.close(room, 5))
        self.assertEqual(self.problem(self.close(room, 4), 409, OLD)["stored_revision"], 5, "also when closed")
        other = self.room()
        self.expire(other)
        self.assertEqual(self.problem(self.close(other, 4), 409, OLD)["stored_revision"], 5, "also when expired")

    def test_never_existed_is_404(self):
        room = self.room()
        for revision in (None, 1, REVISION_MAX):
            self.problem(self.close(room, revision), 404)
        self.grant(room, "s", 1)
        self.problem(self.close(room, session="other"), 404)
        self.assertEqual(self.count("tombstone", room_id=room), 0)
        self.assertEqual(self.head(room), 2)

    def test_the_tombstone_keeps_the_larger_revision(self):
        room = self.room()
        self.grant(room, "s", 5)
        self.assertEqual(self.ok(self.close(room, 50))["decision"], "accepted")
        self.assertEqual(self.tombstone(room, "s")["revision"], 50)
        self.assertEqual(self.problem(self.hb(self.base, room, "u", "s", 50), 409, OLD)["stored_revision"], 50)
        self.assertEqual(self.ok(self.close(room, 70))["decision"], "already_applied")
        self.assertEqual(self.tombstone(room, "s")["revision"], 70)
        self.assertEqual(self.ok(self.close(room))["decision"], "already_applied")
        self.assertEqual(self.tombstone(room, "s")["revision"], 70)
        self.problem(self.hb(self.base, room, "u", "s"), 410, "session_closed")
        self.assertTrue(self.grant(room, "s", 71)["granted"])

    def test_close_then_begin_again_then_close(self):
        room = self.room()
        for revision in (1, 2, 3):
            self.assertTrue(self.grant(room, "s", revision)["granted"])
            self.assertEqual(self.ok(self.close(room))["decision"], "accepted")
        self.assertEqual([e["kind"] for e in self.events(room)],
                         BEGUN + ["session.closed"] + ["lease.granted", "session.closed"] * 2)
        self.assertEqual([e["revision"] for e in self.events(room)], list(range(1, 8)))

    def test_five_parallel_deletes_on_three_instances_give_one_event(self):
        for round_ in range(5):
            room = self.room()
            self.grant(room, "s", 5)
            futures = [self.background(self.close, room, base=self.bases[i % 3], fresh=True) for i in range(5)]
            answers = [self.ok(f.result(20)) for f in futures]
            self.assertEqual(sorted(a["decision"] for a in answers), ["accepted"] + ["already_applied"] * 4)
            self.assertEqual([e["kind"] for e in self.events(room)], BEGUN + ["session.closed"])

    def test_a_close_and_a_renewal_at_once_agree(self):
        for round_ in range(10):
            room = self.room()
            self.grant(room, "s", 1)
            renewal = self.background(self.hb, self.bases[0], room, "u", "s", 2, fresh=True)
            closing = self.background(self.close, room, base=self.bases[1], fresh=True)
            renewal, closing = renewal.result(20), closing.result(20)
            self.assertEqual(closing.status, 200, closing)
            kinds = [e["kind"] for e in self.events(room)]
            if renewal["granted"]:  # the close came first
                self.assertEqual(kinds, BEGUN + ["session.closed", "lease.granted"])
                self.assertIsNotNone(self.stored(room, "s"))
            else:
                self.assertEqual(kinds, BEGUN + ["session.closed"])
                self.assertIsNone(self.stored(room, "s"))
                self.assertEqual(self.tombstone(room, "s")["revision"], 2)

    def test_bad_revisions(self):
        room = self.room()
        self.grant(room, "s", 5)
        path = "/rooms/%s/leases/u/s" % quote(room)
        for bad in ("0", "-1", "1.5", "x", "", "9007199254740992", "99999999999999999999", "%2B6", "6%20"):
            reply = self.client.request(self.base, "DELETE", path + "?revision=" + bad)
            self.problem(reply, 400, field="revision")
        self.problem(self.client.request(self.base, "DELETE", path + "?revision=6&revision=6"), 400)
        self.problem(self.client.request(self.base, "DELETE", path + "?revison=6"), 400, field="revison")
        self.assertEqual(self.stored(room, "s")["revision"], 5)

    def test_odd_names_are_closed_as_they_were_granted(self):
        room, user, session = self.room("a/b:c é"), "ü/1", "tab %2F ?&"
        self.ok(self.hb(self.base, room, user, session, 1))
        self.assertEqual(self.ok(self.client.close(self.base, room, user, session))["decision"], "accepted")
        self.assertEqual(self.count("lease", room_id=room), 0)

    def test_a_poll_sees_the_close(self):
        room = self.room()
        self.grant(room, "s", 5)
        poll = self.parked(self.bases[1], room, 2)
        closed = self.ok(self.close(room))
        answer = self.ok(self.answer(poll, 5))
        self.assertEqual([(e["kind"], e["event_id"]) for e in answer["events"]], [("session.closed", closed["event_id"])])
        self.assertEqual([answer["revision"], closed["room_revision"]], [3, 3])
