# SPDX-License-Identifier: Apache-2.0
"""Event storms are folded into few wakes, and nothing is lost or late by it where it is calm (CONTRACT §4)."""

from harness.case import SLOW, Case, Flock, lease, presence_path, time
from harness.watchers import Watchers


class FoldStorm(Case):
    """60 watchers: the window is half a second."""

    weight = 6
    WATCHERS = 60
    WINDOW = 0.5

    def watched(self, n=None):
        """A room with watchers at its head."""
        room = self.room()
        self.grant(room, "first")
        head = self.head(room)
        epoch = self.ok(self.poll(self.base, room))["epoch"]
        watchers = Watchers(self.base, room, self.WATCHERS if n is None else n, head, epoch).start()
        self.addCleanup(watchers.stop)
        self.wait_until(lambda: self.waiting(self.base) >= len(watchers.all), 10, "parked polls")
        return room, head, watchers

    def burst(self, room, n, name="b"):
        self.ok(self.client.batch(self.base, [lease(room, "%s%d" % (name, i), "s", ttl_ms=60000) for i in range(n)]))

    def caught_up(self, room, watchers, seconds=10):
        head = self.head(room)
        late = watchers.wait(seconds * SLOW, lambda w: w.since >= head)
        self.assertEqual([(w.wrong, w.since) for w in late], [], "everybody gets every event, up to %d" % head)

    def test_the_first_event_comes_at_once(self):
        room, head, watchers = self.watched()
        for i in range(3):
            began = time.monotonic()
            self.grant(room, "s%d" % i, user="u%d" % i)
            self.caught_up(room, watchers)
            with watchers.lock:
                last = max(w.replies[-1][0] for w in watchers.all)
            self.assertLess(last - began, 0.3 * SLOW, "in a quiet room")
            self.pause(self.WINDOW * 3)  # quiet again

    def test_a_storm_is_few_replies_and_no_event_less(self):
        room, head, watchers = self.watched()
        before = self.metrics(self.base)
        began = time.monotonic()
        for i in range(20):
            self.burst(room, 3, "b%d-" % i)
            self.pause(0.05)
        took = time.monotonic() - began
        self.caught_up(room, watchers)
        events = self.head(room) - head
        self.assertGreaterEqual(events, 60)
        most = 2 + int(took / self.WINDOW) + 1
        replies = watchers.replies_with_events()
        self.assertLessEqual(max(replies), most, "in %.1f s" % took)
        for w in watchers.all:
            self.assertEqual(len(w.events), events)
        after = self.metrics(self.base)
        workers = 8
        self.assertLessEqual(after["stillhere_wakes_total"] - before["stillhere_wakes_total"], (most + 1) * workers)
        self.assertGreater(after["stillhere_folded_wakes_total"], before["stillhere_folded_wakes_total"])

    def test_a_poll_that_comes_back_waits_for_the_end_of_the_window(self):
        room, head, watchers = self.watched()
        self.grant(room, "one", user="one")  # goes out at once and begins the window
        began = time.monotonic()
        self.caught_up(room, watchers)
        first = self.head(room)
        self.grant(room, "two", user="two")
        second = self.head(room)
        reply = self.poll(self.base, room, first, fresh=True)  # among those who watch
        took = time.monotonic() - began
        self.assertEqual(self.ok(reply)["revision"], second)
        self.near(took, self.WINDOW * 0.6, self.WINDOW + 0.5 * SLOW, "the end of the window")

    def test_what_need_not_wait_does_not(self):
        room, head, watchers = self.watched(200)  # 1.9 s
        self.grant(room, "one", user="one")
        self.wait_until(lambda: any(w.replies for w in watchers.all), 5, "the first wake")
        self.burst(room, 5)
        now = self.head(room)
        for query, mode in (({"since": head, "wait_ms": 0}, "events"), ({}, "snapshot"), ({"since": now + 99}, "snapshot"),
                            ({"since": head, "epoch": "feedfacefeedface"}, "snapshot"),
                            ({"since": head, "limit": 1}, "events")):
            reply = self.poll(self.base, room, **query)
            self.assertEqual(self.ok(reply)["mode"], mode, query)
            self.assertLess(reply.seconds, 0.4 * SLOW, query)
        reply = self.client.hb(self.base, room, "first", "other", query="?since=%d" % head)
        self.assertEqual(self.ok(reply)["presence"]["mode"], "events")
        self.assertLess(reply.seconds, 0.4 * SLOW, "a heartbeat never waits for a window")
        reply = self.poll(self.base, room, head, wait_ms=300)
        self.assertEqual(self.ok(reply)["mode"], "events")
        self.assertLess(reply.seconds, 0.8 * SLOW, "the poll's own wait was shorter")
        self.caught_up(room, watchers)

    def test_folding_makes_nobody_need_a_snapshot(self):
        """A window ends early where more comes than a reader may be behind."""
        d = self.start_daemon(replay_limit=100)
        room = self.room()
        self.grant(room, "first", base=d.base)
        epoch = self.ok(self.poll(d.base, room))["epoch"]
        watchers = Watchers(d.base, room, 300, self.head(room), epoch).start()
        self.addCleanup(watchers.stop)
        self.wait_until(lambda: self.waiting(d.base) >= 300, 10, "parked polls")
        for i in range(60):
            for k in range(3):
                self.grant(room, "s", user="u%d-%d" % (i, k), base=d.base)
            self.pause(0.01)
        self.assertGreater(self.head(room), 300)
        self.caught_up(room, watchers)  # a snapshot would be wrong
        watchers.stop()
        self.stop_now(d)

    def test_small_rooms_are_instant(self):
        room, head, watchers = self.watched(9)
        for i in range(10):
            began = time.monotonic()
            self.grant(room, "s%d" % i, user="u%d" % i)
            self.caught_up(room, watchers)
            with watchers.lock:
                last = max(w.replies[-1][0] for w in watchers.all)
            self.assertLess(last - began, 0.25 * SLOW)
        self.assertGreaterEqual(min(watchers.replies_with_events()), 8)

    def test_a_newcomer_does_not_make_the_next_event_late(self):
        """A read for somebody else is no event: it begins no window."""
        room, head, watchers = self.watched(200)
        fresh = self.ok(self.poll(self.base, room))
        self.assertEqual(fresh["mode"], "snapshot")
        self.ok(self.poll(self.base, room, view="count"))
        self.ok(self.poll(self.base, room, view="users"))
        began = time.monotonic()
        self.grant(room, "new", user="new")
        self.caught_up(room, watchers)
        with watchers.lock:
            last = max(w.replies[-1][0] for w in watchers.all)
        self.assertLess(last - began, 0.6 * SLOW)

    def test_other_kinds_end_in_no_reply(self):
        room, head, watchers = self.watched()
        flock = Flock(self.base, [presence_path(room, head, kinds="session.closed", wait_ms=4000)] * 20)
        self.addCleanup(flock.close)
        self.wait_until(lambda: self.waiting(self.base) >= self.WATCHERS + 20, 10, "parked polls")
        for i in range(5):
            self.burst(room, 3, "k%d-" % i)
            self.pause(0.1)
        flock.collect(1.0)
        self.assertEqual(flock.replies, [None] * 20)
        self.ok(self.client.close(self.base, room, "u", "first"))
        flock.collect(5 * SLOW)
        for reply, _ in flock.replies:
            self.assertEqual([e["kind"] for e in reply.json()["events"]], ["session.closed"])

    def test_draining_answers_those_who_are_held_back(self):
        d = self.start_daemon(fanout_window_max_ms=5000)
        room = self.room()
        self.grant(room, "first", base=d.base)
        head = self.head(room)
        flock = Flock(d.base, [presence_path(room, head)] * 400)
        self.addCleanup(flock.close)
        self.wait_until(lambda: self.waiting(d.base) >= 400, 20, "parked polls")
        self.grant(room, "one", user="one", base=d.base)
        flock.collect(10 * SLOW)
        held = Flock(d.base, [presence_path(room, head)] * 5)
        self.addCleanup(held.close)
        self.wait_until(lambda: self.waiting(d.base) >= 5, 5, "held polls")
        began = time.monotonic()
        d.terminate()
        held.collect(5 * SLOW)
        self.assertLess(time.monotonic() - began, 1.5 * SLOW)
        for reply, _ in held.replies:
            self.assertEqual([reply.status, reply.json()["mode"]], [200, "events"])
        self.stop_now(d)
