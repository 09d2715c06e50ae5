# SPDX-License-Identifier: Apache-2.0
"""doc/security.md: its commands work as written, and the tests that it names are there."""

import os
import re
import subprocess

from harness.case import Case
from harness.daemon import daemon_environment, program
from harness.roles import SCRIPT
from harness.runner import classes

TREE = os.path.dirname(os.path.dirname(SCRIPT))
PAGE = os.path.join(TREE, "doc", "security.md")


def section(title):
    """The text below a heading, up to the next one of its level."""
    with open(PAGE, encoding="utf-8") as f:
        text = f.read()
    found = re.search(r"^## %s\n(.*?)(?=^## |\Z)" % re.escape(title), text, re.MULTILINE | re.DOTALL)
    return found.group(1)


def blocks(text):
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class SecurityDoc(Case):
    own_cluster = True
    autostart = False

    def environment(self, **config):
        """What an administrator's shell has: the programs in PATH, the superuser of this cluster."""
        directory = os.path.join(self.directory, "bin")
        os.makedirs(directory, exist_ok=True)
        for name, path in [("stillhered", program())] + [(n, self.pg.program(n)) for n in ("psql", "createdb")]:
            if os.path.exists(path) and not os.path.lexists(os.path.join(directory, name)):
                os.symlink(path, os.path.join(directory, name))
        env = daemon_environment(config)
        env.update(PATH=directory + os.pathsep + env.get("PATH", ""), PGHOST=self.pg.socket, PGPORT="5432",
                   PGUSER="postgres", PSQLRC="/dev/null")
        return env

    def shell(self, text, env):
        done = subprocess.run(["sh", "-e", "-u", "-c", text], cwd=TREE, env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, "%s\n%s" % (text, done.stdout))
        return done.stdout

    def test_the_database_roles_as_written(self):
        prepare, run, look, dashboard = blocks(section("Database roles"))
        out = self.shell(prepare, self.environment())
        self.assertRegex(out, "the schema is up to date")
        self.assertNotRegex(out, r"(?i)\berror\b")
        url = re.search(r"STILLHERE_DATABASE_URL='(.*?)' stillhered\n", run).group(1)
        d = self.start_daemon(database_url="%s&host=%s&port=5432" % (url, self.pg.socket))
        self.ok(self.hb(d.base, "r", "u", "s", 1))
        signed = self.client.request(d.base, "POST", "/rooms/r/attendance", '{"user_id":"u","action":"sign_in"}',
                                     {"Content-Type": "application/json"})
        self.assertEqual(signed.status, 201, signed)
        self.assertEqual(self.pg.psql("stillhere", "SELECT DISTINCT usename FROM pg_stat_activity WHERE application_name "
                                      "LIKE 'stillhered %'"), "stillhere_app")
        # `! command` does not end a shell with -e, whichever way it goes: each is run by itself.
        for line in look.splitlines():
            refused = line.startswith("! ")
            done = subprocess.run(["sh", "-c", line[2:] if refused else line], cwd=TREE, env=self.environment(),
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(done.returncode != 0, refused, line + "\n" + done.stdout)
            if refused:
                self.assertRegex(done.stdout, "permission denied|must be owner|append-only")
        self.shell(dashboard, self.environment())
        reader = self.pg.session("stillhere", "stillhere_dashboard")
        self.addCleanup(reader.close)
        self.assertEqual(reader.value("SELECT count(*) FROM stillhere.last_seen"), "1")
        # The whole of it once more, as with an update.
        self.shell("\n".join(prepare.splitlines()[1:]), self.environment())
        self.assertEqual(self.hb(d.base, "r", "u", "s", 2).status, 200)
        self.stop_now(d)

    def test_the_tests_that_it_names_are_there(self):
        table = section("What is defended")
        named = {name for row in table.splitlines() if row.startswith("|") and "`" in row
                 for name in re.findall(r"`(test_\w+(?:\.\w+)?)`", row.split("|")[-2])}
        self.assertGreater(len(named), 20)
        there = {"%s.%s" % (c.__module__, c.__name__) for c in classes()} | {c.__module__ for c in classes()}
        self.assertEqual(sorted(named - there), [])
        for row in table.splitlines():
            if row.startswith("| ") and not row.startswith("| attack"):
                self.assertIn("`test_", row.split("|")[-2], "an attack without a test")

    def test_what_it_links_to_is_in_the_tree(self):
        with open(PAGE, encoding="utf-8") as f:
            text = f.read()
        for name in re.findall(r"`((?:sql|doc|tests)/[\w./-]+)`", text):
            self.assertTrue(os.path.exists(os.path.join(TREE, name)), name)
