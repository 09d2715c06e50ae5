# SPDX-License-Identifier: Apache-2.0
"""What all commands of `stillhere` have in common: address, token and JSON; what they say to a refusal, and while somebody
waits. And the commands that ask: last-seen, explain, bench."""

import os
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness.case import RFC3339, Case, json
from harness.daemon import free_port
from test_cli import Command

#: Every command that talks to a server, with arguments that make it send something.
CLIENTS = (["renew", "r", "u", "s"], ["close", "r", "u", "s"], ["who", "r"], ["rooms"], ["watch", "r"],
           ["last-seen", "u"], ["last-seen", "--room", "r"], ["explain", "r", "u"], ["member", "grant", "r", "u"],
           ["member", "revoke", "r", "u"], ["member", "list", "r"], ["member", "show", "r", "u"], ["webhooks"],
           ["webhooks", "dead"], ["webhooks", "replay", "t"], ["drill"], ["bench", "--sessions", "1"])


class Refusing:
    """A server that notes what it is asked, and says the same to everything: a refusal, or `body`."""

    def __init__(self, status, code, body=None):
        noted = self.noted = []
        server = self
        self.body = body or json.dumps({"status": status, "code": code, "title": "No", "detail": "said the test"}).encode()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *unused):
                pass

            def refuse(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                noted.append((self.command, self.path, self.headers.get("Authorization")))
                body = server.body
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/problem+json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:  # who asked has given up
                    self.close_connection = True

            do_GET = do_PUT = do_POST = do_DELETE = refuse

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.base = "http://127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Asking(Case):
    """How both classes run it."""

    def start(self, args, url=None, **environment):
        command = Command(self.directory, args, url, **environment)
        self.addCleanup(lambda: command.process.poll() is None and command.process.kill())
        return command

    def run_it(self, *args, expect=0, url=None, **environment):
        command = self.start(args, url or self.base, **environment)
        self.assertEqual(command.wait(30), expect, command.stdout() + command.stderr())
        return command

    def token_file(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text + "\n")
        return path


class Everywhere(Asking):
    autostart = False

    def refusing(self, status, code, body=None):
        server = Refusing(status, code, body)
        self.addCleanup(server.close)
        return server

    def test_all_commands_are_here(self):
        offered = re.findall(r"(?m)^  ([a-z-]+)", self.run_it("--help", url="http://x").stdout().split("\n\n")[1])
        self.assertEqual({c[0] for c in CLIENTS}, set(offered) - {"token", "dev", "help"})

    def test_help_is_a_word_too(self):
        for args, same in ((["help"], ["--help"]), (["help", "who"], ["who", "--help"])):
            self.assertEqual(self.run_it(*args, url="http://x").stdout(), self.run_it(*same, url="http://x").stdout())
        self.assertIn('no command "nosuch"', self.run_it("help", "nosuch", url="http://x", expect=2).stderr())
        self.assertIn("usage: stillhere help", self.run_it("help", "who", "r", url="http://x", expect=2).stderr())

    def test_address_and_token(self):
        """From the environment or by options, which win; the token goes with every request, and into no output."""
        server, nobody = self.refusing(403, "missing_scope"), "http://127.0.0.1:%d" % free_port()
        good, bad = self.token_file("good", "a.good.token"), self.token_file("bad", "a.bad.token")
        for options, environment in (([], {"STILLHERE_URL": server.base, "STILLHERE_TOKEN_FILE": good}),
                                     (["--url", server.base, "--token-file", good],
                                      {"STILLHERE_URL": nobody, "STILLHERE_TOKEN_FILE": bad})):
            for args in CLIENTS:
                server.noted.clear()
                command = self.start(args + options + (["--json"] if options else []), **environment)
                self.assertEqual(command.wait(30), 1, (args, command.stdout(), command.stderr()))
                self.assertTrue(server.noted, args)
                self.assertEqual({n[2] for n in server.noted}, {"Bearer a.good.token"}, args)
                self.assertIn("403", command.stderr(), args)
                self.assertIn("missing_scope", command.stderr(), args)
                self.assertIn("takes a token with a wider scope", command.stderr(), "what to do, of %s" % args)
                self.assertNotIn("good.token", command.stdout() + command.stderr(), args)
                if options:
                    for line in command.stdout().splitlines():
                        self.assertIsInstance(json.loads(line), dict, args)

    def test_it_is_tried_again(self):
        """That is said, and where to look when it was in vain: 5xx, or nobody there."""
        server, nobody = self.refusing(503, "database_unavailable"), "http://127.0.0.1:%d" % free_port()
        waits = [args for args in CLIENTS if args[0] not in ("member", "webhooks")]
        away = [(args, self.start(args, server.base), "answered 503", "/readyz") for args in waits]
        away += [(args, self.start(args, nobody), "is not reached .*", "stillhere dev") for args in waits]
        for args, command, what, look in away:
            self.assertEqual(command.wait(60), 3, (args, command.stdout(), command.stderr()))
            self.assertRegex(command.stderr(), r"%s(?s:.*)%s" % (what.strip(".*"), look), args)
            if args[0] != "bench":  # asks once
                self.assertRegex(command.stdout() + command.stderr(), what + "; trying again", args)

    def test_a_server_that_says_nothing(self):
        """Whoever waits for longer than two seconds is told for what."""
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(64)
            base = "http://127.0.0.1:%d" % silent.getsockname()[1]
            runs = [(args, self.start(args, base)) for args in CLIENTS if args[0] not in ("member", "webhooks")]
            for args, command in runs:
                words = "0 of 1 sessions are in" if args[0] == "bench" else "waiting for %s to answer" % base
                self.wait_until(lambda: words in command.stdout() + command.stderr(), 10, "%s of %s" % (words, args))
                self.assertIsNone(command.process.poll(), args)
                command.signal()
            self.pause(0.5)
            for args, command in runs:
                command.signal()  # those who try to put things in order leave that too
                self.assertIn(command.wait(10), (0, 3), (args, command.stderr()))

    def test_a_server_of_another_kind(self):
        """A sign-in page says 200 too; and so may JSON, without what was asked for or with something else in its place."""
        mixed = dict.fromkeys(("results", "lease", "rooms", "leases", "decision", "mode", "state", "users", "members",
                               "user_id", "targets", "dead"), 1)
        mixed.update(replayed_events="1", seq="1", cursors={})
        for body in (b"<html>Please sign in</html>", b"{}", b"[]", json.dumps(mixed).encode()):
            server = self.refusing(200, None, body)
            for args, command in [(args, self.start(args, server.base)) for args in CLIENTS]:
                self.assertEqual(command.wait(30), 3, (args, body, command.stdout(), command.stderr()))
                self.assertIn("the answer of %s (200) is not one of a stillhere server. See --url" % server.base,
                              command.stderr(), args)
                self.assertEqual(command.stdout(), "", args)
                self.assertEqual(len(command.stderr().splitlines()), 1, (args, command.stderr()))
        few = self.refusing(200, None, b'{"results":[]}')
        self.assertIn("is not one of", self.run_it("renew", "r", "u", "s", url=few.base, expect=3).stderr())

    def test_a_held_lease_outlasts_a_stranger(self):
        lease = {"room_id": "r", "user_id": "u", "session_id": "s", "revision": 1, "ttl_ms": 60000}
        good = json.dumps({"results": [{"decision": "accepted", "granted": True, "lease": lease, "renew_after_ms": 100}]})
        server = self.refusing(200, None, good.encode())
        command = self.start(["renew", "r", "u", "s", "--no-close"], server.base)
        self.wait_until(lambda: "u/s is in r" in command.stdout(), 10, "the lease")
        server.body = b"<html>Please sign in</html>"
        self.wait_until(lambda: "trying again until the lease runs out" in command.stderr(), 10, "the stranger")
        self.assertIn("not one of a stillhere server", command.stderr())
        server.body = good.encode()
        self.wait_until(lambda: "renewed again" in command.stderr(), 20, "the server")
        command.signal()
        self.assertEqual(command.wait(), 0, command.stderr())

    def test_nothing_was_granted(self):
        """So there is nothing that could not be closed, and why is said: a scope is not missing where no server is."""
        page, moved = b"<html>Not here</html>", "the answer of .* (301) is not one of a stillhere server"
        servers = [(self.refusing(404, None, page), 1, "the server answered 404, .*See --url"),
                   (self.refusing(301, None, page), 3, re.escape(moved).replace(r"\.\*", ".*")),
                   (self.refusing(404, "not_found"), 1, "the server answered 404, not_found: said the test"),
                   (self.refusing(403, "outside_rooms"), 1, "the server answered 403, outside_rooms"),
                   (self.refusing(503, "stopping"), 3, "the server answered 503, stopping")]
        for server, code, words in servers:
            for args in (["bench", "--sessions", "4"], ["drill"]):
                text = self.run_it(*args, url=server.base, expect=code).stderr()
                self.assertRegex(text, words)
                self.assertNotIn("could not be closed", text)
                self.assertEqual("needs the scope" in text, args == ["drill"] and "403" in text, text)
        nobody = "http://127.0.0.1:%d" % free_port()
        self.assertNotIn("could not be closed", self.run_it("bench", url=nobody, expect=3).stderr())

    def test_a_socket_that_is_not_there(self):
        text = self.run_it("who", "r", url="unix:/nonexistent/socket", expect=3).stderr()
        self.assertIn("unix:/nonexistent/socket is not reached (No such file or directory)", text)
        self.assertNotIn("localhost", text)

    def test_a_file_of_authorities_that_is_none(self):
        for path, url in (("/nonexistent", "https://127.0.0.1:9"), (self.directory, "http://127.0.0.1:9")):
            text = self.run_it("who", "r", "--ca-file", path, url=url, expect=2).stderr()
            self.assertRegex(text, r"stillhere: %s .*See --ca-file" % path)

    def test_a_token_file_that_is_none(self):
        for path in ("/nonexistent", self.token_file("two", "one\ntwo")):
            command = self.run_it("who", "r", "--token-file", path, url="http://127.0.0.1:9", expect=2)
            self.assertRegex(command.stderr(), r"the token file %s .*See --token-file and STILLHERE_TOKEN_FILE" % path)


class Answers(Asking):
    config = {"ttl_min_ms": 500, "sweep_interval_ms": 100, "offline_grace_ms": 300}

    def test_last_seen(self):
        room, an, bo = self.room(), self.room("an"), self.room("bo\u202e")
        self.grant(room, user=an)
        self.grant(room, user=bo)
        self.ok(self.client.close(self.base, room, bo, "s"))
        self.wait_until(lambda: self.events(room, kind="user.offline"), 10, "the end")
        text = self.run_it("last-seen", an, bo, "nobody").stdout()
        self.assertRegex(text, r"(?m)^an-\S+ +active (just now|\d+ seconds ago), 20\S+Z$")
        self.assertRegex(text, r"(?m)^bo\?-\S+ +active (just now|\d+ seconds ago) \(gone\), 20\S+Z$")
        self.assertRegex(text, r"(?m)^nobody +never seen$")
        listed = self.run_it("last-seen", an, bo, "nobody", "--json").objects()
        self.assertEqual([(u["user_id"], u["online"]) for u in listed], [(an, True), (bo, False), ("nobody", False)])
        self.assertIsNone(listed[2]["last_seen_at"])
        of_room = self.run_it("last-seen", "--room", room, "--json").objects()
        self.assertEqual({u["user_id"] for u in of_room}, {an, bo})
        for args in (["last-seen"], ["last-seen", an, "--room", room]):
            self.assertIn("usage: stillhere last-seen", self.run_it(*args, expect=2).stderr())

    def test_explain(self):
        room = self.room()
        self.grant(room, "tab-1", user="an")
        text = self.run_it("explain", room, "an").stdout()
        self.assertRegex(text, r"\Aan in %s is \S+\n  why: \S.+\n  next, in [\d.]+ s: \S.+\n  membership: \S" % room)
        self.assertRegex(text, r"(?m)^  lease of tab-1: \S+, revision 1, [\d.]+ s left, last heartbeat 20\S+Z")
        self.assertRegex(text, r"(?m)^  20\S+Z  1      lease.granted      an/tab-1")
        (answer,) = self.run_it("explain", room, "an", "--json").objects()
        self.assertEqual((answer["room_id"], answer["user_id"], len(answer["leases"])), (room, "an", 1))
        self.assertRegex(answer["server_time"], RFC3339)
        self.assertIn("next: nothing by itself", self.run_it("explain", room, "nobody").stdout())

    def test_bench(self):
        """It tells how far it is, what it found, and leaves nothing behind."""
        runs = [self.start(["bench", "--sessions", "4", "--connections", "2", "--seconds", "3", "--every-ms", "100"] +
                           more, self.base) for more in ([], ["--json"])]
        for command in runs:
            self.assertEqual(command.wait(60), 0, command.stderr())
            self.assertRegex(command.stderr(), r"(?m)^ +2 s of 3: \d+ heartbeats$")
        self.assertRegex(runs[0].stdout(), r"\A4 sessions over 2 connections, 3\.\d s: \d+ heartbeats/s\nlatency: half below ")
        (found,) = runs[1].objects()
        self.assertEqual((found["sessions"], found["connections"], found["refused"], found["unreached"]), (4, 2, 0, 0))
        self.assertGreater(found["heartbeats"], 8)
        self.assertGreaterEqual(found["latency_ms"]["max"], found["latency_ms"]["p50"])
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.lease WHERE room_id LIKE 'bench-%'"), "0")
