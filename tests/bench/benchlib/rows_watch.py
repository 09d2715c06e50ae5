# SPDX-License-Identifier: Apache-2.0
"""Rows about those who watch. Each function measures one row of the table."""

import select
import socket
import time

from harness.client import take_reply

from . import Broken, asks, load, proc
from .peers import Bare, Nchan
from .rows_beat import BARE, OURS, rival

NCHAN = "nginx + nchan"
REPLAYED = "events by number from the database; a poll that comes back later misses none, on any instance"
WAIT_MS = 55000


def joined(database, daemon, room):
    """Takes a room into use with one session. @return (revision, epoch) of its head"""
    document = dict(asks.heartbeat(0), room_id=room)
    reply = database.client.put_json(daemon.base, document, fresh=True)
    if reply.status != 200:
        raise Broken("a heartbeat was refused: %r" % reply)
    snapshot = daemon.get("/rooms/%s/presence?view=count" % room)
    return snapshot["revision"], snapshot["epoch"]


def poll_file(world, room, revision, epoch, name="poll"):
    return asks.write(world.dir, name, [asks.http("GET", asks.poll_path(room, revision, epoch, WAIT_MS))])


def join_file(world, room, i, name="join"):
    """A session that is new in the room."""
    document = dict(asks.heartbeat(i), room_id=room)
    return asks.write(world.dir, name, [asks.http("PUT", "/leases", asks.packed(document))])


def publish_file(world, channel, length, name="publish"):
    return asks.write(world.dir, name, [asks.http("POST", "/pub?id=" + channel, b"x" * length)])


def subscribe_file(world, channel, name="subscribe"):
    return asks.write(world.dir, name, [asks.http("GET", "/sub?id=" + channel)])


# -- what waiting costs ------------------------------------------------------------------------------------------------


def cost(base, polls, trigger, n, seconds, pids, standing):
    """Parks n polls and does nothing. @return value: KiB of memory each; CPU in percent of a core, without and with"""
    def idle():
        before, began = proc.cpu_seconds(pids()), time.monotonic()
        time.sleep(seconds)
        return 100.0 * (proc.cpu_seconds(pids()) - before) / (time.monotonic() - began)
    empty_cpu, empty_kb = idle(), proc.resident_kb(pids())
    park = load.Park(base, polls, n, trigger)
    try:
        standing()
        time.sleep(1)
        full_cpu, full_kb = idle(), proc.resident_kb(pids())
        again = park.check()["again"]
    finally:
        park.close()
    return {"value": (full_kb - empty_kb) / n, "cpu_percent": full_cpu, "cpu_percent_without": empty_cpu,
            "cpu_percent_more": full_cpu - empty_cpu, "kb_without": empty_kb, "kb_with": full_kb,
            "polls_that_came_back": again}


def memory(world, row):
    n = world.scale(10000, 1000)
    seconds = max(world.seconds, 2)
    database = world.database()

    def ours():
        # A new process each time: what the last polls took is not given back.
        daemon = database.daemon()
        try:
            revision, epoch = joined(database, daemon, "waiting")
            return cost(daemon.base, poll_file(world, "waiting", revision, epoch), join_file(world, "waiting", 1), n,
                        seconds, lambda: [daemon.process.pid],
                        lambda: load.until(lambda: daemon.metric("stillhere_longpoll_waiting") >= n, 60,
                                           "%d waiting polls" % n))
        finally:
            daemon.end()

    def nchan(_):
        server = Nchan(world)
        try:
            return cost(server.base, subscribe_file(world, "waiting"), publish_file(world, "waiting", 1), n, seconds,
                        server.pids, lambda: time.sleep(1))
        finally:
            server.stop()
    row.side(OURS, ours, REPLAYED)
    row.peer(NCHAN, lambda: world.programs.need("nginx", "nchan"), nchan, Nchan.promises)
    row.measure()
    row.value(OURS, "memory of a waiting poll", "KB", at_most=6)
    row.value(OURS, "CPU for all of them, in percent of a core", "%", "cpu_percent_more", at_most=1)
    row.ratio(OURS, NCHAN)
    row.note("%d polls; memory is what the processes hold resident, without the kernel's sockets" % n)


# -- one event to all --------------------------------------------------------------------------------------------------


def event(world, row):
    n = world.scale(10000, 1000)
    database = world.database()
    daemon = database.daemon()
    turn = {"ours": 0, "nchan": 0}

    # What one watcher gets, to give nchan's the same size.
    revision, epoch = joined(database, daemon, "probe")
    database.client.put_json(daemon.base, dict(asks.heartbeat(1), room_id="probe"), fresh=True)
    length = len(database.client.get(daemon.base, asks.poll_path("probe", revision, epoch, 0), fresh=True).body)

    def ours():
        turn["ours"] += 1
        room = "event-%d" % turn["ours"]  # a quiet one: nothing is folded
        revision, epoch = joined(database, daemon, room)
        park = load.Park(daemon.base, poll_file(world, room, revision, epoch), n, join_file(world, room, 1))
        try:
            load.until(lambda: daemon.metric("stillhere_longpoll_waiting") >= n, 60, "%d waiting polls" % n)
            # What happened before they came is over: the room's window too.
            time.sleep(6)
            return park.fire()
        finally:
            park.close()

    def nchan(server):
        turn["nchan"] += 1
        channel = "event-%d" % turn["nchan"]
        park = load.Park(server.base, subscribe_file(world, channel), n, publish_file(world, channel, length))
        try:
            time.sleep(2)
            return park.fire()
        finally:
            park.close()
    row.side(OURS, ours, REPLAYED, server=daemon)
    row.peer(NCHAN, lambda: Nchan(world), nchan, Nchan.promises)
    row.measure()
    row.ratio(OURS, NCHAN, at_most=1)
    row.note("%d polls of one room; from the sending of the event, our commit to disk included, to the last reply; "
             "bodies of %d bytes" % (n, length))


# -- answers from memory -----------------------------------------------------------------------------------------------


def unchanged(world, row):
    database = world.database(asks.SESSIONS)
    daemon = database.daemon()
    epoch = daemon.epoch()
    heads = database.heads()
    requests = []
    for room, revision in heads.items():
        path = asks.poll_path(room, revision, epoch, 0)
        tag = database.client.get(daemon.base, path, fresh=True).headers.get("etag")
        match = "If-None-Match: %s" % tag
        reply = database.client.get(daemon.base, path, headers={"If-None-Match": str(tag)}, fresh=True)
        if reply.status != 304:
            raise Broken("a poll with %s was answered %d" % (match, reply.status))
        requests.append(asks.http("GET", path, headers=[match]))
    path = asks.write(world.dir, "unchanged", requests)

    def committed():
        return int(database.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"))

    def ours():
        time.sleep(1.5)  # backends report what they did before once a second
        queries, before = committed(), daemon.metric('stillhere_replies_total{mode="not_modified",reason=""}')
        figures = load.wrk(world.programs, daemon.base, path, world.seconds)
        said = daemon.metric('stillhere_replies_total{mode="not_modified",reason=""}') - before
        if said < figures["requests"] * 0.999:
            raise Broken("of %d answers only %d were 304" % (figures["requests"], said))
        figures["transactions"] = committed() - queries
        return figures
    row.side(OURS, ours, "the newest revision within a second, whoever wrote it",
             lambda: load.wrk(world.programs, daemon.base, path, 1), server=daemon)
    rival(world, row, BARE, lambda: Bare(world), path, Bare.promises)
    row.measure()
    row.ratio(OURS, BARE, at_least=0.7)
    if row[OURS].figures:
        row.note("database transactions during a run, the sweeper's included: %d" % row[OURS].median("transactions"))


def snapshot(world, row):
    users = 1000
    database = world.database()
    daemon = database.daemon()
    items = [dict(asks.heartbeat(i), room_id="full") for i in range(users)]
    results = database.client.batch(daemon.base, items).json()["results"]
    if any(r.get("decision") != "accepted" for r in results):
        raise Broken("a heartbeat was refused: %r" % results[:1])
    time.sleep(1)
    whole = database.client.get(daemon.base, "/rooms/full/presence", fresh=True)
    if whole["mode"] != "snapshot" or whole["counts"]["users"] != users:
        raise Broken("no snapshot of %d users: %r" % (users, whole))
    size = len(whole.body)
    path = asks.write(world.dir, "snapshot", [asks.http("GET", "/rooms/full/presence")])
    row.side(OURS, lambda: load.wrk(world.programs, daemon.base, path, world.seconds),
             "users, sessions and their revision, read together",
             lambda: load.wrk(world.programs, daemon.base, path, 1), server=daemon)
    rival(world, row, BARE, lambda: Bare(world, body=size), path, Bare.promises)
    row.measure()
    row.ratio(OURS, BARE, at_least=0.5)
    row.note("%d users, %d bytes, not compressed" % (users, size))


# -- from one instance to another --------------------------------------------------------------------------------------


class Line:
    """A connection that is read with as little ado as Python allows."""

    def __init__(self, daemon):
        self.socket = socket.create_connection(("127.0.0.1", daemon.port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = b""

    def take(self):
        """Reads what has come. @return the reply, once it is whole"""
        more = self.socket.recv(65536)
        if not more:
            raise Broken("the connection was closed")
        self.data += more
        cut = take_reply(self.data)
        if cut is None:
            return None
        self.data = cut[1]
        if cut[0].status != 200:
            raise Broken("%r" % cut[0])
        return cut[0]


def one_join(writer, watcher, room, i, epoch):
    """@return milliseconds from sending the join to its own answer, and to the watcher's"""
    watcher.socket.sendall(asks.http("GET", asks.poll_path(room, 0, epoch, 20000)))
    time.sleep(0.03)  # until it waits
    began = time.perf_counter()
    writer.socket.sendall(asks.http("PUT", "/leases", asks.packed(dict(asks.heartbeat(i), room_id=room))))
    took = {}
    while len(took) < 2:
        ready, _, _ = select.select([line.socket for line in (writer, watcher) if line not in took], [], [], 10)
        if not ready:
            raise Broken("the watcher heard nothing of a join within 10 s")
        for line in (writer, watcher):
            if line.socket in ready:
                reply = line.take()
                if reply is not None:
                    took[line] = (time.perf_counter() - began) * 1000
                    if line is watcher and not reply["events"]:
                        raise Broken("the watcher's reply has no event: %r" % reply)
    return took[writer], took[watcher]


def join(world, row):
    database = world.database()
    first, second = database.daemon(), database.daemon()
    epoch = first.epoch()
    n = 60 if world.quick else 500
    made = [0]

    def run():
        writer, watcher = Line(first), Line(second)
        pairs = []
        try:
            for _ in range(n):
                made[0] += 1
                pairs.append(one_join(writer, watcher, "join-%d" % made[0], made[0], epoch))
        finally:
            writer.socket.close()
            watcher.socket.close()
        own, heard = sorted(p[0] for p in pairs), sorted(p[1] for p in pairs)
        each = sorted(b / a for a, b in pairs)
        last = {"p50_ms": load.percentile(own, 0.5), "p99_ms": load.percentile(own, 0.99)}
        last["value"] = last["p50_ms"]
        commits.append(last)
        return {"value": load.percentile(heard, 0.99), "p50_ms": load.percentile(heard, 0.5), "max_ms": heard[-1],
                "each_by_its_own_p99": load.percentile(each, 0.99)}
    commits = []
    row.side("the watcher elsewhere, p99", run, REPLAYED, server=second)
    # The same requests: what the first side's run saw of the joins themselves.
    row.side("the join's own answer, median", lambda: commits[-1], "answered when it is committed")
    row.measure()
    row.value("the watcher elsewhere, p99", "p99 of each watcher's time by that of its own join's commit", "×",
              "each_by_its_own_p99", at_most=3)
    row.ratio("the watcher elsewhere, p99", "the join's own answer, median", keys=("value", "p99_ms"),
              text="the watcher elsewhere, p99 / the join's own answer, p99")
    row.ratio("the watcher elsewhere, p99", "the join's own answer, median")
    row.note("%d joins, one after the other, each in a room of its own; both times begin with the sending of the join" % n)
