# SPDX-License-Identifier: Apache-2.0
"""The database roles of sql/roles.sql: one that migrates, one that a daemon runs as."""

import os
import re
import subprocess
import time

from .daemon import daemon_environment, program
from .pg import clean_environment

OWNER = "stillhere_owner"
RUNTIME = "stillhere_app"

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3, "sql", "roles.sql")

#: Daemons of all tests run as RUNTIME, but for those of a test that chooses for itself.
EVERYWHERE = os.environ.get("TEST_RUNTIME_ROLE", "") == "1"


def run_script(pg, database):
    """Runs sql/roles.sql as an administrator does. Roles belong to the whole cluster, so tests that run at the same
    time can get into each other's way: tried again then."""
    for attempt in range(20):
        done = subprocess.run(pg.psql_args(database) + ["-f", SCRIPT], env=clean_environment(),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode == 0:
            return done.stdout
        if not re.search(r"concurrently updated|already exists|pg_authid_rolname_index", done.stdout):
            break
        time.sleep(0.1 * (attempt + 1))
    raise RuntimeError("sql/roles.sql failed:\n" + done.stdout)


def migrate(url, **config):
    """stillhered --migrate. @return the finished process; its log is in stderr"""
    settings = dict({"database_url": url, "log_format": "text"}, **config)
    return subprocess.run([program(), "--migrate"], env=daemon_environment(settings), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)


def prepare(pg, database):
    """All that a database needs before a daemon can run on it as RUNTIME."""
    run_script(pg, database)
    done = migrate(pg.url(database, OWNER))
    if done.returncode != 0:
        raise RuntimeError("stillhered --migrate ended with %d:\n%s" % (done.returncode, done.stderr))
    run_script(pg, database)
