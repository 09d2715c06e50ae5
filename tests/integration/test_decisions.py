# SPDX-License-Identifier: Apache-2.0
"""What a heartbeat decides: the table of CONTRACT §2, alone and in a batch, and the rules around it."""

from harness.case import (REVISION_MAX, RFC3339, Case, condition, instant, json, lease, sql, steps)

OLD = "ignored_old_revision"
#: What a user's first session in a room writes.
BEGUN = ["lease.granted", "user.online"]

# What was there before the heartbeat.
NOTHING, LIVE, UNSWEPT, SWEPT, CLOSED, REVOKED, BANNED, REGRANTED = (
    "nothing", "live", "expired, not swept", "expired, swept", "closed", "revoked", "revoked without a lease",
    "granted again")


class Table(Case):
    """Every row of the table. The sweeper is kept away, so that what is not swept stays so."""

    config = {"sweep_interval_ms": 600000, "ttl_min_ms": 60000, "ttl_default_ms": 90000}

    def arrange(self, situation, room, session, stored):
        """Brings about a situation with revision `stored`."""
        key = dict(room_id=room, user_id="u", session_id=session)
        if situation in (LIVE, UNSWEPT, CLOSED):
            self.grant(room, session, stored, 90000)
        if situation == UNSWEPT:
            self.age(room, session)
            self.assertIsNotNone(self.stored(room, session), "the sweeper was to be away")
        if situation == CLOSED:
            self.assertEqual(self.client.close(self.base, room, "u", session).status, 200)
        if situation in (SWEPT, REVOKED, REGRANTED):
            reason = "expired" if situation == SWEPT else "revoked"
            self.q("INSERT INTO stillhere.tombstone (room_id, user_id, session_id, revision, reason, ended_at, event_id)"
                   " VALUES (%s, 'u', %s, %d, '%s', now(), 'e:%s:1')" % (sql(room), sql(session), stored, reason,
                                                                        session))
        if situation in (REVOKED, BANNED):
            self.member(room, "now()")
        if situation == REGRANTED:
            self.member(room, "NULL")
        return key

    def member(self, room, revoked, user="u"):
        self.q("INSERT INTO stillhere.member (room_id, user_id, role, granted_at, revoked_at) VALUES (%s, %s, 'student', "
               "now() - interval '1 day', %s) ON CONFLICT (room_id, user_id) DO UPDATE SET revoked_at = "
               "excluded.revoked_at" % (sql(room), sql(user), revoked))

    def rows(self, room):
        return [self.q("SELECT coalesce(json_agg(t), '[]') FROM (SELECT * FROM stillhere.%s WHERE %s ORDER BY 1, 2, 3) t"
                       % (table, condition(dict(room_id=room)))) for table in ("lease", "tombstone", "event", "room")]

    def decide(self, situation, stored, given, status, decision, granted=None, new=None):
        """One row of the table: alone, then as one item of a batch between two others."""
        for batch in (False, True):
            room, session = self.room(), "s"
            with self.subTest(situation=situation, stored=stored, given=given, batch=batch):
                self.arrange(situation, room, session, stored)
                before = self.rows(room)
                head = self.head(room)
                if batch:
                    other = self.room("other")
                    reply = self.client.batch(self.base, [lease(other, "x", "1", 1),
                                                          lease(room, "u", session, given, 90000),
                                                          lease(other, "x", "2", 1)])
                    results = self.ok(reply)["results"]
                    self.assertEqual(len(results), 3)
                    self.assertEqual([results[0]["decision"], results[2]["decision"]], ["accepted", "accepted"])
                    answer = results[1]
                else:
                    reply = self.hb(self.base, room, "u", session, given, 90000)
                    self.assertEqual(reply.status, status, reply)
                    answer = reply.json()
                if status == 200:
                    self.demand_answer(answer, room, session, decision, granted, new)
                    self.demand_rows(situation, room, session, decision, granted, new, before, head, answer)
                else:
                    self.problem_object(answer, status, decision)
                    self.assertEqual(answer["decision"], decision)
                    if decision in (OLD, "session_closed"):
                        self.assertEqual(answer["stored_revision"], stored)
                    if situation != UNSWEPT:
                        self.assertEqual(self.rows(room), before, "a refusal changes nothing")
                    else:
                        self.assertNotIn("lease.granted", [e["kind"] for e in self.events(room)[1:]])

    def demand_answer(self, answer, room, session, decision, granted, new):
        self.assertEqual(answer["decision"], decision)
        self.assertIs(answer["granted"], granted)
        self.assertEqual(answer["lease"]["revision"], new)
        self.assertEqual([answer["lease"][k] for k in ("room_id", "user_id", "session_id", "ttl_ms")],
                         [room, "u", session, 90000])
        for name in ("granted_at", "renewed_at", "expires_at"):
            self.assertRegex(answer["lease"][name], RFC3339)
        self.assertIn("meta", answer["lease"])
        self.assertRegex(answer["server_time"], RFC3339)
        self.assertTrue(answer["epoch"])
        self.assertTrue(answer["request_id"])
        self.assertLessEqual(answer["renew_after_ms"] * 3, 90000)
        self.assertGreaterEqual(answer["renew_after_ms"], 90000 // 3 * 0.8 - 1)

    def demand_rows(self, situation, room, session, decision, granted, new, before, head, answer):
        row = self.stored(room, session)
        self.assertEqual(row["revision"], new)
        self.assertIsNone(self.tombstone(room, session), "a live lease leaves no tombstone")
        self.assertEqual(answer["room_revision"], self.head(room))
        if decision == "already_applied":
            self.assertEqual(self.rows(room), before, "nothing changes, the expiry neither")
            return
        fresh = [e["kind"] for e in self.events(room) if e["revision"] > head]
        if situation == UNSWEPT:
            self.assertEqual(fresh, ["lease.expired", "lease.granted"], "the user never went offline")
        elif situation == CLOSED:
            self.assertEqual(fresh, ["lease.granted"], "the user came back inside the grace")
        else:
            self.assertEqual(fresh, BEGUN if granted else [])
        self.assertEqual(self.head(room), head + len(fresh))
        if not granted:
            self.assertEqual(row["granted_at"], json.loads(before[0])[0]["granted_at"])
            self.assertGreater(instant(row["expires_at"]), instant(json.loads(before[0])[0]["expires_at"]))

    def test_no_lease_no_tombstone(self):
        self.decide(NOTHING, 0, None, 200, "accepted", True, 1)
        self.decide(NOTHING, 0, 1, 200, "accepted", True, 1)
        self.decide(NOTHING, 0, 42, 200, "accepted", True, 42)
        self.decide(NOTHING, 0, REVISION_MAX, 200, "accepted", True, REVISION_MAX)

    def test_live(self):
        self.decide(LIVE, 41, 42, 200, "accepted", False, 42)
        self.decide(LIVE, 41, 1000, 200, "accepted", False, 1000)
        self.decide(LIVE, 41, None, 200, "accepted", False, 42)
        self.decide(LIVE, 41, 41, 200, "already_applied", False, 41)
        self.decide(LIVE, 41, 40, 409, OLD)
        self.decide(LIVE, 41, 1, 409, OLD)

    def test_live_at_the_largest_revision(self):
        self.decide(LIVE, REVISION_MAX, None, 409, OLD)
        self.decide(LIVE, REVISION_MAX, REVISION_MAX, 200, "already_applied", False, REVISION_MAX)
        self.decide(LIVE, REVISION_MAX, REVISION_MAX - 1, 409, OLD)
        self.decide(LIVE, REVISION_MAX - 1, None, 200, "accepted", False, REVISION_MAX)

    def test_expired_not_swept(self):
        self.decide(UNSWEPT, 41, 42, 200, "accepted", True, 42)
        self.decide(UNSWEPT, 41, None, 200, "accepted", True, 42)
        self.decide(UNSWEPT, 41, 41, 409, OLD)
        self.decide(UNSWEPT, 41, 40, 409, OLD)
        self.decide(UNSWEPT, REVISION_MAX, None, 409, OLD)

    def test_expired_swept(self):
        self.decide(SWEPT, 41, 42, 200, "accepted", True, 42)
        self.decide(SWEPT, 41, None, 200, "accepted", True, 42)
        self.decide(SWEPT, 41, 41, 409, OLD)
        self.decide(SWEPT, 41, 40, 409, OLD)
        self.decide(SWEPT, REVISION_MAX, None, 409, OLD)

    def test_closed(self):
        self.decide(CLOSED, 41, 42, 200, "accepted", True, 42)
        self.decide(CLOSED, 41, 41, 409, OLD)
        self.decide(CLOSED, 41, 40, 409, OLD)
        self.decide(CLOSED, 41, None, 410, "session_closed")
        self.decide(CLOSED, REVISION_MAX, None, 410, "session_closed")
        self.decide(CLOSED, REVISION_MAX, REVISION_MAX, 409, OLD)

    def test_revoked(self):
        for given in (42, 41, 40, None):
            self.decide(REVOKED, 41, given, 403, "membership_revoked")
            self.decide(BANNED, 41, given, 403, "membership_revoked")

    def test_granted_again_after_a_revocation(self):
        self.decide(REGRANTED, 41, None, 200, "accepted", True, 42)
        self.decide(REGRANTED, 41, 42, 200, "accepted", True, 42)
        self.decide(REGRANTED, 41, 41, 409, OLD)

    def test_an_unswept_lease_of_a_revoked_member_is_not_renewed(self):
        room = self.room()
        self.grant(room, "s", 5, 90000)
        self.age(room)
        self.member(room, "now()")
        self.problem(self.hb(self.base, room, "u", "s", 6), 403, "membership_revoked")

    def test_the_expired_event_of_a_regrant_is_whole(self):
        room = self.room()
        self.client.hb(self.base, room, "u", "s", 41, 90000, headers={"X-Request-Id": "the-last-renewal"})
        self.age(room)
        answer = self.grant(room, "s", 42, 90000)
        self.assertTrue(answer["granted"])
        _, _, expired, granted = self.events(room)
        self.assertEqual(steps(self.events(room)), [(1, "lease.granted", "s"), (2, "user.online", None),
                                                    (3, "lease.expired", "s"), (4, "lease.granted", "s")])
        self.assertEqual([expired["lease_revision"], expired["user_sessions"], expired["request_id"]],
                         [41, 0, "the-last-renewal"])
        self.near(expired["overdue_ms"], 3500000, 3600000, "overdue_ms")
        self.assertEqual([granted["lease_revision"], granted["user_sessions"], granted["revision"]], [42, 1, 4])
        self.assertEqual(expired["event_id"], "%s:%s:3" % (answer["epoch"], room))
        self.assertEqual(answer["room_revision"], 4)

    def test_a_second_session_of_an_unswept_user_counts_only_what_is_left(self):
        room = self.room()
        self.grant(room, "a", 1, 90000)
        self.grant(room, "b", 1, 90000)
        self.age(room, "a")
        self.grant(room, "a", 2, 90000)
        self.assertEqual([(e["kind"], e["session_id"], e["user_sessions"]) for e in self.events(room)],
                         [("lease.granted", "a", 1), ("user.online", None, 1), ("lease.granted", "b", 2),
                          ("lease.expired", "a", 1), ("lease.granted", "a", 2)])


class Required(Table):
    """membership=required."""

    config = dict(Table.config, membership="required")

    def test_membership_required(self):
        room = self.room()
        for given in (None, 7):
            self.problem(self.hb(self.base, room, "stranger", "s", given), 403, "not_a_member")
            item = self.ok(self.client.batch(self.base, [lease(room, "stranger", "s", given)]))["results"][0]
            self.problem_object(item, 403, "not_a_member")
            self.assertEqual(item["decision"], "not_a_member")
        self.assertEqual(self.count("lease", room_id=room) + self.head(room), 0)
        self.member(room, "NULL", "friend")
        self.member(room, "now()", "foe")
        self.assertTrue(self.grant(room, "s", 7, 90000, "friend")["granted"])
        self.assertFalse(self.grant(room, "s", 8, 90000, "friend")["granted"])
        self.problem(self.hb(self.base, room, "foe", "s", 7), 403, "membership_revoked")


# The table's rows need membership=open; of Required only its own test is run.
for _name in [n for n in dir(Table) if n.startswith("test")]:
    setattr(Required, _name, None)


class Heartbeats(Case):
    """The answer's parts, meta, batches."""

    def test_renew_after_is_at_most_a_third_and_differs(self):
        room, seen = self.room(), set()
        for ttl in (5000, 90000, 3600000):
            for i in range(30):
                answer = self.grant(room, "s%d" % ttl, i + 1, ttl)
                self.assertLessEqual(answer["renew_after_ms"] * 3, ttl)
                self.assertGreaterEqual(answer["renew_after_ms"], ttl / 3 * 0.8 - 1)
                seen.add((ttl, answer["renew_after_ms"]))
        self.assertGreater(len([t for t in seen if t[0] == 90000]), 15, "clients must drift apart")

    def test_renew_after_differs_within_a_batch(self):
        room = self.room()
        results = self.ok(self.client.batch(self.base, [lease(room, "u", str(i)) for i in range(50)]))["results"]
        self.assertGreater(len({r["renew_after_ms"] for r in results}), 25)

    def test_times_are_the_databases(self):
        room = self.room()
        before = float(self.q("SELECT extract(epoch FROM clock_timestamp())"))
        answer = self.grant(room, ttl_ms=90000, client_time="2001-01-01T00:00:00.000Z")
        after = float(self.q("SELECT extract(epoch FROM clock_timestamp())"))
        self.near(instant(answer["lease"]["renewed_at"]), before - 0.001, after)
        self.near(instant(answer["server_time"]), before - 0.05, after + 0.05)
        self.near(instant(answer["lease"]["expires_at"]) - instant(answer["lease"]["renewed_at"]), 89.998, 90.002)

    def test_default_ttl(self):
        answer = self.grant(self.room(), ttl_ms=None)
        self.assertEqual(answer["lease"]["ttl_ms"], 90000)

    def test_room_revision_and_epoch(self):
        room = self.room()
        self.assertEqual(self.grant(room, "a", 1)["room_revision"], 2, "the revision after the user.online")
        self.assertEqual(self.grant(room, "b", 1)["room_revision"], 3)
        self.assertEqual(self.grant(room, "a", 2)["room_revision"], 3)
        self.assertEqual(self.grant(room, "a", 3)["epoch"], self.ok(self.poll(self.base, room))["epoch"])

    def test_meta_is_kept_replaced_and_compared(self):
        room = self.room()
        meta = {"color": "#c33", "deep": {"list": [1, 2, {"x": None}]}, "é": "ü\"\\\n"}
        self.assertEqual(self.grant(room, "s", 1, meta=meta)["lease"]["meta"], meta)
        self.assertEqual(self.grant(room, "s", 2)["lease"]["meta"], meta, "left out: kept")
        self.assertEqual(self.grant(room, "s", 3, meta=dict(reversed(list(meta.items()))))["lease"]["meta"], meta)
        self.assertEqual([e["kind"] for e in self.events(room)], BEGUN, "an equal meta is no event")
        self.assertEqual(self.grant(room, "s", 4, meta={"color": "red"})["lease"]["meta"], {"color": "red"})
        self.assertEqual(self.grant(room, "s", 5, meta={})["lease"]["meta"], {})
        kinds = [(e["kind"], e["lease_revision"], e["meta"]) for e in self.events(room)]
        self.assertEqual(kinds, [("lease.granted", 1, meta), ("user.online", None, None),
                                 ("lease.renewed", 4, {"color": "red"}), ("lease.renewed", 5, {})])
        self.assertEqual(self.head(room), 4)

    def test_meta_of_a_refused_heartbeat_is_not_taken(self):
        room = self.room()
        self.grant(room, "s", 5, meta={"a": 1})
        self.assertEqual(self.ok(self.hb(self.base, room, "u", "s", 5, meta={"a": 2}))["decision"], "already_applied")
        self.problem(self.hb(self.base, room, "u", "s", 4, meta={"a": 3}), 409, OLD)
        self.assertEqual(self.grant(room, "s", 6)["lease"]["meta"], {"a": 1})
        self.assertEqual([e["kind"] for e in self.events(room)], BEGUN)

    def test_meta_numbers_keep_their_form(self):
        room = self.room()
        for form in ("1.1", "0.1", "1e-7", "9007199254740993", "-0.5", "100", "3.141592653589793"):
            body = '{"room_id":"%s","user_id":"u","session_id":"s%s","revision":1,"meta":{"n":%s}}' % (room, form, form)
            reply = self.client.request(self.base, "PUT", "/leases", body=body)
            self.assertEqual(reply.status, 200, reply)
            text = reply.body.decode().split('"meta":', 1)[1]
            number = text.split('"n":', 1)[1].split("}")[0].strip()
            if form == "1e-7":
                self.assertEqual(float(number), 1e-7)
            else:
                self.assertEqual(number, form)
        snapshot = self.poll(self.base, room).body.decode()
        self.assertIn('"n":1.1}', snapshot.replace(" ", ""))
        self.assertNotIn("1.10000", snapshot)

    def test_meta_size(self):
        room = self.room()
        fits = {"x": "a" * (2048 - len('{"x":""}'))}
        self.assertEqual(self.grant(room, "s", 1, meta=fits)["lease"]["meta"], fits)
        self.problem(self.hb(self.base, room, "u", "s", 2, meta={"x": fits["x"] + "a"}), 400, field="meta")
        self.assertEqual(self.stored(room, "s")["revision"], 1)

    def test_request_id_is_echoed_and_made(self):
        room = self.room()
        reply = self.client.hb(self.base, room, "u", "s", 1, headers={"X-Request-Id": "abc-123"})
        self.assertEqual([reply.headers["x-request-id"], reply["request_id"]], ["abc-123", "abc-123"])
        self.assertEqual(self.events(room)[0]["request_id"], "abc-123")
        reply = self.client.hb(self.base, room, "u", "s", 0, headers={"X-Request-Id": "bad-one"})
        self.assertEqual([reply.headers["x-request-id"], reply["request_id"]], ["bad-one", "bad-one"])
        made = {self.ok(self.hb(self.base, room, "u", "s"))["request_id"] for _ in range(5)}
        self.assertEqual(len(made), 5)
        for odd in ("x" * 2000, "a b", "<script>"):
            reply = self.client.hb(self.base, room, "u", "s", headers={"X-Request-Id": odd})
            self.assertEqual(reply.status, 200)
            self.assertNotEqual(reply.headers["x-request-id"], odd)
            self.assertEqual(reply.headers["x-request-id"], reply["request_id"])

    def test_since_on_the_put(self):
        room = self.room()
        answer = self.ok(self.client.hb(self.base, room, "u", "a", 1, query="?since=0"))
        presence = answer["presence"]
        self.assertEqual([presence["mode"], presence["from"], presence["revision"]], ["events", 0, 2])
        self.assertEqual([e["kind"] for e in presence["events"]], BEGUN)
        self.assertEqual(answer["room_revision"], 2)
        answer = self.ok(self.client.hb(self.base, room, "u", "a", 2, query="?since=2"))
        self.assertEqual([answer["presence"]["mode"], answer["presence"]["events"], answer["presence"]["revision"]],
                         ["unchanged", [], 2])
        self.grant(room, "b", 1)
        answer = self.ok(self.client.hb(self.base, room, "u", "a", 3, query="?since=2&epoch=" + answer["epoch"]))
        self.assertEqual(steps(answer["presence"]["events"]), [(3, "lease.granted", "b")])
        answer = self.ok(self.client.hb(self.base, room, "u", "a", 4, query="?since=2&epoch=another"))
        self.assertEqual([answer["presence"]["mode"], answer["presence"]["reason"]], ["snapshot", "epoch"])
        answer = self.ok(self.client.hb(self.base, room, "u", "a", 5, query="?since=99"))
        self.assertEqual([answer["presence"]["mode"], answer["presence"]["reason"]], ["snapshot", "ahead"])
        self.assertNotIn("presence", self.grant(room, "a", 6))
        self.problem(self.client.hb(self.base, room, "u", "a", 7, query="?since=x"), 400, field="since")
        self.assertEqual(self.stored(room, "a")["revision"], 6, "a bad query changes nothing")

    def test_content_type_does_not_matter(self):
        room = self.room()
        for i, kind in enumerate(("application/x-www-form-urlencoded", "text/plain", "application/json; charset=x", "")):
            reply = self.client.hb(self.base, room, "u", "s", i + 1, headers={"Content-Type": kind})
            self.assertEqual(reply.status, 200, reply)

    # -- batches -------------------------------------------------------------------------------------------------------

    def test_the_same_lease_twice_is_decided_in_order(self):
        room = self.room()
        items = [lease(room, "u", "s", r, meta={"n": i}) for i, r in enumerate((3, 5, 4, 5, None, 7))]
        results = self.ok(self.client.batch(self.base, items))["results"]
        self.assertEqual([r["decision"] for r in results],
                         ["accepted", "accepted", OLD, "already_applied", "accepted", "accepted"])
        self.assertEqual([r["granted"] for r in results if "lease" in r], [True, False, False, False, False])
        self.assertEqual([r["lease"]["revision"] for r in results if "lease" in r], [3, 5, 5, 6, 7])
        self.assertEqual(results[2]["stored_revision"], 5)
        self.assertEqual(self.stored(room, "s")["revision"], 7)
        self.assertEqual([(e["kind"], e["lease_revision"], e["meta"]) for e in self.events(room)],
                         [("lease.granted", 3, {"n": 0}), ("user.online", None, None), ("lease.renewed", 5, {"n": 1}),
                          ("lease.renewed", 6, {"n": 4}), ("lease.renewed", 7, {"n": 5})])

    def test_one_bad_item_never_fails_the_others(self):
        room = self.room()
        items = [lease(room, "u", "a", 1), {"room_id": room}, lease(room, "u", "b", 0), lease(room, "u", "c", 1, 1),
                 5, None, [], lease(room, ".", "d", 1), lease(room, "u", "e", 1, revison=3),
                 lease(room, "u", "f", 1, meta="x"), lease(room, "u\u0001", "g", 1), lease(room, "u", "z", 1)]
        results = self.ok(self.client.batch(self.base, items))["results"]
        self.assertEqual(len(results), len(items))
        self.assertEqual([r.get("decision") == "accepted" for r in results],
                         [True] + [False] * 10 + [True], results)
        for result in results[1:-1]:
            self.problem_object(result, 400)
        for i, field in ((1, "user_id"), (2, "revision"), (3, "ttl_ms"), (7, "user_id"), (8, "revison"), (9, "meta")):
            self.problem_object(results[i], 400, field=field)
        self.assertEqual(self.count("lease", room_id=room), 2)

    def test_a_thousand_items_but_not_more(self):
        rooms = [self.room() for _ in range(10)]
        items = [lease(rooms[i % 10], "user%d" % (i % 7), "s%d" % i, i + 1) for i in range(1000)]
        results = self.ok(self.client.batch(self.base, items))["results"]
        self.assertEqual([(r["decision"], r["lease"]["session_id"], r["lease"]["revision"]) for r in results],
                         [("accepted", "s%d" % i, i + 1) for i in range(1000)])
        for room in rooms:
            events = self.events(room)
            self.assertEqual([e["revision"] for e in events], list(range(1, 108)), "100 sessions of 7 people")
            self.assertEqual([e["user_id"] for e in events if e["kind"] == "user.online"],
                             list(dict.fromkeys(e["user_id"] for e in events)), "each with the first session")
            self.assertEqual(len([e for e in events if e["kind"] == "user.online"]), 7)
            self.assertEqual(len([e for e in events if e["kind"] == "lease.granted"]), 100)
        items = [lease(rooms[0], "u", "more%d" % i, 1) for i in range(1001)]
        self.problem(self.client.batch(self.base, items), 400, field="leases")
        self.assertEqual(int(self.q("SELECT count(*) FROM stillhere.lease WHERE session_id LIKE 'more%'")), 0)

    def test_a_batch_that_is_none(self):
        for body in ('{"leases":{}}', '{"leases":null}', '{"leases":"x"}', '{"leases":[],"other":1}',
                     '{"leases":[],"room_id":"r"}'):
            self.problem(self.client.request(self.base, "PUT", "/leases", body=body), 400)

    def test_many_rooms_and_sessions_in_one_batch_count_users_right(self):
        room = self.room()
        self.ok(self.client.batch(self.base, [lease(room, "u", str(i), 1) for i in range(5)] +
                                  [lease(room, "v", "x", 1)]))
        self.assertEqual([(e["user_id"], e["user_sessions"], e["kind"]) for e in self.events(room)],
                         [("u", 1, "lease.granted"), ("u", 1, "user.online"), ("u", 2, "lease.granted"),
                          ("u", 3, "lease.granted"), ("u", 4, "lease.granted"), ("u", 5, "lease.granted"),
                          ("v", 1, "lease.granted"), ("v", 1, "user.online")])

    def test_parallel_heartbeats_each_get_their_own_answer(self):
        room = self.room()

        def client(i):
            for revision in range(1, 26):
                answer = self.grant(room, "s%d" % i, revision)
                if (answer["lease"]["session_id"], answer["lease"]["revision"]) != ("s%d" % i, revision):
                    return answer
            return None

        futures = [self.background(client, i) for i in range(24)]
        self.assertEqual([f.result(60 * 4) for f in futures], [None] * 24)
        self.assertEqual(self.head(room), 25, "24 sessions of one person")
        self.assertEqual([e["kind"] for e in self.events(room)], BEGUN + ["lease.granted"] * 23)

    def test_one_session_hammered_in_parallel_never_goes_back(self):
        room = self.room()

        def client(i):
            return [self.hb(self.base, room, "u", "s", r) for r in range(1 + i, 200, 8)]

        replies = [r for f in [self.background(client, i) for i in range(8)] for r in f.result(120)]
        accepted = [r["lease"]["revision"] for r in replies if r.status == 200 and r["decision"] == "accepted"]
        self.assertEqual(len(accepted), len(set(accepted)), "a revision is accepted once")
        self.assertEqual(self.stored(room, "s")["revision"], max(accepted))
        self.assertEqual({r.status for r in replies} - {200, 409}, set())
        self.assertEqual([e["kind"] for e in self.events(room)], BEGUN)


class TimeZones(Case):
    """The session's time zone changes nothing."""

    autostart = False

    def test_time_zone_of_the_database(self):
        self.q("ALTER DATABASE \"%s\" SET timezone = 'Asia/Kolkata'" % self.database)
        d = self.start_daemon()
        answer = self.ok(self.hb(d.base, "r", "u", "s", 1, 90000))
        self.near(instant(answer["lease"]["expires_at"]) - float(self.q("SELECT extract(epoch FROM clock_timestamp())")),
                  80, 90.01)
        self.assertEqual(self.q("SELECT count(*) FROM information_schema.columns WHERE table_schema = 'stillhere' AND "
                                "data_type = 'timestamp without time zone'"), "0")
