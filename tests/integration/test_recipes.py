# SPDX-License-Identifier: Apache-2.0
"""The recipes of doc/recipes.md, run as they stand there."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys

from harness.case import Case

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def blocks():
    """(heading, language, text) of each code block."""
    with open(os.path.join(TREE, "doc", "recipes.md"), encoding="utf-8") as f:
        text = f.read()
    found = []
    for section in text.split("\n## ")[1:]:
        for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
            found.append((section.splitlines()[0], language, code))
    return found


class Recipes(Case):
    config = {"offline_grace_ms": 300}

    def block(self, heading, nth=0):
        return [b for b in blocks() if b[0].startswith(heading)][nth][2]

    def script(self, name, heading):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(self.block(heading))
        return path

    def environment(self, base=None):
        return dict(os.environ, STILLHERE_URL=base or self.base)

    def run_sh(self, code):
        done = subprocess.run(["sh", "-euc", code], env=self.environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=30)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [json.loads(one) for one in re.findall(r"\{.*?\}(?=\{\"|$|\n)", done.stdout.strip())]

    def end(self, process):
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(15), 0)

    def test_every_block_has_a_test(self):
        self.assertEqual([(h.split(":")[0], language) for h, language, _ in blocks()], [
            ("A shell loop that keeps a lease", "sh"), ("A shell loop that watches", "sh"),
            ("A gateway that renews for thousands of sockets", "python"), ("A Grafana panel on last-seen", "sql"),
            ("A Grafana panel on last-seen", "sql"), ("A chat", "sh"), ("A badge", "sh"), ("Attendance", "sh")])

    def test_keep(self):
        room = self.room()
        process = subprocess.Popen(["sh", self.script("keep.sh", "A shell loop that keeps"), room, "an", "device"],
                                   env=self.environment())
        self.wait_until(lambda: self.events(room, kind="lease.granted"), 10, "the lease")
        self.end(process)
        self.wait_until(lambda: self.events(room, kind="session.closed"), 5, "the goodbye")

    def test_keep_believes_a_refusal_and_outlives_an_outage(self):
        room = self.room()
        self.client.request(self.base, "DELETE", "/rooms/%s/members/an" % room)
        done = subprocess.run(["sh", self.script("refused.sh", "A shell loop that keeps"), room, "an", "device"],
                              env=self.environment(), stderr=subprocess.PIPE, text=True, timeout=30)
        self.assertEqual(done.returncode, 1)
        self.assertIn("membership_revoked", done.stderr)
        away = subprocess.Popen(["sh", self.script("away.sh", "A shell loop that keeps"), room, "bo", "device"],
                                env=self.environment("http://127.0.0.1:1"), stderr=subprocess.DEVNULL)
        self.pause(2.5)
        self.assertIsNone(away.poll())
        self.end(away)

    def test_watch(self):
        room = self.room()
        self.grant(room, "first", user="first")
        out = os.path.join(self.directory, "watched")
        with open(out, "w", encoding="utf-8") as f:
            process = subprocess.Popen(["sh", self.script("watch.sh", "A shell loop that watches"), room],
                                       env=self.environment(), stdout=f, start_new_session=True)
        try:
            def said():
                with open(out, encoding="utf-8") as f:
                    return f.read()
            self.wait_until(lambda: "now: 1 people" in said(), 10, "the snapshot")
            for user in ("second", "third"):
                self.grant(room, "s", user=user)
                self.wait_until(lambda: '"user_id":"%s"' % user in said(), 10, user)
            self.assertEqual(said().count('"user_id":"second"'), 1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def test_gateway(self):
        path = self.script("gateway.py", "A gateway")
        os.environ["STILLHERE_URL"] = self.base
        try:
            spec = importlib.util.spec_from_file_location("gateway_recipe", path)
            gateway = importlib.util.module_from_spec(spec)
            sys.dont_write_bytecode = True
            spec.loader.exec_module(gateway)
        finally:
            del os.environ["STILLHERE_URL"]
        rooms = [self.room("g%d" % i) for i in range(3)]
        sockets = {(rooms[i % 3], "user-%d" % i, "socket-%d" % i) for i in range(2100)}
        banned = (rooms[0], "user-0", "socket-0")
        self.client.request(self.base, "DELETE", "/rooms/%s/members/user-0" % rooms[0])
        wait = gateway.renew(sockets, sockets.discard)
        self.near(wait, 10, 20)
        self.assertNotIn(banned, sockets)
        self.assertEqual(len(sockets), 2099)
        self.assertEqual(int(self.q("SELECT count(*) FROM stillhere.lease WHERE room_id IN ('%s')" % "','".join(rooms))),
                         2099)
        gateway.URL = "http://127.0.0.1:1"  # away: nothing is lost
        self.assertEqual(gateway.renew(sockets, sockets.discard), 2)
        self.assertEqual(len(sockets), 2099)

    def test_grafana(self):
        room = self.room()
        self.grant(room, "s", user="an")
        rows = self.q(self.block("A Grafana", 0)).splitlines()
        self.assertIn("an", {row.split("|")[0] for row in rows})
        self.assertGreaterEqual(int(self.q(self.block("A Grafana", 1))), 1)

    def test_chat(self):
        beat, people = self.run_sh(self.block("A chat"))
        self.assertEqual((beat["decision"], beat["lease"]["ttl_ms"]), ("accepted", 40000))
        self.assertEqual([u["user_id"] for u in people["users"]], ["an"])

    def test_badge(self):
        beat, count = self.run_sh(self.block("A badge"))
        self.assertEqual(beat["presence"]["room_id"], "doc:4711")
        self.assertEqual(count["counts"]["users"], 1)

    def test_attendance(self):
        row, rows = self.run_sh(self.block("Attendance"))
        self.assertEqual(row["action"], "sign_in")
        self.assertEqual([r["id"] for r in rows["attendance"]], [row["id"]])
