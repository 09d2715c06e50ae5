# SPDX-License-Identifier: Apache-2.0
"""What webhooks keep in the database, and what goes of it by itself: dead letters, idle lanes, targets that are gone."""

from harness.case import json, sql
from test_webhooks import Base

EVENT = ("INSERT INTO stillhere.webhook_event (room_id, target, revision, event_id, payload, message, dead_at, error) "
         "SELECT %s, '%s', n, 'e:%s:' || n, '{}', n, clock_timestamp() - interval '%s', 'status 410' "
         "FROM generate_series(1, %d) n")


class Keeping(Base):
    def prepared(self, receiver):
        """The tables, and a room whose events were told."""
        d = self.hooked(receiver)
        room = self.room()
        self.grant(room, "s", 1, base=d.base)
        self.got_all(receiver, room)
        self.wait_until(lambda: self.count("webhook_event") == 0, 5, "an empty backlog")
        self.stop_now(d)
        return room

    def again(self, receiver, **more):
        return self.start_daemon(webhook_url=receiver.url, webhook_secret_file=self.secret_file(self.secret), **more)

    def dead(self, room, age, n=1, target="default"):
        self.q(EVENT % ("'%s'" % room, target, room, age, n))

    def test_the_dead_go_after_thirty_days_and_idle_lanes_after_one(self):
        r = self.receiver()
        idle, fresh, moved = self.prepared(r), self.prepared(r), self.prepared(r)
        old, kept = self.room("old"), self.room("kept")
        self.dead(old, "30 days 1 minute")
        self.dead(kept, "29 days 23 hours")
        for room in (idle, moved):
            self.q("UPDATE stillhere.webhook_lane SET due_at = due_at - interval '25 hours' WHERE room_id = '%s'" % room)
        # An event that is being written: its lane is locked, and idle only for those who look before the commit.
        writer = self.psql()
        writer.run("BEGIN")
        writer.run("INSERT INTO stillhere.webhook_event (room_id, target, revision, event_id, payload) SELECT room_id, "
                   "target, newest + 1, 'x:y:9', '{\"event_id\":\"x:y:9\"}' FROM stillhere.webhook_lane WHERE room_id = '%s'" %
                   moved)
        writer.run("UPDATE stillhere.webhook_lane SET newest = newest + 1 WHERE room_id = '%s'" % moved)
        d = self.again(r)
        self.wait_until(lambda: self.count("webhook_event", room_id=old) == 0, 15, "the old one gone")
        self.wait_until(lambda: self.count("webhook_lane", room_id=idle) == 0, 15, "the idle lane gone")
        self.assertEqual(self.count("webhook_event", room_id=kept), 1)
        self.assertEqual(self.count("webhook_lane", room_id=fresh), 1)
        writer.run("COMMIT")
        self.wait_until(lambda: any(x.room == moved and x.id == "x:y:9" for x in r.taken()), 10, "its event")
        self.grant(idle, "t", 1, base=d.base)  # a room whose lane is gone has a new one
        self.got_all(r, idle)
        self.assertEqual([e["event_id"] for e in r.events(idle)], self.written(idle))
        self.end(d)

    def test_a_clock_that_was_ahead_holds_nothing_up(self):
        r = self.receiver()
        due, claimed = self.prepared(r), self.prepared(r)
        for room, columns in ((due, "due_at = now() + interval '2 hours'"),
                              (claimed, "claim = 'x', claimed_until = now() + interval '2 hours'")):
            self.q("INSERT INTO stillhere.webhook_event (room_id, target, revision, event_id, payload) SELECT room_id, target,"
                   " newest + 1, 'x:%s:9', '{\"event_id\":\"x:%s:9\"}' FROM stillhere.webhook_lane WHERE room_id = '%s'" %
                   (room, room, room))
            self.q("UPDATE stillhere.webhook_lane SET newest = newest + 1, %s WHERE room_id = '%s'" % (columns, room))
        d = self.again(r)
        for room in (due, claimed):
            self.wait_until(lambda: any(x.id == "x:%s:9" % room for x in r.taken()), 10, "the event of " + room)
        self.end(d)

    def test_counts_do_not_mix_the_dead_with_the_others(self):
        r = self.receiver(lambda delivery: 200 if len(delivery.events) > 2 else 500)
        room = self.prepared_failing(r)
        self.dead(self.room("dead"), "1 hour", 100001)
        self.q("ANALYZE stillhere.webhook_event")
        d = self.again(r)

        def told():
            m = self.metrics(d.base)
            return m["stillhere_webhook_dead"] and m
        m = self.wait_until(told, 20, "the count")
        self.assertEqual([m["stillhere_webhook_backlog"], m["stillhere_webhook_dead"]], [2, 100000])
        self.near(m["stillhere_webhook_oldest_seconds"], 3600, 3700)
        target = self.ok(self.client.get(d.base, "/webhooks"))["targets"][0]
        self.assertEqual([target["backlog"], target["dead"], target["last_error"]], [2, 100000, "status 500"])
        self.near(target["oldest_age_ms"], 3600000, 3700000)
        self.assertEqual(self.count("webhook_event", room_id=room), 2)
        self.end(d)

    def test_a_message_is_of_one_epoch(self):
        """As after a restore: events of before wait, tried and untried, and new ones come behind them."""
        down = [True]
        r = self.receiver(lambda delivery: 503 if down[0] else 200)
        d = self.hooked(r)
        room = self.room()
        self.grant(room, "s", 1, base=d.base)
        self.wait_until(lambda: r.all(), 10, "an attempt")
        self.grant(room, "t", 1, base=d.base)
        self.stop_now(d)
        self.q("UPDATE stillhere.incarnation SET word = gen_random_uuid()")
        d = self.again(r)
        for session in ("v", "w"):
            self.grant(room, session, 1, base=d.base)
        down[0] = False
        self.wait_until(lambda: self.count("webhook_event") == 0, 30, "an empty backlog")
        old, new = r.all()[0].json["data"]["epoch"], r.all()[-1].json["data"]["epoch"]
        self.assertNotEqual(old, new)
        self.assertEqual([e["revision"] for e in r.events(room)], [1, 2, 3, 4, 5], "in order, each once")
        for x in r.all():
            self.assertEqual({e["event_id"].split(":")[0] for e in x.events}, {x.json["data"]["epoch"]})
            self.assertEqual({y.body for y in r.all() if y.id == x.id}, {x.body}, "one id, one form")
        self.assertEqual([x.json["data"]["epoch"] for x in r.taken()][:2], [old, old])
        self.end(d)

    def test_with_other_neighbours_it_is_another_message(self):
        """As after a restore to before its first attempt, when more had gathered: whoever drops by webhook-id loses nothing."""
        r = self.receiver()
        d = self.hooked(r)
        room = self.room()
        self.grant(room, "s", 1, base=d.base)
        self.got_all(r, room)
        self.grant(room, "t", 1, base=d.base)
        self.got_all(r, room)
        self.wait_until(lambda: self.count("webhook_event") == 0, 5, "an empty backlog")
        self.stop_now(d)
        first = r.all()[0]
        self.assertEqual([len(x.events) for x in r.all()], [2, 1])
        self.assertEqual(r.all()[1].id, r.all()[1].events[0]["event_id"], "that of one event is the event's")
        for kept in (2, 3):
            for e in r.events(room)[:kept]:
                self.q("INSERT INTO stillhere.webhook_event (room_id, target, revision, event_id, payload) VALUES "
                       "(%s, 'default', %d, %s, %s)" % (sql(room), e["revision"], sql(e["event_id"]), sql(
                           json.dumps(e, separators=(",", ":"), ensure_ascii=False))))
            self.q("UPDATE stillhere.webhook_lane SET done = 0, newest = %d, due_at = clock_timestamp()" % kept)
            before = len(r.all())
            d = self.again(r)
            self.wait_until(lambda: self.count("webhook_event") == 0, 15, "an empty backlog")
            self.stop_now(d)
            (x,) = r.all()[before:]
            self.assertEqual([e["revision"] for e in x.events], list(range(1, kept + 1)))
            self.assertEqual(x.id == first.id, x.body == first.body)
            self.assertEqual(x.body == first.body, kept == 2)
            self.assertTrue(x.id.startswith(first.events[0]["event_id"] + "-"), x.id)
        self.end(self.again(r))

    def prepared_failing(self, receiver):
        """A room whose two events could not be told for an hour."""
        d = self.hooked(receiver)
        room = self.room()
        self.grant(room, "s", 1, base=d.base)
        self.wait_until(lambda: self.count("webhook_lane", last_error="status 500") == 1, 10, "a failure")
        self.stop_now(d)
        self.q("UPDATE stillhere.webhook_event SET created_at = created_at - interval '1 hour'")
        return room


class Gone(Base):
    """A target is taken out of the configuration, with events left."""

    def targets_of(self, d):
        return {t["name"]: t for t in self.ok(self.client.get(d.base, "/webhooks"))["targets"]}

    def start(self, *lines, **more):
        return self.start_daemon(webhook_targets_file=self.targets(*lines), **more)

    def left_behind(self, a, b):
        """A room of which `a` was told nothing, and its events."""
        d = self.start(("a", a, "*", "*"), ("b", b, "*", "*"))
        room = self.room()
        self.grant(room, "s", 1, base=d.base)
        self.got_all(b, room)
        self.wait_until(lambda: self.count("webhook_lane", target="a", room_id=room, last_error="status 500") == 1, 10,
                        "a failure")
        self.stop_now(d)
        return room

    def told(self, d, what):
        """One line of the log says how many events were given up, and of which targets."""
        self.allow_log = ["were given up"]

        def lines():
            return [line for line in d.text().splitlines() if "events were given up" in line]
        self.wait_until(lines, 5, "a line")
        self.pause(0.5)  # two ticks, in which nothing more is given up
        self.assertEqual([line.partition("not configured any more: ")[2] for line in lines()], [what])

    def test_a_row_that_cannot_be_read_holds_up_its_own_target_alone(self):
        a, b = self.receiver(lambda delivery: 500), self.receiver()
        broken = self.left_behind(a, b)
        self.q("UPDATE stillhere.webhook_event SET payload = 'x' WHERE target = 'a' AND room_id = '%s'" % broken)
        self.q("UPDATE stillhere.webhook_lane SET due_at = now() WHERE target = 'a'")
        self.allow_log = ["statement webhook_messages_read failed"]
        d = self.start(("a", a, "*", "*"), ("b", b, "*", "*"))
        self.wait_until(lambda: "webhook_messages_read" in d.text(), 10, "the complaint")
        for i in range(3):
            room = self.room()
            self.grant(room, "s", 1, base=d.base)
            self.got_all(b, room)
        self.end(d)
        self.q("DELETE FROM stillhere.webhook_event WHERE target = 'a'")
        type(self).pg_mark = self.pg.log_size()  # PostgreSQL has named the row each time, as it should

    def test_several_targets_are_told_of_in_one_line(self):
        d = self.start_daemon(webhook_give_up_ms=100)
        for target, n in (("a", 3), ("b", 5)):
            self.q("INSERT INTO stillhere.webhook_event (room_id, target, revision, event_id, payload, created_at) SELECT "
                   "'left', '%s', n, 'e:left:' || n, '{}', clock_timestamp() - interval '1 day' FROM generate_series(1, %d) n"
                   % (target, n))
        self.stop_now(d)
        self.q("INSERT INTO stillhere.webhook_lane (room_id, target, newest) VALUES ('left', 'a', 3), ('left', 'b', 5)")
        d = self.start_daemon(webhook_give_up_ms=100)
        self.told(d, "5 of b, 3 of a")
        self.assertEqual(self.count("webhook_event", error="its target is not configured any more"), 8)
        self.end(d)

    def test_what_is_left_waits_for_the_target_to_come_back(self):
        down = [True]
        a, b = self.receiver(lambda delivery: 500 if down[0] else 200), self.receiver()
        room = self.left_behind(a, b)
        attempts = len(a.all())
        old = self.room("old")  # tells when the first look is over
        self.q(EVENT % ("'%s'" % old, "b", old, "31 days", 1))
        d = self.start(("b", b, "*", "*"), webhook_give_up_ms=3600000)
        gone = self.targets_of(d)["a"]
        self.assertEqual([gone["url"], gone["backlog"], gone["dead"], gone["last_error"]], [None, 2, 0, "status 500"])
        self.grant(room, "t", 1, base=d.base)  # not for a, which is not there
        self.got_all(b, room)
        self.wait_until(lambda: self.count("webhook_event", room_id=old) == 0, 15, "a look")
        self.assertEqual(self.q("SELECT count(*), count(dead_at) FROM stillhere.webhook_event WHERE target = 'a'"), "2|0")
        self.assertEqual(len(a.all()), attempts)
        self.stop_now(d)
        down[0] = False
        d = self.start(("a", a, "*", "*"), ("b", b, "*", "*"))
        self.wait_until(lambda: len(a.taken()) == 1, 15, "the message")
        self.assertEqual({x.body for x in a.all()}, {a.all()[0].body}, "the same bytes")
        self.end(d)

    def test_it_is_given_up_when_it_is_too_old(self):
        down = [True]
        a, b = self.receiver(lambda delivery: 500 if down[0] else 200), self.receiver()
        room = self.left_behind(a, b)
        d = self.start(("b", b, "*", "*"), webhook_give_up_ms=100)
        self.wait_until(lambda: self.count("webhook_event", target="a", error="its target is not configured any more") ==
                        2, 15, "giving up")
        self.told(d, "2 of a")
        gone = self.targets_of(d)["a"]
        self.assertEqual([gone["backlog"], gone["dead"]], [0, 2])
        dead = self.ok(self.client.get(d.base, "/webhooks/dead?target=a"))["dead"]
        self.assertEqual([m["event_ids"] for m in dead], [[e["event_id"] for e in a.all()[0].events]])
        self.stop_now(d)
        down[0] = False
        d = self.start(("a", a, "*", "*"), ("b", b, "*", "*"))
        self.grant(room, "t", 1, base=d.base)  # the lane goes on behind it
        self.wait_until(lambda: len(a.taken()) == 1, 15, "the next message")
        self.assertNotEqual(a.taken()[0].id, a.all()[0].id)
        self.ok(self.client.request(d.base, "POST", "/webhooks/replay", json.dumps({"target": "a"}).encode(),
                                    headers={"Content-Type": "application/json"}))
        self.wait_until(lambda: len(a.taken()) == 2, 15, "the replay")
        self.assertEqual((a.taken()[1].id, a.taken()[1].body), (a.all()[0].id, a.all()[0].body))
        self.end(d)

    def test_it_is_looked_after_though_there_is_no_target_at_all(self):
        a, b = self.receiver(lambda delivery: 500), self.receiver()
        room = self.left_behind(a, b)
        d = self.start_daemon(webhook_give_up_ms=100)
        self.wait_until(lambda: self.count("webhook_event", room_id=room, error="its target is not configured any more")
                        == 2, 15, "giving up")
        self.told(d, "2 of a")
        answer = self.client.request(d.base, "POST", "/webhooks/replay", json.dumps({"target": "a"}).encode(),
                                     headers={"Content-Type": "application/json"})
        self.assertEqual(self.ok(answer)["replayed_events"], 2, "it is gone, but not unknown")
        self.wait_until(lambda: self.q("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
                                       "application_name = 'stillhered webhook'") == "0", 5, "no connection kept")
        self.end(d)
