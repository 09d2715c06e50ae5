# SPDX-License-Identifier: Apache-2.0
"""The disk of PostgreSQL's log fills up: the server crashes in the midst of commits and does not come back until there is
room again. To stillhere it is a database that is away, and nothing that was acknowledged is lost by it.

Only with --long. The log is on a small file system of its own in memory, which only root may mount: whoever may not is told
that this was not run."""

import os
import shutil
import subprocess
import sys

from harness import LONG
from harness.case import SLOW, time
from harness.pg import SqlError
from test_database_faults import Proxied


def may_mount():
    """Whether this process may, tried in a mount namespace of its own."""
    try:
        return subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


class FullWal(Proxied):
    own_cluster = True

    @classmethod
    def begin(cls):
        super().begin()
        cls.pg.stop()
        cls.forget_query()
        log, cls.disk = os.path.join(cls.pg.data, "pg_wal"), os.path.join(cls.pg.dir, "log_disk")
        os.mkdir(cls.disk)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", cls.disk], check=True)
        remove = cls.pg.remove

        def remove_with_disk():
            if cls.pg.running():
                cls.pg.stop("immediate")
            subprocess.run(["umount", "-l", cls.disk], check=False)
            remove()
        cls.pg.remove = remove_with_disk
        inside = os.path.join(cls.disk, "pg_wal")
        subprocess.run(["cp", "-a", log, inside], check=True)
        shutil.rmtree(log)
        os.symlink(inside, log)
        cls.pg.start()
        for d in cls.daemons:
            d.wait_ready()

    def fill(self):
        """Takes what room there is, and uses up what the server has in reserve, until it crashes."""
        with open(os.path.join(self.disk, "filler"), "wb") as f:
            try:
                while True:
                    f.write(b"x" * 65536)
                    f.flush()
            except OSError:
                pass
        mark, session = self.pg.log_size(), self.psql()
        with self.assertRaises(SqlError):
            for _ in range(60):
                session.run("INSERT INTO filler SELECT 1")
                session.run("SELECT pg_switch_wal()")
        with open(self.pg.log, "rb") as f:
            f.seek(mark)
            self.assertRegex(f.read(), b"PANIC: .*No space left on device")

    def make_room(self):
        os.unlink(os.path.join(self.disk, "filler"))
        deadline = time.monotonic() + 60 * SLOW
        while True:  # it may still be trying by itself, or have given up
            if not self.pg.running():
                self.pg.start()
            try:
                self.forget_query()
                return self.q("SELECT 1")
            except (SqlError, RuntimeError):
                self.assertLess(time.monotonic(), deadline, "the server does not come back")
                time.sleep(0.1)

    def test_no_room_for_the_log(self):
        self.q("CREATE TABLE filler (n int)")
        self.through(self.fill, self.make_room)
        # The server's own last words are what was asked for.
        type(self).pg_mark = self.pg.log_size()


if not LONG:
    del FullWal
elif not may_mount():
    if "--child" not in sys.argv:
        print("test_full_wal: NOT RUN, since only who may mount a file system can make a small one", file=sys.stderr)
    del FullWal
