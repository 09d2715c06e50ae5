# SPDX-License-Identifier: Apache-2.0
"""Webhooks: how soon and how many together, who holds up whom, the stop, certificates, names and secrets."""

import os
import random
import signal
import socket
import subprocess
import threading
from unittest import mock

from harness import tls
from harness.case import SLOW, Case, time
from harness.receiver import Receiver, secret, verified
from test_webhooks import Base

HARNESS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "harness")


class Known(Case):
    """The example of the Standard Webhooks specification, for the check that the other tests rely on."""

    autostart = False

    def test_the_example_is_verified(self):
        headers = {"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330",
                   "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}
        key, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
        self.assertTrue(verified(key, headers, body))
        self.assertTrue(verified(key, dict(headers, **{"webhook-signature": "v1,AAAA v2,x " +
                                                       headers["webhook-signature"]}), body))
        self.assertFalse(verified(key, headers, body + b" "))
        self.assertFalse(verified(key, dict(headers, **{"webhook-timestamp": "1614265331"}), body))
        self.assertFalse(verified(key, dict(headers, **{"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJel"}), body))


class Hanging(Base):
    def hanging(self, status=200, seconds=60):
        """A receiver that answers only when `free` is set, or after some time."""
        free = threading.Event()
        self.addCleanup(free.set)
        r = self.receiver(lambda delivery: free.wait(seconds) and status or status)
        r.free = free
        return r


class Pace(Base):
    def test_an_event_waits_for_a_moment_only(self):
        r = self.receiver()
        d = self.hooked(r)
        dice, lags = random.Random(3), []
        for _ in range(12):
            room = self.room()
            self.grant(room, "s", 1, base=d.base)
            began = time.monotonic()
            delivery = self.wait_until(lambda: [x for x in r.all() if x.room == room], 10, "the message")[0]
            lags.append(delivery.at - began)
            self.pause(dice.random() * 0.25)
        self.assertLess(sorted(lags)[6], 0.6 * SLOW, lags)
        self.end(d)

    def test_events_gather_in_messages(self):
        r = self.receiver()
        d = self.hooked(r)
        room = self.room()
        began = time.monotonic()
        for i in range(60):
            self.grant(room, "s%d" % i, 1, base=d.base)
            self.pause(0.02)
        took = time.monotonic() - began
        self.got_all(r, room)
        self.assertLess(len(r.all()), 4 * took + 5, "four messages a second, more only while there are full ones")
        self.end(d)

    def test_many_events_of_a_room_are_not_held_back(self):
        r = self.receiver()
        d = self.hooked(r)
        room = self.room()
        self.ok(self.client.batch(d.base, [{"room_id": room, "user_id": "u%d" % i, "session_id": "s"}
                                           for i in range(400)]))
        self.got_all(r, room, seconds=6)  # forty messages: at four a second it would be ten
        self.assertEqual([e["event_id"] for e in r.events(room)], self.written(room))
        self.assertLess(len(r.all()), 50, "full ones")
        self.end(d)

    def test_many_rooms_are_not_held_back(self):
        r = self.receiver()
        d = self.hooked(r)
        rooms = [self.room() for _ in range(400)]
        self.ok(self.client.batch(d.base, [{"room_id": room, "user_id": "u", "session_id": "s"} for room in rooms]))
        self.got_all(r, *rooms, seconds=9)  # eight at a time, four times a second, would be twelve
        self.end(d)

    def got_all(self, receiver, *rooms, seconds=15):
        n = int(self.q("SELECT count(*) FROM stillhere.event WHERE room_id LIKE '%%%s%%'" % self._testMethodName))
        self.wait_until(lambda: len({e["event_id"] for e in receiver.events()}) == n, seconds, "every event")


class Apart(Hanging):
    def test_eight_targets_that_hang_leave_a_ninth_its_share(self):
        stuck, fine = self.hanging(), self.receiver()
        d = self.start_daemon(webhook_targets_file=self.targets(
            *[("t%d" % i, stuck, "*", "*") for i in range(8)], ("fine", fine, "*", "*")))
        rooms = [self.room() for _ in range(36)]
        for room in rooms:
            self.grant(room, "s", 1, base=d.base)
            self.pause(0.03)
        self.got_all(fine, *rooms, seconds=6)
        self.assertLessEqual(len(stuck.all()), 64)
        self.assertGreaterEqual(len(stuck.all()), 8)
        stuck.free.set()
        self.end(d)


class Cut(Base):
    """Answers that end inside their head say nothing, whatever their first line is."""

    HEADS = (b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n",
             b"HTTP/1.1 410 Gone\r\nX", b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n")

    def test_a_cut_head_is_no_answer(self):
        servers, got = [socket.create_server(("127.0.0.1", 0)) for _ in self.HEADS], [[] for _ in self.HEADS]
        for server, head, bodies in zip(servers, self.HEADS, got):
            self.addCleanup(server.close)
            threading.Thread(target=self.serve, args=(server, head, bodies), daemon=True).start()
        d = self.start_daemon(webhook_targets_file=self.targets(
            *[("t%d" % i, "http://127.0.0.1:%d/" % s.getsockname()[1], "user.online", "*") for i, s in enumerate(servers)]))
        self.grant(self.room(), "s", 1, base=d.base)
        self.wait_until(lambda: self.count("webhook_event") == 0, 20, "all of it told")
        for head, bodies in zip(self.HEADS, got):
            self.assertEqual(len(bodies), 2, head)
            self.assertEqual(bodies[0], bodies[1], head)
        self.assertEqual(d.text().count("begun to fail: the answer ended inside its head"), len(servers))
        self.end(d)

    def serve(self, server, head, bodies):
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as f:
                length = 0
                for line in iter(f.readline, b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                bodies.append(f.read(length))
                connection.sendall(head if len(bodies) == 1 else b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")


class Stopping(Hanging):
    def again(self, d):
        return self.start_daemon(webhook_url=d.config["webhook_url"],
                                 webhook_secret_file=d.config["webhook_secret_file"])

    def test_what_is_on_its_way_is_answered_first(self):
        r = self.hanging(seconds=1.8)
        d = self.hooked(r)
        self.grant(self.room(), "s", 1, base=d.base)
        self.wait_until(lambda: r.all(), 5, "the attempt")
        self.stop_now(d)
        self.assertEqual(self.count("webhook_event"), 0)
        d = self.again(d)
        self.pause(1)
        self.assertEqual(len(r.all()), 1, "it is not sent again")
        self.end(d)

    def test_what_is_not_answered_is_given_back(self):
        r = self.hanging()
        d = self.hooked(r)
        rooms = [self.room() for _ in range(8)]
        for room in rooms:
            self.grant(room, "s", 1, base=d.base)
        self.wait_until(lambda: len(r.all()) == 8, 10, "the attempts")
        self.stop_now(d)
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.webhook_lane WHERE newest > done AND claim IS NULL AND "
                                "claimed_until IS NULL AND due_at <= clock_timestamp() AND attempts = 0"), "8")
        first = {x.id: x.body for x in r.all()}
        r.free.set()
        d = self.again(d)
        self.wait_until(lambda: len(r.all()) >= 16, 10, "them again, before the claims would have run out")
        for x in r.all():
            self.assertEqual(first[x.id], x.body)
        self.end(d)

    def test_a_database_that_hangs_does_not_hold_up_the_stop(self):
        """Its own demand, that of every stop: ten seconds."""
        r = self.hanging()
        d = self.hooked(r)
        for _ in range(8):
            self.grant(self.room(), "s", 1, base=d.base)
        self.wait_until(lambda: len(r.all()) == 8, 10, "the attempts")
        locks = self.psql()
        locks.run("BEGIN")
        locks.run("LOCK TABLE stillhere.webhook_lane IN ACCESS EXCLUSIVE MODE")
        self.stop_now(d)
        locks.run("ROLLBACK")
        self.q("DELETE FROM stillhere.webhook_event")
        self.q("DELETE FROM stillhere.webhook_lane")


class Certificates(Base):
    def test_a_certificate_that_nobody_vouches_for_is_refused(self):
        pair, other = tls.Pair(self.directory, "hook"), tls.Pair(self.directory, "other")
        r = self.receiver_with(pair)
        for more in ({}, {"webhook_ca_file": other.cert}):
            d = self.hooked(r, **more)
            self.grant(self.room(), "s", 1, base=d.base)
            self.refusal()
            self.assertEqual(r.all(), [])
            self.end(d)

    def test_one_for_another_name_is_refused(self):
        pair = tls.Pair(self.directory, "name")
        r = self.receiver_with(pair, "127.0.0.2")
        d = self.hooked(r, webhook_ca_file=pair.cert)
        self.grant(self.room(), "s", 1, base=d.base)
        self.refusal()
        self.assertEqual(r.all(), [])
        self.end(d)

    def test_one_that_webhook_ca_file_vouches_for_is_taken(self):
        pair = tls.Pair(self.directory, "good")
        r = self.receiver_with(pair)
        d = self.hooked(r, webhook_ca_file=pair.cert)
        room = self.room()
        self.grant(room, "s", 1, base=d.base)
        self.got_all(r, room)
        self.assertTrue(verified(self.secret, r.all()[0].headers, r.all()[0].body))
        self.end(d)

    def test_a_bad_file_stops_the_start(self):
        broken = os.path.join(self.directory, "broken.pem")
        for path, text in (("/nowhere", None), (broken, "nothing"), (broken, ""),
                           (broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")):
            if text is not None:
                with open(path, "w") as f:
                    f.write(text)
            d = self.start_daemon(wait=False, webhook_ca_file=path)
            self.assertNotEqual(d.process.wait(20 * SLOW), 0)
            self.assertIn("webhook_ca_file", d.text())
            self.forget(d)

    def receiver_with(self, pair, host="127.0.0.1"):
        r = Receiver(tls=pair, host=host)
        self.addCleanup(r.close)
        return r

    def refusal(self):
        self.wait_until(lambda: self.q("SELECT count(*) FROM stillhere.webhook_lane WHERE last_error ILIKE "
                                       "'%certificate%'") == "1", 10, "the refusal")


class Names(Base):
    @classmethod
    def begin(cls):
        super().begin()
        cls.shim = os.path.join(cls.directory, "names.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", cls.shim, os.path.join(HARNESS, "names.c"), "-ldl"],
                       check=True)

    def named(self, **config):
        with mock.patch.dict(os.environ, LD_PRELOAD=self.shim,
                             ASAN_OPTIONS="abort_on_error=0:exitcode=99:detect_leaks=1:verify_asan_link_order=0"):
            return self.start_daemon(**config)

    def test_a_name_that_is_looked_up_for_long_holds_up_no_other_target(self):
        fine = self.receiver()
        d = self.named(webhook_targets_file=self.targets(("slow", "http://hanging.test/", "*", "*"),
                                                         ("fine", fine, "*", "*")))
        until = time.monotonic() + 8  # an attempt is ended after 5 s
        rooms = []
        while time.monotonic() < until:
            rooms.append(self.room())
            self.grant(rooms[-1], "s", 1, base=d.base)
            self.pause(0.4)
        self.got_all(fine, *rooms, seconds=6)
        self.wait_until(lambda: self.count("webhook_lane", target="slow", attempts=1), 15, "the end of an attempt")
        self.end(d)

    def test_each_address_of_a_name_is_looked_at(self):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(0.1)
        self.addCleanup(listener.close)
        d = self.named(webhook_allow_private="off", webhook_targets_file=self.targets(
            ("x", "http://rebound.test:%d/" % listener.getsockname()[1], "*", "*")))
        self.grant(self.room(), "s", 1, base=d.base)
        self.wait_until(lambda: self.q("SELECT count(*) FROM stillhere.webhook_lane WHERE last_error LIKE "
                                       "'%not a public one%'") == "1", 15, "the refusal")
        with self.assertRaises(socket.timeout):
            listener.accept()
        self.end(d)


class Secrets(Base):
    def test_a_secret_is_replaced_without_a_gap(self):
        r = self.receiver()
        old, new = secret(), secret()
        path = self.secret_file(old)
        d = self.start_daemon(webhook_url=r.url, webhook_secret_file=path)
        for turn, (secrets, good, bad) in enumerate((([old], [old], [new]), ([new, old], [new, old], []),
                                                     ([old, new], [new, old], []), ([new], [new], [old]))):
            with open(path, "w") as f:
                f.write("\n".join(secrets) + "\n")
            d.process.send_signal(signal.SIGHUP)
            self.wait_until(lambda: d.text().count("SIGHUP: log_level") == turn + 1, 5, "the reload")
            self.assertEqual(d.text().count("the targets of webhooks are reloaded: 1"), turn + 1)
            room = self.room()
            self.grant(room, "s", 1, base=d.base)
            self.got_all(r, room)
            for x in r.all():
                if x.room == room:
                    self.assertEqual(len(x.headers["webhook-signature"].split(" ")), len(secrets))
                    self.assertTrue(all(verified(key, x.headers, x.body) for key in good))
                    self.assertFalse(any(verified(key, x.headers, x.body) for key in bad))
        self.end(d)
