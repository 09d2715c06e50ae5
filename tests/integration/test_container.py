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
        uid, gid = user.split(":")
        self.assertGreater(int(uid), 0)
        self.assertIn("useradd --uid %s --gid %s " % (uid, gid), self.values("RUN")[1])
        self.assertIn("groupadd --gid %s " % gid, self.values("RUN")[1])
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

    def packages(self, scope):
        """What contrib/lib.sh would install where nothing is there."""
        none = "; ".join("has_%s() { false; }" % kind for kind in ("command", "header", "library", "module", "postgres"))
        done = tool("bash", "-uc", ". contrib/lib.sh; %s; missing_packages %s" % (none, scope), cwd=TREE)
        self.assertEqual(done.returncode, 0, done.stdout)
        return set(done.stdout.split())

    def test_it_is_built_without_the_database(self):
        (scope,) = re.findall(r"ensure_packages( \w+)?'", self.values("RUN")[0])
        built, run, tests = self.packages(scope), self.packages(""), self.packages("tests")
        self.assertTrue({"gcc", "libpq-dev", "libmicrohttpd-dev"} <= built, built)
        self.assertEqual(run - built, {"postgresql"})
        self.assertTrue(run < tests)

    def left_out(self):
        """The lines of .dockerignore, which .containerignore repeats, as expressions on whole paths."""
        texts = []
        for name in (".containerignore", ".dockerignore"):
            with open(os.path.join(TREE, name), encoding="utf-8") as f:
                texts.append(f.read())
        self.assertEqual(*texts)
        lines = [line for line in texts[0].splitlines() if line and not line.startswith("#")]
        self.assertFalse([line for line in lines if line.startswith(("!", "/")) or "?" in line or "[" in line])
        words = {"**/": "(.*/)?", "*": "[^/]*"}
        return [re.compile(re.sub(r"\*\*/|\*|[^*]+", lambda m: words.get(m[0]) or re.escape(m[0]), line) + "(/.*)?")
                for line in lines]

    def test_what_goes_into_the_build(self):
        """Neither history nor other builds nor keys that lie in the clone; and of the sources all."""
        out = self.left_out()
        for path in (".git/config", "build/stillhered", "build-check/x", "jwt.secret", "webhook_secret", "etc/tls.key",
                     "fullchain.pem", "contrib/.env", ".pgpass", "an.token", "src/db/db.o", "debian/rules", "config.status",
                     "src/db/migrations_data.c", "tests/js/node_modules/x.js"):
            self.assertTrue(any(e.fullmatch(path) for e in out), path)
        lost = []
        for top in ("src", "sql", "contrib", "doc", "etc", "scripts", "tests"):
            for directory, _, files in os.walk(os.path.join(TREE, top)):
                names = [os.path.relpath(os.path.join(directory, name), TREE) for name in files]
                lost += [n for n in names if n.endswith((".c", ".h", ".sql", ".js", ".in", ".sh", ".conf", ".md")) and
                         not n.endswith("_data.c") and any(e.fullmatch(n) for e in out)]
        self.assertEqual(lost, [])
        for path in ("Makefile.am", "configure.ac", "autogen.sh", "contrib/lib.sh", "contrib/debian/rules"):
            self.assertFalse(any(e.fullmatch(path) for e in out), path)

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
