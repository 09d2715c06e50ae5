# SPDX-License-Identifier: Apache-2.0
"""Watching a room: snapshots, events, waiting, wakes (CONTRACT §4)."""

import subprocess

from harness import LONG
from harness.case import RFC3339, SLOW, Case, Flock, instant, lease, presence_path, sql, steps, time
from harness.pg import clean_environment


class Presence(Case):
    """One instance."""

    weight = 8
    config = {"replay_limit": 20, "longpoll_default_wait_ms": 1500, "longpoll_max_wait_ms": 4000, "ttl_min_ms": 100}

    def fill(self, room, n):
        """n sessions of one user in a room that was empty: its revision is n + 1 then, user.online being the second."""
        for i in range(n):
            self.assertEqual(self.grant(room, "s%d" % i, 1)["room_revision"], i + 2)

    def snapshot(self, room, reason, revision, since=None, **query):
        """Demands a snapshot at once."""
        reply = self.poll(self.base, room, since, **query)
        self.assertLess(reply.seconds, 1 * SLOW, "a snapshot comes at once")
        answer = self.ok(reply)
        self.assertEqual([answer["mode"], answer["reason"], answer["revision"]], ["snapshot", reason, revision])
        self.assertRegex(answer["server_time"], RFC3339)
        self.assertIsInstance(answer["next_poll_ms"], int)
        self.assertNotIn("events", answer)
        return answer

    # -- replies -------------------------------------------------------------------------------------------------------

    def test_snapshot(self):
        room = self.room()
        granted = self.grant(room, "tab-1", 41, meta={"color": "#c33"}, user="an")
        self.grant(room, "tab-2", 7, user="an")
        self.grant(room, "x", 1, user="bo")
        answer = self.snapshot(room, "requested", 5)
        self.assertEqual([answer["room_id"], answer["epoch"], answer["counts"]],
                         [room, granted["epoch"], {"users": 2, "sessions": 3}])
        self.assertEqual([sorted(u) for u in answer["users"]], [["online_since", "sessions", "user_id"]] * 2)
        an, bo = sorted(answer["users"], key=lambda u: u["user_id"])
        self.assertEqual([an["user_id"], bo["user_id"]], ["an", "bo"])
        online = [e for e in self.ok(self.poll(self.base, room, 0))["events"] if e["kind"] == "user.online"]
        self.assertEqual([(e["revision"], e["user_id"]) for e in online], [(2, "an"), (5, "bo")])
        self.assertRegex(an["online_since"], RFC3339)
        self.assertEqual([an["online_since"], bo["online_since"]], [e["at"] for e in online])
        # The event is written a moment after the lease, in the same transaction.
        self.near(instant(an["online_since"]) - instant(granted["lease"]["granted_at"]), 0, 0.5 * SLOW, "the moment")
        self.assertEqual(sorted((s["session_id"], s["revision"], str(s["meta"])) for s in an["sessions"]),
                         [("tab-1", 41, "{'color': '#c33'}"), ("tab-2", 7, "{}")])
        self.assertEqual(an["sessions"][0]["granted_at"], granted["lease"]["granted_at"])

    def test_events(self):
        room = self.room()
        self.fill(room, 3)
        answer = self.ok(self.poll(self.base, room, 1))
        self.assertEqual([answer["mode"], answer["from"], answer["revision"], answer["room_id"]], ["events", 1, 4, room])
        self.assertEqual([(e["revision"], e["kind"], e.get("session_id"), e["user_id"], e["user_sessions"], e.get("meta"))
                          for e in answer["events"]],
                         [(2, "user.online", None, "u", 1, None), (3, "lease.granted", "s1", "u", 2, {}),
                          (4, "lease.granted", "s2", "u", 3, {})])
        self.assertEqual([e["event_id"] for e in answer["events"]],
                         ["%s:%s:%d" % (answer["epoch"], room, r) for r in (2, 3, 4)])
        self.assertEqual(sorted(answer["events"][0]),
                         ["at", "event_id", "kind", "request_id", "revision", "user_id", "user_sessions"])
        self.assertFalse(answer.get("more", False))

    def test_unchanged_after_the_wait(self):
        room = self.room()
        self.fill(room, 2)
        reply = self.poll(self.base, room, 3, wait_ms=500)
        answer = self.ok(reply)
        self.assertEqual([answer["mode"], answer["events"], answer["from"], answer["revision"]], ["unchanged", [], 3, 3])
        self.near(reply.seconds, 0.5, 0.5 * 17 / 16 + 0.4 * SLOW, "the wait")

    def test_the_same_event_reads_the_same_everywhere(self):
        room = self.room()
        self.grant(room, "s", 1, meta={"n": 1.1, "z": [1, None, "é"]})
        self.grant(room, "s", 2, meta={"n": 2})
        by_poll = self.ok(self.poll(self.base, room, 0))["events"]
        fresh = self.start_daemon()
        by_database = self.ok(self.poll(fresh.base, room, 0))["events"]
        self.stop_now(fresh)
        by_put = self.ok(self.client.hb(self.base, room, "u", "s", 3, query="?since=0"))["presence"]["events"]
        self.assertEqual(steps(by_poll), [(1, "lease.granted", "s"), (2, "user.online", None), (3, "lease.renewed", "s")])
        self.assertEqual(by_poll, by_database)
        self.assertEqual(by_poll, by_put)

    # -- reasons -------------------------------------------------------------------------------------------------------

    def test_reason_too_many(self):
        room = self.room()
        self.fill(room, 20)
        self.snapshot(room, "too_many", 21, since=0)
        self.assertEqual(len(self.ok(self.poll(self.base, room, 1))["events"]), 20)

    def test_reason_too_many_on_an_instance_that_knew_nothing(self):
        room = self.room()
        self.fill(room, 20)
        fresh = self.start_daemon()
        answer = self.ok(self.poll(fresh.base, room, 0))
        self.assertEqual([answer["mode"], answer.get("reason"), answer["revision"]], ["snapshot", "too_many", 21])
        self.assertEqual(self.ok(self.poll(fresh.base, room, 1))["mode"], "events")
        self.stop_now(fresh)

    def test_reason_ahead(self):
        room = self.room()
        self.fill(room, 2)
        self.snapshot(room, "ahead", 3, since=4)
        self.snapshot(room, "ahead", 3, since=9007199254740991)
        self.snapshot(self.room("never-named"), "ahead", 0, since=1)

    def test_reason_epoch(self):
        room = self.room()
        self.fill(room, 2)
        epoch = self.ok(self.poll(self.base, room))["epoch"]
        for since in (0, 1, 2, 3, 9):
            self.snapshot(room, "epoch", 3, since=since, epoch="feedfacefeedface")
        self.assertEqual(self.ok(self.poll(self.base, room, 1, epoch=epoch))["mode"], "events")

    def test_reason_pruned(self):
        room = self.room()
        self.fill(room, 5)
        self.ok(self.poll(self.base, room, 0))  # now it is in memory
        self.q("BEGIN; DELETE FROM stillhere.event WHERE room_id = {0} AND revision <= 4; UPDATE stillhere.room SET "
               "pruned_revision = 4 WHERE room_id = {0}; COMMIT".format(sql(room)))
        fresh = self.start_daemon()
        answer = self.ok(self.poll(fresh.base, room, 3))
        self.assertEqual([answer["mode"], answer.get("reason"), answer["revision"]], ["snapshot", "pruned", 6])
        self.assertEqual([e["revision"] for e in self.ok(self.poll(fresh.base, room, 4))["events"]], [5, 6])
        self.stop_now(fresh)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def test_wait_ms(self):
        room = self.room()
        self.fill(room, 1)
        cases = (("0", 0, 0), (None, 1.5, 1.5 * 17 / 16), ("99999999", 4.0, 4.0 * 17 / 16), ("300", 0.3, 0.3 * 17 / 16))
        futures = [(self.background(self.client.poll, self.base, room, 2, fresh=True, wait_ms=w), low, high)
                   for w, low, high in cases]
        for future, low, high in futures:
            reply = self.answer(future, 10)
            self.assertEqual(self.ok(reply)["mode"], "unchanged")
            self.near(reply.seconds, low, high + 0.4 * SLOW, "the wait")

    def test_waits_are_jittered(self):
        room = self.room()
        self.fill(room, 1)
        flock = Flock(self.base, [presence_path(room, 2, wait_ms=1600)] * 40)
        began = time.monotonic()
        replies = flock.collect(10 * SLOW)
        flock.close()
        times = [t - began for _, t in replies]
        self.assertGreater(min(times), 1.4)
        self.assertGreater(max(times) - min(times), 0.04, "polls that began together must not end together")

    def test_numbers_that_are_none(self):
        room = self.room()
        self.fill(room, 1)
        bad = ("-1", "abc", "", "1.5", "%2B5", "1e3", "0x1", "%201", "1%20", "5 ", "99999999999999999999999", "1%00")
        for name in ("wait_ms", "since", "limit"):
            for value in bad:
                with self.subTest(name=name, value=value):
                    if name == "wait_ms" and value.isdigit():
                        continue  # a long wait, however long, is cut to the longest
                    query = "%s=%s" % (name, value.replace(" ", "+"))
                    if name != "since":
                        query += "&since=0"
                    self.problem(self.client.get(self.base, "/rooms/%s/presence?%s" % (room, query)), 400)
        self.assertEqual(self.ok(self.poll(self.base, room, "002", wait_ms="000"))["mode"], "unchanged")

    def test_a_bad_cursor_is_corrected_whatever_the_client_has(self):
        room = self.room()
        self.fill(room, 1)
        tag = self.poll(self.base, room).headers["etag"]
        self.assertEqual(self.poll(self.base, room, headers={"If-None-Match": tag}).status, 304)
        reply = self.poll(self.base, room, 99, headers={"If-None-Match": tag}, wait_ms=0)
        self.assertEqual(self.ok(reply)["reason"], "ahead")
        reply = self.poll(self.base, room, 2, headers={"If-None-Match": tag}, wait_ms=0, epoch="other")
        self.assertEqual(self.ok(reply)["reason"], "epoch")

    def test_since_zero_of_an_empty_room_can_be_waited_on(self):
        room = self.room()
        answer = self.snapshot(room, "requested", 0)
        self.assertEqual([answer["users"], answer["counts"]], [[], {"users": 0, "sessions": 0}])
        reply = self.poll(self.base, room, 0, epoch=answer["epoch"], wait_ms=400)
        self.assertEqual(self.ok(reply)["mode"], "unchanged")
        self.assertGreaterEqual(reply.seconds, 0.4)
        poll = self.parked(self.base, room, 0)
        self.fill(room, 1)
        self.assertEqual(steps(self.ok(self.answer(poll, 1))["events"]),
                         [(1, "lease.granted", "s0"), (2, "user.online", None)])

    def test_a_room_wakes_only_its_own_watchers(self):
        quiet, busy = self.room("quiet"), self.room("busy")
        self.fill(quiet, 1)
        d = self.start_daemon(longpoll_max_wait_ms=20000)
        seconds = 10 if LONG else 1.2  # at a thousand events a second
        poll = self.parked(d.base, quiet, 2, wait_ms=int(seconds * 1000) + 800)
        began, n = time.monotonic(), 0
        wakes = self.metrics(d.base)["stillhere_wakes_total"]
        while time.monotonic() - began < seconds:
            n += 1
            due = began + 0.1 * n
            self.ok(self.client.batch(d.base, [lease(busy, "u", "s%d-%d" % (n, i), 1) for i in range(100)]))
            time.sleep(max(0.0, due - time.monotonic()))
        counted = self.metrics(d.base)["stillhere_wakes_total"]
        if not poll.done():  # it is, where all of this took too long
            self.assertEqual(counted, wakes)
        reply = self.answer(poll)
        self.assertEqual(self.ok(reply)["mode"], "unchanged")
        self.assertGreaterEqual(reply.seconds, seconds + 0.8)
        self.assertGreater(self.head(busy), 100 * n)
        self.stop_now(d)

    def test_plain_renewals_wake_nobody_and_notify_nobody(self):
        room = self.room()
        self.fill(room, 1)
        psql = self.psql()
        psql.run("LISTEN stillhere_rooms")
        poll = self.parked(self.base, room, 2, wait_ms=2000)
        psql.notifications()
        wakes = self.metrics(self.base)["stillhere_wakes_total"]
        for revision in range(2, 102):
            self.grant(room, "s0", revision)
        self.assertEqual(self.metrics(self.base)["stillhere_wakes_total"], wakes)
        self.assertEqual(psql.notifications(), [])
        self.assertEqual(steps(self.events(room)), [(1, "lease.granted", "s0"), (2, "user.online", None)])
        reply = self.answer(poll)
        self.assertEqual([self.ok(reply)["mode"], reply["revision"]], ["unchanged", 2])
        self.assertGreaterEqual(reply.seconds, 2.0)
        self.grant(room, "other", 1)
        self.assertEqual(len(psql.notifications()), 1, "a transition does notify")

    def test_a_change_of_meta_is_one_event(self):
        room = self.room()
        self.grant(room, "s", 1, meta={"a": 1})
        poll = self.parked(self.base, room, 2)
        self.grant(room, "s", 2, meta={"a": 2})
        events = self.ok(self.answer(poll, 2))["events"]
        self.assertEqual([(e["kind"], e["lease_revision"], e["meta"], e["user_sessions"]) for e in events],
                         [("lease.renewed", 2, {"a": 2}, 1)])
        self.assertEqual(steps(self.events(room)),
                         [(1, "lease.granted", "s"), (2, "user.online", None), (3, "lease.renewed", "s")])

    def test_two_events_of_one_batch_come_both(self):
        room = self.room()
        poll = self.parked(self.base, room, 0)
        results = self.ok(self.client.batch(self.base, [lease(room, "u", "a", 1), lease(room, "v", "b", 1)]))["results"]
        self.assertEqual([r["room_revision"] for r in results], [4, 4], "the room's revision after all of it")
        events = self.ok(self.answer(poll, 2))["events"]
        self.assertEqual(steps(events), [(1, "lease.granted", "a"), (2, "user.online", None), (3, "lease.granted", "b"),
                                         (4, "user.online", None)])
        self.assertEqual([e["user_id"] for e in events], ["u", "u", "v", "v"])

    # -- kinds, limit, view, session -----------------------------------------------------------------------------------

    def test_kinds(self):
        room = self.room()
        self.grant(room, "a", 1)
        self.grant(room, "a", 2, meta={"x": 1})
        self.ok(self.client.close(self.base, room, "u", "a"))
        answer = self.ok(self.poll(self.base, room, 0, kinds="session.closed,lease.renewed"))
        self.assertEqual([e["kind"] for e in answer["events"]], ["lease.renewed", "session.closed"])
        self.assertEqual(answer["revision"], 4)
        for kind, revision in (("lease.granted", 1), ("user.online", 2), ("lease.renewed", 3), ("session.closed", 4)):
            answer = self.ok(self.poll(self.base, room, 0, kinds=kind, wait_ms=0))
            self.assertEqual([[(e["revision"], e["kind"]) for e in answer["events"]], answer["revision"]],
                             [[(revision, kind)], 4])
        answer = self.ok(self.poll(self.base, room, 1, kinds="lease.expired,user.offline", wait_ms=0))
        self.assertEqual([answer["events"], answer["revision"]], [[], 4], "the revision still advances")
        for bad in ("lease.granted,nonsense", "nonsense", "", "lease.granted,", "LEASE.GRANTED"):
            self.problem(self.poll(self.base, room, 0, kinds=bad), 400, field="kinds")

    def test_other_kinds_do_not_wake(self):
        room = self.room()
        self.grant(room, "a", 1)
        poll = self.parked(self.base, room, 2, kinds="session.closed", wait_ms=1000)
        self.grant(room, "b", 1)
        self.grant(room, "c", 1)
        reply = self.answer(poll)
        answer = self.ok(reply)
        self.assertGreaterEqual(reply.seconds, 1.0, "it was not woken")
        self.assertEqual([answer["events"], answer["revision"]], [[], 4])
        poll = self.parked(self.base, room, answer["revision"], kinds="session.closed", wait_ms=2000)
        self.grant(room, "d", 1)
        self.ok(self.client.close(self.base, room, "u", "a"))
        reply = self.answer(poll)
        self.assertLess(reply.seconds, 1.5 * SLOW)
        self.assertEqual([e["kind"] for e in self.ok(reply)["events"]], ["session.closed"])
        self.assertEqual(reply["revision"], 6)

    def test_limit_and_more(self):
        room = self.room()
        self.fill(room, 4)
        got, since = [], 0
        while True:
            answer = self.ok(self.poll(self.base, room, since, limit=2))
            self.assertLessEqual(len(answer["events"]), 2)
            self.assertEqual(answer["revision"], answer["events"][-1]["revision"])
            got += [e["revision"] for e in answer["events"]]
            since = answer["revision"]
            if not answer.get("more"):
                break
        self.assertEqual(got, [1, 2, 3, 4, 5])
        answer = self.ok(self.poll(self.base, room, 0, limit=5))
        self.assertFalse(answer.get("more", False), "nothing was cut")
        self.assertTrue(self.ok(self.poll(self.base, room, 0, limit=4))["more"])
        for bad in ("0", "1001"):
            self.problem(self.poll(self.base, room, 0, limit=bad), 400, field="limit")
        self.assertEqual(len(self.ok(self.poll(self.base, room, 0, limit=1000))["events"]), 5)

    def test_limit_with_kinds_loses_nothing(self):
        room = self.room()
        for i in range(4):
            self.grant(room, "s%d" % i, 1)
            self.grant(room, "s%d" % i, 2, meta={"i": i})
        got, since, rounds = [], 0, 0
        while since < 9 and rounds < 20:
            answer = self.ok(self.poll(self.base, room, since, limit=1, kinds="lease.renewed", wait_ms=0))
            got += [e["revision"] for e in answer["events"]]
            self.assertGreater(answer["revision"], since)
            since, rounds = answer["revision"], rounds + 1
        self.assertEqual([got, since], [[3, 5, 7, 9], 9])

    def test_view(self):
        room = self.room()
        self.grant(room, "a", 1, user="an")
        self.grant(room, "b", 1, user="an")
        self.grant(room, "c", 1, user="bo")
        full = self.snapshot(room, "requested", 5, view="sessions")
        self.assertEqual(sum(len(u["sessions"]) for u in full["users"]), 3)
        users = self.snapshot(room, "requested", 5, view="users")
        self.assertEqual(sorted(u["user_id"] for u in users["users"]), ["an", "bo"])
        self.assertEqual([u for u in users["users"] if u.get("sessions")], [])
        count = self.snapshot(room, "requested", 5, view="count")
        self.assertFalse(count.get("users"))
        for answer in (full, users, count):
            self.assertEqual(answer["counts"], {"users": 2, "sessions": 3})
        self.assertEqual(self.snapshot(room, "ahead", 5, since=9, view="count")["counts"]["sessions"], 3)
        self.problem(self.poll(self.base, room, view="all"), 400, field="view")

    def test_a_user_in_grace(self):
        room = self.room()
        self.grant(room, "a", 1, user="an")
        self.grant(room, "b", 1, user="bo")
        before = {u["user_id"]: u["online_since"] for u in self.snapshot(room, "requested", 4)["users"]}
        self.assertEqual(self.ok(self.client.close(self.base, room, "an", "a"))["room_revision"], 5)
        closed, = self.ok(self.poll(self.base, room, 4))["events"]
        self.assertEqual([closed["kind"], closed["user_sessions"]], ["session.closed", 0])
        for view in ("sessions", "users"):
            answer = self.snapshot(room, "requested", 5, view=view)
            self.assertEqual(answer["counts"], {"users": 2, "sessions": 1})
            an, bo = answer["users"]
            self.assertEqual([an["user_id"], an.get("sessions", []), bo["user_id"]], ["an", [], "bo"])
            self.assertEqual(round(1000 * (instant(an["offline_at"]) - instant(closed["at"]))), 10000)
            self.assertNotIn("offline_at", bo)
            self.assertEqual({u["user_id"]: u["online_since"] for u in answer["users"]}, before)
        self.assertEqual(self.snapshot(room, "requested", 5, view="count")["counts"], {"users": 2, "sessions": 1})
        self.assertEqual(self.grant(room, "again", 1, user="an")["room_revision"], 6, "no user.online")
        answer = self.snapshot(room, "requested", 6)
        self.assertEqual([u for u in answer["users"] if "offline_at" in u], [])
        self.assertEqual({u["user_id"]: u["online_since"] for u in answer["users"]}, before)

    def test_a_session_after_the_grace_comes_online_anew(self):
        """Also where the offline has not been carried out yet: whoever comes first writes it, as with an expiry."""
        room = self.room()
        self.grant(room, "a", 1)
        self.ok(self.client.close(self.base, room, "u", "a"))
        self.q("UPDATE stillhere.room_user SET offline_at = offline_at - interval '1 hour' WHERE room_id = " + sql(room))
        self.grant(room, "b", 1)
        self.assertEqual(steps(self.events(room)), [
            (1, "lease.granted", "a"), (2, "user.online", None), (3, "session.closed", "a"), (4, "user.offline", None),
            (5, "lease.granted", "b"), (6, "user.online", None)])

    def test_session_state(self):
        room = self.room()
        self.grant(room, "live", 5)
        self.grant(room, "closed", 6)
        self.ok(self.client.close(self.base, room, "u", "closed"))
        self.grant(room, "expired", 7, 200)
        self.wait_until(lambda: self.tombstone(room, "expired"), 5, "the sweep")
        self.q("INSERT INTO stillhere.tombstone (room_id, user_id, session_id, revision, reason, ended_at, event_id) "
               "VALUES (%s, 'u', 'revoked', 8, 'revoked', now(), 'x')" % sql(room))
        for state, revision in (("live", 5), ("closed", 6), ("expired", 7), ("revoked", 8)):
            for since in (None, self.head(room), 0):
                answer = self.ok(self.poll(self.base, room, since, session_id=state, user_id="u", wait_ms=0))
                self.assertEqual(answer["session"], {"state": state, "revision": revision})
        answer = self.ok(self.poll(self.base, room, session_id="never", user_id="u"))
        self.assertEqual(answer["session"]["state"], "unknown")
        self.assertNotIn("session", self.ok(self.poll(self.base, room)))

    # -- ETag ----------------------------------------------------------------------------------------------------------

    def test_etag(self):
        room = self.room()
        self.fill(room, 1)
        first = self.poll(self.base, room)
        tag = first.headers["etag"]
        self.assertRegex(tag, r'^(W/)?"[^"]+"$')
        strong = tag[2:] if tag.startswith("W/") else tag
        for value in (tag, strong, "W/" + strong, '"zzz", W/%s' % strong, '"zzz" ,%s , "y"' % strong, "*"):
            with self.subTest(value=value):
                reply = self.poll(self.base, room, headers={"If-None-Match": value})
                self.assertEqual([reply.status, reply.body], [304, b""], reply)
                self.assertEqual(reply.headers.get("etag"), tag)
        self.assertEqual(self.poll(self.base, room).status, 200, "the connection goes on")
        for value in ('"zzz"', 'W/"zzz"', strong[:-1] + 'x"', strong.strip('"')):
            self.assertEqual(self.poll(self.base, room, headers={"If-None-Match": value}).status, 200, value)
        self.assertEqual(self.poll(self.base, room, 2, wait_ms=0, headers={"If-None-Match": tag}).status, 304)
        self.grant(room, "another", 1)
        reply = self.poll(self.base, room, headers={"If-None-Match": tag})
        self.assertEqual(reply.status, 200, "after a change")
        self.assertNotEqual(reply.headers["etag"], tag)
        self.assertEqual(self.poll(self.base, room, 2, headers={"If-None-Match": tag}).status, 200)

    def test_a_poller_with_nothing_new_costs_no_query(self):
        room = self.room()
        self.fill(room, 1)
        tag = self.poll(self.base, room).headers["etag"]
        self.poll(self.base, room, headers={"If-None-Match": tag})
        before = self.scans()
        for _ in range(200):
            self.assertEqual(self.poll(self.base, room, headers={"If-None-Match": tag}).status, 304)
        for after, earlier in zip(self.scans(), before):
            self.assertLess(after - earlier, 60, "200 conditional polls must not be 200 queries")

    def scans(self):
        """How often events and leases, and the users in rooms, have been searched so far, by anybody: two numbers."""
        self.pause(1.1)  # what backends count reaches the statistics within a second
        return [int(self.q("SELECT sum(coalesce(seq_scan, 0) + coalesce(idx_scan, 0)) FROM pg_stat_user_tables WHERE "
                           "schemaname = 'stillhere' AND relname IN (%s)" % tables))
                for tables in ("'event', 'lease'", "'room_user'")]

    def test_five_hundred_pollers_one_join(self):
        room = self.room()
        self.fill(room, 1)
        before = self.scans()
        flock = Flock(self.base, [presence_path(room, 2, wait_ms=60000)] * 500)
        self.wait_until(lambda: self.waiting(self.base) >= 500, 10, "500 parked polls")
        began = time.monotonic()
        self.grant(room, "joins", 1)
        replies = flock.collect(2 * SLOW)
        took = [r[1] - began for r in replies if r]
        self.assertEqual(len(took), 500, "all are answered")
        self.assertLess(max(took), 1.0 * SLOW)
        for reply, _ in replies:
            self.assertEqual(reply.status, 200)
            self.assertEqual([e["session_id"] for e in reply.json()["events"]], ["joins"])
        self.assertEqual(len({r.body.split(b'"server_time"')[0] for r, _ in replies}), 1)
        flock.close()
        for after, earlier in zip(self.scans(), before):
            self.assertLess(after - earlier, 150, "one event must not be 500 reads")


class Several(Case):
    """Three instances on one database."""

    instances = 3
    weight = 4

    def write_event(self, room, session, revision):
        """An event as another instance would write it, at this revision, but without a word to anybody. Where it is
        the user's first session, user.online comes behind it."""
        first = self.count("room_user", room_id=room, user_id="u") == 0
        rows = [(revision, "'lease.granted'", sql(session), "1")]
        if first:
            rows.append((revision + 1, "'user.online'", "NULL", "NULL"))
            self.q("BEGIN; INSERT INTO stillhere.room_user (room_id, user_id, online_since) VALUES (%s, 'u', now())" %
                   sql(room))
        else:
            self.q("BEGIN")
        self.q("INSERT INTO stillhere.room (room_id, revision) VALUES ({r}, {n}) ON CONFLICT (room_id) DO UPDATE "
               "SET revision = room.revision + {n}, changed_at = clock_timestamp(); "
               "INSERT INTO stillhere.lease (room_id, user_id, session_id, revision, revision_given, ttl_ms, granted_at, "
               "renewed_at, expires_at) VALUES ({r}, 'u', {s}, 1, true, 60000, now(), now(), now() + interval '60 s')"
               .format(r=sql(room), s=sql(session), n=len(rows)))
        self.q("INSERT INTO stillhere.event (room_id, revision, event_id, kind, at, user_id, session_id, lease_revision, "
               "user_sessions) SELECT {r}, v.revision, 'sql:' || {r} || ':' || v.revision, v.kind, now(), 'u', v.session, "
               "v.lease_revision, (SELECT count(*) FROM stillhere.lease WHERE room_id = {r} AND user_id = 'u') "
               "FROM (VALUES {v}) AS v(revision, kind, session, lease_revision); COMMIT".format(
                   r=sql(room), v=", ".join("(%d, %s, %s::text, %s::int8)" % row for row in rows)))
        self.assertEqual(self.head(room), revision + len(rows) - 1)

    def test_a_poll_parked_on_one_instance_is_woken_by_a_change_on_another(self):
        for i in range(3):
            room = self.room()
            self.grant(room, "a", 1, base=self.bases[i])
            poll = self.parked(self.bases[(i + 1) % 3], room, 2)
            began = time.monotonic()
            self.grant(room, "b", 1, base=self.bases[(i + 2) % 3])
            answer = self.ok(self.answer(poll, 3))
            self.assertLess(time.monotonic() - began, 0.8 * SLOW, "by the notification, not by the slow poll")
            self.assertEqual(steps(answer["events"]), [(3, "lease.granted", "b")])

    def test_names_that_need_quoting_pass_through_the_notification(self):
        for name in ('q"uo\\te', "back\\", "[1,2]", "\U0001F600" * 32, "a,b", "é/ü", "'", "{}", "a\u2028b"):
            room = name
            poll = self.parked(self.bases[1], room, 0)
            began = time.monotonic()
            self.grant(room, "s", 1, base=self.bases[0], meta={"x": "\U0001F600" * 400})
            answer = self.ok(self.answer(poll, 3))
            self.assertLess(time.monotonic() - began, 0.9 * SLOW, name)
            self.assertEqual(steps(answer["events"]), [(1, "lease.granted", "s"), (2, "user.online", None)])

    def test_a_batch_over_many_long_rooms_notifies_them_all(self):
        rooms = ["%03d" % i + "\U0001F600" * 31 for i in range(300)]
        watched = rooms[::37] + [rooms[-1]]
        polls = [self.parked(self.bases[1], room, 0) for room in watched]
        began = time.monotonic()
        self.ok(self.client.batch(self.bases[0], [lease(r, "u", "s", 1) for r in rooms]))
        for poll in polls:
            self.assertEqual(steps(self.ok(self.answer(poll, 4))["events"]),
                             [(1, "lease.granted", "s"), (2, "user.online", None)])
        self.assertLess(time.monotonic() - began, 2 * SLOW)

    def test_a_lost_notification_is_made_good_within_two_seconds(self):
        room = self.room()
        self.grant(room, "a", 1)
        polls = [self.parked(base, room, 2) for base in self.bases]
        began = time.monotonic()
        self.write_event(room, "silent", 3)
        for poll in polls:
            answer = self.ok(self.answer(poll, 4))
            self.assertEqual(steps(answer["events"]), [(3, "lease.granted", "silent")])
        self.assertLess(time.monotonic() - began, 2.0 * SLOW)

    def test_a_lost_first_event_of_a_room_is_made_good(self):
        room = self.room()
        poll = self.parked(self.base, room, 0)
        began = time.monotonic()
        self.write_event(room, "silent", 1)
        answer = self.ok(self.answer(poll, 4))
        self.assertEqual(steps(answer["events"]), [(1, "lease.granted", "silent"), (2, "user.online", None)])
        self.assertLess(time.monotonic() - began, 2.0 * SLOW)

    def test_a_cursor_that_the_database_knows_is_never_ahead(self):
        room = self.room()
        self.grant(room, "a", 1)
        for base in self.bases:
            self.ok(self.poll(base, room))
        for i in range(5):
            self.write_event(room, "silent%d" % i, 3 + i)
            for base in self.bases:
                answer = self.ok(self.poll(base, room, 3 + i, wait_ms=0))
                self.assertNotEqual(answer.get("reason"), "ahead")
                self.assertGreaterEqual(answer["revision"], 3 + i)

    def test_a_killed_listener_comes_back_and_misses_nothing(self):
        room = self.room()
        self.grant(room, "a", 1)
        polls = [self.parked(base, room, 2) for base in self.bases]
        killed = int(self.q("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = "
                            "current_database() AND query ILIKE 'LISTEN%'"))
        self.allow_log = [r"."]
        if killed < 3:  # the listener's last statement may be another: then all of the daemons' connections go
            self.allow_5xx = True
            self.q("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
                   "AND application_name ILIKE 'stillhere%'")
        began = time.monotonic()
        self.write_event(room, "meanwhile", 3)
        for poll in polls:
            answer = self.ok(self.answer(poll, 4))
            self.assertEqual(steps(answer["events"]), [(3, "lease.granted", "meanwhile")])
        self.assertLess(time.monotonic() - began, 2.0 * SLOW)
        self.wait_until(lambda: all(d.status("/readyz") == 200 for d in self.daemons), 10, "readiness")
        # And notifications work again.
        def quick():
            head = self.head(room)
            poll = self.parked(self.bases[2], room, head)
            sent = time.monotonic()
            self.grant(room, "again%d" % head, 1, base=self.bases[0])
            self.ok(self.answer(poll, 4))
            return time.monotonic() - sent < 0.5 * SLOW
        self.wait_until(quick, 10, "a poll woken by a notification")

    def test_a_terminated_connection_costs_no_heartbeat_its_truth(self):
        """All connections of the daemons are cut during load: each accepted answer is in the database."""
        self.allow_5xx = True
        self.allow_log = [r"."]
        room = self.room()
        stop = time.monotonic() + 3

        def client(i):
            best, revision = 0, 0
            while time.monotonic() < stop:
                revision += 1
                reply = self.hb(self.bases[i % 3], room, "u", "s%d" % i, revision, 60000)
                if reply.status == 200:
                    best = revision
                else:
                    self.assertEqual(reply.status, 503, reply)
                    self.assertIn("retry-after", reply.headers)
                self.pause(0.01)
            return best

        futures = [self.background(client, i) for i in range(12)]
        for _ in range(4):
            self.pause(0.6)
            self.q("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
                   "AND pid <> pg_backend_pid() AND application_name <> 'psql'")
        for i, future in enumerate(futures):
            best = future.result(30 * SLOW)
            self.assertGreater(best, 0)
            self.assertGreaterEqual(self.stored(room, "s%d" % i)["revision"], best)
        events = self.events(room)
        self.assertEqual([e["revision"] for e in events], list(range(1, 14)))
        self.assertEqual([e["kind"] for e in events], ["lease.granted", "user.online"] + ["lease.granted"] * 11)
        self.wait_until(lambda: all(d.status("/readyz") == 200 for d in self.daemons), 10, "readiness")

    def test_events_of_many_writers_come_in_order_without_gaps(self):
        room = self.room()
        futures = [self.background(self.grant, room, "s%d" % i, 1, base=self.bases[i % 3]) for i in range(60)]
        got, kinds, since = [], [], 0
        while len(got) < 61:
            answer = self.ok(self.poll(self.bases[1], room, since))
            self.assertEqual(answer["mode"], "events")
            self.assertEqual(answer["from"], since)
            got += [e["revision"] for e in answer["events"]]
            kinds += [e["kind"] for e in answer["events"]]
            since = answer["revision"]
        self.assertEqual(got, list(range(1, 62)))
        self.assertEqual(kinds, ["lease.granted", "user.online"] + ["lease.granted"] * 59)
        for f in futures:
            f.result(10)

    def test_own_writes_show_in_the_next_reply(self):
        room = self.room()
        before = 0
        for i in range(30):
            answer = self.grant(room, "s%d" % i, 1)
            self.assertEqual(answer["room_revision"], i + 2, "user.online came with the first")
            reply = self.ok(self.poll(self.base, room, before, wait_ms=0))
            self.assertEqual([reply["mode"], reply["revision"]], ["events", answer["room_revision"]])
            self.assertEqual([e["revision"] for e in reply["events"]], list(range(before + 1, i + 3)))
            snapshot = self.ok(self.poll(self.base, room))
            self.assertEqual([snapshot["revision"], snapshot["counts"]], [i + 2, {"users": 1, "sessions": i + 1}])
            before = i + 2

    def test_another_instance_is_at_most_a_second_behind(self):
        room = self.room()
        self.ok(self.poll(self.bases[1], room))
        for i in range(5):
            self.grant(room, "s%d" % i, 1, base=self.bases[0])
            self.wait_until(lambda: self.ok(self.poll(self.bases[1], room))["revision"] == i + 2, 1, "the other's view")


class Restored(Case):
    """A dump restored into another database is another incarnation."""

    def test_the_epoch_changes_and_old_cursors_get_a_snapshot(self):
        room = self.room()
        self.grant(room, "a", 1, 600000)
        self.grant(room, "b", 1, 600000)
        before = self.ok(self.poll(self.base, room))
        copy = self.database + "_copy"
        self.pg.create_database(copy)
        try:
            dump = subprocess.run([self.pg.program("pg_dump"), "-h", self.pg.socket, "-p", "5432", "-U", "postgres",
                                   self.database], env=clean_environment(), stdout=subprocess.PIPE, check=True)
            subprocess.run(self.pg.psql_args(copy) + ["-v", "ON_ERROR_STOP=1"], env=clean_environment(),
                           input=dump.stdout, stdout=subprocess.DEVNULL, check=True)
            other = self.start_daemon(database=copy)
            answer = self.ok(self.poll(other.base, room, before["revision"], epoch=before["epoch"]))
            self.assertNotEqual(answer["epoch"], before["epoch"])
            self.assertEqual([answer["mode"], answer["reason"], answer["revision"]], ["snapshot", "epoch", 3])
            self.assertEqual([answer["counts"], answer["users"]], [before["counts"], before["users"]])
            self.assertEqual(self.ok(self.poll(other.base, room, 3, wait_ms=0, epoch=answer["epoch"]))["mode"],
                             "unchanged")
            self.assertNotEqual(self.poll(other.base, room).headers["etag"], self.poll(self.base, room).headers["etag"])
            self.assertEqual(self.ok(self.poll(self.base, room))["epoch"], before["epoch"], "the old one keeps its name")
            granted = self.grant(room, "c", 1, base=other.base)
            self.assertEqual(granted["room_revision"], 4, "and the user has been online all the time")
            self.stop_now(other)
        finally:
            self.pg.drop_database(copy)
