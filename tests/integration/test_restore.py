# SPDX-License-Identifier: Apache-2.0
"""The database is not what it was: restored elsewhere, put back to an earlier state, or promoted. Whoever holds a cursor
from before learns it by the epoch, and no revision and no event id is ever given to something else within one epoch."""

import os
import shutil
import subprocess

from harness.case import SLOW, Case, presence_path, time
from harness.pg import Postgres, clean_environment
from harness.sse import Streams
from harness.standby import Standby

TTL_MS = 600000

#: Takes away what sql/roles.sql gives.
NO_LOOK = "REVOKE EXECUTE ON FUNCTION pg_catalog.pg_stat_file(text) FROM stillhere_app"


def copy_of(pg, to):
    """The data directory of a cluster that is stopped, with its owners."""
    subprocess.run(["cp", "-a", pg.data, to], check=True)


def base_backup(pg, to):
    """One of a cluster that runs, in a place that the server may write to."""
    pg._as_server([pg.program("pg_basebackup"), "-h", pg.socket, "-p", "5432", "-U", "postgres", "-D", to, "-X", "stream",
                   "--checkpoint=fast"])


def signal_file(data, name):
    """What tells a server that starts on a data directory what it is to be."""
    path = os.path.join(data, name)
    open(path, "w").close()
    subprocess.run(["chown", "--reference=" + os.path.join(data, "PG_VERSION"), path], check=True)


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


class Copied(Past):
    """The data directory is replaced by an older copy of itself: system, timeline and oids are the same."""

    def cold_copy(self, to):
        self.forget_query()
        self.pg.stop()
        copy_of(self.pg, to)
        self.pg.start()

    def put_back(self, restart=False, copy=None, word=None):
        room, d = self.room(), self.start_daemon()
        early = self.begin_history(d.base, room)
        old = os.path.join(self.pg.socket, "old")  # a place that the server may write to
        (copy or self.cold_copy)(old)
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
        if word:
            self.q("UPDATE stillhere.incarnation SET word = '%s'" % word)
        if restart:
            d = self.start_daemon()
        answer = self.answer(waiting, 20)
        self.assertIn(answer.status, (200, 503))
        if not restart and answer.status == 200:
            self.assertEqual((answer["mode"], answer["reason"]), ("snapshot", "epoch"))
        self.told(d.base, room, early, late, used)
        self.stop_now(d)


class PutBack(Copied):
    """The role may see that the files are others."""

    runtime_role = True

    def test_under_a_daemon_that_goes_on(self):
        self.put_back()

    def test_before_the_daemon_starts(self):
        self.put_back(restart=True)


class PutBackUnseen(Copied):
    """The role may not look at the files; or they look the same, as on a volume that was set back."""

    runtime_role = True
    config = {"last_seen_flush_ms": 24 * 3600 * 1000}  # the flush, at any time within it, brings a connection of its own

    @classmethod
    def begin(cls):
        super().begin()
        cls.pg.psql(cls.database, NO_LOOK)

    def warm_copy(self, to):
        """Of a server that runs, with what recovers it; its connections stand, and all that will be needed are there:
        a new one would see by itself how long the log has become."""
        self.wait_until(self.readers_connect, 30, "all readers")
        base_backup(self.pg, to)
        self.copied_at = self.q("SELECT clock_timestamp()")

    def readers_connect(self):
        """Holds up what reads for as long as a read may take, so that each has a reader of its own."""
        connected = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stillhered reader'"
        lock = self.psql()
        lock.run("BEGIN")
        lock.run("LOCK TABLE stillhere.event IN ACCESS EXCLUSIVE MODE")
        reads = [self.background(self.poll, self.daemons[-1].base, self.room("other"), fresh=True) for _ in range(8)]
        end = time.monotonic() + 2.5
        while int(self.q(connected)) < 4 and time.monotonic() < end:
            time.sleep(0.05)
        lock.run("COMMIT")
        for read in reads:
            read.result(20 * SLOW)
        return int(self.q(connected)) >= 4

    def go_on(self, base, room):
        late = super().go_on(base, room)
        self.pause(2.5 * SLOW)  # once a second the daemon looks how long the log has become
        if hasattr(self, "copied_at"):
            self.assertEqual(self.q("SELECT string_agg(application_name, ', ') FROM pg_stat_activity WHERE application_name "
                                    "LIKE 'stillhered%%' AND backend_start > '%s'" % self.copied_at), "",
                             "other connections than those of before")
        return late

    def test_under_a_daemon_that_was_connected_all_the_time(self):
        self.put_back(copy=self.warm_copy)

    def test_by_whoever_restores(self):
        self.put_back(restart=True, word="restored")


class Promoted(Past):
    """A standby that lagged is promoted; the daemon finds it at the address of the old one."""

    def test_a_lagging_standby(self):
        room, d = self.room(), self.start_daemon()
        early = self.begin_history(d.base, room)
        standby = os.path.join(self.pg.socket, "standby")  # a place that the server may write to
        base_backup(self.pg, standby)
        late = self.go_on(d.base, room)  # of which the standby has nothing
        self.tag = self.poll(d.base, room).headers["etag"]
        used = self.ids(room)
        waiting = self.parked(d.base, room, late["revision"], epoch=late["epoch"], wait_ms=50000)
        self.forget_query()
        self.pg.stop("immediate")
        first, self.pg.data = self.pg.data, standby
        try:
            signal_file(standby, "standby.signal")
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


class PointInTime(Past):
    """A base backup and the archive of the log, up to a moment. The role may not look at the files: that the timeline
    is another one is enough."""

    runtime_role = True

    @classmethod
    def begin(cls):
        super().begin()
        cls.pg.psql(cls.database, NO_LOOK)

    def archive_on(self):
        archive = os.path.join(self.pg.socket, "archive")
        os.mkdir(archive)
        os.chmod(archive, 0o777)
        for setting in ("archive_mode = on", "archive_command = 'cp %%p %s/%%f'" % archive):
            self.pg.psql("postgres", "ALTER SYSTEM SET " + setting)
        self.forget_query()
        self.pg.stop()
        self.pg.start()
        return archive

    def archived(self, name):
        """Waits until a segment and all before it are in the archive."""
        self.wait_until(lambda: self.q("SELECT coalesce(last_archived_wal, '') >= '%s' FROM pg_stat_archiver" % name) == "t",
                        30, "the archive")

    def test_recovered_to_a_moment(self):
        archive, room = self.archive_on(), self.room()
        base = os.path.join(self.pg.socket, "base")
        base_backup(self.pg, base)
        d = self.start_daemon()
        early = self.begin_history(d.base, room)
        moment = self.q("SELECT clock_timestamp()")
        self.pause(0.1)
        late = self.go_on(d.base, room)
        self.tag = self.poll(d.base, room).headers["etag"]
        used = self.ids(room)
        waiting = self.parked(d.base, room, late["revision"], epoch=late["epoch"], wait_ms=50000)
        self.archived(self.q("SELECT pg_walfile_name(pg_switch_wal())"))
        self.forget_query()
        self.pg.stop("immediate")
        shutil.rmtree(self.pg.data)
        os.rename(base, self.pg.data)
        with open(os.path.join(self.pg.data, "postgresql.conf"), "a") as conf:
            conf.write("restore_command = 'cp %s/%%f %%p'\nrecovery_target_time = '%s'\n"
                       "recovery_target_action = 'promote'\n" % (archive, moment))
        signal_file(self.pg.data, "recovery.signal")
        self.pg.start()
        answer = self.answer(waiting, 30)
        self.assertEqual((answer.status, answer["mode"], answer["reason"]), (200, "snapshot", "epoch"))
        self.told(d.base, room, early, late, used)
        self.stop_now(d)


class Apart(Past):
    """Copies of a cluster that live on at the same time, each by itself."""

    runtime_role = True

    def test_three_of_them(self):
        room, first = self.room(), self.start_daemon()
        early = self.begin_history(first.base, room)
        # Both begin the same timeline, each its own.
        copies = [Standby(self.pg, self.directory, name).start() for name in ("second", "third")]
        try:
            for pg in copies:
                pg.promote()
            ids, epochs = [], []
            for pg in [self.pg] + copies:
                d = first if pg is self.pg else self.start_daemon(database_url=pg.url(self.database, "stillhere_app"))
                for i in range(3):
                    self.grant(room, "n%d" % i, 1, TTL_MS, base=d.base)
                told = self.ok(self.poll(d.base, room))
                self.assertEqual(told["revision"], early["revision"] + 4)
                epochs.append(told["epoch"])
                ids.append(set(pg.psql(self.database, "SELECT event_id FROM stillhere.event WHERE room_id = '%s' AND "
                                       "revision > %d" % (room, early["revision"])).split()))
                if pg is not self.pg:
                    old = self.ok(self.poll(d.base, room, early["revision"], epoch=early["epoch"], wait_ms=0))
                    self.assertEqual((old["mode"], old["reason"]), ("snapshot", "epoch"))
                    self.stop_now(d)
            self.assertEqual(epochs[0], early["epoch"])
            self.assertEqual(len(set(epochs)), 3, epochs)
            self.assertEqual([len(i) for i in ids], [4, 4, 4])
            self.assertEqual(len(set.union(*ids)), 12, "an event id stands for two events")
            self.stop_now(first)
        finally:
            for pg in copies:
                pg.remove()


class Elsewhere(Past):
    """A dump in another cluster, which has none of the roles."""

    runtime_role = False

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
