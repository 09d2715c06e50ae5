# SPDX-License-Identifier: Apache-2.0
"""While the database is slow, leases are lengthened before anybody is refused."""

from harness.case import Case, instant, time


class Load(Case):
    """While the database is slow, leases are granted for longer, and it ends by itself."""

    def factor(self):
        return self.metrics(self.base)["stillhere_load_factor"]

    def crowd(self, room, seconds):
        """Heartbeats from several clients for a while."""
        def one(i):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                self.ok(self.hb(self.base, room, "u", "c%d" % i, ttl_ms=60000))
        return [self.background(one, i) for i in range(6)]

    def test_slow_database(self):
        room = self.room()
        self.assertEqual(self.factor(), 1)
        self.assertEqual(self.grant(room)["lease"]["ttl_ms"], 60000)
        self.q("CREATE FUNCTION public.drag() RETURNS trigger LANGUAGE plpgsql AS"
               " 'BEGIN PERFORM pg_sleep(0.8); RETURN NULL; END'")
        self.q("CREATE TRIGGER drag BEFORE INSERT ON stillhere.lease FOR EACH STATEMENT EXECUTE FUNCTION public.drag()")
        futures = self.crowd(room, 5)
        self.wait_until(lambda: self.factor() > 1.5, 10, "the load")
        answer = self.grant(room, "late", ttl_ms=60000)
        for f in futures:
            f.result()
        given = answer["lease"]
        self.near(given["ttl_ms"], 61000, 240000, "a longer ttl")
        self.assertAlmostEqual(instant(given["expires_at"]) - instant(given["renewed_at"]), given["ttl_ms"] / 1000, 2)
        self.near(answer["renew_after_ms"], given["ttl_ms"] / 3 * 0.79, given["ttl_ms"] / 3)
        # Never beyond what a client may ask for.
        longest = self.grant(room, "longest", ttl_ms=3600000)["lease"]
        self.assertEqual(longest["ttl_ms"], 3600000)
        self.q("DROP TRIGGER drag ON stillhere.lease")
        self.wait_until(lambda: self.factor() == 1, 12, "the end of the load")
        answer = self.grant(room, "late", ttl_ms=60000)
        self.assertEqual(answer["lease"]["ttl_ms"], 60000)
        self.assertIn("granted for longer", self.daemons[0].text())
        self.wait_until(lambda: "as long as asked for" in self.daemons[0].text(), 5, "the end in the log")

    def test_lock_is_no_load(self):
        room = self.room()
        self.grant(room)
        locker = self.psql()
        locker.value("BEGIN")
        locker.value("SELECT 1 FROM stillhere.lease WHERE room_id = '%s' FOR UPDATE" % room)
        stuck = self.background(self.hb, self.base, room, "u", "s", fresh=True)
        for i in range(20):
            self.grant(room, "o%d" % i)
        locker.value("COMMIT")
        self.ok(stuck.result())
        self.assertLess(self.factor(), 1.2)


class Outage(Case):
    """A database that is away is not a slow one."""

    own_cluster = True

    def test_outage_is_no_load(self):
        room = self.room()
        self.grant(room)
        self.pg.stop("immediate")
        self.forget_query()
        waiting = self.background(self.hb, self.base, room, "u", "s", fresh=True)
        self.pause(1)
        self.assertFalse(waiting.done())
        self.pg.start()
        self.allow_5xx = True  # where the start takes long the one that waits is told to come again
        self.assertIn(waiting.result().status, (200, 503))
        self.wait_until(lambda: self.hb(self.base, room, "u", "s", fresh=True).status == 200, 10, "a heartbeat")
        self.assertEqual(self.ok(self.hb(self.base, room, "u", "s"))["lease"]["ttl_ms"], 90000)
        self.assertEqual(self.metrics(self.base)["stillhere_load_factor"], 1)
