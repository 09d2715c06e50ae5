# SPDX-License-Identifier: Apache-2.0
"""What others with a hand on the database do to the server: line breaks in JSON columns, a room that can count no further,
notifications that are none. It says what is true, in so many lines, and goes on."""

import re

from harness.case import REVISION_MAX, SLOW, Case, lease, presence_path, quote, sql, time
from harness.sse import Streams

#: The same object with every kind of line break between its parts.
BROKEN_META = "'{\"a\":\\n\\n1,\\r\\r\"b\":\\r\\n\\r\\n\"c\\\\nd\"}'"
META = {"a": 1, "b": "c\nd"}


class Edited(Case):

    config = {"sweep_interval_ms": 100, "ttl_min_ms": 100, "offline_grace_ms": 100}
    weight = 10

    def stream(self, base, room, since=None):
        streams = Streams(base, [presence_path(room, since)])
        self.addCleanup(streams.close)
        return streams

    def test_line_breaks_in_a_meta(self):
        """The columns are of type json, which keeps white space. Nothing is cut in two by it."""
        room = self.room()
        self.grant(room, "s1", meta={"a": 0})
        self.grant(room, "s2", meta={"a": 0})
        self.q("UPDATE stillhere.event SET meta = E%s WHERE room_id = %s AND meta IS NOT NULL" % (BROKEN_META, sql(room)))
        self.q("UPDATE stillhere.lease SET meta = E%s WHERE room_id = %s" % (BROKEN_META, sql(room)))
        head = self.head(room)
        d = self.start_daemon()  # with nothing of it in memory
        events = self.stream(d.base, room, 0)
        snapshot = self.stream(d.base, room)
        self.assertTrue(events.collect(lambda: events[0].last_id == str(head), 10), events[0].messages)
        self.assertEqual([m.json()["revision"] for m in events[0].messages], list(range(1, head + 1)))
        self.assertEqual([m.json()["meta"] for m in events[0].messages if m.event == "lease.granted"], [META, META])
        self.assertTrue(snapshot.collect(lambda: snapshot[0].messages, 10))
        (first,) = snapshot[0].messages
        self.assertEqual(first.event, "snapshot")
        (user,) = first.json()["users"]
        self.assertEqual([s["meta"] for s in user["sessions"]], [META, META])
        for text in (events[0].text, snapshot[0].text):
            lines = text.replace(b"\r", b"\n").split(b"\n")
            self.assertEqual([x for x in lines if not re.match(rb"$|: |(data|id|event|retry): ", x)], [])
        for path in (presence_path(room), presence_path(room, 0), "/rooms/%s/leases" % quote(room)):
            reply = self.client.get(d.base, path)
            self.ok(reply)
            self.assertIsNone(re.search(rb"[\r\n]", reply.body), "not on one line")
        kept = self.grant(room, "s1", base=d.base)
        self.assertEqual(kept["lease"]["meta"], META)
        self.stop_now(d)

    def repair(self, room, head):
        # The sweeper may have pruned meanwhile, as far behind that revision as it goes in one turn.
        self.q("UPDATE stillhere.room SET revision = %d, pruned_revision = LEAST(pruned_revision, %d)"
               " WHERE room_id = %s AND revision = %d" % (head, head, sql(room), REVISION_MAX))

    def lines(self, pattern):
        return [line for line in self.daemons[0].text().splitlines() if re.search(pattern, line)]

    def test_a_room_that_can_count_no_further(self):
        """Whoever needs its next revision is told that this is refused, and not that it took too long. The sweeper tries it
        again after pauses that double, the log says so, and once somebody has repaired the room it goes on."""
        self.allow_5xx = True
        self.allow_log.append("statement .* failed")
        room, other = self.room(), self.room("other")
        self.grant(room, "s")
        head = self.head(room)
        self.q("UPDATE stillhere.room SET revision = %d WHERE room_id = %s" % (REVISION_MAX, sql(room)))
        self.addCleanup(self.repair, room, head)  # before the next test, also where this one fails
        began = time.monotonic()
        problem = self.problem(self.hb(self.base, room, "v", "new"), 503, "unavailable")
        self.assertLess(time.monotonic() - began, 3 * SLOW, "and at once")
        self.says_why(problem)
        close = self.client.close(self.base, room, "u", "s")
        self.says_why(self.problem(close, 503, "unavailable"))
        self.assertIn("retry-after", close.headers)
        good, bad = self.ok(self.client.batch(self.base, [lease(other, "u", "s"), lease(room, "v", "new")]))["results"]
        self.assertEqual(good["decision"], "accepted")
        self.says_why(self.problem_object(bad, 503, "unavailable"))
        self.says_why(self.problem(self.client.request(self.base, "DELETE", "/rooms/%s/members/u" % quote(room)), 503,
                                   "unavailable"))
        # The sweeper now meets it with every sweep.
        told = len(self.lines("statement .* failed: 23514"))
        self.age(room)
        self.wait_until(lambda: self.lines("cannot be ended"), 10, "the sweeper's complaint")
        self.grant(other, "brief", ttl_ms=100)
        self.wait_until(lambda: self.events(other, kind="lease.expired"), 5, "the end of another lease")
        self.pause(4)
        complaints, failures = self.lines("cannot be ended"), self.lines("statement .* failed: 23514")
        self.assertTrue(any(room in line for line in complaints), complaints)
        self.assertLessEqual(len(complaints), 8, "some forty sweeps")
        # After 1 s, 2 s, 4 s …: each time it is tried with the others, with its room, and alone.
        self.assertLessEqual(len(failures) - told, 18)
        self.repair(room, head)
        self.wait_until(lambda: self.events(room, kind="lease.expired"), 20, "the end of the lease")
        self.grant(room, "new", user="v")
        type(self).pg_mark = self.pg.log_size()  # PostgreSQL has named the constraint each time, as it should

    def says_why(self, problem):
        self.assertIn("refused", problem["detail"])
        self.assertIn("log", problem["detail"])
        self.assertNotIn("in time", problem["detail"])

    def test_notifications_that_are_none(self):
        before = self.metrics(self.base)["stillhere_notifications_total"]
        for channel in ("stillhere_rooms", "stillhere_cursors"):
            self.q("SELECT count(pg_notify('%s', 'x' || i)) FROM generate_series(1, 500) i" % channel)
        self.wait_until(lambda: self.metrics(self.base)["stillhere_notifications_total"] >= before + 1000, 10, "all of them")
        told = self.lines("malformed payload")
        self.assertTrue(told)
        self.assertLess(len(told), 150, "of 1000")
        self.pause(0.5)  # one line is paid for every 200 ms
        self.q("SELECT pg_notify('stillhere_rooms', 'one more')")
        last = self.wait_until(lambda: self.lines("malformed payload")[len(told):], 5, "a line for the next")[-1]
        self.assertGreater(int(re.search(r"left out before: (\d+)", last).group(1)), 100, last)
        room = self.room()  # and what is well formed is heard as before
        head = self.grant(room)["room_revision"]
        poll = self.parked(self.base, room, head)
        self.grant(room, "t")
        self.assertEqual(self.ok(self.answer(poll))["mode"], "events")
