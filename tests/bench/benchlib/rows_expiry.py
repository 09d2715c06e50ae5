# SPDX-License-Identifier: Apache-2.0
"""Rows about the end of leases, and the crash. Each function measures one row of the table."""

import time

from . import Broken, asks, load, proc
from .peers import Etcd
from .rows_beat import plain

RATE = 1000

DOOMED = """
CREATE TEMP TABLE s AS SELECT '%(prefix)s' || lpad((i %% %(rooms)d)::text, 4, '0') AS room_id,
  'user-' || lpad(i::text, 7, '0') AS user_id FROM generate_series(0, %(n)d - 1) i;
INSERT INTO stillhere.room (room_id, revision) SELECT DISTINCT room_id, 0 FROM s ORDER BY 1;
INSERT INTO stillhere.lease (room_id, user_id, session_id, revision, revision_given, ttl_ms, granted_at, renewed_at,
  expires_at) SELECT room_id, user_id, 's', 1, false, 60000, t, t, to_timestamp(%(at)f) + random() * interval '1 s'
  FROM s, (SELECT clock_timestamp()) c(t) ORDER BY 1, 2;
INSERT INTO stillhere.room_user (room_id, user_id, online_since) SELECT room_id, user_id, clock_timestamp() FROM s
  ORDER BY 1, 2;
"""


def doomed(database, prefix, n, lead_s):
    """Leases that all end within one second. @return when that begins, on this host's clock, which is the database's"""
    at = float(int(time.time() + lead_s))
    database.sql(DOOMED % {"prefix": prefix, "n": n, "rooms": asks.ROOMS, "at": at})
    left = at - time.time()
    if left < 0:
        raise Broken("to write %d leases took %.1f s longer than there was" % (n, -left))
    time.sleep(left)
    return at


def verify_expired(database, prefix, n):
    """Raises Broken unless each lease is gone, with an event and a tombstone."""
    counts = database.sql("""
        SELECT (SELECT count(*) FROM stillhere.lease WHERE starts_with(room_id, '%(p)s')),
        (SELECT count(DISTINCT (room_id, user_id)) FROM stillhere.event WHERE starts_with(room_id, '%(p)s')
         AND kind = 'lease.expired'),
        (SELECT count(*) FROM stillhere.event WHERE starts_with(room_id, '%(p)s') AND kind = 'lease.expired'),
        (SELECT count(*) FROM stillhere.tombstone WHERE starts_with(room_id, '%(p)s') AND reason = 'expired')
        """ % {"p": prefix})
    if counts != "0|%d|%d|%d" % (n, n, n):
        raise Broken("of %d leases: left, expired, expiry events, tombstones are %s" % (n, counts))


def expiry(world, row):
    n = world.scale(100000, 10000)
    # Room for the writing of the leases before they end.
    lead_s = 4 if world.quick else 20
    database = world.database(asks.SESSIONS)
    daemon = database.daemons[0]
    requests = plain(world)
    turn = [0]

    def events(kind):
        return daemon.metric('stillhere_events_total{kind="%s"}' % kind)

    def ours():
        turn[0] += 1
        prefix = "doomed-%d-" % turn[0]
        before, before_offline = events("lease.expired"), events("user.offline")
        at = doomed(database, prefix, n, lead_s)
        pace = load.Pace(daemon.base, requests, load.CONNECTIONS, RATE, 90)
        try:
            load.until(lambda: events("lease.expired") - before >= n, 80, "the end of %d leases" % n)
            seconds = time.time() - at
            figures = pace.finish(now=True)
        finally:
            pace.kill()
        verify_expired(database, prefix, n)
        figures.update(value=n / seconds, seconds=seconds, heartbeat_p99_ms=figures["p99_ms"])
        load.until(lambda: events("user.offline") - before_offline >= n, 120, "%d users offline" % n, 0.2)
        figures["offline_seconds"] = time.time() - at
        return figures
    row.side("stillhere", ours, "each with a tombstone, an event at a revision of its room and a later user.offline",
             server=daemon)
    ids, ttl_s = world.scale(10000, 1000), 8 if world.quick else 30
    granted = [0]

    def etcd(server):
        before, first = server.expired(), granted[0] + 1
        granted[0] += ids
        server.grant(range(first, first + ids), ttl_s)
        if server.expired() > before:
            raise Broken("etcd took more than %d s to grant %d leases: the first had ended by then" % (ttl_s, ids))
        load.until(lambda: server.expired() > before, ttl_s + 30, "the first expiry of etcd")
        began = time.monotonic()
        had = server.expired() - before
        load.until(lambda: server.expired() - before >= ids, 60 + ids / 500, "the end of %d leases of etcd" % ids)
        return {"value": (ids - had) / max(0.001, time.monotonic() - began), "leases": ids}
    row.peer("etcd, lease expiry", lambda: Etcd(world), etcd, "each a revocation through Raft")
    row.measure()
    row.value("stillhere", "seconds until all are gone, with their events", "s", "seconds", at_most=10)
    row.value("stillhere", "heartbeat p99 meanwhile", "ms", "heartbeat_p99_ms", at_most=250)
    row.ratio("stillhere", "etcd, lease expiry")
    if row["stillhere"].figures:
        row.note("%d leases in %d rooms end within one second, and the time starts with it; %d heartbeats/s of other "
                 "sessions meanwhile; all users are offline, 10 s of grace included, after %.1f s" % (
                     n, asks.ROOMS, RATE, row["stillhere"].median("offline_seconds")))


def sweeper(world, row):
    seconds = 3 if world.quick else max(20, world.seconds)

    def idle(database):
        """The daemon, its backends, and all that PostgreSQL does in the background, though not all of it is ours."""
        daemon = database.daemons[0]
        backends = database.sql("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
                                "(datname = current_database() OR datname IS NULL)").split()
        pids = [daemon.process.pid] + [int(p) for p in backends]
        before, own, began = proc.cpu_seconds(pids), proc.cpu_seconds(pids[:1]), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        daemon.check()
        return {"value": 100 * (proc.cpu_seconds(pids) - before) / took,
                "daemon_percent": 100 * (proc.cpu_seconds(pids[:1]) - own) / took}
    bounds = ((0, None), (world.scale(100000, 10000), 3), (world.scale(1000000, 100000), 15))
    for n, _ in bounds:
        database = world.database(n)
        if n == 0:
            database.daemon()
        row.side("%d live leases" % n, lambda d=database: idle(d))
    time.sleep(1 if world.quick else 10)
    row.measure()
    for n, bound in bounds[1:]:
        row.value("%d live leases" % n, "of a core at %d live leases" % n, "%", at_most=bound)
    row.note("CPU of the daemon, its database connections and PostgreSQL's background processes over %d s" % seconds)
