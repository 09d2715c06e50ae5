# SPDX-License-Identifier: Apache-2.0
"""`stillhere token` and `stillhere member`, and what all commands say to a refusal."""

import base64
import hashlib
import os

from harness.case import Case, json, time
from harness.tokens import Guarded, Key, bearer
from test_cli import Command


def claims_of(token):
    """The two readable parts of a token."""
    parts = token.split(".")
    return [json.loads(base64.urlsafe_b64decode(p + "=" * (-len(p) % 4))) for p in parts[:2]]


class Commands(Case):
    """How both classes run the command."""

    def run_it(self, *args, expect=0, url=None, **environment):
        command = Command(self.directory, args, url or self.base, **environment)
        self.addCleanup(lambda: command.process.poll() is None and command.process.kill())
        self.assertEqual(command.wait(), expect, command.stdout() + command.stderr())
        return command

    def file(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def token(self, *args, key=None, name="token"):
        """Mints one. @return the file that it is in"""
        key = key or self.key
        out = self.run_it("token", "--key-file", key.file if key.algorithm == "HS256" else key.private, "--algorithm",
                          key.algorithm, *args).stdout()
        self.assertRegex(out, r"\A[\w-]+\.[\w-]+\.[\w-]+\n\Z", "the token and nothing else")
        return self.file(name, out)


class Token(Guarded, Commands):
    config = {"ttl_min_ms": 500}

    def test_what_is_in_a_token(self):
        began = int(time.time())
        path = self.token("--sub", "an", "--sid", "tab-1", "--rooms", "class-7,lab-*", "--scope",
                          "presence:read presence:write")
        with open(path, encoding="utf-8") as f:
            header, claims = claims_of(f.read().strip())
        self.assertEqual(header, {"alg": "HS256", "typ": "JWT"})
        self.assertEqual({k: claims[k] for k in ("sub", "sid", "rooms", "scope")},
                         {"sub": "an", "sid": "tab-1", "rooms": ["class-7", "lab-*"],
                          "scope": "presence:read presence:write"})
        self.near(claims["exp"] - began, 3600, 3600 + 60)
        self.assertEqual(set(claims), {"sub", "sid", "rooms", "scope", "exp", "iat"})
        for ttl, seconds in (("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("7d", 604800)):
            line = self.run_it("token", "--key-file", self.key.file, "--rooms", "*", "--scope", "admin,gateway", "--ttl",
                               ttl, "--audience", "a", "--issuer", "i", "--json").objects()[0]
            self.assertEqual(line["claims"], claims_of(line["token"])[1])
            self.assertEqual(line["claims"]["exp"] - line["claims"]["iat"], seconds)
            self.assertEqual([line["claims"][k] for k in ("scope", "aud", "iss", "rooms")], ["admin gateway", "a", "i", ["*"]])

    def test_the_server_takes_it(self):
        room = self.room()
        path = self.token("--sub", "an", "--rooms", room, "--scope", "presence:read,presence:write")
        self.run_it("renew", room, "an", "tab-1", "--once", "--token-file", path)
        self.assertIsNotNone(self.stored(room, "tab-1", "an"))
        self.assertIn("an", self.run_it("who", room, STILLHERE_TOKEN_FILE=path).stdout())

    def test_what_a_refusal_says(self):
        room = self.room()
        allowed = self.token("--sub", "an", "--sid", "s", "--rooms", room, "--scope", "presence:write", name="allowed")
        for args, code, advice in (
                (("who", room), "no_credential", "--token-file"),
                (("who", room, "--token-file", self.file("junk", "junk")), "bad_credential", "token file"),
                (("who", room, "--token-file", allowed), "missing_scope", "wider scope"),
                (("close", "elsewhere", "an", "s", "--token-file", allowed), "outside_rooms", "for that room"),
                (("close", room, "bo", "s", "--token-file", allowed), "not_your_user", "gateway"),
                (("close", room, "an", "other", "--token-file", allowed), "not_your_session", "sid"),
                (("renew", room, "bo", "s", "--once", "--token-file", allowed), "not_your_user", "gateway"),
                (("member", "list", room, "--token-file", allowed), "missing_scope", "wider scope")):
            with self.subTest(args=args):
                said = self.run_it(*args, expect=1).stderr()
                self.assertIn(code, said)
                self.assertIn(advice, said)
        short = self.token("--sub", "an", "--rooms", room, "--scope", "presence:read", "--ttl", "1s", name="short")
        self.pause(2.5)  # its second, and the leeway
        said = self.run_it("who", room, "--token-file", short, expect=1).stderr()
        self.assertRegex(said, "token_expired.*new token")

    def test_wrong_usage_makes_no_token(self):
        good = ("--key-file", self.key.file, "--sub", "an", "--rooms", "*", "--scope", "presence:read")
        self.run_it("token", *good)
        pem = Key(self.directory, "pem", "ES256")
        for args, said in ((good[2:], "--key-file"),
                           (good[:2] + good[4:6], "--scope and --rooms"),
                           (good[:2] + good[6:], "--scope and --rooms"),
                           (good + ("--scope", ""), "--scope and --rooms"),
                           (good + ("--rooms", ","), "--scope and --rooms"),
                           (good + ("--scope", "presence:read,all"), '"all"'),
                           (good + ("--rooms", "a*b"), r"a\*b"),
                           (good + ("--sub", ""), "--sub"),
                           (good + ("--sid", ".."), "--sid"),
                           (good + ("--ttl", "0"), "--ttl"),
                           (good + ("--ttl", "11y"), "--ttl"),
                           (good + ("--ttl", "4000d"), "--ttl"),
                           (good + ("--ttl", "d"), "--ttl"),
                           (good + ("--algorithm", "none"), "--algorithm"),
                           (good + ("--algorithm", "hs256"), "--algorithm"),
                           (good + ("--algorithm", "RS256"), "private key"),
                           (good + ("--key-file", pem.private), "--algorithm"),
                           (good + ("--key-file", pem.file, "--algorithm", "ES256"), "private key"),
                           (good + ("--key-file", pem.private, "--algorithm", "RS256"), "fit"),
                           (good + ("--key-file", "/nonexistent"), "/nonexistent"),
                           (good + ("--key-file", self.file("tiny", "too short\n")), "32 bytes"),
                           (good[:4] + ("--rooms", "*", "--scope", "presence:write", "--sub", ""), "--sub"),
                           (good[:2] + ("--rooms", "*", "--scope", "presence:write"), "--sub"),
                           (good + ("--api-key", "x"), "--api-key"),
                           (("--api-key", "two words", "--rooms", "*", "--scope", "admin"), "blank"),
                           (("--api-key", "#x", "--rooms", "*", "--scope", "admin"), "blank"),
                           (("--api-key", "x", "--rooms", "a b", "--scope", "admin"), "blank"),
                           (("--api-key", "x"), "--scope and --rooms"),
                           (good + ("--role", "x"), "--role"),
                           (good + ("extra",), "usage")):
            with self.subTest(args=args):
                command = self.run_it("token", *args, expect=2)
                self.assertRegex(command.stderr(), r"\Astillhere: .*" + said)
                self.assertEqual(command.stdout(), "")
                with open(self.key.file, "rb") as f:
                    self.assertNotIn(f.read()[:8], command.stderr().encode())

    def test_an_api_key(self):
        room = self.room()
        command = self.run_it("token", "--api-key", "dash-board", "--scope", "presence:read", "--rooms", room + ",x*")
        key, line = command.stdout().splitlines()
        self.assertRegex(key, r"\Ashk_[\w-]{43}\Z")
        self.assertEqual(line, "dash-board %s presence:read %s,x*" % (hashlib.sha256(key.encode()).hexdigest(), room))
        self.assertNotIn(key, command.stderr())
        other = self.run_it("token", "--api-key", "dash-board", "--scope", "admin", "--rooms", "*", "--json").objects()[0]
        self.assertNotEqual(other["key"], key)
        self.assertEqual(set(other), {"key", "line"})
        self.keys.lines["dash-board"] = line + "\n"
        self.keys.write()
        self.reload()
        path = self.file("key", key + "\n")
        self.run_it("who", room, "--token-file", path)
        self.assertIn("outside_rooms", self.run_it("who", "elsewhere", "--token-file", path, expect=1).stderr())


class Asymmetric(Commands):
    """Tokens signed with private keys; the server has the public ones."""

    autostart = False

    def check(self, algorithm):
        key = Key(self.directory, "k" + algorithm, algorithm)
        d = self.start_daemon(auth="jwt", jwt_algorithm=algorithm, jwt_key_file=key.file)
        path = self.token("--sub", "an", "--rooms", "*", "--scope", "presence:write", key=key)
        self.run_it("renew", "class-7", "an", "tab-1", "--once", "--token-file", path, url=d.base)
        self.stop_now(d)

    def run_it(self, *args, url=None, **more):
        return super().run_it(*args, url=url or "http://127.0.0.1:1", **more)

    def test_rs256(self):
        self.check("RS256")

    def test_es256(self):
        self.check("ES256")


class Member(Guarded, Commands):
    config = {"membership": "required"}

    def setUp(self):
        super().setUp()
        self.office = self.file("office", self.key.token(sub="office", scope="members:write"))

    def member(self, *args, expect=0):
        return self.run_it("member", *args, "--token-file", self.office, expect=expect)

    def test_grant_show_list_revoke(self):
        room = self.room()
        shown = self.member("show", room, "an", expect=1)
        self.assertIn("not_a_member", shown.stderr())
        self.assertRegex(self.member("grant", room, "an", "--role", "student").stdout(), r"^an +student +granted 2")
        self.assertEqual(self.q("SELECT role FROM stillhere.member WHERE room_id = '%s'" % room), "student")
        self.member("grant", room, "b/o d")
        self.assertRegex(self.member("show", room, "an").stdout(), r"^an +student +granted 2")
        self.assertEqual([line.split("  ")[0] for line in self.member("list", room).stdout().splitlines()], ["an", "b/o d"])
        self.assertEqual([m["user_id"] for m in self.member("list", room, "--json").objects()], ["an", "b/o d"])
        self.ok(self.client.put_json(self.base, {"room_id": room, "user_id": "an", "session_id": "s"},
                                     headers=bearer(self.key.token(sub="an"))))
        self.assertIn("revoked", self.member("revoke", room, "an").stdout())
        self.assertIsNone(self.stored(room, "s", "an"))
        self.assertIn("revoked before", self.member("revoke", room, "an").stdout())
        self.assertEqual([m["user_id"] for m in self.member("list", room, "--json").objects()], ["b/o d"])
        path = self.file("an", self.key.token(sub="an"))
        said = self.run_it("renew", room, "an", "s", "--once", "--token-file", path, expect=1).stderr()
        self.assertRegex(said, "membership_revoked.*stillhere member grant")
        self.assertEqual(self.member("revoke", room, "bo", "--json").objects()[0]["decision"], "accepted")

    def test_more_than_a_page(self):
        room = self.room()
        self.q("INSERT INTO stillhere.member (room_id, user_id, granted_at) SELECT '%s', 'u' || n, now() FROM "
               "generate_series(1, 1005) n" % room)
        self.assertEqual(len({m["user_id"] for m in self.member("list", room, "--json").objects()}), 1005)

    def test_wrong_usage(self):
        room = self.room()
        for args in ((), ("list",), ("grant", room), ("revoke", room), ("show", room), ("list", room, "an"),
                     ("drop", room, "an"), ("revoke", room, "an", "--role", "x"), ("list", room, "--role", "x"),
                     ("grant", "..", "an"), ("grant", room, "an", "bo"), ("grant", room, "an", "--scope", "admin")):
            with self.subTest(args=args):
                self.assertRegex(self.member(*args, expect=2).stderr(), r"\Astillhere: .")
        self.assertEqual(self.count("member", room_id=room), 0)
