# SPDX-License-Identifier: Apache-2.0
"""Attendance: a record that only grows, of what people said themselves and never of leases."""

import csv
import io

from harness.case import RFC3339, SLOW, Case, Wire, json, quote, raw, sql, steps
from harness.pg import SqlError
from harness.tokens import Guarded, bearer

ROW = {"id", "room_id", "user_id", "session_id", "action", "note", "idempotency_key", "request_id", "by", "at"}


class AttendanceCase(Case):
    """Calls that the classes share."""

    def path(self, room, query=""):
        return "/rooms/%s/attendance%s" % (quote(room), query)

    def post(self, room, user="u", action="sign_in", key=None, base=None, headers=None, **fields):
        document = dict({"user_id": user, "action": action}, **fields)
        headers = dict({"Content-Type": "application/json"}, **(headers or {}))
        if key is not None:
            headers["Idempotency-Key"] = key
        return self.client.request(base or self.base, "POST", self.path(room), body=json.dumps(document),
                                   headers=headers)

    def added(self, room, *args, **kwargs):
        reply = self.post(room, *args, **kwargs)
        self.assertEqual(reply.status, 201, reply)
        return reply.json()

    def listed(self, room, query="", base=None):
        return self.ok(self.client.get(base or self.base, self.path(room, query)))


class Attendance(AttendanceCase):
    config = {"ttl_min_ms": 100, "offline_grace_ms": 60000}

    def test_a_sign_in_is_a_row(self):
        room = self.room()
        row = self.added(room, "an", "sign_in", session_id="tab-1", note="in time", key="k-1",
                         headers={"X-Request-Id": "req-1"})
        self.assertEqual(set(row), ROW)
        self.assertEqual([row[k] for k in ("room_id", "user_id", "session_id", "action", "note", "idempotency_key",
                                           "request_id", "by")],
                         [room, "an", "tab-1", "sign_in", "in time", "k-1", "req-1", None])
        self.assertRegex(row["at"], RFC3339)
        self.assertEqual(self.listed(room)["attendance"], [row])
        bare = self.added(room, "an", "sign_out")
        self.assertEqual([bare["session_id"], bare["note"], bare["idempotency_key"]], [None, None, None])
        self.assertGreater(bare["id"], row["id"])
        stored = json.loads(self.q("SELECT json_agg(a ORDER BY id) FROM stillhere.attendance a WHERE room_id = %s" %
                                   sql(room)))
        self.assertEqual([set(r) for r in stored], [ROW, ROW])
        self.assertEqual([r["id"] for r in stored], [row["id"], bare["id"]])

    def test_it_makes_no_lease_and_no_event(self):
        room = self.room()
        self.added(room, "an", "sign_in", session_id="tab-1")
        self.added(room, "an", "sign_out", session_id="tab-1")
        for table in ("lease", "event", "tombstone", "room_user", "member"):
            self.assertEqual(self.count(table, room_id=room), 0, table)

    def test_leases_make_no_attendance(self):
        room = self.room()
        self.grant(room, "a", 1, 300)
        self.grant(room, "b", 1)
        self.grant(room, "b", 2)
        self.ok(self.client.close(self.base, room, "u", "b"))
        self.wait_until(lambda: self.events(room, kind="lease.expired"), 4, "the expiry")
        self.grant(room, "c", 1)
        self.ok(self.client.request(self.base, "DELETE", "/rooms/%s/members/u" % quote(room)))
        self.assertEqual(self.count("attendance", room_id=room), 0)

    def test_a_sign_out_closes_its_session(self):
        room = self.room()
        self.grant(room, "a", 5)
        self.grant(room, "b", 5)
        head = self.head(room)
        row = self.added(room, "u", "sign_out", session_id="a", headers={"X-Request-Id": "out-1"})
        news = [e for e in self.events(room) if e["revision"] > head]
        self.assertEqual(steps(news), [(head + 1, "session.closed", "a")])
        self.assertEqual(news[0]["request_id"], "out-1")
        self.assertEqual(row["request_id"], "out-1")
        self.assertIsNone(self.stored(room, "a"))
        self.assertEqual([self.tombstone(room, "a")[k] for k in ("reason", "revision")], ["closed", 5])
        self.problem(self.hb(self.base, room, "u", "a"), 410, "session_closed")
        self.assertIsNotNone(self.stored(room, "b"))
        seen = self.ok(self.poll(self.base, room, head, wait_ms=0))
        self.assertEqual(steps(seen["events"]), [(head + 1, "session.closed", "a")])
        lines = [json.loads(line) for line in self.daemons[0].output().splitlines()]
        closes = [d for d in lines if d["what"] == "close" and d["room_id"] == room]
        self.assertEqual([(d["decision"], d["event_id"], d["request_id"]) for d in closes],
                         [("accepted", news[0]["event_id"], "out-1")])

    def test_a_sign_in_and_a_sign_out_without_a_session_close_nothing(self):
        room = self.room()
        self.grant(room, "a", 5)
        self.added(room, "u", "sign_in", session_id="a")
        self.added(room, "u", "sign_out")
        self.added(room, "u", "sign_out", session_id="other")
        self.assertIsNotNone(self.stored(room, "a"))
        self.assertEqual(self.events(room, kind="session.closed"), [])

    def test_who_was_revoked_still_signs_out(self):
        room = self.room()
        self.grant(room, "a", 5)
        self.ok(self.client.request(self.base, "DELETE", "/rooms/%s/members/u" % quote(room)))
        self.added(room, "u", "sign_out", session_id="a")
        self.assertEqual(self.tombstone(room, "a")["reason"], "revoked")
        self.assertEqual(self.events(room, kind="session.closed"), [])

    def test_the_same_key_gives_the_same_row(self):
        room = self.room()
        self.grant(room, "a", 5)
        first = self.added(room, "u", "sign_out", session_id="a", note="x", key="k")
        self.grant(room, "a", 6)
        again = self.post(room, "u", "sign_out", session_id="a", note="x", key="k")
        self.assertEqual([again.status, again.json()], [200, first])
        self.assertIsNotNone(self.stored(room, "a"), "nothing is done twice")
        self.assertEqual(self.count("attendance", room_id=room), 1)
        other = self.room("other")
        self.assertNotEqual(self.added(other, "u", "sign_out", session_id="a", note="x", key="k")["id"], first["id"])

    def test_the_same_key_with_other_content_is_a_conflict(self):
        room = self.room()
        self.added(room, "u", "sign_in", session_id="a", note="x", key="k")
        for user, action, fields in (("u", "sign_out", dict(session_id="a", note="x")),
                                     ("u", "sign_in", dict(session_id="b", note="x")),
                                     ("u", "sign_in", dict(note="x")),
                                     ("u", "sign_in", dict(session_id="a", note="y")),
                                     ("u", "sign_in", dict(session_id="a"))):
            with self.subTest(user=user, action=action, fields=fields):
                self.problem(self.post(room, user, action, key="k", **fields), 409, "idempotency_conflict")
        self.assertEqual(self.count("attendance", room_id=room), 1)

    def test_nobody_can_use_up_the_keys_of_another(self):
        room = self.room()
        theirs = self.added(room, "v", "sign_in", key="day-1")
        mine = self.added(room, "u", "sign_in", key="day-1")
        self.assertNotEqual(theirs["id"], mine["id"])
        again = self.post(room, "u", "sign_in", key="day-1")
        self.assertEqual([again.status, again.json()["id"]], [200, mine["id"]])

    def test_a_key_with_a_nul_is_no_key(self):
        room = self.room()
        body = json.dumps({"user_id": "u", "action": "sign_in"}).encode()
        with Wire(self.base) as wire:
            wire.send(b"POST /rooms/%s/attendance HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\0one\r\n"
                      b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (room.encode(), len(body), body))
            self.problem(wire.reply(), 400, "bad_framing")
        self.assertEqual(self.count("attendance", room_id=room), 0)

    def test_without_a_key_each_call_is_a_row(self):
        room = self.room()
        ids = [self.added(room, headers={"X-Request-Id": "same"})["id"] for _ in range(3)]
        self.assertEqual(len(set(ids)), 3)

    def test_bad_input_adds_nothing(self):
        room = self.room()
        good = {"user_id": "u", "action": "sign_in"}
        cases = [({"action": "sign_in"}, "missing_field", "user_id"), ({"user_id": "u"}, "missing_field", "action")]
        for name, value in (("user_id", ""), ("user_id", 5), ("user_id", ".."), ("user_id", None), ("action", "SIGN_IN"),
                            ("action", 1), ("action", ""), ("session_id", None), ("session_id", "x" * 129),
                            ("note", 1), ("note", None), ("note", "x" * 1025), ("note", "é" * 513)):
            cases.append((dict(good, **{name: value}), "bad_field", name))
        cases.append((dict(good, at="2026-01-01T00:00:00Z"), "unknown_field", "at"))
        cases.append((dict(good, id=1), "unknown_field", "id"))
        headers = {"Content-Type": "application/json"}
        for document, code, field in cases:
            with self.subTest(document=document):
                self.problem(self.client.request(self.base, "POST", self.path(room), body=json.dumps(document),
                                                 headers=headers), 400, code, field)
        for body in ("", "[]", "{", '{"user_id":"u","user_id":"u","action":"sign_in"}', '{"user_id":"u\\u0000"}'):
            with self.subTest(body=body):
                self.problem(self.client.request(self.base, "POST", self.path(room), body=body.encode(),
                                                 headers=headers), 400, "bad_json")
        for kind in (None, "text/plain", "application/jsonx", "application/x-www-form-urlencoded"):
            with self.subTest(kind=kind):
                self.problem(self.client.request(self.base, "POST", self.path(room), body=json.dumps(good),
                                                 headers={"Content-Type": kind} if kind else {}), 415,
                             "unsupported_media_type")
        for key in ("", " ", "a b", "x" * 129, "é", "a\tb"):
            with self.subTest(key=key):
                self.problem(self.post(room, key=key.encode()), 400, "bad_header", "Idempotency-Key")
        for query in ("?limit=0", "?limit=1001", "?after=-1", "?after=x", "?after=", "?format=xml", "?user_id=",
                      "?user_id=..", "?since=1", "?limit=1&limit=1"):
            with self.subTest(query=query):
                self.problem(self.client.get(self.base, self.path(room, query)), 400, "bad_parameter")
        self.assertEqual(self.count("attendance", room_id=room), 0)
        self.assertEqual(self.added(room, note="é" * 512, key="k" * 128)["note"], "é" * 512)

    def test_two_keys_are_none(self):
        room = self.room()
        body = b'{"user_id":"u","action":"sign_in"}'
        reply = raw(self.base, b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                    b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n\r\n%s" % (self.path(room).encode(), len(body), body))
        self.problem(reply, 400, "bad_header", "Idempotency-Key")
        self.assertEqual(self.count("attendance", room_id=room), 0)

    def test_rows_can_be_neither_changed_nor_deleted(self):
        room = self.room()
        row = self.added(room)
        psql = self.psql()
        for statement in ("UPDATE stillhere.attendance SET note = 'x'", "DELETE FROM stillhere.attendance",
                          "UPDATE stillhere.attendance SET action = 'sign_out' WHERE id = %d" % row["id"],
                          "TRUNCATE stillhere.attendance", "TRUNCATE stillhere.attendance RESTART IDENTITY CASCADE",
                          "INSERT INTO stillhere.attendance (room_id, id, user_id, action) VALUES (%s, %d, 'u', 'sign_in')"
                          % (sql(room), row["id"]),
                          "WITH x AS (DELETE FROM stillhere.attendance RETURNING 1) SELECT count(*) FROM x",
                          "MERGE INTO stillhere.attendance a USING (SELECT 1) x ON true WHEN MATCHED THEN DELETE"):
            for role in ("origin", "replica"):
                with self.subTest(statement=statement, role=role):
                    psql.run("SET session_replication_role = %s" % role)
                    with self.assertRaises(SqlError):
                        psql.run(statement)
        self.assertEqual(self.listed(room)["attendance"], [row])


class Pages(AttendanceCase):
    """Reading: pages, filters, export."""

    def test_pages_and_filter(self):
        room = self.room()
        rows = [self.added(room, "u%d" % (i % 3), note="n%d" % i) for i in range(7)]
        self.added(self.room("other"))
        found, after = [], 0
        while after is not None:
            page = self.listed(room, "?limit=3&after=%d" % after)
            self.assertEqual(page["room_id"], room)
            self.assertLessEqual(len(page["attendance"]), 3)
            found += page["attendance"]
            self.assertIn(page["next"], (None, found[-1]["id"]))
            after = page["next"]
        self.assertEqual(found, rows)
        mine = self.listed(room, "?user_id=u1&limit=2")
        self.assertEqual(mine["attendance"], [r for r in rows if r["user_id"] == "u1"])
        self.assertIsNone(mine["next"])
        self.assertEqual(self.listed(room, "?after=%d" % rows[-1]["id"])["attendance"], [])
        self.assertEqual(self.listed(self.room("never"))["attendance"], [])

    def export(self, room, query="", accept=None):
        reply = self.client.get(self.base, self.path(room, query), headers={"Accept": accept} if accept else {})
        self.assertEqual(reply.status, 200, reply)
        return reply.headers["content-type"], reply.body.decode()

    def test_the_form_is_asked_for_by_name_or_by_accept(self):
        room = self.room()
        self.added(room)
        for query, accept, kind in (("", None, "application/json"), ("", "*/*", "application/json"),
                                    ("", "text/html, */*;q=0.8", "application/json"),
                                    ("", "application/x-ndjson", "application/x-ndjson"),
                                    ("", "text/csv", "text/csv"), ("", "text/*", "text/csv"),
                                    ("", "text/csv;q=0.5, application/json", "application/json"),
                                    ("", "text/csv, application/json;q=0.5", "text/csv"),
                                    ("?format=jsonl", None, "application/x-ndjson"),
                                    ("?format=csv", "application/json", "text/csv"),
                                    ("?format=json", "text/csv", "application/json")):
            with self.subTest(query=query, accept=accept):
                self.assertEqual(self.export(room, query, accept)[0].split(";")[0], kind)

    def test_json_lines(self):
        room = self.room()
        rows = [self.added(room, note="a\nb\u2028\"c\"") for _ in range(3)]
        text = self.export(room, "?format=jsonl")[1]
        self.assertTrue(text.endswith("\n"))
        self.assertEqual([json.loads(line) for line in text.split("\n")[:-1]], rows)
        self.assertEqual(self.export(self.room("never"), "?format=jsonl")[1], "")

    def test_csv_is_safe(self):
        room = self.room()
        notes = ["plain", 'say "hi", then\r\ngo', "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "  =1", "'=1", "a=1", "", " x ",
                 "é;ü", "\n-2"]
        rows = [self.added(room, "=user", note=note) for note in notes] + [self.added(room)]
        text = self.export(room, "?format=csv")[1]
        self.assertTrue(text.endswith("\r\n"))
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
        self.assertEqual(lines[0], ["id", "room_id", "user_id", "session_id", "action", "note", "idempotency_key",
                                    "request_id", "by", "at"])
        self.assertEqual(len(lines), len(rows) + 1)
        dangerous = {"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "  =1", "\n-2"}
        for line, row in zip(lines[1:], rows):
            note = row["note"] or ""
            self.assertEqual(line[5], "'" + note if note in dangerous else note)
            self.assertEqual(line[2], "'=user" if row["user_id"] == "=user" else "u")
            self.assertEqual([line[0], line[9]], [str(row["id"]), row["at"]])
        self.assertEqual(self.export(self.room("never"), "?format=csv")[1].count("\r\n"), 1)

    def test_a_large_page_is_compressed(self):
        room = self.room()
        for _ in range(20):
            self.added(room, note="x" * 200)
        reply = self.client.get(self.base, self.path(room, "?format=csv"), headers={"Accept-Encoding": "gzip"})
        self.assertEqual(reply.headers.get("content-encoding"), "gzip")


class Together(AttendanceCase):
    """Several instances, and locks."""

    instances = 2
    weight = 3
    config = {"ttl_min_ms": 100}

    def test_the_same_key_at_once_is_one_row(self):
        for turn in range(5):
            room = self.room()
            calls = [self.background(self.post, room, "u", "sign_in", "k", self.bases[i % 2]) for i in range(8)]
            replies = [self.answer(call) for call in calls]
            self.assertEqual(sorted(r.status for r in replies), [200] * 7 + [201])
            self.assertEqual(len({r.body for r in replies}), 1)
            self.assertEqual(self.count("attendance", room_id=room), 1)

    def test_whoever_pages_misses_none(self):
        """Rows of many writers, while a reader goes on after the last one that it saw: it ends with all of them."""
        room = self.room()
        stop = []

        def reader():
            seen, after = [], 0
            while True:
                last = bool(stop)
                page = self.listed(room, "?limit=1000&after=%d" % after, base=self.bases[1])["attendance"]
                seen += [r["id"] for r in page]
                after = seen[-1] if seen else 0
                if last and not page:
                    return seen
        reading = self.background(reader)

        def writer(number):
            return [self.added(room, "u%d" % number, base=self.bases[number % 2])["id"] for _ in range(25)]
        writers = [self.background(writer, i) for i in range(6)]
        written = sorted(i for w in writers for i in self.answer(w, 30))
        stop.append(True)
        self.assertEqual(self.answer(reading), written)

    def test_a_row_is_not_read_before_an_earlier_one(self):
        """Whoever adds to a room waits for the one before, who may have an id already."""
        room = self.room()
        psql = self.psql()
        psql.run("BEGIN")
        psql.run("SELECT pg_advisory_xact_lock(1635021925, hashtext(%s))" % sql(room))
        first = int(psql.value("INSERT INTO stillhere.attendance (room_id, user_id, action) VALUES (%s, 'u', 'sign_in')"
                               " RETURNING id" % sql(room)))
        waiting = self.background(self.post, room)
        self.pause(0.5)
        self.assertFalse(waiting.done())
        self.added(self.room("free"))
        psql.run("COMMIT")
        reply = self.answer(waiting)
        self.assertEqual(reply.status, 201, reply)
        self.assertGreater(reply.json()["id"], first)

    def test_a_locked_lease_is_503_in_time_and_adds_nothing(self):
        self.allow_5xx = True
        room = self.room()
        self.grant(room, "a", 5)
        psql = self.psql()
        psql.run("BEGIN")
        psql.run("SELECT 1 FROM stillhere.lease WHERE room_id = %s FOR UPDATE" % sql(room))
        reply = self.post(room, "u", "sign_out", session_id="a", key="k")
        self.problem(reply, 503, "unavailable")
        self.assertLess(reply.seconds, 5 * SLOW)
        psql.run("COMMIT")
        self.assertEqual(self.count("attendance", room_id=room), 0)
        self.assertIsNotNone(self.stored(room, "a"))
        self.added(room, "u", "sign_out", session_id="a", key="k")
        self.assertIsNone(self.stored(room, "a"))

    def test_a_lost_connection_adds_no_second_row(self):
        self.allow_log = [r"database|connection|terminat"]
        room = self.room()
        for i in range(3):
            self.added(room, note="warm %d" % i)
        self.q("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%changer%'"
               " AND datname = current_database()")
        for i in range(4):
            self.assertEqual(self.post(room, note="n %d" % i, base=self.bases[0]).status, 201)
        self.assertEqual(self.count("attendance", room_id=room), 7)


class Rights(AttendanceCase, Guarded):
    """Who may write for whom, and who reads: the body decides what the path does not tell."""

    def test_who_writes_for_whom(self):
        room = self.room()
        tokens = {"own": self.key.token(sub="an", rooms=[room]),
                  "session": self.key.token(sub="an", sid="tab-1", rooms=[room]),
                  "keeper": self.key.token(sub="an", rooms=[room], scope="members:write"),
                  "both": self.key.token(sub="an", rooms=[room], scope="presence:write members:write"),
                  "gateway": self.key.token(sub="an", rooms=[room], scope="gateway"),
                  "reader": self.key.token(sub="an", rooms=[room], scope="presence:read"),
                  "elsewhere": self.key.token(sub="an", rooms=["x" + room], scope="admin")}
        mine, other = dict(user="an", session_id="tab-1"), dict(user="bo", session_id="tab-1")
        expected = {"own": (201, 403), "session": (201, 403), "keeper": (201, 201), "both": (201, 201),
                    "gateway": (201, 201), "reader": (403, 403), "elsewhere": (403, 403)}
        rows = 0
        for name, statuses in expected.items():
            for call, status in zip((mine, other), statuses):
                with self.subTest(name=name, call=call):
                    reply = self.post(room, action="sign_in", headers=bearer(tokens[name]), **call)
                    self.assertEqual(reply.status, status, reply)
                    rows += status == 201
                    if status == 201:
                        self.assertEqual(reply.json()["by"], "an")
        self.problem(self.post(room, "an", session_id="tab-2", headers=bearer(tokens["session"])), 403,
                     "not_your_session")
        self.problem(self.post(room, "bo", headers=bearer(tokens["own"])), 403, "not_your_user")
        self.problem(self.post(room, "an"), 401, "no_credential")
        self.assertEqual(self.count("attendance", room_id=room), rows)
        for name, status in (("own", 403), ("gateway", 403), ("reader", 403), ("keeper", 200), ("elsewhere", 403)):
            with self.subTest(name=name):
                self.assertEqual(self.client.get(self.base, self.path(room), headers=bearer(tokens[name])).status, status)

    def test_a_sign_out_for_somebody_else_closes_nothing_unless_allowed(self):
        room = self.room()
        own = self.key.token(sub="an", rooms=[room])
        self.ok(self.hb(self.base, room, "an", "tab-1", headers=bearer(own)))
        stranger = self.key.token(sub="bo", rooms=[room])
        self.problem(self.post(room, "an", "sign_out", session_id="tab-1", headers=bearer(stranger)), 403,
                     "not_your_user")
        self.assertIsNotNone(self.stored(room, "tab-1", "an"))
        self.assertEqual(self.post(room, "an", "sign_out", session_id="tab-1", headers=bearer(own)).status, 201)
        self.assertIsNone(self.stored(room, "tab-1", "an"))
