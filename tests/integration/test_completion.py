# SPDX-License-Identifier: Apache-2.0
"""contrib/completion, in a real bash, against what the programs themselves accept."""

import os
import re
import subprocess

from harness.case import Case, json

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
COMPLETION = os.path.normpath(os.path.join(TREE, "contrib", "completion"))
DAEMON = os.path.abspath(os.environ.get("STILLHERED", "stillhered"))
COMMAND = os.path.abspath(os.environ.get("STILLHERE", "stillhere"))
SCRIPT = """. "$1" || exit 9
shift
function=$1
shift
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
$function
for word in "${COMPREPLY[@]}"; do printf '%s\\n' "$word"; done
"""


def words_of(text):
    return set(re.findall(r"[a-z]+", text)) - {"or"}


class Bash(Case):
    autostart = False

    def complete(self, program, *words):
        """What is offered for the last of the words, as bash hands them over: taken apart at : and =."""
        name = os.path.basename(program)
        done = subprocess.run(["bash", "--norc", "-uc", SCRIPT, "bash", os.path.join(COMPLETION, name), "_" + name,
                               program, *words], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""), (words, done))
        return done.stdout.split()

    def run_program(self, *args):
        return subprocess.run(args, capture_output=True, text=True, timeout=60)

    def help(self, program, *words):
        done = self.run_program(program, *words, "--help")
        self.assertEqual(done.returncode, 0, done)
        return done.stdout

    def test_commands_and_their_options(self):
        listed = self.help(COMMAND).split("Commands:\n")[1].split("\n\n")[0]
        commands = re.findall(r"^  ([a-z-]+)", listed, re.M)
        self.assertGreater(len(commands), 10)
        self.assertEqual(set(self.complete(COMMAND, "")), set(commands) | {"--help", "--version"})
        self.assertEqual(self.complete(COMMAND, "wat"), ["watch"])
        self.assertEqual(set(self.complete(COMMAND, "help", "")), set(commands))
        for command in commands:
            options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", self.help(COMMAND, command), re.M))
            self.assertIn("--json" if command != "help" else "--version", options)
            self.assertEqual(set(self.complete(COMMAND, command, "--")), options, command)

    def test_values(self):
        with open(os.path.join(TREE, "doc", "openapi.json"), encoding="utf-8") as f:
            kinds = json.load(f)["components"]["schemas"]["Kind"]["enum"]
        self.assertEqual(set(self.complete(COMMAND, "watch", "room", "--kinds", "")), set(kinds))
        self.assertEqual(self.complete(COMMAND, "watch", "--kinds", "=", "session"), ["session.closed"])
        self.assertEqual(self.complete(COMMAND, "watch", "--kinds", "session.closed,lease.e"),
                         ["session.closed,lease.expired"])
        told = self.help(COMMAND, "token")
        scopes = re.search(r"--scope \S+ +(.+)", told).group(1).split(", ")
        self.assertIn("members:write", scopes)
        self.assertEqual(set(self.complete(COMMAND, "token", "--scope", "")), set(scopes))
        # bash replaces what stands behind the colon.
        self.assertEqual(self.complete(COMMAND, "token", "--scope", "presence", ":", "wr"), ["write"])
        self.assertEqual(self.complete(COMMAND, "token", "--scope", "presence", ":", "read,gat"), ["read,gateway"])
        algorithms = re.findall(r"[A-Z]{2}\d{3}", re.search(r"--algorithm .+", told).group())
        self.assertEqual(set(self.complete(COMMAND, "token", "--algorithm", "")), set(algorithms))
        for option in ("--token-file", "--ca-file"):
            self.assertIn(COMPLETION, self.complete(COMMAND, "who", "r", option, COMPLETION[:-2]))
        self.assertIn(COMPLETION, self.complete(COMMAND, "dev", "--data", COMPLETION[:-2]))
        self.assertEqual(self.complete(COMMAND, "dev", "--data", os.path.join(COMPLETION, "still")), [], "files too")

    def test_verbs(self):
        """They are those that the program names where it gets another one."""
        told = self.run_program(COMMAND, "member", "nothing", "room").stderr
        verbs = words_of(re.search(r"member takes (.+), not", told).group(1))
        self.assertIn("grant", verbs)
        self.assertEqual(set(self.complete(COMMAND, "member", "")), verbs)
        self.assertEqual(self.complete(COMMAND, "--url", "http", ":", "//localhost", "member", "gr"), ["grant"])
        told = self.run_program(COMMAND, "webhooks", "nothing").stderr
        verbs = words_of(re.search(r"webhooks (.+)", told).group(1))
        self.assertIn("replay", verbs)
        self.assertEqual(set(self.complete(COMMAND, "webhooks", "")), verbs)
        self.assertEqual(self.complete(COMMAND, "member", "grant", ""), [])

    def test_the_daemon(self):
        options = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", self.help(DAEMON), re.M))
        self.assertLessEqual({"--config", "--migrate", "--check-config", "--version", "--help"}, options)
        self.assertEqual(set(self.complete(DAEMON, "")), options)
        self.assertEqual(self.complete(DAEMON, "--mig"), ["--migrate"])
        for before in (["--config"], ["-c"], ["--config", "="]):
            self.assertIn(COMPLETION, self.complete(DAEMON, *before, COMPLETION[:-2]))

    def test_the_man_page_tells_of_all(self):
        """Every command and every option of each has its place in stillhere(1)."""
        with open(os.path.join(TREE, "doc", "stillhere.1"), encoding="utf-8") as f:
            page = f.read().replace("\\-", "-")
        for command in self.complete(COMMAND, ""):
            if not command.startswith("--"):
                self.assertRegex(page, r'(?m)^\.TP\n\.BI? "?%s\b' % command)
                for option in self.complete(COMMAND, command, "--"):
                    self.assertRegex(page, r'(?m)^\.BI?R? .*%s\b' % option, "%s of %s" % (option, command))
        codes = re.findall(r"(?m)^\.B (\d)$", page)
        self.assertEqual(codes, ["0", "1", "2", "3", "4"])
        self.assertEqual(re.findall(r"(\d) [a-z]", self.help(COMMAND).split("Exit status:")[1]), codes)
