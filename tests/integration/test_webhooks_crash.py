# SPDX-License-Identifier: Apache-2.0
"""Webhooks through a receiver that fails now and then, while instances are killed: every event arrives, in order."""

import random

from harness import LONG
from harness.case import time
from harness.receiver import verified
from test_webhooks import Base

EVENTS = 1000 if LONG else 200


class Crash(Base):
    def test_every_event_arrives_though_instances_are_killed(self):
        dice = random.Random(7)

        def answer(delivery):
            time.sleep(dice.random() * 0.4)  # so that who is killed has messages on their way
            return 503 if dice.random() < 0.1 else 200

        r = self.receiver(answer)
        first = self.hooked(r)
        settings = dict(webhook_url=r.url, webhook_secret_file=first.config["webhook_secret_file"])
        self.start_daemon(**settings)
        rooms = [self.room() for _ in range(10)]
        steady = self.start_daemon(**settings)
        n = 0
        while n < EVENTS:
            for room in rooms:
                self.grant(room, "s%d" % n, 1, base=steady.base, user="u%d" % (n % 10))
                n += 1
            if n % 50 == 0:  # killed in the midst of it; another takes its place
                victim = self.daemons[0]
                victim.kill()
                self.forget(victim)
                self.start_daemon(**settings)
                self.daemons.sort(key=lambda d: d is steady)
        # A claim of one that was killed runs out after 30 s.
        self.got_all(r, *rooms, seconds=120)
        self.wait_until(lambda: self.count("webhook_event") == 0, 60, "an empty backlog")
        written = self.written(*rooms)
        self.assertGreaterEqual(len(written), EVENTS)
        bodies = {}
        for delivery in r.all():
            self.assertTrue(verified(self.secret, delivery.headers, delivery.body))
            self.assertEqual(bodies.setdefault(delivery.id, delivery.body), delivery.body, "the same bytes")
        for room in rooms:
            seen = list(dict.fromkeys(e["event_id"] for e in r.events(room)))
            self.assertEqual(seen, self.written(room), "in order, each at least once")
        self.assertEqual(len({e["event_id"] for e in r.events()}), len(written))
        self.end(steady)
