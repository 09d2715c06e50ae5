# SPDX-License-Identifier: Apache-2.0
"""The database is not what it was: restored elsewhere, put back to an earlier state, or promoted. Whoever holds a cursor
from before learns it by the epoch, and no revision and no event id is ever given to something else within one epoch."""

import os
import shutil
import subprocess

from harness.case import SLOW, Case, presence_path, time
from harness.pg import Postgres, clean_environment
from harness.sse import Streams

TTL_MS = 600000


def copy_of(pg, to):
    """The data directory of a cluster that is stopped, with its owners."""
    subprocess.run(["cp", "-a", pg.data, to], check=True)


class Past(Case):
    """A room with a history, of which a part is undone."""

    autostart = False
    own_cluster = True
    weight = 8

    def setUp(self):
        super().setUp()
        self.allow_5xx, self.allow_log = True, [r"."]

    def tidy(self):
        pass

    def begin_history(self, base, room):
        for i in range(3):
            self.grant(room, "s%d" % i, 40, TTL_MS, user="u%d" % i, base=base)
        return self.ok(self.poll(base, room))

    def go_on(self, base, room):
        """What will be undone. @return the snapshot after it"""
        self.wait_until(lambda: self.hb(base, room, "u0", "s0", 50, TTL_MS).status == 200, 15, "a heartbeat")
        for i in range(3, 6):
            self.grant(room, "s%d" % i, 1, TTL_MS, user="u%d" % i, base=base)
        self.ok(self.client.close(base, room, "u1", "s1"))
        return self.ok(self.poll(base, room))

    def ids(self, room):
        return {e["event_id"]: e["revision"] for e in self.events(room)}

    def poll_when_there(self, base, room, since, **query):
        """A poll as a client does it: again after a 503."""
        deadline = time.monotonic() + 20 * SLOW
        while True:
            reply = self.poll(base, room, since, **query)
            if reply.status == 200 and reply["epoch"] != query.get("epoch"):
                return reply.json()
            self.assertIn(reply.status, (200, 503), reply)
            self.assertLess(time.monotonic(), deadline, "the old epoch goes on: %r" % reply)
            time.sleep(0.1)

    def told(self, base, room, early, late, used):
        """Every way to hold an old cursor; then a new history over the old one."""
        answer = self.poll_when_there(base, room, late["revision"], epoch=late["epoch"], wait_ms=0)
        self.assertEqual((answer["mode"], answer["reason"], answer["revision"]), ("snapshot", "epoch", early["revision"]))
        self.assertNotIn(answer["epoch"], (early["epoch"], late["epoch"]))
        for since in (0, early["revision"], late["revision"], late["revision"] + 7):
            again = self.ok(self.poll(base, room, since, epoch=late["epoch"], wait_ms=0))
            self.assertEqual((again["mode"], again["reason"], again["epoch"]), ("snapshot", "epoch", answer["epoch"]))
        without = self.ok(self.poll(base, room, late["revision"], wait_ms=0))
        self.assertEqual((without["mode"], without["reason"]), ("snapshot", "ahead"))
        tag = '"%s:%d"' % (late["epoch"], late["revision"])
        self.ok(self.poll(base, room, headers={"If-None-Match": self.tag or tag}))
        with Streams(base, [presence_path(room, epoch=late["epoch"])],
                     headers="Last-Event-ID: %d\r\n" % late["revision"]) as streams:
            self.assertTrue(streams.collect(lambda: streams[0].messages, 5))
            self.assertEqual(streams[0].messages[0].event, "snapshot")
            self.assertEqual(streams[0].messages[0].json()["revision"], early["revision"])
        # A client at revision 50 goes on, though the row says 40.
        self.assertEqual(self.grant(room, "s0", 51, TTL_MS, user="u0", base=base)["lease"]["revision"], 51)
        for i in range(10, 16):
            self.grant(room, "s%d" % i, 1, TTL_MS, user="u%d" % i, base=base)
        now = self.ids(room)
        self.assertGreater(max(now.values()), late["revision"])
        self.assertEqual(sorted(now.values()), list(range(1, len(now) + 1)))
        reused = {i: r for i, r in now.items() if i in used and used[i] > early["revision"]}
        self.assertEqual(reused, {}, "an event id stands for two events")
        self.assertEqual({i for i, r in now.items() if r > early["revision"] and not i.startswith(answer["epoch"] + ":")},
                         set())
        self.folded(base, room, answer)

    def folded(self, base, room, snapshot):
        """Who goes on from the snapshot has what the database has."""
        here = {(u["user_id"], s["session_id"]) for u in snapshot["users"] for s in u["sessions"]}
        rest = self.ok(self.poll(base, room, snapshot["revision"], epoch=snapshot["epoch"], wait_ms=0))
        self.assertEqual(rest["mode"], "events")
        for event in rest["events"]:
            if event["kind"] == "lease.granted":
                here.add((event["user_id"], event["session_id"]))
            elif event["kind"] in ("session.closed", "lease.expired"):
                here.discard((event["user_id"], event["session_id"]))
        stored = {tuple(line.split("|")) for line in
                  self.q("SELECT user_id, session_id FROM stillhere.lease WHERE room_id = '%s'" % room).splitlines()}
        self.assertEqual(here, stored)


class PutBack(Past):
    """The data directory is replaced by an older copy of itself: system, timeline and oids are the same."""

    def put_back(self, restart):
        room, d = self.room(), self.start_daemon()
        early = self.begin_history(d.base, room)
        old = self.pg.data + ".old"
        shutil.rmtree(old, ignore_errors=True)
        self.forget_query()
        self.pg.stop()
        copy_of(self.pg, old)
        self.pg.start()
        late = self.go_on(d.base, room)
        self.assertEqual(late["epoch"], early["epoch"], "a restart of the server is no new past")
        self.tag = self.poll(d.base, room).headers["etag"]
        used = self.ids(room)
        waiting = self.parked(d.base, room, late["revision"], epoch=late["epoch"], wait_ms=50000)
        self.forget_query()
        if restart:
            self.stop_now(d)
        self.pg.stop("immediate")
        shutil.rmtree(self.pg.data)
        os.rename(old, self.pg.data)
        self.pg.start()
        if restart:
            d = self.start_daemon()
        answer = self.answer(waiting, 20)
        self.assertIn(answer.status, (200, 503))
        if not restart:
            self.assertEqual((answer["mode"], answer["reason"]), ("snapshot", "epoch"))
        self.told(d.base, room, early, late, used)
        self.stop_now(d)

    def test_under_a_daemon_that_goes_on(self):
        self.put_back(False)

    def test_before_the_daemon_starts(self):
        self.put_back(True)


class Promoted(Past):
    """A standby that lagged is promoted; the daemon finds it at the address of the old one."""

    def test_a_lagging_standby(self):
        room, d = self.room(), self.start_daemon()
        early = self.begin_history(d.base, room)
        standby = os.path.join(self.pg.socket, "standby")  # a place that the server may write to
        self.pg._as_server([self.pg.program("pg_basebackup"), "-h", self.pg.socket, "-p", "5432", "-U", "postgres", "-D",
                            standby, "-X", "stream", "--checkpoint=fast"])
        late = self.go_on(d.base, room)  # of which the standby has nothing
        self.tag = self.poll(d.base, room).headers["etag"]
        used = self.ids(room)
        waiting = self.parked(d.base, room, late["revision"], epoch=late["epoch"], wait_ms=50000)
        self.forget_query()
        self.pg.stop("immediate")
        first, self.pg.data = self.pg.data, standby
        try:
            open(os.path.join(standby, "standby.signal"), "w").close()
            subprocess.run(["chown", "--reference=" + os.path.join(standby, "PG_VERSION"),
                            os.path.join(standby, "standby.signal")], check=True)
            self.pg.start()
            self.wait_until(lambda: self.hb(d.base, room, "u0", "s0", 60, TTL_MS).status == 503, 10,
                            "a refusal while it is a standby")
            self.pg._as_server([self.pg.program("pg_ctl"), "-D", standby, "-w", "-s", "promote"])
            answer = self.answer(waiting, 20)
            self.assertEqual((answer.status, answer["mode"], answer["reason"]), (200, "snapshot", "epoch"))
            self.told(d.base, room, early, late, used)
            self.stop_now(d)
        finally:
            self.forget_query()
            self.pg.stop("immediate")
            self.pg.data = first
            self.pg.start()


class Elsewhere(Past):
    """A dump, and a copy of the files, in another cluster."""

    def test_a_dump_in_another_cluster(self):
        room, d = self.room(), self.start_daemon()
        early = self.begin_history(d.base, room)
        dump = subprocess.run([self.pg.program("pg_dump"), "-h", self.pg.socket, "-p", "5432", "-U", "postgres",
                               self.database], env=clean_environment(), stdout=subprocess.PIPE, check=True)
        late = self.go_on(d.base, room)
        self.tag = self.poll(d.base, room).headers["etag"]
        used = self.ids(room)
        self.stop_now(d)
        other, mine = Postgres(self.directory, fsync=True), self.pg
        self.forget_query()
        try:
            other.start()
            other.create_database(self.database)
            subprocess.run(other.psql_args(self.database) + ["-v", "ON_ERROR_STOP=1"], env=clean_environment(),
                           input=dump.stdout, stdout=subprocess.DEVNULL, check=True)
            type(self).pg = other
            d = self.start_daemon()
            self.told(d.base, room, early, late, used)
            self.stop_now(d)
        finally:
            self.forget_query()
            type(self).pg = mine
            other.remove()
