# SPDX-License-Identifier: Apache-2.0
"""People, not connections: one user.online however many tabs, a grace, one user.offline (CONTRACT §4)."""

from harness.case import SLOW, Case, Client, instant, lease, random, sql, steps, threading, time

#: user.offline comes by two seconds after the end of the grace at the latest.
LATEST = 2.0
#: What a user's first session in a room writes.
BEGUN = ["lease.granted", "user.online"]
ENDS = ("session.closed", "lease.expired")


class People(Case):
    """Two instances, and what the tests below demand of a room's story."""

    instances = 2

    @property
    def grace(self):
        return self.config["offline_grace_ms"] / 1000

    def close(self, room, session="s", user="u", base=None):
        answer = self.ok(self.client.close(base or self.base, room, user, session))
        self.assertEqual(answer["decision"], "accepted")
        return answer

    def kinds(self, room, **where):
        return [e["kind"] for e in self.events(room, **where)]

    def offlines(self, room, **where):
        return self.events(room, kind="user.offline", **where)

    def await_offlines(self, room, n=1):
        """Waits for the graces' end. @return the offlines"""
        return self.wait_until(lambda: len(self.offlines(room)) >= n and self.offlines(room),
                               self.grace + LATEST + 2, "%d offlines" % n)

    def story(self, room, latest=LATEST):
        """Goes through a room's events: revisions without a gap, each user_sessions right, user.online right behind
        the first session and only there, user.offline after the whole grace, at most `latest` s late.
        @return the events"""
        events = self.events(room)
        self.assertEqual([e["revision"] for e in events], list(range(1, self.head(room) + 1)))
        sessions, online, ended, owed = {}, set(), {}, None
        for e in events:
            user, kind = e["user_id"], e["kind"]
            tabs = sessions.setdefault(user, set())
            if owed is not None:
                self.assertEqual((kind, user), ("user.online", owed), e)
                owed = None
                online.add(user)
            elif kind == "lease.granted":
                tabs.add(e["session_id"])
                owed = user if user not in online else None
            elif kind in ENDS:
                tabs.remove(e["session_id"])
                ended[user] = e
            elif kind == "user.offline":
                self.assertIn(user, online, e)
                self.assertEqual(tabs, set(), e)
                online.remove(user)
                self.near(instant(e["at"]) - instant(ended[user]["at"]), self.grace - 0.00001,
                          self.grace + latest * SLOW, "the grace of %s in %s" % (user, room))
            else:
                self.fail("not to be expected: %r" % e)
            self.assertEqual(e["user_sessions"], len(tabs), e)
        self.assertIsNone(owed)
        return events

    def together(self, rounds, first, second):
        """Two threads, each on an instance of its own, call first(i) and second(i) at the same moment, round by
        round. @return the replies"""
        barrier, replies = threading.Barrier(2), []

        def thread(base, call):
            client = Client()
            client.get(base, "/healthz")
            for i in range(rounds):
                barrier.wait(30 * SLOW)
                replies.append(call(client, base, i))

        futures = [self.background(thread, base, call) for base, call in zip(self.bases, (first, second))]
        for future in futures:
            future.result(120 * SLOW)
        self.assertEqual({r.status for r in replies}, {200})
        return replies

    def snapshot(self, room, base, revision, **query):
        """The snapshot on an instance that has come to a revision."""
        return self.wait_until(lambda: (lambda s: s if s["revision"] == revision else None)(
            self.ok(self.poll(base, room, **query))), 2, "revision %d" % revision)


class Grace(People):
    """A grace long enough to look into; the sweeper at its default pace."""

    weight = 12
    config = {"ttl_min_ms": 100, "offline_grace_ms": int(1500 * max(1, SLOW))}

    def test_three_tabs(self):
        room = self.room()
        for i, tab in enumerate("abc"):
            self.grant(room, tab, 1, base=self.bases[i % 2])
        self.close(room, "a", base=self.bases[1])
        self.close(room, "b")
        self.pause(self.grace + 1.2)
        self.assertEqual(self.kinds(room), BEGUN + ["lease.granted"] * 2 + ["session.closed"] * 2, "still one tab")
        polls = [self.parked(base, room, 6, kinds="user.offline") for base in self.bases]
        closed = self.close(room, "c", base=self.bases[1])
        self.assertEqual(closed["room_revision"], 7)
        self.await_offlines(room)
        self.pause(LATEST)
        events = self.story(room)
        self.assertEqual(steps(events), [
            (1, "lease.granted", "a"), (2, "user.online", None), (3, "lease.granted", "b"), (4, "lease.granted", "c"),
            (5, "session.closed", "a"), (6, "session.closed", "b"), (7, "session.closed", "c"),
            (8, "user.offline", None)])
        self.assertEqual([e["user_sessions"] for e in events], [1, 1, 2, 3, 2, 1, 0, 0])
        self.assertEqual(events[7]["event_id"], closed["event_id"][:-1] + "8")
        for base, poll in zip(self.bases, polls):
            answer = self.ok(self.answer(poll))
            self.assertEqual([answer["mode"], answer["from"], answer["revision"]], ["events", 6, 8])
            (event,) = answer["events"]
            self.assertEqual([event[k] for k in ("event_id", "kind", "user_id", "user_sessions", "revision")],
                             [events[7]["event_id"], "user.offline", "u", 0, 8])
            self.assertNotIn("session_id", event)
            gone = self.snapshot(room, base, 8)
            self.assertEqual([gone["users"], gone["counts"]], [[], {"users": 0, "sessions": 0}])

    def test_the_rooms_of_a_user_are_apart(self):
        here, there = self.room("here"), self.room("there")
        for room in (here, there):
            self.assertEqual(self.grant(room, "s", 1)["room_revision"], 2)
        self.close(here)
        self.await_offlines(here)
        self.assertEqual(self.kinds(there), BEGUN)
        self.assertEqual([e["kind"] for e in self.story(here)], BEGUN + ["session.closed", "user.offline"])

    def test_flapping_inside_the_grace_gives_nothing(self):
        room = self.room()
        self.grant(room, "tab-0", 1)
        for i in range(6):
            self.close(room, "tab-%d" % i, base=self.bases[i % 2])
            self.pause(self.grace / 3)
            self.grant(room, "tab-%d" % (i + 1), 1, base=self.bases[(i + 1) % 2])
        self.pause(self.grace + 1.2)
        self.assertEqual([e["kind"] for e in self.story(room)], BEGUN + ["session.closed", "lease.granted"] * 6)

    def test_a_newer_session_cancels(self):
        """Late in the grace, on the other instance; the next grace begins anew."""
        room = self.room()
        self.grant(room, "s", 1)
        self.close(room)
        self.pause(self.grace * 0.7)
        self.grant(room, "t", 1, base=self.bases[1])
        self.pause(self.grace + 1.2)
        self.assertEqual(self.kinds(room), BEGUN + ["session.closed", "lease.granted"])
        self.close(room, "t")
        self.await_offlines(room)
        self.assertEqual([e["kind"] for e in self.story(room)],
                         BEGUN + ["session.closed", "lease.granted", "session.closed", "user.offline"])

    def test_snapshots_show_the_grace_on_both_instances(self):
        room = self.room()
        self.grant(room, "a", 1, user="an")
        self.grant(room, "b", 1, user="bo")
        self.close(room, "b", user="bo", base=self.bases[1])
        events = self.events(room)
        online, closed = events[3], events[4]
        for base in self.bases:
            snapshot = self.snapshot(room, base, 5)
            an, bo = snapshot["users"]
            self.assertEqual([an["user_id"], len(an["sessions"]), "offline_at" in an], ["an", 1, False])
            self.assertEqual([bo["user_id"], bo["sessions"]], ["bo", []])
            self.near(instant(bo["online_since"]) - instant(online["at"]), -0.001, 0.001, "online_since")
            self.near(instant(bo["offline_at"]) - instant(closed["at"]), self.grace - 0.001, self.grace + 0.001)
            self.assertEqual(snapshot["counts"], {"users": 2, "sessions": 1})
            users = self.snapshot(room, base, 5, view="users")
            self.assertEqual([(u["user_id"], u.get("offline_at")) for u in users["users"]],
                             [("an", None), ("bo", bo["offline_at"])])
            self.assertEqual(users["counts"], {"users": 2, "sessions": 1})
            self.assertEqual(self.snapshot(room, base, 5, view="count")["counts"], {"users": 2, "sessions": 1})
        self.grant(room, "c", 1, user="bo")
        for base in self.bases:
            snapshot = self.snapshot(room, base, 6)
            self.assertEqual([[s["session_id"] for s in u["sessions"]] for u in snapshot["users"]], [["a"], ["c"]])
            self.assertEqual([u.get("offline_at") for u in snapshot["users"]], [None, None])
            self.assertEqual(snapshot["counts"], {"users": 2, "sessions": 2})

    def test_online_since_stays_the_first_tabs(self):
        room = self.room()

        def since(revision):
            (user,) = self.snapshot(room, self.base, revision)["users"]
            return user["online_since"]

        self.grant(room, "a", 1)
        first = since(2)
        self.near(instant(first) - instant(self.events(room)[1]["at"]), -0.001, 0.001)
        self.pause(0.05)
        self.grant(room, "b", 1)
        self.close(room, "a")
        self.assertEqual(since(4), first, "another tab")
        self.close(room, "b")
        self.assertEqual(since(5), first, "in grace")
        self.grant(room, "c", 1)
        self.assertEqual(since(6), first, "back inside the grace")
        self.close(room, "c")
        self.await_offlines(room)
        self.grant(room, "d", 1)
        self.assertEqual(self.kinds(room)[-3:], ["user.offline"] + BEGUN)
        self.near(instant(since(10)) - instant(self.events(room)[9]["at"]), -0.001, 0.001, "came online anew")

    def test_an_expiry_begins_the_grace(self):
        room = self.room()
        self.grant(room, "s", 1, 300)
        expired = self.wait_until(lambda: self.events(room, kind="lease.expired"), 5, "the expiry")
        for base in self.bases:
            (user,) = self.snapshot(room, base, 3)["users"]
            self.assertEqual(user["sessions"], [])
            self.near(instant(user["offline_at"]) - instant(expired[0]["at"]), self.grace - 0.001, self.grace + 0.001)
        self.await_offlines(room)
        self.assertEqual(steps(self.story(room)), [(1, "lease.granted", "s"), (2, "user.online", None),
                                                   (3, "lease.expired", "s"), (4, "user.offline", None)])

    def test_one_tab_is_closed_and_another_runs_out(self):
        room = self.room()
        self.grant(room, "closed", 1)
        self.grant(room, "silent", 1, int(1200 * max(1, SLOW)))
        self.close(room, "closed")
        self.await_offlines(room)
        self.assertEqual([e["kind"] for e in self.story(room)],
                         BEGUN + ["lease.granted", "session.closed", "lease.expired", "user.offline"])

    def test_polls_for_people_only(self):
        room, kinds = self.room(), "user.online,user.offline"
        self.grant(room, "a", 1)
        self.close(room, "a")
        answer = self.ok(self.poll(self.base, room, 0, kinds=kinds, wait_ms=0))
        self.assertEqual([answer["mode"], answer["revision"], steps(answer["events"])],
                         ["events", 3, [(2, "user.online", None)]])
        polls = [self.parked(base, room, 3, kinds=kinds) for base in self.bases]
        self.grant(room, "b", 1)
        self.close(room, "b", base=self.bases[1])
        self.pause(0.5)
        self.assertEqual([p.done() for p in polls], [False, False], "tabs wake nobody")
        for poll in polls:
            answer = self.ok(self.answer(poll, self.grace + LATEST + 1))
            self.assertEqual([answer["mode"], answer["from"], answer["revision"], steps(answer["events"])],
                             ["events", 3, 6, [(6, "user.offline", None)]])
        self.story(room)

    def test_a_locked_room_holds_up_no_other(self):
        """Held from psql far past the grace: the other rooms' people go offline in time."""
        locked, free = self.room("m-locked"), [self.room("a-free"), self.room("z-free")]
        for room in [locked] + free:
            self.ok(self.client.batch(self.base, [lease(room, "u%d" % i, "s", 1) for i in range(5)]))
            for i in range(5):
                self.close(room, user="u%d" % i)
        psql = self.psql()
        psql.run("BEGIN")
        psql.run("SELECT 1 FROM stillhere.room WHERE room_id = %s FOR UPDATE" % sql(locked))
        for room in free:
            self.await_offlines(room, 5)
        self.pause(2)
        self.assertEqual(self.offlines(locked), [])
        late = self.room("later")
        self.grant(late)
        self.close(late)
        self.await_offlines(late)
        psql.run("COMMIT")
        self.await_offlines(locked, 5)
        self.pause(1.2)
        for room in free + [late]:
            self.story(room)
        self.assertEqual(len([e for e in self.story(locked, 20) if e["kind"] == "user.offline"]), 5)


class Crowd(People):
    """A short grace, many people, both instances at once."""

    weight = 10
    config = {"ttl_min_ms": 100, "sweep_interval_ms": 100, "offline_grace_ms": 300}
    #: The rounds are spread over rooms, so that the graces of some end while others close.
    ROUNDS, ROOMS = 200, 8

    def test_two_last_tabs_closed_in_parallel_200_times(self):
        rooms = [self.room() for _ in range(self.ROOMS)]
        for tab in "ab":
            self.ok(self.client.batch(self.base, [lease(rooms[i % self.ROOMS], "u%d" % i, tab, 1)
                                                  for i in range(self.ROUNDS)]))

        def closing(tab):
            return lambda client, base, i: client.close(base, rooms[i % self.ROOMS], "u%d" % i, tab)

        replies = self.together(self.ROUNDS, closing("a"), closing("b"))
        self.assertEqual({r["decision"] for r in replies}, {"accepted"})
        self.wait_until(lambda: sum(len(self.offlines(r)) for r in rooms) >= self.ROUNDS, 10, "200 offlines")
        self.pause(LATEST)
        for n, room in enumerate(rooms):
            self.story(room)
            for i in range(n, self.ROUNDS, self.ROOMS):
                self.assertEqual(self.kinds(room, user_id="u%d" % i), BEGUN + ["lease.granted"] +
                                 ["session.closed"] * 2 + ["user.offline"])
        self.assertEqual(sum(len(self.offlines(r)) for r in rooms), self.ROUNDS)

    def test_first_two_tabs_opened_in_parallel_200_times(self):
        rooms = [self.room() for _ in range(self.ROOMS)]

        def opening(tab):
            return lambda client, base, i: client.hb(base, rooms[i % self.ROOMS], "u%d" % i, tab, 1)

        replies = self.together(self.ROUNDS, opening("a"), opening("b"))
        self.assertEqual({r["granted"] for r in replies}, {True})
        for n, room in enumerate(rooms):
            self.story(room)
            for i in range(n, self.ROUNDS, self.ROOMS):
                self.assertEqual(self.kinds(room, user_id="u%d" % i), BEGUN + ["lease.granted"])
        self.assertEqual(sum(self.count("event", room_id=r, kind="user.online") for r in rooms), self.ROUNDS)

    def test_flapping_past_the_grace_gives_one_offline_and_one_online_each(self):
        room = self.room()
        for i in range(4):
            self.grant(room, "s", base=self.bases[i % 2], revision=i + 1)
            self.close(room, base=self.bases[(i + 1) % 2])
            self.await_offlines(room, i + 1)
        self.assertEqual([e["kind"] for e in self.story(room)], (BEGUN + ["session.closed", "user.offline"]) * 4)

    def test_returns_in_the_moment_of_the_offline(self):
        """Each comes back around the end of the grace. Either it was over, with one offline and one online, or not."""
        rooms = [self.room() for _ in range(4)]

        def person(i):
            room, user = rooms[i % 4], "u%d" % i
            self.grant(room, "s", 1, user=user, base=self.bases[i % 2])
            self.close(room, user=user, base=self.bases[i % 2])
            self.pause(self.grace + random.uniform(-0.05, 0.2))
            self.grant(room, "s", 2, user=user, base=self.bases[(i + 1) % 2])

        for future in [self.background(person, i) for i in range(200)]:
            future.result(60 * SLOW)
        self.pause(LATEST)
        for n, room in enumerate(rooms):
            self.story(room)
            for i in range(n, 200, 4):
                self.assertIn(self.kinds(room, user_id="u%d" % i),
                              (BEGUN + ["session.closed", "lease.granted"],
                               BEGUN + ["session.closed", "user.offline"] + BEGUN))
            snapshot = self.ok(self.poll(self.base, room))
            self.assertEqual(snapshot["counts"], {"users": 50, "sessions": 50})
            self.assertEqual([u for u in snapshot["users"] if "offline_at" in u], [])

    def leave(self, how):
        room = self.room()
        ttl = 60000 if how == "close" else 1500
        self.ok(self.client.batch(self.base, [lease(room, "u%d" % i, "s", 1, ttl) for i in range(300)]))
        self.assertEqual(self.head(room), 600)
        if how == "close":
            futures = [self.background(self.close, room, user="u%d" % i, base=self.bases[i % 2]) for i in range(300)]
            for future in futures:
                future.result(30 * SLOW)
        since, events, deadline = 600, [], time.monotonic() + 10 * SLOW
        while since < 1200 and time.monotonic() < deadline:
            answer = self.ok(self.poll(self.bases[1], room, since, wait_ms=1000))
            self.assertIn(answer["mode"], ("events", "unchanged"))
            since, events = answer["revision"], events + answer["events"]
        self.assertEqual([e["revision"] for e in events], list(range(601, 1201)))
        self.assertEqual(sorted(e["user_id"] for e in events if e["kind"] == "user.offline"),
                         sorted("u%d" % i for i in range(300)))
        self.pause(1)
        self.assertEqual(len(self.story(room)), 1200)
        self.assertEqual(self.ok(self.poll(self.base, room))["users"], [])

    def test_three_hundred_close_at_once(self):
        self.leave("close")

    def test_three_hundred_fall_silent_at_once(self):
        self.leave("expire")


class Default(People):
    """Nothing is configured."""

    weight = 9

    @property
    def grace(self):
        return 10.0

    def test_the_grace_is_ten_seconds(self):
        room = self.room()
        self.grant(room, "s", 1)
        self.close(room, base=self.bases[1])
        self.await_offlines(room)
        self.pause(LATEST)
        self.assertEqual([e["kind"] for e in self.story(room)], BEGUN + ["session.closed", "user.offline"])


class Asleep(People):
    """The sweepers are kept away: what a heartbeat finds by itself."""

    config = {"ttl_min_ms": 100, "sweep_interval_ms": 600000, "offline_grace_ms": 100}

    def test_a_regrant_of_an_unswept_lease_does_not_flicker(self):
        room = self.room()
        self.grant(room, "s", 1)
        self.age(room)
        self.assertEqual(self.grant(room, "s", 2, base=self.bases[1])["room_revision"], 4)
        self.pause(self.grace * 3)
        self.assertEqual(steps(self.story(room)), [(1, "lease.granted", "s"), (2, "user.online", None),
                                                   (3, "lease.expired", "s"), (4, "lease.granted", "s")])
        (user,) = self.snapshot(room, self.bases[1], 4)["users"]
        self.assertNotIn("offline_at", user)

    def test_a_session_after_the_grace_finds_the_user_offline(self):
        """The grace is over, though nobody has written so yet: the stream must not lack the step."""
        room = self.room()
        self.grant(room, "s", 1)
        self.close(room)
        self.pause(self.grace * 3)
        self.assertEqual(self.kinds(room), BEGUN + ["session.closed"], "the sweepers were to be away")
        self.assertEqual(self.grant(room, "t", 1, base=self.bases[1])["room_revision"], 6)
        self.assertEqual(steps(self.story(room)), [
            (1, "lease.granted", "s"), (2, "user.online", None), (3, "session.closed", "s"),
            (4, "user.offline", None), (5, "lease.granted", "t"), (6, "user.online", None)])


class Killed(People):
    """SIGKILL of every instance, and a new start of all."""

    weight = 8
    config = {"ttl_min_ms": 100, "offline_grace_ms": int(2000 * max(1, SLOW))}

    def kill_all(self):
        for d in list(self.daemons):
            d.kill()
            self.forget(d)

    def start_all(self):
        for _ in range(self.instances):
            self.start_daemon(wait=False)
        for d in self.daemons:
            d.wait_ready()

    def test_inside_the_grace_nothing_is_lost_or_doubled(self):
        rooms = [self.room() for _ in range(4)]
        for room in rooms:
            self.ok(self.client.batch(self.base, [lease(room, "u%d" % i, "s", 1) for i in range(5)]))
        for room in rooms:
            for i in range(4):
                self.close(room, user="u%d" % i, base=self.bases[i % 2])
        down = time.monotonic()
        self.kill_all()
        self.assertEqual([self.offlines(room) for room in rooms], [[]] * 4, "it was to be inside the grace")
        self.start_all()
        down = time.monotonic() - down
        self.grant(rooms[0], "back", 1, user="u0")
        back = self.kinds(rooms[0], user_id="u0")
        self.assertEqual(back, BEGUN + ["session.closed", "lease.granted"], "the start took longer than the grace")
        for room in rooms:
            self.await_offlines(room, 3 if room == rooms[0] else 4)
        self.pause(LATEST)
        for room in rooms:
            events = self.story(room, LATEST + down)
            self.assertEqual(sorted(e["user_id"] for e in events if e["kind"] == "user.offline"),
                             ["u1", "u2", "u3"] if room == rooms[0] else ["u0", "u1", "u2", "u3"])
            self.assertEqual(len(events), 5 * 2 + 4 * 2)

    def test_past_the_grace_all_of_it_comes_once(self):
        room = self.room()
        self.grant(room)
        self.close(room)
        self.kill_all()
        self.pause(self.grace + 0.5)
        self.start_all()
        self.await_offlines(room)
        self.pause(LATEST)
        self.assertEqual([e["kind"] for e in self.story(room, 20)], BEGUN + ["session.closed", "user.offline"])

    def test_killed_while_it_carries_them_out(self):
        """Both instances are killed in the moment when 300 graces end, in 30 rooms."""
        rooms = [self.room() for _ in range(30)]
        ttl = 1000
        for _ in range(2):
            self.ok(self.client.batch(self.base, [lease(room, "u%d" % i, "s", None, ttl) for room in rooms
                                                  for i in range(10)]))
            names = ", ".join(sql(r) for r in rooms)
            count = "SELECT count(*) FROM stillhere.event WHERE kind = 'user.offline' AND room_id IN (%s)" % names
            before = int(self.q(count))
            self.wait_until(lambda: int(self.q(count)) > before, ttl / 1000 + self.grace + 3 * LATEST, "an offline")
            self.kill_all()
            self.start_all()
            self.wait_until(lambda: int(self.q(count)) == before + 300, 5, "300 offlines")
        self.pause(1.5)
        for room in rooms:
            events = self.story(room, 20)
            self.assertEqual(len(events), 2 * 10 * 4)
