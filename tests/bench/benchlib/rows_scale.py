# SPDX-License-Identifier: Apache-2.0
"""Rows about more than one instance and more than one PostgreSQL. Each function measures one row of the table."""

import os
from concurrent.futures import ThreadPoolExecutor

from harness.standby import Standby

from . import asks, load
from .ours import Cluster
from .proc import cpu_seconds, family
from .rows_beat import DURABLE, beats, plain, warm

#: Of all instances together; divides by one, two and three.
CONNECTIONS = 60
INSTANCES = (1, 2, 3)
ALONE, LOCAL, SYNC = "alone", "with a standby that is not waited for", "with a synchronous standby"


def server_pids(cluster):
    with open(os.path.join(cluster.data, "postmaster.pid")) as f:
        return family(int(f.readline()))


def beats_at(world, cluster, daemons, requests):
    """The load of CONNECTIONS shared by some instances. @return value: heartbeats/s of all, and what each of them costs"""
    own, others = [d.process.pid for d in daemons], server_pids(cluster)
    before = cpu_seconds(own), cpu_seconds(others)
    with ThreadPoolExecutor(len(daemons)) as pool:
        runs = list(pool.map(lambda d: beats(world, d, requests, connections=CONNECTIONS // len(daemons)), daemons))
    spent = cpu_seconds(own) - before[0], cpu_seconds(others) - before[1]
    accepted, batches = (sum(f[key] for f in runs) for key in ("accepted", "transactions"))
    return {"value": sum(f["value"] for f in runs), "accepted": accepted, "transactions": batches,
            "each": [f["value"] for f in runs], "own_us": spent[0] / accepted * 1e6,
            "postgresql_us": spent[1] / accepted * 1e6, "batch": accepted / max(1, batches)}


def instances(world, row):
    database = world.database(asks.SESSIONS)
    requests = plain(world)
    daemons = [database.daemon() for _ in range(max(INSTANCES))]
    for d in daemons:
        warm(world, d.base, requests)()
    names = {n: "%d instance%s" % (n, "" if n == 1 else "s") for n in INSTANCES}
    for n in INSTANCES:
        row.side(names[n], lambda n=n: beats_at(world, database.cluster, daemons[:n], requests), DURABLE,
                 server=daemons[n - 1])
    row.measure()
    for n in INSTANCES[1:]:
        row.ratio(names[n], names[1])
    for n in INSTANCES:
        row.value(names[n], "%s, CPU of stillhered for a heartbeat" % names[n], "µs", "own_us")
        row.value(names[n], "%s, CPU of PostgreSQL for a heartbeat" % names[n], "µs", "postgresql_us")
        row.value(names[n], "%s, heartbeats in a commit" % names[n], "", "batch")
    row.note("all on one machine, whose cores instances, PostgreSQL and load generators share: more instances can take no "
             "more here. What the row shows is what a further one costs; %d connections in all" % CONNECTIONS)


def standby(world, row):
    cluster = Cluster(world, "postgresql with a standby")
    world.own(cluster, cluster.remove)
    cluster.start()
    database = cluster.database("standby")
    world.own(database, database.drop)
    database.seed(asks.SESSIONS)
    daemon, requests = database.daemons[0], plain(world)
    second = Standby(cluster, world.dir)

    def leave():  # before it stops, or every commit would wait
        cluster.psql("postgres", "ALTER SYSTEM RESET synchronous_standby_names")
        cluster.psql("postgres", "SELECT pg_reload_conf()")
        if second.running():
            second.stop()
    world.own(second, second.remove)
    world.own(second, leave)

    def run(waits):
        if not waits:
            leave()
        else:
            if not second.running():
                second.start()
            second.wait_for(cluster, waits == SYNC)
        return beats(world, daemon, requests)
    for name, waits in ((ALONE, None), (LOCAL, LOCAL), (SYNC, SYNC)):
        row.side(name, lambda w=waits: run(w), DURABLE, warm(world, daemon.base, requests), server=daemon)
    row.measure()
    row.ratio(SYNC, ALONE)
    row.ratio(LOCAL, ALONE)
    row.note("the standby is on the same machine and disk: it writes and syncs everything once more there, and has no "
             "network in between; %d connections" % load.CONNECTIONS)
