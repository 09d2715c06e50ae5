# SPDX-License-Identifier: Apache-2.0
"""Whose membership is revoked watches no more: polls, streams and cursors, on every instance within 2 s."""

from harness.case import Case, Flock, json, presence_path, quote, sql, threading, time
from harness.sse import Streams
from harness.tokens import Guarded, bearer

#: CONTRACT §6: a revoked user's waiting polls end within this.
SOON = 2


class RevokedCase(Case):
    """Calls and looks that the classes share."""

    def member(self, method, room, user, base=None, headers=None):
        path = "/rooms/%s/members/%s" % (quote(room), quote(user))
        body = "{}" if method == "PUT" else None
        return self.ok(self.client.request(base or self.base, method, path, body=body, headers=headers))

    def revoke(self, room, user="an", base=None, headers=None):
        """Revokes. @return the monotonic time before the call: the commit comes after that"""
        began = time.monotonic()
        self.member("DELETE", room, user, base, headers)
        return began

    def cursors_path(self, room, **query):
        query = "&".join("%s=%s" % (k, quote(str(v))) for k, v in query.items())
        return "/rooms/%s/cursors%s" % (quote(room), "?" + query if query else "")

    def waits(self, base, paths, headers=""):
        """Polls and waits until the daemon counts all of them as waiting. @return the flock"""
        before = self.waiting(base)
        flock = Flock(base, paths, headers)
        self.addCleanup(flock.close)
        self.wait_until(lambda: self.waiting(base) >= before + len(paths), 10, "the polls")
        return flock

    def streams(self, base, paths, headers=""):
        streams = Streams(base, paths, headers)
        self.addCleanup(streams.close)
        self.assertTrue(streams.collect(lambda: all(r.retry is not None for r in streams.readers)))
        return streams

    def expelled(self, replies, since, seconds=SOON):
        """Demands that each reply of a flock is the 403, soon."""
        for item in replies:
            self.assertIsNotNone(item, "a poll goes on waiting")
            reply, at = item
            self.problem(reply, 403, "membership_revoked")
            self.assertLess(at - since, self.within(seconds))

    def ended(self, streams, seconds=SOON):
        """Demands that each stream says why and is over."""
        self.assertTrue(streams.collect(lambda: all(r.whole for r in streams.readers), seconds), streams.readers)
        for reader in streams.readers:
            self.assertIsNone(reader.broken)
            self.assertEqual(reader.messages[-1].event, "problem")
            self.problem_object(reader.messages[-1].json(), 403, "membership_revoked")

    def person(self, room, since=None, user="an", **query):
        """The path of a poll in the name of a user, with whom no credential goes."""
        return presence_path(room, since, user_id=user, session_id="s", **query)


class Revoked(RevokedCase):
    """Two instances, without credentials: the query says for whom it is."""

    instances = 2

    def test_waiting_polls_end_on_every_instance(self):
        room = self.room()
        self.grant(room, "s", user="an")
        self.grant(room, "s", user="ben")
        head = self.head(room)
        mine = [self.person(room, head), self.person(room, head, kinds="user.online"),
                self.cursors_path(room, since=0, user_id="an", wait_ms=20000)]
        self.ok(self.client.get(self.base, self.cursors_path(room)))
        others = [self.person(room, head, "ben", kinds="user.online"), presence_path(room, head, kinds="user.online"),
                  self.cursors_path(room, since=self.seq(room, 0), user_id="ben")]
        mine[2] = self.cursors_path(room, since=self.seq(room, 0), user_id="an")
        flocks = [self.waits(self.bases[0], mine + others)]
        others[2] = self.cursors_path(room, since=self.seq(room, 1), user_id="ben")
        mine[2] = self.cursors_path(room, since=self.seq(room, 1), user_id="an")
        flocks.append(self.waits(self.bases[1], mine + others))
        began = self.revoke(room)
        for flock in flocks:
            self.expelled(flock.collect(self.within(SOON), len(mine))[:len(mine)], began)
            self.assertEqual(flock.replies[len(mine):], [None] * len(others))

    def seq(self, room, instance):
        return self.ok(self.client.get(self.bases[instance], self.cursors_path(room)))["seq"]

    def test_streams_end_on_every_instance(self):
        room = self.room()
        self.grant(room, "s", user="an")
        head = self.head(room)
        mine, others = [], []
        for base in self.bases:
            mine.append(self.streams(base, [self.person(room), self.person(room, head, kinds="lease.renewed"),
                                            self.cursors_path(room, user_id="an")]))
            others.append(self.streams(base, [self.person(room, head, "ben"), presence_path(room, head),
                                              self.cursors_path(room, user_id="ben")]))
        self.revoke(room)
        for streams in mine:
            self.ended(streams)
        for streams in others:
            streams.collect_for(0.2)
            self.assertEqual([r.whole for r in streams.readers], [False] * 3)
            self.assertIn("membership.revoked", [m.event for m in streams[1].messages])

    def test_the_room_shows_them_no_more(self):
        """To those who stay: one end for each session, and no trace in a snapshot, on every instance."""
        room = self.room()
        for session in ("s", "t"):
            self.grant(room, session, user="an")
        self.grant(room, "s", user="ben")
        head = self.head(room)
        waiting = [self.parked(base, room, head) for base in self.bases]
        began = self.revoke(room)
        for base, poll in zip(self.bases, waiting):
            events = self.ok(self.answer(poll, SOON))["events"]
            while events[-1]["kind"] != "user.offline":
                events += self.ok(self.poll(base, room, events[-1]["revision"], wait_ms=1000))["events"]
            self.assertEqual([(e["kind"], e["user_id"], e.get("session_id"), e["user_sessions"]) for e in events],
                             [("membership.revoked", "an", "s", 1), ("membership.revoked", "an", "t", 0),
                              ("user.offline", "an", None, 0)])
            snapshot = self.ok(self.poll(base, room))
            self.assertEqual([u["user_id"] for u in snapshot["users"]], ["ben"])
            self.assertEqual(snapshot["counts"], {"users": 1, "sessions": 1})
            leases = self.ok(self.client.get(base, "/rooms/%s/leases" % room))["leases"]
            self.assertEqual([row["user_id"] for row in leases], ["ben"])
        self.assertLess(time.monotonic() - began, self.within(SOON))

    def test_nothing_new_begins_on_any_instance(self):
        room = self.room()
        self.grant(room, "s", user="an")
        head = self.head(room)
        tag = self.client.get(self.bases[1], presence_path(room)).headers["etag"]
        self.revoke(room)
        self.wait_until(lambda: self.client.get(self.bases[1], self.person(room, head, wait_ms=0)).status == 403)
        paths = [self.person(room), self.person(room, 0), self.person(room, 99), self.person(room, head, wait_ms=0),
                 self.cursors_path(room, user_id="an"), self.cursors_path(room, user_id="an", since=0)]
        for base in self.bases:
            for path in paths:
                for headers in ({}, {"Accept": "text/event-stream"}, {"If-None-Match": tag}):
                    self.problem(self.client.get(base, path, headers), 403, "membership_revoked")
                self.assertEqual(self.client.request(base, "HEAD", path).status, 403)
            reply = self.hb(base, room, "an", "s", query="?since=0")
            self.problem(reply, 403, "membership_revoked")
            self.assertNotIn("presence", reply.json())
            for path in (self.person(room, user="ben"), presence_path(room), self.cursors_path(room, user_id="ben")):
                self.ok(self.client.get(base, path))
            self.ok(self.client.get(base, self.person(self.room("other"))))

    def test_a_new_grant_lets_them_in_again(self):
        room = self.room()
        self.grant(room, "s", user="an")
        for _ in range(3):
            self.revoke(room)
            for base in self.bases:
                self.wait_until(lambda b=base: self.client.get(b, self.person(room, 0)).status == 403, 1)
            self.member("PUT", room, "an", self.bases[1])
            self.ok(self.client.get(self.bases[1], self.person(room, 0)))
            self.wait_until(lambda: self.client.get(self.bases[0], self.person(room, 0)).status == 200, 1)
            self.grant(room, "s", user="an", base=self.bases[1])
            head = self.head(room)
            flock = self.waits(self.bases[0], [self.person(room, head)])
            began = self.revoke(room, base=self.bases[1])
            self.expelled(flock.collect(self.within(SOON)), began)
            self.member("PUT", room, "an")

    def test_a_grant_by_another_instance_is_heard_of(self):
        room = self.room()
        self.ok(self.client.get(self.base, self.person(room)))
        for _ in range(3):
            self.revoke(room, base=self.bases[1])
            self.problem(self.client.get(self.base, self.person(room)), 403)
            self.member("PUT", room, "an", self.bases[1])
            self.wait_until(lambda: self.client.get(self.base, self.person(room)).status == 200, 0.4)

    def test_a_lost_notification_of_a_grant_is_made_up_for(self):
        room = self.room()
        self.revoke(room)
        self.problem(self.client.get(self.base, self.person(room, 0)), 403)
        self.q("UPDATE stillhere.member SET revoked_at = NULL WHERE room_id = %s" % sql(room))
        self.wait_until(lambda: self.client.get(self.base, self.person(room, 0)).status == 200, 3)

    def test_a_ban_of_a_stranger(self):
        room = self.room()
        flocks = [self.waits(base, [self.person(room, 0)]) for base in self.bases]
        began = self.revoke(room)
        for flock in flocks:
            self.expelled(flock.collect(self.within(SOON)), began)

    def test_what_was_before_the_start(self):
        room = self.room()
        self.grant(room, "s", user="an")
        self.revoke(room)
        d = self.start_daemon()
        self.problem(self.client.get(d.base, self.person(room)), 403, "membership_revoked")
        self.ok(self.client.get(d.base, self.person(room, user="ben")))
        self.stop_now(d)

    def test_a_window_does_not_delay_it(self):
        """A room with many watchers folds its wakes; who is revoked does not wait for that."""
        room = self.room()
        self.grant(room, "s", user="an")
        head = self.head(room)
        crowd = self.waits(self.bases[1], [presence_path(room, head)] * 200)
        mine = self.waits(self.bases[1], [self.person(room, head, wait_ms=50000)])
        self.grant(room, "t", user="ben")  # begins the window, of 2 s
        crowd.collect(self.within(2))
        self.assertEqual(mine.collect(self.within(2))[0][0].status, 200)
        held = Flock(self.bases[1], [self.person(room, head + 2)])
        self.addCleanup(held.close)
        self.grant(room, "u", user="ben")
        began = self.revoke(room)
        self.expelled(held.collect(self.within(SOON)), began, 1)

    def test_many_at_once(self):
        room = self.room()
        users = ["u%d" % i for i in range(100)]
        flocks = [self.waits(base, [self.person(room, 0, u, kinds="user.online") for u in users]) for base in self.bases]
        began = time.monotonic()
        for f in [self.background(self.revoke, room, u) for u in users[1:]]:
            f.result(30)
        over = time.monotonic()
        for flock in flocks:
            replies = flock.collect(self.within(SOON), len(users) - 1)
            self.assertIsNone(replies[0])
            self.expelled(replies[1:], over)
        self.assertLess(over - began, self.within(30))

    def test_more_than_memory_keeps(self):
        """Of a room with very many revoked users memory has the newest; the others are asked for."""
        room = self.room()
        self.grant(room, "s", user="an")
        self.grant(room, "s", user="ben")
        self.q("INSERT INTO stillhere.member (room_id, user_id, revoked_at) SELECT %s, 'x' || i, now() - i * interval "
               "'1 s' FROM generate_series(1, 10050) i" % sql(room))
        d = self.start_daemon()
        for user in ("x1", "x9999", "x10040", "x10050"):
            self.problem(self.client.get(d.base, self.person(room, 0, user)), 403, "membership_revoked")
        for user in ("an", "x", "x10051"):
            self.ok(self.client.get(d.base, self.person(room, 0, user)))
        flock = self.waits(d.base, [self.person(room, self.head(room), u) for u in ("an", "ben")])
        streams = self.streams(d.base, [self.person(room, user="an")])
        began = self.revoke(room)
        self.expelled(flock.collect(self.within(SOON), 1)[:1], began)
        self.ended(streams)
        self.assertEqual(flock.collect(self.within(SOON))[1][0].status, 200)
        self.stop_now(d)

    def test_a_bad_user_is_400(self):
        for value in ("", "a%00b", "x" * 129, "a%0Ab"):
            reply = self.client.get(self.base, "/rooms/%s/cursors?user_id=%s" % (self.room(), value))
            self.problem(reply, 400)


class Deaf(RevokedCase):
    """Instances that hear of nothing: what others did comes with the poll of the rooms that are watched."""

    autostart = False

    def test_without_notifications_it_is_as_soon(self):
        writer = self.start_daemon()
        deaf = self.start_daemon(wait=False, database_listen_url="postgresql:///postgres?host=/nonexistent")
        self.wait_until(lambda: deaf.status("/healthz") == 200)
        room = self.room()
        self.grant(room, "s", user="an", base=writer.base)
        self.wait_until(lambda: self.client.get(deaf.base, self.person(room)).status == 200)
        head = self.head(room)
        flock = self.waits(deaf.base, [self.person(room, head), self.person(room, head, kinds="lease.renewed"),
                                       self.person(room, head, "ben", kinds="lease.renewed")])
        streams = self.streams(deaf.base, [self.person(room), self.cursors_path(room, user_id="an")])
        began = self.revoke(room, base=writer.base)
        self.expelled(flock.collect(self.within(SOON), 2)[:2], began)
        self.ended(streams)
        self.assertIsNone(flock.replies[2])
        self.problem(self.client.get(deaf.base, self.person(room)), 403, "membership_revoked")
        self.member("PUT", room, "an", writer.base)
        self.ok(self.client.get(deaf.base, self.person(room)))
        self.client.server_errors.clear()  # what came before the first connection
        self.stop_now(deaf)
        self.stop_now(writer)

    def test_cursors_are_refused_once_the_revocation_is_answered(self):
        """However late the event comes, what was read of the lease is believed for less than the answer waits."""
        writer = self.start_daemon()
        deaf = self.start_daemon(wait=False, database_listen_url="postgresql:///postgres?host=/nonexistent")
        self.wait_until(lambda: deaf.status("/healthz") == 200)
        room = self.room()
        path, document = "/rooms/%s/cursors" % room, json.dumps({"user_id": "an", "session_id": "s", "data": {}})

        def post():
            sent = time.monotonic()
            reply = self.client.request(deaf.base, "POST", path, document, {"Content-Type": "application/json"})
            return sent, reply

        for _ in range(4):
            self.grant(room, "s", user="an", base=writer.base)
            self.wait_until(lambda: post()[1].status == 202)
            over = threading.Event()
            posting = self.background(lambda o: [post() for _ in iter(o.is_set, True)], over)
            time.sleep(0.4)
            self.revoke(room, base=writer.base)
            answered = time.monotonic()
            time.sleep(0.3)
            over.set()
            shots = posting.result(30)
            late = [reply for sent, reply in shots if sent > answered]
            self.assertTrue(late)
            for reply in late:
                self.problem(reply, 403, "membership_revoked")
            self.assertIn(202, [reply.status for sent, reply in shots])
            self.member("PUT", room, "an", writer.base)
        self.client.server_errors.clear()  # what came before the first connection
        self.stop_now(deaf)
        self.stop_now(writer)

    def test_when_the_listener_is_cut_off(self):
        daemons = [self.start_daemon() for _ in range(2)]
        room = self.room()
        self.grant(room, "s", user="an", base=daemons[0].base)
        head = self.head(room)
        over = threading.Event()

        def cut():
            while not over.is_set():
                self.pg.psql(self.database, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                                            "datname = current_database() AND application_name = 'stillhered listener'")

        cutting = self.background(cut)
        try:
            for _ in range(3):
                flock = self.waits(daemons[1].base, [self.person(room, head)])
                began = self.revoke(room, base=daemons[0].base)
                self.expelled(flock.collect(self.within(SOON)), began)
                self.member("PUT", room, "an", daemons[0].base)
                self.wait_until(lambda: self.client.get(daemons[1].base, self.person(room, head)).status == 200, 5)
                head = self.head(room)
        finally:
            over.set()
            cutting.result(30)
        for d in daemons:
            self.stop_now(d)


class WithTokens(Guarded, RevokedCase):
    """With credentials: a token is its sub's; gateways say for whom they watch."""

    instances = 2

    def headers(self, **claims):
        return "".join("%s: %s\r\n" % h for h in bearer(self.key.token(**claims)).items())

    def admin(self):
        return bearer(self.key.token(sub="boss", scope="admin"))

    def waiting(self, base):
        reply = self.client.get(base, "/metrics", headers=self.admin())
        for line in reply.body.decode().splitlines():
            if line.startswith("stillhere_longpoll_waiting "):
                return int(line.split(" ")[1])
        raise AssertionError(reply)

    def join(self, room, user):
        self.ok(self.client.hb(self.base, room, user, "s", headers=self.admin()))

    def test_a_token_is_its_subs(self):
        room = self.room()
        self.join(room, "an")
        head = self.head(room)
        for base in self.bases:
            mine = self.waits(base, [presence_path(room, head), presence_path(room, head, kinds="lease.renewed")],
                              self.headers())
            streams = self.streams(base, [presence_path(room), self.cursors_path(room)], self.headers())
            gate = self.waits(base, [self.person(room, head), self.person(room, head, "ben", kinds="lease.renewed"),
                                     presence_path(room, head, kinds="lease.renewed")],
                              self.headers(sub="gate", scope="presence:read gateway"))
            other = self.waits(base, [presence_path(room, head, kinds="lease.renewed")], self.headers(sub="ben"))
            began = self.revoke(room, headers=self.admin())
            self.expelled(mine.collect(self.within(SOON)), began)
            self.ended(streams)
            self.expelled(gate.collect(self.within(SOON), 1)[:1], began)
            self.assertEqual(gate.replies[1:] + other.replies, [None] * 3)
            self.member("PUT", room, "an", headers=self.admin())
            self.wait_until(lambda b=base: self.client.get(b, presence_path(room), bearer(self.key.token())).status ==
                            200, 2)
            self.join(room, "an")
            head = self.head(room)

    def test_lists_of_the_room_are_closed_as_well(self):
        room = self.room()
        for user in ("an", "bo"):
            self.join(room, user)
        paths = ["/rooms/%s/%s" % (room, rest) for rest in ("leases", "last-seen", "users/bo/explain", "users/an/explain",
                                                              "presence?wait_ms=0", "cursors?wait_ms=0")]
        mine, other = bearer(self.key.token()), bearer(self.key.token(sub="bo"))
        sign = dict(mine, **{"Content-Type": "application/json"})
        attend = lambda base, action, headers: self.client.request(  # noqa: E731
            base, "POST", "/rooms/%s/attendance" % room, body=json.dumps({"user_id": "an", "action": action}),
            headers=headers)
        for base in self.bases:
            for path in paths:
                self.ok(self.client.get(base, path, mine))
        self.revoke(room, headers=self.admin())
        for base in self.bases:
            for path in paths:
                with self.subTest(base=base, path=path):
                    self.wait_until(lambda b=base, p=path: self.client.get(b, p, mine).status == 403, 2)
                    self.problem(self.client.get(base, path, mine), 403, "membership_revoked")
                    self.assertEqual(self.client.get(base, path, other).status, 200)
            self.problem(attend(base, "sign_in", sign), 403, "membership_revoked")
            self.assertEqual(attend(base, "sign_out", sign).status, 201)
            self.assertEqual(attend(base, "sign_in", dict(sign, **self.admin())).status, 201)

    def test_a_poller_with_nothing_new_costs_no_query(self):
        room = self.room()
        self.join(room, "an")
        self.member("DELETE", room, "ben", headers=self.admin())
        headers = bearer(self.key.token())
        head = self.head(room)
        tag = self.client.get(self.base, presence_path(room), headers).headers["etag"]
        count = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        time.sleep(1.2)
        before = int(self.q(count))
        for _ in range(100):
            self.assertEqual(self.client.get(self.base, presence_path(room, head, wait_ms=0), headers).status, 200)
            reply = self.client.get(self.base, presence_path(room), dict(headers, **{"If-None-Match": tag}))
            self.assertEqual(reply.status, 304)
        time.sleep(1.2)  # the statistics come with a delay
        self.assertLess(int(self.q(count)) - before, 120, "200 polls must not be 200 queries")

    def test_cursors(self):
        room = self.room()
        self.join(room, "an")
        headers = bearer(self.key.token())
        document = json.dumps({"user_id": "an", "session_id": "s", "data": {"x": 1}})
        post = dict(headers, **{"Content-Type": "application/json"})
        path = "/rooms/%s/cursors" % room
        for base in self.bases:
            self.assertEqual(self.client.request(base, "POST", path, document, post).status, 202)
        self.revoke(room, headers=self.admin())
        for base in self.bases:
            self.problem(self.client.request(base, "POST", path, document, post), 403, "membership_revoked")
            self.assertEqual(self.ok(self.client.get(base, path, self.admin()))["cursors"], [])
