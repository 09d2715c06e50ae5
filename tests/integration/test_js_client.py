# SPDX-License-Identifier: Apache-2.0
"""The JavaScript client in Node against a real daemon: what it survives."""

import os
import shutil
import signal
import tempfile

from harness import LONG
from harness.case import Case, lease, time
from harness.client import Client as HttpClient
from harness.node import Middle, Node
from harness.proxy import Proxy


class Client(Case):
    config = {"ttl_min_ms": 500, "offline_grace_ms": 1000}
    weight = 5

    def node(self, base=None, **options):
        return Node(self, base or self.base, **options)

    def successor(self, d):
        """Another daemon at the same address."""
        self.start_daemon(port=d.port).number = d.number
        type(self).client = HttpClient()  # its connections led to the other one

    def converged(self, node, room, name="w", seconds=10):
        """Waits until the watch shows what the database has."""
        def same():
            state = node.state(name)
            leases = {tuple(x.split("|")) for x in self.q(
                "SELECT user_id, session_id FROM stillhere.lease WHERE room_id = '%s'" % room).splitlines()}
            shown = {(u, s[0]) for u, _, sessions in state["users"] for s in sessions}
            return shown == leases and state["revision"] == self.head(room)
        self.wait_until(same, seconds, "what the database has")

    def watch_both(self, node, room):
        """A watch by polls, w, and one by a stream, s."""
        for name in ("w", "s"):
            node.tell("watch", name=name, room=room, stream=name == "s", waitMs=20000)
            node.until(what="snapshot", name=name, reason="requested")

    def snapshots(self, node, reason):
        """Waits until both of them have had a snapshot for this reason."""
        self.wait_until(lambda: {line["name"] for line in node.now() if line.get("reason") == reason} == {"w", "s"}, 20,
                        "a snapshot each: " + reason)

    def test_a_stay_from_its_beginning_to_its_end(self):
        room, node = self.room(), self.node()
        node.tell("join", name="a", room=room, user="an", ttlMs=4000, meta={"n": 1})
        revisions = [node.until(what="accepted", name="a")["revision"]]
        for _ in range(2):
            revisions.append(node.until(what="accepted", name="a", granted=False)["revision"])
        self.assertEqual(revisions, sorted(set(revisions)))
        node.tell("meta", name="a", meta={"n": 2})
        self.wait_until(lambda: self.events(room, kind="lease.renewed"), 5, "the meta")
        node.tell("close", name="a")
        self.assertTrue(node.until(what="closed", name="a")["told"])
        self.assertEqual([e["kind"] for e in self.events(room) if e["session_id"]],
                         ["lease.granted", "lease.renewed", "session.closed"])
        node.tell("end")
        self.assertEqual(node.process.wait(10), 0)

    def test_a_fold_is_the_database(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                room, node = self.room("fold"), self.node()
                self.grant(room, "early", user="early", meta={"x": 1})
                node.tell("watch", name="w", room=room, stream=stream, waitMs=2000)
                node.until(what="snapshot", name="w", reason="requested")
                for i in range(30):
                    self.grant(room, "s%d" % (i % 7), ttl_ms=60000, user="u%d" % (i % 5), meta={"i": i})
                    if i % 3 == 2:
                        self.ok(self.client.close(self.base, room, "u%d" % (i % 5), "s%d" % (i % 7)))
                self.converged(node, room)
                told = [line["revision"] for line in node.all if line["what"] == "event"]
                self.assertEqual(told, sorted(set(told)), "each once and in order")

    def test_a_refusal_ends_it(self):
        room, node = self.room(), self.node()
        self.client.request(self.base, "DELETE", "/rooms/%s/members/an" % room)
        node.tell("join", name="a", room=room, user="an")
        self.assertEqual(node.until(what="status", name="a", status="ended")["code"], "membership_revoked")

    def test_a_restart_of_the_server(self):
        room, node, d = self.room(), self.node(), self.daemons[0]
        self.watch_both(node, room)
        node.tell("join", name="a", room=room, user="an", ttlMs=8000)
        node.until(what="accepted", name="a")
        d.process.kill()
        d.process.wait()
        self.forget(d)
        self.pause(1.0)
        self.successor(d)
        self.grant(room, "s", user="bo")
        for name in ("w", "s"):
            self.converged(node, room, name, seconds=15)
        node.until(15, what="accepted", name="a", granted=False)
        self.assertEqual(self.events(room, kind="lease.expired"), [])

    def test_no_network_for_a_while(self):
        """As a cable that was pulled: no answer and no end, for less time than the one lease has and more than the other."""
        seconds, ttl_ms = (30, 60000) if LONG else (6, 15000)
        place = tempfile.mkdtemp(prefix="shjs")
        self.addCleanup(shutil.rmtree, place, True)
        other = self.start_daemon(listen="unix:" + os.path.join(place, "s"))
        cable = Proxy(os.path.join(place, "s"))
        self.addCleanup(cable.close)
        room, node = self.room(), self.node("http://127.0.0.1:%d" % cable.port)
        node.tell("watch", name="w", room=room, waitMs=2000)
        node.tell("join", name="b", room=room, user="bo", ttlMs=2000)
        session = node.until(what="accepted", name="b")["session"]
        node.tell("join", name="a", room=room, user="an", ttlMs=ttl_ms)
        node.until(what="accepted", name="a")
        cable.vanish()
        self.pause(seconds)
        self.grant(room, "s", user="meanwhile")
        node.now()
        cable.appear()
        node.until(20, what="accepted", name="b", session=session)
        self.wait_until(lambda: [line for line in node.now() if line["what"] == "accepted" and line["name"] == "a"][1:], 20,
                        "another renewal")
        self.assertEqual([line["granted"] for line in node.now() if line["what"] == "accepted" and line["name"] == "a"][1:2],
                         [False], "the lease lived on")
        told = [line["status"] for line in node.now() if line["what"] == "status" and line["name"] == "b"]
        self.assertEqual([s for s in told if s != "retrying"], ["live", "lapsed", "live"])
        # One end, and one beginning: by whichever heartbeat came first, one that was held up all the time maybe.
        self.assertEqual([e["kind"] for e in self.events(room, user_id="bo") if e["session_id"]],
                         ["lease.granted", "lease.expired", "lease.granted"])
        self.assertEqual([e["user_id"] for e in self.events(room, kind="lease.expired")], ["bo"])
        self.converged(node, room, seconds=15)
        self.assertEqual(self.count("lease", room_id=room), 3, "no ghost")
        node.kill()
        self.stop_now(other)

    def test_sleep_and_wake(self):
        """The machine sleeps for longer than the lease lives: one ending, and one new beginning of the same session."""
        room, node = self.room(), self.node()
        node.tell("watch", name="w", room=room, waitMs=2000)
        node.tell("join", name="a", room=room, user="an", ttlMs=1500)
        session = node.until(what="accepted", name="a")["session"]
        node.process.send_signal(signal.SIGSTOP)
        self.wait_until(lambda: self.events(room, kind="user.offline"), 1.5 + 2 + 1 + 2, "the end")
        node.process.send_signal(signal.SIGCONT)
        self.assertEqual(node.until(15, what="accepted", name="a", granted=True)["session"], session)
        self.assertEqual(self.count("lease", room_id=room), 1, "no ghost beside it")
        self.converged(node, room, seconds=15)

    def test_a_machine_that_slept(self):
        """Its timers and its steady clock have stood still, its wall clock has not."""
        room, node = self.room(), self.node(trace=True)
        node.tell("watch", name="w", room=room, waitMs=50000)
        node.tell("join", name="a", room=room, user="an", ttlMs=600000)
        node.until(what="accepted", name="a")
        self.wait_until(lambda: node.state()["revision"] == 2, 10, "what there is")
        self.pause(0.5)
        polls = len(node.requests("GET"))
        node.tell("sleep", ms=3600000)
        node.until(15, what="accepted", name="a", granted=False)  # instead of after two minutes and more
        self.wait_until(lambda: len(node.requests("GET")) > polls, 5, "a poll on another connection")

    def test_a_pruned_cursor(self):
        room, node = self.room(), self.node()
        self.grant(room, "s", user="bo")
        self.watch_both(node, room)
        node.process.send_signal(signal.SIGSTOP)
        d = self.daemons[0]
        self.stop_now(d)
        other = self.start_daemon()  # so that nothing of this is on its way to the process already
        for i in range(5):
            self.grant(room, "s%d" % i, user="u%d" % i)
        self.q("DELETE FROM stillhere.event WHERE room_id = '%s' AND revision < 9" % room)
        self.q("UPDATE stillhere.room SET pruned_revision = 8 WHERE room_id = '%s'" % room)
        self.stop_now(other)  # what it kept in memory would serve the cursor
        self.successor(d)
        node.process.send_signal(signal.SIGCONT)
        self.snapshots(node, "pruned")
        for name in ("w", "s"):
            self.converged(node, room, name, seconds=15)

    def test_another_epoch(self):
        room, node = self.room(), self.node()
        self.grant(room, "s", user="bo")
        self.watch_both(node, room)
        before = node.state()["epoch"]
        self.q("UPDATE stillhere.incarnation SET word = 'another'")
        self.snapshots(node, "epoch")
        self.grant(room, "t", user="an")
        for name in ("w", "s"):
            self.converged(node, room, name, seconds=15)
            self.assertNotEqual(node.state(name)["epoch"], before)

    def test_two_tabs_of_one_person(self):
        room, node = self.room(), self.node()
        node.tell("watch", name="w", room=room, waitMs=2000)
        for tab in ("one", "two"):
            node.tell("join", name=tab, room=room, user="an", ttlMs=5000)
            node.until(what="accepted", name=tab)
        self.converged(node, room)
        self.assertEqual(node.state()["counts"], {"users": 1, "sessions": 2})
        node.tell("close", name="one")
        node.until(what="closed", name="one")
        self.converged(node, room)
        self.pause(1.5)
        self.assertEqual(node.state()["counts"], {"users": 1, "sessions": 1})
        self.assertEqual(self.events(room, kind="user.offline"), [])
        node.tell("close", name="two")
        self.wait_until(lambda: node.state()["counts"] == {"users": 0, "sessions": 0}, 10, "an empty room")

    def test_a_clock_that_is_wrong(self):
        beats = {}

        def first(method, path, body):
            if method == "PUT":
                n = beats[body["room_id"]] = beats.get(body["room_id"], 0) + 1
                return (503, {}, {"code": "unavailable"}) if n == 3 else None
            return None
        middle = Middle(self, self.base, first)
        nodes = {self.room("skew"): self.node(middle.base, skewMs=skew) for skew in (3600000, -3600000)}
        began = time.monotonic()
        for room, node in nodes.items():
            node.tell("join", name="a", room=room, user="an", ttlMs=3000)
        for room, node in nodes.items():
            node.until(20, what="accepted", name="a", revision=6)  # the fourth after the first, since one was refused
            self.assertGreater(time.monotonic() - began, 2.0, "it renews too often")
            self.assertEqual(self.events(room, kind="lease.expired"), [])
            self.assertEqual([line["status"] for line in node.now() if line["what"] == "status"], ["live", "retrying", "live"])

    def test_a_handler_slower_than_the_room(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                room, node = self.room("slow"), self.node()
                self.grant(room, "s", user="bo")
                node.tell("watch", name="w", room=room, slowMs=300, bufferMost=5, waitMs=2000, stream=stream)
                node.until(what="snapshot", name="w", reason="requested")
                for i in range(40):
                    self.ok(self.client.batch(self.base, [lease(room, "u%d" % i, "s", 1)]))
                node.until(20, what="snapshot", name="w", reason="requested")
                self.converged(node, room, seconds=20)
                self.assertLess(len([line for line in node.all if line["what"] == "event"]), 60)
                # And it follows from there on.
                self.grant(room, "s", user="late")
                self.converged(node, room, seconds=20)

    def test_cursors(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                room, one, two = self.room(), self.node(), self.node(trace=True)
                for node, user in ((one, "an"), (two, "bo")):
                    node.tell("join", name="me", room=room, user=user, ttlMs=5000)
                    node.until(what="accepted", name="me")
                    node.tell("cursors", name="c", room=room, stream=stream)
                for i in range(20):
                    one.tell("point", name="c", stay="me", data={"x": i})
                two.until(10, what="cursors", all=[["an", {"x": 19}]])
                for i in range(3):
                    one.tell("point", name="c", stay="me", data={"y": i})
                    two.until(10, what="cursors", all=[["an", {"y": i}]])
                looks = len([r for r in two.requests("GET") if "/cursors" in r["path"]])
                self.assertEqual(looks == 1, stream, "one stream, or several polls")
                one.tell("close", name="me")
                two.until(10, what="cursors", all=[])

    def test_one_who_does_not_wait_and_one_who_is_not_let(self):
        """A server that answers polls at once with nothing is not asked again and again."""
        def first(method, path, body):
            if "since=" not in path or "idle" in path:
                return None
            return 200, {}, {"mode": "unchanged", "from": 0, "revision": 0, "events": [], "next_poll_ms": 25000}
        middle = Middle(self, self.base, first)
        node = self.node(middle.base, trace=True)
        node.tell("watch", name="hasty", room="hasty", waitMs=20000)
        node.tell("watch", name="idle", room="idle", waitMs=0)
        for name in ("hasty", "idle"):
            node.until(what="snapshot")
        self.pause(2)
        looks = [r["path"].split("/")[2] for r in node.requests("GET")]
        self.assertEqual(looks.count("idle"), 1, "it comes again when the server said")
        self.near(looks.count("hasty"), 3, 12, "polls in two seconds")
