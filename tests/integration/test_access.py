# SPDX-License-Identifier: Apache-2.0
"""Who may do what (CONTRACT §8): every kind of credential at every route, judged by a model that stands here."""

import collections
import itertools
import os
import re

from harness.case import Wire, all_replies, json, lease, quote, time
from harness.tokens import Guarded, bearer

ROUTE_C = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "http", "route.c")

#: Rooms, and whether the patterns of the credentials have them.
PATTERNS = ["class-7", "lab-*"]
ROOMS = {"class-7": True, "lab-1": True, "lab-": True, "class-71": False, "class-": False, "lab": False, "Lab-1": False}
OWN, FOREIGN = "an", "bo"
OWN_SESSION, FOREIGN_SESSION = "tab-1", "tab-2"

Right = collections.namedtuple("Right", "scopes rooms sub sid")
#: A credential: what it shows, what it is worth (None: nothing, since it is refused with this code).
Credential = collections.namedtuple("Credential", "shown right code")

ALL_SCOPES = ("presence:read", "presence:write", "members:write", "gateway", "admin")


# -- the model ---------------------------------------------------------------------------------------------------------


def has(right, scope):
    if not right.rooms:
        return False
    enough = {scope, "admin"} | ({"gateway"} if scope == "presence:write" else set())
    return bool(enough & set(right.scopes))


def covers(right, room):
    return any(room.startswith(p[:-1]) if p.endswith("*") else room == p for p in right.rooms)


def refusal(right, scope, cell):
    if not has(right, scope):
        return "missing_scope"
    return None if covers(right, cell.room) else "outside_rooms"


def may_read(right, cell):
    return refusal(right, "presence:read", cell)


def may_write(right, cell):
    code = refusal(right, "presence:write", cell)
    if code:
        return code
    if cell.user != right.sub and not {"gateway", "admin"} & set(right.scopes):
        return "not_your_user"
    return "not_your_session" if right.sid not in (None, cell.session) else None


def may_keep_members(right, cell):
    return refusal(right, "members:write", cell)


def may_record(right, cell):
    if not has(right, "members:write"):
        return may_write(right, cell)
    return may_keep_members(right, cell)


def may_list_rooms(right, cell):
    """The cell's room is the prefix that is asked for."""
    if not has(right, "presence:read"):
        return "missing_scope"
    return None if any(p.endswith("*") and cell.room.startswith(p[:-1]) for p in right.rooms) else "outside_rooms"


def may_read_user(right, cell):
    if not has(right, "presence:read"):
        return "missing_scope"
    return None if "*" in right.rooms or cell.user == right.sub else "outside_rooms"


def may_administer(right, cell):
    """What webhooks tell is of all rooms."""
    return None if "admin" in right.scopes and "*" in right.rooms else "missing_scope"


def everybody(right, cell):
    return None


Route = collections.namedtuple("Route", "judge path body good dimensions")


def on(judge, path, good=(200,), body=None, dimensions="room"):
    return Route(judge, path, body, good, dimensions.split())


REVISIONS = itertools.count(1)


def own_lease(cell):
    """Newer than all before it: the session may have been closed by another cell."""
    return lease(cell.room, cell.user, cell.session, ttl_ms=60000, revision=next(REVISIONS))


def packet(cell):
    return {"user_id": cell.user, "session_id": cell.session, "data": {"x": 1}}


def record(cell):
    return {"user_id": cell.user, "action": "sign_in", "session_id": cell.session}


#: What each row of the table of routes is for. A row that is not here fails the test.
ROUTES = {
    ("PUT", "/leases"): on(may_write, "/leases", (200,), own_lease, "room user session"),
    ("GET", "/rooms/{room}/presence"): on(may_read, "/rooms/{room}/presence?wait_ms=0"),
    ("POST", "/rooms/{room}/cursors"): on(may_write, "/rooms/{room}/cursors", (202, 409), packet, "room user session"),
    ("GET", "/rooms/{room}/cursors"): on(may_read, "/rooms/{room}/cursors?wait_ms=0"),
    ("DELETE", "/rooms/{room}/leases/{user}/{session}"):
        on(may_write, "/rooms/{room}/leases/{user}/{session}", (200, 404), None, "room user session"),
    ("GET", "/rooms/{room}/leases"): on(may_read, "/rooms/{room}/leases"),
    ("GET", "/rooms"): on(may_list_rooms, "/rooms?prefix={room}"),
    ("GET", "/last-seen"): on(may_read_user, "/last-seen?user_id={user}", dimensions="user"),
    ("GET", "/users/{user}/presence"): on(may_read_user, "/users/{user}/presence", dimensions="user"),
    ("GET", "/rooms/{room}/last-seen"): on(may_read, "/rooms/{room}/last-seen"),
    ("GET", "/rooms/{room}/users/{user}/explain"):
        on(may_read, "/rooms/{room}/users/{user}/explain", dimensions="room user"),
    ("PUT", "/rooms/{room}/members/{user}"):
        on(may_keep_members, "/rooms/{room}/members/member-of-{user}", (200,), lambda cell: {"role": "student"},
           "room user"),
    ("DELETE", "/rooms/{room}/members/{user}"):
        on(may_keep_members, "/rooms/{room}/members/member-of-{user}", (200,), None, "room user"),
    ("GET", "/rooms/{room}/members"): on(may_keep_members, "/rooms/{room}/members"),
    ("GET", "/rooms/{room}/members/{user}"):
        on(may_keep_members, "/rooms/{room}/members/member-of-{user}", (200, 404), None, "room user"),
    ("POST", "/rooms/{room}/attendance"):
        on(may_record, "/rooms/{room}/attendance", (201,), record, "room user session"),
    ("GET", "/rooms/{room}/attendance"): on(may_keep_members, "/rooms/{room}/attendance"),
    ("GET", "/"): on(everybody, "/", dimensions=""),
    ("GET", "/www/{file}"): on(everybody, "/www/page.js", dimensions=""),
    ("GET", "/healthz"): on(everybody, "/healthz", dimensions=""),
    ("GET", "/readyz"): on(everybody, "/readyz", dimensions=""),
    ("GET", "/webhooks"): on(may_administer, "/webhooks", dimensions=""),
    ("GET", "/webhooks/dead"): on(may_administer, "/webhooks/dead", dimensions=""),
    ("POST", "/webhooks/replay"): on(may_administer, "/webhooks/replay", (404,), lambda cell: {"target": "t"}, ""),
    ("GET", "/metrics"): on(everybody, "/metrics", dimensions=""),
    ("GET", "/openapi.json"): on(everybody, "/openapi.json", dimensions=""),
}

Cell = collections.namedtuple("Cell", "room user session")


def cells(dimensions):
    """All combinations of what the route looks at."""
    for room in ROOMS if "room" in dimensions else ["class-7"]:
        for user in (OWN, FOREIGN) if "user" in dimensions else [OWN]:
            for session in (OWN_SESSION, FOREIGN_SESSION) if "session" in dimensions else [OWN_SESSION]:
                yield Cell(room, user, session)


def table():
    """The rows of the table of routes, as (method, pattern)."""
    with open(ROUTE_C, encoding="utf-8") as f:
        text = f.read()
    text = text[text.index("const struct route routes[] = {"):]
    rows = re.findall(r'\{"([A-Z]+)",\s*"(/[^"]*)",', text[:text.index("\n};")])
    if len(rows) + 1 != text[:text.index("\n};")].count("GUARD_"):  # the last one ends the table
        raise AssertionError("the table of routes cannot be read: %r" % rows)
    return rows


# -- the tests ---------------------------------------------------------------------------------------------------------


class Judged(Guarded):
    """A daemon, and every kind of credential for it."""

    @classmethod
    def begin(cls):
        super().begin()
        cls.credentials = cls.make_credentials()
        cls.reload()

    @classmethod
    def make_credentials(cls):
        out = {"none": Credential(None, None, "no_credential")}

        def token(name, scopes, rooms=PATTERNS, sub=OWN, sid=None, code=None, **claims):
            shown = cls.key.token(scope=" ".join(scopes), rooms=rooms, sub=sub, sid=sid, **claims)
            out[name] = Credential(shown, None if code else Right(scopes, rooms or [], sub, sid), code)

        def api_key(name, scopes, rooms=PATTERNS):
            shown = cls.keys.add(name, ",".join(scopes), ",".join(rooms))
            out[name] = Credential(shown, Right(scopes, rooms, None, None), None)

        for scope in ALL_SCOPES:
            token("token " + scope, [scope])
            api_key("key-" + scope.replace(":", "-"), [scope])
        token("student", ["presence:read", "presence:write"])
        token("one tab", ["presence:read", "presence:write"], sid=OWN_SESSION)
        token("dashboard", ["presence:read"], rooms=["*"], sub=None)
        token("everywhere", ["presence:write", "presence:read"], rooms=["*"])
        token("nobody", ["presence:read", "presence:write"], sub=None)
        token("registrar", ["presence:write", "members:write"])
        api_key("everything", ["admin"], ["*"])
        token("no scope", [])
        token("unknown scope", ["presence:readwrite", "ADMIN", "root"])
        token("no rooms", ["admin"], rooms=[])
        token("rooms left out", ["admin"], rooms=None)
        token("expired", ["admin"], rooms=["*"], code="token_expired", exp=int(time.time()) - 60)
        out["scope left out"] = Credential(cls.key.token(scope=None, rooms=["*"]), Right([], ["*"], OWN, None), None)
        out["unsigned"] = Credential(cls.key.token(scope="admin", rooms=["*"])[:-8] + "AAAAAAAA", None,
                                     "bad_credential")
        out["unknown key"] = Credential("sh_no-such-key", None, "bad_credential")
        return out


class Matrix(Judged):
    weight = 20

    def test_every_row_has_an_expectation(self):
        rows = table()
        self.assertGreater(len(rows), 10)
        self.assertEqual([r for r in rows if r not in ROUTES], [], "rows of route.c without an expectation here")

    def test_matrix(self):
        counted = collections.Counter()
        wrong = []
        for name, credential in self.credentials.items():
            for method, pattern in table():
                route = ROUTES[method, pattern]
                for cell in cells(route.dimensions):
                    fault = self.one(credential, method, route, cell)
                    counted[name] += 1
                    if fault:
                        wrong.append("%s, %s %s, %r: %s" % (name, method, pattern, tuple(cell), fault))
        each = sum(len(list(cells(ROUTES[row].dimensions))) for row in table())
        self.assertEqual(counted, {name: each for name in self.credentials})
        print("test_access: %d cells, %d credentials" % (sum(counted.values()), len(counted)))
        self.assertEqual(wrong[:20], [], "%d of %d cells" % (len(wrong), sum(counted.values())))

    def one(self, credential, method, route, cell):
        """Asks one cell. @return what is wrong, or None"""
        if route.judge is everybody:
            status, code = route.good, None
        elif credential.code:
            status, code = (401,), credential.code
        else:
            code = route.judge(credential.right, cell)
            status = (403,) if code else route.good
        path = route.path.format(**{k: quote(v) for k, v in cell._asdict().items()})
        headers = bearer(credential.shown)
        body = None
        if route.body:
            body = json.dumps(route.body(cell))
            headers["Content-Type"] = "application/json"
        reply = self.client.request(self.base, method, path, body=body, headers=headers)
        if reply.status not in status:
            return "%d in the place of %r (%s)" % (reply.status, status, code)
        if code and reply["code"] != code:
            return "%s in the place of %s" % (reply["code"], code)
        if (reply.status == 401) != ("www-authenticate" in reply.headers):
            return "WWW-Authenticate with %d: %r" % (reply.status, reply.headers)
        return None


class Doors(Judged):
    """What stands beside the matrix."""

    config = {"ttl_min_ms": 100}

    def ask(self, method, path, credential=None, body=None, headers=None):
        headers = dict(bearer(self.credentials[credential].shown) if credential else {}, **(headers or {}))
        if isinstance(body, dict):
            body = json.dumps(body)
            headers["Content-Type"] = "application/json"
        return self.client.request(self.base, method, path, body=body, headers=headers)

    def test_what_does_not_exist_is_said_to_everybody(self):
        self.problem(self.ask("GET", "/nowhere"), 404, "not_found")
        self.problem(self.ask("PATCH", "/leases"), 405, "method_not_allowed")
        self.problem(self.ask("GET", "/rooms//presence"), 400, "bad_path")
        self.assertEqual(self.ask("OPTIONS", "/leases").status, 204)

    def test_head_is_guarded_as_get_is(self):
        path = "/rooms/class-7/presence?wait_ms=0"
        for credential, status in ((None, 401), ("token presence:write", 403), ("student", 200)):
            self.assertEqual(self.ask("HEAD", path, credential).status, status, credential)

    def test_a_token_in_the_query_is_none(self):
        token = self.credentials["student"].shown
        reply = self.ask("GET", "/rooms/class-7/presence?access_token=" + token)
        self.problem(reply, 401, "no_credential")
        reply = self.ask("GET", "/rooms/class-7/presence?access_token=" + token, "student")
        self.problem(reply, 400, "bad_parameter", "access_token")
        self.assertNotIn(token.encode(), reply.body)

    def test_the_challenge(self):
        reply = self.ask("GET", "/rooms/class-7/leases")
        self.assertEqual(reply.headers["www-authenticate"], 'Bearer realm="stillhere"')
        for credential in ("unsigned", "expired"):
            reply = self.ask("GET", "/rooms/class-7/leases", credential)
            self.assertEqual(reply.headers["www-authenticate"], 'Bearer realm="stillhere", error="invalid_token"')

    def test_items_of_a_batch_are_judged_by_themselves(self):
        mine = lease("lab-batch", OWN, "s", ttl_ms=60000)
        items = [mine, lease("lab-batch", FOREIGN, "s"), lease("elsewhere", OWN, "s"), {"room_id": "lab-batch"},
                 lease("lab-batch", OWN, "t")]
        reply = self.ask("PUT", "/leases", "student", {"leases": items})
        self.assertEqual(reply.status, 200, reply)
        results = reply["results"]
        self.assertEqual([r.get("code") or r["decision"] for r in results],
                         ["accepted", "not_your_user", "outside_rooms", "missing_field", "accepted"])
        self.problem_object(results[1], 403)
        self.assertEqual(self.count("lease", room_id="lab-batch"), 2)
        self.assertEqual(self.count("lease", room_id="elsewhere"), 0)
        refused = self.ask("PUT", "/leases", "student", {"leases": items[1:3]})
        self.assertEqual([r["status"] for r in refused["results"]], [403, 403])

    def test_since_on_a_heartbeat_reads_the_room(self):
        beat = lease("class-7", OWN, "since", ttl_ms=60000)
        for credential in ("token presence:write", "token gateway", "key-gateway"):
            with self.subTest(credential=credential):
                for query in ("?since=0", "?since=0&epoch=zzz"):
                    self.problem(self.ask("PUT", "/leases" + query, credential, beat), 403, "missing_scope")
        self.assertEqual(self.count("lease", session_id="since"), 0)
        self.assertIn("presence", self.ok(self.ask("PUT", "/leases?since=0", "student", beat)))

    def test_a_refusal_changes_nothing(self):
        self.ok(self.ask("PUT", "/leases", "student", lease("class-7", OWN, "kept", 5, 60000)))
        before = self.stored("class-7", "kept", OWN)
        for credential in ("one tab", "token presence:read", "expired", "nobody", "key-presence-write"):
            self.assertIn(self.ask("PUT", "/leases", credential, lease("class-7", OWN, "kept", 9)).status, (401, 403))
            self.assertIn(self.ask("DELETE", "/rooms/class-7/leases/an/kept", credential).status, (401, 403))
            self.assertIn(self.ask("POST", "/rooms/class-7/cursors", credential,
                                   {"user_id": OWN, "session_id": "kept", "data": {}}).status, (401, 403))
        self.assertEqual(self.stored("class-7", "kept", OWN), before)

    def test_rooms_that_exist_and_rooms_that_do_not_answer_alike(self):
        self.ok(self.ask("PUT", "/leases", "everything", lease("secret-room", OWN, "s", ttl_ms=60000)))
        def told(room):
            reply = self.ask("GET", "/rooms/%s/presence" % room, "student")
            document = reply.json()
            del document["request_id"]
            return reply.status, document
        self.assertEqual(told("secret-room"), told("no-such-room"))
        self.assertEqual(told("secret-room")[0], 403)

    def test_last_seen_of_several(self):
        self.assertEqual(self.ask("GET", "/last-seen?user_id=an&user_id=an", "student").status, 200)
        self.problem(self.ask("GET", "/last-seen?user_id=an&user_id=bo", "student"), 403, "outside_rooms")
        self.assertEqual(self.ask("GET", "/last-seen?user_id=an&user_id=bo", "dashboard").status, 200)

    # -- before the body -----------------------------------------------------------------------------------------------

    def test_a_short_body_is_swallowed_and_the_connection_lives(self):
        body = b"x" * 60000
        with Wire(self.base) as wire:
            for _ in range(3):
                wire.send(b"PUT /leases HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                reply = wire.reply()
                self.problem(reply, 401, "no_credential")
                self.assertNotIn("close", reply.headers.get("connection", ""))
            wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(wire.reply().status, 200)

    def test_a_request_inside_of_a_refused_body_is_none(self):
        """Refused before the body is read: what stands in it is never taken for the next request."""
        hidden = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        for size in (len(hidden), 20000, 100000, 900000):
            body = (hidden * (size // len(hidden) + 1))[:size]
            for length, sent in ((b"Content-Length: %d" % size, body),
                                 (b"Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (size, body))):
                with self.subTest(size=size, length=length), Wire(self.base) as wire:
                    try:
                        wire.send(b"PUT /leases HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n\r\n" + sent +
                                  b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    except OSError:
                        pass  # closed while we were still sending
                    got = [reply.status for reply in all_replies(wire.until_eof(10))]
                    self.assertIn(got, ([401], [401, 404], []) if size > 60000 else ([401], [401, 404]))

    def test_who_asks_before_sending_is_refused_before(self):
        for shown in (b"", b"Authorization: Bearer x\r\n"):
            with Wire(self.base) as wire:
                wire.send(b"PUT /leases HTTP/1.1\r\nHost: x\r\n" + shown +
                          b"Expect: 100-continue\r\nContent-Length: 50\r\n\r\n")
                self.problem(wire.reply(5), 401)

    def test_a_long_body_is_not_taken(self):
        for head in (b"Content-Length: 900000", b"Transfer-Encoding: chunked"):
            with Wire(self.base) as wire:
                wire.send(b"PUT /leases HTTP/1.1\r\nHost: x\r\nAuthorization: Basic eA==\r\n" + head + b"\r\n\r\n")
                reply = wire.reply(3)  # not a byte of the body has been sent
                self.problem(reply, 401, "bad_credential")
                self.assertEqual(reply.headers["connection"], "close")
                self.assertEqual(reply.headers["www-authenticate"], 'Bearer realm="stillhere", error="invalid_token"')
                wire.until_eof(5)

    def test_refusals_are_counted(self):
        def count(code):
            return self.metrics(self.base)['stillhere_refused_total{code="%s"}' % code]
        before = {code: count(code) for code in ("no_credential", "bad_credential", "outside_rooms", "not_your_user")}
        self.ask("GET", "/rooms/class-7/leases")
        self.ask("GET", "/rooms/class-7/leases", "unknown key")
        self.ask("GET", "/rooms/other/leases", "student")
        self.ask("PUT", "/leases", "student", {"leases": [lease("class-7", FOREIGN, "s")] * 3})
        after = {code: count(code) for code in before}
        self.assertEqual({c: after[c] - before[c] for c in before},
                         {"no_credential": 1, "bad_credential": 1, "outside_rooms": 1, "not_your_user": 3})


class Metrics(Judged):
    config = {"metrics_access": "credential"}

    def test_metrics_for_credentials(self):
        for name, credential in self.credentials.items():
            reply = self.client.get(self.base, "/metrics", headers=bearer(credential.shown))
            if credential.code:
                self.problem(reply, 401, credential.code)
            elif has(credential.right, "presence:read"):
                self.assertEqual(reply.status, 200, name)
            else:
                self.problem(reply, 403, "missing_scope")
