# SPDX-License-Identifier: Apache-2.0
"""The database's machine dies under load and a synchronous standby takes its place: nothing that was acknowledged is
lost, nobody expires because of it, watchers go on from a snapshot, and the old one is not written to any more."""

import sys
import urllib.parse

from harness import LONG, roles
from harness.case import SLOW, Case, json, quote, threading, time
from harness.standby import Standby, kill_cluster

TTL_MS = 5000
#: For how long there is no database: longer than a lease, so that only the credit keeps anybody.
AWAY = 20 if LONG else 5
RENEWERS = 40 if LONG else 10
BEFORE = 20 if LONG else 2


class Load:
    """Clients that renew and come and go, as clients do it: the same thing again until it is answered."""

    def __init__(self, case, room):
        self.case, self.room, self.stopping = case, room, False
        self.lock = threading.Lock()
        self.acknowledged = {}  # session: the highest revision with a 200
        self.stays, self.closed = set(), set()  # of those who come and go: acknowledged grants, acknowledged ends
        self.wrong, self.times = [], []  # times: when anything was acknowledged
        self.clients = [case.background(self._renew, i) for i in range(RENEWERS)]
        self.clients += [case.background(self._come_and_go, i) for i in range(2)]

    def _ask(self, i, call):
        """Tries until there is an answer. @return it, or None at the end"""
        turn = i
        while not self.stopping:
            try:
                reply = call(self.case.daemons[turn % len(self.case.daemons)].base)
            except OSError:
                reply = None
            if reply is not None and reply.status == 200:
                with self.lock:
                    self.times.append(time.monotonic())
                return reply
            if reply is not None and reply.status != 503:
                self.wrong.append(reply)
                return None
            turn += 1
            time.sleep(0.2)
        return None

    def _renew(self, i):
        session, revision = "r%d" % i, 0
        while not self.stopping:
            revision += 1
            reply = self._ask(i, lambda base: self.case.hb(base, self.room, "u-" + session, session, revision, TTL_MS))
            if reply is None:
                continue
            if revision > 1 and reply["granted"]:
                self.wrong.append(("expired meanwhile", session, reply))
            self.acknowledged[session] = revision
            time.sleep(0.1)

    def _come_and_go(self, i):
        n = 0
        while not self.stopping:
            n += 1
            session = "c%d-%d" % (i, n)
            if self._ask(i, lambda base: self.case.hb(base, self.room, "v%d" % i, session, 1, 600000)):
                self.stays.add(session)
                if n % 3 and self._ask(i, lambda base: self.case.client.close(base, self.room, "v%d" % i, session)):
                    self.closed.add(session)
            time.sleep(0.05)

    def stop(self):
        self.stopping = True
        for client in self.clients:
            client.result(30 * SLOW)

    def longest_silence(self):
        times = sorted(self.times)
        return max((b - a for a, b in zip(times, times[1:])), default=0.0)


class Reader:
    """Folds a room at one instance: snapshots and events."""

    def __init__(self, case, base, room):
        self.case, self.base, self.room, self.stopping = case, base, room, False
        self.here, self.revision, self.epoch = set(), None, None
        self.reasons, self.seen, self.wrong = [], {}, []
        self.future = case.background(self._run)

    def _run(self):
        while not self.stopping:
            try:
                query = {} if self.epoch is None else {"epoch": self.epoch, "wait_ms": 1000}
                reply = self.case.poll(self.base, self.room, self.revision, **query)
            except OSError:
                reply = None
            if reply is None or reply.status == 503:
                time.sleep(0.1)
            elif reply.status != 200:
                self.wrong.append(reply)
            else:
                self._apply(reply.json())

    def _apply(self, answer):
        if answer["mode"] == "snapshot":
            self.reasons.append(answer["reason"])
            self.here = {s["session_id"] for u in answer["users"] for s in u["sessions"]}
        elif answer["epoch"] != self.epoch or answer["from"] != self.revision:
            self.wrong.append(answer)
        for event in answer.get("events", []):
            if event["revision"] != self.revision + 1:
                self.wrong.append(("a gap after %d" % self.revision, event))
            self.revision = event["revision"]
            self.seen[event["event_id"]] = (event["revision"], event["kind"], event.get("session_id"))
            if event["kind"] == "lease.granted":
                self.here.add(event["session_id"])
            elif event["kind"] in ("session.closed", "lease.expired"):
                self.here.discard(event["session_id"])
        self.revision, self.epoch = answer["revision"], answer["epoch"]

    def stop(self):
        self.stopping = True
        self.future.result(30 * SLOW)


class Pair(Case):
    """A primary with a synchronous standby, and two instances that know both addresses."""

    own_cluster = True
    autostart = False
    instances = 2
    weight = 6
    config = {"offline_grace_ms": 1000, "ttl_min_ms": 1000}

    def setUp(self):
        super().setUp()
        cls = type(self)
        self.allow_5xx, cls.allowed_log = True, [r"a promotion has left it behind"]
        self.first = self.pg
        self.second = Standby(self.first, self.directory).follow(self.first)
        self.addCleanup(self.put_back)
        user = roles.RUNTIME if cls.runtime_role else "postgres"
        self.url = "postgresql:///%s?host=%s,%s&port=5432,5432&user=%s&target_session_attrs=read-write" % (
            self.database, urllib.parse.quote(self.first.socket), urllib.parse.quote(self.second.socket), user)
        for _ in range(self.instances):
            self.start_daemon(database_url=self.url)

    def put_back(self):
        self.put_cluster(self.first)
        self.second.remove()

    def put_cluster(self, pg):
        """What is asked from now on is asked there."""
        self.forget_query()
        type(self).pg = pg

    def tidy(self):
        pass

    def until_both_serve(self, room):
        for base in self.bases:
            self.wait_until(lambda: self.hb(base, room, "w", "w", None, 60000).status == 200, 20, "a heartbeat")
            self.wait_until(lambda: self.client.get(base, "/readyz").status == 200, 20, "readiness")


class Failover(Pair):
    """The first one dies."""

    def test_nothing_acknowledged_is_lost(self):
        room, side = self.room(), self.room("side")
        load = Load(self, room)
        readers = [Reader(self, base, room) for base in self.bases]
        self.wait_until(lambda: len(load.acknowledged) == RENEWERS and all(r.seen for r in readers), 20, "the load")
        self.pause(BEFORE)
        epoch = readers[0].epoch
        if not LONG:  # the link is cut before: then nothing is acknowledged, or it would be lost
            self.second.stop("immediate")
            self.pause(1)
        kill_cluster(self.first)
        died = time.monotonic()
        known = dict(load.acknowledged)
        if not LONG:
            self.second.start()
        self.pause(AWAY)
        self.second.promote()
        promoted = time.monotonic()
        self.put_cluster(self.second)
        self.wait_until(lambda: load.times and max(load.times) > promoted, 10, "a heartbeat after the promotion")
        recovered = min(t for t in load.times if t > promoted) - promoted
        self.until_both_serve(side)
        self.wait_until(lambda: all(load.acknowledged[s] > known[s] + 1 for s in known), 20, "everybody's renewals")
        self.old_one_comes_back(load, side)  # which takes so long that whoever was going to expire has
        load.stop()
        self.wait_until(lambda: all(r.revision == self.head(room) for r in readers), 20, "the readers at the head")
        for reader in readers:
            reader.stop()
        self.compare(room, load, readers, epoch)
        sys.stderr.write("# %d acknowledged; promoted %.1f s after the crash, the next heartbeat %.2f s later; longest silence "
                         "%.1f s\n" % (len(load.times), promoted - died, recovered, load.longest_silence()))
        self.back_on_purpose(room, epoch)
        for d in list(self.daemons):
            self.stop_now(d)

    def compare(self, room, load, readers, epoch):
        self.assertEqual(load.wrong[:5], [])
        stored = {line.split("|")[0]: int(line.split("|")[1]) for line in
                  self.q("SELECT session_id, revision FROM stillhere.lease WHERE room_id = '%s'" % room).splitlines()}
        ended = {line.split("|")[0]: line.split("|")[1] for line in
                 self.q("SELECT session_id, reason FROM stillhere.tombstone WHERE room_id = '%s'" % room).splitlines()}
        lost = {s: (r, stored.get(s)) for s, r in load.acknowledged.items() if stored.get(s, 0) < r}
        self.assertEqual(lost, {}, "acknowledged and not there")
        self.assertEqual({s for s in load.stays if s not in stored and s not in ended}, set(), "stays that were granted")
        self.assertEqual({s for s in load.closed if ended.get(s) != "closed" or s in stored}, set(), "ends that were")
        events = self.events(room)
        self.assertEqual([e["revision"] for e in events], list(range(1, len(events) + 1)))
        self.assertEqual([e for e in events if e["kind"] == "lease.expired"], [], "expired because of us")
        self.assertEqual([e["user_id"] for e in events if e["kind"] == "user.offline" and e["user_id"][0] == "u"], [])
        written = {e["event_id"]: (e["revision"], e["kind"], e.get("session_id")) for e in events}
        for reader in readers:
            self.assertEqual(reader.wrong[:3], [])
            self.assertEqual(reader.reasons, ["requested", "epoch"])
            self.assertNotEqual(reader.epoch, epoch)
            gone = {i: e for i, e in reader.seen.items() if written.get(i) != e}
            self.assertEqual(gone, {}, "told to a watcher and not there")
            self.assertEqual(reader.here, set(stored))

    def content(self, pg):
        """What a server has, in a form that any write changes."""
        return pg.psql(self.database, "SELECT (SELECT md5(string_agg(l::text, ',' ORDER BY l::text)) FROM stillhere.lease l),"
                       " (SELECT count(*) FROM stillhere.event), (SELECT alive_at FROM stillhere.pulse)")

    def old_one_comes_back(self, load, side):
        """Started as it was left, first in the list of addresses: for libpq it is as good as the other. Also read-only."""
        for more in ("synchronous_standby_names = ''", "default_transaction_read_only = on")[:2 if LONG else 1]:
            with open(self.first.data + "/postgresql.auto.conf", "a") as conf:
                conf.write(more + "\n")
            self.first.start()
            try:
                left = self.content(self.first)
                # Every connection is made anew.
                self.second.psql("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                                 " WHERE application_name LIKE 'stillhered%'")
                began = time.monotonic()
                self.until_both_serve(side)
                self.wait_until(lambda: max(load.times) > began + TTL_MS / 2000 + 0.5, 20, "the load goes on")
                self.assertEqual(self.content(self.first), left, "written to the old one")
            finally:
                self.first.stop("immediate")

    def back_on_purpose(self, room, epoch):
        """Whoever wants the old one, or a copy of before the promotion, restarts the daemons: until then they refuse it."""
        self.second.stop("immediate")
        with open(self.first.data + "/postgresql.auto.conf", "a") as conf:
            conf.write("default_transaction_read_only = off\n")
        self.first.start()
        self.put_cluster(self.first)
        left = self.content(self.first)
        asked = [self.background(self.hb, base, room, "w", "w", None, 60000, fresh=True) for base in self.bases]
        self.assertEqual([reply.result(20 * SLOW).status for reply in asked], [503, 503])  # after seconds of trying
        self.assertTrue(all("left it behind" in d.text() for d in self.daemons), "the log says why")
        self.assertEqual(self.content(self.first), left, "written to before anybody said so")
        self.stop_now(self.daemons[0])
        again = self.start_daemon(database_url=self.url)
        self.grant(room, "back", base=again.base)
        self.assertEqual(self.ok(self.poll(again.base, room))["epoch"], epoch)


class Cancelled(Pair):
    """The second one is away, and commits wait for it."""

    def writes(self, room):
        """Everything that is answered because it was committed, as calls that may be made again."""
        member = "/rooms/%s/members/" % quote(room)
        first, second = self.bases
        said = json.dumps({"user_id": "u", "action": "sign_in"})
        key = {"Idempotency-Key": "k-" + room, "Content-Type": "application/json"}
        return {
            "a heartbeat": lambda: self.hb(first, room, "u", "s", 2, 600000, fresh=True),
            "a close": lambda: self.client.close(second, room, "u", "gone", fresh=True),
            "a grant": lambda: self.client.request(first, "PUT", member + "in", '{"role":"x"}', fresh=True,
                                                   headers={"Content-Type": "application/json"}),
            "a revocation": lambda: self.client.request(first, "DELETE", member + "out", fresh=True),
            "attendance": lambda: self.client.request(second, "POST", "/rooms/%s/attendance" % quote(room), said, key,
                                                      fresh=True),
        }

    def at_once(self, writes):
        """Makes all calls at the same time. @return the futures of their replies"""
        return {what: self.background(call) for what, call in writes.items()}

    def refused(self, replies):
        for what, reply in replies.items():
            with self.subTest(what=what):
                self.problem(reply.result(30 * SLOW), 503)

    def cancel_waits(self):
        self.q("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")

    def done_here(self, room):
        """Which of the writes the first one has, whatever was answered."""
        return self.q("SELECT (SELECT revision = 2 FROM stillhere.lease WHERE {0} AND session_id = 's'),"
                      " EXISTS (SELECT FROM stillhere.tombstone WHERE {0}), (SELECT count(*) FROM stillhere.member WHERE"
                      " {0}), (SELECT count(*) FROM stillhere.attendance WHERE {0})".format(
                          "room_id = '%s'" % room)) == "t|t|2|1"

    def test_a_wait_that_was_cancelled_is_no_answer(self):
        """The standby is away, and somebody cancels the commits that wait for it: PostgreSQL says COMMIT then, with a
        warning, and shows to everybody what is on one machine only. None of it is acknowledged, not when it is asked for
        again either, where there is nothing left to write."""
        room = self.room()
        for session in ("s", "gone"):
            self.grant(room, session, 1, 600000)
        writes = self.writes(room)
        self.second.stop("immediate")
        deadline = time.monotonic() + 30 * SLOW
        while not self.done_here(room):  # a call may have been refused before its turn came
            self.assertLess(time.monotonic(), deadline, "the cancelled commits are not there")
            replies = self.at_once(writes)
            while not all(reply.done() for reply in replies.values()):
                self.cancel_waits()
                time.sleep(0.05)
            self.refused(replies)
        self.assertTrue(any("did not wait for the standby" in d.text() for d in self.daemons))
        self.refused(self.at_once(writes))
        self.second.start()
        for what, call in writes.items():
            self.wait_until(lambda: call().status == 200, 20, what)
        self.until_both_serve(self.room("side"))
        for d in list(self.daemons):
            self.stop_now(d)
