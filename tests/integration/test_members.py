# SPDX-License-Identifier: Apache-2.0
"""Members: granting, revoking and what a revocation ends, also where it races with heartbeats."""

from harness.case import RFC3339, SLOW, Case, json, lease, quote, sql, steps, time

ROW = {"room_id", "user_id", "role", "granted_at", "revoked_at"}


class MemberCase(Case):
    """Calls and looks that the classes share."""

    def path(self, room, user=None):
        return "/rooms/%s/members%s" % (quote(room), "" if user is None else "/" + quote(user))

    def put(self, room, user="u", document=None, base=None, **more):
        return self.client.request(base or self.base, "PUT", self.path(room, user),
                                   body=json.dumps({} if document is None else document), **more)

    def revoke(self, room, user="u", base=None, **more):
        return self.client.request(base or self.base, "DELETE", self.path(room, user), **more)

    def member(self, room, user="u"):
        """The row as a dict, or None."""
        text = self.q("SELECT to_json(m) FROM stillhere.member m WHERE room_id = %s AND user_id = %s" %
                      (sql(room), sql(user)))
        return json.loads(text) if text else None

    def hold(self, statement):
        psql = self.psql()
        psql.run("BEGIN")
        psql.run(statement)
        return psql

    def blocked(self, what, n=1):
        """Waits until that many sessions of the daemons wait for a lock."""
        self.wait_until(lambda: int(self.q("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                                           " AND wait_event_type = 'Lock'")) >= n, 5, what)

    def ended(self, room, user="u"):
        """What must hold once the user was revoked: no lease, and for each granted one exactly one ending event."""
        self.assertEqual(self.count("lease", room_id=room, user_id=user), 0)
        self.assertEqual(self.count("room_user", room_id=room, user_id=user), 0)
        begun = [e["session_id"] for e in self.events(room, kind="lease.granted", user_id=user)]
        over = [e["session_id"] for kind in ("membership.revoked", "lease.expired", "session.closed")
                for e in self.events(room, kind=kind, user_id=user) if e["session_id"] is not None]
        self.assertEqual(sorted(over), sorted(begun))
        revisions = [e["revision"] for e in self.events(room)]
        self.assertEqual(revisions, list(range(1, self.head(room) + 1)))


class Members(MemberCase):
    """The routes, one by one."""

    config = {"ttl_min_ms": 100, "offline_grace_ms": 60000}

    def test_a_grant_is_a_row(self):
        room = self.room()
        row = self.ok(self.put(room, "an", {"role": "student"}))
        self.assertEqual(set(row), ROW)
        self.assertEqual([row["room_id"], row["user_id"], row["role"], row["revoked_at"]], [room, "an", "student", None])
        self.assertRegex(row["granted_at"], RFC3339)
        self.assertEqual(self.ok(self.client.get(self.base, self.path(room, "an"))), row)
        self.assertEqual(self.member(room, "an")["role"], "student")
        self.assertEqual(self.count("event", room_id=room), 0)

    def test_a_second_grant_changes_the_role_alone(self):
        room = self.room()
        first = self.ok(self.put(room, "an", {"role": "student"}))
        self.assertEqual(self.ok(self.put(room, "an")), first)
        self.assertEqual(self.ok(self.put(room, "an", {"role": "teacher"})), dict(first, role="teacher"))
        self.assertEqual(self.ok(self.put(room, "an", {"role": ""})), dict(first, role=""))

    def test_the_same_grant_writes_nothing(self):
        room = self.room()
        self.ok(self.put(room, "an", {"role": "student"}))
        before = self.q("SELECT ctid, xmin FROM stillhere.member WHERE room_id = %s" % sql(room))
        self.ok(self.put(room, "an", {"role": "student"}))
        self.assertEqual(self.q("SELECT ctid, xmin FROM stillhere.member WHERE room_id = %s" % sql(room)), before)

    def test_one_member_is_404_without_an_active_membership(self):
        room = self.room()
        self.problem(self.client.get(self.base, self.path(room, "an")), 404, "not_a_member")
        self.ok(self.put(room, "an"))
        self.ok(self.revoke(room, "an"))
        self.problem(self.client.get(self.base, self.path(room, "an")), 404, "not_a_member")

    def test_the_list_comes_in_pages(self):
        room = self.room()
        names = ["a", "b", "B", "é", "z/1", "z 2"]
        for name in names + ["gone"]:
            self.ok(self.put(room, name, {"role": "r-" + name}))
        self.ok(self.put(self.room("other"), "stranger"))
        self.ok(self.revoke(room, "gone"))
        found, after, pages = [], "", 0
        while after is not None:
            query = "?limit=2" + ("&after=" + quote(after) if after else "")
            page = self.ok(self.client.get(self.base, self.path(room) + query))
            self.assertLessEqual(len(page["members"]), 2)
            found += page["members"]
            after = page["next"]
            pages += 1
        self.assertEqual([m["user_id"] for m in found], sorted(names, key=lambda s: s.encode()))
        self.assertEqual(pages, 3)
        for m in found:
            self.assertEqual(set(m), ROW)
            self.assertEqual(m["role"], "r-" + m["user_id"])
        everybody = self.ok(self.client.get(self.base, self.path(room)))
        self.assertEqual([everybody["members"], everybody["next"]], [found, None])

    def test_bad_input_changes_nothing(self):
        room = self.room()
        bodies = ((" ", "bad_json", None), ("[]", "bad_json", None), ('"x"', "bad_json", None),
                  ('{"role":1}', "bad_field", "role"), ('{"role":null}', "bad_field", "role"),
                  ('{"role":"%s"}' % ("x" * 129), "bad_field", "role"), ('{"role":"a\\nb"}', "bad_field", "role"),
                  ('{"rôle":"x"}', "unknown_field", "rôle"), ('{"role":"a","role":"b"}', "bad_json", None),
                  ('{"role":"x"}}', "bad_json", None))
        for body, code, field in bodies:
            with self.subTest(body=body):
                reply = self.client.request(self.base, "PUT", self.path(room, "an"), body=body.encode())
                self.problem(reply, 400, code, field)
        for query in ("?limit=0", "?limit=1001", "?limit=x", "?after=", "?after=..", "?role=x", "?limit=1&limit=1"):
            with self.subTest(query=query):
                self.problem(self.client.get(self.base, self.path(room) + query), 400, "bad_parameter")
        self.problem(self.client.request(self.base, "POST", self.path(room)), 405)
        self.problem(self.client.request(self.base, "PUT", self.path(room, "..")), 400)
        self.assertEqual(self.count("member", room_id=room), 0)
        role = "é" * 64
        self.assertEqual(self.ok(self.put(room, "an", {"role": role}))["role"], role)

    def test_a_body_is_optional(self):
        room = self.room()
        reply = self.client.request(self.base, "PUT", self.path(room, "an"))
        self.assertEqual(self.ok(reply)["role"], "")
        self.assertEqual(self.count("member", room_id=room), 1)

    def test_a_revocation_ends_all_leases_of_the_user(self):
        room = self.room()
        self.ok(self.put(room, "u", {"role": "student"}))
        for s in ("a", "b", "c"):
            self.grant(room, s, 7)
        self.grant(room, "other", user="v")
        head = self.head(room)
        reply = self.revoke(room, headers={"X-Request-Id": "ban-1"})
        answer = self.ok(reply)
        self.assertEqual(answer["decision"], "accepted")
        self.assertEqual(answer["request_id"], "ban-1")
        self.assertEqual(set(answer["revoked"]), ROW)
        self.assertEqual(answer["revoked"]["role"], "student")
        self.assertRegex(answer["revoked"]["revoked_at"], RFC3339)
        self.assertGreaterEqual(reply.seconds, 0.35)
        news = [e for e in self.events(room) if e["revision"] > head]
        self.assertEqual(steps(news), [(head + 1, "membership.revoked", "a"), (head + 2, "membership.revoked", "b"),
                                       (head + 3, "membership.revoked", "c"), (head + 4, "user.offline", None)])
        self.assertEqual([e["user_sessions"] for e in news], [2, 1, 0, 0])
        self.assertEqual([e["lease_revision"] for e in news], [7, 7, 7, None])
        self.assertEqual([e["request_id"] for e in news], ["ban-1"] * 4)
        self.assertEqual(answer["event_ids"], [e["event_id"] for e in news[:3]])
        for s in ("a", "b", "c"):
            stone = self.tombstone(room, s)
            self.assertEqual([stone["reason"], stone["revision"]], ["revoked", 7])
        self.ended(room)
        self.assertEqual(self.count("lease", room_id=room, user_id="v"), 1)
        self.assertEqual(self.count("user_last_seen", user_id="u"), 1)
        self.assertEqual(self.count("room_last_seen", room_id=room, user_id="u"), 1)

    def test_what_was_revoked_shows_in_the_next_poll(self):
        room = self.room()
        self.grant(room, "a")
        head = self.ok(self.poll(self.base, room))["revision"]
        waiting = self.parked(self.base, room, head)
        answer = self.ok(self.revoke(room))
        seen = self.ok(self.answer(waiting))
        self.assertEqual(steps(seen["events"])[0], (head + 1, "membership.revoked", "a"))
        self.assertEqual(seen["events"][0]["event_id"], answer["event_ids"][0])

    def test_again_it_writes_nothing(self):
        room = self.room()
        self.grant(room, "a")
        first = self.ok(self.revoke(room))
        before = self.q("SELECT m.xmin, r.revision FROM stillhere.member m, stillhere.room r WHERE r.room_id = m.room_id"
                        " AND m.room_id = %s" % sql(room))
        again = self.ok(self.revoke(room))
        self.assertEqual([again["decision"], again["event_ids"]], ["already_applied", []])
        self.assertEqual(again["revoked"], first["revoked"])
        self.assertEqual(self.q("SELECT m.xmin, r.revision FROM stillhere.member m, stillhere.room r"
                                " WHERE r.room_id = m.room_id AND m.room_id = %s" % sql(room)), before)

    def test_who_was_never_here_can_be_banned(self):
        room = self.room()
        answer = self.ok(self.revoke(room, "an"))
        (event,) = self.events(room)
        self.assertEqual([event["kind"], event["session_id"], event["lease_revision"], event["user_sessions"]],
                         ["membership.revoked", None, None, 0])
        self.assertEqual([answer["decision"], answer["event_ids"]], ["accepted", [event["event_id"]]])
        self.assertEqual([answer["revoked"]["role"], answer["revoked"]["granted_at"]], ["", None])
        self.problem(self.hb(self.base, room, "an", "s"), 403, "membership_revoked")
        self.assertEqual(self.count("lease", room_id=room), 0)
        again = self.ok(self.revoke(room, "an"))
        self.assertEqual([again["decision"], again["event_ids"]], ["already_applied", []])
        self.assertEqual(self.head(room), 1)

    def test_a_grace_ends_at_once(self):
        room = self.room()
        self.grant(room, "a")
        self.ok(self.client.close(self.base, room, "u", "a"))
        self.assertEqual(self.count("room_user", room_id=room), 1)
        head = self.head(room)
        self.ok(self.revoke(room))
        self.assertEqual(steps([e for e in self.events(room) if e["revision"] > head]),
                         [(head + 1, "membership.revoked", None), (head + 2, "user.offline", None)])
        self.ended(room)

    def test_a_lease_that_had_run_out_ends_as_expired(self):
        room = self.room()
        self.grant(room, "old", 3)
        self.grant(room, "live", 4)
        head = self.head(room)
        psql = self.psql()
        psql.run("BEGIN")  # the row is held, so that no sweeper ends it first
        psql.run("UPDATE stillhere.lease SET expires_at = statement_timestamp() - interval '1 ms' WHERE room_id = %s"
                 " AND session_id = 'old'" % sql(room))
        waiting = self.background(self.revoke, room)
        self.blocked("the revocation")
        psql.run("COMMIT")
        answer = self.ok(self.answer(waiting))
        self.assertEqual(steps([e for e in self.events(room) if e["revision"] > head]),
                         [(head + 1, "lease.expired", "old"), (head + 2, "membership.revoked", "live"),
                          (head + 3, "user.offline", None)])
        self.assertEqual(len(answer["event_ids"]), 1)
        self.assertEqual([self.tombstone(room, s)["reason"] for s in ("old", "live")], ["expired", "revoked"])
        self.ended(room)

    def test_a_revoked_user_comes_back_with_a_grant(self):
        room = self.room()
        first = self.ok(self.put(room, "u", {"role": "student"}))
        self.grant(room, "a", 5)
        self.ok(self.revoke(room))
        for revision in (None, 5, 6):
            self.problem(self.hb(self.base, room, "u", "a", revision), 403, "membership_revoked")
        self.problem(self.hb(self.base, room, "u", "new"), 403, "membership_revoked")
        again = self.ok(self.put(room, "u"))
        self.assertEqual([again["role"], again["revoked_at"]], ["student", None])
        self.assertGreater(again["granted_at"], first["granted_at"])
        answer = self.grant(room, "a")
        self.assertEqual([answer["granted"], answer["lease"]["revision"]], [True, 6])

    def test_a_close_of_a_revoked_session(self):
        room = self.room()
        self.grant(room, "a", 5)
        self.ok(self.revoke(room))
        answer = self.ok(self.client.close(self.base, room, "u", "a"))
        self.assertEqual(answer["decision"], "already_applied")

    def test_a_revocation_by_hand_is_completed(self):
        room = self.room()
        self.grant(room, "a", 5)
        self.q("INSERT INTO stillhere.member (room_id, user_id, revoked_at) VALUES (%s, 'u', now())" % sql(room))
        answer = self.ok(self.revoke(room))
        self.assertEqual([answer["decision"], len(answer["event_ids"])], ["accepted", 1])
        self.ended(room)

    def test_the_events_are_counted_and_logged(self):
        room = self.room()
        series = 'stillhere_events_total{kind="membership.revoked"}'
        before = self.metrics(self.base)[series]
        for s in ("a", "b"):
            self.grant(room, s, 7)
        self.ok(self.put(room, "u", headers={"X-Request-Id": "in-1"}))
        self.ok(self.revoke(room, headers={"X-Request-Id": "out-1"}))
        self.ok(self.revoke(room, headers={"X-Request-Id": "out-2"}))
        self.assertEqual(self.metrics(self.base)[series], before + 2)
        ids = [e["event_id"] for e in self.events(room, kind="membership.revoked")]

        def lines():
            found = [json.loads(line) for line in self.daemons[0].output().splitlines()]
            return [d for d in found if d["what"] in ("membership", "revocation") and d["room_id"] == room]
        self.wait_until(lambda: len(lines()) == 5, 5, "the lines")
        self.assertEqual([(d["what"], d["decision"], d["session_id"], d["event_id"], d["prior_revision"],
                           d["new_revision"], d["request_id"], d["by"]) for d in lines()],
                         [("membership", "granted", None, None, None, None, "in-1", None),
                          ("membership", "revoked", None, None, None, None, "out-1", None),
                          ("revocation", "revoked", "a", ids[0], 7, 7, "out-1", None),
                          ("revocation", "revoked", "b", ids[1], 7, 7, "out-1", None),
                          ("membership", "already_applied", None, None, None, None, "out-2", None)])


class Required(MemberCase):
    """membership=required."""

    config = {"membership": "required"}

    def test_members_alone_come_in(self):
        room = self.room()
        self.problem(self.hb(self.base, room, "u", "a"), 403, "not_a_member")
        self.ok(self.put(room, "u"))
        self.grant(room, "a", 3)
        self.ok(self.revoke(room))
        self.problem(self.hb(self.base, room, "u", "a", 9), 403, "membership_revoked")
        self.ok(self.put(room, "u"))
        self.assertTrue(self.grant(room, "a", 4)["granted"])
        self.problem(self.hb(self.base, room, "v", "a"), 403, "not_a_member")
        self.assertEqual(self.count("lease", room_id=room), 1)


class Races(MemberCase):
    """Heartbeats and revocations that meet in the midst of their transactions, on different instances. Each order is
    made by locks that psql holds."""

    weight = 6
    instances = 2
    config = {"ttl_min_ms": 100}

    def room_lock(self, room):
        self.q("INSERT INTO stillhere.room (room_id, revision) VALUES (%s, 0) ON CONFLICT DO NOTHING" % sql(room))
        return self.hold("SELECT 1 FROM stillhere.room WHERE room_id = %s FOR UPDATE" % sql(room))

    def test_a_first_heartbeat_before_the_revocation(self):
        """Both wait for the room, the heartbeat first: the revocation finds the lease and ends it."""
        room = self.room()
        psql = self.room_lock(room)
        heartbeat = self.background(self.hb, self.bases[0], room, "u", "s", 1, 60000)
        self.blocked("the heartbeat")
        revocation = self.background(self.revoke, room, "u", self.bases[1])
        self.blocked("the revocation", 2)
        psql.run("COMMIT")
        first, second = self.answer(heartbeat), self.answer(revocation)
        self.assertEqual(self.ok(second)["decision"], "accepted")
        self.assertIn(first.status, (200, 403), first)
        self.ended(room)
        self.problem(self.hb(self.bases[0], room, "u", "s", 2), 403, "membership_revoked")

    def test_a_first_heartbeat_behind_the_revocation(self):
        """The heartbeat has looked at the membership before it was revoked, and gets the room after that: it must look
        again. There is no row to lock for it, since there was none."""
        for membership in (False, True):
            with self.subTest(membership=membership):
                room = self.room()
                if membership:
                    self.ok(self.put(room, "u"))
                psql = self.room_lock(room)
                revocation = self.background(self.revoke, room, "u", self.bases[1])
                self.blocked("the revocation")
                heartbeat = self.background(self.hb, self.bases[0], room, "u", "s", 1, 60000)
                self.blocked("the heartbeat", 2)
                psql.run("COMMIT")
                self.problem(self.answer(heartbeat), 403, "membership_revoked")
                answer = self.ok(self.answer(revocation))
                self.assertEqual([answer["decision"], len(answer["event_ids"])], ["accepted", 1])
                self.assertEqual(self.events(room, kind="lease.granted"), [])
                self.ended(room)
                self.assertIsNone(self.tombstone(room, "s"))

    def test_a_revocation_by_hand_behind_the_look(self):
        """The member's row comes from psql, while the heartbeat waits for the room with its look behind it."""
        room = self.room()
        psql = self.room_lock(room)
        heartbeat = self.background(self.hb, self.bases[0], room, "u", "s", 1, 60000)
        self.blocked("the heartbeat")
        psql.run("INSERT INTO stillhere.member (room_id, user_id, revoked_at) VALUES (%s, 'u', now())" % sql(room))
        psql.run("COMMIT")
        self.problem(self.answer(heartbeat), 403, "membership_revoked")
        self.assertEqual(self.count("lease", room_id=room), 0)
        self.assertEqual(self.count("event", room_id=room), 0)

    def test_a_new_stay_of_an_expired_lease_behind_the_revocation(self):
        room = self.room()
        self.grant(room, "s", 1)
        self.q("DELETE FROM stillhere.room_user WHERE room_id = %s" % sql(room))
        psql = self.room_lock(room)
        # Run out, and held by the heartbeat: the sweeper passes it over.
        self.age(room)
        heartbeat = self.background(self.hb, self.bases[0], room, "u", "s", 2, 60000)
        self.blocked("the heartbeat or a sweeper")
        revocation = self.background(self.revoke, room, "u", self.bases[1])
        self.pause(0.3)
        psql.run("COMMIT")
        self.assertEqual(self.ok(self.answer(revocation))["decision"], "accepted")
        self.assertIn(self.answer(heartbeat).status, (200, 403))
        self.wait_until(lambda: self.count("lease", room_id=room) == 0, 3, "the end of the lease")
        self.ended(room)
        self.problem(self.hb(self.bases[0], room, "u", "s", 9), 403, "membership_revoked")

    def test_a_renewal_behind_the_revocation(self):
        room = self.room()
        self.grant(room, "s", 1)
        psql = self.room_lock(room)
        revocation = self.background(self.revoke, room, "u", self.bases[1])
        self.blocked("the revocation")
        heartbeat = self.background(self.hb, self.bases[0], room, "u", "s", 2, 60000)
        self.blocked("the heartbeat", 2)
        psql.run("COMMIT")
        self.problem(self.answer(heartbeat), 403, "membership_revoked")
        self.assertEqual(self.ok(self.answer(revocation))["decision"], "accepted")
        self.ended(room)

    def test_sessions_without_end_cannot_hold_off_a_revocation(self):
        """New sessions all the time on both instances: the revocation gets through, and none of them is left."""
        room = self.room()
        stop = []

        def hammer(number):
            turn, late = 0, []
            while not stop:
                turn += 1
                sent = time.monotonic()
                items = [lease(room, "u", "%d-%d-%d" % (number, turn, i), 1, 60000) for i in range(20)]
                reply = self.client.batch(self.bases[number % 2], items)
                late += [sent for r in reply.json()["results"] if r.get("decision") == "accepted"]
            return max(late, default=0)
        hammers = [self.background(hammer, i) for i in range(4)]
        self.wait_until(lambda: self.count("lease", room_id=room) > 100, 10, "a crowd")
        reply = self.revoke(room, base=self.bases[1])
        answered = time.monotonic()
        self.pause(0.3)
        stop.append(True)
        last = max(self.answer(h) for h in hammers)
        self.assertEqual(self.ok(reply)["decision"], "accepted")
        self.assertLess(last, answered)
        self.ended(room)

    def test_two_revocations_at_once(self):
        room = self.room()
        self.grant(room, "a")
        psql = self.room_lock(room)
        both = [self.background(self.revoke, room, "u", base) for base in self.bases]
        self.blocked("both", 2)
        psql.run("COMMIT")
        answers = sorted((self.ok(self.answer(one)) for one in both), key=lambda a: a["decision"])
        self.assertEqual([a["decision"] for a in answers], ["accepted", "already_applied"])
        self.assertEqual([len(a["event_ids"]) for a in answers], [1, 0])
        self.ended(room)

    def test_grants_and_revocations_at_once(self):
        room = self.room()
        for _ in range(10):
            calls = [self.background(self.put, room, "u", {"role": "r"}, self.bases[0]),
                     self.background(self.revoke, room, "u", self.bases[1]),
                     self.background(self.hb, self.bases[0], room, "u", "s", None, 60000)]
            for call in calls:
                self.assertIn(self.answer(call).status, (200, 403))
            revoked = self.member(room)["revoked_at"] is not None
            if revoked:
                self.assertEqual(self.count("lease", room_id=room), 0)
        self.ok(self.revoke(room))
        self.ended(room)

    def test_a_locked_member_is_503_in_time_and_holds_up_no_read(self):
        self.allow_5xx = True
        room = self.room()
        self.ok(self.put(room, "u"))
        psql = self.hold("SELECT 1 FROM stillhere.member WHERE room_id = %s FOR UPDATE" % sql(room))
        stuck = [self.background(self.revoke, room) for _ in range(6)]
        self.blocked("the revocations", 2)
        slowest = 0
        for _ in range(10):
            reply = self.client.get(self.base, self.path(room))
            self.ok(reply)
            slowest = max(slowest, reply.seconds)
        self.assertLess(slowest, 0.5 * SLOW)
        self.ok(self.put(self.room("free"), "v"))
        for one in stuck:
            reply = self.answer(one)
            self.problem(reply, 503, "unavailable")
            self.assertIn("retry-after", reply.headers)
            self.assertLess(reply.seconds, 5 * SLOW)
        psql.run("COMMIT")
        self.assertEqual(self.ok(self.revoke(room))["decision"], "accepted")

    def test_a_lock_that_goes_is_waited_for(self):
        room = self.room()
        self.grant(room, "s", 1)
        psql = self.hold("SELECT 1 FROM stillhere.lease WHERE room_id = %s FOR UPDATE" % sql(room))
        waiting = self.background(self.revoke, room)
        self.blocked("the revocation")
        self.pause(1.2)
        psql.run("COMMIT")
        self.assertEqual(self.ok(self.answer(waiting))["decision"], "accepted")
        self.ended(room)

    def test_a_renewal_costs_no_more(self):
        """A batch without a new stay asks nobody for memberships and locks no room."""
        room = self.room()
        self.ok(self.put(room, "u"))
        self.grant(room, "s", 1)
        self.hold("LOCK TABLE stillhere.member IN ACCESS EXCLUSIVE MODE")
        self.hold("SELECT 1 FROM stillhere.room WHERE room_id = %s FOR UPDATE" % sql(room))
        self.assertEqual(self.ok(self.hb(self.base, room, "u", "s", 2, 60000))["decision"], "accepted")
