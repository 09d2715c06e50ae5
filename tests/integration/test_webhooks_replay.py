# SPDX-License-Identifier: Apache-2.0
"""Webhooks: a whole target is sent again in portions, each a transaction of its own. Others go on meanwhile, and it can be
stopped and begun again at any point."""

import os
import subprocess

from harness.case import json, sql
from test_webhooks import Base

#: The end of the fourth portion of 1000 would be in the midst of a message, and of a room.
ROOMS, EVENTS, MESSAGE = 9, 560, 7
ALL = ROOMS * EVENTS


class Replay(Base):
    weight = 20

    def rooms(self):
        prefix = self.room()
        return ["%s-%d" % (prefix, i) for i in range(ROOMS)]

    def bury(self, target, rooms):
        """Messages of seven events that were given up."""
        self.q("INSERT INTO stillhere.webhook_event (room_id, target, revision, event_id, payload, message, attempts, dead_at,"
               " error) SELECT r, %s, n, 'e:' || r || ':' || n, json_build_object('event_id', 'e:' || r || ':' || n, "
               "'revision', n, 'at', '2026-11-30T15:00:00.000Z')::text, (n + %d) / %d * %d, 3, clock_timestamp(), 'status 410'"
               " FROM unnest(ARRAY[%s]) r, generate_series(1, %d) n" %
               (sql(target), MESSAGE - 1, MESSAGE, MESSAGE, ", ".join(sql(r) for r in rooms), EVENTS))
        self.q("ANALYZE stillhere.webhook_event")

    def two_targets(self):
        a, b = self.receiver(), self.receiver()
        d = self.start_daemon(webhook_targets_file=self.targets(("a", a, "*", "only-a-*"), ("b", b, "*", "*")))
        return a, b, d

    def post(self, d, **body):
        return self.client.request(d.base, "POST", "/webhooks/replay", json.dumps(body).encode(),
                                   headers={"Content-Type": "application/json"})

    def dead(self):
        return int(self.q("SELECT count(*) FROM stillhere.webhook_event WHERE target = 'a' AND dead_at IS NOT NULL"))

    def whole(self, receiver, rooms):
        """Each message came as a whole, and those of a room in order."""
        self.wait_until(lambda: self.count("webhook_event", target="a") == 0, 60, "every message")
        for x in receiver.taken():
            self.assertEqual(len(x.events), MESSAGE, [e["revision"] for e in x.events])
        for room in rooms:
            seen = list(dict.fromkeys(e["revision"] for e in receiver.events(room)))
            self.assertEqual(seen, list(range(1, EVENTS + 1)), room)

    def test_others_go_on_while_a_whole_target_is_sent_again(self):
        a, b, d = self.two_targets()
        rooms = self.rooms()
        self.bury("a", rooms)
        # Somebody is in the way of the last of it.
        self.q("INSERT INTO stillhere.webhook_lane (room_id, target, replay, newest, done) VALUES (%s, 'a', true, 1, 1)" %
               sql(rooms[-1]))
        holder = self.psql()
        holder.run("BEGIN")
        holder.run("SELECT FROM stillhere.webhook_lane WHERE room_id = %s AND target = 'a' FOR UPDATE" % sql(rooms[-1]))
        answer = self.background(self.post, d, target="a")
        self.wait_until(lambda: self.dead() < ALL / 4, 10, "what is not in anybody's way")
        room = self.room()
        self.grant(room, "s", 1, base=d.base)
        self.got_all(b, room)
        self.wait_until(lambda: a.taken(), 10, "a message of the first portions")
        left = self.dead()
        self.assertGreater(left, 0)
        self.assertEqual((ALL - left) % MESSAGE, 0, "no message in two portions")
        holder.run("COMMIT")
        answer = answer.result(60)
        if answer.status == 503:  # a slow machine: its time was over before the lock was. What is done is done.
            self.allow_5xx = True
            answer, sent = self.post(d, target="a"), left
        else:
            sent = ALL
        reply = self.ok(answer)
        self.assertEqual((reply["replayed_events"], reply["next"]), (sent, None))
        self.whole(a, rooms)
        self.end(d)

    def test_it_goes_on_behind_what_was_done(self):
        a, _, d = self.two_targets()
        rooms = self.rooms()
        self.bury("a", rooms)
        # As after an answer whose `next` this is. What is before it may be dead again, and is not met once more.
        after = "a/%s/%d" % (rooms[3], 70)
        for wrong in ("b" + after[1:], after[1:], "a/x", 5, None):
            self.problem(self.post(d, target="a", after=wrong), 400, "bad_field", "after")
        self.problem(self.post(d, target="a", room_id=rooms[4], after=after), 400, "bad_field", "after")
        self.assertEqual(self.dead(), ALL, "nothing was changed")
        first = self.ok(self.post(d, target="a", room_id=rooms[3], after=after))
        self.assertEqual((first["replayed_events"], first["next"]), (EVENTS - 70, None))
        second = self.ok(self.post(d, target="a", after=after))
        self.assertEqual((second["replayed_events"], second["next"]), ((ROOMS - 4) * EVENTS, None))
        self.wait_until(lambda: self.count("webhook_event", target="a") == self.dead(), 60, "those messages")
        one = self.ok(self.post(d, target="a", room_id=rooms[3], message=14))
        self.assertEqual((one["replayed_events"], one["next"]), (MESSAGE, None))
        rest = self.ok(self.post(d, target="a"))
        self.assertEqual((rest["replayed_events"], rest["next"]), (3 * EVENTS + 70 - MESSAGE, None))
        self.assertEqual(self.ok(self.post(d, target="a"))["replayed_events"], 0)
        self.wait_until(lambda: self.count("webhook_event", target="a") == 0, 60, "all")
        self.assertEqual(len({e["event_id"] for e in a.events()}), ALL)
        self.end(d)

    def test_the_command_goes_on_until_all_is_done(self):
        """Each lane takes 300 ms, so that the time of one request does not do for all of it."""
        a, _, d = self.two_targets()
        rooms = self.rooms()
        self.bury("a", rooms)
        self.q("CREATE FUNCTION slow_lane() RETURNS trigger LANGUAGE plpgsql AS "
               "'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END'; CREATE TRIGGER slow BEFORE INSERT ON stillhere.webhook_lane "
               "FOR EACH ROW WHEN (NEW.replay) EXECUTE FUNCTION slow_lane()")
        self.addCleanup(self.q, "DROP FUNCTION IF EXISTS slow_lane CASCADE")
        done = subprocess.run([os.environ["STILLHERE"], "webhooks", "replay", "a", "--url", d.base], capture_output=True,
                              text=True, timeout=self.within(60))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("%d events will be sent again" % ALL, done.stdout)
        self.assertIn("so far", done.stderr)
        self.whole(a, rooms)
        self.end(d)
