# SPDX-License-Identifier: Apache-2.0
"""Our side: a PostgreSQL cluster with fsync on, databases full of leases, and the daemon as it is by default."""

import json
import os
import re
import time

from harness.client import Client, parse_metrics
from harness.daemon import Daemon
from harness.pg import Postgres

from . import Broken, asks

#: PostgreSQL's own defaults, where the harness has chosen others for the tests.
DEFAULTS = """
shared_buffers = 128MB
max_connections = 100
log_lock_waits = off
"""

SEED = """
CREATE TEMP TABLE s AS SELECT 'room-' || lpad((i %% %(rooms)d)::text, 4, '0') AS room_id,
  'user-' || lpad(i::text, 7, '0') AS user_id, 's-' || lpad(i::text, 7, '0') AS session_id
  FROM generate_series(0, %(n)d - 1) i;
INSERT INTO stillhere.room (room_id, revision) SELECT DISTINCT room_id, 0 FROM s ORDER BY 1;
INSERT INTO stillhere.lease (room_id, user_id, session_id, revision, revision_given, ttl_ms, granted_at, renewed_at,
  expires_at) SELECT room_id, user_id, session_id, 1, false, %(ttl)d, t, t, t + %(ttl)d * interval '1 ms'
  FROM s, (SELECT clock_timestamp()) c(t) ORDER BY 1, 2, 3;
INSERT INTO stillhere.room_user (room_id, user_id, online_since) SELECT room_id, user_id, clock_timestamp() FROM s
  ORDER BY 1, 2;
"""


class Cluster(Postgres):
    """PostgreSQL with its default settings, but for what state() tells."""

    def __init__(self, world, name="postgresql"):
        super().__init__(parent=world.dir, fsync=True)
        self.world, self.name = world, name
        with open(os.path.join(self.data, "postgresql.conf"), "a") as conf:
            conf.write(DEFAULTS)

    def start(self):
        super().start()
        self.world.state(self.name, self.psql("postgres", """
            SELECT string_agg(name || ' = ' || current_setting(name), E'\\n' ORDER BY name) FROM pg_settings
            WHERE source = 'configuration file' AND setting IS DISTINCT FROM boot_val
            AND name !~ '^(lc_|log_|default_text|Date|Time|unix_)' OR name IN ('fsync', 'synchronous_commit',
            'shared_buffers', 'full_page_writes', 'max_wal_size', 'wal_sync_method')"""))
        return self

    def database(self, name):
        self.create_database(name)
        return Database(self, name)

    def answers(self):
        try:
            return self.psql("postgres", "SELECT 1") == "1"
        except RuntimeError:
            return False

    def settle(self, seconds):
        """Waits for autovacuum, which follows on a load and would be charged to whoever is next."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.psql("postgres", "SELECT count(*) FROM pg_stat_activity WHERE "
                                                        "backend_type = 'autovacuum worker'") != "0":
            time.sleep(0.5)


class Database:
    """One database and the daemons on it."""

    def __init__(self, cluster, name):
        self.cluster, self.name, self.world = cluster, name, cluster.world
        self.daemons = []
        self.migrated = False
        self.client = Client()

    def sql(self, text):
        return self.cluster.psql(self.name, text)

    def drop(self):
        for daemon in self.daemons:
            daemon.end()
        self.cluster.drop_database(self.name)

    def daemon(self, **config):
        """Another daemon on it, ready."""
        daemon = Ours(self, "%s-%d" % (self.name, len(self.daemons) + 1), config)
        self.daemons.append(daemon)
        daemon.wait_ready()
        self.migrated = True
        return daemon

    def seed(self, sessions, rooms=asks.ROOMS):
        """Live leases by SQL, users online, as heartbeats leave them; and nothing left for autovacuum to do."""
        if not self.migrated:
            self.daemon()
        self.sql(SEED % {"n": sessions, "rooms": min(rooms, sessions), "ttl": asks.TTL_MS})
        self.sql("VACUUM (ANALYZE)")
        self.sql("CHECKPOINT")
        return self

    def heads(self, prefix="room-"):
        """The newest revision of each room."""
        rows = self.sql("SELECT room_id, revision FROM stillhere.room WHERE starts_with(room_id, '%s') ORDER BY 1" %
                        prefix)
        return {r: int(n) for r, n in (line.split("|") for line in rows.splitlines())}

    def statement(self):
        """The statement with which the daemon renews, and the settings of the session that it does so in, as the server
        heard them: what pgbench is given to run."""
        self.sql("ALTER DATABASE \"%s\" SET log_statement = 'all'" % self.name)
        daemon = self.daemon()
        since = self.cluster.log_size()
        for _ in range(2):
            reply = self.client.put_json(daemon.base, dict(asks.heartbeat(0), session_id="probe"))
            if reply.status != 200:
                raise Broken("a heartbeat was refused: %r" % reply)
        daemon.end()
        self.sql("ALTER DATABASE \"%s\" RESET log_statement" % self.name)
        settings = ""
        for line in self.cluster.log_lines(since, self.name):
            if "SET plan_cache_mode" in line:
                settings = " ".join("-c %s=%s" % pair for pair in re.findall(r"SET ((?:plan|enable)_\w+) = '?(\w+)", line))
            found = re.search(r"LOG:  execute \w+: (UPDATE stillhere\.lease .*unnest.*)$", line)
            if found and settings:
                return Statement(found.group(1), settings)
        raise Broken("the log of PostgreSQL does not show the renewing statement")


class Statement:
    def __init__(self, sql, settings):
        self.sql, self.settings = sql, settings


def filled(statement, sessions):
    """The renewing statement with its parameters: sorted, as the daemon sorts them."""
    keys = sorted((asks.room(i), asks.user(i), asks.session(i)) for i in sessions)
    n = len(keys)
    columns = [[k[0] for k in keys], [k[1] for k in keys], [k[2] for k in keys], ["NULL"] * n,
               [str(asks.TTL_MS)] * n, [], ["00000000-0000-0000-0000-000000000000"] * n]
    values = ["'{%s}'" % ",".join(column) for column in columns] + ["'0'"]
    wanted = {int(n) for n in re.findall(r"\$(\d+)", statement.sql)}
    if wanted != set(range(1, len(values) + 1)):
        raise Broken("the renewing statement has other parameters than the bench knows: %s" % sorted(wanted))
    return re.sub(r"\$(\d+)", lambda m: values[int(m.group(1)) - 1], statement.sql)


class Ours(Daemon):
    """stillhered with its default configuration; the decision log goes to a file."""

    def __init__(self, database, name, config):
        self.database, self.client = database, database.client
        url = database.cluster.url(database.name)
        super().__init__(database.world.dir, name, dict({"database_url": url}, **config))
        stated = {k: v for k, v in config.items() if not k.endswith("_file")}
        text = "".join("%s = %s\n" % item for item in sorted(stated.items())) or "the default configuration\n"
        database.world.state("stillhered" + "".join(", %s=%s" % i for i in sorted(stated.items())),
                             text + "decision log and log to a file")

    def check(self):
        """Raises Broken when it has ended, or when its database has: then its heartbeats only wait."""
        if not self.alive():
            raise Broken("stillhered ended by itself with %d: %s" % (self.process.returncode, self.tail(1)))
        if not self.database.cluster.answers():
            raise Broken("PostgreSQL has ended by itself")

    def end(self):
        """Stops it, and tells when it did not end well."""
        ended_before = not self.alive()
        fault = self.stop()
        if fault and not ended_before:
            print("while ending: " + fault, flush=True)

    def metrics(self):
        """Series by their whole names. A family's sum: metric()."""
        try:
            return parse_metrics(self.client.get(self.base, "/metrics", fresh=True).body.decode())
        except OSError as fault:
            self.check()
            raise Broken("/metrics: %s" % fault)

    def metric(self, name):
        return sum(v for k, v in self.metrics().items() if k == name or k.startswith(name + "{"))

    def epoch(self):
        return self.get("/rooms/nobody/presence")["epoch"]

    def get(self, path):
        reply = self.client.get(self.base, path, fresh=True)
        if reply.status != 200:
            raise Broken("GET %s: %r" % (path, reply))
        return json.loads(reply.body)

    def counted(self, run, per_request=1):
        """Runs a load of heartbeats and holds what the daemon counted against it. @return the run's figures"""
        before = self.metrics()
        figures = run()
        after = self.metrics()

        def grown(series):
            return after.get(series, 0) - before.get(series, 0)
        accepted = grown('stillhere_heartbeats_total{decision="accepted"}')
        answered = (figures.get("requests", 0) or figures.get("done", 0)) * per_request
        if accepted < answered * 0.999:
            raise Broken("%d heartbeats were answered, but only %d of them accepted" % (answered, accepted))
        figures["accepted"] = int(accepted)
        figures["transactions"] = int(grown("stillhere_batches_total"))
        figures["log_lines_dropped"] = int(grown("stillhere_decision_log_dropped_total"))
        os.truncate(self.out, 0)  # it is appended to; minutes of it would fill the disk
        return figures
