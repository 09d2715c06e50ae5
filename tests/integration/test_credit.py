# SPDX-License-Identifier: Apache-2.0
"""Outages are not silence (CONTRACT §3): time in which nobody could renew is credited to who was there when it began,
once, and to nobody else."""

import signal

from harness import LONG
from harness.case import SLOW, Case, lease, sql, time

ANY = [r"."]


class Credit(Case):
    #: What a test may see in the log when it makes an outage.
    config = {"ttl_min_ms": 100, "offline_grace_ms": 2000, "sweep_interval_ms": 500}

    def setUp(self):
        super().setUp()
        self.allow_log = [r"nobody could renew for", r"the clock of the database was set back"]

    def pass_by(self, seconds):
        """As if so much time had passed in which nobody was there: everything that is written is older by so much."""
        self.q("DO $$ DECLARE past interval := interval '%f s'; BEGIN"
               " UPDATE stillhere.pulse SET alive_at = alive_at - past;"
               " UPDATE stillhere.outage SET began_at = began_at - past, ended_at = ended_at - past;"
               " UPDATE stillhere.lease SET granted_at = granted_at - past, renewed_at = renewed_at - past,"
               " expires_at = expires_at - past;"
               " UPDATE stillhere.room_user SET offline_at = offline_at - past;"
               " END $$" % seconds)

    def remaining(self, room, session):
        """Milliseconds that the list of the room says are left, or None."""
        found = [one["remaining_ms"] for one in self.ok(self.client.get(self.base, "/rooms/%s/leases" % room))["leases"]
                 if one["session_id"] == session]
        return found[0] if found else None

    def expired(self, room):
        return [e["session_id"] for e in self.events(room, kind="lease.expired")]

    def outages(self):
        return int(self.q("SELECT count(*) FROM stillhere.outage"))


class Passed(Credit):
    """Time passes by SQL, so that nothing has to be waited for."""

    def test_who_was_there_stays_as_long_as_was_left(self):
        room = self.room()
        self.grant(room, "s", 1, 20000)
        before, counted = self.outages(), self.metrics(self.base)["stillhere_outage_credit_ms_total"]
        self.pass_by(40)
        self.wait_until(lambda: self.remaining(room, "s") is not None, 5, "the credit")
        self.near(self.remaining(room, "s"), 20000 - 8000 * SLOW, 21000)
        self.pause(2.0)
        self.assertEqual(self.expired(room), [])
        self.assertEqual(self.outages(), before + 1)
        self.near(self.metrics(self.base)["stillhere_outage_credit_ms_total"] - counted, 40000, 42000 + 2000 * SLOW)
        self.assertEqual(self.grant(room, "s", 2, 20000)["granted"], False)
        self.assertEqual([e["kind"] for e in self.events(room)], ["lease.granted", "user.online"])

    def test_a_repetition_says_how_long_it_lasts(self):
        room = self.room()
        self.grant(room, "s", 1, 20000)
        self.pass_by(40)
        answer = self.ok(self.hb(self.base, room, "u", "s", 1, 20000))
        self.assertEqual(answer["decision"], "already_applied")
        self.assertGreater(answer["lease"]["expires_at"], answer["server_time"])

    def test_who_had_left_before_is_not_brought_back(self):
        room = self.room()
        self.grant(room, "stays", 1, 60000)
        self.grant(room, "gone", 1, 60000)
        # It had ended when the outage began, and nobody had swept it.
        self.q("WITH p AS (UPDATE stillhere.pulse SET alive_at = alive_at - interval '40 s' RETURNING alive_at)"
               " UPDATE stillhere.lease SET ttl_ms = 1000, renewed_at = p.alive_at - interval '2 s',"
               " expires_at = p.alive_at - interval '1 s' FROM p WHERE room_id = %s AND session_id = 'gone'" % sql(room))
        self.wait_until(lambda: self.expired(room), 5, "the expiry")
        self.assertEqual(self.expired(room), ["gone"])
        self.assertIsNotNone(self.remaining(room, "stays"))

    def test_who_comes_after_it_gets_nothing(self):
        self.pass_by(40)
        before = self.outages()
        self.wait_until(lambda: self.outages() >= before, 5, "the outage")
        self.pause(1.0)
        room = self.room()
        self.grant(room, "s", 1, 1000)
        self.wait_until(lambda: self.expired(room), 1 + 3, "the expiry")

    def test_once_for_each_renewal(self):
        """Restart after restart keeps no ghost alive."""
        room = self.room()
        self.grant(room, "ghost", 1, 8000)
        self.grant(room, "here", 1, 8000)
        self.pass_by(30)
        self.wait_until(lambda: self.remaining(room, "ghost") is not None, 5, "the first credit")
        self.assertEqual(self.grant(room, "here", 2, 8000)["granted"], False)
        self.pass_by(30)
        self.wait_until(lambda: self.expired(room), 5, "the expiry")
        self.assertEqual(self.expired(room), ["ghost"])
        self.wait_until(lambda: self.remaining(room, "here") is not None, 5, "the second credit")
        self.assertEqual(self.grant(room, "here", 3, 8000)["granted"], False)

    def test_a_pulse_that_was_edited_by_hand(self):
        """Set to no time, or taken away: it beats again, and leases end as ever."""
        self.allow_log.append(r"the row of stillhere.pulse is gone")
        beats = ("SELECT count(*) FROM stillhere.pulse WHERE alive_at BETWEEN clock_timestamp() - interval '4 s'"
                 " AND clock_timestamp()")
        for edit in ("UPDATE stillhere.pulse SET alive_at = '-infinity'", "UPDATE stillhere.pulse SET alive_at = 'infinity'",
                     "DELETE FROM stillhere.pulse"):
            room, before = self.room(), self.outages()
            self.q(edit)
            self.wait_until(lambda: self.q(beats) == "1", 5, edit)
            self.grant(room, "s", 1, 1000)
            self.wait_until(lambda: self.expired(room), 1 + 4, "the expiry after " + edit)
            self.assertEqual(self.outages(), before, edit)
        room = self.room()
        self.grant(room, "s", 1, 20000)
        self.pass_by(30)
        self.wait_until(lambda: self.remaining(room, "s") is not None, 5, "credit by the new row")

    def test_the_longest_gap_that_began_in_its_time(self):
        """A short gap takes nothing from the long one that follows it; and one that begins in the credit adds nothing."""
        room = self.room()
        self.grant(room, "s", 1, 20000)
        for gap in (5, 30):
            before = self.outages()
            self.pass_by(gap)
            self.wait_until(lambda: self.outages() > before, 5, "the outage of %d s" % gap)
        self.wait_until(lambda: self.remaining(room, "s") is not None, 5, "the credit")
        self.near(self.remaining(room, "s"), 15000 - 8000 * SLOW, 16500)
        self.pass_by(30)
        self.wait_until(lambda: self.expired(room), 5, "the expiry")

    def test_a_heartbeat_before_the_sweeper(self):
        """The pulse is locked, so that the sweeper cannot have written anything when the heartbeat comes."""
        room = self.room()
        self.grant(room, "s", 1, 10000)
        psql = self.psql()
        psql.run("BEGIN")
        psql.run("UPDATE stillhere.pulse SET alive_at = alive_at - interval '40 s'")
        psql.run("UPDATE stillhere.lease SET renewed_at = renewed_at - interval '40 s', expires_at = expires_at -"
                 " interval '40 s' WHERE room_id = %s" % sql(room))
        self.pause(1.0)
        future = self.background(self.hb, self.base, room, "u", "s", 2, 10000)
        self.pause(0.2)
        psql.run("COMMIT")
        answer = self.ok(future.result(10 * SLOW))
        self.assertEqual((answer["decision"], answer["granted"]), ("accepted", False))
        self.assertEqual([e["kind"] for e in self.events(room)], ["lease.granted", "user.online"])

    def test_graces_wait_as_well(self):
        room = self.room()
        self.grant(room, "s", 1, 60000)
        self.ok(self.client.close(self.base, room, "u", "s"))
        self.pass_by(40)
        self.pause(0.8)
        self.assertEqual(self.events(room, kind="user.offline"), [])
        self.wait_until(lambda: self.events(room, kind="user.offline"), 2 + 3, "the end of the grace")

    def test_a_clock_that_is_set_back_makes_no_ghost(self):
        room = self.room()
        self.grant(room, "s", 1, 3000)
        self.grant(room, "left", 1, 60000, user="v")
        self.ok(self.client.close(self.base, room, "v", "left"))
        self.pass_by(-3600)
        self.wait_until(lambda: self.remaining(room, "s") is not None and self.remaining(room, "s") <= 3000, 5, "the cut")
        self.wait_until(lambda: self.expired(room), 3 + 4, "the expiry")
        self.wait_until(lambda: len(self.events(room, kind="user.offline")) == 2, 8, "the ends of the graces")

    def test_a_short_pause_is_no_outage(self):
        before = self.outages()
        self.pass_by(1)
        self.pause(1.5)
        self.assertEqual(self.outages(), before)


class Away(Credit):
    """A database that really is away, and instances that are."""

    own_cluster = True
    instances = 2
    weight = 6
    ttl_ms, away = 4000, 9

    def setUp(self):
        super().setUp()
        self.allow_5xx = True
        self.allow_log = ANY

    def renewing(self, room, sessions, stop):
        """Renews a third into the ttl, and at once where that fails, as clients do. @return what was not plain"""
        odd, revision = [], 1
        while not stop:
            revision += 1
            due = time.monotonic() + self.ttl_ms / 3000
            left = list(sessions)
            while left and not stop:
                try:
                    reply = self.client.batch(self.bases[revision % 2], [
                        lease(room, "u-" + s, s, revision, ttl_ms=self.ttl_ms) for s in left])
                except TimeoutError:  # a whole instance that is frozen for longer than a client has patience
                    continue
                if reply.status == 200:
                    results = reply["results"]
                    odd += [r for r in results if r.get("granted") or r.get("status", 200) not in (200, 409, 503)]
                    left = [s for s, r in zip(left, results) if r.get("status") == 503]
                if left:
                    time.sleep(0.2)
            while time.monotonic() < due and not stop:
                time.sleep(0.05)
        return odd

    def begin_life(self, room, renewed, silent):
        for part in filter(None, (renewed, silent)):
            reply = self.client.batch(self.base, [lease(room, "u-" + s, s, 1, ttl_ms=self.ttl_ms) for s in part])
            self.assertEqual({r["decision"] for r in self.ok(reply)["results"]}, {"accepted"})

    def through(self, away):
        """200 who renew and 20 who do not, and what away() does meanwhile."""
        room, stop = self.room(), []
        here, gone = ["h%03d" % i for i in range(200)], ["s%02d" % i for i in range(20)]
        self.begin_life(room, here, gone)
        parts = [self.background(self.renewing, room, here[i::8], stop) for i in range(8)]
        self.pause(self.ttl_ms / 3000)
        began = time.monotonic()
        away()
        gap = time.monotonic() - began
        # At most the measured gap later than without it, and a sweep.
        latest = began - self.ttl_ms / 3000 + self.ttl_ms / 1000 + gap + (2 + 3) * SLOW
        self.wait_until(lambda: len(self.expired(room)) >= 20, max(1.0, latest - time.monotonic()) / SLOW, "the expiries")
        self.pause(2.0)
        stop.append(True)
        self.assertEqual([odd for part in parts for odd in part.result(20 * SLOW)], [])
        self.assertEqual(sorted(self.expired(room)), gone)
        self.assertEqual(self.count("lease", room_id=room), 200)
        return room

    def test_database_stopped(self):
        def away():
            self.pg.stop("fast")
            time.sleep(self.away)
            self.pg.start()
            self.forget_query()
            self.wait_until(lambda: all(d.status("/readyz") == 200 for d in self.daemons), 10, "readiness")
        self.through(away)

    def test_database_frozen(self):
        def away():
            self.pg.freeze(True)
            time.sleep(self.away)
            self.pg.freeze(False)
            self.wait_until(lambda: all(d.status("/readyz") == 200 for d in self.daemons), 10, "readiness")
        self.through(away)

    def test_all_instances_frozen(self):
        def away():
            for d in self.daemons:
                d.process.send_signal(signal.SIGSTOP)
            time.sleep(self.away)
            for d in self.daemons:
                d.process.send_signal(signal.SIGCONT)
        self.through(away)


class LongAway(Away):
    """At full length, for `make check-long`."""

    ttl_ms, away = 15000, 40

    def test_restarts_in_a_row(self):
        """Five restarts ten seconds apart; five who fell silent before are gone a minute after the last at the latest."""
        room = self.room()
        silent = ["g%d" % i for i in range(5)]
        self.begin_life(room, [], silent)
        for _ in range(5):
            self.pg.stop("fast")
            time.sleep(4)
            self.pg.start()
            time.sleep(6)
        self.forget_query()
        self.wait_until(lambda: len(self.expired(room)) == 5, 60, "the expiries")
        self.assertEqual(sorted(self.expired(room)), silent)


if not LONG:
    del LongAway
