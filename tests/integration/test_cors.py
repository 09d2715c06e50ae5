# SPDX-License-Identifier: Apache-2.0
"""Calls from pages of other origins (cors_origins)."""

import subprocess
import time

from harness.case import ENVIRONMENT, SLOW, Case, Wire, json, presence_path
from harness.daemon import daemon_environment, free_port, program
from harness.tokens import Key

ORIGIN = "https://app.example.org"
OTHER = "http://localhost:5173"
FOREIGN = ("https://evil.example", "https://app.example.org.evil.example", "http://app.example.org",
           "https://app.example.org:444", "https://APP.example.org", "null", "", "https://app.example.org,",
           "https://app.example.org http://localhost:5173", "https://app.example.org/")


def cors_headers(headers):
    return sorted(name for name in headers if name.startswith("access-control-"))


class CorsCase(Case):
    weight = 4

    def ask(self, method, path, origin=ORIGIN, body=None, **headers):
        all_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if origin is not None:
            all_headers["Origin"] = origin
        return self.client.request(self.base, method, path, body=body, headers=all_headers)

    def preflight(self, path, method, origin=ORIGIN):
        return self.ask("OPTIONS", path, origin, Access_Control_Request_Method=method,
                        Access_Control_Request_Headers="authorization,content-type")

    def allowed(self, reply, origin=ORIGIN):
        self.assertEqual(reply.headers.get("access-control-allow-origin"), origin, reply)
        self.assertNotIn("access-control-allow-credentials", reply.headers)
        exposed = reply.headers["access-control-expose-headers"].lower().replace(" ", "").split(",")
        self.assertEqual(exposed, ["etag", "retry-after", "x-request-id", "www-authenticate", "allow"])


class Cors(CorsCase):
    config = {"cors_origins": "%s, %s" % (ORIGIN, OTHER), "max_body_bytes": 2000}

    @classmethod
    def begin(cls):
        cls.key = Key(ENVIRONMENT["directory"], "cors")
        cls.config = dict(cls.config, auth="jwt", jwt_key_file=cls.key.file)
        super().begin()

    # -- preflight -----------------------------------------------------------------------------------------------------

    def test_a_preflight_needs_no_token(self):
        for path, method in (("/leases", "PUT"), (presence_path("r"), "GET"), ("/rooms/r/cursors", "POST"),
                             ("/rooms/r/leases/u/s", "DELETE"), ("/rooms/r/members/u", "PUT"), ("/healthz", "GET")):
            with self.subTest(path=path):
                reply = self.preflight(path, method)
                self.assertEqual([reply.status, reply.body], [204, b""])
                self.assertEqual(reply.headers["access-control-allow-origin"], ORIGIN)
                self.assertIn(method, reply.headers["access-control-allow-methods"].split(", "))
                self.assertEqual(reply.headers["access-control-allow-methods"], reply.headers["allow"])
                asked = reply.headers["access-control-allow-headers"].split(", ")
                self.assertEqual(asked, ["authorization", "content-type", "if-none-match", "idempotency-key",
                                         "last-event-id", "x-request-id"])
                self.assertEqual(reply.headers["access-control-max-age"], "600")
                self.assertEqual(reply.headers["vary"], "Origin")
                self.assertNotIn("access-control-expose-headers", reply.headers)
                self.assertNotIn("access-control-allow-credentials", reply.headers)

    def test_a_foreign_preflight_learns_nothing(self):
        for origin in FOREIGN:
            with self.subTest(origin=origin):
                reply = self.preflight("/leases", "PUT", origin)
                self.assertEqual([reply.status, cors_headers(reply.headers), reply.headers["vary"]], [204, [], "Origin"])

    def test_options_without_a_method_asked_is_no_preflight(self):
        reply = self.ask("OPTIONS", "/leases")
        self.assertEqual(reply.status, 204)
        self.assertNotIn("access-control-allow-methods", reply.headers)
        self.allowed(reply)

    def test_a_preflight_of_no_path(self):
        reply = self.preflight("/nowhere", "GET")
        self.assertEqual(reply.status, 404)
        self.assertNotIn("access-control-allow-methods", reply.headers)

    # -- replies -------------------------------------------------------------------------------------------------------

    def test_every_reply_can_be_read_by_an_allowed_page(self):
        token = self.key.token(sub="u", rooms=["*"], scope="presence:read presence:write")
        bearer = "Bearer " + token
        room = self.room()
        cases = [("PUT", "/leases", json.dumps({"room_id": room, "user_id": "u", "session_id": "s"}), bearer, 200),
                 ("GET", presence_path(room), None, bearer, 200),
                 ("GET", presence_path(room), None, None, 401),
                 ("GET", presence_path(room), None, "Bearer bad", 401),
                 ("PUT", "/leases", json.dumps({"room_id": room, "user_id": "x", "session_id": "s"}), bearer, 403),
                 ("GET", presence_path(room, "x"), None, bearer, 400),
                 ("GET", "/nowhere", None, None, 404),
                 ("DELETE", "/leases", None, None, 405),
                 ("DELETE", "/rooms/%s/leases/u/never" % room, None, bearer, 404),
                 ("POST", "/rooms/%s/cursors" % room, "{}", bearer, 415),
                 ("GET", "/healthz", None, None, 200), ("HEAD", "/healthz", None, None, 200), ("GET", "/", None, None, 200)]
        for method, path, body, authorization, status in cases:
            headers = {"Authorization": authorization} if authorization else {}
            for origin in (ORIGIN, OTHER):
                with self.subTest(method=method, path=path, authorization=authorization, origin=origin):
                    reply = self.ask(method, path, origin, body, **headers)
                    self.assertEqual(reply.status, status, reply)
                    self.allowed(reply, origin)
            for origin in FOREIGN + (None,):
                with self.subTest(method=method, path=path, authorization=authorization, origin=origin):
                    reply = self.ask(method, path, origin, body, **headers)
                    self.assertEqual(reply.status, status, "the server itself refuses nobody for an origin: %r" % reply)
                    self.assertEqual(cors_headers(reply.headers), [])
                    self.assertIn("Origin", reply.headers["vary"])

    def test_304(self):
        room = self.room()
        token = self.key.token(sub="u", rooms=["*"], scope="presence:read presence:write")
        tag = self.ask("GET", presence_path(room), Authorization="Bearer " + token).headers["etag"]
        reply = self.ask("GET", presence_path(room), Authorization="Bearer " + token, If_None_Match=tag)
        self.assertEqual(reply.status, 304)
        self.allowed(reply)

    def wire(self, text):
        with Wire(self.base) as wire:
            wire.send(text)
            return wire.reply(10)

    def test_refusals_by_hand(self):
        head = "PUT /leases HTTP/1.1\r\nHost: x\r\nOrigin: %s\r\n" % ORIGIN
        for more, status in (("Content-Length: 3000\r\n\r\n", 413), ("Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
                             ("Transfer-Encoding: chunked\r\n\r\n" + "bb8\r\n%s\r\n" % ("x" * 3000), (401, 413))):
            with self.subTest(more=more[:40]):
                reply = self.wire((head + more).encode())
                self.assertIn(reply.status, status if isinstance(status, tuple) else (status,))
                self.allowed(reply)
                reply = self.wire((head.replace(ORIGIN, "https://evil.example") + more).encode())
                self.assertEqual(cors_headers(reply.headers), [])
                self.assertEqual(reply.headers["vary"], "Origin")

    def test_streams(self):
        token = self.key.token(sub="u", rooms=["*"], scope="presence:read")
        with Wire(self.base) as wire:
            wire.send(("GET %s HTTP/1.1\r\nHost: x\r\nOrigin: %s\r\nAccept: text/event-stream\r\nAuthorization: Bearer %s\r\n\r\n" %
                       (presence_path(self.room()), ORIGIN, token)).encode())
            while b"\r\n\r\n" not in wire.data:
                self.assertTrue(wire._receive(time.monotonic() + 10 * SLOW))
            head = wire.data.partition(b"\r\n\r\n")[0].decode().lower()
        self.assertIn("text/event-stream", head)
        self.assertIn("\r\naccess-control-allow-origin: %s\r\n" % ORIGIN, head)
        self.assertIn("\r\naccess-control-expose-headers: ", head)


class Any(CorsCase):
    config = {"cors_origins": "*"}

    def test_any_origin(self):
        for origin in (ORIGIN, "https://evil.example", "null"):
            reply = self.ask("GET", "/healthz", origin)
            self.allowed(reply, "*")
            self.assertNotIn("Origin", reply.headers.get("vary", ""))
        self.assertEqual(cors_headers(self.ask("GET", "/healthz", None).headers), [])
        self.assertEqual(self.preflight("/leases", "PUT", "https://evil.example").headers["access-control-allow-origin"], "*")


class Off(CorsCase):

    def test_without_the_key_nothing_is_said(self):
        for reply in (self.ask("GET", "/healthz"), self.preflight("/leases", "PUT"), self.ask("GET", "/nowhere")):
            self.assertEqual(cors_headers(reply.headers), [])
            self.assertNotIn("vary", reply.headers)

    def test_bad_entries_stop_the_start(self):
        for entry in ("app.example.org", "https://app.example.org/", "*,https://a.example", "https://*.example.org"):
            config = {"database_url": self.pg.url(self.database), "listen": "127.0.0.1:%d" % free_port(), "cors_origins": entry}
            done = subprocess.run([program()], env=daemon_environment(config), capture_output=True, text=True, timeout=30 * SLOW)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn("cors_origins", done.stderr)
