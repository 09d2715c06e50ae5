# SPDX-License-Identifier: Apache-2.0
"""A second PostgreSQL that follows a first one and can take its place."""

import os
import pwd
import signal
import subprocess
import tempfile
import time

from . import SLOW
from .pg import Postgres


class Standby(Postgres):
    """A streaming standby of @a primary, synchronous where follow() has said so. It is a Postgres once it is promoted."""

    def __init__(self, primary, parent=None, name="second"):
        # Not super().__init__: that makes a cluster of its own.
        self.bindir, self.user, self.process, self.name = primary.bindir, primary.user, None, name
        self.dir = tempfile.mkdtemp(prefix="shpg.", dir=parent)
        os.chmod(self.dir, 0o755)
        self.socket, self.data, self.log = (os.path.join(self.dir, n) for n in ("s", "data", "log"))
        os.mkdir(self.socket)
        os.chmod(self.socket, 0o777)
        os.mkdir(self.data, 0o700)
        open(self.log, "w").close()
        if self.user:
            account = pwd.getpwnam(self.user)
            for path in (self.socket, self.data, self.log):
                os.chown(path, account.pw_uid, account.pw_gid)
        self._as_server([self.program("pg_basebackup"), "-h", primary.socket, "-p", "5432", "-U", "postgres",
                         "-D", self.data, "-X", "stream", "-R", "--checkpoint=fast"])
        with open(os.path.join(self.data, "postgresql.conf"), "a") as conf:
            conf.write("unix_socket_directories = '%s'\ncluster_name = '%s'\n" % (self.socket, name))

    def follow(self, primary):
        """Starts it, and has the primary acknowledge nothing that is not on its disk too."""
        self.start()
        return self.wait_for(primary)

    def wait_for(self, primary, synchronous=True):
        """Says whether the primary waits for it, which follows already, and lets that come about."""
        primary.psql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '%s'" % (self.name if synchronous else ""))
        primary.psql("postgres", "SELECT pg_reload_conf()")
        deadline = time.monotonic() + 30 * SLOW
        state = "streaming|" + ("sync" if synchronous else "async")
        while primary.psql("postgres", "SELECT state, sync_state FROM pg_stat_replication") != state:
            if time.monotonic() > deadline:
                raise AssertionError("the standby does not follow")
            time.sleep(0.05)
        return self

    def promote(self):
        self._as_server([self.program("pg_ctl"), "-D", self.data, "-w", "-s", "promote"])


def kill_cluster(pg):
    """SIGKILL to every process of a cluster: what is left of a machine that lost its power."""
    with open(os.path.join(pg.data, "postmaster.pid")) as f:
        postmaster = int(f.readline())
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(postmaster)], stdout=subprocess.PIPE, text=True)
    for pid in [postmaster] + [int(p) for p in children.stdout.split()]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
