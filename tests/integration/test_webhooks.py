# SPDX-License-Identifier: Apache-2.0
"""Webhooks: delivered at least once, signed, in order within a room, retried, given up, and never to where they must
not go."""

import os
import socket
import subprocess
import threading

from harness import LONG
from harness.case import SLOW, Case, json, quote, time
from harness.process import rss_mib
from harness.receiver import Receiver, secret, verified


class Base(Case):
    autostart = False
    config = {"ttl_min_ms": 100, "sweep_interval_ms": 200, "offline_grace_ms": 100, "webhook_allow_private": "on"}

    def receiver(self, answer=None):
        r = Receiver(answer)
        self.addCleanup(r.close)
        return r

    def secret_file(self, *secrets):
        type(self).counter += 1
        path = os.path.join(self.directory, "secret%d" % self.counter)
        with open(path, "w") as f:
            f.write("\n".join(secrets) + "\n")
        return path

    def hooked(self, receiver, **more):
        """A daemon that tells one receiver; its secret is in self.secret."""
        self.secret = secret()
        return self.start_daemon(webhook_url=receiver.url, webhook_secret_file=self.secret_file(self.secret), **more)

    def targets(self, *lines):
        """A file of targets: (name, receiver or URL, kinds, rooms) each."""
        self.secret = getattr(self, "secret", None) or secret()
        path = os.path.join(self.directory, "targets")
        with open(path, "w") as f:
            for name, to, kinds, rooms in lines:
                f.write("%s %s %s %s %s\n" % (name, getattr(to, "url", to), self.secret_file(self.secret), kinds, rooms))
        return path

    def end(self, d):
        """Stops a daemon inside a test, so that the next test's events are not its business."""
        type(self).allowed_log = type(self).allowed_log + self.allow_log
        self.stop_now(d)
        self.q("DELETE FROM stillhere.webhook_event")
        self.q("DELETE FROM stillhere.webhook_lane")

    def written(self, *rooms):
        return [e["event_id"] for room in rooms for e in self.events(room)]

    def got_all(self, receiver, *rooms, seconds=15):
        self.wait_until(lambda: set(self.written(*rooms)) <= {e["event_id"] for e in receiver.events()}, seconds,
                        "every event")


class Delivering(Base):
    def test_every_kind_of_change_is_told_and_signed(self):
        r = self.receiver()
        d = self.hooked(r)
        room = self.room("a/b ü.")
        self.grant(room, "s", 1, base=d.base, meta={"name": "Zoë ☕"})
        self.grant(room, "t", 1, 100, base=d.base)  # runs out
        self.ok(self.client.close(d.base, room, "u", "s"))
        self.wait_until(lambda: len(self.events(room)) == 6, 10, "the user offline")
        self.got_all(r, room)
        self.assertEqual([e["event_id"] for e in r.events(room)], self.written(room))
        self.assertEqual({e["kind"] for e in r.events(room)},
                         {"lease.granted", "user.online", "lease.expired", "session.closed", "user.offline"})
        answer = self.ok(self.client.get(d.base, "/rooms/%s/presence?since=0" % room.replace("/", "%2F").replace(
            " ", "%20").replace("ü", "%C3%BC")))
        if answer["mode"] == "events":
            self.assertEqual(answer["events"], r.events(room), "the same objects as on other channels")
        for delivery in r.all():
            self.assertTrue(verified(self.secret, delivery.headers, delivery.body), delivery.headers)
            self.assertFalse(verified(secret(), delivery.headers, delivery.body))
            self.assertRegex(delivery.id, r"^[A-Za-z0-9_:%-]+$")
            self.assertLess(abs(int(delivery.headers["webhook-timestamp"]) - time.time()), 60)
            self.assertEqual(delivery.headers["content-type"], "application/json")
            self.assertRegex(delivery.headers["user-agent"], "^stillhere/")
            self.assertEqual(delivery.json["type"], "presence.events")
            self.assertEqual(delivery.json["timestamp"], delivery.events[-1]["at"])
            self.assertEqual(delivery.json["data"]["epoch"], delivery.events[0]["event_id"].split(":")[0])
        self.wait_until(lambda: self.count("webhook_event") == 0, 5, "an empty backlog")
        self.assertGreaterEqual(self.metrics(d.base)["stillhere_webhook_events_delivered_total"], 6)
        self.end(d)

    def test_a_hundred_events_with_odd_names_and_two_secrets(self):
        r = self.receiver()
        old, new = secret(), secret()
        d = self.start_daemon(webhook_url=r.url, webhook_secret_file=self.secret_file(new, old))
        rooms = [self.room("é☃%d" % i) for i in range(5)]
        for i in range(20):
            for room in rooms:
                self.grant(room, "s%d" % i, 1, base=d.base, user="ü%d" % (i % 4), meta={"t": "日本 \"\\ %d" % i})
        self.got_all(r, *rooms)
        for delivery in r.all():
            self.assertLessEqual(len(delivery.events), 20)
            self.assertEqual(len(delivery.headers["webhook-signature"].split(" ")), 2)
            self.assertTrue(verified(old, delivery.headers, delivery.body))
            self.assertTrue(verified(new, delivery.headers, delivery.body))
        for room in rooms:
            self.assertEqual([e["event_id"] for e in r.events(room)], self.written(room), "in order")
        self.end(d)

    def test_kinds_and_rooms_of_targets_and_a_reload(self):
        a, b = self.receiver(), self.receiver()
        path = self.targets(("a", a, "user.online,user.offline", "*"), ("b", b, "*", "b-*"))
        d = self.start_daemon(webhook_targets_file=path)
        ra, rb = self.room("a"), self.room("b")
        for room in (ra, rb):
            self.grant(room, "s", 1, base=d.base)
        self.got_all(b, rb)
        self.wait_until(lambda: len(a.events()) == 2, 10, "the two users")
        self.assertEqual({e["kind"] for e in a.events()}, {"user.online"})
        self.assertEqual(b.events(ra), [])
        with open(path, "a") as f:
            f.write("broken line\n")
        self.allow_log = ["webhook_targets_file"]
        d.process.send_signal(1)
        self.wait_until(lambda: "five words" in d.text(), 5, "the complaint")
        self.grant(rb, "t", 1, base=d.base)
        self.got_all(b, rb)  # all is as it was
        self.targets(("a", a, "*", "*"))
        d.process.send_signal(1)
        self.wait_until(lambda: d.text().count("SIGHUP") >= 2, 5, "the reload")
        self.grant(ra, "t", 1, base=d.base)
        self.wait_until(lambda: any(e["session_id"] == "t" for e in a.events(ra) if "session_id" in e), 10, "t")
        self.end(d)


    def test_a_transaction_that_has_stood_for_long(self):
        """Dead rows stay behind each claim while it stands: messages go out all the same."""
        r = self.receiver()
        d = self.hooked(r)
        psql = self.psql()
        psql.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
        psql.run("SELECT count(*) FROM stillhere.webhook_event")
        rooms, late = [self.room() for _ in range(5)], []
        for turn in range(8):
            for room in rooms:
                self.ok(self.client.batch(d.base, [{"room_id": room, "user_id": "u%d" % i, "session_id": "s%d" % turn}
                                                   for i in range(50)]))
            began = time.monotonic()
            self.got_all(r, *rooms, seconds=15)
            late.append(time.monotonic() - began)
        self.assertLess(late[-1], 10 * SLOW, late)
        psql.run("COMMIT")
        self.end(d)


class Failing(Base):
    def test_500_500_200_is_delivered_on_the_third_attempt_with_the_same_bytes(self):
        left = [500, 503]
        r = self.receiver(lambda delivery: left.pop(0) if left else 200)
        d = self.hooked(r)
        room = self.room()
        self.grant(room, "s", 1, base=d.base)
        self.wait_until(lambda: len(r.all()) == 1, 5, "the first attempt")
        self.grant(room, "t", 1, base=d.base)  # is not mixed into the retry
        self.got_all(r, room, seconds=20)
        first = r.all()[:3]
        self.assertEqual({(x.id, x.body) for x in first}, {(first[0].id, first[0].body)})
        for x in first:
            self.assertTrue(verified(self.secret, x.headers, x.body))
        self.assertGreaterEqual(first[1].at - first[0].at, 0.45)
        self.assertGreaterEqual(first[2].at - first[1].at, 0.95)
        self.assertEqual([e["event_id"] for e in r.events(room)], self.written(room))
        self.wait_until(lambda: "webhook default: it works again" in d.text(), 5, "the good news")
        self.assertEqual(d.text().count("webhook default: it has begun to fail: status 50"), 1)
        self.end(d)

    def test_410_is_dead_at_once_and_429_waits_as_asked(self):
        answers = {}
        r = self.receiver(lambda delivery: answers[delivery.room].pop(0) if answers[delivery.room] else 200)
        d = self.hooked(r)
        gone, busy = self.room("gone"), self.room("busy")
        answers[gone], answers[busy] = [410], [(429, {"retry-after": "4"})]
        self.allow_log = ["given up"]
        for room in (gone, busy):
            self.grant(room, "s", 1, base=d.base)
        self.got_all(r, busy, seconds=20)
        attempts = [x for x in r.all() if x.room == busy]
        self.assertGreaterEqual(attempts[1].at - attempts[0].at, 3.9)
        self.assertEqual(len([x for x in r.all() if x.room == gone]), 1)
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.webhook_event WHERE dead_at IS NOT NULL AND "
                                "error = 'status 410'"), "2")
        self.grant(gone, "t", 1, base=d.base)  # goes on behind what is dead
        self.wait_until(lambda: any(e.get("session_id") == "t" for e in r.events(gone)), 10, "the next message")
        self.end(d)

    def test_what_fails_for_too_long_is_given_up(self):
        r = self.receiver(lambda delivery: 500)
        self.allow_log = ["given up"]
        d = self.hooked(r, webhook_give_up_ms=2000)
        for _ in range(16):
            self.grant(self.room(), "s", 1, base=d.base)
        self.wait_until(lambda: self.ok(self.client.get(d.base, "/webhooks"))["targets"][0]["failing_since"], 10, "since when")
        self.wait_until(lambda: self.count("webhook_event") == int(self.q(
            "SELECT count(*) FROM stillhere.webhook_event WHERE dead_at IS NOT NULL")), 20, "giving up")
        n = len(r.all())
        self.assertGreaterEqual(n, 2)
        self.pause(1.5)
        self.assertEqual(len(r.all()), n, "it is not tried any more")
        self.assertIn(d.text().count(" was given up: status 500"), range(1, 8), "the log is not flooded")
        self.assertEqual(d.text().count("it has begun to fail"), 1)
        self.end(d)

    def test_a_room_that_fails_holds_up_no_other_and_keeps_its_order(self):
        left = [500]
        bad = self.room("bad")
        r = self.receiver(lambda delivery: left.pop() if delivery.room == bad and left else 200)
        d = self.hooked(r)
        good = self.room("good")
        self.grant(bad, "s", 1, base=d.base)
        self.wait_until(lambda: not left, 5, "the failure")
        self.grant(bad, "t", 1, base=d.base)
        self.grant(good, "s", 1, base=d.base)
        self.got_all(r, good, seconds=4)
        self.got_all(r, bad, seconds=10)
        self.assertEqual([e["event_id"] for e in r.events(bad)], self.written(bad))
        self.end(d)

    def test_a_slow_target_holds_up_no_other(self):
        slow, fine = self.receiver(lambda delivery: time.sleep(6) or 200), self.receiver()
        d = self.start_daemon(webhook_targets_file=self.targets(("slow", slow, "*", "*"), ("fine", fine, "*", "*")))
        rooms = [self.room() for _ in range(30)]
        for room in rooms:
            began = time.monotonic()
            self.grant(room, "s", 1, base=d.base)
            self.assertLess(time.monotonic() - began, 2 * SLOW)
        self.got_all(fine, *rooms, seconds=5)
        self.assertLessEqual(len(slow.all()), 16, "eight at a time")
        self.end(d)


class Guard(Base):
    config = dict(Base.config, webhook_allow_private="off")

    def test_private_addresses_are_never_connected_to(self):
        listener = socket.socket(socket.AF_INET6)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", 0))
        listener.listen(16)
        listener.settimeout(0.1)
        self.addCleanup(listener.close)
        port = listener.getsockname()[1]
        hosts = ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0x7f000001", "2130706433",
                 "0", "169.254.169.254", "10.0.0.1", "[64:ff9b::7f00:1]", "[fd00::1]", "127.1"]
        d = self.start_daemon(webhook_targets_file=self.targets(
            *[("t%d" % i, "http://%s:%d/" % (host, port), "*", "*") for i, host in enumerate(hosts)]))
        self.grant(self.room(), "s", 1, base=d.base)
        self.wait_until(lambda: self.count("webhook_lane") == int(self.q(
            "SELECT count(*) FROM stillhere.webhook_lane WHERE last_error LIKE '%not a public one%'")), 15, "refusals")
        self.assertEqual(self.count("webhook_lane"), len(hosts))
        with self.assertRaises(socket.timeout):
            listener.accept()
        self.end(d)


class Elsewhere(Base):
    def test_a_redirect_is_a_failure_and_not_followed(self):
        other = self.receiver()
        for status in (302, 307):
            r = self.receiver(lambda delivery: (status, {"location": other.url}))
            d = self.hooked(r)
            self.grant(self.room(), "s", 1, base=d.base)
            self.wait_until(lambda: len(r.all()) >= 2, 10, "another attempt")
            self.assertEqual(other.all(), [])
            self.end(d)

    def test_proxies_of_the_environment_are_not_used(self):
        r, proxy = self.receiver(), self.receiver()
        os.environ["http_proxy"] = proxy.url
        try:
            d = self.hooked(r)
        finally:
            del os.environ["http_proxy"]
        room = self.room()
        self.grant(room, "s", 1, base=d.base)
        self.got_all(r, room)
        self.assertEqual(proxy.all(), [])
        self.end(d)

    def test_bad_targets_stop_the_start_with_a_line_that_names_the_key(self):
        good = self.secret_file(secret())
        for url in ("file:///etc/passwd", "gopher://h/", "ftp://h/x", "http://u:p@h/", "http://h/#f", "h/x", "http://"):
            self.refused("webhook_url", webhook_url=url, webhook_secret_file=good)
        for text in ("", "whsec_", "whsec_AAAA", "sec_" + secret()[6:], "whsec_!!!", "\n".join([secret()] * 5)):
            self.refused("webhook_secret_file", webhook_url="http://h/", webhook_secret_file=self.secret_file(text))
        self.refused("webhook_secret_file", webhook_url="http://h/", webhook_secret_file="/nowhere")
        self.refused("webhook_secret_file", webhook_url="http://h/")
        self.refused("webhook_targets_file", webhook_targets_file=self.targets(("a", "ftp://h/", "*", "*")))
        self.refused("webhook_targets_file", webhook_targets_file=self.targets(("a", "http://h/", "x", "*")))

    def refused(self, key, **config):
        d = self.start_daemon(wait=False, **config)
        self.assertNotEqual(d.process.wait(20 * SLOW), 0)
        self.assertIn(key, d.text())
        self.forget(d)


class Again(Base):
    """Listing what is dead, and sending it again."""

    def test_dead_messages_are_listed_and_replayed_with_the_same_bytes(self):
        down = [True]
        r = self.receiver(lambda delivery: 410 if down[0] else 200)
        self.allow_log = ["given up"]
        d = self.hooked(r)
        room = self.room("a/b")
        for session in ("s", "t", "u"):
            self.grant(room, session, 1, base=d.base)
            self.wait_until(lambda: self.q("SELECT count(*) FROM stillhere.webhook_event WHERE dead_at IS NULL") == "0",
                            10, "giving up")
        first = r.all()
        self.assertEqual(len(first), 3)
        target = self.ok(self.client.get(d.base, "/webhooks"))["targets"][0]
        self.assertEqual([target["name"], target["url"], target["backlog"], target["dead"], target["last_error"]],
                         ["default", r.url, 0, 4, "status 410"])
        dead, after = [], None
        while True:
            page = self.ok(self.client.get(d.base, "/webhooks/dead?limit=1" + ("&after=" + quote(after) if after else "")))
            dead += page["dead"]
            after = page["next"]
            if after is None:
                break
        self.assertEqual([m["event_ids"] for m in dead], [[e["event_id"] for e in x.events] for x in first])
        self.assertEqual({(m["target"], m["room_id"], m["attempts"], m["error"]) for m in dead},
                         {("default", room, 1, "status 410")})
        down[0] = False
        one = {"target": "default", "room_id": room, "message": dead[1]["message"]}
        self.assertEqual(self.ok(self.replay(d, one))["replayed_events"], 1)
        self.wait_until(lambda: len(r.taken()) == 1, 10, "the one")
        self.assertEqual((r.taken()[0].id, r.taken()[0].body), (first[1].id, first[1].body))
        self.assertEqual(self.ok(self.replay(d, {"target": "default"}))["replayed_events"], 3)
        self.wait_until(lambda: len(r.taken()) == 3, 10, "the others")
        self.assertEqual([x.body for x in r.taken()[1:]], [first[0].body, first[2].body])
        self.wait_until(lambda: self.count("webhook_event") == 0, 10, "nothing left")
        self.end(d)

    def replay(self, d, body):
        return self.client.request(d.base, "POST", "/webhooks/replay", json.dumps(body).encode(),
                                   headers={"Content-Type": "application/json"})

    def test_bad_requests_change_nothing(self):
        d = self.hooked(self.receiver())
        for body, field in (({}, "target"), ({"target": 1}, "target"), ({"target": "x" * 33}, "target"),
                            ({"target": "a", "x": 1}, "x"), ({"target": "a", "message": 1}, "room_id"),
                            ({"target": "a", "room_id": "r", "message": 0}, "message"), ([], None)):
            self.problem(self.replay(d, body), 400, field=field)
        for query, field in (("after=x", "after"), ("after=a/b/", "after"), ("limit=0", "limit"), ("target=", "target"),
                             ("x=1", "x")):
            self.problem(self.client.get(d.base, "/webhooks/dead?" + query), 400, field=field)
        self.assertEqual(self.ok(self.client.get(d.base, "/webhooks/dead"))["dead"], [])
        self.end(d)

    def test_the_command_lists_and_replays(self):
        down = [True]
        r = self.receiver(lambda delivery: 410 if down[0] else 200)
        self.allow_log = ["given up"]
        d = self.hooked(r)
        room = self.room()
        self.grant(room, "s", 1, base=d.base)
        self.wait_until(lambda: self.count("webhook_event", error="status 410") == 2, 10, "giving up")
        self.assertIn("2 given up", self.command(d, "webhooks"))
        self.assertIn("status 410", self.command(d, "webhooks", "list"))
        dead = json.loads(self.command(d, "webhooks", "dead", "--json"))
        self.assertEqual([dead["room_id"], len(dead["event_ids"])], [room, 2])
        self.assertIn(room, self.command(d, "webhooks", "dead", "default"))
        self.assertEqual(self.command(d, "webhooks", "dead", "other"), "")
        for wrong in (["replay"], ["replay", "default", room, "x"], ["bury"], ["list", "x"]):
            self.command(d, "webhooks", *wrong, code=2)
        down[0] = False
        self.assertIn("2 events", self.command(d, "webhooks", "replay", "default", room, str(dead["message"])))
        self.got_all(r, room)
        self.wait_until(lambda: self.count("webhook_event") == 0, 10, "nothing left")
        listed = self.command(d, "webhooks")
        self.assertIn("0 given up", listed)
        self.assertNotIn("error", listed, "what is over is not shown")
        self.assertEqual(self.command(d, "webhooks", "replay", "nosuch", code=1), "")
        self.problem(self.replay(d, {"target": "nosuch"}), 404, "not_found", field="target")
        self.assertIn("0 events", self.command(d, "webhooks", "replay", "default"))
        self.end(d)

    def command(self, d, *args, code=0):
        done = subprocess.run([os.environ["STILLHERE"], *args, "--url", d.base], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout


class Nasty(Base):
    """Receivers of every bad kind at once: the daemon lives, and heartbeats do not feel it."""

    def test_bad_receivers_harm_nobody(self):
        fine = self.receiver()
        servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
        for s, behave in zip(servers, (self.hang_up, self.half, self.endless, self.nonsense, self.long_head)):
            self.addCleanup(s.close)
            threading.Thread(target=self.serve, args=(s, behave), daemon=True).start()
        port = [s.getsockname()[1] for s in servers]
        d = self.start_daemon(webhook_targets_file=self.targets(
            ("name", "http://no-such-name.invalid/", "*", "*"), ("hole", "http://192.0.2.1:9/", "*", "*"),
            ("tls", "https://127.0.0.1:%d/" % port[0], "*", "*"), ("up", "http://127.0.0.1:%d/" % port[0], "*", "*"),
            ("half", "http://127.0.0.1:%d/" % port[1], "*", "*"), ("endless", "http://127.0.0.1:%d/" % port[2], "*", "*"),
            ("nonsense", "http://127.0.0.1:%d/" % port[3], "*", "*"),
            ("head", "http://127.0.0.1:%d/" % port[4], "*", "*"), ("fine", fine, "*", "*")))
        self.got_all(fine, self.told(d), seconds=10)
        before = rss_mib(d)
        until = time.monotonic() + (60 if LONG else 6)
        rooms = []
        while time.monotonic() < until:
            room = self.room()
            began = time.monotonic()
            self.grant(room, "s", 1, base=d.base)
            self.assertLess(time.monotonic() - began, 2 * SLOW)
            rooms.append(room)
            self.pause(0.1)
        self.got_all(fine, *rooms, seconds=10)
        # An endless answer of 200 is an answer; all else is a failure.
        self.wait_until(lambda: self.q("SELECT count(DISTINCT target) FROM stillhere.webhook_lane WHERE attempts > 0") ==
                        "7", 20, "the failures")
        self.assertIn("writing received data", self.q("SELECT max(last_error) FROM stillhere.webhook_lane "
                                                      "WHERE target = 'head'"), "cut, and not waited for")
        # The one that never ends sends as fast as it can. A sanitizer keeps what was freed for a while.
        self.assertLess(rss_mib(d) - before, 50 if SLOW == 1 else 600)
        self.end(d)

    def told(self, d):
        """@return a room with events"""
        room = self.room()
        self.grant(room, "s", 1, base=d.base)
        return room

    def serve(self, server, behave):
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=self.one, args=(connection, behave), daemon=True).start()

    def one(self, connection, behave):
        try:
            with connection:
                connection.recv(65536)
                behave(connection)
        except OSError:
            pass

    def hang_up(self, connection):
        pass

    def half(self, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")

    def endless(self, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    def long_head(self, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"x-more: of the same\r\n" * 1000)

    def nonsense(self, connection):
        connection.sendall(b"nonsense\r\n\r\n")
