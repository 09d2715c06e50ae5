# SPDX-License-Identifier: Apache-2.0
"""One line for every decision and every expiry, and never a worker that waits for its reader (CONTRACT §10)."""

import fcntl
import os

from harness.case import SLOW, Case, json, lease, threading, time

FIELDS = ("room_id", "user_id", "session_id", "event_id", "prior_revision", "new_revision", "decision", "request_id",
          "instance")


def entries(text, room=None):
    """The decision lines of an output, of one room."""
    out = [json.loads(line) for line in text.split("\n") if line]  # U+2028 ends no line
    return [e for e in out if "decision" in e and (room is None or e["room_id"] == room)]


class DecisionLog(Case):
    config = {"ttl_min_ms": 100, "sweep_interval_ms": 200}

    def story(self, base, room):
        """Every kind of decision once. @return the request ids and what each came to"""
        told = []

        def tell(name, call, *args, **kwargs):
            reply = call(*args, headers={"X-Request-Id": name}, **kwargs)
            told.append((name, reply.json()["decision"]))

        hb, close = self.client.hb, self.client.close
        tell("grant", hb, base, room, "u", "s", 5, 60000)
        tell("renew", hb, base, room, "u", "s", 6, 60000)
        tell("meta", hb, base, room, "u", "s", 7, 60000, {"a": 1})
        tell("equal", hb, base, room, "u", "s", 7, 60000)
        tell("old", hb, base, room, "u", "s", 3, 60000)
        tell("old-close", close, base, room, "u", "s", 2)
        tell("close", close, base, room, "u", "s")
        tell("again", close, base, room, "u", "s")
        tell("closed", hb, base, room, "u", "s", None, 60000)
        tell("never", hb, base, room, "u", "runs-out", 1, 150)
        self.wait_until(lambda: self.events(room, kind="lease.expired"), 5, "the expiry")
        self.assertEqual([d for _, d in told],
                         ["accepted", "accepted", "accepted", "already_applied", "ignored_old_revision",
                          "ignored_old_revision", "accepted", "already_applied", "session_closed", "accepted"])
        return told

    def lines(self, d, room, n):
        """The room's lines, once there are n."""
        self.wait_until(lambda: len(entries(d.output(), room)) >= n, 5, "%d lines" % n)
        self.pause(0.3)
        return entries(d.output(), room)

    def test_all(self):
        room, d = self.room(), self.daemons[0]
        told = self.story(self.base, room)
        lines = self.lines(d, room, len(told) + 1)
        self.assertEqual([(e["request_id"], e["decision"]) for e in lines], told + [("never", "expired")])
        for line in lines:
            for field in FIELDS:
                self.assertIn(field, line)
            self.assertEqual([line["room_id"], line["user_id"]], [room, "u"])
            self.assertTrue(line["instance"])
        self.assertEqual(len({e["instance"] for e in lines}), 1)
        by_id = {e["request_id"] + "/" + e["decision"]: e for e in lines}
        events = {e["lease_revision"] if e["kind"] != "session.closed" else "closed": e["event_id"]
                  for e in self.events(room) if e["session_id"] == "s"}
        self.assertEqual([(by_id[k]["prior_revision"] or 0, by_id[k]["new_revision"]) for k in
                          ("grant/accepted", "renew/accepted", "meta/accepted", "equal/already_applied",
                           "old/ignored_old_revision", "close/accepted", "never/accepted")],
                         [(0, 5), (5, 6), (6, 7), (7, 7), (7, 7), (7, 7), (0, 1)])
        self.assertEqual([by_id["grant/accepted"]["event_id"], by_id["meta/accepted"]["event_id"],
                          by_id["close/accepted"]["event_id"]], [events[5], events[7], events["closed"]])
        self.assertIsNone(by_id["renew/accepted"]["event_id"])
        (expiry,) = [e for e in self.events(room) if e["kind"] == "lease.expired"]
        self.assertEqual([by_id["never/expired"][k] for k in ("event_id", "session_id", "prior_revision")],
                         [expiry["event_id"], "runs-out", 1])

    def test_a_batch_has_a_line_for_each_item(self):
        room, d = self.room(), self.daemons[0]
        items = [lease(room, "u", "s%d" % i, 1) for i in range(200)] + [lease(room, "u", "s0", 1), {"room_id": room}]
        self.ok(self.client.batch(self.base, items))
        lines = self.lines(d, room, 201)
        self.assertEqual(len(lines), 201, "what was no heartbeat was not decided")
        self.assertEqual([e["decision"] for e in lines].count("accepted"), 200)

    def test_odd_names_stay_one_line(self):
        room, d = "a\"b\\c\u2028é\U0001F600", self.daemons[0]
        self.ok(self.hb(self.base, room, "u'", "s{}", 1))
        (line,) = self.lines(d, room, 1)
        self.assertEqual([line["user_id"], line["session_id"]], ["u'", "s{}"])

    def test_transitions(self):
        room = self.room()
        d = self.start_daemon(decision_log="transitions")
        told = [t for t in self.story(d.base, room) if t[0] != "renew"]
        lines = self.lines(d, room, len(told))
        self.assertEqual([(e["request_id"], e["decision"]) for e in lines if e["decision"] != "expired"], told)
        # The expiry is told by whichever instance swept it.
        both = entries(d.output(), room) + entries(self.daemons[0].output(), room)
        self.assertEqual(len([e for e in both if e["decision"] == "expired"]), 1)
        self.stop_now(d)

    def test_off(self):
        room = self.room()
        d = self.start_daemon(decision_log="off")
        self.story(d.base, room)
        self.stop_now(d)
        self.assertEqual(d.output(), "")

    def test_lines_are_flushed_on_the_way_out(self):
        room, d = self.room(), self.start_daemon()
        items = [lease(room, "u", "s%d" % i, 1) for i in range(1000)]
        self.ok(self.client.batch(d.base, items))
        self.stop_now(d)
        self.assertEqual(len(entries(d.output(), room)), 1000)


class StoppedReader(Case):
    """Standard output is a pipe that nobody reads."""

    autostart = False

    def start(self):
        read_end, write_end = os.pipe()
        try:
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
        except (AttributeError, OSError):
            pass
        d = self.start_daemon(wait=False, stdout=write_end)
        os.close(write_end)
        d.wait_ready()
        return d, read_end

    def test_heartbeats_never_wait_for_it(self):
        room = self.room()
        d, read_end = self.start()
        total, slowest = 0, 0
        for round_ in range(60):
            reply = self.client.batch(d.base, [lease(room, "u", "s%d" % i, round_ + 1) for i in range(1000)])
            self.assertEqual(reply.status, 200)
            total += 1000
            single = self.hb(d.base, room, "u", "single", round_ + 1)
            self.assertEqual(single.status, 200)
            total += 1
            slowest = max(slowest, single.seconds)
        self.assertLess(slowest, 1.0 * SLOW)
        text = []

        def read():
            with os.fdopen(read_end, "rb") as pipe:
                for line in pipe:
                    text.append(json.loads(line))

        reader = threading.Thread(target=read)
        reader.start()  # now it is read: it says how many lines are missing
        self.wait_until(lambda: self.told(text) >= total, 15, "lines and the count of the missing ones")
        self.assertEqual(self.told(text), total)
        self.assertLess(sum("decision" in e for e in text), total, "nothing was dropped: the test shows nothing")
        self.hb(d.base, room, "u", "single", 1000, headers={"X-Request-Id": "it-goes-on"})
        self.wait_until(lambda: any(e.get("request_id") == "it-goes-on" for e in text), 5, "the next line")
        self.stop_now(d)
        reader.join(5)

    @staticmethod
    def told(text):
        return sum(1 if "decision" in e else e.get("lines", e.get("dropped", 0)) for e in list(text))

    def test_it_stops_in_time_all_the_same(self):
        room = self.room()
        d, read_end = self.start()
        for round_ in range(10):
            self.ok(self.client.batch(d.base, [lease(room, "u", "s%d" % i, round_ + 1) for i in range(1000)]))
        began = time.monotonic()
        self.stop_now(d)
        self.assertLess(time.monotonic() - began, 10 * SLOW)
        os.close(read_end)

    def test_a_reader_that_has_gone(self):
        room = self.room()
        d, read_end = self.start()
        os.close(read_end)
        self.allow_log = [r"decision log"]
        for revision in range(1, 50):
            self.grant(room, "s", revision, base=d.base)
        self.stop_now(d)
