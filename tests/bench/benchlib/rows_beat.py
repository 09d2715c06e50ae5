# SPDX-License-Identifier: Apache-2.0
"""Rows about heartbeats. Each function measures one row of the table."""

import os
import random
import time

from harness.tokens import Key, bearer

from . import Broken, asks, load
from .ours import filled
from .peers import Bare, Etcd, Webdis

DURABLE = "committed to disk before the answer, revisioned, fenced against late messages, an event when it ends"
OURS, TRANSITIONS = "stillhere", "stillhere, decision_log=transitions"
REDIS, ETCD, BARE = "webdis + Redis SETEX", "etcd lease keepalive", "bare libmicrohttpd"
BATCH = 100


def beats(world, daemon, requests, weight=1, connections=load.CONNECTIONS, seconds=None):
    """One run of heartbeats, held against what the daemon counted."""
    return daemon.counted(lambda: load.wrk(world.programs, daemon.base, requests, seconds or world.seconds,
                                           connections, weight), weight)


def warm(world, base, requests, connections=load.CONNECTIONS):
    """A second nobody counts: connections to the database, prepared statements, caches."""
    return lambda: load.wrk(world.programs, base, requests, 1, connections)


def plain(world):
    """The requests of 10 000 sessions in 1000 rooms."""
    return asks.write(world.dir, "renewals", asks.renewals(range(asks.SESSIONS)))


def rival(world, row, name, make, requests, promises):
    """A side that wrk loads in the same way, after a second nobody counts."""
    row.peer(name, make, lambda server: load.wrk(world.programs, server.base, requests, world.seconds), promises,
             lambda server: load.wrk(world.programs, server.base, requests, 1))


def heartbeats(world, row):
    database = world.database(asks.SESSIONS)
    requests = plain(world)
    for name, config in ((OURS, {}), (TRANSITIONS, {"decision_log": "transitions"})):
        daemon = database.daemon(**config)
        row.side(name, lambda d=daemon: beats(world, d, requests), DURABLE, warm(world, daemon.base, requests),
                 server=daemon)
    answer = database.client.put_json(database.daemons[0].base, asks.heartbeat(0), fresh=True)
    setex = asks.write(world.dir, "setex", asks.setex(range(asks.SESSIONS)))
    rival(world, row, REDIS, lambda: Webdis(world), setex, Webdis.promises)
    rival(world, row, "the same, appendfsync always", lambda: Webdis(world, durable=True), setex, Webdis.promises_kept)
    ids = range(1, world.scale(asks.SESSIONS, 1000) + 1)

    def etcd():
        world.programs.need("wrk")
        server = Etcd(world)
        server.grant(ids, asks.TTL_MS // 1000)
        return server
    rival(world, row, ETCD, etcd, asks.write(world.dir, "keepalives", asks.keepalives(ids)), Etcd.promises)
    rival(world, row, BARE, lambda: Bare(world, put=len(answer.body)), requests, Bare.promises)
    row.measure()
    world.measured["heartbeats"] = row[OURS].median()
    row.ratio(OURS, REDIS, at_least=1.0)
    row.ratio(OURS, ETCD, at_least=5.0)
    row.ratio(OURS, "the same, appendfsync always")
    row.ratio(TRANSITIONS, REDIS)
    row.ratio(OURS, BARE)
    dropped = sum(f["log_lines_dropped"] for f in row[OURS].figures)
    row.note("lines of the decision log that could not be kept: %d; bare libmicrohttpd parses the same requests and "
             "sends replies of the same size" % dropped)


def jwt(world, row):
    database = world.database(asks.SESSIONS)
    key = Key(world.dir, "bench")
    os.chmod(key.file, 0o644)
    plainly = plain(world)
    exp = int(time.time()) + 6 * 3600

    def bearing(i):
        token = key.token(sub=asks.user(i), sid=asks.session(i), rooms=["room-*"], scope="presence:write", exp=exp)
        return ["%s: %s" % item for item in bearer(token).items()]
    tokens = asks.write(world.dir, "tokens", asks.renewals(range(asks.SESSIONS), bearing))
    without, guarded = database.daemon(), database.daemon(auth="jwt", jwt_key_file=key.file)
    # That it does ask: a bench of a door that stands open would be worth nothing.
    refused = database.client.put_json(guarded.base, asks.heartbeat(0), fresh=True).status
    if refused != 401:
        raise Broken("a heartbeat without a token was answered %d" % refused)
    for name, daemon, requests in (("auth=jwt", guarded, tokens), ("auth=none", without, plainly)):
        row.side(name, lambda d=daemon, r=requests: beats(world, d, r), DURABLE, warm(world, daemon.base, requests),
                 server=daemon)
    row.measure()
    row.ratio("auth=jwt", "auth=none", at_least=0.85)
    row.note("HS256; each of %d sessions has a token of its own" % asks.SESSIONS)


def batches(world, row):
    database = world.database(asks.SESSIONS)
    statement = database.statement()
    groups = [random.sample(range(asks.SESSIONS), BATCH) for _ in range(1000)]
    requests = asks.write(world.dir, "batches", asks.batches(groups))
    daemon = database.daemon()
    row.side(OURS, lambda: beats(world, daemon, requests, BATCH, 16), DURABLE, warm(world, daemon.base, requests, 16),
             server=daemon)
    # pgbench takes 128 scripts; with so many of them in turn no two transactions in a row write the same rows.
    scripts = [filled(statement, group) for group in groups[:100]]
    names = []
    for clients in (1, 4):
        names.append("pgbench, %d at a time" % clients)
        row.peer(names[-1], lambda: world.programs.need("pgbench"), lambda _, c=clients: load.pgbench(
            world.programs, database.cluster, database.name, scripts, statement.settings, world.seconds, c, BATCH),
            "the same statement and the same commit, without HTTP, JSON and decisions")
    row.measure()
    # The ceiling is the better of the two: how many at a time is the daemon's choice. One that was not measured might
    # have been the better one.
    best = max(names, key=lambda n: float("inf") if row[n].fault else row[n].median())
    row.ratio(OURS, best, at_least=0.7)
    row.note("%d heartbeats a request, 16 connections; pgbench runs the statement that the daemon sends, with %d sets "
             "of parameters" % (BATCH, len(scripts)))


def parked(world, row):
    database = world.database(asks.SESSIONS)
    daemon = database.daemon()
    requests = plain(world)
    polls_n = world.scale(10000, 1000)
    epoch = daemon.epoch()
    polls = asks.write(world.dir, "polls", [asks.http("GET", asks.poll_path(r, n, epoch, 55000))
                                            for r, n in database.heads().items()])

    def waiting():
        return daemon.metric("stillhere_longpoll_waiting")

    def alone():
        load.until(lambda: waiting() == 0, 30, "the end of all waiting polls")
        return beats(world, daemon, requests)

    def beside():
        park = load.Park(daemon.base, polls, polls_n, polls)
        try:
            load.until(lambda: waiting() >= polls_n, 60, "%d waiting polls" % polls_n)
            figures = beats(world, daemon, requests)
            figures["polls"] = park.check()
            return figures
        finally:
            park.close()
    with_polls = "with %d waiting polls" % polls_n
    row.side(with_polls, beside, DURABLE, server=daemon)
    row.side("without", alone, DURABLE, warm(world, daemon.base, requests), server=daemon)
    row.measure()
    row.ratio(with_polls, "without", at_least=0.8)
    row.note("the polls wait in the same %d rooms; a renewal wakes none of them" % asks.ROOMS)


def sizes(database):
    """Bytes of the lease table and of its indexes."""
    table, indexes = database.sql("SELECT pg_relation_size('stillhere.lease'), pg_indexes_size('stillhere.lease')"
                                  ).split("|")
    return int(table), int(indexes)


def updates(database):
    time.sleep(1.5)  # backends report what they did once a second
    done, hot = database.sql("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = "
                             "'stillhere.lease'::regclass").split("|")
    return int(done), int(hot)


def soak(world, database, daemon, requests):
    """Heartbeats for minutes. @return how much of them was HOT, and how the table grew after the first fifth"""
    total, piece = (4, 2) if world.quick else (world.options.soak, 30)
    before, grew_from, end = updates(database), None, time.monotonic() + total
    while True:
        beats(world, daemon, requests, seconds=piece)
        if grew_from is None and time.monotonic() >= end - 0.8 * total:
            grew_from = sizes(database)
        if time.monotonic() >= end:
            break
    after, now = updates(database), sizes(database)
    written = after[0] - before[0]
    if written == 0:
        raise Broken("PostgreSQL counted no update")
    return {"value": 100.0 * (after[1] - before[1]) / written, "updates": written, "table_bytes": now[0],
            "index_bytes": now[1], "table_growth_percent": 100.0 * (now[0] - grew_from[0]) / grew_from[0],
            "index_growth_percent": 100.0 * (now[1] - grew_from[1]) / grew_from[1]}


def million(world, row):
    many, few = world.scale(1000000, 100000), asks.SESSIONS
    names = {many: "%d live leases" % many, few: "%d live leases" % few}
    # So many different requests that they do not all hit what is in the caches; no more, since wrk keeps them twice.
    different = min(many, 100000)
    sides = {}
    for n in (many, few):
        database = world.database(n)
        chosen = random.sample(range(n), different) if n >= different else [i % n for i in range(different)]
        requests = asks.write(world.dir, "of-%d" % n, asks.renewals(chosen))
        daemon = database.daemons[0]
        sides[n] = (database, daemon, requests)
        row.side(names[n], lambda d=daemon, r=requests: beats(world, d, r), DURABLE, warm(world, daemon.base, requests),
                 server=daemon)
    row.measure()
    row.ratio(names[many], names[few], at_least=0.75)
    long = row.side("the same for %d s, HOT" % (4 if world.quick else world.options.soak),
                    lambda: soak(world, *sides[many]), unit="%", server=sides[many][1])
    row.run_once(long)
    row.value(long.name, "HOT updates", "%", at_least=95)
    row.value(long.name, "growth of the table", "%", "table_growth_percent", at_most=5)
    row.value(long.name, "growth of its indexes", "%", "index_growth_percent", at_most=5)
    row.note("%d different sessions of each are renewed; growth is that after the first fifth of the time" % different)


def latency(world, row):
    database = world.database(asks.SESSIONS)
    statement = database.statement()
    daemon = database.daemon()
    requests = plain(world)
    warm(world, daemon.base, requests)()
    full = world.measured.get("heartbeats") or beats(world, daemon, requests)["value"]
    rate = max(1, int(full / 4))

    def ours():
        pace = load.Pace(daemon.base, requests, load.CONNECTIONS, rate, world.seconds)
        try:
            figures = daemon.counted(pace.finish)
        finally:
            pace.kill()
        figures["value"] = figures["p99_ms"]
        return figures

    def commit():
        figures = load.pgbench(world.programs, database.cluster, database.name, scripts, statement.settings,
                               world.seconds, 1, latencies=True)
        figures["value"] = figures["p99_ms"]
        return figures
    scripts = [filled(statement, [i]) for i in random.sample(range(asks.SESSIONS), 100)]
    row.side("stillhere, p99", ours, DURABLE, server=daemon)
    row.peer("pgbench, one row a commit, p99", lambda: world.programs.need("pgbench"), lambda _: commit(),
             "the same statement with one row, one client")
    row.measure()
    commits = "pgbench, one row a commit, p99"
    row.ratio("stillhere, p99", commits, at_most=3)
    row.ratio("stillhere, p99", commits, keys=("value", "p50_ms"), text="stillhere, p99 / the median of those commits")
    row.ratio("stillhere, p99", commits, keys=("value", "met_at_random_p99_ms"),
              text="stillhere, p99 / p99 for who comes at random while those commits follow each other")
    row.note("%d heartbeats/s, a quarter of what it takes, at random moments; each is timed from when it was due. Who "
             "comes at random waits for the commit that is under way, and a long one is met more often than a short one, "
             "and then for the own" % rate)
