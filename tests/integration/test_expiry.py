# SPDX-License-Identifier: Apache-2.0
"""Leases that run out: when, how often, and who wins against a renewal (CONTRACT §3)."""

from harness import LONG
from harness.case import RFC3339, SLOW, Case, instant, json, lease, sql, steps, time

OLD = "ignored_old_revision"
#: What a user's first session in a room writes.
BEGUN = ["lease.granted", "user.online"]
#: A lease ends by two seconds after its expiry at the latest.
LATEST = 2.0


class Expiry(Case):
    """Three instances that sweep at their default pace."""

    weight = 9
    instances = 3
    # The grace outlasts each test: its end is the matter of test_users.
    config = {"ttl_min_ms": 100, "offline_grace_ms": 600000}

    def expired(self, room, **where):
        return self.events(room, kind="lease.expired", **where)

    def timing(self, event, expires_at):
        """An expiry is written after the lease's end and at most two seconds later."""
        late = instant(event["at"]) - instant(expires_at)
        self.near(late, -0.001, LATEST * SLOW, "lateness")
        self.near(event["overdue_ms"], 0, LATEST * 1000 * SLOW, "overdue_ms")
        self.near(event["overdue_ms"] / 1000, late - 0.1, late + 0.1, "overdue_ms tells how late")

    def test_a_silent_lease_gives_exactly_one_expired_event_in_a_waiting_poll(self):
        room = self.room()
        answer = self.ok(self.client.hb(self.base, room, "u", "s", 41, 1000, headers={"X-Request-Id": "last-one"}))
        polls = [self.parked(base, room, 2) for base in self.bases]
        for poll in polls:
            reply = self.ok(self.answer(poll, 8))
            self.assertEqual([reply["mode"], reply["from"], reply["revision"]], ["events", 2, 3])
            (event,) = reply["events"]
            self.assertEqual([event[k] for k in ("kind", "user_id", "session_id", "lease_revision", "user_sessions",
                                                 "revision", "request_id", "event_id")],
                             ["lease.expired", "u", "s", 41, 0, 3, "last-one", "%s:%s:3" % (answer["epoch"], room)])
            self.assertRegex(event["at"], RFC3339)
            self.timing(event, answer["lease"]["expires_at"])
        self.pause(2.5)
        self.assertEqual([e["kind"] for e in self.events(room)], BEGUN + ["lease.expired"])
        self.assertIsNone(self.stored(room, "s"))
        tombstone = self.tombstone(room, "s")
        self.assertEqual([tombstone["revision"], tombstone["reason"]], [41, "expired"])

    def test_without_any_traffic(self):
        room = self.room()
        answer = self.grant(room, "s", 1, 1000)
        events = self.wait_until(lambda: self.expired(room), 1 + LATEST + 1, "the expiry")
        self.timing(events[0], answer["lease"]["expires_at"])

    def test_last_seen_is_the_last_renewal_not_the_end(self):
        room, user = self.room(), "seen-by-expiry"
        answer = self.ok(self.hb(self.base, room, user, "s", 1, 1500))
        self.wait_until(lambda: self.expired(room), 6, "the expiry")
        text = self.q("SELECT to_json(last_seen_at) FROM stillhere.user_last_seen WHERE user_id = '%s'" % user)
        self.near(instant(json.loads(text)) - instant(answer["lease"]["renewed_at"]), -0.002, 0.002)

    def test_bounds_of_many(self):
        """Each ends between its expiry and two seconds later, and is told once."""
        room = self.room()
        ends = {}
        for i in range(50):
            ends["s%d" % i] = self.grant(room, "s%d" % i, i + 1, 1000 + 37 * i, base=self.bases[i % 3])["lease"]
        self.wait_until(lambda: len(self.expired(room)) >= 50, 3 + LATEST + 2, "50 expiries")
        self.pause(0.5)
        events = self.expired(room)
        self.assertEqual(sorted(e["session_id"] for e in events), sorted(ends))
        for event in events:
            self.timing(event, ends[event["session_id"]]["expires_at"])
            self.assertEqual(event["lease_revision"], ends[event["session_id"]]["revision"])
        live, left = 0, []  # the first may end before the last has come
        for event in self.events(room):
            live += {"lease.granted": 1, "lease.expired": -1}.get(event["kind"], 0)
            left += [live] if event["kind"] == "lease.expired" else []
        self.assertEqual([e["user_sessions"] for e in events], left)

    def test_never_early_while_it_is_renewed(self):
        """Clients that renew shortly before the end, spread over the instances, are never expired."""
        room, margin = self.room(), 0.7 * SLOW
        ttl = int((1.0 + margin) * 1000)

        def client(i):
            for revision in range(1, 7):
                answer = self.grant(room, "s%d" % i, revision, ttl, base=self.bases[(i + revision) % 3])
                if answer["granted"] != (revision == 1):
                    return "s%d was granted again" % i
                self.pause(1.0)
            return None

        futures = [self.background(client, i) for i in range(30)]
        self.assertEqual({f.result(60 * SLOW) for f in futures}, {None})
        self.assertEqual([e for e in self.expired(room) if e["lease_revision"] < 6], [])

    def test_forty_nine_of_fifty(self):
        """Fast reconnects leave their sessions behind: each ends by itself, the user stays."""
        room = self.room()
        for i in range(49):
            self.grant(room, "s%d" % i, 1, 1500)
        self.grant(room, "last", 1, 60000)
        self.wait_until(lambda: len(self.expired(room)) == 49, 8, "49 expiries")
        snapshot = self.ok(self.poll(self.base, room))
        self.assertEqual([[s["session_id"] for s in u["sessions"]] for u in snapshot["users"]], [["last"]])
        self.assertEqual(snapshot["counts"], {"users": 1, "sessions": 1})
        self.assertEqual(self.count("lease", room_id=room), 1)

    # -- the late heartbeat --------------------------------------------------------------------------------------------

    def test_late_heartbeat_after_the_sweep(self):
        room = self.room()
        for name in ("equal", "older", "newer", "none"):
            self.grant(room, name, 41, 300)
        self.wait_until(lambda: len(self.expired(room)) == 4, 5, "4 expiries")
        for name, revision in (("equal", 41), ("older", 40)):
            document = self.problem(self.hb(self.base, room, "u", name, revision, 60000), 409, OLD)
            self.assertEqual(document["stored_revision"], 41)
            self.assertIsNone(self.stored(room, name))
        poll = self.parked(self.bases[1], room, self.head(room))
        self.assertEqual(self.grant(room, "newer", 42)["granted"], True)
        self.assertEqual([e["kind"] for e in self.ok(self.answer(poll, 1))["events"]], ["lease.granted"])
        answer = self.grant(room, "none", None)
        self.assertEqual([answer["granted"], answer["lease"]["revision"]], [True, 42])
        events = self.events(room)
        self.assertEqual([e["kind"] for e in events[:9]], BEGUN + ["lease.granted"] * 3 + ["lease.expired"] * 4)
        self.assertEqual(steps(events[9:]), [(10, "lease.granted", "newer"), (11, "lease.granted", "none")])

    # -- renewal against sweep, with real row locks --------------------------------------------------------------------

    def test_a_lease_read_as_expired_at_41_and_renewed_to_42_is_not_ended(self):
        """All sweepers see revision 41 overdue while a transaction that renews it holds the row."""
        room = self.room()
        answer = self.grant(room, "s", 41, 400)
        psql = self.psql()
        psql.run("BEGIN")
        psql.run("SELECT revision FROM stillhere.lease WHERE room_id = %s FOR UPDATE" % sql(room))
        end = instant(answer["lease"]["expires_at"])
        self.wait_until(lambda: float(self.q("SELECT extract(epoch FROM clock_timestamp())")) > end + 2.2, 5, "overdue")
        psql.run("UPDATE stillhere.lease SET revision = 42, prior_revision = 41, renewed_at = clock_timestamp(), "
                 "expires_at = clock_timestamp() + interval '60 s' WHERE room_id = %s" % sql(room))
        self.pause(1.2)
        psql.run("COMMIT")
        self.pause(2.5)
        self.assertEqual([e["kind"] for e in self.events(room)], BEGUN, "nothing was published")
        self.assertEqual(self.stored(room, "s")["revision"], 42)
        self.assertIsNone(self.tombstone(room, "s"))
        self.assertEqual(self.grant(room, "s", 43)["granted"], False)

    def test_two_sweepers_on_revision_43_give_one_event(self):
        """Thirty overdue leases are held locked until three sweepers stand before them, then let go at once."""
        room = self.room()
        self.ok(self.client.batch(self.base, [lease(room, "u", "s%d" % i, 43, 400) for i in range(30)]))
        psql = self.psql()
        psql.run("BEGIN")
        psql.run("SELECT revision FROM stillhere.lease WHERE room_id = %s ORDER BY session_id FOR UPDATE" % sql(room))
        self.pause(2.0)
        self.assertEqual(self.expired(room), [])
        psql.run("ROLLBACK")
        self.wait_until(lambda: len(self.expired(room)) >= 30, 4, "30 expiries")
        self.pause(2.2)
        events = self.expired(room)
        self.assertEqual(len(events), 30)
        self.assertEqual(len({e["session_id"] for e in events}), 30)
        self.assertEqual({e["lease_revision"] for e in events}, {43})
        self.assertEqual([e["revision"] for e in events], list(range(32, 62)))

    def test_a_late_heartbeat_races_the_sweepers(self):
        """Renewals that come in the very moment of the expiry: the story of each session stays whole."""
        room, ttl = self.room(), 500

        def client(i):
            end = time.monotonic() + ttl / 1000 - 0.03
            answer = self.grant(room, "s%d" % i, 1, ttl, base=self.bases[i % 3])
            self.pause(max(0, end + 0.003 * (i % 30) - time.monotonic()))
            return self.hb(self.bases[(i + 1) % 3], room, "u", "s%d" % i, 2, 60000), answer

        replies = [f.result(30 * SLOW) for f in [self.background(client, i) for i in range(60)]]
        self.pause(2.2)
        for i, (reply, first) in enumerate(replies):
            story = [(e["kind"], e["lease_revision"]) for e in self.events(room, session_id="s%d" % i)]
            self.assertEqual(reply.status, 200, reply)
            self.assertEqual(self.stored(room, "s%d" % i)["revision"], 2)
            if reply["granted"]:
                self.assertEqual(story, [("lease.granted", 1), ("lease.expired", 1), ("lease.granted", 2)])
            else:
                self.assertEqual(story, [("lease.granted", 1)])

    def test_one_locked_row_does_not_stop_the_sweeper(self):
        room = self.room()
        self.ok(self.client.batch(self.base, [lease(room, "u", "s%d" % i, 1, 1000) for i in range(100)]))
        psql = self.psql()
        psql.run("BEGIN")
        psql.run("SELECT revision FROM stillhere.lease WHERE room_id = %s AND session_id = 's50' FOR UPDATE" % sql(room))
        self.wait_until(lambda: len(self.expired(room)) == 99, 1 + LATEST + 0.5, "99 expiries beside a locked row")
        self.pause(1.5)
        self.assertIsNotNone(self.stored(room, "s50"))
        self.assertEqual(self.expired(room, session_id="s50"), [])
        other = self.room("other")
        self.assertLess(self.hb(self.base, other, "u", "s", 1).seconds, 1 * SLOW)
        psql.run("COMMIT")
        self.wait_until(lambda: self.expired(room, session_id="s50"), 2, "the last expiry")

    def test_a_locked_room_does_not_stop_the_sweeper_elsewhere(self):
        locked, free = self.room("locked"), self.room("free")
        self.grant(locked, "s", 1, 500)
        self.grant(free, "s", 1, 500)
        psql = self.psql()
        psql.run("BEGIN")
        psql.run("SELECT revision FROM stillhere.room WHERE room_id = %s FOR UPDATE" % sql(locked))
        self.wait_until(lambda: self.expired(free), 0.5 + LATEST + 2, "the expiry in the free room")
        self.assertEqual(self.expired(locked), [])
        psql.run("COMMIT")
        self.wait_until(lambda: self.expired(locked), 3, "the expiry in the locked room")

    def test_a_heartbeat_that_waited_for_a_row_lock_gets_its_whole_ttl(self):
        room = self.room()
        self.allow_5xx = True
        self.grant(room, "s", 1, 60000)
        psql = self.psql()
        psql.run("BEGIN")
        psql.run("SELECT revision FROM stillhere.lease WHERE room_id = %s FOR UPDATE" % sql(room))

        def renew():
            while True:
                reply = self.client.hb(self.base, room, "u", "s", 2, 3000, fresh=True)
                if reply.status != 503:
                    return reply
                self.assertIn("retry-after", reply.headers)

        renewal = self.background(renew)
        self.pause(1.0)
        other = self.hb(self.base, self.room("other"), "u", "s", 1)
        self.assertEqual(other.status, 200, "one locked row holds up nobody else for long: %r" % other)
        self.pause(2.0)
        committed = float(psql.value("SELECT extract(epoch FROM clock_timestamp())"))
        psql.run("COMMIT")
        answer = self.ok(renewal.result(20 * SLOW))
        self.assertEqual(answer["decision"], "accepted")
        self.assertGreaterEqual(instant(answer["lease"]["expires_at"]), committed + 2.99)
        self.assertEqual(self.expired(room), [])

    def test_the_time_spent_waiting_for_a_lock_is_not_taken_off_the_ttl(self):
        """Waits that end before any timeout, for a lease that lives and for one that ran out meanwhile."""
        for held, first_ttl in ((0.3, 60000), (0.7, 60000), (0.7, 400)):
            with self.subTest(held=held, first_ttl=first_ttl):
                room = self.room()
                psql = self.psql()
                self.grant(room, "s", 1, first_ttl)
                psql.run("BEGIN")
                psql.run("SELECT revision FROM stillhere.lease WHERE room_id = %s FOR UPDATE" % sql(room))
                renewal = self.background(self.client.hb, self.base, room, "u", "s", 2, 3000, fresh=True)
                self.pause(held)
                committed = float(psql.value("SELECT extract(epoch FROM clock_timestamp())"))
                psql.run("COMMIT")
                answer = self.ok(renewal.result(20 * SLOW))
                # Within the 250 ms that the writer waits for a lock, the time is that of its beginning.
                self.assertGreaterEqual(instant(answer["lease"]["expires_at"]), committed + 3 - 0.26)
                self.assertIs(answer["granted"], first_ttl < 1000)

    # -- odd rows and many rows ----------------------------------------------------------------------------------------

    def test_infinity_and_far_times_give_valid_json(self):
        room = self.room()
        for name in ("infinite", "far", "normal", "ending"):
            self.grant(room, name, 1, 800 if name == "ending" else 60000)
        self.q("UPDATE stillhere.lease SET expires_at = 'infinity' WHERE room_id = %s AND session_id = 'infinite'" %
               sql(room))
        self.q("UPDATE stillhere.lease SET expires_at = '294276-12-31', granted_at = '4712-01-01 BC' WHERE room_id = %s "
               "AND session_id = 'far'" % sql(room))
        rows = self.ok(self.client.get(self.base, "/rooms/%s/leases" % room))["leases"]
        for row in rows:
            for name in ("granted_at", "renewed_at", "expires_at"):
                self.assertRegex(row[name], RFC3339)
        self.assertTrue({"infinite", "far", "normal"} <= {r["session_id"] for r in rows})
        self.assertEqual(len(self.ok(self.poll(self.base, room))["users"]), 1)
        self.wait_until(lambda: self.expired(room, session_id="ending"), 0.8 + LATEST + 1, "the expiry of the normal one")
        self.assertEqual(self.grant(room, "infinite", 2)["granted"], False)
        self.assertEqual(self.grant(room, "far", 2)["granted"], False)

    def test_two_thousand_leases_at_once(self):
        rooms = [self.room() for _ in range(20)]
        items = [lease(rooms[i % 20], "user%d" % (i // 200), "s%d" % i, 1, 60000) for i in range(2000)]
        for part in (items[:1000], items[1000:]):
            self.ok(self.client.batch(self.base, part))
        names = ", ".join(sql(r) for r in rooms)
        latencies = []
        self.q("UPDATE stillhere.lease SET expires_at = clock_timestamp() WHERE room_id IN (%s)" % names)
        began = time.monotonic()
        query = ("SELECT count(*) FROM stillhere.event WHERE kind = 'lease.expired' AND room_id IN (%s)" % names)
        revision = 0
        while int(self.q(query)) < 2000:
            revision += 1
            latencies.append(self.hb(self.base, self.room("busy"), "u", "s", 1).seconds)
            self.assertLess(time.monotonic() - began, (LATEST + 1) * SLOW, "2000 expiries")
            self.pause(0.02)
        self.assertEqual(self.q("SELECT count(DISTINCT (room_id, session_id)) || ' ' || (max(overdue_ms) < %d) FROM "
                                "stillhere.event WHERE kind = 'lease.expired' AND room_id IN (%s)" %
                                (LATEST * 1000 * SLOW, names)), "2000 true")
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.lease WHERE room_id IN (%s)" % names), "0")
        self.assertLess(sorted(latencies)[-1], 1.0 * SLOW, "heartbeats pass meanwhile")
        for room in rooms:
            events = self.events(room)
            self.assertEqual([e["revision"] for e in events], list(range(1, 211)), "100 sessions of 10 people")
            self.assertEqual([len([e for e in events if e["kind"] == kind]) for kind in
                              ("lease.granted", "user.online", "lease.expired")], [100, 10, 100])


class Many(Case):
    """As many as a whole school at once: batches, so that nobody waits behind them."""

    weight = 9
    config = {"ttl_min_ms": 100, "offline_grace_ms": 600000, "decision_log": "off"}
    people, rooms = (100000, 200) if LONG else (10000, 20)

    def test_all_of_them_at_once(self):
        rooms = [self.room() for _ in range(self.rooms)]
        items = [lease(rooms[i % self.rooms], "u%d" % i, "s", 1, 3600000) for i in range(self.people)]
        for at in range(0, self.people, 1000):
            self.ok(self.client.batch(self.base, items[at:at + 1000]))
        slow, longest = [], 0.0
        left = ("SELECT count(*) FROM stillhere.lease WHERE expires_at < clock_timestamp()")
        watching = self.psql()
        self.q("UPDATE stillhere.lease SET expires_at = clock_timestamp()")
        began = time.monotonic()
        while int(self.q(left)) > 0:
            slow.append(self.hb(self.base, self.room("busy"), "u", "s", 1).seconds)
            longest = max(longest, float(watching.value(
                "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0) FROM pg_stat_activity WHERE "
                "datname = current_database() AND application_name LIKE 'stillhered%' AND state <> 'idle'")))
            self.assertLess(time.monotonic() - began, 60 * SLOW, "the expiries")
            self.pause(0.01)
        slow.sort()
        self.assertLess(slow[len(slow) * 99 // 100], 0.5 * SLOW, "heartbeats pass meanwhile")
        self.assertLess(longest, 2 * SLOW, "a transaction is a batch of them, not all")
        self.assertEqual(self.q("SELECT count(*) || ' ' || count(DISTINCT (room_id, user_id)) FROM stillhere.event WHERE "
                                "kind = 'lease.expired'"), "%d %d" % (self.people, self.people))


class Silence(Case):
    """One instance, default bounds of the ttl."""

    def test_a_lapsed_lease_is_not_listed_though_not_swept(self):
        room = self.room()
        self.grant(room, "gone", 1)
        self.grant(room, "here", 1)
        psql = self.psql()
        psql.run("BEGIN")  # the room stays locked, so that nobody can sweep in it
        psql.run("SELECT 1 FROM stillhere.room WHERE room_id = %s FOR UPDATE" % sql(room))
        self.age(room, "gone")
        rows = self.ok(self.client.get(self.base, "/rooms/%s/leases" % room))["leases"]
        self.assertEqual([r["session_id"] for r in rows], ["here"])
        self.assertEqual(self.ok(self.client.get(self.base, "/rooms?prefix=" + room))["rooms"][0]["sessions"], 1)
        for session, state in (("gone", "expired"), ("here", "live")):
            answer = self.ok(self.poll(self.base, room, session_id=session, user_id="u"))
            self.assertEqual(answer["session"], {"state": state, "revision": 1})
        self.assertIsNotNone(self.stored(room, "gone"), "it was swept: the test shows nothing")
        psql.run("ROLLBACK")

    def test_the_room_lists_agree(self):
        room = self.room()
        self.grant(room, "a", 1)
        self.grant(room, "b", 1)
        self.grant(room, "c", 1, user="v")
        rooms = self.ok(self.client.get(self.base, "/rooms?prefix=" + room))["rooms"]
        self.assertEqual([(r["room_id"], r["revision"], r["users"], r["sessions"]) for r in rooms], [(room, 5, 2, 3)])
        self.assertRegex(rooms[0]["changed_at"], RFC3339)
        rows = self.ok(self.client.get(self.base, "/rooms/%s/leases" % room))["leases"]
        self.assertEqual([(r["user_id"], r["session_id"]) for r in rows], [("u", "a"), ("u", "b"), ("v", "c")])
        for row in rows:
            self.near(row["remaining_ms"], 60000 - 10000 * SLOW, 60000, "remaining_ms")

    def test_list_of_rooms_continues(self):
        prefix = self.room("list")
        names = sorted("%s/%d" % (prefix, i) for i in range(7))
        for name in names:
            self.grant(name)
        got, after = [], None
        while True:
            path = "/rooms?limit=3&prefix=%s" % prefix + ("&after=" + after if after else "")
            page = self.ok(self.client.get(self.base, path))
            self.assertLessEqual(len(page["rooms"]), 3)
            got += [r["room_id"] for r in page["rooms"]]
            after = page.get("next")
            if not after:
                break
            self.assertLess(len(got), 20)
        self.assertEqual(got, names)
        self.assertEqual(self.ok(self.client.get(self.base, "/rooms?prefix=%25"))["rooms"], [], "a prefix is no pattern")

    def test_metrics_tell_of_the_expiry(self):
        room = self.room()
        kind = 'stillhere_events_total{kind="lease.expired"}'
        accepted = 'stillhere_heartbeats_total{decision="accepted"}'
        self.wait_until(lambda: self.q("SELECT count(*) FROM stillhere.lease WHERE expires_at < now()") == "0", 5,
                        "the end of what other tests left")
        self.pause(0.1)
        before = self.metrics(self.base)
        self.grant(room, "s", 1)
        self.age(room)
        self.wait_until(lambda: self.events(room, kind="lease.expired"), 3, "the expiry")
        self.wait_until(lambda: self.metrics(self.base)[kind] == before[kind] + 1, 3, "the metric")
        after = self.metrics(self.base)
        lateness = "stillhere_expiry_lateness_seconds_count"
        self.assertEqual(after[lateness], before[lateness] + 1)
        self.assertEqual(after[accepted], before[accepted] + 1)


class Retention(Case):
    """What is kept, and for how long."""

    config = {"ttl_min_ms": 100, "sweep_interval_ms": 200, "event_retention_count": 10,
              "tombstone_retention_ms": 1500}
    weight = 3

    def test_events_beyond_the_count_are_pruned_and_old_cursors_get_a_snapshot(self):
        room = self.room()
        for i in range(30):
            self.grant(room, "s%d" % i, 1)
        self.wait_until(lambda: self.count("event", room_id=room) == 10, 90, "pruning")
        floor = int(self.q("SELECT pruned_revision FROM stillhere.room WHERE room_id = %s" % sql(room)))
        self.assertEqual(floor, 21)
        self.assertEqual([e["revision"] for e in self.events(room)], list(range(22, 32)))
        for since in (0, 5, 20):
            reply = self.poll(self.base, room, since)
            self.assertLess(reply.seconds, 2 * SLOW)
            answer = self.ok(reply)
            self.assertEqual([answer["mode"], answer["reason"], answer["revision"]], ["snapshot", "pruned", 31])
            self.assertEqual(answer["counts"], {"users": 1, "sessions": 30})
        answer = self.ok(self.poll(self.base, room, 21))
        self.assertEqual([answer["mode"], [e["revision"] for e in answer["events"]]], ["events", list(range(22, 32))])

    def test_a_fresh_instance_judges_the_floor_alike(self):
        room = self.room()
        for i in range(30):
            self.grant(room, "s%d" % i, 1)
        self.wait_until(lambda: self.count("event", room_id=room) == 10, 90, "pruning")
        other = self.start_daemon()
        answer = self.ok(self.poll(other.base, room, 20))
        self.assertEqual([answer["mode"], answer.get("reason")], ["snapshot", "pruned"])
        answer = self.ok(self.poll(other.base, room, 21))
        self.assertEqual([answer["mode"], [e["revision"] for e in answer["events"]]], ["events", list(range(22, 32))])
        self.stop_now(other)

    def test_tombstones_go_after_their_time(self):
        room = self.room()
        self.grant(room, "s", 5)
        self.ok(self.client.close(self.base, room, "u", "s"))
        self.problem(self.hb(self.base, room, "u", "s", 5), 409, OLD)
        self.q("INSERT INTO stillhere.tombstone (room_id, user_id, session_id, revision, reason, ended_at, event_id) "
               "VALUES (%s, 'u', 'later', 5, 'closed', now() + interval '1 hour', 'x')" % sql(room))
        self.wait_until(lambda: self.tombstone(room, "s") is None, 90, "the end of the tombstone")
        self.assertIsNotNone(self.tombstone(room, "later"), "only what is old goes")
        self.problem(self.client.close(self.base, room, "u", "s"), 404)
        self.assertTrue(self.grant(room, "s", 1)["granted"])


class AgeRetention(Case):
    config = {"sweep_interval_ms": 200, "event_retention_ms": 1500}

    def test_events_beyond_the_age_are_pruned(self):
        room = self.room()
        self.grant(room, "a", 1)
        self.grant(room, "b", 1)
        self.wait_until(lambda: self.count("event", room_id=room) == 0, 90, "pruning")
        answer = self.ok(self.poll(self.base, room, 0))
        self.assertEqual([answer["mode"], answer["reason"], answer["revision"]], ["snapshot", "pruned", 3])
        self.assertEqual(self.ok(self.poll(self.base, room, 3, wait_ms=0))["mode"], "unchanged")
        poll = self.parked(self.base, room, 3)
        self.grant(room, "c", 1)
        self.assertEqual([e["revision"] for e in self.ok(self.answer(poll, 3))["events"]], [4])
