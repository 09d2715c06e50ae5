# SPDX-License-Identifier: Apache-2.0
"""Tables that Citus has distributed, or a database that looks like it.

TEST_DISTRIBUTED=texts: all daemons take the statements for distributed tables, on plain PostgreSQL.
TEST_DISTRIBUTED=citus: the databases are distributed over a coordinator and two workers. Citus must be installed where
PostgreSQL's own extensions are; there is no Debian package of it. Classes with a cluster of their own run without.
"""

import os
import subprocess
import time

from .pg import Postgres, clean_environment

MODE = os.environ.get("TEST_DISTRIBUTED", "")

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3, "sql", "citus.sql")

#: What a node of a Citus cluster has in its configuration.
SETTINGS = """
shared_preload_libraries = 'citus'
max_prepared_transactions = 200
citus.node_conninfo = 'sslmode=disable'
citus.enable_statistics_collection = off
"""

WORKERS = "TEST_CITUS_WORKERS"  # the directories of their clusters, for the processes of the tests


def start_workers(directory):
    """Starts the workers where there is to be a cluster. @return them"""
    workers = [Postgres(directory, more=SETTINGS).start() for _ in range(2)] if MODE == "citus" else []
    os.environ[WORKERS] = ":".join(w.dir for w in workers)
    return workers


class Worker(Postgres):
    """A worker that another process has started."""

    def __init__(self, directory, like):
        self.bindir, self.user, self.dir = like.bindir, like.user, directory
        self.socket = os.path.join(directory, "s")


def workers_of(pg):
    return [Worker(d, pg) for d in os.environ.get(WORKERS, "").split(":") if d]


def pretend(pg, database, where="true"):
    """From now on whoever connects finds the tables distributed, which they are not.
    @param where for which sessions, as SQL"""
    pg.psql(database, "SET allow_system_table_mods = on; CREATE OR REPLACE VIEW pg_catalog.pg_dist_partition AS "
                      "SELECT pg_catalog.to_regclass('stillhere.lease') AS logicalrelid WHERE %s; "
                      "GRANT SELECT ON pg_catalog.pg_dist_partition TO PUBLIC" % where)


def join(pg, database):
    """Makes one database of those of that name on all nodes. It is empty."""
    for node in [pg] + workers_of(pg):
        if node is not pg:
            node.create_database(database)
        node.psql(database, "CREATE EXTENSION citus")
    pg.psql(database, "SELECT citus_set_coordinator_host('%s', 5432)" % pg.socket)
    for node in workers_of(pg):
        add_node(pg, database, node)


def add_node(pg, database, node):
    """Each node brings the roles along, which belong to whole clusters: two classes that begin at once are in each
    other's way."""
    for attempt in range(10):
        try:
            pg.psql(database, "SELECT citus_add_node('%s', 5432)" % node.socket)
            return
        except RuntimeError as e:
            if "tuple concurrently updated" not in str(e):
                raise
        time.sleep(0.2 * (attempt + 1))
    raise RuntimeError("citus_add_node")


def distribute(pg, database):
    """Runs sql/citus.sql, after the migration."""
    done = subprocess.run(pg.psql_args(database) + ["-f", SCRIPT], env=clean_environment(), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError("sql/citus.sql failed:\n" + done.stdout)


def drop(pg, database):
    """Takes the workers' databases away, after that of the coordinator."""
    for node in workers_of(pg):
        node.drop_database(database)
