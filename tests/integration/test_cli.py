# SPDX-License-Identifier: Apache-2.0
"""The command `stillhere`: as people and scripts use it, against a real daemon; `dev` with its own PostgreSQL."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from harness.case import SLOW, Case, steps
from harness.daemon import Daemon, free_port
from harness.daemon import program as daemon_program
from harness.pg import clean_environment

#: What a user's first session in a room writes.
BEGUN = ["lease.granted", "user.online"]

PROGRAM = os.path.abspath(os.environ.get("STILLHERE", "stillhere"))


class Command:
    """A running `stillhere`, its output in files, so that it can be read while it runs."""

    def __init__(self, directory, args, url=None, **environment):
        env = clean_environment()
        if url:
            env["STILLHERE_URL"] = url
        env.update(environment)
        handle, self.out = tempfile.mkstemp(dir=directory, suffix=".out")
        error_handle, self.err = tempfile.mkstemp(dir=directory, suffix=".err")
        self.process = subprocess.Popen([PROGRAM] + list(args), env=env, stdin=subprocess.DEVNULL, stdout=handle,
                                        stderr=error_handle)
        os.close(handle)
        os.close(error_handle)

    def stdout(self):
        with open(self.out, encoding="utf-8") as f:
            return f.read()

    def stderr(self):
        with open(self.err, encoding="utf-8") as f:
            return f.read()

    def objects(self):
        return [json.loads(line) for line in self.stdout().splitlines()]

    def signal(self, number=signal.SIGINT):
        self.process.send_signal(number)

    def wait(self, seconds=20):
        try:
            return self.process.wait(seconds * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("it did not end:\n%s%s" % (self.stdout(), self.stderr())) from None


class Cli(Case):
    config = {"ttl_min_ms": 500, "sweep_interval_ms": 100}

    def start(self, *args, **environment):
        command = Command(self.directory, args, self.base, **environment)
        self.addCleanup(lambda: command.process.poll() is None and command.process.kill())
        return command

    def run_it(self, *args, expect=0, **environment):
        command = self.start(*args, **environment)
        self.assertEqual(command.wait(), expect, command.stdout() + command.stderr())
        return command

    def kinds(self, room):
        return [e["kind"] for e in self.events(room)]

    def test_renew_holds_the_lease_and_closes_it(self):
        room = self.room()
        command = self.start("renew", room, "an", "tab-1", "--ttl-ms", "1500", "--meta", '{"color":"#c33"}')
        self.wait_until(lambda: (self.stored(room, "tab-1", "an") or {"revision": 0})["revision"] >= 5, 10, "renewals")
        self.assertEqual(self.stored(room, "tab-1", "an")["meta"], {"color": "#c33"})
        command.signal()
        self.assertEqual(command.wait(), 0, command.stderr())
        self.assertEqual(self.kinds(room), BEGUN + ["session.closed"])

    def test_a_renewer_that_stands_still_is_gone_and_comes_back(self):
        """Its connection stays open all the while: that holds no lease."""
        room = self.room()
        command = self.start("renew", room, "an", "tab-1", "--ttl-ms", "2000")
        self.wait_until(lambda: self.stored(room, "tab-1", "an"), 10, "the lease")
        command.signal(signal.SIGSTOP)
        try:
            (event,) = self.wait_until(lambda: self.events(room, kind="lease.expired"), 2 + 2 + 2, "the expiry")
            self.assertLess(event["overdue_ms"], 2000 * SLOW)
        finally:
            command.signal(signal.SIGCONT)
        self.wait_until(lambda: self.stored(room, "tab-1", "an") or command.process.poll() is not None, 10, "what comes then")
        if command.process.poll() is None:
            command.signal()
        self.assertEqual(command.wait(), 0, command.stderr())
        self.assertEqual([k for k in self.kinds(room) if k.startswith(("lease", "session"))],
                         ["lease.granted", "lease.expired", "lease.granted", "session.closed"])

    def test_renew_without_close_lets_it_run_out(self):
        room = self.room()
        command = self.start("renew", room, "an", "tab-1", "--ttl-ms", "800", "--no-close")
        self.wait_until(lambda: self.stored(room, "tab-1", "an"), 10, "the lease")
        command.signal(signal.SIGTERM)
        self.assertEqual(command.wait(), 0)
        self.wait_until(lambda: self.kinds(room) == BEGUN + ["lease.expired"], 10, "the expiry")

    def test_renew_several_sessions_and_a_default_name(self):
        room = self.room()
        self.run_it("renew", room, "an", "a", "b/c", "d e", "--once")
        self.assertEqual(self.count("lease", room_id=room), 3)
        self.assertIsNotNone(self.stored(room, "b/c", "an"))
        self.run_it("renew", room, "bo", "--once")
        self.assertRegex(self.q("SELECT session_id FROM stillhere.lease WHERE user_id = 'bo'"), r"-\d+$")

    def test_renew_opens_a_closed_session_again(self):
        room = self.room()
        self.run_it("renew", room, "an", "tab-1", "--once")
        self.run_it("close", room, "an", "tab-1")
        again = self.run_it("renew", room, "an", "tab-1", "--once", "--json").objects()
        self.assertEqual([(a["granted"], a["lease"]["revision"]) for a in again], [(True, 2)])

    def test_renew_ends_when_somebody_closes_it(self):
        room = self.room()
        command = self.start("renew", room, "an", "tab-1", "--ttl-ms", "1000")
        self.wait_until(lambda: self.stored(room, "tab-1", "an"), 10, "the lease")
        self.run_it("close", room, "an", "tab-1")
        self.assertEqual(command.wait(), 1)
        self.assertIn("session_closed", command.stderr())
        self.assertIsNone(self.stored(room, "tab-1", "an"))

    def test_refusals_are_1_and_usage_is_2(self):
        room = self.room()
        never = self.run_it("close", room, "an", "never", expect=1)
        self.assertIn("404", never.stderr())
        self.run_it("renew", room, "an", "--once", "--ttl-ms", "1", expect=1)
        self.run_it("watch", room, "--kinds", "no.such", expect=1)
        for args in (["renew", room], ["who"], ["who", ".."], ["who", room, "--meta", "{}"], ["close", room, "an", "s", "x"],
                     ["nothing"], [], ["renew", room, "an", "--meta", "[]"], ["watch", room, "--since", "-1"],
                     ["who", room, "--url", "ftp://x"], ["who", room, "--url", "http://"],
                     ["who", room, "--url", "http://h:99999"], ["who", room, "--url", "https://:1"],
                     ["renew", room, "an", "b", "c", "c"], ["renew", room, "an", "--ttl-ms"], ["who", room, "--wat"]):
            with self.subTest(args=args):
                self.assertRegex(self.run_it(*args, expect=2).stderr(), "^stillhere: .")

    def test_unreachable_is_3(self):
        nobody = "http://127.0.0.1:%d" % free_port()
        # Side by side: each tries for some seconds.
        for args, command in [(args, Command(self.directory, args, nobody)) for args in (
                ["who", "r"], ["rooms"], ["close", "r", "u", "s"], ["renew", "r", "u"], ["watch", "r"])]:
            with self.subTest(args=args):
                self.assertEqual(command.wait(30), 3, command.stderr())
                self.assertIn("is not reached", command.stderr())

    def test_close_with_a_revision(self):
        room = self.room()
        self.grant(room, "tab-1", 5, user="an")
        self.run_it("close", room, "an", "tab-1", "--revision", "4", expect=1)
        self.assertEqual(self.run_it("close", room, "an", "tab-1", "--revision", "6").stdout(), "closed\n")
        self.assertEqual(self.run_it("close", room, "an", "tab-1").stdout(), "it had ended before\n")
        self.assertEqual(self.tombstone(room, "tab-1", "an")["revision"], 6)

    def test_who_and_rooms(self):
        room = self.room("who")
        self.grant(room, "tab-1", user="an")
        self.grant(room, "tab-2", user="an")
        self.grant(room, "phone", user="bo\u009b31m")
        text = self.run_it("who", room).stdout()
        self.assertIn("2 people, 3 sessions", text)
        self.assertRegex(text, r"an +since 20\S+Z, 2 tabs: tab-1, tab-2\n")
        self.assertNotIn("\u009b", text)
        self.assertEqual(self.run_it("who", room, "--json").objects()[0]["counts"], {"users": 2, "sessions": 3})
        listed = self.run_it("rooms", "--prefix", room, "--json").objects()
        self.assertEqual([(r["room_id"], r["users"], r["sessions"]) for r in listed], [(room, 2, 3)])
        self.assertIn("2 people, 3 sessions", self.run_it("rooms", "--prefix", room).stdout())

    def test_who_shows_who_is_leaving(self):
        room = self.room("who")
        self.grant(room, "tab-1", user="an")
        self.grant(room, "phone", user="bo")
        self.run_it("close", room, "bo", "phone")
        text = self.run_it("who", room).stdout()
        self.assertIn("2 people, 1 session\n", text)
        self.assertRegex(text, r"(?m)^  an +since 20\S+Z, 1 tab: tab-1$")
        self.assertRegex(text, r"(?m)^  bo +since 20\S+Z, leaving: no tab, offline at 20\S+Z$")
        bo = self.run_it("who", room, "--json").objects()[0]["users"][1]
        self.assertEqual([bo["user_id"], bo["sessions"]], ["bo", []])
        self.assertIn(bo["offline_at"], text)

    def test_a_token_is_sent_and_never_printed(self):
        path = os.path.join(self.directory, "token")
        with open(path, "w", encoding="utf-8") as f:
            f.write("secret.token.text\n")
        command = self.run_it("who", self.room(), "--token-file", path, "--json")
        self.assertNotIn("secret", command.stdout() + command.stderr())
        missing = self.run_it("who", self.room(), expect=2, STILLHERE_TOKEN_FILE="/nonexistent")
        self.assertIn("/nonexistent", missing.stderr())

    def test_watch_prints_a_snapshot_and_then_each_event(self):
        room = self.room()
        self.grant(room, "tab-1", user="an")
        command = self.start("watch", room)
        self.wait_until(lambda: "1 session" in command.stdout(), 10, "the snapshot")
        self.grant(room, "tab-2", user="an")
        self.run_it("close", room, "an", "tab-2")
        self.wait_until(lambda: "session.closed" in command.stdout(), 10, "the close")
        command.signal()
        self.assertEqual(command.wait(), 0)
        kinds = re.findall(r"^\S+Z +\d+ +(\S+) +an/tab-2", command.stdout(), re.M)
        self.assertEqual(kinds, ["lease.granted", "session.closed"])

    def test_watch_tells_of_people(self):
        """Their lines name no session."""
        room = self.room()
        base = self.start_daemon(offline_grace_ms=300).base
        command = Command(self.directory, ["watch", room], base)
        self.addCleanup(lambda: command.process.poll() is None and command.process.kill())
        self.wait_until(lambda: "0 sessions" in command.stdout(), 10, "the snapshot")
        self.ok(self.hb(base, room, "an", "tab-1"))
        self.ok(self.client.close(base, room, "an", "tab-1"))
        self.wait_until(lambda: "user.offline" in command.stdout(), 10, "the offline")
        command.signal()
        self.assertEqual(command.wait(), 0)
        lines = command.stdout().splitlines()[1:]
        self.assertEqual([re.sub(r"^20\S+Z ", "", line) for line in lines],
                         [" 1      lease.granted      an/tab-1  (1 session now)",
                          " 2      user.online        an  (1 session now)",
                          " 3      session.closed     an/tab-1  (0 sessions now)",
                          " 4      user.offline       an  (0 sessions now)"])
        self.stop_now(self.daemons[-1])

    def test_watch_resumes_from_a_cursor(self):
        room = self.room()
        epoch = self.grant(room, "a", user="an")["epoch"]
        self.grant(room, "b", user="an")
        command = self.start("watch", room, "--since", "2", "--epoch", epoch, "--json")
        self.wait_until(command.stdout, 10, "an event")
        self.assertEqual(steps(command.objects()), [(3, "lease.granted", "b")])
        other = self.start("watch", room, "--since", "2", "--epoch", "another", "--json")
        self.wait_until(other.stdout, 10, "a snapshot")
        self.assertEqual([(o["mode"], o["reason"]) for o in other.objects()], [("snapshot", "epoch")])

    def test_watch_filters_kinds(self):
        room = self.room()
        command = self.start("watch", room, "--kinds", "session.closed", "--json")
        self.wait_until(command.stdout, 10, "the snapshot")
        self.grant(room, "a", user="an")
        self.run_it("close", room, "an", "a")
        self.wait_until(lambda: len(command.objects()) > 1, 10, "the event")
        self.assertEqual([o["kind"] for o in command.objects()[1:]], ["session.closed"])

    def test_watch_ends_with_its_reader(self):
        room = self.room()
        self.grant(room, "a", user="an")
        process = subprocess.Popen([PROGRAM, "watch", room, "--url", self.base], env=clean_environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        process.stdout.readline()
        process.stdout.close()
        self.grant(room, "b", user="an")
        process.wait(10 * SLOW)


class Restart(Case):
    """The server goes away under the command and comes back."""

    config = {"ttl_min_ms": 500, "sweep_interval_ms": 100}

    def again(self, old):
        """The same daemon once more, on the same port."""
        d = Daemon(self.directory, old.name + "-again", dict(old.config))
        d.kill()
        new = object.__new__(Daemon)
        new.__dict__.update(d.__dict__, port=old.port, base=old.base)
        environment = dict(clean_environment(), **{"STILLHERE_" + k.upper(): str(v) for k, v in old.config.items()})
        with open(new.log, "ab") as err, open(new.out, "ab") as out:
            new.process = subprocess.Popen([daemon_program()], env=environment, cwd=self.directory,
                                           stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        self.daemons.append(new)
        return new.wait_ready()

    def test_renew_and_watch_go_on(self):
        room = self.room()
        watch = Command(self.directory, ["watch", room, "--json"], self.base)
        self.addCleanup(watch.process.kill)
        self.wait_until(watch.stdout, 10, "the snapshot")
        renew = Command(self.directory, ["renew", room, "an", "tab-1", "--ttl-ms", "20000"], self.base)
        self.addCleanup(renew.process.kill)
        self.wait_until(lambda: self.stored(room, "tab-1", "an"), 10, "the lease")
        old = self.daemons[0]
        self.stop_now(old)
        self.wait_until(lambda: "connection lost" in watch.stderr(), 10, "the loss")
        self.again(old)
        renew.signal()
        self.assertEqual(renew.wait(), 0, renew.stderr())
        self.wait_until(lambda: len(watch.objects()) == 4, 40, "all events")
        self.assertEqual([o.get("kind") for o in watch.objects()], [None] + BEGUN + ["session.closed"])
        watch.signal()
        self.assertEqual(watch.wait(), 0)

    def test_renew_gives_up_when_the_lease_has_run_out(self):
        room = self.room()
        renew = Command(self.directory, ["renew", room, "an", "tab-1", "--ttl-ms", "1500"], self.base)
        self.addCleanup(renew.process.kill)
        self.wait_until(lambda: self.stored(room, "tab-1", "an"), 10, "the lease")
        old = self.daemons[0]
        self.stop_now(old)
        self.assertEqual(renew.wait(), 3, renew.stderr())
        self.assertIn("the lease has run out", renew.stderr())
        self.again(old)


class Dev(Case):
    """`stillhere dev` brings everything with it."""

    autostart = False

    @classmethod
    def begin(cls):
        super().begin()
        cls.place = tempfile.mkdtemp(prefix="shdev.")
        os.chmod(cls.place, 0o755)

    @classmethod
    def finish(cls):
        shutil.rmtree(cls.place, ignore_errors=True)
        return super().finish()

    def start(self, data, *args, ready=True, **environment):
        port = free_port()
        command = Command(self.directory, ["dev", "--data", data, "--listen", "127.0.0.1:%d" % port, "--stillhered",
                                           daemon_program()] + list(args), STILLHERE_URL="http://127.0.0.1:1",
                          **environment)
        self.addCleanup(lambda: command.process.poll() is None and command.process.kill())
        if ready:
            self.wait_until(lambda: command.stdout() or command.process.poll() is not None, 60, "the welcome")
            self.assertIsNone(command.process.poll(), command.stderr())
        command.base = "http://127.0.0.1:%d" % port
        return command

    def stop(self, command):
        command.signal()
        self.assertEqual(command.wait(60), 0, command.stderr())

    def test_the_printed_lines_work_and_the_data_stays(self):
        data = os.path.join(self.place, "one")
        grace = {"STILLHERE_OFFLINE_GRACE_MS": "600000"}  # it outlasts the restart
        command = self.start(data, **grace)
        lines = [line.strip() for line in command.stdout().splitlines() if line.strip().startswith("curl ")]
        self.assertEqual(len(lines), 3, command.stdout())
        if shutil.which("curl") is None:
            raise unittest.SkipTest("curl is not installed")
        answers = [json.loads(subprocess.run(line, shell=True, stdout=subprocess.PIPE, check=True, timeout=60).stdout)
                   for line in lines]
        self.assertEqual(answers[0]["decision"], "accepted")
        self.assertEqual([e["kind"] for e in answers[1]["events"]], BEGUN)
        self.assertEqual([e["kind"] for e in answers[2]["events"]], ["lease.expired"])
        self.stop(command)
        again = self.start(data, "--json", **grace)
        self.assertEqual(again.objects()[0]["url"], again.base)
        room = self.ok(self.poll(again.base, "class-7"))
        self.assertEqual((room["revision"], room["epoch"]), (3, answers[0]["epoch"]))
        self.stop(again)

    def test_after_kill_9_nothing_stays_and_a_new_start_works(self):
        data = os.path.join(self.place, "two")
        command = self.start(data)
        self.ok(self.hb(command.base, "r", "u", "s"))
        command.process.kill()
        again = self.start(data, "--json")
        self.assertEqual(self.ok(self.poll(again.base, "r"))["counts"]["sessions"], 1)
        second = self.start(data, ready=False)
        self.assertEqual(second.wait(60), 1)
        self.assertIn("another stillhere dev", second.stderr())
        self.stop(again)

    def test_a_taken_address_is_said(self):
        data = os.path.join(self.place, "three")
        first = self.start(data)
        port = first.base.rpartition(":")[2]
        command = Command(self.directory, ["dev", "--data", data + "-b", "--listen", "127.0.0.1:" + port, "--stillhered",
                                           daemon_program()])
        self.assertEqual(command.wait(60), 1, command.stdout())
        self.assertIn("answers at http://127.0.0.1:%s already" % port, command.stderr())
        self.assertNotIn("is running at", command.stdout())
        self.stop(first)

    def test_the_end_of_postgres_ends_it(self):
        data = os.path.join(self.place, "four")
        command = self.start(data)
        with open(os.path.join(data, "postgres", "postmaster.pid"), encoding="utf-8") as f:
            os.kill(int(f.readline()), signal.SIGQUIT)
        self.assertEqual(command.wait(60), 1)
        self.assertIn("postgres has ended", command.stderr())

    def test_a_path_that_is_too_long_for_a_socket(self):
        command = self.start(os.path.join(self.place, "x" * 100))
        self.assertEqual(self.client.get(command.base, "/readyz").status, 200)
        directory = re.search(r"host=([^&]+)", self.environment_of(command)).group(1).replace("%2F", "/")
        self.assertEqual(os.stat(directory).st_mode & 0o777, 0o700)
        self.stop(command)
        self.assertFalse(os.path.exists(directory))

    def environment_of(self, command):
        """The database URL that the daemon was given."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with open("/proc/%d/task/%d/children" % (command.process.pid, command.process.pid), encoding="ascii") as f:
                for pid in f.read().split():
                    with open("/proc/%s/environ" % pid, "rb") as environment:
                        found = re.search(rb"STILLHERE_DATABASE_URL=([^\0]+)", environment.read())
                        if found:
                            return found.group(1).decode()
        self.fail("no child has STILLHERE_DATABASE_URL")
