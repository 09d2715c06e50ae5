# SPDX-License-Identifier: Apache-2.0
"""The crash: PostgreSQL is stopped at once in the middle of the load, and every heartbeat that was answered with 200
must be in the database afterwards."""

import selectors
import socket
import threading
import time

from harness.client import take_reply

from . import Broken, asks
from .ours import Cluster

CONNECTIONS = 32
#: Sessions of each connection, renewed in turn, each with a revision of its own that grows.
EACH = 20
BATCH = 10


class Writer:
    """One connection that renews its sessions in turn, alone and in batches, and remembers what was promised."""

    def __init__(self, port, number, acknowledged):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sessions = range(number * EACH, (number + 1) * EACH)
        self.sent = dict.fromkeys(self.sessions, 0)
        self.acknowledged = acknowledged
        self.turn, self.asked, self.data, self.answers = 0, [], b"", 0

    def send(self):
        count = BATCH if self.turn % 3 == 2 else 1
        self.asked = []
        for _ in range(count):
            i = self.sessions[self.turn % EACH]
            self.turn += 1
            self.sent[i] += 1
            self.asked.append((i, self.sent[i]))
        items = [dict(asks.heartbeat(i), revision=revision) for i, revision in self.asked]
        self.socket.sendall(asks.http("PUT", "/leases", asks.packed({"leases": items} if count > 1 else items[0])))

    def take(self):
        """Reads, and sends the next when the answer is whole. @return whether it goes on: not after an answer that is
        no promise"""
        more = self.socket.recv(65536)
        self.data += more
        cut = take_reply(self.data)
        if cut is None:
            return bool(more)
        self.data = b""
        if cut[0].status != 200:
            return False
        document = cut[0].json()
        for (i, revision), result in zip(self.asked, document.get("results", [document])):
            if result.get("decision") == "accepted":
                if result["lease"]["revision"] != revision:
                    raise Broken("revision %d was acknowledged as %r" % (revision, result))
                self.acknowledged[i] = revision
                self.answers += 1
        self.send()
        return True


def load(port, crash, after_s):
    """Writes until every connection has got an answer that is none. @return (acknowledged revisions, sent ones)"""
    acknowledged = {}
    writers = [Writer(port, n, acknowledged) for n in range(CONNECTIONS)]
    selector = selectors.DefaultSelector()
    crasher = threading.Timer(after_s, crash)
    try:
        for writer in writers:
            selector.register(writer.socket, selectors.EVENT_READ, writer)
            writer.send()
        crasher.start()
        deadline = time.monotonic() + after_s + 30
        while selector.get_map():
            if time.monotonic() > deadline:
                raise Broken("the load went on for 30 s after the crash")
            for key, _ in selector.select(0.5):
                try:
                    if key.data.take():
                        continue
                except (ConnectionError, socket.timeout):
                    pass
                selector.unregister(key.fileobj)
    finally:
        crasher.cancel()
        if crasher.ident:
            crasher.join()
        selector.close()
        for writer in writers:
            writer.socket.close()
    sent = {i: revision for w in writers for i, revision in w.sent.items() if revision}
    return acknowledged, sent, sum(w.answers for w in writers)


def lost(acknowledged, sent, stored):
    """What a database that keeps promises could not say. @return a list of texts"""
    faults = ["session %d: %d was acknowledged, %s is stored" % (i, revision, stored.get(i, "nothing"))
              for i, revision in sorted(acknowledged.items()) if stored.get(i, 0) < revision]
    faults += ["session %d: %d is stored, only %d was sent" % (i, revision, sent.get(i, 0))
               for i, revision in sorted(stored.items()) if revision > sent.get(i, 0)]
    return faults


def crash(world, row):
    cluster = Cluster(world, "postgresql of the crash")
    world.own(cluster, cluster.remove)
    cluster.start()
    runs = 1 if world.quick else world.runs

    def run():
        turn[0] += 1
        database = cluster.database("crash_%d" % turn[0])
        daemon = database.daemon()
        stopped = []

        def stop():
            cluster.stop("immediate")
            stopped.append(True)
        try:
            acknowledged, sent, answers = load(daemon.port, stop, 1 if world.quick else 5)
        finally:
            daemon.kill()
            if not cluster.running():
                cluster.start()
        if not stopped:
            raise Broken("PostgreSQL was not stopped in the middle: the load had ended before")
        stored = {int(s.rpartition("-")[2]): int(r) for s, r in
                  (line.split("|") for line in
                   database.sql("SELECT session_id, revision FROM stillhere.lease").splitlines())}
        faults = lost(acknowledged, sent, stored)
        cluster.drop_database(database.name)
        in_doubt = sum(stored.get(i, 0) > acknowledged.get(i, 0) for i in sent)
        return {"value": len(faults), "acknowledged": answers, "sessions": len(acknowledged),
                "stored_but_not_answered": in_doubt, "faults": faults[:10]}
    turn = [0]
    row.side("missing after the crash", run, "an accepted answer means committed")
    row.measure(runs)
    row.value("missing after the crash", "acknowledged revisions that are missing", "", at_most=0)
    row.value("missing after the crash", "acknowledged before it", "heartbeats", "acknowledged", at_least=1000)
    if row.sides[0].figures:
        row.note("pg_ctl stop -m immediate under %d connections, alone and in batches of %d; stored, though the answer "
                 "did not get out: %d" % (CONNECTIONS, BATCH, row.sides[0].median("stored_but_not_answered")))
