# SPDX-License-Identifier: Apache-2.0
"""Rows that somebody holds locked for long, and tables that were changed by hand: the others are served meanwhile."""

import subprocess
import threading

from harness.case import SLOW, Case, lease, sql, steps, time
from harness.pg import clean_environment


class Locks(Case):
    """Locks are held from psql; what needs them may wait or get 503, and nobody else notices."""

    weight = 8
    instances = 2
    config = {"ttl_min_ms": 100}

    def hold(self, statement):
        psql = self.psql()
        psql.run("BEGIN")
        psql.run(statement)
        return psql

    def beside(self, victims, seconds=3):
        """Runs the victims' calls over and over while heartbeats in other rooms are timed.
        @return the slowest of those, in seconds"""
        self.allow_5xx = True
        end = time.monotonic() + seconds
        slowest, failed = [0.0], []

        def victim(number):
            turn = 0
            while time.monotonic() < end:
                turn += 1
                victims(number, turn)

        def innocent(number):
            room = self.room("free")
            while time.monotonic() < end:
                reply = self.hb(self.base, room, "innocent-%d" % number, "s")
                slowest[0] = max(slowest[0], reply.seconds)
                if reply.status != 200:
                    failed.append(reply.status)

        threads = [threading.Thread(target=victim, args=(i,)) for i in range(8)]
        threads += [threading.Thread(target=innocent, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        return slowest[0]

    def test_a_locked_room_holds_up_no_other(self):
        room = self.room("locked")
        self.grant(room, "first", 1)
        psql = self.hold("SELECT 1 FROM stillhere.room WHERE room_id = %s FOR UPDATE" % sql(room))
        slowest = self.beside(lambda number, turn: self.hb(self.base, room, "u%d" % number, "s%d" % turn))
        psql.run("COMMIT")
        self.assertLess(slowest, 1.5 * SLOW)

    def test_a_locked_lease_holds_up_no_other(self):
        room = self.room("locked")
        self.grant(room, "first", 1)
        psql = self.hold("SELECT 1 FROM stillhere.lease WHERE room_id = %s FOR UPDATE" % sql(room))
        slowest = self.beside(lambda number, turn: self.hb(self.base, room, "u", "first"))
        psql.run("COMMIT")
        self.assertLess(slowest, 1.5 * SLOW)

    def test_a_locked_last_seen_holds_up_no_other(self):
        room = self.room("seen")
        self.ok(self.client.batch(self.base, [lease(room, "held", "s%d" % i, 1) for i in range(9)]))
        self.ok(self.client.close(self.base, room, "held", "s8"))
        psql = self.hold("SELECT 1 FROM stillhere.user_last_seen WHERE user_id = 'held' FOR UPDATE")
        slowest = self.beside(lambda number, turn: self.client.close(self.base, room, "held", "s%d" % number))
        psql.run("COMMIT")
        self.assertLess(slowest, 1.5 * SLOW)

    def test_a_locked_item_of_a_batch_fails_alone(self):
        self.allow_5xx = True
        room = self.room()
        self.grant(room, "held", 1)
        psql = self.hold("SELECT 1 FROM stillhere.lease WHERE room_id = %s AND session_id = 'held' FOR UPDATE" % sql(room))
        reply = self.client.batch(self.base, [lease(room, "u", s, 2) for s in ("a", "held", "b")])
        psql.run("COMMIT")
        results = self.ok(reply)["results"]
        self.assertEqual([r.get("decision") for r in results], ["accepted", None, "accepted"])
        self.problem_object(results[1], 503, "unavailable")
        self.assertLess(reply.seconds, 5 * SLOW)
        self.assertEqual(self.ok(self.hb(self.base, room, "u", "held", 2))["decision"], "accepted")

    def test_ops_behind_a_lock_keep_their_order(self):
        room = self.room()
        self.grant(room, "held", 1)
        psql = self.hold("SELECT 1 FROM stillhere.lease WHERE room_id = %s FOR UPDATE" % sql(room))
        waiting = self.background(self.client.batch, self.base,
                                  [lease(room, "u", "held", r) for r in (2, 2, 1, 3)])
        self.pause(0.6)
        psql.run("COMMIT")
        self.assertEqual([r["code"] if "code" in r else r["decision"] for r in self.ok(self.answer(waiting))["results"]],
                         ["accepted", "already_applied", "ignored_old_revision", "accepted"])

    def test_a_batch_that_names_a_locked_lease_often_keeps_its_order(self):
        """Its first ops stand at the lock when the next ones are taken up, or are being tried when it goes."""
        for seconds in (0.3, 0.4, 0.5, 0.6):
            room = self.room()
            self.grant(room, "s")
            psql = self.hold("SELECT 1 FROM stillhere.lease WHERE room_id = %s FOR UPDATE" % sql(room))
            reply = self.background(self.client.batch, self.base,
                                    [lease(room, "u", "s", None, 60000, {"i": i}) for i in range(40)])
            self.pause(seconds)
            psql.run("COMMIT")
            results = self.ok(self.answer(reply))["results"]
            self.assertEqual([r["lease"]["revision"] for r in results], list(range(2, 42)), seconds)
            self.assertEqual(self.q("SELECT meta FROM stillhere.lease WHERE room_id = %s" % sql(room)), '{"i":39}')

    def test_many_overdue_in_a_locked_room_hold_up_no_other(self):
        locked, free = "a" + self.room("locked"), "z" + self.room("free")
        self.ok(self.client.batch(self.base, [lease(locked, "u", "s%d" % i, 1, 800) for i in range(200)] +
                                  [lease(free, "u", "s%d" % i, 1, 800) for i in range(10)]))
        psql = self.hold("SELECT 1 FROM stillhere.room WHERE room_id = %s FOR UPDATE" % sql(locked))
        self.wait_until(lambda: len(self.events(free, kind="lease.expired")) == 10, 0.8 + 2 + 3, "the free room")
        self.assertEqual(self.events(locked, kind="lease.expired"), [])
        psql.run("COMMIT")
        self.wait_until(lambda: len(self.events(locked, kind="lease.expired")) == 200, 5, "the locked room")

    def test_a_page_of_overdue_leases_that_are_locked_hides_nothing(self):
        locked, free = "a" + self.room("locked"), "z" + self.room("free")
        self.q("INSERT INTO stillhere.lease (room_id, user_id, session_id, revision, revision_given, ttl_ms, granted_at,"
               " renewed_at, expires_at) SELECT %s, 'u', 's' || i, 1, true, 60000, now(), now(), 'infinity'"
               " FROM generate_series(1, 5200) i" % sql(locked))
        self.q("UPDATE stillhere.lease SET expires_at = clock_timestamp() + interval '700 ms' WHERE room_id = %s" %
               sql(locked))
        psql = self.hold("SELECT 1 FROM stillhere.lease WHERE room_id = %s FOR UPDATE" % sql(locked))
        self.grant(free, "s", 1, 700)
        self.wait_until(lambda: self.events(free, kind="lease.expired"), 0.7 + 2 + 4, "the free room")
        psql.run("DELETE FROM stillhere.lease WHERE room_id = %s" % sql(locked))
        psql.run("COMMIT")

    def test_an_expiry_by_a_newer_close_tells_the_leases_own_revision(self):
        room = self.room()
        self.grant(room, "s", 5)
        psql = self.psql()
        psql.run("BEGIN")  # the row is held, so that no sweeper ends it first
        psql.run("UPDATE stillhere.lease SET expires_at = clock_timestamp() - interval '1 ms' WHERE room_id = %s" % sql(room))
        waiting = self.background(self.client.close, self.base, room, "u", "s", 99)
        self.pause(0.3)
        psql.run("COMMIT")
        self.assertEqual(self.ok(self.answer(waiting))["decision"], "already_applied")
        (event,) = self.events(room, kind="lease.expired")
        self.assertEqual(event["lease_revision"], 5)
        self.assertIn(self.tombstone(room, "s")["revision"], (5, 99))


class ByHand(Case):
    """Somebody edits the tables under the running daemon."""

    config = {"ttl_min_ms": 100}

    def test_odd_times_do_not_keep_a_lease_from_ending(self):
        odd = ("renewed_at = 'infinity'", "renewed_at = '-infinity'", "renewed_at = '294276-12-31'",
               "expires_at = '-infinity'", "renewed_at = '4000-01-01 BC', expires_at = '4000-01-01 BC'")
        for how in odd:
            with self.subTest(how=how):
                room = self.room()
                self.grant(room, "s", 1)
                self.q("UPDATE stillhere.lease SET expires_at = now() - interval '1 s', %s WHERE room_id = %s" %
                       (how, sql(room)) if "expires_at" not in how else
                       "UPDATE stillhere.lease SET %s WHERE room_id = %s" % (how, sql(room)))
                (event,) = self.wait_until(lambda: self.events(room, kind="lease.expired"), 4, "the expiry")
                self.near(event["overdue_ms"], 0, 2 ** 53 - 1)
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.user_last_seen WHERE last_seen_at > now()"), "0")

    def empty(self, room):
        """Nothing of a room stays."""
        for table in ("lease", "event", "room_user", "room"):
            self.q("DELETE FROM stillhere.%s WHERE room_id = %s" % (table, sql(room)))

    def test_an_emptied_room_is_noticed(self):
        room = self.room()
        for i in range(3):
            self.grant(room, "s%d" % i, 1)
        self.assertEqual(self.ok(self.poll(self.base, room, 0))["revision"], 4)
        self.empty(room)
        self.wait_until(lambda: self.poll(self.base, room, 4, wait_ms=0).json().get("reason") == "ahead", 3,
                        "memory that follows")
        answer = self.ok(self.client.hb(self.base, room, "u", "new", 1, query="?since=0"))
        self.assertEqual(answer["room_revision"], 2)
        self.assertEqual(steps(answer["presence"]["events"]), [(1, "lease.granted", "new"), (2, "user.online", None)])

    def test_an_emptied_room_shows_what_was_accepted_since(self):
        room = self.room()
        for i in range(3):
            self.grant(room, "s%d" % i, 1)
        self.assertEqual(self.ok(self.poll(self.base, room, 0))["revision"], 4)
        self.empty(room)
        answer = self.ok(self.client.hb(self.base, room, "u", "new", 1, query="?since=0"))
        self.assertEqual(steps(answer["presence"]["events"]), [(1, "lease.granted", "new"), (2, "user.online", None)])


class Restored(Case):
    """The schema is dropped and restored under the running daemon."""

    def test_the_epoch_changes_while_connections_stay(self):
        self.allow_5xx = True
        self.allow_log = [r"."]
        room = self.room()
        before = self.grant(room, "s", 1)["epoch"]
        self.assertEqual(self.ok(self.poll(self.base, room, 0))["epoch"], before)
        dump = subprocess.run([self.pg.program("pg_dump"), "-h", self.pg.socket, "-p", "5432", "-U", "postgres", "-n",
                               "stillhere", self.database], env=clean_environment(), stdout=subprocess.PIPE, check=True)
        self.q("DROP SCHEMA stillhere CASCADE")
        self.wait_until(lambda: self.client.get(self.base, "/readyz").status == 503, 5, "not ready")
        subprocess.run(self.pg.psql_args(self.database) + ["-1", "-v", "ON_ERROR_STOP=1"], env=clean_environment(),
                       input=dump.stdout, stdout=subprocess.DEVNULL, check=True)
        self.wait_until(lambda: self.client.get(self.base, "/readyz").status == 200, 15, "ready again")
        reply = self.ok(self.poll(self.base, room, 2, epoch=before, wait_ms=0))
        self.assertEqual([reply["mode"], reply["reason"], reply["revision"]], ["snapshot", "epoch", 2])
        self.assertNotEqual(reply["epoch"], before)
