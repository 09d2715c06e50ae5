# SPDX-License-Identifier: Apache-2.0
"""The programs of others: where they are, which Debian package brings them, which version it is."""

import os
import re
import shutil
import subprocess

from harness.pg import find_programs

from . import Missing

#: Program -> (Debian package, arguments that print the version).
KNOWN = {
    "redis-server": ("redis-server", ["--version"]),
    "webdis": ("webdis", None),
    "etcd": ("etcd-server", ["--version"]),
    "nginx": ("nginx", ["-v"]),
    "nchan": ("libnginx-mod-nchan", None),
    "wrk": ("wrk", ["-v"]),
    "pgbench": ("postgresql", ["--version"]),
}
NCHAN = "ngx_nchan_module.so"
NCHAN_DIRECTORIES = ("/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/share/nginx/modules",
                     "/usr/local/nginx/modules")


class Programs:
    """Finds programs. @a without: names that count as missing, to see that it is told."""

    def __init__(self, without=()):
        unknown = set(without) - set(KNOWN)
        if unknown:
            raise SystemExit("no such program here: %s; there are %s" % (", ".join(sorted(unknown)), ", ".join(KNOWN)))
        self.without = set(without)

    def path(self, name):
        """Where it is, or None."""
        if name in self.without:
            return None
        if name == "nchan":
            places = [os.path.join(d, NCHAN) for d in NCHAN_DIRECTORIES]
            return next((p for p in places if os.path.exists(p)), None)
        # Servers are in sbin, which is not on every PATH.
        search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
        if name == "pgbench":  # comes with the server, in a directory of its version
            search = os.pathsep.join([find_programs(), search])
        return shutil.which(name, path=search)

    def need(self, *names):
        """The paths of all of them. Raises Missing for the first that is not there."""
        paths = []
        for name in names:
            path = self.path(name)
            if path is None:
                raise Missing("%s is missing (Debian package %s)" % (name, KNOWN[name][0]))
            paths.append(path)
        return paths[0] if len(paths) == 1 else paths

    def missing_packages(self):
        return sorted({package for name, (package, _) in KNOWN.items()
                       if name not in self.without and self.path(name) is None})

    def versions(self):
        """By name: the version, or that it is missing."""
        return {name: self._version(name, *KNOWN[name]) for name in KNOWN}

    def _version(self, name, package, arguments):
        path = self.path(name)
        if path is None:
            return "missing"
        if arguments is None:
            return packaged_version(package)
        done = subprocess.run([path] + arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        found = re.search(r"\d+\.\d[\w.]*", done.stdout)
        return found.group(0) if found else "of unknown version"


def packaged_version(package):
    try:
        done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        return "of unknown version"
    return done.stdout if done.returncode == 0 else "of unknown version"


def install(packages):
    """apt-get, as root. What then is still missing is told by the table."""
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print("cannot install %s: that takes root and apt-get" % " ".join(packages), flush=True)
        return
    print("installing %s" % " ".join(packages), flush=True)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    subprocess.run(["apt-get", "-q", "update"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    # One by one: a package that this release lacks must not keep the others away.
    for package in packages:
        done = subprocess.run(["apt-get", "-q", "-y", "--no-install-recommends", "install", package], env=environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            print("apt-get could not install %s:\n%s" % (package, done.stdout[-500:]), flush=True)
