# SPDX-License-Identifier: Apache-2.0
"""The document at /openapi.json: sound by itself, the same as the table of routes, and true."""

import gzip
import json
import os
import re
import shutil
import subprocess

from harness import openapi, routes, second_opinion
from harness.case import SLOW, Case
from harness.client import Wire, authority
from harness.receiver import Receiver, secret
from harness.recorder import Asked, Recorder
from harness.tokens import Guarded, bearer

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "src")
#: The validator with all that it needs, each pinned by version and hash. It names no registry: where npm looks is the
#: user's affair. To renew it: `npm install --package-lock-only --omit-lockfile-registry-resolved` in there.
VALIDATOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "validator")
ORIGIN = "https://app.example.org"
#: Where the daemon's own text has the codes of its problem objects: (status, code).
CODES = (r'\b([45]\d\d),\s*"([a-z_]+)"', r'\{"(?P<code>[a-z_]+)", (?P<status>[45]\d\d)\}',
         r'input_refuse\([&\w]+, ()"([a-z_]+)"', r'\.status = (\d+);\s*\w+\.code = "([a-z_]+)"')


class Document(Case):
    """What is served, and that it names what there is."""

    config = {"cors_origins": ORIGIN}

    def test_served(self):
        with open(openapi.DOCUMENT, "rb") as f:
            text = f.read()
        reply = self.client.get(self.base, "/openapi.json", {"Origin": ORIGIN})
        self.assertEqual(reply.status, 200)
        self.assertTrue(reply.body == text, "it is the file that was built in")
        self.assertEqual(reply.headers["content-type"].split(";")[0], "application/json")
        self.assertEqual(reply.headers["access-control-allow-origin"], ORIGIN)
        self.assertEqual(reply.headers["cache-control"], "no-cache")
        etag = reply.headers["etag"]
        head = self.client.request(self.base, "HEAD", "/openapi.json")
        self.assertEqual((head.status, head.body, head.headers["etag"]), (200, b"", etag))
        self.assertEqual(head.headers["content-length"], str(len(text)))
        packed = self.client.get(self.base, "/openapi.json", {"Accept-Encoding": "gzip"})
        self.assertEqual(packed.headers["content-encoding"], "gzip")
        self.assertEqual(packed.headers["etag"], "W/" + etag)
        self.assertTrue(gzip.decompress(packed.body) == text)
        for tag in (etag, packed.headers["etag"], '"x", ' + etag):
            again = self.client.get(self.base, "/openapi.json", {"If-None-Match": tag})
            self.assertEqual((again.status, again.body, again.headers["etag"]), (304, b"", etag))
        self.assertEqual(self.client.get(self.base, "/openapi.json", {"If-None-Match": '"x"'}).status, 200)
        self.problem(self.client.get(self.base, "/openapi.json?x=1"), 400, "bad_parameter", "x")
        self.problem(self.client.request(self.base, "PUT", "/openapi.json"), 405)

    def test_routes_and_parameters(self):
        api = openapi.api()
        table = {(r.method, r.pattern): set(r.query) for r in routes.read()}
        found = {}
        for method, path, operation in api.operations():
            found[method, path] = {p["name"] for p in api.parameters(operation, "query")}
            self.assertEqual([p["name"] for p in api.parameters(operation, "path")],
                             [s[1:-1] for s in path.split("/") if s.startswith("{")], path)
        self.assertEqual(found, table)

    def test_bodies(self):
        documented = {(m, p) for m, p, o in openapi.api().operations() if "requestBody" in o}
        self.assertEqual(documented, {(r.method, r.pattern) for r in routes.read() if r.has_body})

    def test_codes(self):
        """Each problem that the daemon has words for is documented with its status, and no other."""
        said = set()
        for directory, _, names in os.walk(SOURCES):
            for name in names if os.path.basename(directory) != "cli" else ():
                if name.endswith(".c"):
                    with open(os.path.join(directory, name), encoding="utf-8") as f:
                        text = f.read()
                    said |= {pair for pattern in CODES for pair in pairs(pattern, text)}
        api = openapi.api()
        documented = {("405", "method_not_allowed")}  # in words: of no operation, but of a path
        for _, _, operation in api.operations():
            for status, response in operation["responses"].items():
                content = api.schemas.at(response).get("content", {}).get("application/problem+json")
                if content:
                    documented |= {(status, code) for code in content["schema"]["properties"]["code"]["enum"]}
        self.assertEqual(sorted(said - documented), [], "the daemon says, and the document does not")
        self.assertEqual(sorted(documented - said), [], "the document says, and the daemon does not")
        codes = api.document["components"]["schemas"]["ProblemCode"]["enum"]
        self.assertEqual(codes, sorted({code for _, code in said}))

    def test_is_openapi_3_1(self):
        """By the validator of OpenAPI documents; and the schemas by the draft of JSON Schema that 3.1 names."""
        npm, node = shutil.which("npm"), shutil.which("node")
        self.assertTrue(npm and node, "nodejs and npm are not installed")
        place = os.path.join(self.directory, "validator")
        os.mkdir(place)
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(os.path.join(VALIDATOR, name), os.path.join(place, name))
        done = subprocess.run(
            [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"], cwd=place,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120 * SLOW)
        self.assertEqual(done.returncode, 0, "npm could not install the validator:\n" + done.stdout)
        tool = os.path.join(place, "node_modules", ".bin", "validate-api")
        document = openapi.load()
        code, said = self.judged(tool, openapi.DOCUMENT)
        self.assertEqual(code, 0, said)
        bad = os.path.join(self.directory, "bad.json")
        del document["paths"]["/leases"]["put"]["responses"]["200"]["description"]
        with open(bad, "w", encoding="utf-8") as f:
            json.dump(document, f)
        code, said = self.judged(tool, bad)
        self.assertNotEqual(code, 0, "it must be able to say no; it said " + said)
        self.assertEqual(second_opinion.ask(openapi.load(), []), [[]])

    def test_the_validator_is_pinned(self):
        with open(os.path.join(VALIDATOR, "package-lock.json"), encoding="utf-8") as f:
            packages = json.load(f)["packages"]
        with open(os.path.join(VALIDATOR, "package.json"), encoding="utf-8") as f:
            wanted = json.load(f)["dependencies"]
        self.assertEqual(packages.pop("")["dependencies"], wanted)
        self.assertGreater(len(packages), len(wanted))
        for name, package in packages.items():
            self.assertRegex(package.get("integrity", ""), "^sha512-", name)
            self.assertNotIn("resolved", package, name)

    def judged(self, tool, path):
        done = subprocess.run([tool, path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=60 * SLOW)
        return done.returncode, done.stdout[-2000:]

    def test_every_reference_is_used_and_there(self):
        document = openapi.load()
        text = json.dumps(document)
        for kind in ("schemas", "parameters", "responses", "headers"):
            for name in document["components"][kind]:
                self.assertIn('"#/components/%s/%s"' % (kind, name), text)
        schemas = openapi.Schemas(document)

        def visit(thing):
            if isinstance(thing, dict):
                schemas.at(thing)
            for each in thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list) else ():
                visit(each)
        visit(document)


def pairs(pattern, text):
    """(status, code) of each place in a source."""
    for match in re.finditer(pattern, text):
        named = match.groupdict()
        status, code = (named["status"], named["code"]) if named else match.groups()
        # What input_refuse() says is 400, unless it is the server that cannot.
        yield status or ("503" if code == "unavailable" else "400"), code


#: What makes any daemon refuse any request: the head behind the request line, by status. (A head of more than 16 KiB does
#: not come as far as the daemon's own code: libmicrohttpd refuses it, without a problem object.)
HEADS = {408: "Content-Length: 5\r\n", 413: "Content-Length: 99999999\r\n", 431: "X-Long: %s\r\n" % ("x" * 14500),
         501: "Transfer-Encoding: gzip, chunked\r\n"}


class Produced(Guarded):
    """Each documented status of each route comes out of a daemon, and its answer is as documented."""

    config = {"request_deadline_ms": 2000, "ttl_min_ms": 1000, "webhook_allow_private": "on"}
    autostart = False
    bound = 300

    def setUp(self):
        super().setUp()
        self.allow_5xx = True
        self.api = openapi.api()
        self.produced = {}  # (method, template, status): why it is wrong
        self.bodies = []  # (schema, value), for a second opinion

    def take(self, method, target, reply):
        """Judges an answer. @return it"""
        template = self.api.template(target)
        wrong = self.api.errors(method, template, reply.status, reply.headers, reply.body)
        self.produced.setdefault((method, template, reply.status), []).extend(wrong)
        response = self.api.schemas.at(self.api.operation(method, template)["responses"].get(str(reply.status), {}))
        content = response.get("content", {}).get(reply.headers.get("content-type", ""), {})
        if reply.headers.get("content-type", "").endswith(("/json", "+json")) and "schema" in content:
            self.bodies.append((content["schema"], reply.json()))
        return reply

    def ask(self, method, target, body=None, status=200, **headers):
        headers = dict(bearer(self.all), **{k.replace("_", "-"): v for k, v in headers.items()})
        if method == "POST":
            headers.setdefault("Content-Type", "application/json")
        text = None if body is None else json.dumps(body)
        reply = self.take(method, target, self.client.request(self.here.base, method, target, text, headers))
        self.assertEqual(reply.status, status, (method, target, reply))
        return reply

    def wire(self, base, route, head="", query="", credential=True):
        """A request whose body does not matter. @return the connection"""
        wire = Wire(base)
        wire.send(("%s %s%s HTTP/1.1\r\nHost: %s\r\n%s%s\r\n" % (
            route.method, route.path(), query, authority(base),
            "Authorization: Bearer %s\r\n" % self.all if credential else "", head)).encode())
        return wire

    def everywhere(self, base, statuses, **how):
        """The same request at every route that documents the status, all at once."""
        for status in statuses:
            waiting = [(r, self.wire(base, r, **how)) for r in routes.read()
                       if str(status) in self.api.operation(r.method, r.pattern)["responses"]]
            for route, wire in waiting:
                with wire:
                    reply = wire.reply(20)
                self.assertIsNotNone(reply, (route, status))
                self.assertEqual(reply.status, status, (route, reply))
                self.take(route.method, route.path(), reply)

    def held(self, base):
        """A connection that has been let in, and stays."""
        while True:
            wire = self.wire(base, routes.Route("GET", "/healthz", [], ""))
            if wire.reply().status == 200:
                return wire
            wire.close()
            self.pause(0.05)

    def refusals(self):
        base = self.here.base
        for status, head in HEADS.items():
            self.everywhere(base, [status], head=head)
        self.everywhere(base, [414], query="?" + "x" * 14500)
        self.everywhere(base, [400], query="?nonsense=1")
        self.everywhere(base, [415], head="Content-Encoding: gzip\r\nContent-Length: 0\r\n")
        self.everywhere(base, [401], credential=False)
        weak, self.all = self.all, self.key.token(sub="nobody", rooms=[], scope="")
        self.everywhere(base, [403])
        self.all = weak
        few = self.start_daemon(address_rate=1, address_burst=1)
        self.client.get(few.base, "/healthz")
        self.everywhere(few.base, [429], head="Content-Length: 0\r\n")
        self.forget(few)
        few.stop()
        full = self.start_daemon(max_connections=2)
        held = [self.held(full.base) for _ in range(2)]
        self.everywhere(full.base, [503])
        for wire in held:
            wire.close()

    def leases_and_watching(self, room):
        ids = {"room_id": room, "user_id": "an", "session_id": "tab"}
        self.ask("PUT", "/leases?since=0", dict(ids, revision=2, ttl_ms=60000, meta={"a": 1}))
        self.ask("PUT", "/leases", {"leases": [dict(ids, revision=1), dict(ids, session_id="other")]})
        self.ask("PUT", "/leases", dict(ids, revision=1), 409)
        lease = "/rooms/%s/leases/an/tab" % room
        self.ask("DELETE", lease + "?revision=1", status=409)
        presence = "/rooms/%s/presence" % room
        etag = self.ask("GET", presence + "?session_id=tab&user_id=an").headers.get("etag")
        etag = self.ask("GET", presence).headers["etag"]
        self.ask("GET", presence, status=304, If_None_Match=etag)
        for query in ("?since=1", "?since=1&limit=1", "?since=0&wait_ms=0&kinds=user.offline", "?view=users",
                      "?view=count", "?since=999"):
            self.ask("GET", presence + query)
        for path in ("/rooms", "/rooms?limit=1", "/rooms/%s/leases" % room, "/rooms/%s/last-seen?limit=1" % room,
                     "/last-seen?user_id=an&user_id=bo", "/users/an/presence", "/users/bo/presence",
                     "/rooms/%s/users/an/explain" % room, "/rooms/%s/users/bo/explain" % room):
            self.ask("GET", path)
        cursors = "/rooms/%s/cursors" % room
        point = {"user_id": "an", "session_id": "tab", "data": {"x": 1}}
        self.ask("POST", cursors, point, 202)
        self.ask("POST", cursors, dict(point, session_id="none"), 409)
        self.ask("GET", cursors)
        self.ask("DELETE", lease)
        self.ask("DELETE", lease)
        self.ask("DELETE", lease + "-none", status=404)
        self.ask("PUT", "/leases", ids, 410)
        self.ask("GET", cursors + "?since=0&wait_ms=0")
        self.ask("GET", "/rooms/%s/users/an/explain" % room)

    def members_and_attendance(self, room):
        member = "/rooms/%s/members/bo" % room
        self.ask("GET", member, status=404)
        self.ask("PUT", member, {"role": "student"})
        self.ask("GET", member)
        self.ask("GET", "/rooms/%s/members?limit=1" % room)
        self.ask("PUT", "/leases", {"room_id": room, "user_id": "bo", "session_id": "tab"})
        self.ask("DELETE", member)
        self.ask("DELETE", member)
        self.ask("PUT", "/leases", {"room_id": room, "user_id": "bo", "session_id": "tab"}, 403)
        self.ask("GET", "/rooms/%s/users/bo/explain" % room)
        record = "/rooms/%s/attendance" % room
        entry = {"user_id": "an", "action": "sign_in", "note": "here"}
        self.ask("POST", record, entry, 201, Idempotency_Key="k")
        self.ask("POST", record, entry, Idempotency_Key="k")
        self.ask("POST", record, dict(entry, note="there"), 409, Idempotency_Key="k")
        for query in ("", "?limit=1", "?format=csv", "?format=jsonl"):
            self.ask("GET", record + query)

    def webhooks(self, receiver, room):
        self.ask("GET", "/webhooks")
        self.wait_until(lambda: self.ask("GET", "/webhooks/dead?limit=1")["dead"], 30, "a dead letter")
        self.ask("GET", "/webhooks/dead")
        receiver.answer = lambda delivery: 200
        self.ask("POST", "/webhooks/replay", {"target": "default", "room_id": room})
        self.ask("POST", "/webhooks/replay", {"target": "nosuch"}, status=404)

    def service(self):
        for path in ("/", "/www/stillhere.js", "/www/style.css", "/www/icon.svg", "/openapi.json"):
            etag = self.ask("GET", path).headers["etag"]
            self.ask("GET", path, status=304, If_None_Match=etag)
        self.ask("GET", "/www/none", status=404)
        for path in ("/healthz", "/readyz", "/metrics"):
            self.ask("GET", path)

    def test_every_documented_status(self):
        self.all = self.key.token(sub="an", rooms=["*"], scope="admin")
        receiver = Receiver(lambda delivery: 410)
        self.addCleanup(receiver.close)
        path = os.path.join(self.key_directory, "webhook-secret")
        with open(path, "w", encoding="utf-8") as f:
            f.write(secret() + "\n")
        os.chmod(path, 0o644)
        self.here = self.start_daemon(webhook_url=receiver.url, webhook_secret_file=path, metrics_access="credential")
        room = self.room()
        self.leases_and_watching(room)
        self.members_and_attendance(room)
        self.webhooks(receiver, room)
        self.service()
        self.refusals()
        self.assertGreater(len(self.bodies), 200)
        for (_, value), wrong in zip(self.bodies, second_opinion.ask(self.api.document, self.bodies)):
            self.assertEqual(wrong, [], value)
        wrong = {k: v[:3] for k, v in self.produced.items() if v}
        self.assertEqual(list(wrong.items())[:5], [], "answers that the document does not allow")
        documented = {(m, p, int(s)) for m, p, o in self.api.operations() for s in o["responses"]}
        self.assertEqual(sorted(documented - set(self.produced)), [], "documented, and never produced here")


class Judge(Case):
    """The judge itself: it must be able to say no."""

    autostart = False

    def test_it_says_no(self):
        api = openapi.api()
        fine = {"content-type": "application/json", "x-request-id": "r"}
        body = b'{"user_id":"u","online":false,"rooms":[],"sessions":0,"last_seen_at":null,"last_seen_ago_ms":null,' \
               b'"server_time":"2026-11-30T15:00:00.000Z"}'
        path = "/users/{user}/presence"
        self.assertEqual(api.errors("GET", path, 200, fine, body), [])
        for status, headers, text in (
                (201, fine, body), (200, {"content-type": "application/json"}, body),
                (200, dict(fine, **{"content-type": "text/plain"}), body), (200, fine, body[:-1]),
                (200, fine, body.replace(b'"sessions":0', b'"sessions":true')),
                (200, fine, body.replace(b'"sessions":0', b'"sessions":-1')),
                (200, fine, body.replace(b'"sessions":0,', b"")),
                (200, fine, body.replace(b'"sessions":0', b'"sessions":0,"new":1')),
                (200, fine, body.replace(b".000Z", b"Z"))):
            self.assertNotEqual(api.errors("GET", path, status, headers, text), [], (status, headers, text))
        self.assertNotEqual(api.errors("GET", None, 200, fine, b"{}"), [])
        problem = b'{"type":"urn:stillhere:problem:%s","title":"t","status":409,"code":"%s","detail":"d","request_id":"r"}'
        told = dict(fine, **{"content-type": "application/problem+json"})
        for code, right in ((b"ignored_old_revision", True), (b"no_live_lease", False), (b"new_code", False)):
            self.assertEqual(api.errors("PUT", "/leases", 409, told, problem % (code, code)) == [], right, code)
        for target, body, right in (("?since=1", '{"leases":[{"room_id":"r","user_id":"u","session_id":"s"}]}', True),
                                    ("?since=x", None, False), ("?new=1", None, False), ("", '{"leases":[{}]}', False)):
            self.assertEqual(api.request_errors("PUT", "/leases", "/leases" + target, body) == [], right, target)
        event = '{"event_id":"e","revision":1,"kind":"user.online","at":"2026-11-30T15:00:00.000Z","user_id":"u"}'
        for name, data, right in (("user.online", event, True), ("user.online", event[:-1] + ',"new":1}', False),
                                  ("user.new", event, False)):
            self.assertEqual(api.message_errors("/rooms/{room}/presence", name, data) == [], right, name)

    def test_what_is_recorded(self):
        fine = {"content-type": "application/json", "x-request-id": "r"}
        recorder = Recorder()
        for _ in range(3):
            recorder.note("GET", "/users/u/presence", 200, fine, b"{}")
        recorder.note("GET", "/healthz", 200, fine, b'{"status":"ok"}')
        recorder.note_message("/rooms/r/presence", "user.online", "{}")
        self.assertEqual(len(recorder.violations()), 4, "three and a message; the one that is right is none")
        self.assertEqual(recorder.violations(), [])
        for _ in range(100):
            recorder.note("GET", "/users/u/presence", 200, fine, b"{}")
        self.assertTrue(0 < len(recorder.violations()) < 100)
        recorder.note("GET", "/users/u/presence", 200, fine, b'{"new":1}')
        self.assertEqual(len(recorder.violations()), 1, "a name that was not there before")
        off = Recorder(False)
        off.note("GET", "/users/u/presence", 200, fine, b"{}")
        self.assertEqual(off.violations(), [])

    def test_what_was_asked(self):
        asked = Asked()
        body = b"PUT /leases HTTP/1.1\r\nContent-Length: 4\r\n\r\n{}\r\n"
        for piece in (body + b"HEAD /healthz HTTP/1.1\r\n", b"\r\n", b"GET /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                      b"0\r\n\r\nGET /b HTTP/1.1\r\n\r\n"):
            asked.send(piece)
        self.assertEqual([asked.next(), asked.head_only(), asked.next(), asked.next(), asked.next()],
                         [("PUT", "/leases"), True, ("HEAD", "/healthz"), ("GET", "/a"), (None, "")])
