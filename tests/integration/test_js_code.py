# SPDX-License-Identifier: Apache-2.0
"""The JavaScript client by itself: its types, and its rules by clocks of their own."""

import os
import re
import subprocess

from harness.case import SLOW, Case, json
from harness.node import SCRIPTS, program

SOURCES = os.path.join(os.path.dirname(os.path.dirname(SCRIPTS)), "contrib", "js")


class Names(Case):
    autostart = False

    def test_the_types_are_those_of_the_code(self):
        done = subprocess.run([program(), os.path.join(SCRIPTS, "names.mjs")], stdout=subprocess.PIPE, check=True,
                              timeout=30 * SLOW)
        real = json.loads(done.stdout)
        with open(os.path.join(SOURCES, "stillhere.d.ts"), encoding="utf-8") as f:
            text = f.read()
        blocks = dict(re.findall(r"^(?:export |declare )*(?:class|interface) (\w+)[^\n]*\{\n(.*?)^\}", text, re.M | re.S))
        parents = dict(re.findall(r"^export class (\w+) extends (\w+)", text, re.M))
        self.assertEqual(sorted(re.findall(r"^export class (\w+)", text, re.M)), real["exports"])

        def members(name):
            own = re.findall(r"^  (?:readonly )?(\w+)\??[(:]", blocks[name], re.M)
            return set(own) - {"constructor"} | (members(parents[name]) if parents.get(name) in blocks else set())

        for name, names in real["classes"].items():
            self.assertEqual(sorted(members(name)), names, name)
        options = set()
        for name in ("Options", "Common", "StayOptions", "WatchOptions", "CursorOptions"):
            options |= set(re.findall(r"^  (\w+)\??[(:]", blocks[name], re.M))
        for name in sorted(os.listdir(SOURCES)):
            if name.endswith(".js"):
                with open(os.path.join(SOURCES, name), encoding="utf-8") as f:
                    code = f.read()
                used = re.findall(r"options\.(\w+)", code)
                for group in re.findall(r"const \{([^}]*)\} = this\.options", code):
                    used += re.findall(r"\w+", group)
                self.assertEqual(set(used) - options, set(), name)


class Rules(Case):
    autostart = False

    def test_the_rules_in_a_time_of_their_own(self):
        done = subprocess.run([program(), os.path.join(SCRIPTS, "rules.mjs")], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=100 * SLOW)
        self.assertEqual(done.returncode, 0, done.stdout)
        passed, = re.findall(r"^\S+ pass (\d+)$", done.stdout, re.M)
        self.assertGreater(int(passed), 10, done.stdout)
