# SPDX-License-Identifier: Apache-2.0
"""Cursors: POST and GET /rooms/{room}/cursors (CONTRACT §7)."""

from harness.case import REVISION_MAX, RFC3339, SLOW, Case, json, quote, sql, threading, time
from harness.client import Wire, hostport

JSON = {"Content-Type": "application/json"}


class CursorCase(Case):
    instances = 2
    config = {"ttl_min_ms": 100, "sweep_interval_ms": 200, "offline_grace_ms": 100}

    def path(self, room, **query):
        path = "/rooms/%s/cursors" % quote(room)
        return path + ("?" + "&".join("%s=%s" % item for item in query.items()) if query else "")

    def post(self, room, data=None, session="s", user="u", base=None, headers=None, body=None, fresh=False):
        if body is None:
            body = json.dumps({"user_id": user, "session_id": session, "data": {} if data is None else data})
        return self.client.request(base or self.base, "POST", self.path(room), body=body,
                                   headers=JSON if headers is None else headers, fresh=fresh)

    def move(self, room, data, **more):
        """A packet that must be taken. @return its seq"""
        reply = self.post(room, data, **more)
        self.assertEqual(reply.status, 202, reply)
        return reply["seq"]

    def look(self, room, base=None, fresh=False, **query):
        return self.ok(self.client.get(base or self.base, self.path(room, **query), fresh=fresh))

    def cursors(self, room, base=None, **query):
        """What is there: {(user, session): data}."""
        return {(c["user_id"], c["session_id"]): c["data"] for c in self.look(room, base, **query)["cursors"]}

    def waits(self, room, since, base=None, **query):
        """A poll that has begun to wait. @return the future of its answer"""
        base = base or self.base
        before = self.waiting(base)
        future = self.background(self.look, room, base, True, since=since, **query)
        self.wait_until(lambda: future.done() or self.waiting(base) > before, 5, "a waiting poll")
        return future

    def arrives(self, room, expected, base, seconds=5):
        self.wait_until(lambda: self.cursors(room, base) == expected, seconds, "the cursors %r" % expected)


class Cursors(CursorCase):

    # -- posting -------------------------------------------------------------------------------------------------------

    def test_a_cursor(self):
        room = self.room()
        self.grant(room)
        reply = self.post(room, {"x": 1, "y": [2.5, "é"]}, headers=dict(JSON, **{"X-Request-Id": "me"}))
        self.assertEqual(reply.status, 202, reply)
        self.assertEqual(reply["request_id"], "me")
        self.assertRegex(reply["server_time"], RFC3339)
        answer = self.look(room)
        self.assertEqual([answer["room_id"], answer["gone"]], [room, []])
        self.assertRegex(answer["server_time"], RFC3339)
        self.near(answer["next_poll_ms"], 1, 60000)
        self.assertNotIn("reset", answer)
        cursor, = answer["cursors"]
        self.assertEqual(sorted(cursor), ["at", "data", "seq", "session_id", "user_id"])
        self.assertEqual([cursor["user_id"], cursor["session_id"], cursor["data"]],
                         ["u", "s", {"x": 1, "y": [2.5, "é"]}])
        self.assertEqual(cursor["seq"], reply["seq"])
        self.assertEqual(answer["seq"], reply["seq"])
        self.assertRegex(cursor["at"], RFC3339)
        self.near(cursor["seq"], 1, REVISION_MAX)

    def test_the_last_value_wins(self):
        room = self.room()
        self.grant(room, "a")
        self.grant(room, "b")
        numbers = [self.move(room, {"n": n}, session="ab"[n % 2]) for n in range(20)]
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertEqual(self.cursors(room), {("u", "a"): {"n": 18}, ("u", "b"): {"n": 19}})
        self.arrives(room, {("u", "a"): {"n": 18}, ("u", "b"): {"n": 19}}, self.bases[1])

    def test_nothing_is_stored(self):
        room = self.room()
        self.grant(room)
        tables = self.q("SELECT string_agg(schemaname || '.' || tablename, ' ') FROM pg_tables "
                        "WHERE schemaname = 'stillhere'").split()
        self.move(room, {"needle": "haystack-7316"})
        for table in tables:
            self.assertEqual(self.q("SELECT count(*) FROM %s t WHERE t::text LIKE '%%haystack-7316%%'" % table), "0")
        self.assertEqual([e["kind"] for e in self.events(room)][:1], ["lease.granted"])

    def test_without_a_live_lease(self):
        room = self.room()
        self.problem(self.post(room), 409, "no_live_lease")
        self.grant(room)
        self.problem(self.post(room, session="other"), 409, "no_live_lease")
        self.problem(self.post(room, user="other"), 409, "no_live_lease")
        self.move(room, {})
        self.ok(self.client.close(self.base, room, "u", "s"))
        self.problem(self.post(room), 409, "no_live_lease")
        self.assertEqual(self.cursors(room), {})

    def test_past_its_expiry_a_lease_is_not_live_though_nobody_swept_it(self):
        room = self.room()
        self.grant(room)
        locker = self.psql()
        locker.value("BEGIN")
        locker.value("SELECT 1 FROM stillhere.lease WHERE room_id = %s FOR SHARE" % sql(room))
        # The sweeper passes over a locked row; the row itself can be made older by its holder.
        locker.value("UPDATE stillhere.lease SET expires_at = clock_timestamp() - interval '1 s' WHERE room_id = %s" %
                     sql(room))
        locker.value("COMMIT")
        self.problem(self.post(room), 409, "no_live_lease")

    def test_the_gate_forgets_at_the_expiry(self):
        room = self.room()
        self.grant(room, ttl_ms=300)
        self.move(room, {"n": 1})
        self.assertEqual(len(self.cursors(room)), 1)
        time.sleep(0.35)
        self.problem(self.post(room, {"n": 2}), 409, "no_live_lease")
        self.assertEqual(self.cursors(room), {})

    def test_renewals_keep_a_cursor(self):
        room = self.room()
        self.grant(room, ttl_ms=600)
        self.move(room, {"n": 1})
        self.arrives(room, {("u", "s"): {"n": 1}}, self.bases[1])
        for n in range(10):
            time.sleep(0.2)
            self.grant(room, ttl_ms=600, base=self.bases[n % 2])
            for base in self.bases:
                self.arrives(room, {("u", "s"): {"n": 1}}, base, 0.5)

    def test_revoked(self):
        room = self.room()
        self.grant(room)
        self.move(room, {})
        self.arrives(room, {("u", "s"): {}}, self.bases[1])
        self.revoke(room)
        for base in self.bases:
            self.arrives(room, {}, base, 2)
            self.problem(self.post(room, base=base), 403, "membership_revoked")
        self.q("INSERT INTO stillhere.member (room_id, user_id, granted_at) VALUES (%s, 'u', now())" % sql(room))
        self.problem(self.post(room), 409, "no_live_lease")
        self.q("UPDATE stillhere.member SET revoked_at = now() WHERE room_id = %s" % sql(room))
        self.problem(self.post(room), 403, "membership_revoked")

    def revoke(self, room, session="s", user="u", notify=True):
        """What a revocation writes."""
        key = "room_id = %s AND user_id = %s AND session_id = %s" % (sql(room), sql(user), sql(session))
        self.q("""WITH gone AS (DELETE FROM stillhere.lease WHERE {0} RETURNING *),
               r AS (UPDATE stillhere.room SET revision = revision + 1 WHERE room_id = {1} RETURNING *),
               t AS (INSERT INTO stillhere.tombstone (room_id, user_id, session_id, revision, reason, ended_at, event_id)
                     SELECT room_id, user_id, session_id, revision, 'revoked', now(), 'x' FROM gone),
               e AS (INSERT INTO stillhere.event (room_id, revision, event_id, kind, at, user_id, session_id,
                     lease_revision, user_sessions) SELECT r.room_id, r.revision, 'x', 'membership.revoked', now(),
                     gone.user_id, gone.session_id, gone.revision, 0 FROM gone, r)
               SELECT {2} FROM r""".format(key, sql(room), "pg_notify('stillhere_rooms', json_build_array("
                                           "room_id, revision)::text)" if notify else "1"))

    def test_bad_requests(self):
        room = self.room()
        self.grant(room)
        good = {"user_id": "u", "session_id": "s", "data": {}}
        for change, code, field in (({"user_id": None}, "bad_field", "user_id"),
                                    ({"user_id": "."}, "bad_field", "user_id"),
                                    ({"session_id": 7}, "bad_field", "session_id"),
                                    ({"session_id": ""}, "bad_field", "session_id"),
                                    ({"data": []}, "bad_field", "data"),
                                    ({"data": "x"}, "bad_field", "data"),
                                    ({"data": None}, "bad_field", "data"),
                                    ({"data": {"x": "y" * 1017}}, "bad_field", "data"),
                                    ({"ttl_ms": 1}, "unknown_field", "ttl_ms")):
            self.problem(self.post(room, body=json.dumps(dict(good, **change))), 400, code, field)
        for field in good:
            body = {k: v for k, v in good.items() if k != field}
            self.problem(self.post(room, body=json.dumps(body)), 400, "missing_field", field)
        for body in ("", "x", "[]", '{"user_id":"u","user_id":"u","session_id":"s","data":{}}',
                     '{"user_id":"u","session_id":"s","data":{"a":"\\u0000"}}', b"\xff"):
            self.problem(self.post(room, body=body), 400, "bad_json")
        self.assertEqual(self.post(room, {"x": "y" * 1016}).status, 202)
        self.assertEqual(self.cursors(room), {("u", "s"): {"x": "y" * 1016}})
        self.problem(self.client.request(self.base, "POST", self.path(room) + "?since=1", body="{}", headers=JSON), 400)
        reply = self.client.request(self.base, "PUT", self.path(room), body="{}", headers=JSON)
        self.problem(reply, 405)
        self.assertEqual(sorted(reply.headers["allow"].split(", ")), ["GET", "HEAD", "OPTIONS", "POST"])

    def test_content_types(self):
        room = self.room()
        self.grant(room)
        for bad in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", "application", ""):
            self.problem(self.post(room, headers={"Content-Type": bad}), 415)
        self.problem(self.post(room, headers={}), 415)
        for good in ("application/json", "Application/JSON", "application/json; charset=utf-8", "application/json ;x=y"):
            self.assertEqual(self.post(room, headers={"Content-Type": good}).status, 202)

    def test_bad_parameters(self):
        room = self.room()
        for query in ("since=x", "since=-1", "since=9007199254740992", "since=", "wait_ms=x", "kinds=a", "since=1&since=1"):
            self.problem(self.client.get(self.base, self.path(room) + "?" + query), 400)

    def test_odd_names(self):
        room, user, session = self.room("a/b:c é"), 'ü"1\\', "tab %2F ?&"
        self.ok(self.hb(self.base, room, user, session, 1))
        self.move(room, {"k\"": "\n"}, user=user, session=session)
        for base in self.bases:
            self.arrives(room, {(user, session): {"k\"": "\n"}}, base)

    def test_a_known_lease_costs_no_query(self):
        room = self.room()
        self.grant(room)
        self.move(room, {"n": 0})
        before = self.reads()
        for n in range(200):
            self.move(room, {"n": n})
        self.assertLess(self.reads() - before, 40)

    def reads(self):
        """Scans of the table of leases' key, by everybody."""
        self.q("SELECT pg_stat_force_next_flush()")
        return int(self.q("SELECT idx_scan FROM pg_stat_user_tables WHERE relname = 'lease'"))

    # -- watching ------------------------------------------------------------------------------------------------------

    def test_nobody_here(self):
        room = self.room()
        for query in ({}, {"since": 5}, {"since": REVISION_MAX}):
            answer = self.look(room, **query)
            self.assertEqual([answer["cursors"], answer["gone"]], [[], []])
        self.assertTrue(answer["reset"])
        self.assertEqual(self.look(room, since=answer["seq"], wait_ms=0)["cursors"], [])
        reply = self.client.request(self.base, "HEAD", self.path(room))
        self.assertEqual([reply.status, reply.body], [200, b""])

    def test_since(self):
        room = self.room()
        for session in "abc":
            self.grant(room, session)
        first = [self.move(room, {"n": n}, session=s) for n, s in enumerate("abc")]
        self.assertEqual(self.cursors(room, since=first[0], wait_ms=0), {("u", "b"): {"n": 1}, ("u", "c"): {"n": 2}})
        answer = self.look(room, since=first[2], wait_ms=0)
        self.assertEqual([answer["cursors"], answer["seq"]], [[], first[2]])
        self.move(room, {"n": 3}, session="a")
        answer = self.look(room, since=first[2])
        self.assertEqual([c["session_id"] for c in answer["cursors"]], ["a"])
        answer = self.look(room, since=first[0])
        self.assertEqual([c["session_id"] for c in answer["cursors"]], ["b", "c", "a"], "in the order of seq")
        self.assertNotIn("reset", answer)
        for since in (1, first[0] - (1 << 32), answer["seq"] + (1 << 32), REVISION_MAX):
            answer = self.look(room, since=since)
            self.assertTrue(answer["reset"], since)
            self.assertEqual(len(answer["cursors"]), 3)

    def test_a_waiting_poll_is_woken(self):
        room = self.room()
        self.grant(room)
        polls = [self.waits(room, self.look(room, base)["seq"], base) for base in self.bases]
        polls += [self.waits(room, 0, base) for base in self.bases]
        started = time.monotonic()
        self.move(room, {"n": 1})
        for poll in polls:
            answer = self.answer(poll, 5)
            self.assertEqual([c["data"] for c in answer["cursors"]], [{"n": 1}])
            self.assertNotIn("reset", answer)
        self.assertLess(time.monotonic() - started, self.within(2))

    def test_other_rooms_do_not_wake(self):
        room, other = self.room(), self.room()
        self.grant(room)
        self.grant(other)
        self.move(room, {})
        poll = self.waits(room, self.look(room)["seq"], wait_ms=1000)
        for n in range(10):
            self.move(other, {"n": n})
        answer = self.answer(poll, 5)
        self.assertEqual(answer["cursors"], [])

    def test_many_packets_are_few_replies(self):
        room = self.room()
        self.grant(room)
        seq, replies = self.move(room, {"n": 0}), 0
        stop = threading.Event()
        sender = self.background(self.hammer, room, self.base, stop)
        began = time.monotonic()
        while time.monotonic() - began < 1:
            answer = self.look(room, since=seq)
            seq, replies = answer["seq"], replies + 1
        seconds = time.monotonic() - began
        stop.set()
        self.assertGreater(sender.result(10), 40)
        self.near(replies, 3, 20 * seconds + 2)

    def hammer(self, room, base, stop, session="s"):
        """Sends packets without a pause until told to stop. @return how many were taken"""
        taken = 0
        while not stop.is_set():
            taken += self.post(room, {"n": taken}, session=session, base=base).status == 202
        return taken

    # -- the end -------------------------------------------------------------------------------------------------------

    def test_gone_with_the_close(self):
        room = self.room()
        self.grant(room)
        self.grant(room, "t")
        self.move(room, {}, session="t")
        self.move(room, {})
        seqs = []
        for base in self.bases:
            self.arrives(room, {("u", "s"): {}, ("u", "t"): {}}, base)
            seqs.append(self.look(room, base)["seq"])
        polls = [self.waits(room, seq, base) for seq, base in zip(seqs, self.bases)]
        self.ok(self.client.close(self.bases[1], room, "u", "s"))
        for poll, seq, base in zip(polls, seqs, self.bases):
            answer = self.answer(poll, 5)
            self.assertEqual([answer["cursors"], answer["gone"]], [[], [{"user_id": "u", "session_id": "s"}]])
            self.assertGreater(answer["seq"], seq)
            self.assertEqual(self.cursors(room, base), {("u", "t"): {}})
            again = self.look(room, base, since=seq)
            self.assertEqual(again["gone"], [{"user_id": "u", "session_id": "s"}])
            self.assertEqual(self.look(room, base, since=answer["seq"], wait_ms=0)["gone"], [])

    def test_gone_with_the_expiry(self):
        room = self.room()
        self.grant(room, ttl_ms=700)
        self.move(room, {})
        self.arrives(room, {("u", "s"): {}}, self.bases[1])
        polls = [self.waits(room, self.look(room, base)["seq"], base) for base in self.bases]
        for poll in polls:
            answer = self.answer(poll, 5)
            self.assertEqual(answer["gone"], [{"user_id": "u", "session_id": "s"}])

    def test_gone_with_a_revocation_that_notified_nobody(self):
        room = self.room()
        self.grant(room)
        self.move(room, {})
        self.arrives(room, {("u", "s"): {}}, self.bases[1])
        polls = [self.waits(room, self.look(room, base)["seq"], base) for base in self.bases]
        self.revoke(room, notify=False)
        for poll in polls:
            self.assertEqual(len(self.answer(poll, 3)["gone"]), 1)

    def test_a_new_stay_may_have_one_again(self):
        room = self.room()
        seq = self.look(room)["seq"]
        for n in range(1, 6):
            self.grant(room, revision=n, base=self.bases[n % 2])
            self.move(room, {"n": n}, base=self.bases[(n // 2) % 2])
            for base in self.bases:
                self.arrives(room, {("u", "s"): {"n": n}}, base)
            self.ok(self.client.close(self.bases[n % 2], room, "u", "s"))
            for base in self.bases:
                self.arrives(room, {}, base)
        self.grant(room, revision=10)
        self.move(room, {"n": 10})
        answer = self.look(room, since=seq)
        self.assertEqual([[c["data"] for c in answer["cursors"]], answer["gone"]], [[{"n": 10}], []])

    def test_more_ends_than_are_remembered(self):
        room = self.room()
        self.grant(room, "stays")
        first = self.move(room, {}, session="stays")
        for n in range(70):
            self.grant(room, "s%d" % n)
            self.move(room, {}, session="s%d" % n)
        seq = self.look(room)["seq"]
        for n in range(70):
            self.ok(self.client.close(self.base, room, "u", "s%d" % n))
        answer = self.look(room, since=first)
        self.assertTrue(answer["reset"])
        self.assertEqual([c["session_id"] for c in answer["cursors"]], ["stays"])
        answer = self.look(room, since=seq + 20)
        self.assertNotIn("reset", answer)
        self.assertEqual(len(answer["gone"]), 50)

    def test_packets_in_flight_when_the_lease_ends(self):
        for round_ in range(100):
            room = self.room()
            here, there = self.bases[round_ % 2], self.bases[1 - round_ % 2]
            head = self.grant(room, base=here)["room_revision"]
            stop = threading.Event()
            sender = self.background(self.hammer, room, here, stop)
            watchers = [self.background(self.until_the_end, room, base, head) for base in self.bases]
            seen = self.background(self.follow, room, here, stop)
            self.wait_until(lambda: self.cursors(room, there), 5, "a cursor")
            self.ok(self.client.close(there, room, "u", "s", fresh=True))
            for base, watcher in zip(self.bases, watchers):
                watcher.result(10)
                for _ in range(3):
                    self.assertEqual(self.look(room, base)["cursors"], [], (round_, base))
            time.sleep(0.02)
            stop.set()
            self.assertGreater(sender.result(10), 0)
            told = seen.result(10)
            self.assertEqual(told, ["here"] * told.count("here") + ["gone"] * bool(told))
            for base in self.bases:
                self.assertEqual(self.look(room, base)["cursors"], [], (round_, base))

    def until_the_end(self, room, base, since):
        """Polls the presence until the session's end has been seen."""
        while True:
            answer = self.ok(self.client.poll(base, room, since, wait_ms=5000, fresh=True))
            if any(e["kind"] == "session.closed" for e in answer.get("events", [])):
                return
            since = answer["revision"]

    def follow(self, room, base, stop):
        """What a poller of the cursors was told, in order."""
        told, seq = [], 0
        while not stop.is_set():
            answer = self.look(room, base, since=seq, wait_ms=100)
            seq = answer["seq"] if answer["cursors"] or answer["gone"] else seq or 0
            told += ["gone"] * len(answer["gone"]) + ["here"] * len(answer["cursors"])
        return told

    def test_a_snapshot_that_is_ahead_of_memory(self):
        """A snapshot is read from the database, and may tell of an end before memory has it."""
        for round_ in range(20):
            room = self.room()
            self.grant(room)
            self.move(room, {})
            self.ok(self.client.poll(self.base, room))
            self.assertEqual(len(self.cursors(room)), 1)
            self.revoke(room, notify=False)
            answer = self.ok(self.client.poll(self.base, room, view="count" if round_ % 2 else "users"))
            cursors = self.cursors(room)
            self.assertEqual(answer["revision"], self.head(room))
            self.assertEqual(cursors, {})

    # -- other instances -----------------------------------------------------------------------------------------------

    def test_an_instance_that_starts_later_has_the_cursors(self):
        room = self.room()
        self.grant(room)
        self.move(room, {"n": 1})
        before = self.look(room)["seq"]
        third = self.start_daemon()
        self.arrives(room, {("u", "s"): {"n": 1}}, third.base)
        answer = self.look(room, third.base, since=before)
        self.assertTrue(answer["reset"], "a number of another instance")
        self.assertEqual(len(answer["cursors"]), 1)
        self.stop_now(third)
        again = self.start_daemon()
        answer = self.look(room, again.base, since=answer["seq"])
        self.assertTrue(answer["reset"], "a number from before the restart")
        self.arrives(room, {("u", "s"): {"n": 1}}, again.base)
        self.move(room, {"n": 2}, base=again.base)
        for base in self.bases:
            self.arrives(room, {("u", "s"): {"n": 2}}, base)
        again.kill()
        self.forget(again)
        self.move(room, {"n": 3})
        self.arrives(room, {("u", "s"): {"n": 3}}, self.bases[1])

    def test_a_session_may_change_the_instance(self):
        room = self.room()
        self.grant(room)
        for n in range(19):
            self.move(room, {"n": n}, base=self.bases[n % 2])
        # Packets are ordered by the database's clock, which instances know to some milliseconds, less well when busy.
        self.wait_until(lambda: self.cursors(room, self.bases[0]) == self.cursors(room, self.bases[1]), 5, "one opinion")
        self.pause(0.3 * SLOW)
        self.move(room, {"n": 19}, base=self.bases[1])
        for base in self.bases:
            self.arrives(room, {("u", "s"): {"n": 19}}, base)
        time.sleep(0.3)
        for base in self.bases:
            self.assertEqual(self.cursors(room, base), {("u", "s"): {"n": 19}}, "no older one comes back")

    def test_a_late_notification_brings_nothing_back(self):
        room = self.room()
        answer = self.grant(room)
        self.move(room, {"n": 1})
        self.arrives(room, {("u", "s"): {"n": 1}}, self.bases[1])
        self.ok(self.client.close(self.base, room, "u", "s"))
        self.forge(answer, room, {"n": 2})
        time.sleep(0.3)
        for base in self.bases:
            self.assertEqual(self.cursors(room, base), {})
        self.grant(room, revision=9)
        self.forge(answer, room, {"n": 3})
        time.sleep(0.3)
        for base in self.bases:
            self.assertEqual(self.cursors(room, base), {}, "a packet of the stay before")
        self.move(room, {"n": 4})
        self.forge(answer, room, {"n": 5})
        time.sleep(0.3)
        for base in self.bases:
            self.assertEqual(self.cursors(room, base), {("u", "s"): {"n": 4}})

    def forge(self, answer, room, data):
        """A notification as an instance would have sent it during the stay that `answer` began."""
        stay = int(self.q("SELECT (extract(epoch FROM %s::timestamptz) * 1000000)::bigint" %
                          sql(answer["lease"]["granted_at"])))
        at = int(self.q("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"))
        self.notify({"epoch": answer["epoch"], "from": "forger",
                     "cursors": [[room, "u", "s", stay, at, json.dumps(data)]]})

    def notify(self, payload):
        text = payload if isinstance(payload, str) else json.dumps(payload)
        self.q("SELECT pg_notify('stillhere_cursors', %s)" % sql(text))

    def test_garbage_on_the_channel(self):
        room = self.room()
        epoch = self.grant(room)["epoch"]
        self.move(room, {"n": 1})
        now = int(time.time() * 1e6)
        good = [room, "u", "s", now, now, "{}"]
        self.notify("")
        self.notify("not JSON")
        for cursors in ({}, [7], [good[:5]], [good + [1]], [["", "u", "s", now, now, "{}"]],
                        [["a\nb", "u", "s", now, now, "{}"]], [[room, "u", "s", "1", now, "{}"]],
                        [[room, "u", "s", now, -1, "{}"]], [[room, "u", "s", now, now, {}]],
                        [[room, "u", "s", now, now, "[]"]], [[room, "u", "s", now, now, "{"]],
                        [[room, "u", "s", now, now, '{"a":1}\n']], [[room, "u", "s", now, now, '{"a":1,"a":2}']],
                        [[room, "u", "s", now, now, '{"a":"%s"}' % ("x" * 1024)]]):
            self.notify({"epoch": epoch, "from": "x", "cursors": cursors})
        self.notify({"epoch": "other", "from": "x", "cursors": [good]})
        self.notify({"epoch": epoch, "from": "x", "cursors": [[room, "u", "s", now, now + 10 ** 12, "{}"]]})
        for _ in range(20):
            self.notify({"epoch": epoch, "from": "x", "hello": True, "cursors": []})
        time.sleep(0.3)
        for base in self.bases:
            self.arrives(room, {("u", "s"): {"n": 1}}, base)

    def test_many_sessions_arrive(self):
        room, n = self.room(), 300
        self.client.batch(self.base, [{"room_id": room, "user_id": "u%d" % i, "session_id": "s"} for i in range(n)])
        for i in range(n):
            self.move(room, {"i": i}, user="u%d" % i)
        expected = {("u%d" % i, "s"): {"i": i} for i in range(n)}
        self.assertEqual(self.cursors(room), expected)
        self.arrives(room, expected, self.bases[1], 10)

    # -- streams -------------------------------------------------------------------------------------------------------

    def stream(self, room, base=None, last=None, **query):
        wire = Wire(base or self.base, 20)
        self.addCleanup(wire.close)
        wire.send(("GET %s HTTP/1.0\r\nHost: %s:%d\r\nAccept: text/event-stream\r\n%s\r\n" %
                   ((self.path(room, **query),) + hostport(base or self.base) +
                    ("" if last is None else "Last-Event-ID: %d\r\n" % last,))).encode())
        return wire

    def messages(self, wire, n, seconds=5):
        """The next n messages that have an event, as (event, data, id)."""
        out = []
        deadline = time.monotonic() + self.within(seconds)
        while True:
            while b"\n\n" in wire.data:
                text, wire.data = wire.data.split(b"\n\n", 1)
                fields = dict(line.split(": ", 1) for line in text.decode().splitlines() if ": " in line and line[0] != ":")
                if "id" in fields:
                    wire.last = int(fields["id"])
                if "event" in fields:
                    out.append((fields["event"], json.loads(fields["data"]), fields.get("id")))
            if len(out) >= n or wire.eof:
                return out
            wire._receive(deadline)

    def test_a_stream(self):
        room = self.room()
        self.grant(room)
        seq = self.move(room, {"n": 1})
        wire = self.stream(room)
        (event, cursor, id_), = self.messages(wire, 1)
        self.assertEqual([event, cursor["data"], cursor["seq"], int(id_)], ["cursor", {"n": 1}, seq, seq])
        for n in range(2, 5):
            self.move(room, {"n": n})
            (event, cursor, id_), = self.messages(wire, 1)
            self.assertEqual([event, cursor["data"]], ["cursor", {"n": n}])
        self.ok(self.client.close(self.bases[1], room, "u", "s"))
        self.assertEqual([m[:2] for m in self.messages(wire, 1)], [("gone", {"user_id": "u", "session_id": "s"})])
        self.wait_until(lambda: wire.last > int(id_) or self.messages(wire, 0) is None, 2, "the last id")
        last = wire.last
        wire.close()
        self.grant(room, "t")
        self.move(room, {"n": 9}, session="t")
        wire = self.stream(room, last=last, since=1)
        self.assertEqual([(m[0], m[1]["session_id"]) for m in self.messages(wire, 1)], [("cursor", "t")])
        wire = self.stream(room, last=7)
        self.assertEqual([m[0] for m in self.messages(wire, 2)], ["reset", "cursor"])

    def test_a_bad_last_event_id(self):
        room = self.room()
        wire = self.stream(room, last=REVISION_MAX + 1)
        self.problem(wire.reply(), 400, field="Last-Event-ID")


class Ends(CursorCase):
    """What ends when the server does."""

    autostart = False

    def test_a_stop_answers_polls_and_ends_streams(self):
        one = self.start_daemon()
        room = self.room()
        self.grant(room)
        seq = self.move(room, {})
        poll = self.waits(room, seq)
        wire = Cursors.stream(self, room)
        self.assertEqual(len(Cursors.messages(self, wire, 1)), 1)
        self.stop_now(one)
        self.assertEqual(self.answer(poll)["cursors"], [])
        wire.until_eof(5)

    def test_without_a_database(self):
        one = self.start_daemon()
        room = self.room()
        self.grant(room)
        self.move(room, {"n": 1})
        self.q("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'stillhered%' "
               "AND datname = current_database()")
        self.allow_5xx = True
        self.wait_until(lambda: self.post(room, {"n": 2}).status == 202, 10, "the database again")
        self.wait_until(lambda: self.client.get(one.base, self.path(room)).status == 200, 10, "the room again")
        self.assertEqual(self.cursors(room), {("u", "s"): {"n": 2}})
