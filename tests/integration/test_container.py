# SPDX-License-Identifier: Apache-2.0
"""contrib/container/Containerfile, as far as it can be judged without building an image: what it copies and installs is
what the programs need, its health check is run, and its settings are tried."""

import os
import re
import subprocess

from harness.case import Case, json
from harness.daemon import program
from harness.pg import clean_environment
from test_cli import PROGRAM
from test_cli_ask import Refusing

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
#: In every Debian image, or only in builds that are instrumented or on machines with systemd's development package.
NOT_COUNTED = re.compile(r"libc6|libgcc-s1|lib(a|t|ub)san\d+|libsystemd0")


def tool(*args, **more):
    return subprocess.run(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=60, check=False, **more)


class Container(Case):
    @classmethod
    def begin(cls):
        super().begin()
        with open(os.path.join(TREE, "contrib", "container", "Containerfile"), encoding="utf-8") as f:
            text = f.read()
        cls.text = text
        plain = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", text))
        cls.lines = [tuple(line.split(" ", 1)) for line in plain.splitlines() if line]

    def values(self, name):
        return [value for word, value in self.lines if word == name]

    def test_two_stages_and_no_root(self):
        self.assertEqual([v.split(" AS ")[0] for v in self.values("FROM")], ["debian:12-slim"] * 2)
        self.assertEqual(self.values("STOPSIGNAL"), ["SIGTERM"])
        (user,) = self.values("USER")
        uid = user.split(":")[0]
        self.assertGreater(int(uid), 0)
        self.assertIn("--uid %s " % uid, self.values("RUN")[1])
        after = self.lines[[w for w, _ in self.lines].index("USER"):]
        self.assertFalse({w for w, _ in after} & {"RUN", "COPY", "ADD"}, "nothing is written as that user")
        for script in self.values("RUN"):
            done = tool("sh", "-n", "-c", script)
            self.assertEqual((done.returncode, done.stdout), (0, ""), script)

    def test_what_is_copied_is_what_is_installed(self):
        (entry,) = [json.loads(v) for v in self.values("ENTRYPOINT")]
        copied = [v.split() for v in self.values("COPY") if v.startswith("--from=build ")]
        for _, source, target in copied:
            self.assertEqual(source, "/out" + target)
        self.assertIn(entry[0], [target for _, _, target in copied])
        # Where `make install` puts them with the prefix of the first stage.
        self.assertIn("--prefix=/usr ", self.values("RUN")[0])
        with open(os.path.join(TREE, "Makefile.am"), encoding="utf-8") as f:
            makefile = f.read()
        for directory, name, path in (("bin", "stillhere", "/usr/bin/stillhere"),
                                      ("sbin", "stillhered", "/usr/sbin/stillhered")):
            self.assertRegex(makefile, r"(?m)^%s_PROGRAMS = .*\b%s$" % (directory, name))
            self.assertIn(path, [target for _, _, target in copied])

    def test_the_libraries_are_there(self):
        """Of both programs every direct one, and none more."""
        listed = re.search(r"--no-install-recommends ([a-z0-9 .+-]+)", self.values("RUN")[1]).group(1).split()
        files = set()
        for path in (program(), PROGRAM):
            names = re.findall(r"NEEDED\s+(\S+)", tool("objdump", "-p", path).stdout)
            self.assertGreater(len(names), 3, path)
            found = dict(re.findall(r"^\s+(\S+) => (\S+)", tool("ldd", path).stdout, re.M))
            files |= {os.path.realpath(found.get(name, name)) for name in names}
        # Asked for by their names alone: where /lib is a link, dpkg knows another path.
        told = tool("dpkg", "-S", *("*/" + os.path.basename(name) for name in sorted(files))).stdout
        owners = {os.path.realpath(path): package for package, path in
                  re.findall(r"(?m)^([a-z0-9.+-]+)(?::\w+)?: (/\S+)$", told)}
        self.assertEqual(files - set(owners), set(), "these belong to no package")
        needed = {owners[name] for name in files}
        needed = {n for n in needed if not NOT_COUNTED.fullmatch(n)}
        self.assertEqual(set(listed) - {"ca-certificates"}, needed)

    def check_health(self, base):
        (line,) = self.values("HEALTHCHECK")
        command = json.loads(line[line.index("["):])
        self.assertIn("/127.0.0.1/7470 ", command[-1])
        command[-1] = command[-1].replace("/7470 ", "/%s " % base.rpartition(":")[2])
        return tool(*command, env={"PATH": "/usr/bin:/bin"}).returncode

    def test_the_health_check(self):
        self.assertEqual(self.check_health(self.base), 0)
        ill = Refusing(503, "stopping")
        self.addCleanup(ill.close)
        self.assertNotEqual(self.check_health(ill.base), 0)
        d = self.start_daemon()
        self.stop_now(d)
        self.assertNotEqual(self.check_health(d.base), 0)

    def test_its_settings(self):
        """As the comment at the top says: with a key it would start, without it does not."""
        environment = dict(clean_environment(), **dict(v.split("=", 1) for v in self.values("ENV")))
        self.assertEqual(environment["STILLHERE_LISTEN"], "0.0.0.0:" + self.values("EXPOSE")[0])
        bare = tool(program(), "--check-config", env=environment)
        self.assertEqual(bare.returncode, 2, bare.stdout)
        self.assertIn("auth", bare.stdout)
        given = dict(re.findall(r"-e (STILLHERE_\w+)=(\S+)", self.text))
        self.assertEqual(set(given), {"STILLHERE_DATABASE_URL", "STILLHERE_AUTH", "STILLHERE_JWT_KEY_FILE"})
        told = tool(program(), "--check-config", env=dict(environment, **given))
        self.assertEqual((told.returncode, told.stdout), (0, ""))
