# SPDX-License-Identifier: Apache-2.0
"""The deploy drill: a full room over restarts, then everybody comes, then everybody leaves. Not told naively, which
costs 2·N·(N-1) messages, but in a few replies each."""

from harness.case import SLOW, Case, time
from harness.drill import Sessions, users
from harness.watchers import Watchers

N = 300
REPLIES_MAX = 4


class Drill(Case):
    weight = 30
    autostart = False

    def restart(self, d, kill):
        """The same daemon anew, on the same port."""
        if kill:
            d.kill()
            self.forget(d)
        else:
            self.stop_now(d)
        self.client.local.pool.pop(d.base, None)  # a connection to the old one
        return self.start_daemon(port=d.port)

    def everybody(self, watchers, revision, seconds=30):
        late = watchers.wait(seconds * SLOW, lambda w: w.since >= revision)
        self.assertEqual([(w.wrong, w.since) for w in late][:5], [], "everybody gets every event, up to %d" % revision)

    def burst(self, room, watchers, do, kinds, n):
        """Does it, waits until all its events are written and delivered. @return the replies of each watcher"""
        before = self.head(room)
        counts = {w: len(w.events) for w in watchers.all}
        began = time.monotonic()
        took = do()
        self.wait_until(lambda: self.events_after(room, before, kinds) == n * len(kinds), 40, "all events")
        head = self.head(room)
        self.everybody(watchers, head)
        replies = watchers.replies_with_events(began)
        for w in watchers.all:
            self.assertEqual([r for r, _ in w.events[counts[w]:]], list(range(before + 1, head + 1)))
        self.assertLessEqual(max(replies), REPLIES_MAX, "replies of one watcher; it took %.1f s" % took)
        return replies

    def events_after(self, room, revision, kinds):
        return int(self.q("SELECT count(*) FROM stillhere.event WHERE room_id = '%s' AND revision > %d AND kind IN (%s)" %
                          (room, revision, ", ".join("'%s'" % k for k in kinds))))

    def test_deploy(self):
        d = self.start_daemon()
        room = self.room()
        sessions = Sessions(d.base, room).start()
        self.addCleanup(sessions.stop)
        sessions.join(users("a", N))
        self.assertEqual(sessions.refused, [])
        snapshot = self.ok(self.poll(d.base, room))
        self.assertEqual(snapshot["counts"], {"users": N, "sessions": N})
        watchers = Watchers(d.base, room, N, snapshot["revision"], snapshot["epoch"]).start()
        self.addCleanup(watchers.stop)
        self.wait_until(lambda: self.waiting(d.base) >= N, 20, "%d parked polls" % N)

        for kill in (False, True):
            with self.subTest(kill=kill):
                d = self.restart(d, kill)
                self.wait_until(lambda: self.waiting(d.base) >= N, 20, "%d polls again" % N)
                self.pause(9)  # every session has renewed since
                self.assertEqual(sessions.refused, [])
                self.assertEqual(self.head(room), snapshot["revision"], "a restart is no event")
                self.assertEqual(sum(watchers.replies_with_events()), 0)

        self.burst(room, watchers, lambda: sessions.join(users("b", N)), ["lease.granted", "user.online"], N)
        self.pause(6)  # quiet again
        self.burst(room, watchers, lambda: sessions.leave(users("b", N)), ["session.closed", "user.offline"], N)
        self.assertEqual([w.wrong for w in watchers.all if w.wrong], [])
        self.assertEqual(sessions.refused, [])
        self.assertEqual(self.ok(self.poll(d.base, room))["counts"], {"users": N, "sessions": N})
