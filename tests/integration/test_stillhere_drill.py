# SPDX-License-Identifier: Apache-2.0
"""`stillhere drill`: it passes on a right deployment, leaves nothing behind, and says in the right words what is wrong
with a faulty one."""

import itertools
import os
import re

from harness.case import Case, json
from harness.daemon import free_port
from harness.faulty import Faulty
from harness.tokens import Guarded
from test_cli import Command

YES = ("one cursor vanished", "the renewed session stayed", "the revoked user was refused",
       "the reconnect converged on one snapshot", "every change was told once")
SILENT, RENEWS, TEACHER = "student-silent", "student-renews", "teacher"


class Drills(Case):
    """How all of them run it."""

    def drill(self, *urls, ttl_ms=3000, **environment):
        args = ["drill", "--ttl-ms", str(ttl_ms)] + [a for u in urls for a in ("--url", u)]
        command = Command(self.directory, args, **environment)
        self.addCleanup(lambda: command.process.poll() is None and command.process.kill())
        return command

    def demand_pass(self, command):
        self.assertEqual(command.wait(60), 0, command.stdout() + command.stderr())
        self.assertEqual(re.findall(r"(?m)^  yes: +(.+)$", command.stdout()), list(YES), command.stdout())
        self.demand_clean(command)

    def demand_clean(self, command):
        room = re.search(r"drill-[a-z0-9]+", command.stdout()).group()
        self.assertEqual(self.count("lease", room_id=room), 0)
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.member WHERE room_id = '%s' AND revoked_at IS NULL" %
                                room), "0")
        self.assertIn("cleared up", command.stdout())

    def demand_fault(self, command, wrong, words):
        """Exactly these checks are wrong, in these words, with a request id of the server's log."""
        self.assertEqual(command.wait(90), 4, command.stdout() + command.stderr())
        text = command.stdout()
        self.assertIn("\nThe drill FAILED on ", text)
        self.assertEqual(re.findall(r"(?m)^  NOT SO: +(.+)$", text), wrong, text)
        self.assertEqual(re.findall(r"(?m)^  yes: +(.+)$", text), [y for y in YES if y not in wrong], text)
        self.assertRegex(text, words)
        for ids in re.findall(r"(?m)^ +request ids: (.+)$", text):
            for one in ids.split(", "):
                self.assertRegex(one, r"^[a-z0-9]{20}$")
        self.assertEqual(text.count("request ids:"), len(wrong), text)
        self.demand_clean(command)


class Right(Drills):
    instances = 2
    config = {"ttl_min_ms": 500, "offline_grace_ms": 1000}

    def test_one_and_two_instances(self):
        runs = [self.drill(self.base), self.drill(*self.bases), self.drill(*reversed(self.bases))]
        for run in runs:
            self.demand_pass(run)

    def test_json(self):
        command = Command(self.directory, ["drill", "--json", "--ttl-ms", "2000"], self.base)
        self.assertEqual(command.wait(60), 0, command.stderr())
        lines = command.objects()
        self.assertGreater(len(lines), 5)
        self.assertTrue(all(set(line) == {"step", "after_ms"} for line in lines[:-1]), lines)
        self.assertEqual(lines[-1]["verdict"], "passed")
        self.assertEqual([(c["check"], c["ok"]) for c in lines[-1]["checks"]], [(y, True) for y in YES])

    def test_ctrl_c_clears_up(self):
        command = self.drill(self.base)
        self.wait_until(lambda: "three cursors" in command.stdout(), 20, "the drill")
        command.signal()
        self.assertEqual(command.wait(30), 3, command.stdout() + command.stderr())
        self.assertIn("interrupted", command.stderr())
        self.assertNotIn("The drill", command.stdout())
        self.demand_clean(command)

    def test_nobody_there(self):
        command = self.drill("http://127.0.0.1:%d" % free_port())
        self.assertEqual(command.wait(60), 3)
        self.assertIn("is not reached", command.stderr())


class Strict(Guarded, Drills):
    """With credentials and memberships."""

    instances = 2
    config = {"ttl_min_ms": 500, "membership": "required"}

    def credential(self, name, key):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(key)
        return path

    def test_admin_passes_others_are_told(self):
        keys = [self.keys.add("admin", "admin"), self.keys.add("office", "gateway,members:write,presence:read"),
                self.keys.add("dashboard", "presence:read")]
        self.reload()
        files = [self.credential("k%d" % i, key) for i, key in enumerate(keys)]
        runs = [self.drill(*self.bases, STILLHERE_TOKEN_FILE=path) for path in files]
        self.demand_pass(runs[0])
        self.demand_pass(runs[1])
        self.assertEqual(runs[2].wait(30), 1, runs[2].stdout())
        self.assertIn("it may not keep members", runs[2].stderr())
        self.assertIn("missing_scope", runs[2].stderr())


# -- four ways to be wrong, and some more --------------------------------------------------------------------------------


def hides_expiry():
    def alter(method, path, body, status, answer):
        if answer and answer.get("events"):
            answer["events"] = [e for e in answer["events"] if e["kind"] != "lease.expired"]
    return alter


def keeps_cursor():
    kept = []

    def alter(method, path, body, status, answer):
        if method == "GET" and "/cursors" in path and answer:
            mine = [c for c in answer["cursors"] if c["user_id"] == SILENT]
            kept[:] = mine or kept
            if not mine:
                answer["cursors"] += kept
    return alter


def drops_renewed():
    def alter(method, path, body, status, answer):
        for name in ("users", "leases"):
            if answer and name in answer and method == "GET":
                answer[name] = [u for u in answer[name] if u["user_id"] != RENEWS]
    return alter


def renewal_is_news():
    def alter(method, path, body, status, answer):
        if method == "PUT" and body and body.get("user_id") == RENEWS and status == 200:
            answer["granted"] = True
    return alter


def accepts_revoked():
    def alter(method, path, body, status, answer):
        if status == 403 and method == "PUT":
            return 200, {"decision": "accepted", "granted": True, "lease": dict(body, ttl_ms=3000)}
        if status == 403 and method == "POST":
            return 202, {"seq": 1}
    return alter


def changes_epoch():
    n = itertools.count()

    def alter(method, path, body, status, answer):
        if answer and "epoch" in answer:
            answer["epoch"] = "epoch-%d" % next(n)
    return alter


def another_database():
    def alter(method, path, body, status, answer):
        if answer and "epoch" in answer:
            answer["epoch"] = "another"
    return alter


class Reconnected:
    """Alters what is told once the drill's last change has been made."""

    def __init__(self, how):
        self.how, self.on = how, False

    def __call__(self, method, path, body, status, answer):
        if body and (body.get("meta") or {}).get("drill"):
            self.on = True
        if self.on and method == "GET" and "/presence" in path and answer:
            self.how(path, answer)


def ghost(path, answer):
    """Somebody in the snapshot who is not here."""
    if answer["mode"] == "snapshot":
        answer["users"].append({"user_id": "ghost", "sessions": [{"session_id": "s", "meta": {}}]})


def wrong_snapshot(path, answer):
    """A poll that comes back is told to take a snapshot that lacks people."""
    if "since=" in path and answer["mode"] == "events":
        answer.update(mode="snapshot", reason="pruned", users=[], counts={"users": 0, "sessions": 0})


def stands_still(path, answer):
    """A poll that comes back never learns anything."""
    if "since=" in path:
        since = int(re.search(r"since=(\d+)", path).group(1))
        answer.update(mode="unchanged", events=[], revision=since)


class Wrong(Drills):
    config = {"ttl_min_ms": 500, "offline_grace_ms": 1000}

    def against(self, alter):
        faulty = Faulty(self.base, alter)
        self.addCleanup(faulty.close)
        return self.drill(faulty.base)

    def test_each_fault_is_named(self):
        vanished, stayed, refused, converged, told = YES
        runs = [(self.against(alter), wrong, words) for alter, wrong, words in (
            (hides_expiry(), [vanished, converged, told],
             r"went silent, but \S+ told of no lease\.expired within .* leave out"),
            (keeps_cursor(), [vanished, refused], r"still shows the cursor of student-silent, whose lease has run out"),
            (drops_renewed(), [stayed, converged], r"has no lease of student-renews, who renewed all the time"),
            (renewal_is_news(), [stayed], r"renewed in time, but \S+ took it for a new session"),
            (accepts_revoked(), [refused], r"answered a heartbeat of student-silent, who is revoked, with 200"),
            (Reconnected(ghost), [converged], r"the snapshot of \S+ at revision \d+ is not who is here: .*ghost"),
            (Reconnected(wrong_snapshot), [converged, told], r"after the reconnect to \S+ the subscriber has .*: \{\}"),
            (Reconnected(stands_still), [converged, told],
             r"after the reconnect to \S+ the subscriber is at revision \d+"),
            (changes_epoch(), [vanished, refused, converged, told],
             r"the epoch of \S+ changed from epoch-0 to epoch-\d+: "),
        )]
        faulty = Faulty(self.base, another_database())
        self.addCleanup(faulty.close)
        runs.append((self.drill(self.base, faulty.base), [vanished, refused, converged, told],
                     r"%s and %s are not on one database: " % (self.base, faulty.base)))
        for run, wrong, words in runs:
            with self.subTest(words=words):
                self.demand_fault(run, wrong, words)

    def test_faults_as_json(self):
        faulty = Faulty(self.base, accepts_revoked())
        self.addCleanup(faulty.close)
        command = Command(self.directory, ["drill", "--json", "--ttl-ms", "2000"], faulty.base)
        self.assertEqual(command.wait(60), 4, command.stderr())
        verdict = json.loads(command.stdout().splitlines()[-1])
        self.assertEqual(verdict["verdict"], "failed")
        wrong = verdict["checks"][2]
        self.assertEqual((wrong["check"], wrong["ok"]), (YES[2], False))
        self.assertIn("with 200", wrong["why"])
        self.assertGreater(len(wrong["request_ids"]), 0)
