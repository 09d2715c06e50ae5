# SPDX-License-Identifier: Apache-2.0
"""Every kind of odd request to every route: refused clearly, and nothing has changed afterwards."""

import re

from harness import routes
from harness.bystanders import Bystanders
from harness.case import REVISION_MAX, Case, Wire, json, lease, quote, raw
from harness.process import descriptors

ROUTES = routes.read()
PATTERNS = sorted({r.pattern for r in ROUTES})
BODIES = [r for r in ROUTES if r.has_body]

#: Path segments that are none.
BAD_SEGMENTS = ("%00", "a%00b", "%", "a%", "%4", "%zz", "%4g", "%%41", ".", "..", "%2e", "%2E%2e", ".%2E", "", "%c0%af",
                "%C0%80", "%e0%80%af", "%f0%80%80%af", "%ed%a0%80", "%ff", "%f4%90%80%80", "%f8%88%80%80%80", "%e2%82",
                "%01", "%1F", "%0a", "%0d%0a", "%09", "%7f", "x" * 129, "%61" * 129, "%C3%A9" * 65)
#: And those that are names like any other.
GOOD_SEGMENTS = ("%2F", "%2f", "a%2F..%2Fb", "%41", "%2e%2e%2e", "...", "a+b", "a;b=c", "a:b@c", "x" * 128, "%C3%A9" * 64,
                 "%f0%9f%98%80", "%C2%80", "%e2%80%ae", "%20", "%3F%23%25", "%5C%22%27", "*", "~", "!$&'()*,", "%EF%BB%BF")
#: Values of numbers that are none; an empty one too.
BAD_NUMBERS = ("", "-1", "-0", "%2B1", "+1", "1e3", "1.0", "1.", ".5", "0x10", "0b1", "1_000", "1,2", "NaN", "Infinity",
               "null", "true", "%201", "1%20", "1%00", "%D9%A1", "%EF%BC%91", "9007199254740992", "9223372036854775807",
               "9223372036854775808", "18446744073709551616", "-9223372036854775809", "9" * 400, "1%0a", "[1]", "1;2")
#: Connections to the database that are opened when they are first needed: stragglers, readers, changers.
LAZY = 8
#: What only numbers may be, wherever it is taken.
NUMBERS = ("since", "wait_ms", "limit", "revision")


def request(method, target, body=b"", *headers):
    lines = ["%s %s HTTP/1.1" % (method, target), "Host: x"] + list(headers)
    if body and not any(h.lower().startswith(("content-length", "transfer-encoding")) for h in headers):
        lines.append("Content-Length: %d" % len(body))
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class Sweep(Case):
    """All tests look at the rows, the descriptors, the log and the count of 5xx before and afterwards."""

    weight = 12
    # No lease may end meanwhile, and nothing else change by itself.
    config = {"sweep_interval_ms": 3600000, "last_seen_flush_ms": 3600000}

    @classmethod
    def begin(cls):
        super().begin()
        cls.home = cls.__name__.lower()
        test = cls("setUp")
        for i in range(3):
            test.ok(test.hb(test.base, cls.home, "u%d" % i, "s", 5, 3600000, {"n": i}))
        test.ok(test.client.close(test.base, cls.home, "u2", "s"))
        reply = test.client.request(test.base, "PUT", "/rooms/%s/members/u0" % cls.home, body='{"role":"student"}')
        assert reply.status in (200, 201), reply
        reply = test.client.request(test.base, "POST", "/rooms/%s/attendance" % cls.home,
                                    body='{"user_id":"u0","action":"sign_in"}',
                                    headers={"Content-Type": "application/json"})
        assert reply.status == 201, reply

    def setUp(self):
        super().setUp()
        self.before = self.state()
        self.log_before = len(self.daemons[0].text())

    def state(self):
        """A fingerprint of all rows but the sweeper's pulse, the daemon's descriptors, and its 5xx."""
        tables = self.q("SELECT table_name FROM information_schema.tables WHERE table_schema = 'stillhere' AND table_type "
                        "= 'BASE TABLE' AND table_name NOT IN ('pulse', 'schema_migration') ORDER BY 1").split()
        rows = {t: self.q("SELECT count(*), md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), '')) FROM "
                          "stillhere.%s t WHERE t::text NOT LIKE '%%bystanders-%%'" % t) for t in tables}
        metrics = self.metrics(self.base)
        errors = [v for k, v in metrics.items() if "5xx" in k]
        return rows, errors, descriptors(self.daemons[0]), metrics["stillhere_connections"]

    def tearDown(self):
        rows, errors, open_, connections = self.before
        now = self.state()
        self.assertEqual(now[0], rows, "rows have changed")
        self.assertEqual(now[1], errors, "there was a 5xx")
        self.wait_until(lambda: descriptors(self.daemons[0]) <= open_ + LAZY, 6, "no descriptor left behind")
        log = self.daemons[0].text()[self.log_before:]
        self.assertEqual([x for x in log.splitlines() if re.search(r"^\S+ (warning|error): ", x)], [])

    def answers(self, wire, method, target, body=b"", *headers):
        """One request on a connection that stays, unless the server ends it. @return (reply, connection)"""
        wire.send(request(method, target, body, *headers))
        reply = wire.reply(10, head_only=method == "HEAD")
        self.assertIsNotNone(reply, "closed without an answer")
        if reply.headers.get("connection", "").lower() == "close":
            self.assertIsNone(wire.reply(5))
            wire.close()
            return reply, Wire(self.base)
        return reply, wire

    def refused(self, wire, statuses, method, target, body=b"", *headers):
        """Demands a problem with one of these statuses. @return the connection for the next one"""
        with self.subTest(method=method, target=target[:200], body=body[:200], headers=[h[:100] for h in headers]):
            reply, wire = self.answers(wire, method, target, body, *headers)
            self.assertIn(reply.status, statuses, reply)
            if method != "HEAD":
                self.problem(reply, reply.status)
        return wire


class Targets(Sweep):
    """Methods, paths and queries."""

    def test_methods(self):
        with Bystanders(self):
            wire = Wire(self.base)
            for pattern in PATTERNS:
                allowed = routes.methods(ROUTES, pattern)
                target = routes.Route("", pattern, [], "").path()
                for method in ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "TRACE", "CONNECT", "get", "Put", "FOO",
                               "PROPFIND", "OPTIONS", "GETGETGETGETGETGETGET"):
                    if method in allowed - {"OPTIONS"}:
                        continue
                    with self.subTest(method=method, target=target):
                        reply, wire = self.answers(wire, method, target)
                        self.assertEqual(reply.status, 204 if method == "OPTIONS" else 405, reply)
                        self.assertEqual(set(reply.headers["allow"].split(", ")), allowed)
                        if method not in ("OPTIONS", "HEAD"):
                            self.problem(reply, 405, "method_not_allowed")
            reply, wire = self.answers(wire, "OPTIONS", "*")
            self.assertIn(reply.status, (200, 204))
            wire = self.refused(wire, (400, 404), "GET", "*")
            wire.close()

    def test_path_segments(self):
        with Bystanders(self):
            wire = Wire(self.base)
            for route in ROUTES:
                for name in route.params:
                    for segment in BAD_SEGMENTS:
                        wire = self.refused(wire, (400,), route.method, route.path(**{name: segment}))
            wire.close()

    def test_names_like_any_other(self):
        wire = Wire(self.base)
        for route in ROUTES:
            if route.method != "GET":
                continue
            for name in route.params:
                for segment in GOOD_SEGMENTS:
                    with self.subTest(route=route, segment=segment):
                        reply, wire = self.answers(wire, "GET", route.path(**{name: segment}))
                        self.assertIn(reply.status, (200, 404), reply)
        wire.close()

    def test_paths_near_a_route(self):
        wire = Wire(self.base)
        for route in ROUTES:
            path = route.path()
            for target in (path + "/", path + "//", "/" + path, path + "/x/y/z", path.upper(), path + "%2F", path + "%00",
                           path + "%20", path + ";a=b", path + "/.", path + "/..", path + "\\", "/." + path,
                           "/x/.." + path, path.replace("/", "%2F"), path[1:] or "x", path + "/x" * 40,
                           path.replace("/", "\\"), "/%2e%2e" + path, path + "#", path + "#x"):
                if target in ("/", "x") or routes_match(target):
                    continue
                wire = self.refused(wire, (400, 404), route.method, target)
        wire.close()

    def test_queries(self):
        wire = Wire(self.base)
        for route in ROUTES:
            path = route.path()
            bad = ["nonsense=1", "=", "&", "=1", "%00=1", "a%00=1", "%ff=1", "%=1", "x" * 3000, "&".join("q%d=1" % i for i in
                   range(200)), "?", "a[]=1", "__proto__=1"]
            for name in route.query:
                bad += [name, name.upper() + "=1", name + "%00=1", name + "=%00", name + "=%ff", name + "=%c0%af",
                        name + "=%4", name + "=1&", "&" + name + "=1", name + "=1&&limit=1", name + "[]=1"]
                if name != "user_id" or route.pattern != "/last-seen":
                    bad += ["%s=1&%s=1" % (name, name), "%s=1&%%%02x%s=2" % (name, ord(name[0]), name[1:])]
            for query in bad:
                wire = self.refused(wire, (400,), route.method, path + "?" + query)
        wire.close()

    def test_numbers_in_queries(self):
        with Bystanders(self):
            wire = Wire(self.base)
            seen = 0
            for route in ROUTES:
                for name in set(route.query) & set(NUMBERS):
                    seen += 1
                    bad = BAD_NUMBERS + (("0", "1001") if name == "limit" else ())
                    for value in bad:
                        if name == "wait_ms" and value.isdigit():
                            continue  # cut to the longest wait
                        body = b"" if not route.has_body else json.dumps(lease("r", "u", "s")).encode()
                        # An epoch belongs to a cursor; wait_ms needs none.
                        wire = self.refused(wire, (400,), route.method, "%s?%s=%s" % (route.path(), name, value), body)
            self.assertGreaterEqual(seen, 8)
            wire.close()

    def test_numbers_at_their_edges(self):
        """2^53-1 is the last one; a wait is clamped, not refused; zeros in front change nothing or are refused."""
        wire = Wire(self.base)
        home = quote(self.home)
        for target, status in (("/rooms/%s/presence?since=%d" % (home, REVISION_MAX), 200),
                               ("/rooms/%s/presence?since=0&wait_ms=0" % home, 200),
                               ("/rooms/%s/presence?since=0&wait_ms=%d" % (home, REVISION_MAX), 200),
                               ("/rooms/%s/presence?since=0&wait_ms=%s" % (home, "9" * 400), 200),
                               ("/rooms/%s/cursors?wait_ms=%s" % (home, "9" * 400), 200),
                               ("/rooms/%s/presence?limit=1000" % home, 200), ("/rooms/%s/presence?limit=1" % home, 200),
                               ("/rooms/%s/cursors?since=%d&wait_ms=0" % (home, REVISION_MAX), 200),
                               ("/rooms/%s/leases/nobody/s?revision=%d" % (home, REVISION_MAX), 404)):
            with self.subTest(target=target):
                reply, wire = self.answers(wire, "DELETE" if "revision" in target else "GET", target)
                self.assertEqual(reply.status, status, reply)
        for zeros in ("00", "01", "007"):
            reply, wire = self.answers(wire, "GET", "/rooms/%s/presence?since=%s&wait_ms=0" % (home, zeros))
            self.assertIn(reply.status, (200, 400), reply)
        wire.close()

    def test_heads_of_all(self):
        """HEAD has GET's status and length, and no body; nobody waits for it."""
        wire = Wire(self.base)
        for route in ROUTES:
            if route.method != "GET":
                continue
            for target in (route.path(), route.path(room=self.home, user="u0")):
                with self.subTest(target=target):
                    got, wire = self.answers(wire, "GET", target)
                    head, wire = self.answers(wire, "HEAD", target)
                    self.assertEqual(head.status, got.status)
                    self.assertEqual(head.headers.get("content-type"), got.headers.get("content-type"))
                    self.assertEqual(head.body, b"")
        reply, wire = self.answers(wire, "GET", "/healthz")
        self.assertEqual(reply.status, 200)
        wire.close()

    def test_targets_of_other_forms(self):
        for target, statuses in (("http://x/healthz", (200,)), ("HTTP://y:99/healthz?", (200,)), ("http://x", (200,)),
                                 ("https://user:pw@x/healthz", (200, 400)), ("ftp://x/healthz", (400, 404)),
                                 ("http:/healthz", (400, 404)), ("//x/healthz", (400, 404)), ("x:80", (400, 404)),
                                 ("healthz", (400, 404)), ("http://x/../healthz", (400,)), ("", (400,)),
                                 ("/healthz HTTP/1.1", (400,)), ("/a b", (400,)), ("/healthz\x00", (400,)),
                                 ("/heal\x00thz", (400,)), ("/healthz\x01", (400,)), ("/healthz\t", (400,)),
                                 ("/healthz\x7f", (400,)), ("/\xff", (400,)), ("/h\xc3\xa9", (400, 404))):
            with self.subTest(target=target), Wire(self.base) as wire:
                wire.send(request("GET", target, b"", "Connection: close"))
                data = wire.until_eof(10)
                self.assertIn(int(data[9:12] or b"400"), statuses, data[:300])


def routes_match(path):
    """Whether a path is another route's, or its own in other words."""
    return any(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", p), path) for p in PATTERNS)


#: Documents that are no JSON, or none of ours, whatever the route.
BAD_JSON = [t if isinstance(t, bytes) else t.encode() for t in (
    "", " ", "\n\n", "{", "}", "[", "]", "{}x", "{}{}", "{} []", "null", "true", "0", "-", '""', "[]", "[{}]", "{,}", '{"a"}',
    '{"a":}', '{"a":1,}', '{"a":1 "b":2}', "{'a':1}", "{a:1}", '{"a":01}', '{"a":+1}', '{"a":.5}', '{"a":1.}', '{"a":1e}',
    '{"a":0x1}', '{"a":NaN}', '{"a":Infinity}', '{"a":-Infinity}', '{"a":undefined}', '{"a":1e400}', '{"a":-1e400}',
    '{"a":TRUE}', '{"a":"\t"}', '{"a":"\n"}', '{"a":"\x01"}', '{"a":"\\x41"}', '{"a":"\\u12"}', '{"a":"\\ud800"}',
    '{"a":"\\udc00\\ud800"}', '{"a":"\\u0000"}', '{"\\u0000":1}', '{"a":1,"a":2}', '{"a":1,"\\u0061":2}', "{}/**/", "// x\n{}",
    '{"a":1}#', "\ufeff{}", '{"a":"', "[" * 5000, '{"a":' * 5000, "{" * 5000, '{"a":%s}' % ("9" * 5000), '{"a":1e9999999999}',
    '{"a":-0.0e-99999}', "\u2028{}", "{}\u00a0", "{}\x0c", b"\x00", b"{}\x00", b"{\x00}", b'{"a":"\xff"}', b'{"a":"\xc0\x80"}',
    b'{"a":"\xed\xa0\x80"}', b'{"a":"\xf4\x90\x80\x80"}', b"\xff\xfe{\x00}\x00", b"\x1f\x8b\x08\x00", b'{"a":"\xe2\x82"}',
    b"a=1&b=2", b"<a/>", b"--x\r\n", b"\xa1\x61\x61\x01")]
#: Values that no field of ours takes: each is put in the place of each field.
BAD_VALUES = ("{}", "[]", "[1]", "1.5", "1.0", "-1", "-0", "1e3", "1E+2", "true", "false", '"\\u0000"', '"\\u0007"', '"\\u007f"',
              '"%s"' % ("x" * 3000), "9007199254740992", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
              "1" + "0" * 300, "1e400", '""', "null")
#: For each route with a body: a document that is taken, as (field, JSON). Routes that are not here get BAD_JSON alone.
DOCUMENTS = {
    ("PUT", "/leases"): (("room_id", '"odd"'), ("user_id", '"u"'), ("session_id", '"s"'), ("revision", "7"),
                         ("ttl_ms", "60000"), ("client_time", '"2026-11-30T15:00:00.000Z"')),
    ("POST", "/rooms/{room}/cursors"): (("user_id", '"u"'), ("session_id", '"s"')),
    ("POST", "/rooms/{room}/attendance"): (("user_id", '"u"'), ("action", '"sign_in"'), ("session_id", '"s"'),
                                           ("note", '"n"')),
    ("PUT", "/rooms/{room}/members/{user}"): (("role", '"student"'),),
    ("POST", "/webhooks/replay"): (("target", '"t"'), ("room_id", '"odd"'), ("message", "7")),
}
#: What some fields do take of them.
TAKEN = {("note", '""'), ("note", "null"), ("role", "null"), ("session_id", "null"), ("note", '"%s"' % ("x" * 3000)),
         ("role", '""'), ("note", '"\\u0007"'), ("note", '"\\u007f"')}
TYPE = "Content-Type: application/json"


class Bodies(Sweep):
    """JSON of every bad kind, and values past every edge."""

    def test_json(self):
        with Bystanders(self):
            wire = Wire(self.base)
            for route in BODIES:
                for text in BAD_JSON:
                    if text == b"" and "members" in route.pattern:
                        continue  # a member without a role
                    wire = self.refused(wire, (400,), route.method, route.path(), text, TYPE)
                wire = self.refused(wire, (400, 413), route.method, route.path(), b"[" * 900000, TYPE)
            wire.close()

    def test_values(self):
        wire = Wire(self.base)
        for (method, pattern), fields in DOCUMENTS.items():
            target = routes.Route(method, pattern, [], "").path()
            names = [n for n, _ in fields]
            for name, _ in fields:
                for value in BAD_VALUES:
                    if (name, value) in TAKEN:
                        continue
                    parts = ['"%s":%s' % (n, value if n == name else v) for n, v in fields]
                    if "cursors" in pattern:
                        parts.append('"data":{}')
                    wire = self.refused(wire, (400,), method, target, ("{%s}" % ",".join(parts)).encode(), TYPE)
            whole = ['"%s":%s' % f for f in fields] + (['"data":{}'] if "cursors" in pattern else [])
            for extra in ('"x":1', '"%s":%s' % fields[0], '"":1', '"%s ":1' % names[0], '"%s":1' % names[0].upper(),
                          '"__proto__":{}', '"%s\\u0000":1' % names[0]):
                wire = self.refused(wire, (400,), method, target, ("{%s,%s}" % (",".join(whole), extra)).encode(), TYPE)
        wire.close()

    def test_every_route_with_a_body_is_known(self):
        """A route that is new is added to DOCUMENTS, with what it takes."""
        self.assertEqual({(r.method, r.pattern) for r in BODIES} - set(DOCUMENTS), set())

    def test_a_body_of_another_kind(self):
        wire = Wire(self.base)
        for route in BODIES:
            for encoding in ("gzip", "br", "deflate", "gzip, identity", "x"):
                wire = self.refused(wire, (415,), route.method, route.path(), b"{}", TYPE, "Content-Encoding: " + encoding)
            if route.method == "POST":
                for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
                             "application/jsonp", "", "application", "*/*", "application/json\x80"):
                    wire = self.refused(wire, (415,), "POST", route.path(), b"{}", "Content-Type: " + kind)
        wire.close()

    def test_items_of_a_batch(self):
        """One bad item never fails the others; here there are only bad ones."""
        items = []
        for name, _ in DOCUMENTS["PUT", "/leases"]:
            for value in BAD_VALUES:
                if "1e400" not in value and "808" not in value and len(value) < 200 and "u0000" not in value:
                    items.append("{%s}" % ",".join('"%s":%s' % (n, value if n == name else v)
                                                   for n, v in DOCUMENTS["PUT", "/leases"]))
        items += ["{}", "[]", "1", '"x"', "true", '{"leases":[]}']
        for text in items:
            reply = raw(self.base, request("PUT", "/leases", ('{"leases":[%s]}' % text).encode()))
            with self.subTest(item=text[:200]):
                if reply.status == 200:
                    (result,) = reply["results"]
                    self.problem_object(result, 400)
                else:
                    self.problem(reply, 400)
        for bad in ("{}", "null", '""', "0", "[]x", '{"0":{}}', "[%s]" % ",".join(["{}"] * 1001)):
            self.problem(raw(self.base, request("PUT", "/leases", ('{"leases":%s}' % bad).encode())), 400)
