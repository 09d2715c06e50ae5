# SPDX-License-Identifier: Apache-2.0
"""HTTP as strangers speak it: framing, paths, queries, JSON, limits (CONTRACT §1, §9, §10)."""

import os
import subprocess

from harness.case import (REVISION_MAX, SLOW, Case, Flock, Wire, all_replies, json, lease, presence_path, quote, raw, sql,
                          steps, time)
from harness.daemon import daemon_environment, free_port, program
from harness.process import descriptors


def message(request_line, body=b"", *headers):
    """A request as bytes; Content-Length is added when there is a body."""
    lines = [request_line, "Host: x"] + list(headers)
    if body and not any(h.lower().startswith(("content-length", "transfer-encoding")) for h in headers):
        lines.append("Content-Length: %d" % len(body))
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def heartbeat(room, session, revision):
    return json.dumps(lease(room, "u", session, revision)).encode()


def chunked(*parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"


class Framing(Case):
    """Where a request ends and the next one begins."""

    def served(self, data, timeout=5):
        """What the server answers to bytes until it closes or falls silent. @return (statuses, closed)"""
        with Wire(self.base) as wire:
            wire.send(data)
            closed = True
            try:
                wire.until_eof(timeout)
            except TimeoutError:
                closed = False
            return [r.status for r in all_replies(wire.data) if r.status >= 200], closed

    def refused(self, data, statuses=(400,), smuggled=None):
        """One refusal, then the end of the connection; nothing of the rest is taken as a request."""
        got, closed = self.served(data)
        self.assertEqual(len(got), 1, got)
        self.assertIn(got[0], statuses)
        self.assertTrue(closed, "the connection must end: nobody knows where the next request begins")
        if smuggled:
            self.assertEqual(self.count("lease", room_id=smuggled), 0, "the smuggled request was served")

    def test_two_content_lengths(self):
        room = self.room()
        inner = message("PUT /leases HTTP/1.1", heartbeat(room, "smuggled", 1))
        self.refused(message("PUT /leases HTTP/1.1", b"abc" + inner, "Content-Length: 3",
                             "Content-Length: %d" % (len(inner) + 3)), smuggled=room)
        self.refused(message("PUT /leases HTTP/1.1", b"abc" + inner, "Content-Length: 3, 3"), (400, 413), room)

    def test_content_length_and_transfer_encoding(self):
        room = self.room()
        inner = message("PUT /leases HTTP/1.1", heartbeat(room, "smuggled", 1))
        self.refused(message("PUT /leases HTTP/1.1", b"0\r\n\r\n" + inner, "Content-Length: 5",
                             "Transfer-Encoding: chunked"), smuggled=room)
        self.refused(message("PUT /leases HTTP/1.1", b"0\r\n\r\n" + inner, "Transfer-Encoding: chunked",
                             "Content-Length: %d" % (len(inner) + 5)), smuggled=room)

    def test_odd_transfer_encodings(self):
        for value in ("gzip, chunked", "identity", "xchunked", "chunked, identity", "gzip", "chunked;x=1", "\tchunked\t,"):
            room = self.room()
            body = chunked(heartbeat(room, "s", 1))
            with self.subTest(value=value):
                self.refused(message("PUT /leases HTTP/1.1", body, "Transfer-Encoding: " + value), (400, 501), room)
        room = self.room()
        self.refused(message("PUT /leases HTTP/1.1", chunked(heartbeat(room, "s", 1)), "Transfer-Encoding: chunked",
                             "Transfer-Encoding: identity"), (400, 501), room)

    def test_a_bodiless_get_with_a_body_is_framed_right(self):
        got, _ = self.served(message("GET /healthz HTTP/1.1", b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n") +
                             message("GET /healthz HTTP/1.1", b"", "Connection: close"))
        self.assertIn(got, ([200, 200], [400], [413]), "the body is not a request")

    def test_bad_content_lengths(self):
        for value in ("-1", "abc", "1e3", "0x10", "99999999999999999999999", "+5", ""):
            with self.subTest(value=value), Wire(self.base) as wire:
                wire.send(message("PUT /leases HTTP/1.1", b"{}xxxxxxxxxxxxxx", "Content-Length: " + value))
                try:
                    wire.until_eof(5)
                except TimeoutError:
                    pass
                self.assertIn(wire.data[:12], (b"HTTP/1.1 400", b"HTTP/1.1 413", b"HTTP/1.0 400", b""), wire.data[:80])
        self.assertEqual(self.client.get(self.base, "/healthz").status, 200)

    def test_hosts(self):
        reply = raw(self.base, b"GET /healthz HTTP/1.1\r\n\r\n")
        self.assertEqual(reply.status, 400, "HTTP/1.1 without Host")
        reply = raw(self.base, b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
        self.assertEqual(reply.status, 400, "two Hosts")

    def test_chunked_bodies(self):
        room = self.room()
        body = heartbeat(room, "a", 1)
        for session, parts in (("a", [body]), ("b", [bytes([c]) for c in heartbeat(room, "b", 1)])):
            reply = raw(self.base, message("PUT /leases HTTP/1.1", chunked(*parts), "Transfer-Encoding: chunked"))
            self.assertEqual([reply.status, reply["decision"]], [200, "accepted"])
        padded = heartbeat(room, "c", 1) + b" " * 2900
        reply = raw(self.base, message("PUT /leases HTTP/1.1", chunked(*[bytes([c]) for c in padded]),
                                       "Transfer-Encoding: chunked"))
        self.assertEqual(reply.status, 200)
        self.assertEqual(self.count("lease", room_id=room), 3)
        reply = raw(self.base, message("PUT /leases HTTP/1.1", b"0\r\n\r\n", "Transfer-Encoding: chunked"))
        self.problem(reply, 400)
        with Wire(self.base) as wire:
            wire.send(message("PUT /leases HTTP/1.1", b"zz\r\n" + heartbeat(room, "d", 1) + b"\r\n0\r\n\r\n",
                              "Transfer-Encoding: chunked"))
            data = wire.until_eof(20)
        self.assertIn(data[9:12], (b"400", b""), data[:80])
        self.assertIsNone(self.stored(room, "d"))

    def test_bytes_one_at_a_time(self):
        room = self.room()
        data = message("PUT /leases HTTP/1.1", heartbeat(room, "s", 1))
        with Wire(self.base) as wire:
            for i in range(len(data)):
                wire.send(data[i:i + 1])
            self.assertEqual(wire.reply()["decision"], "accepted")

    def test_pipelined_requests_are_answered_in_order(self):
        room = self.room()
        with Wire(self.base) as wire:
            wire.send(message("PUT /leases HTTP/1.1", heartbeat(room, "s", 1)) +
                      message("PUT /leases HTTP/1.1", heartbeat(room, "s", 2)) +
                      message("GET /rooms/%s/leases HTTP/1.1" % room) + message("GET /nowhere HTTP/1.1") +
                      message("GET %s HTTP/1.1" % presence_path(room, 0)))
            first, second, rows, nowhere, presence = [wire.reply() for _ in range(5)]
        self.assertEqual([first["lease"]["revision"], second["lease"]["revision"]], [1, 2])
        self.assertEqual([r["revision"] for r in rows["leases"]], [2])
        self.assertEqual(nowhere.status, 404)
        self.assertEqual(steps(presence["events"]), [(1, "lease.granted", "s"), (2, "user.online", None)])

    def test_a_request_behind_a_parked_poll_waits_for_it(self):
        room = self.room()
        self.grant(room, "a", 1)
        with Wire(self.base) as wire:
            began = time.monotonic()
            wire.send(message("GET %s HTTP/1.1" % presence_path(room, 2, wait_ms=700)) +
                      message("PUT /leases HTTP/1.1", heartbeat(room, "b", 1)))
            poll, put = wire.reply(), wire.reply()
            self.assertGreaterEqual(time.monotonic() - began, 0.7)
        self.assertEqual([poll["mode"], put["decision"]], ["unchanged", "accepted"])

    def test_a_pipelined_request_behind_a_woken_poll(self):
        room = self.room()
        self.grant(room, "a", 1)
        with Wire(self.base) as wire:
            wire.send(message("GET %s HTTP/1.1" % presence_path(room, 2)) + message("GET /healthz HTTP/1.1"))
            self.wait_until(lambda: self.waiting(self.base) == 1, 5, "a parked poll")
            self.grant(room, "b", 1)
            poll = wire.reply(3)
            self.assertEqual([poll["mode"], steps(poll["events"])], ["events", [(3, "lease.granted", "b")]])
            self.assertEqual(wire.reply(3).status, 200)

    def test_keep_alive_survives_refusals(self):
        room = self.room()
        with Wire(self.base) as wire:
            for data, status in ((message("PUT /leases HTTP/1.1", b"{"), 400),
                                 (message("GET /nowhere HTTP/1.1"), 404),
                                 (message("PUT /leases HTTP/1.1", heartbeat(room, "s", 5)), 200),
                                 (message("PUT /leases HTTP/1.1", heartbeat(room, "s", 4)), 409),
                                 (message("GET %s HTTP/1.1" % presence_path(room, "x")), 400),
                                 (message("DELETE /healthz HTTP/1.1"), 405),
                                 (message("PUT /leases HTTP/1.1", heartbeat(room, "s", 6)), 200)):
                wire.send(data)
                reply = wire.reply(5)
                self.assertIsNotNone(reply, "the connection was closed after %r" % data[:40])
                self.assertEqual(reply.status, status, reply)

    def test_http_1_0_and_connection_close(self):
        data = raw(self.base, b"GET /healthz HTTP/1.0\r\n\r\n", wait_eof=True)
        self.assertEqual(all_replies(data)[0].status, 200)
        data = raw(self.base, message("GET /healthz HTTP/1.1", b"", "Connection: close"), wait_eof=True)
        self.assertEqual(all_replies(data)[0].status, 200)

    def test_a_half_closed_client_gets_its_answer(self):
        """A thousand of them, fifty at a time: each its whole answer, then the end; none leaves a descriptor behind."""
        room, before = self.room(), descriptors(self.daemons[0])
        for revision in range(1, 21):
            wires = [Wire(self.base) for _ in range(50)]
            for i, wire in enumerate(wires):
                wire.send(message("PUT /leases HTTP/1.1", heartbeat(room, "s%d" % i, revision)))
                wire.socket.shutdown(1)
            for i, wire in enumerate(wires):
                with wire:
                    reply = wire.reply(5)
                    self.assertIsNotNone(reply)
                    found = self.ok(reply)["lease"]
                    self.assertEqual([found["session_id"], found["revision"]], ["s%d" % i, revision])
                    self.assertEqual(wire.until_eof(5), b"")
        self.wait_until(lambda: self.metrics(self.base)["stillhere_connections"] < 20, 5, "no connection left behind")
        self.wait_until(lambda: descriptors(self.daemons[0]) < before + 20, 5, "no descriptor left behind")

    def test_a_half_closed_poll_is_answered_and_ended(self):
        room = self.room()
        self.grant(room, "a", 1)
        with Wire(self.base) as wire:
            wire.send(message("GET %s HTTP/1.1" % presence_path(room, 2)))
            wire.socket.shutdown(1)
            data = wire.until_eof(6)
        if data:
            self.assertEqual(all_replies(data)[0].status, 200)
        self.wait_until(lambda: self.waiting(self.base) == 0, 5, "nobody waits")

    def test_expect_100_continue(self):
        room = self.room()
        body = heartbeat(room, "s", 1)
        with Wire(self.base) as wire:
            began = time.monotonic()
            wire.send(message("PUT /leases HTTP/1.1", b"", "Expect: 100-continue", "Content-Length: %d" % len(body)))
            self.assertEqual(wire.reply(2).status, 100)
            wire.send(body)
            self.assertEqual(wire.reply(2)["decision"], "accepted")
            self.assertLess(time.monotonic() - began, 1.0 * SLOW)
        with Wire(self.base) as wire:
            wire.send(message("PUT /leases HTTP/1.1", b"", "Expect: 100-continue", "Content-Length: 3000000"))
            self.assertEqual(wire.reply(2).status, 413, "before the body is sent")

    def test_expect_without_a_body(self):
        """What comes next on the connection is no body of it."""
        room = self.room()
        inner = message("PUT /leases HTTP/1.1", heartbeat(room, "smuggled", 1))
        for length in ((), ("Content-Length: 0",)):
            self.refused(message("PUT /leases HTTP/1.1", b"", "Expect: 100-continue", *length) + inner, smuggled=room)

    def test_head(self):
        room = self.room()
        self.grant(room, "a", 1)
        for path in ("/healthz", presence_path(room), presence_path(room, 2), presence_path(room, 999999),
                     "/rooms/%s/leases" % room, "/nowhere"):
            with Wire(self.base) as wire:
                began = time.monotonic()
                wire.send(message("HEAD %s HTTP/1.1" % path))
                reply = wire.reply(5, head_only=True)
                self.assertLess(time.monotonic() - began, 1.0 * SLOW, path)
                self.assertIn(reply.status, (200, 404, 405), path)
                wire.send(message("GET /healthz HTTP/1.1"))
                self.assertEqual(wire.reply(5).status, 200, "no body came after the head of " + path)

    def test_every_reply_says_its_length_and_is_not_cached(self):
        room = self.room()
        self.grant(room, "a", 1)
        for reply in (self.poll(self.base, room), self.poll(self.base, room, 0), self.poll(self.base, room, 2, wait_ms=0),
                      self.hb(self.base, room, "u", "a", 2), self.hb(self.base, room, "u", "a", 1)):
            self.assertIn("content-length", reply.headers)
            self.assertNotIn("transfer-encoding", reply.headers)
            self.assertIn("no-", reply.headers.get("cache-control", ""))
            self.assertIn("x-request-id", reply.headers)
            self.assertIn(reply.headers["content-type"].split(";")[0], ("application/json", "application/problem+json"))


class Requests(Case):
    """Paths, queries, methods, bodies, numbers."""

    def raw_get(self, path, method="GET"):
        return raw(self.base, message("%s %s HTTP/1.1" % (method, path)))

    # -- paths ---------------------------------------------------------------------------------------------------------

    def test_path_decoding(self):
        self.ok(self.hb(self.base, "r1", "secret-user", "s", 1))
        for path in ("/rooms/r1%00evil/presence", "/rooms/%2e%2e/presence", "/rooms/%2E/presence", "/rooms/../presence",
                     "/rooms/a/../r1/presence", "//rooms/r1/presence", "/rooms//presence", "/rooms/r1/presence/",
                     "/rooms/r%zz/presence", "/rooms/r1%/presence", "/rooms/r1%4/presence", "/rooms/./r1/presence",
                     "/rooms/r1/./presence", "/rooms/r1//presence", "/rooms/r1%2Fpresence", "/rooms%2Fr1/presence",
                     "/ROOMS/r1/presence", "/rooms/%ff/presence", "/rooms/%c0%af/presence", "/rooms/%ed%a0%80/presence",
                     "/rooms/%01/presence", "/rooms/a%7f/presence", "/rooms/r1/presence%00", "/rooms/r1/presence%20"):
            with self.subTest(path=path):
                reply = self.raw_get(path)
                self.assertIn(reply.status, (400, 404), reply)
                self.problem(reply, reply.status)
                self.assertNotIn(b"secret-user", reply.body)

    def test_paths_name_rooms_byte_for_byte(self):
        for path, room in (("a%2Fb", "a/b"), ("a%252Fb", "a%2Fb"), ("a+b", "a+b"), ("a%20b", "a b"), ("%61", "a"),
                           ("a%3Fb%23c", "a?b#c"), ("%2e%2e%2e", "..."), ("a:b@c;d=e", "a:b@c;d=e"), ("%C3%A9", "é"),
                           ("%25", "%"), ("~", "~"), ("a%22%5C", "a\"\\")):
            with self.subTest(path=path):
                self.assertEqual(self.raw_get("/rooms/%s/presence" % path)["room_id"], room)

    def test_absolute_form(self):
        reply = raw(self.base, message("GET http://x/rooms/r1/presence HTTP/1.1"))
        self.assertIn(reply.status, (200, 400, 404))

    # -- identifiers ---------------------------------------------------------------------------------------------------

    def test_identifiers_round_trip(self):
        names = ["x", " ", "a b", "a/b", "...", "..a", "é", "e\u0301", "x" * 128, "\U0001F600" * 32, "é" * 64, "%2F", "+",
                 "a\u00a0b", "\u200b", "'; DROP TABLE stillhere.lease; --", "\\", '"', "{}", "\u2028", "NULL", "0",
                 "\ufffd", "\u0080", "a\ufeffb", "-", "*", "$1", ":x"]
        for name in names:
            with self.subTest(name=name):
                room = name
                answer = self.ok(self.hb(self.base, room, name, name, 1))
                self.assertEqual([answer["lease"][k] for k in ("room_id", "user_id", "session_id")], [name] * 3)
                snapshot = self.ok(self.poll(self.base, room))
                self.assertEqual([snapshot["room_id"], snapshot["users"][0]["user_id"],
                                  snapshot["users"][0]["sessions"][0]["session_id"], len(snapshot["users"])],
                                 [name, name, name, 1])
                events = self.ok(self.poll(self.base, room, 0))["events"]
                self.assertEqual([(e["user_id"], e.get("session_id")) for e in events], [(name, name), (name, None)])
                self.assertEqual([e["kind"] for e in events], ["lease.granted", "user.online"])
                self.assertEqual(self.ok(self.client.get(self.base, "/rooms/%s/leases" % quote(room)))["leases"][0]
                                 ["session_id"], name)
                self.assertEqual(self.ok(self.client.close(self.base, room, name, name))["decision"], "accepted")
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.room WHERE room_id IN ('é', 'e\u0301')"), "2",
                         "NFC and NFD are two rooms")

    def test_identifiers_that_are_none(self):
        good = dict(room_id=self.room(), user_id="u", session_id="s")
        for field in good:
            for bad in ("", ".", "..", "x" * 129, "\U0001F600" * 32 + "a", "é" * 64 + "a", "a\u0001", "\n", "\t", "\u007f",
                        "a\u001f", "a\u0000b"):
                with self.subTest(field=field, bad=bad):
                    # A NUL is not even JSON here; everything else is, and the field is named.
                    self.problem(self.client.put_json(self.base, dict(good, **{field: bad})), 400,
                                 field=None if "\0" in bad else field)
        for bad in ("x" * 129, quote("\U0001F600" * 33)):
            self.problem(self.client.get(self.base, "/rooms/%s/presence" % bad), 400)
        self.assertEqual(self.count("lease", room_id=good["room_id"]), 0)

    # -- queries -------------------------------------------------------------------------------------------------------

    def test_queries(self):
        room = self.room()
        self.grant(room, "a", 1)
        for query, status in (("since=1&since=2", 400), ("since", 400), ("since=", 400), ("since=1+2", 400),
                              ("since=%31", 200), ("%73ince=0", 200), ("since=1%00", 400), ("SINCE=1", 400),
                              ("since=0&%73ince=0", 400), ("since=%zz", 400), ("since=0&x=1", 400), ("", 200),
                              ("view=count&view=count", 400), ("since=0&&wait_ms=0", None), ("since=+1", 400),
                              ("&".join("k%d=1" % i for i in range(200)), 400), ("since=%C0%80", 400),
                              ("kinds=%ff", 400), ("epoch=%ff&since=1", None)):
            with self.subTest(query=query):
                reply = self.raw_get("/rooms/%s/presence?wait_ms=0%s" % (room, "&" + query if query else "")
                                     if "wait_ms" not in query else "/rooms/%s/presence?%s" % (room, query))
                if status is None:
                    self.assertIn(reply.status, (200, 400))
                else:
                    self.assertEqual(reply.status, status, reply)
        self.problem(self.raw_get("/rooms/%s/presence?wait=5" % room), 400, field="wait")

    # -- methods -------------------------------------------------------------------------------------------------------

    def test_methods(self):
        for method, path, allow in (("POST", "/leases", "PUT"), ("GET", "/leases", "PUT"), ("DELETE", "/leases", "PUT"),
                                    ("PUT", "/rooms/r/presence", "GET"), ("POST", "/healthz", "GET"),
                                    ("PUT", "/rooms/r/leases/u/s", "DELETE"), ("PATCH", "/rooms", "GET"),
                                    ("FOO", "/leases", "PUT"), ("put", "/leases", "PUT")):
            with self.subTest(method=method, path=path):
                reply = self.raw_get(path, method)
                self.problem(reply, 405)
                self.assertIn(allow, [a.strip() for a in reply.headers["allow"].split(",")])
        self.assertIn(self.raw_get("/leases", "TRACE").status, (405, 501))
        for path in ("/", "/leases/x", "/rooms/r", "/rooms/r/presence/x", "/nowhere", "/rooms/r/leases/u", "/healthz/x",
                     "/rooms/r/leases/u/s/t"):
            reply = self.raw_get(path)
            if path != "/":
                self.problem(reply, 404)
            self.assertLess(reply.status, 500)
        reply = self.raw_get("/leases", "OPTIONS")
        self.assertIn(reply.status, (200, 204, 405))
        self.assertIn("allow", reply.headers)
        self.assertLess(raw(self.base, message("OPTIONS * HTTP/1.1")).status, 500)

    def test_health_and_readiness(self):
        self.assertEqual(self.client.get(self.base, "/healthz").status, 200)
        self.assertEqual(self.client.get(self.base, "/readyz").status, 200)
        reply = self.client.get(self.base, "/metrics")
        self.assertEqual(reply.status, 200)
        self.assertTrue(reply.headers["content-type"].startswith("text/plain"))
        metrics = self.metrics(self.base)
        for name in ("stillhere_longpoll_waiting", "stillhere_wakes_total", "stillhere_notifications_total",
                     "stillhere_database_up", "stillhere_expiry_lateness_seconds_count"):
            self.assertIn(name, metrics)
        self.assertEqual(metrics["stillhere_database_up"], 1)

    # -- bodies --------------------------------------------------------------------------------------------------------

    def put(self, body, *headers):
        return raw(self.base, message("PUT /leases HTTP/1.1", body, *headers))

    def test_bodies_that_are_no_object(self):
        rows = self.q("SELECT count(*) FROM stillhere.lease")
        for body in (b"[]", b'"x"', b"5", b"null", b"true", b" ", b"\n", b"{", b"}", b"hello", b"\x00", b"\xff\xfe",
                     b'{"room_id":"r"', b"<xml/>", b"room_id=r&user_id=u"):
            with self.subTest(body=body):
                self.problem(self.put(body), 400)
        self.problem(raw(self.base, message("PUT /leases HTTP/1.1")), 400)
        self.problem(raw(self.base, message("PUT /leases HTTP/1.1", b"", "Content-Length: 0")), 400)
        reply = self.put(heartbeat("r", "zipped", 1), "Content-Encoding: gzip")
        self.assertIn(reply.status, (400, 415))
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.lease"), rows)

    def test_json_is_strict(self):
        room = self.room()
        start = '{"room_id":"%s","user_id":"u","session_id":"s"' % room
        deep = "{" + '"a":{' * 17 + "}" * 17 + "}"
        for text in (start + ',"revision":1,"revision":2}', start + ',"revision":1,"\\u0072evision":2}', start + "}x",
                     start + "}{}", start + ',"revision":NaN}', start + ',"revision":Infinity}', start + "/* c */}",
                     start.replace('"', "'") + "}", start + ",}", start + ',"meta":%s}' % ("[" * 100000),
                     start + ',"meta":%s}' % deep, start + ',"revision":01}', start + ',"revision":+1}',
                     start + ',"revision":.5}', start + ',"meta":{"a":1,"a":2}}', start + ',"meta":{"a":"\\ud800"}}',
                     start + ',"meta":{"a":"\\u0000"}}', start + ',"meta":{"a":1e400}}', "\ufeff" + start + "}",
                     start + ',"meta":{"\\u0000":1}}', start + ',"meta":{"x":\t"\t"}}'):
            with self.subTest(text=text[:120]):
                self.problem(self.put(text.encode()), 400)
        for data in (start.encode() + b"}\x00", start.encode() + b',"meta":{"a":"\xff"}}', start.encode() +
                     b',"meta":{"a":"\xed\xa0\x80"}}', start.encode() + b',"meta":{"\xc0\x80":1}}'):
            self.problem(self.put(data), 400)
        self.assertEqual(self.count("lease", room_id=room), 0)
        self.assertEqual(self.put((start + ',"revision":1,"meta":{"a":[[[[{"b":1}]]]]}}\n  ').encode()).status, 200)

    def test_two_million_brackets(self):
        began = time.monotonic()
        with Wire(self.base) as wire:
            try:
                wire.send(message("PUT /leases HTTP/1.1", b"[" * 2000000))
            except (BrokenPipeError, ConnectionResetError):
                pass
            reply = wire.reply(5)
        if reply:
            self.assertIn(reply.status, (400, 413))
        self.assertLess(time.monotonic() - began, 2.0 * SLOW)
        self.assertIn(self.put(b"[" * 1000000).status, (400, 413))

    def test_wrong_types_name_the_field(self):
        room = self.room()
        good = lease(room, "u", "s", 1)
        for field, values in (("room_id", (5, {}, [], None, True, "")), ("user_id", (5, {}, [], None, True, "")),
                              ("session_id", (5, {}, [], None, True, "")), ("meta", ("x", 5, [], True, [{}])),
                              ("revision", ("1", 1.0, 1.5, 0, -1, REVISION_MAX + 1, 2 ** 63 - 1, True, [], {})),
                              ("client_time", (5, "yesterday", "", {}, "2026-02-30T00:00:00Z"))):
            for value in values:
                with self.subTest(field=field, value=value):
                    self.problem(self.client.put_json(self.base, dict(good, **{field: value})), 400, field=field)
        for field in ("room_id", "user_id", "session_id"):
            missing = {k: v for k, v in good.items() if k != field}
            self.problem(self.client.put_json(self.base, missing), 400, field=field)
        for field in ("revison", "x", "leasess", "last_seen", "expires_at"):
            self.problem(self.client.put_json(self.base, dict(good, **{field: 1})), 400, field=field)
        for huge in ("9223372036854775808", "1e3", "1E400", "99999999999999999999999999"):
            text = json.dumps(good).replace('"revision": 1', '"revision": ' + huge)
            self.problem(self.put(text.encode()), 400)
        self.assertEqual(self.count("lease", room_id=room), 0)

    def test_ttl_bounds(self):
        room = self.room()
        start = '{"room_id":"%s","user_id":"u","session_id":"s","ttl_ms":%%s}' % room
        for bad in ("0", "-1", "1", "1.5", "15000.0", '"15000"', "true", "[]", "{}", "4999", "3600001", "2147483648",
                    "9007199254740993", "9223372036854775807", "1e18", "-9223372036854775808", "15e3"):
            with self.subTest(bad=bad):
                self.problem(self.put((start % bad).encode()), 400, field="ttl_ms")
        for bad in ("1e400", "9223372036854775808"):
            self.problem(self.put((start % bad).encode()), 400)
        for good in ("5000", "3600000"):
            self.assertEqual(self.put((start % good).encode()).status, 200)
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.lease WHERE expires_at > now() + interval '1 day'"), "0")

    def test_body_limit(self):
        with Wire(self.base) as wire:
            began = time.monotonic()
            wire.send(message("PUT /leases HTTP/1.1", b"", "Content-Length: 1073741824"))
            self.problem(wire.reply(3), 413)
            self.assertLess(time.monotonic() - began, 1.0 * SLOW, "decided from the declared length")
        with Wire(self.base) as wire:
            wire.send(message("PUT /leases HTTP/1.1", b"", "Transfer-Encoding: chunked"))
            sent, reply = 0, None
            chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
            try:
                while sent < 64:
                    wire.send(chunk)
                    sent += 1
            except (BrokenPipeError, ConnectionResetError, TimeoutError):
                pass
            try:
                reply = wire.reply(5)
            except TimeoutError:
                self.fail("endless chunks are taken without end")
            if reply is not None:
                self.assertEqual(reply.status, 413)
        body = heartbeat(self.room(), "s", 1)
        self.assertEqual(self.put(body + b" " * (1048576 - len(body))).status, 200, "exactly the limit")
        with Wire(self.base) as wire:
            wire.send(message("PUT /leases HTTP/1.1", b"", "Content-Length: 1048577"))
            self.assertEqual(wire.reply(3).status, 413)

    def test_heads_that_are_too_long(self):
        for data, statuses in ((message("GET /healthz HTTP/1.1", b"", "X-Long: " + "x" * 40000), (431, 400)),
                               (message("GET /%s HTTP/1.1" % ("x" * 40000)), (414, 400, 431)),
                               (message("GET /healthz HTTP/1.1", b"", *["X-H%d: v" % i for i in range(3000)]),
                                (431, 400))):
            with Wire(self.base) as wire:
                try:
                    wire.send(data)
                    wire.until_eof(5)
                except (BrokenPipeError, ConnectionResetError, TimeoutError):
                    pass
                self.assertIn(int(wire.data[9:12] or b"431"), statuses, wire.data[:60])
            self.assertEqual(self.client.get(self.base, "/healthz").status, 200)

    def test_garbage(self):
        for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"\x00" * 500,
                     b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
                     b"GET /healthz HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n"):
            with Wire(self.base) as wire:
                wire.send(data)
                wire.socket.shutdown(1)
                try:
                    wire.until_eof(5)
                except TimeoutError:
                    pass
                self.assertNotIn(wire.data[9:10], (b"5",) if b"9.9" not in data and b"PRI" not in data else (),
                                 wire.data[:80])
        self.assertEqual(self.client.get(self.base, "/healthz").status, 200)

    def test_bad_input_changes_no_row(self):
        room = self.room()
        self.grant(room, "s", 5, meta={"a": 1})
        before = self.stored(room, "s")
        for extra in ({"ttl_ms": 1}, {"meta": 5}, {"x": 1}, {"client_time": "x"}):
            self.problem(self.client.put_json(self.base, lease(room, "u", "s", 6, **extra)), 400)
        self.assertEqual(self.stored(room, "s"), before)


class Deadlines(Case):
    config = {"request_deadline_ms": 1000}

    def ends(self, data, drip):
        """A request that comes a byte at a time has an end. @return the seconds until it was closed"""
        with Wire(self.base) as wire:
            began = time.monotonic()
            wire.send(data)
            wire.socket.settimeout(0.2)
            while time.monotonic() - began < 8 * SLOW:
                try:
                    if drip:
                        wire.send(drip)
                    more = wire.socket.recv(4096)
                    if not more:
                        return time.monotonic() - began
                except TimeoutError:
                    continue
                except (BrokenPipeError, ConnectionResetError):
                    return time.monotonic() - began
        self.fail("still open after %g s" % (8 * SLOW))

    def test_a_slow_head_is_cut(self):
        for drip in (b"x", b""):
            self.near(self.ends(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", drip), 0.9, 3.5 * SLOW)

    def test_a_slow_body_is_cut(self):
        for drip in (b" ", b""):
            self.near(self.ends(b"PUT /leases HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n{", drip), 0.9,
                      3.5 * SLOW)

    def test_the_second_request_of_a_connection_is_cut_as_well(self):
        with Wire(self.base) as wire:
            wire.send(message("GET /healthz HTTP/1.1"))
            self.assertEqual(wire.reply().status, 200)
            self.pause(0.5)
            wire.send(b"PUT /leases HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n{")
            began = time.monotonic()
            wire.until_eof(5)
            self.near(time.monotonic() - began, 0.8, 3.5 * SLOW)

    def test_many_slow_ones_hold_up_nobody(self):
        slow = [Wire(self.base) for _ in range(100)]
        for wire in slow:
            wire.send(b"PUT /leases HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n{")
        room, times = self.room(), []
        for i in range(50):
            times.append(self.hb(self.base, room, "u", "s", i + 1).seconds)
        self.assertLess(sorted(times)[47], 0.25 * SLOW)
        for wire in slow:
            wire.until_eof(5)
            wire.close()

    def test_an_idle_or_waiting_connection_is_not_a_slow_one(self):
        room = self.room()
        self.grant(room, "a", 1)
        with Wire(self.base) as wire:
            wire.send(message("GET /healthz HTTP/1.1"))
            self.assertEqual(wire.reply().status, 200)
            self.pause(2.5)
            wire.send(message("GET %s HTTP/1.1" % presence_path(room, 2, wait_ms=2500)))
            self.assertEqual(wire.reply(6)["mode"], "unchanged")
            wire.send(message("PUT /leases HTTP/1.1", heartbeat(room, "a", 2)))
            self.assertEqual(wire.reply()["decision"], "accepted")


class Caps(Case):
    config = {"longpoll_max_waiting": 20, "max_connections": 60, "longpoll_default_wait_ms": 20000}

    def open_connections(self):
        return int(self.metrics(self.base)["stillhere_connections"])

    def test_more_waiting_polls_than_may_wait(self):
        self.allow_5xx = True
        room = self.room()
        self.grant(room, "a", 1)
        flock = Flock(self.base, [presence_path(room, 2)] * 30)
        replies = [r for r in flock.collect(3 * SLOW, enough=10) if r]
        self.assertEqual([r[0].status for r in replies], [503] * 10)
        for reply, _ in replies:
            self.problem(reply, 503)
            self.assertRegex(reply.headers["retry-after"], r"^[1-9]\d*$")
        self.assertEqual(self.waiting(self.base), 20)
        reply = self.hb(self.base, room, "u", "a", 2)
        self.assertEqual(reply.status, 200)
        self.assertLess(reply.seconds, 1.0 * SLOW)
        self.assertEqual(self.client.get(self.base, "/healthz").status, 200)
        self.assertEqual(self.poll(self.base, room, 2, wait_ms=0).status, 200, "what needn't wait is served")
        self.grant(room, "b", 1)
        replies = flock.collect(3 * SLOW)
        flock.close()
        self.assertEqual(sorted(r[0].status for r in replies), [200] * 20 + [503] * 10)
        self.wait_until(lambda: self.waiting(self.base) == 0, 5, "nobody waits")

    def test_more_connections_than_may_be_open(self):
        self.allow_5xx = True
        wires = [Wire(self.base) for _ in range(80)]
        statuses, refused = [], 0
        for wire in wires:
            try:
                wire.send(message("GET /healthz HTTP/1.1"))
                reply = wire.reply(3)
            except (BrokenPipeError, ConnectionResetError):
                reply = None
            if reply is None:
                refused += 1
            else:
                statuses.append(reply.status)
                if reply.status == 503:
                    self.assertIn("retry-after", reply.headers)
        self.assertEqual(set(statuses) - {200, 503}, set())
        # Some of the sixty may be connections that other tests' threads keep alive.
        self.near(statuses.count(200), 40, 60, "served")
        self.assertGreaterEqual(statuses.count(503) + refused, 20)
        for wire in wires:
            wire.close()
        self.wait_until(lambda: self.client.get(self.base, "/healthz", fresh=True).status == 200, 5, "room again")

    def test_clients_that_went_away_are_noticed(self):
        room = self.room()
        self.grant(room, "a", 1)
        before = self.open_connections()
        flock = Flock(self.base, [presence_path(room, 2)] * 15)
        self.wait_until(lambda: self.waiting(self.base) == 15, 5, "15 parked polls")
        flock.close()
        self.wait_until(lambda: self.waiting(self.base) == 0, 5, "the clients' going")
        self.wait_until(lambda: self.open_connections() <= before, 5, "closed connections")

    def test_clients_that_were_cut_off_are_noticed(self):
        import socket
        import struct
        room = self.room()
        self.grant(room, "a", 1)
        flock = Flock(self.base, [presence_path(room, 2)] * 10)
        self.wait_until(lambda: self.waiting(self.base) == 10, 5, "10 parked polls")
        for s in flock.sockets:  # a reset instead of an orderly end
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        flock.close()
        self.wait_until(lambda: self.waiting(self.base) == 0, 5, "the clients' going")

    def test_aborted_polls_lose_nothing(self):
        """Five hundred polls that give up at about the moment of their event: each finds it in its next poll."""
        room = self.room()
        self.grant(room, "a", 1)
        for i in range(50):
            flock = Flock(self.base, [presence_path(room, 2 + i)] * 10)
            self.background(self.grant, room, "s%d" % i, 1)
            flock.collect(0.01)
            flock.close()
            again = Flock(self.base, [presence_path(room, 2 + i)] * 10)
            for reply in again.collect(5 * SLOW):
                self.assertEqual(steps(self.ok(reply[0])["events"]), [(3 + i, "lease.granted", "s%d" % i)])
            again.close()


class Start(Case):
    """Bad configuration stops the start with one line that names the key."""

    autostart = False

    def start(self, config, arguments=()):
        settings = {"listen": "127.0.0.1:%d" % free_port(), "database_url": self.pg.url(self.database)}
        settings.update(config)
        return subprocess.run([program()] + list(arguments), env=daemon_environment(settings), cwd=self.directory,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=20 * SLOW)

    def refused(self, key, config, arguments=()):
        done = self.start(config, arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertIn(key.lower(), lines[0].lower())

    def test_bad_values(self):
        for key, value in (("ttl_min_ms", "abc"), ("ttl_min_ms", "-5"), ("ttl_min_ms", ""), ("ttl_min_ms", "99"),
                           ("ttl_default_ms", "1e5"), ("sweep_interval_ms", "50"), ("longpoll_max_waiting", "x"),
                           ("membership", "closed"), ("decision_log", "some"), ("log_level", "loud"),
                           ("log_format", "xml"), ("auth", "maybe"), ("listen", "nonsense"), ("listen", "127.0.0.1:99999"),
                           ("renewal_events", "maybe"), ("max_body_bytes", "12x"),
                           ("replay_limit", "99999999999999999999")):
            with self.subTest(key=key, value=value):
                self.refused(key, {key: value})

    def test_relations_between_values(self):
        self.refused("ttl_", {"ttl_min_ms": 9000, "ttl_default_ms": 8000})
        self.refused("ttl_", {"ttl_max_ms": 80000, "ttl_default_ms": 90000})
        self.refused("longpoll_", {"longpoll_default_wait_ms": 60000})
        self.refused("longpoll_max_waiting", {"longpoll_max_waiting": 500, "max_connections": 500})

    def test_unknown_keys(self):
        self.refused("no_such_key", {"no_such_key": "1"})
        self.refused("ttl_min", {"ttl_min": "5000"})

    def test_auth_none_listens_on_loopback_only(self):
        for address in ("0.0.0.0", "[::]"):
            self.refused("auth", {"listen": "%s:%d" % (address, free_port()), "auth": "none"})

    def test_configuration_file(self):
        path = os.path.join(self.directory, "test.conf")
        with open(path, "w") as f:
            f.write("# a comment\n\nttl_min_ms = 7000\nttl_default_ms = 8000\n")
        self.refused("ttl_min_ms", {"ttl_min_ms": 9000}, ["-c", path])
        with open(path, "a") as f:
            f.write("no_such_key = 1\n")
        self.refused("no_such_key", {}, ["-c", path])

    def test_a_missing_configuration_file(self):
        done = self.start({}, ["-c", os.path.join(self.directory, "missing.conf")])
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("missing.conf", done.stderr)

    def test_a_port_that_is_taken(self):
        d = self.start_daemon()
        done = self.start({"listen": "127.0.0.1:%d" % d.port})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(str(d.port), done.stderr)

    def test_short_durations_are_taken(self):
        d = self.start_daemon(sweep_interval_ms=100, ttl_min_ms=100, ttl_default_ms=100, offline_grace_ms=100)
        self.assertEqual(self.ok(self.hb(d.base, self.room(), "u", "s"))["lease"]["ttl_ms"], 100)

    def test_json_log(self):
        d = self.start_daemon(log_format="json")
        self.stop_now(d)
        lines = d.text().splitlines()
        self.assertGreater(len(lines), 0)
        for line in lines:
            entry = json.loads(line)
            self.assertIn("level", entry)

    def test_the_password_is_in_no_log(self):
        url = self.pg.url(self.database) + "&password=hunter2secret"
        d = self.start_daemon(database_url=url, log_level="debug")
        self.grant(self.room(), base=d.base)
        self.stop_now(d)
        self.assertNotIn("hunter2secret", d.text() + d.output())


class RenewalEvents(Case):
    config = {"renewal_events": "on"}

    def test_every_renewal_is_an_event_when_asked(self):
        room = self.room()
        for revision in range(1, 5):
            self.grant(room, "s", revision)
        self.ok(self.hb(self.base, room, "u", "s", 4))
        self.assertEqual([(e["revision"], e["kind"], e["lease_revision"]) for e in self.events(room)],
                         [(1, "lease.granted", 1), (2, "user.online", None)] +
                         [(r + 1, "lease.renewed", r) for r in (2, 3, 4)])
