# SPDX-License-Identifier: Apache-2.0
"""contrib/classroom: the simulated people that contrib/quickstart shows."""

import os
import signal
import subprocess

from harness.case import SLOW, Case, time

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.abspath(os.environ.get("STILLHERE", "stillhere"))


def session(sid):
    """The commands of all processes in a session."""
    out = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid, "rb") as f:
                name, rest = f.read().decode("utf-8", "replace").rsplit(")", 1)
        except OSError:
            continue
        state, _, _, its = rest.split()[:4]
        if int(its) == sid and state not in "ZX":
            out.append(name.partition("(")[2])
    return out


class Classroom(Case):
    config = {"offline_grace_ms": 1000}

    def start(self, *args):
        with open(os.path.join(self.directory, self.id() + ".out"), "wb") as f:
            process = subprocess.Popen([os.path.join(TREE, "contrib", "classroom"), "--url", self.base, "--stillhere", PROGRAM] +
                                       list(args), stdin=subprocess.DEVNULL, stdout=f, stderr=f, start_new_session=True)
        self.addCleanup(self.sweep, process)
        process.out = f.name
        return process

    def sweep(self, process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def ended(self, process):
        process.wait(30 * SLOW)
        self.wait_until(lambda: session(process.pid) == [], 10, "the end of all that it started")

    def people(self):
        everybody = "SELECT count(DISTINCT user_id) FROM stillhere.lease WHERE room_id = 'classroom'"
        self.wait_until(lambda: self.q(everybody) == "6", 30, "a teacher and five students")
        self.wait_until(lambda: self.count("lease", room_id="classroom", user_id="Ms Okafor") == 2, 10, "two tabs of the teacher")
        return self.ok(self.poll(self.base, "classroom"))["users"]

    def test_people_who_say_that_they_are_simulated_and_go(self):
        process = self.start()
        people = {user["user_id"]: user["sessions"] for user in self.people()}
        self.assertEqual(len(people["Ms Okafor"]), 2)
        self.assertEqual(len(people), 6)
        for user, sessions in people.items():
            self.assertEqual([s["meta"] for s in sessions], [{"simulated": True}] * len(sessions), user)
        with open(process.out, encoding="utf-8") as f:
            said = f.read()
        self.assertIn("simulated", said)
        for address in ("/#room=classroom\n", "/#room=classroom&as=Ada\n", "/#room=classroom&as=Bo\n"):
            self.assertIn(self.base + address, said)
        process.terminate()
        self.ended(process)
        # They close what they held; a close that a busy machine does not answer in time is left to the lease.
        closed = sum(e["kind"] == "session.closed" for e in self.events("classroom"))
        self.assertGreaterEqual(closed, 5)
        self.wait_until(lambda: self.count("lease", room_id="classroom") == 0, 20, "the end of all leases")

    def test_it_ends_with_the_process_that_it_is_for(self):
        server = subprocess.Popen(["sleep", "600"])
        try:
            process = self.start("--while", str(server.pid))
            self.people()
            self.assertIsNone(process.poll())
        finally:
            server.kill()
            server.wait()
        began = time.monotonic()
        self.ended(process)
        self.assertLess(time.monotonic() - began, 20 * SLOW)

    def test_a_wrong_option(self):
        done = subprocess.run([os.path.join(TREE, "contrib", "classroom"), "--nonsense"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
        self.assertEqual([done.returncode, done.stdout], [2, b""])
        self.assertIn(b"Usage", done.stderr)
