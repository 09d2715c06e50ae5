# SPDX-License-Identifier: Apache-2.0
"""Where requests end, said in every odd way, to every route: what two readers could read differently is refused, and the
connection ends, so that nothing behind it is taken for a request."""

import re

from harness import routes
from harness.bystanders import Bystanders
from harness.case import Case, Wire, all_replies, json, lease, presence_path, time
from test_odd_requests import BODIES, Sweep, request

ROUTES = routes.read()
#: What hides behind a request: it would be served as one of its own.
HIDDEN = b"GET /healthz?smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


def framed(headers, body=b"", line_end=b"\r\n", start=b"%(method)s %(target)s HTTP/1.1"):
    """A message with just these header lines, as bytes with places for method and target."""
    return start + line_end + line_end.join(headers) + line_end + line_end + body


H = b"Host: x"
CHUNKED = b"Transfer-Encoding: chunked"
#: (what is odd, the message). All of them are refused, whatever the route.
AMBIGUOUS = (
    ("two lengths", framed([H, b"Content-Length: 0", b"Content-Length: 44"])),
    ("the same length twice", framed([H, b"Content-Length: 44", b"Content-Length: 44"])),
    ("a list of lengths", framed([H, b"Content-Length: 0, 44"])),
    ("a length and chunks", framed([H, b"Content-Length: 5", CHUNKED], b"0\r\n\r\n")),
    ("chunks and a length", framed([H, CHUNKED, b"Content-Length: 5"], b"0\r\n\r\n")),
    ("a negative length", framed([H, b"Content-Length: -1"])),
    ("a length with a sign", framed([H, b"Content-Length: +0"])),
    ("a length with a sign and a body", framed([H, b"Content-Length: +2"], b"{}")),
    ("twenty digits", framed([H, b"Content-Length: 99999999999999999999"], b"{}")),
    ("a length in hexadecimal", framed([H, b"Content-Length: 0x0"])),
    ("a length with a letter", framed([H, b"Content-Length: 0a"])),
    ("a length with a point", framed([H, b"Content-Length: 0.0"])),
    ("no length", framed([H, b"Content-Length:"])),
    ("a length past 64 bits", framed([H, b"Content-Length: 18446744073709551616"])),
    ("a length past 63 bits", framed([H, b"Content-Length: 9223372036854775808"])),
    ("a length with a NUL", framed([H, b"Content-Length: 0\x004"])),
    ("a length before a blank", framed([H, b"Content-Length : 44"])),
    ("a length before a tab", framed([H, b"Content-Length\t: 44"])),
    ("a length behind a blank", framed([H, b" Content-Length: 44"])),
    ("another coding", framed([H, b"Transfer-Encoding: gzip"])),
    ("identity", framed([H, b"Transfer-Encoding: identity"])),
    ("two codings", framed([H, b"Transfer-Encoding: gzip, chunked"], b"0\r\n\r\n")),
    ("chunked twice", framed([H, b"Transfer-Encoding: chunked, chunked"], b"0\r\n\r\n")),
    ("two headers of chunks", framed([H, CHUNKED, CHUNKED], b"0\r\n\r\n")),
    ("chunks and identity", framed([H, CHUNKED, b"Transfer-Encoding: identity"], b"0\r\n\r\n")),
    ("xchunked", framed([H, b"Transfer-Encoding: xchunked"], b"0\r\n\r\n")),
    ("quoted chunks", framed([H, b'Transfer-Encoding: "chunked"'], b"0\r\n\r\n")),
    ("chunks with a parameter", framed([H, b"Transfer-Encoding: chunked;q=1"], b"0\r\n\r\n")),
    ("chunks with a control character", framed([H, b"Transfer-Encoding: \x0bchunked"], b"0\r\n\r\n")),
    ("chunks with a NUL", framed([H, b"Transfer-Encoding: chunked\x00"], b"0\r\n\r\n")),
    ("chunks before a blank", framed([H, b"Transfer-Encoding : chunked"], b"0\r\n\r\n")),
    ("no coding", framed([H, b"Transfer-Encoding:"], b"0\r\n\r\n")),
    ("chunks on a second line", framed([H, b"Transfer-Encoding:\r\n chunked"], b"0\r\n\r\n")),
    ("chunks in HTTP/1.0", framed([H, CHUNKED], b"0\r\n\r\n", start=b"%(method)s %(target)s HTTP/1.0")),
    ("a continued header", framed([H, b"X-A: b\r\n c"])),
    ("a continued header with a tab", framed([H, b"X-A: b\r\n\tc"])),
    ("a first line that continues", framed([b" X: y", H])),
    ("a NUL in a value", framed([H, b"X-A: b\x00c"])),
    ("a NUL at a value's end", framed([H, b"X-A: b\x00"])),
    ("two NULs at a value's end", framed([H, b"X-A: b\x00\x00", b"X-B: c"])),
    ("two NULs at the last value's end", framed([H, b"X-A: b\x00\x00"])),
    ("three NULs at the last value's end", framed([H, b"X-A: b\x00\x00\x00"])),
    ("a NUL for a value", framed([H, b"X-A: \x00", b"X-B: c"])),
    ("a NUL and more for a value", framed([H, b"X-A: \x00b"])),
    ("a NUL in a name", framed([H, b"X\x00A: b"])),
    ("a line that begins with a NUL", framed([H, b"\x00X-A: b", b"X-B: c"])),
    ("a first line that begins with a NUL", framed([b"\x00X-A: b", H])),
    ("a NUL in the target", framed([H], start=b"%(method)s %(target)s\x00x HTTP/1.1")),
    ("a NUL behind the target", framed([H], start=b"%(method)s %(target)s\x00 HTTP/1.1")),
    ("a NUL in the method", framed([H], start=b"%(method)s\x00X %(target)s HTTP/1.1")),
    ("a NUL in the version", framed([H], start=b"%(method)s %(target)s HTTP/1.1\x00")),
    ("no colon", framed([H, b"X-A"])),
    ("no name", framed([H, b": b"])),
    ("a name with a bracket", framed([H, b"X(A): b"])),
    ("a name that is not ASCII", framed([H, b"X\xc3\xa9: b"])),
    ("no Host", framed([b"X: y"])),
    ("two Hosts", framed([H, b"Host: y"])),
    ("another protocol", framed([H], start=b"%(method)s %(target)s FTP/1.1")),
    ("HTTP in small letters", framed([H], start=b"%(method)s %(target)s http/1.1")),
    ("HTTP/2", framed([H], start=b"%(method)s %(target)s HTTP/2.0")),
    ("HTTP/1.10", framed([H], start=b"%(method)s %(target)s HTTP/1.10")),
    ("no version", framed([H], start=b"%(method)s %(target)s")),
)
#: Bodies in chunks that are none. On a route that takes none too: what is behind a body has to be found.
BAD_CHUNKS = (
    ("no number", b"zz\r\n{}\r\n0\r\n\r\n"), ("a negative size", b"-2\r\n{}\r\n0\r\n\r\n"),
    ("a size with 0x", b"0x2\r\n{}\r\n0\r\n\r\n"), ("a size past 64 bits", b"10000000000000002\r\n{}\r\n0\r\n\r\n"),
    ("a huge size", b"ffffffffffffffff\r\n{}\r\n0\r\n\r\n"), ("17 digits", b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
    ("a size that is too small", b"1\r\n{}\r\n0\r\n\r\n"), ("an empty size", b"\r\n{}\r\n0\r\n\r\n"),
    ("a NUL in a size", b"2\x00\r\n{}\r\n0\r\n\r\n"), ("a chunk without an end", b"2\r\n{}0\r\n\r\n"),
    ("a size with a blank before", b" 2\r\n{}\r\n0\r\n\r\n"),
)


class Framing(Sweep):

    def setUp(self):
        super().setUp()
        self.allow_5xx = True  # 501 is what an unknown coding gets; the count below is of what is our fault

    def state(self):
        rows, _, open_, connections = super().state()
        return rows, [], open_, connections

    def served(self, data, seconds):
        """@return (the statuses that came, whether the server closed)"""
        with Wire(self.base) as wire:
            try:
                wire.send(data)
                wire.until_eof(seconds)
                closed = True
            except TimeoutError:
                closed = False
            except OSError:
                closed = True
            replies = all_replies(wire.data)
            # Not even a second head that somebody takes for the body of the first.
            self.assertEqual(len(re.findall(rb"HTTP/1\.[01] \d\d\d ", wire.data)), len(replies), wire.data)
            return [r.status for r in replies], closed

    def test_ambiguous_messages_to_all_routes(self):
        with Bystanders(self):
            for route in ROUTES:
                place = {b"method": route.method.encode(), b"target": route.path().encode()}
                for name, template in AMBIGUOUS:
                    with self.subTest(route=route, odd=name):
                        got, closed = self.served(template % place + HIDDEN, 5)
                        self.assertTrue(closed, "the connection goes on after %r" % got)
                        self.assertLessEqual(len(got), 1, "what is behind was served: %r" % got)
                        self.assertEqual(set(got) - {400, 413, 501, 505}, set())

    def test_what_is_no_length_is_answered_once(self):
        """By a problem and nothing else, also where the head comes in pieces, and while others have not sent theirs."""
        with Wire(self.base) as slow:
            slow.send(b"PUT /leases HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n")
            for value, status, code in ((b"+2", 400, "bad_framing"), (b"", 400, "bad_framing"), (b"2x", 400, "bad_framing"),
                                        (b"9" * 20, 413, "body_too_large"), (b"9" * 200, 413, "body_too_large")):
                for pause in (0, 0.1):
                    with self.subTest(value=value, pause=pause), Wire(self.base) as wire:
                        wire.send(b"PUT /leases HTTP/1.1\r\nHost: x\r\n")
                        time.sleep(pause)
                        wire.send(b"Content-Length: " + value + b"\r\n\r\n{}")
                        reply = wire.reply(5)
                        self.assertEqual(self.problem(reply, status, code)["code"], code)
                        self.assertEqual(reply.headers["connection"], "close")
                        self.assertEqual(wire.until_eof(5), b"", "nothing behind it")
            slow.send(b"\r\n{}")
            self.assertEqual(slow.reply(5).status, 400, "it was read as ever")
        # libmicrohttpd wants room for a copy of the cookies, beside the head in which they came.
        with Wire(self.base) as wire:
            wire.send(request("GET", "/healthz", b"", "Cookie: a=" + "b" * 9000))
            self.problem(wire.reply(5), 431, "header_too_large")
            self.assertEqual(wire.until_eof(5), b"")

    def test_heads_that_fill_the_memory(self):
        """libmicrohttpd keeps notes on each field beside the head, and says nothing where none is left for a reply's."""
        origin = "Origin: https://%s.example\r\n" % ("o" * 200)
        full = {"cookie": lambda n: "Cookie: a=%s\r\n" % ("b" * n),
                "cookies": lambda n: "Cookie: %s\r\n" % "; ".join("a%d=b" % i for i in range(n // 40)),
                "headers": lambda n: "".join("X-%d: a\r\n" % i for i in range(n // 40)),
                "long": lambda n: "X-A: %s\r\n" % ("b" * n)}
        for name, fields in full.items():
            seen = set()
            for n in list(range(4000, 17600, 640)) + list(range(7000, 8400, 40)) + list(range(14200, 17600, 40)):
                with self.subTest(fields=name, n=n), Wire(self.base) as wire:
                    wire.send(("GET /healthz HTTP/1.1\r\nHost: x\r\n%s%s\r\n" % (origin, fields(n))).encode())
                    reply = wire.reply(5)
                    self.assertIsNotNone(reply, "no answer")
                    seen.add(reply.status)
            self.assertEqual(seen, {200, 431}, name)

    def test_bare_line_feeds(self):
        """They end a line, as RFC 9112 §2.2 allows; then all lines end there, also the ones that hide something."""
        for route in ROUTES:
            if route.method != "GET" or "cursors" in route.pattern or "presence" in route.pattern:
                continue
            data = framed([H, b"X-A: b"], line_end=b"\n") % {b"method": b"GET", b"target": route.path().encode()}
            with self.subTest(route=route):
                got, _ = self.served(data + framed([H, b"Connection: close"]) %
                                     {b"method": b"GET", b"target": b"/healthz"}, 5)
                self.assertIn(len(got), (1, 2), got)
                if len(got) == 2:
                    self.assertEqual(got[1], 200)

    def test_chunks_that_are_none(self):
        with Bystanders(self):
            for route in BODIES:
                for name, body in BAD_CHUNKS:
                    data = framed([H, CHUNKED, b"Content-Type: application/json"], body) % {
                        b"method": route.method.encode(), b"target": route.path().encode()}
                    with self.subTest(route=route, odd=name):
                        got, closed = self.served(data + HIDDEN, 0.4)  # some wait for more, until the deadline
                        self.assertLessEqual(len(got), 1, "what is behind was served: %r" % got)
                        self.assertTrue(closed or not got, got)
                        self.assertEqual(set(got) - {400, 413, 415}, set())

    def test_chunks_as_they_may_be(self):
        """Extensions, trailers, digits of either case, leading zeros."""
        body = json.dumps(lease(self.home, "u0", "s", 4)).encode()
        self.assertLess(len(body), 256)
        size, half = b"%x" % len(body), len(body) // 2
        for chunks in (size + b"\r\n" + body + b"\r\n0\r\n\r\n", size.upper() + b";a=b;c\r\n" + body + b"\r\n0;d\r\n\r\n",
                       b"0000" + size + b"\r\n" + body + b"\r\n000\r\n\r\n",
                       size + b"\r\n" + body + b"\r\n0\r\nX-Trailer: a\r\nContent-Length: 5\r\n\r\n",
                       b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (half, body[:half], len(body) - half, body[half:])):
            data = framed([H, CHUNKED], chunks) % {b"method": b"PUT", b"target": b"/leases"}
            with self.subTest(chunks=chunks):
                got, _ = self.served(data + framed([H, b"Connection: close"]) %
                                     {b"method": b"GET", b"target": b"/healthz"}, 10)
                self.assertIn(got, ([409, 200], [400]), "an old revision, and what is behind it")

    def test_bodies_where_none_is_wanted(self):
        """What a GET or DELETE carries is passed over, and never a request."""
        for route in ROUTES:
            if route.has_body or "presence" in route.pattern or (route.method, route.params) == ("DELETE", ["room", "user"]):
                continue  # the last one revokes, also where there was nobody
            for headers, body in (([b"Content-Length: %d" % len(HIDDEN)], HIDDEN),
                                  ([CHUNKED], b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN))):
                data = framed([H] + headers, body) % {b"method": route.method.encode(), b"target": route.path().encode()}
                with self.subTest(route=route):
                    got, _ = self.served(data + framed([H, b"Connection: close"]) %
                                         {b"method": b"GET", b"target": b"/healthz"}, 5)
                    self.assertIn(len(got), (1, 2), got)
                    if len(got) == 2:
                        self.assertEqual(got[1], 200)

    def test_expectations(self):
        for route in ROUTES:
            if not route.has_body:
                continue
            for value, first in (("100-continue", (100,)), ("100-Continue", (100,)), ("nonsense", (400, 417))):
                with self.subTest(route=route, value=value), Wire(self.base) as wire:
                    wire.send(request(route.method, route.path(), b"", "Expect: " + value, "Content-Length: 3",
                                      "Content-Type: application/json"))
                    if first == (100,):
                        self.assertEqual(wire.reply(5).status, 100)
                    wire.send(b"{x}")
                    self.assertIn(wire.reply(5).status, (400, 417))
            with Wire(self.base) as wire:
                wire.send(request(route.method, route.path(), b"", "Expect: 100-continue", "Content-Length: 99999999",
                                  "Content-Type: application/json"))
                self.assertEqual(wire.reply(5).status, 413, "before anything is sent")

    def test_many_and_long_headers(self):
        for n, size, statuses in ((20, 500, (200,)), (100, 8, (200, 431)), (5000, 1, (431, 400)), (1, 60000, (431, 400)),
                                  (200, 300, (431, 400))):
            with self.subTest(n=n, size=size), Wire(self.base) as wire:
                try:
                    wire.send(request("GET", "/healthz", b"", *["X-%d: %s" % (i, "v" * size) for i in range(n)]))
                    wire.send(b"")
                except OSError:
                    pass
                reply = wire.reply(5)
                if reply is not None:  # a reset may overtake it where much is unread
                    self.assertIn(reply.status, statuses)
        for target, statuses in (("/" + "x" * 12000, (404, 414)), ("/" + "x" * 60000, (414, 400)),
                                 ("/rooms?" + "&".join("a=%d" % i for i in range(1500)), (400,)),
                                 ("/" + "x/" * 3000, (400, 404, 414))):
            with self.subTest(target=target[:20]), Wire(self.base) as wire:
                wire.send(request("GET", target))
                reply = wire.reply(5)
                if reply is not None:
                    self.assertIn(reply.status, statuses)


class Split(Case):
    """A train of different requests, in two parts cut at every byte: the answers are always the same."""

    weight = 4

    def train(self, room):
        body = json.dumps(lease(room, "u", "s", 1)).encode()
        half = len(body) // 2
        return [(request("PUT", "/leases", body), False), (request("GET", "/healthz"), False),
                (request("HEAD", presence_path(room)), True),
                (request("PUT", "/leases", b"%x;e=1\r\n%s\r\n%x\r\n%s\r\n0\r\nT: r\r\n\r\n" %
                         (half, body[:half], len(body) - half, body[half:]), "Transfer-Encoding: chunked"), False),
                (request("OPTIONS", "/leases"), False), (b"\r\n" + request("GET", "/nowhere"), False),
                (request("POST", "/rooms/%s/attendance" % room, b"{}", "Content-Type: application/json"), False),
                (request("DELETE", "/rooms/%s/leases/u/none" % room), False),
                (request("GET", presence_path(room, 2, wait_ms=1)), False),
                (request("GET", "/healthz", b"", "Connection: close"), False)]

    def test_at_every_byte(self):
        room = self.room()
        self.grant(room, "s", 1)
        train = self.train(room)
        data = b"".join(part for part, _ in train)
        expected = [200, 200, 200, 200, 204, 404, 400, 404, 200, 200]
        for cut in range(1, len(data)):
            with self.subTest(cut=cut, around=data[max(0, cut - 20):cut + 20]), Wire(self.base) as wire:
                wire.send(data[:cut])
                if cut % 4 == 0:
                    time.sleep(0.001)  # the others may arrive together: both ways are worth a look
                wire.send(data[cut:])
                got = [wire.reply(10, head_only=head) for _, head in train]
                self.assertNotIn(None, got)
                self.assertEqual([r.status for r in got], expected)
                self.assertIsNone(wire.reply(5))
        self.assertEqual(self.stored(room, "s")["revision"], 1)
        self.assertEqual(self.head(room), 2)

    def test_a_thousand_requests_at_once(self):
        """Pipelined without reading: answered in order, and nobody else waits for it."""
        room = self.room()
        self.grant(room, "s", 1)
        with Bystanders(self), Wire(self.base) as wire:
            wire.send(b"".join(request("PUT", "/leases", json.dumps(lease(room, "u", "s", i + 2)).encode())
                               for i in range(1000)))
            for i in range(1000):
                self.assertEqual(wire.reply(30)["lease"]["revision"], i + 2)
