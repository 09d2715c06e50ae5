# SPDX-License-Identifier: Apache-2.0
"""GET /rooms/{room}/users/{user}/explain: why a user is shown as they are, and what comes next (CONTRACT §4)."""

from harness.case import RFC3339, Case, instant, quote, sql


class Explain(Case):

    config = {"ttl_min_ms": 100, "offline_grace_ms": 1500}

    def explain(self, room, user="u", base=None):
        document = self.ok(self.client.get(base or self.base, "/rooms/%s/users/%s/explain" %
                                           (quote(room), quote(user))))
        self.assertEqual([document["room_id"], document["user_id"]], [room, user])
        self.assertRegex(document["server_time"], RFC3339)
        return document

    def test_nobody(self):
        document = self.explain(self.room(), "nobody/ä")
        self.assertEqual([document[k] for k in ("state", "next", "online_since", "pending_offline", "last_seen_at",
                                                "leases", "tombstones", "events", "room_revision")],
                         ["offline", None, None, None, None, [], [], [], 0])
        self.assertIn("no heartbeat of this user was ever accepted", document["rule"])
        self.assertEqual(document["membership"]["member"], None)
        self.assertIn("membership=open", document["membership"]["rule"])

    def test_online(self):
        room = self.room()
        self.client.hb(self.base, room, "u", "one", 41, 60000, headers={"X-Request-Id": "first"})
        self.ok(self.client.hb(self.base, room, "u", "one", 44, 60000, headers={"X-Request-Id": "second"}))
        last = self.grant(room, "two", None, 90000)
        self.grant(room, "s", user="somebody-else")
        document = self.explain(room)
        self.assertEqual(document["state"], "online")
        self.assertIn("2 sessions", document["rule"])
        self.assertIn(last["lease"]["renewed_at"], document["rule"])
        self.assertEqual(document["last_seen_at"], last["lease"]["renewed_at"])
        one, two = document["leases"]
        self.assertEqual([one[k] for k in ("session_id", "state", "revision", "prior_revision", "revision_given",
                                           "request_id", "ttl_ms")],
                         ["one", "live", 44, 41, True, "second", 60000])
        self.assertEqual([two[k] for k in ("session_id", "state", "revision", "prior_revision", "revision_given")],
                         ["two", "live", 1, None, False])
        self.near(one["remaining_ms"], 50000, 60000)
        self.assertEqual(document["next"]["at"], one["expires_at"])
        self.near(document["next"]["in_ms"], one["remaining_ms"], one["remaining_ms"])
        self.assertIn('"one"', document["next"]["what"])
        self.assertEqual(document["online_since"] is not None and document["pending_offline"], None)
        self.assertEqual({e["session_id"] for e in document["events"]} - {None}, {"one", "two"})
        self.assertEqual([e["revision"] for e in document["events"]], sorted(e["revision"] for e in document["events"]))
        self.assertEqual(document["room_revision"], self.head(room))

    def test_expired_but_not_swept(self):
        room = self.room()
        answer = self.grant(room, "s", 7, 400)
        lock = self.psql()
        lock.run("BEGIN")
        lock.run("SELECT 1 FROM stillhere.lease WHERE room_id = %s FOR UPDATE" % sql(room))
        self.pause(0.6)
        document = self.explain(room)
        (lease,) = document["leases"]
        self.assertEqual([lease["state"], lease["remaining_ms"]], ["expired-unswept", 0])
        self.assertEqual(document["state"], "expired")
        self.assertIn("ran out at " + answer["lease"]["expires_at"], document["rule"])
        self.assertEqual([document["next"]["at"], document["next"]["in_ms"]], [answer["lease"]["expires_at"], 0])
        lock.run("COMMIT")

    def test_grace_then_offline_then_forgotten(self):
        room = self.room()
        self.grant(room, "s", 3)
        closed = self.ok(self.client.close(self.base, room, "u", "s", headers={"X-Request-Id": "goodbye"}))
        document = self.explain(room)
        self.assertEqual(document["state"], "grace")
        self.assertIn('session "s" was closed at revision 3', document["rule"])
        self.assertEqual(document["leases"], [])
        (tombstone,) = document["tombstones"]
        self.assertEqual([tombstone[k] for k in ("session_id", "reason", "revision", "event_id", "request_id")],
                         ["s", "closed", 3, closed["event_id"], "goodbye"])
        self.near(instant(tombstone["forgotten_at"]) - instant(tombstone["ended_at"]), 86399.9, 86400.1)
        pending = document["pending_offline"]
        self.near(instant(pending["offline_at"]) - instant(tombstone["ended_at"]), 1.4, 1.6, "the grace")
        self.near(pending["remaining_ms"], 0, 1500)
        self.assertEqual(document["next"]["at"], pending["offline_at"])
        self.assertIn("user.offline", document["next"]["what"])
        document = self.wait_until(lambda: (lambda d: d["state"] == "offline" and d)(self.explain(room)), 6, "offline")
        self.assertIn('session "s" was closed', document["rule"])
        self.assertEqual([document["online_since"], document["pending_offline"]], [None, None])
        self.assertEqual(document["next"]["at"], tombstone["forgotten_at"])
        self.assertEqual(document["events"][-1]["kind"], "user.offline")
        self.q("DELETE FROM stillhere.tombstone WHERE room_id = %s" % sql(room))
        document = self.explain(room)
        self.assertEqual([document["state"], document["next"]], ["offline", None])
        self.assertIn("last seen here at", document["rule"])

    def test_an_expired_session(self):
        room = self.room()
        self.grant(room, "s", 9, 300)
        document = self.wait_until(lambda: (lambda d: d["tombstones"] and d)(self.explain(room)), 6, "the expiry")
        self.assertIn("not renewed in time after revision 9", document["rule"])
        self.assertEqual(document["tombstones"][0]["reason"], "expired")

    def test_only_the_last_twenty_events(self):
        room = self.room()
        for i in range(12):
            self.grant(room, "s%d" % i)
            self.ok(self.client.close(self.base, room, "u", "s%d" % i))
        document = self.explain(room)
        self.assertEqual(len(document["events"]), 20)
        self.assertEqual(document["events"][-1]["revision"], self.head(room))
        self.assertEqual(len(document["tombstones"]), 12)

    def test_membership(self):
        room = self.room()
        self.q("INSERT INTO stillhere.member VALUES (%s, 'member', 'student', clock_timestamp(), NULL),"
               " (%s, 'banned', '', NULL, clock_timestamp())" % (sql(room), sql(room)))
        document = self.explain(room, "member")
        self.assertEqual(document["membership"]["member"]["role"], "student")
        self.assertIn("active membership", document["membership"]["rule"])
        document = self.explain(room, "banned")
        self.assertIn("membership_revoked", document["membership"]["rule"])
        self.assertIn("the membership was revoked at " + document["membership"]["member"]["revoked_at"],
                      document["rule"])
        self.assertEqual(document["state"], "offline")
        self.problem(self.hb(self.base, room, "banned", "s"), 403, "membership_revoked")
        required = self.start_daemon(membership="required")
        self.addCleanup(self.stop_now, required)
        document = self.explain(room, "stranger", required.base)
        self.assertEqual(document["membership"]["required"], True)
        self.assertIn("not_a_member", document["membership"]["rule"])

    def test_what_is_refused(self):
        self.problem(self.client.get(self.base, "/rooms/r/users/u/explain?x=1"), 400, "bad_parameter")
        self.problem(self.client.get(self.base, "/rooms/r/users/../explain"), 400)
        self.problem(self.client.request(self.base, "PUT", "/rooms/r/users/u/explain"), 405)
        self.assertEqual(self.client.request(self.base, "HEAD", "/rooms/r/users/u/explain").status, 200)
