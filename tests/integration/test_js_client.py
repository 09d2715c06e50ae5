# SPDX-License-Identifier: Apache-2.0
"""The JavaScript client in Node against a real daemon: what it survives."""

import json
import os
import queue
import shutil
import signal
import subprocess
import threading

from harness.case import SLOW, Case, lease, time
from harness.client import Client as HttpClient

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Node:
    """A process with the client in it."""

    def __init__(self, test, base, skew_ms=0):
        node = shutil.which("node")
        assert node, "nodejs is not installed"
        self.process = subprocess.Popen([node, os.path.join(TREE, "tests", "js", "client.mjs"), base, str(skew_ms)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        bufsize=1)
        self.said, self.all = queue.Queue(), []
        self.faults = []
        threading.Thread(target=self.read, daemon=True).start()
        threading.Thread(target=lambda: self.faults.extend(self.process.stderr), daemon=True).start()
        test.addCleanup(self.kill)
        self.until(what="ready")

    def read(self):
        for line in self.process.stdout:
            self.said.put(json.loads(line))

    def tell(self, verb, **more):
        self.process.stdin.write(json.dumps(dict(more, do=verb)) + "\n")

    def until(self, seconds=10, **wanted):
        """Waits for a line that says this. @return it"""
        deadline = time.monotonic() + seconds * SLOW
        while True:
            try:
                line = self.said.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError("%r was not said; said was %r; %s" % (wanted, self.all[-12:], "".join(self.faults)))
            self.all.append(line)
            if all(line.get(k) == v for k, v in wanted.items()):
                return line

    def state(self, name="w"):
        self.tell("state", name=name)
        return self.until(what="state", name=name)

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                stream.close()
            except BrokenPipeError:
                pass


class Client(Case):
    config = {"ttl_min_ms": 500, "offline_grace_ms": 1000}
    weight = 5

    def node(self, **options):
        return Node(self, self.base, **options)

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

    def test_a_stay_from_its_beginning_to_its_end(self):
        room, node = self.room(), self.node()
        node.tell("join", name="a", room=room, user="an", ttlMs=2000, meta={"n": 1})
        first = node.until(what="accepted", name="a", granted=True)
        node.until(what="accepted", name="a", revision=first["revision"] + 2, granted=False)
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
        node.tell("watch", name="w", room=room, waitMs=20000)
        node.tell("join", name="a", room=room, user="an", ttlMs=8000)
        node.until(what="accepted", name="a")
        d.process.kill()
        d.process.wait()
        self.forget(d)
        self.pause(1.0)
        self.successor(d)
        self.grant(room, "s", user="bo")
        self.converged(node, room, seconds=15)
        node.until(15, what="accepted", name="a", granted=False)
        self.assertEqual(self.events(room, kind="lease.expired"), [])

    def test_no_network_for_a_while(self):
        """Neither an answer nor an end: as a cable that was pulled. Shorter than the lease, and then longer."""
        room, node, d = self.room(), self.node(), self.daemons[0]
        node.tell("watch", name="w", room=room, waitMs=2000)
        node.tell("join", name="a", room=room, user="an", ttlMs=9000)
        node.until(what="accepted", name="a")
        d.process.send_signal(signal.SIGSTOP)
        time.sleep(6)
        d.process.send_signal(signal.SIGCONT)
        node.until(20, what="accepted", name="a", granted=False)
        self.assertEqual(self.events(room, kind="lease.expired"), [])
        self.converged(node, room, seconds=15)

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

    def test_a_pruned_cursor(self):
        room, node = self.room(), self.node()
        self.grant(room, "s", user="bo")
        node.tell("watch", name="w", room=room, waitMs=1000)
        node.until(what="snapshot", name="w")
        node.process.send_signal(signal.SIGSTOP)
        for i in range(5):
            self.grant(room, "s%d" % i, user="u%d" % i)
        self.q("DELETE FROM stillhere.event WHERE room_id = '%s' AND revision < 9" % room)
        self.q("UPDATE stillhere.room SET pruned_revision = 8 WHERE room_id = '%s'" % room)
        d = self.daemons[0]
        self.stop_now(d)  # what it kept in memory would serve the cursor
        self.successor(d)
        node.process.send_signal(signal.SIGCONT)
        node.until(20, what="snapshot", name="w", reason="pruned")
        self.converged(node, room, seconds=15)

    def test_another_epoch(self):
        room, node = self.room(), self.node()
        self.grant(room, "s", user="bo")
        node.tell("watch", name="w", room=room, waitMs=20000)
        node.until(what="snapshot", name="w")
        before = node.state()["epoch"]
        self.q("UPDATE stillhere.incarnation SET word = 'another'")
        node.until(20, what="snapshot", name="w", reason="epoch")
        self.grant(room, "t", user="an")
        self.converged(node, room, seconds=15)
        self.assertNotEqual(node.state()["epoch"], before)

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
        for skew in (3600000, -3600000):
            room, node = self.room("skew"), self.node(skew_ms=skew)
            node.tell("join", name="a", room=room, user="an", ttlMs=1500)
            first = node.until(what="accepted", name="a")["revision"]
            began = time.monotonic()
            node.until(15, what="accepted", name="a", revision=first + 6)
            self.assertGreater(time.monotonic() - began, 1.0, "it renews too often")
            self.assertEqual(self.events(room, kind="lease.expired"), [])
            self.assertEqual([line for line in node.all if line.get("status") in ("lapsed", "retrying")], [])

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
        room, one, two = self.room(), self.node(), self.node()
        for node, user in ((one, "an"), (two, "bo")):
            node.tell("join", name="me", room=room, user=user, ttlMs=5000)
            node.until(what="accepted", name="me")
            node.tell("cursors", name="c", room=room)
        for i in range(20):
            one.tell("point", name="c", stay="me", data={"x": i})
        two.until(10, what="cursors", all=[["an", {"x": 19}]])
        one.tell("close", name="me")
        two.until(10, what="cursors", all=[])
