# SPDX-License-Identifier: Apache-2.0
"""The Debian package: built from this tree, judged by lintian, installed into a directory, and run from there."""

import glob
import os
import shutil
import subprocess
import tempfile

from harness.case import Case
from harness.daemon import free_port
from harness.pg import clean_environment

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

#: What a build leaves in a tree, and what a package has no use for.
LEFT_OUT = shutil.ignore_patterns(".git", "build*", "b", "__pycache__", "autom4te.cache", "Makefile", "config.status",
                                  "config.log", "*.o", "*.a", "fuzz", "soak", "bench", "node_modules")

#: As README.md says.
BUILD = "cp -r contrib/debian debian && dpkg-buildpackage -b -us -uc"

#: Stand in for the programs that maintainer scripts call: they note it, and the service is what two files say.
FAKES = {
    "systemctl": """case " $* " in
*" is-enabled "*) [ -e "$STATE/enabled" ] && echo enabled && exit 0; echo disabled; exit 1 ;;
*" is-active "*) [ -e "$STATE/active" ]; exit $? ;;
esac
echo "systemctl $*" >>"$STATE/log"
""",
    "deb-systemd-helper": """echo "deb-systemd-helper $*" >>"$STATE/log"
[ "$2" != was-enabled ]
""",
    # The real one, which decides what is started; but no policy of the machine that tests keeps it from that.
    "deb-systemd-invoke": 'DPKG_ROOT=$STATE exec /usr/bin/deb-systemd-invoke "$@"\n',
    "systemd-sysusers": "",
    "systemd-tmpfiles": "",
}


class Package(Case):
    autostart = False
    weight = 60

    @classmethod
    def begin(cls):
        super().begin()
        # Below a directory that others can enter: PostgreSQL's user reads the SQL from there.
        cls.work = os.path.join(cls.directory, "deb")
        source = os.path.join(cls.work, "stillhere")
        shutil.copytree(TREE, source, ignore=LEFT_OUT, symlinks=True)
        for name in ("bench", "fuzz", "soak"):  # named in Makefile.am
            if os.path.isdir(os.path.join(TREE, "tests", name)):
                shutil.copytree(os.path.join(TREE, "tests", name), os.path.join(source, "tests", name))
        shutil.rmtree(os.path.join(source, "debian"), ignore_errors=True)  # of somebody who built it here
        cls.built = cls.run_tool("sh", "-c", BUILD, cwd=source, fake=True)
        cls.debs = glob.glob(os.path.join(cls.work, "stillhere_*.deb"))
        cls.root = os.path.join(cls.work, "root")

    @classmethod
    def run_tool(cls, *args, cwd=None, fake=False):
        if fake and os.geteuid() != 0:
            args = ("fakeroot", *args)
        env = dict(clean_environment(), DEB_BUILD_OPTIONS="nocheck parallel=2", LC_ALL="C.UTF-8")
        for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "CFLAGS", "LDFLAGS", "DESTDIR", "VPATH"):
            env.pop(name, None)
        return subprocess.run(args, cwd=cwd or cls.work, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)

    def test_it_builds_and_installs_and_runs(self):
        self.assertEqual(self.built.returncode, 0, self.built.stdout[-4000:])
        self.assertEqual(len(self.debs), 1)
        judged = self.run_tool("lintian", "--allow-root", "--fail-on", "error,warning", *self.debs)
        self.assertEqual((judged.returncode, judged.stdout), (0, ""))
        self.install()
        self.look_around()
        self.migrate_as_documented()
        self.serve()

    def test_how_it_is_built_is_documented(self):
        with open(os.path.join(TREE, "README.md"), encoding="utf-8") as f:
            self.assertIn("\n%s\n" % BUILD, f.read())

    def maintain(self, script, *args, states=()):
        """Runs a maintainer script as dpkg does. @return what it told systemd, without the options"""
        with tempfile.TemporaryDirectory(dir=self.work) as fake:
            for name, text in FAKES.items():
                with open(os.path.join(fake, name), "w", encoding="ascii") as f:
                    f.write("#!/bin/sh\n" + text)
                os.chmod(f.name, 0o755)
            for name in (*states, "log"):
                with open(os.path.join(fake, name), "w", encoding="ascii"):
                    pass
            control = os.path.join(fake, "control")
            self.assertEqual(self.run_tool("dpkg-deb", "-e", self.debs[0], control).returncode, 0)
            path = os.path.join(control, script)
            if not os.path.exists(path):
                return []
            # They ask by this directory whether systemd runs.
            with open(path, encoding="utf-8") as f:
                text = f.read().replace("/run/systemd/system", fake)
            done = subprocess.run(["sh", "-c", text, script, *args], env={"PATH": fake + ":/usr/bin:/bin", "STATE": fake},
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stdout)
            with open(os.path.join(fake, "log"), encoding="utf-8") as f:
                log = f.read()
        return [" ".join(w for w in line.split()[1:] if not w.startswith("-")) for line in log.splitlines()
                if "state" not in line and "installed" not in line and "mask" not in line and "was-enabled" not in line]

    def test_what_becomes_of_the_service(self):
        """At an installation nothing but that systemd reads its units; an upgrade restarts it with the new files where it
        runs or is enabled; a removal stops it; a purge leaves nothing enabled."""
        unit = "stillhered.service"
        self.assertEqual(self.built.returncode, 0, self.built.stdout[-4000:])
        self.assertEqual(self.maintain("postinst", "configure", ""), ["daemon-reload"])
        for states in ({"active"}, {"active", "enabled"}):
            for before in (("preinst", "upgrade", "0.0.1"), ("prerm", "upgrade", "0.1.0"), ("postrm", "upgrade", "0.1.0")):
                self.assertEqual(self.maintain(*before, states=states), [], before)
            self.assertEqual(self.maintain("postinst", "configure", "0.0.1", states=states),
                             ["daemon-reload", "restart " + unit])
        self.assertEqual(self.maintain("postinst", "configure", "0.0.1"), ["daemon-reload"])
        self.assertEqual(self.maintain("prerm", "remove", states={"active", "enabled"}), ["stop " + unit])
        self.assertEqual(self.maintain("postrm", "remove", states={"enabled"}), ["daemon-reload"])
        self.assertEqual(self.maintain("postrm", "purge"), ["purge " + unit])

    def install(self):
        for path in ("var/lib/dpkg", "etc"):
            os.makedirs(os.path.join(self.root, path))
        with open(os.path.join(self.root, "var/lib/dpkg/status"), "w", encoding="ascii"):
            pass
        # Into a directory of its own, with the libraries of this machine: dependencies are not looked for there.
        done = self.run_tool("dpkg", "--root=" + self.root, "--force-script-chrootless", "--force-depends",
                             "--force-not-root", "-i", self.debs[0], fake=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotIn("not absolute", done.stdout)

    def installed(self, path):
        return os.path.join(self.root, path)

    def look_around(self):
        with open(self.installed("etc/passwd"), encoding="ascii") as f:
            self.assertIn("stillhere:x:", f.read())
        with open(self.installed("usr/lib/systemd/system/stillhered.service"), encoding="utf-8") as f:
            unit = f.read()
        self.assertIn("ExecStart=/usr/sbin/stillhered --config /etc/stillhere/stillhere.conf\n", unit)
        for path in ("usr/share/man/man8/stillhered.8.gz", "usr/share/man/man1/stillhere.1.gz",
                     "usr/share/man/man5/stillhere.conf.5.gz", "etc/stillhere/stillhere.conf",
                     "usr/share/stillhere/sql/roles.sql", "usr/share/bash-completion/completions/stillhere",
                     "usr/share/bash-completion/completions/stillhered", "usr/share/doc/stillhere/README.Debian"):
            self.assertTrue(os.path.exists(self.installed(path)), path)
        self.assertRegex(self.run_tool(self.installed("usr/bin/stillhere"), "--version").stdout, r"^stillhere \d")

    def migrate_as_documented(self):
        """Roles, migration as the owner, rights: with the files of the package."""
        roles = self.installed("usr/share/stillhere/sql/roles.sql")
        with open(roles, encoding="utf-8") as f:
            self.script = f.read()
        for step in ("roles", "migrate", "roles"):
            if step == "roles":
                subprocess.run(self.pg.psql_args(self.database) + ["-v", "ON_ERROR_STOP=1"], input=self.script, text=True,
                               env=clean_environment(), check=True, stdout=subprocess.DEVNULL)
            else:
                subprocess.run([self.installed("usr/sbin/stillhered"), "--migrate"], check=True, env=dict(
                    clean_environment(), STILLHERE_DATABASE_URL=self.pg.url(self.database, "stillhere_owner")),
                    stderr=subprocess.DEVNULL)

    def serve(self):
        """The unit's command line, with the package's configuration and two keys in it."""
        self.allow_5xx = True  # not ready at first
        port = free_port()
        conf = self.installed("etc/stillhere/stillhere.conf")
        with open(conf, "a", encoding="utf-8") as f:
            f.write("listen = 127.0.0.1:%d\ndatabase_url = %s\n" % (port, self.pg.url(self.database, "stillhere_app")))
        base = "http://127.0.0.1:%d" % port
        with open(os.path.join(self.work, "log"), "wb") as log:
            daemon = subprocess.Popen([self.installed("usr/sbin/stillhered"), "--config", conf], env=clean_environment(),
                                      stdout=subprocess.DEVNULL, stderr=log)
        try:
            self.wait_until(lambda: self.ready(base), 20, "the packaged daemon")
            self.ok(self.client.hb(base, self.room(), "u", "s"))
        finally:
            daemon.terminate()
        self.assertEqual(daemon.wait(20), 0)

    def ready(self, base):
        try:
            return self.client.get(base, "/readyz", fresh=True).status == 200
        except OSError:
            return False
