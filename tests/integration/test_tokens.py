# SPDX-License-Identifier: Apache-2.0
"""Tokens as attackers make them, and credentials that end while somebody waits (CONTRACT §8)."""

import hashlib
import hmac
import os
import re
import resource
import signal

from harness.case import Case, Wire, json, lease, presence_path, time
from harness.sse import Streams
from harness.tokens import Guarded, Key, b64, bearer, full, packed

READ = "/rooms/class-7/presence?wait_ms=0"


class Attacks(Guarded):
    """Each attempt is refused, and leaves one line of the log that has the code and nothing of the token."""

    asked = 0

    def attempt(self, header, status=401, code="bad_credential", path=READ):
        """One request with an Authorization of these bytes (a list: several of them)."""
        cls = type(self)
        cls.asked += 1
        if cls.asked > 15:
            time.sleep(0.2)  # a log that strangers write is limited to some lines a second
        request_id = "attack-%s-%d" % (cls.__name__, cls.asked)
        lines = b""
        for value in header if isinstance(header, list) else [header]:
            lines += b"Authorization: " + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
        with Wire(self.base) as wire:
            wire.send(b"GET %s HTTP/1.1\r\nHost: x\r\nX-Request-Id: %s\r\n%s\r\n" %
                      (path.encode(), request_id.encode(), lines))
            reply = wire.reply()
        with self.subTest(header=header):
            if status == 200:
                self.assertEqual(reply.status, 200, reply)
                return
            self.problem(reply, status, code)
            self.assertEqual("www-authenticate" in reply.headers, status == 401)
            said = [line for line in self.daemons[0].text().splitlines() if "request_id=%s " % request_id in line]
            self.assertEqual(len(said), 1, said)
            self.assertIn("refused: %d %s" % (status, code), said[0])
            self.secret(header)

    def secret(self, header):
        """None of the parts of what was shown is told anywhere."""
        text = self.daemons[0].text() + self.daemons[0].output()
        for value in header if isinstance(header, list) else [header]:
            value = value if isinstance(value, str) else value.decode("latin-1")
            for part in re.split(r"[ .,]", value):
                if len(part) >= 16:
                    self.assertNotIn(part, text)

    def forged(self, token, **more):
        self.attempt("Bearer " + token, **more)

    def good(self, **claims):
        self.forged(self.key.token(**claims), status=200)


class Signatures(Attacks):

    def test_other_algorithms(self):
        claims = packed(full({"scope": "admin"}))
        for alg in ("none", "None", "NONE", "nOnE", "", "hs256", "Hs256", "HS384", "HS512", "RS256", "ES256", "PS256",
                    "HS256 ", None, 1, ["HS256"], {"HS256": 1}):
            header = packed({"alg": alg, "typ": "JWT"})
            signed = header + "." + claims
            self.forged(signed + ".")
            self.forged(signed + "." + b64(self.key.sign(signed)))
        header = packed({"typ": "JWT"})
        self.forged(header + "." + claims + "." + b64(self.key.sign(header + "." + claims)))
        self.good()

    def test_other_keys(self):
        other = Key(self.key_directory, "other")
        self.forged(other.token())
        self.forged(other.token(header={"kid": "main"}))
        # The key that a kid points to is never read.
        for kid, secret in (("/dev/null", b""), ("../../../../dev/null", b""), ("' UNION SELECT 'x' --", b"x"),
                            (self.key.file + "/../../etc/hostname", b""), ("", b""), ("k" * 4000, b"")):
            header = packed({"alg": "HS256", "kid": kid})
            text = header + "." + packed(full({}))
            self.forged(text + "." + b64(hmac.new(secret, text.encode(), hashlib.sha256).digest()))
        for kid in ('"a\\u0000b"', "1", "null", "[]", "{}"):
            self.forged(self.key.seal('{"alg":"HS256","kid":%s}' % kid, full({})))
        # One that it does not know is no reason to refuse what is signed well.
        self.good(header={"kid": "no-such-key"})
        self.good(header={"kid": "main"})
        self.forged(self.key.token(header={"kid": "old"}))
        for header in ({"crit": ["exp"]}, {"b64": False}, {"typ": "JWE"}):
            self.forged(self.key.token(header=header))
        self.good(header={"jku": "http://127.0.0.1:1/keys", "x5u": "file:///etc/passwd", "jwk": {"kty": "oct"}})

    def test_broken_tokens(self):
        token = self.key.token()
        head, claims, signature = token.split(".")
        last = signature[-1]
        spare = signature[:-1] + chr(ord(last) + 1)
        for broken in (head + "." + claims, token + ".", "." + token, head + ".." + signature, "..",
                       "." + claims + "." + signature, head + "." + claims + ".x", head + "." + claims + "." + "A" * 43,
                       head + "." + packed(full({"scope": "admin"})) + "." + signature,
                       head + "." + claims + "." + signature + "=", head + "=." + claims + "." + signature,
                       head + "." + claims + "." + spare, head + "." + claims + "." + signature + "A",
                       head + "." + claims + "." + signature[:-4] + "+/+/", head + "." + claims + "." + signature[::-1],
                       token[:-1], token[:-10], token[1:], token.swapcase(), token + "." + token,
                       self.key.token(note="x" * 9000)):
            self.forged(broken)
        self.forged(self.key.token(note="x" * 2000), status=200)
        reply = self.client.get(self.base, READ, bearer("x" * 30000), fresh=True)
        self.assertEqual(reply.status, 431)

    def test_headers(self):
        token = self.key.token()
        api_key = self.keys.add("twice", "presence:read")
        self.reload()
        for header in (["Bearer " + token] * 2, ["Bearer " + token, "Basic eDp5"], ["Basic eDp5", "Bearer " + token],
                       ["", "Bearer " + token], "Basic eDp5", "Basic " + token, token, "Bearer", "Bearer\t", "bear er " + token,
                       "Bearer " + token + " " + token, "Bearer " + token + ", Bearer " + token,
                       "Bearer " + token + " realm=x", "Bearer " + token + ",", "Bearer=" + token, "Bearer:" + token,
                       'Bearer "' + token + '"', "Bearer token=" + token, "Bearer " + api_key + "," + token,
                       ("Bearer " + token).encode() + b"\xff",
                       ["Bearer " + api_key] * 2, "Bearer " + api_key.swapcase(), "Bearer " + api_key[:-1]):
            self.attempt(header)
        for header in ("bearer " + token, "BEARER " + token, "bEaReR  " + token, "Bearer " + token + "  ",
                       "  Bearer " + token, "Bearer " + api_key):
            self.attempt(header, status=200)
        self.assertIn("Bearer", self.client.get(self.base, READ, {"Authorization": "Basic eDp5"})["detail"])
        self.attempt("", code="no_credential")
        self.attempt([], code="no_credential")
        # A line that ends with a line feed alone is none that has a NUL in it.
        with Wire(self.base) as wire:
            wire.send(b"GET %s HTTP/1.1\nHost: x\nAuthorization: Bearer %s\nAccept: */*\n\n" %
                      (READ.encode(), token.encode()))
            self.assertEqual(wire.reply().status, 200)


class Claims(Attacks):

    def test_times(self):
        now = int(time.time())
        self.good(exp=now + 3600)
        self.good(exp=now + 3600.5)
        self.good(exp=now + 9 * 365 * 86400)
        for exp in (None, now + 11 * 366 * 86400, 10 ** 17, str(now + 3600), True, [now + 3600], {}, ""):
            self.forged(self.key.token(exp=exp))
        for exp in (now - 60, now - 3, 0, -1, now - 10 ** 9):
            self.forged(self.key.token(exp=exp), code="token_expired")
        for exp in ("NaN", "Infinity", "-Infinity", "1e400", "null", "0x7fffffff", "'1'", "99999999999999999999"):
            payload = packed(full({})).encode()
            self.forged(self.key.seal({"alg": "HS256"}, '{"sub":"an","rooms":["*"],"scope":"admin","exp":%s}' % exp))
        self.forged(self.key.token(nbf=now + 300))
        for nbf in ("soon", str(now), True, []):
            self.forged(self.key.token(nbf=nbf))
        self.good(nbf=now - 300)

    def test_the_time_of_issue_is_not_judged(self):
        now = int(time.time())
        for iat in (now + 300, now - 10 ** 8, 0, "yesterday"):
            self.good(iat=iat)

    def test_shapes(self):
        exp = int(time.time()) + 3600
        body = '"sub":"an","exp":%d,"rooms":["*"],"scope":"presence:read"' % exp
        self.forged(self.key.seal({"alg": "HS256"}, "{%s}" % body), status=200)
        for payload in ('{%s,"sub":"bo"}' % body, '{%s,"\\u0073ub":"an"}' % body, '{%s,"exp":%d}' % (body, exp + 1),
                        '{%s,"scope":"admin"}' % body, "[{%s}]" % body, '"{}"', "1", "null", "", "{%s" % body, "{%s}}" % body,
                        '{%s,"x":%s}' % (body, "[" * 3000 + "]" * 3000), '{%s,"x":"\\u0000"}' % body, "\ufeff{%s}" % body,
                        '{%s,"x":"\\ud800"}' % body):
            self.forged(self.key.seal({"alg": "HS256"}, payload))
        for claims in ({"sub": 1}, {"sub": ""}, {"sub": "."}, {"sub": "a\nb"}, {"sub": "x" * 129}, {"sub": ["an"]},
                       {"sub": {"an": 1}}, {"sid": 7}, {"sid": ""}, {"sid": "x" * 129}, {"rooms": "*"},
                       {"rooms": {"*": 1}}, {"rooms": [1]}, {"rooms": [["*"]]}, {"rooms": ["a*b"]}, {"rooms": ["**"]},
                       {"rooms": [""]}, {"scope": ["admin"]}, {"scope": 1}, {"scope": {"admin": True}}):
            self.forged(self.key.token(**claims))

    def test_rights_of_others(self):
        self.forged(self.key.token(rooms=["class-8"]), status=403, code="outside_rooms")
        self.forged(self.key.token(rooms=["class-"]), status=403, code="outside_rooms")
        self.forged(self.key.token(rooms=["class-70*"]), status=403, code="outside_rooms")
        self.forged(self.key.token(scope="presence:write"), status=403, code="missing_scope")
        self.forged(self.key.token(scope="presence:read,presence:write"), status=403, code="missing_scope")
        self.forged(self.key.token(scope="Presence:read"), status=403, code="missing_scope")
        self.forged(self.key.token(rooms=[]), status=403, code="missing_scope")
        self.forged(self.key.token(rooms=["class-7"]), status=403, code="outside_rooms", path="/users/bo/presence")


class Public(Attacks):
    """Attacks on public keys, for which the verifier's key is no secret."""

    algorithm = "RS256"

    def confused(self):
        with open(self.key.file, "rb") as f:
            public = f.read()
        for secret in (public, public.rstrip(b"\n"), public + b"\n", public.replace(b"\n", b"\r\n"), b""):
            for alg in ("HS256", "HS384", "HS512", self.algorithm):
                text = packed({"alg": alg, "typ": "JWT"}) + "." + packed(full({"scope": "admin"}))
                self.forged(text + "." + b64(hmac.new(secret, text.encode(), hashlib.sha256).digest()))

    def test_the_public_key_as_a_secret(self):
        self.good()
        self.confused()

    def test_signatures(self):
        text = packed({"alg": self.algorithm}) + "." + packed(full({"scope": "admin"}))
        for signature in (b"\0" * 64, b"\0" * 256, b"\1" * 256, b"\xff" * 64, b"\x30\x06\x02\x01\0\x02\x01\0", b"\0"):
            self.forged(text + "." + b64(signature))
        token = self.key.token()
        head, claims, signature = token.split(".")
        self.forged(head + "." + packed(full({"scope": "admin"})) + "." + signature)
        self.forged(token[:-3])
        other = Key(self.key_directory, "other-" + self.algorithm, self.algorithm)
        self.forged(other.token(header={"kid": "main"}))
        self.forged(token, status=200)
        self.forged(self.old_key.token(), status=200)
        self.forged(self.old_key.token(header={"kid": "old"}), status=200)


class PublicCurve(Public):
    algorithm = "ES256"


class Leeway(Guarded):
    """The clock of whoever signs may differ by half a minute."""

    config = {"jwt_leeway_ms": 30000}

    def status(self, **claims):
        return self.client.get(self.base, READ, bearer(self.key.token(**claims))).status

    def test_leeway(self):
        now = int(time.time())
        self.assertEqual(self.status(nbf=now + 10), 200)
        self.assertEqual(self.status(nbf=now + 300), 401)
        self.assertEqual(self.status(exp=now - 10), 200)
        self.assertEqual(self.status(exp=now - 40), 401)
        self.assertEqual(self.status(iat=now + 300), 200)


# -- credentials that end ----------------------------------------------------------------------------------------------


class Ends(Guarded):
    """Those who wait are not let wait for longer than they may."""

    config = {"jwt_leeway_ms": 0, "ttl_min_ms": 100}

    def path(self, kind, room, since):
        return {"presence": presence_path(room, since, wait_ms=25000),
                "cursors": "/rooms/%s/cursors?since=0&wait_ms=25000" % room}[kind]

    def since(self, room):
        self.ok(self.client.hb(self.base, room, "an", "s", 1, 60000, headers=bearer(self.key.token())))
        return self.head(room)

    def waiting_poll(self, path, credential):
        before = self.waiting(self.base)
        future = self.background(self.client.get, self.base, path, bearer(credential), fresh=True)
        self.wait_until(lambda: future.done() or self.waiting(self.base) > before, 5, "a parked poll")
        self.assertFalse(future.done(), future)
        return future

    def stream(self, path, credential):
        streams = Streams(self.base, [path], "Authorization: Bearer %s\r\n" % credential)
        self.addCleanup(streams.close)
        self.assertTrue(streams.collect(lambda: streams[0].retry is not None, 5))
        self.assertEqual(streams[0].status, 200)
        return streams

    def ended(self, streams, seconds, code, status):
        self.assertTrue(streams.collect(lambda: streams[0].whole, seconds), streams[0].messages)
        self.assertIsNone(streams[0].broken)
        last = streams[0].messages[-1]
        self.assertEqual(last.event, "problem")
        self.problem_object(last.json(), status, code)

    def test_at_the_expiry_of_a_token(self):
        room = self.room()
        since = self.since(room)
        for kind in ("presence", "cursors"):
            exp = int(time.time()) + 3
            token = self.key.token(exp=exp)
            path = self.path(kind, room, since)
            poll, streams = self.waiting_poll(path, token), self.stream(path, token)
            still = self.waiting_poll(path, self.key.token())
            reply = self.answer(poll, 10)
            now = time.time()
            self.problem(reply, 401, "token_expired")
            self.assertIn("invalid_token", reply.headers["www-authenticate"])
            self.near(now - exp, -0.1, self.within(1.5), "the end of a poll")
            self.ended(streams, 3, "token_expired", 401)
            self.assertEqual(self.client.get(self.base, path, bearer(token)).status, 401)
            self.assertFalse(still.done())
            self.ok(self.client.hb(self.base, room, "an", kind, 1, 60000, headers=bearer(self.key.token())))
            if kind == "presence":
                self.assertEqual(self.answer(still, 5).status, 200)

    def test_a_wait_that_is_over_sooner_ends_as_ever(self):
        room = self.room()
        since = self.since(room)
        token = self.key.token(exp=int(time.time()) + 20)
        reply = self.client.get(self.base, presence_path(room, since, wait_ms=500), bearer(token))
        self.assertEqual((self.ok(reply)["mode"], reply.seconds < self.within(1.5)), ("unchanged", True))

    def test_news_before_the_expiry(self):
        room = self.room()
        since = self.since(room)
        poll = self.waiting_poll(presence_path(room, since), self.key.token(exp=int(time.time()) + 20))
        self.ok(self.client.hb(self.base, room, "an", "t", 1, 60000, headers=bearer(self.key.token())))
        self.assertEqual(self.ok(self.answer(poll, 5))["mode"], "events")

    def test_a_heartbeat_that_arrives_too_late(self):
        room = self.room()
        exp = int(time.time()) + 2
        body = json.dumps(lease(room, "an", "s")).encode()
        with Wire(self.base) as wire:
            wire.send(b"PUT /leases HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" %
                      (self.key.token(exp=exp).encode(), len(body)) + body[:-1])
            time.sleep(max(0, exp + 0.3 - time.time()))
            wire.send(body[-1:])
            self.problem(wire.reply(), 401, "token_expired")
        self.assertEqual(self.count("lease", room_id=room), 0)

    def test_a_committed_heartbeat_is_acknowledged(self):
        room = self.room()
        since = self.since(room)
        exp = int(time.time()) + 2
        lock = self.psql()
        lock.value("BEGIN; SELECT 1 FROM stillhere.room WHERE room_id = '%s' FOR UPDATE" % room)
        future = self.background(self.client.hb, self.base, room, "an", "late", 1, 60000, query="?since=%d" % since,
                                 headers=bearer(self.key.token(exp=exp)), fresh=True)
        time.sleep(max(0, exp + 0.5 - time.time()))
        lock.value("COMMIT")
        document = self.ok(self.answer(future, 10))
        self.assertEqual(document["decision"], "accepted")
        self.assertNotIn("presence", document)
        self.assertEqual(self.count("lease", room_id=room, session_id="late"), 1)

    # -- SIGHUP --------------------------------------------------------------------------------------------------------

    def test_an_api_key_is_revoked(self):
        room = self.room()
        since = self.since(room)
        gone, kept = self.keys.add("gone", "presence:read"), self.keys.add("kept", "presence:read")
        self.reload()
        polls = [self.waiting_poll(self.path(kind, room, since), gone) for kind in ("presence", "cursors")]
        streams = self.stream(presence_path(room, since), gone)
        still = self.waiting_poll(presence_path(room, since), kept)
        self.keys.revoke("gone")
        started = time.monotonic()
        self.reload()
        for poll in polls:
            self.problem(self.answer(poll, 5), 401, "bad_credential")
        self.ended(streams, 5, "bad_credential", 401)
        self.assertLess(time.monotonic() - started, self.within(2))
        self.problem(self.client.get(self.base, READ, bearer(gone)), 401, "bad_credential")
        self.assertEqual(self.client.get(self.base, READ, bearer(kept)).status, 200)
        self.assertFalse(still.done())
        self.ok(self.client.hb(self.base, room, "an", "t", 1, 60000, headers=bearer(self.key.token())))
        self.assertEqual(self.answer(still, 5).status, 200)

    def test_an_api_key_loses_a_room(self):
        room = self.room()
        since = self.since(room)
        shown = self.keys.add("narrowed", "presence:read", room)
        self.reload()
        poll = self.waiting_poll(presence_path(room, since), shown)
        self.keys.lines["narrowed"] = self.keys.lines["narrowed"].replace(room, "another-room")
        self.keys.write()
        self.reload()
        self.problem(self.answer(poll, 5), 403, "outside_rooms")

    def test_keys_are_rotated(self):
        room = self.room()
        since = self.since(room)
        old, new = self.old_key.token(), self.key.token()
        for token in (old, new):
            self.assertEqual(self.client.get(self.base, READ, bearer(token)).status, 200)
        poll, still = (self.waiting_poll(presence_path(room, since), t) for t in (old, new))
        self.old_key.__init__(self.key_directory, "old")  # another secret under the same name
        self.reload()
        self.problem(self.answer(poll, 5), 401, "bad_credential")
        self.problem(self.client.get(self.base, READ, bearer(old)), 401, "bad_credential")
        self.assertEqual(self.client.get(self.base, READ, bearer(self.old_key.token())).status, 200)
        self.assertFalse(still.done())
        self.ok(self.client.hb(self.base, room, "an", "t", 1, 60000, headers=bearer(new)))
        self.assertEqual(self.answer(still, 5).status, 200)

    def test_keys_that_cannot_be_read_change_nothing(self):
        self.allow_log = ["api.keys", "keys of callers", "SIGHUP"]
        room = self.room()
        since = self.since(room)
        shown = self.keys.add("stays", "presence:read")
        self.reload()
        poll = self.waiting_poll(presence_path(room, since), shown)
        with open(self.keys.file, "a", encoding="utf-8") as f:
            f.write("not a line of keys\n")
        self.reload()
        self.pause(0.3)
        self.assertFalse(poll.done())
        self.assertEqual(self.client.get(self.base, READ, bearer(shown)).status, 200)
        self.keys.write()
        self.reload()
        self.pause(0.3)
        self.assertFalse(poll.done())
        self.ok(self.client.hb(self.base, room, "an", "t", 1, 60000, headers=bearer(self.key.token())))
        self.assertEqual(self.answer(poll, 5).status, 200)


class Secrets(Guarded):
    """What is shown is nowhere told, whatever is wrong with the request."""

    config = {"log_level": "debug"}

    @classmethod
    def start_daemon(cls, *args, **config):
        # The server trusts its socket and asks for no password.
        return super().start_daemon(*args, **dict(config, database_url=cls.pg.url(cls.database) + "&password=hunter2-of-the-database"))

    def test_nothing_is_told(self):
        token, api_key = self.key.token(), self.keys.add("dashboard", "presence:read")
        bad = token[:-6] + "AAAAAA"
        self.reload()
        room = self.room()
        for shown in (token, bad, api_key, api_key + "x", token + "A"):
            headers = bearer(shown)
            for path in (READ, READ + "&access_token=" + shown, READ + "&kinds=" + shown, "/nowhere/" + shown, "/rooms?prefix=" + shown,
                         "/rooms/%s/presence?since=%s" % (room, shown), "/users/" + shown + "/presence", "/last-seen?user_id=" + shown):
                for method in ("GET", "HEAD", "DELETE", "PATCH"):
                    self.client.request(self.base, method, path, headers=headers)
            for body in (shown, '{"%s":1}' % shown, '{"room_id":%s}' % shown, json.dumps({"leases": [{"room_id": room, "x" + shown: 1}]}),
                         json.dumps(lease("elsewhere", "bo", shown[:100])), '{"user_id":"%s"' % shown):
                self.client.request(self.base, "PUT", "/leases", body=body, headers=headers)
                self.client.request(self.base, "POST", "/rooms/%s/cursors" % room, body=body, headers=headers)
            with Wire(self.base) as wire:
                wire.send(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n continued\r\n\r\n" % shown.encode())
                wire.until_eof(5)
        told = self.daemons[0].text() + self.daemons[0].output() + self.client.get(self.base, "/metrics").body.decode()
        for secret in (token.split(".")[2], token.split(".")[1], bad.split(".")[2], api_key, self.key.secret.hex(),
                       "hunter2-of-the-database"):
            self.assertNotIn(secret, told)
        self.assertIn("refused: 401", told)

    def test_a_crash_leaves_no_core(self):
        """What was shown is in memory for a while, and must not come to lie in a file: not even where cores are wanted."""
        limits = resource.getrlimit(resource.RLIMIT_CORE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_CORE, limits)
        resource.setrlimit(resource.RLIMIT_CORE, (limits[1], limits[1]))
        d = self.start_daemon()
        self.ok(self.client.get(d.base, READ, headers=bearer(self.key.token())))
        self.assertEqual(resource.prlimit(d.process.pid, resource.RLIMIT_CORE), (0, limits[1]))
        d.process.send_signal(signal.SIGABRT)
        d.process.wait(20 * self.within(1))
        self.forget(d)
        self.assertEqual([name for name in os.listdir(self.directory) if name.startswith("core")], [])


class Loopback(Case):
    """Without auth nobody is asked."""

    def test_a_token_is_not_looked_at(self):
        for headers in ({}, {"Authorization": "Bearer x.y.z"}, {"Authorization": "nonsense"}):
            self.assertEqual(self.client.get(self.base, READ, headers).status, 200)
