# SPDX-License-Identifier: Apache-2.0
"""The statements for tables that Citus has distributed, run on plain PostgreSQL: they decide and answer as the others do.

What Citus itself takes and does is tried by hand (harness/distributed.py says how), since Debian has no package of it.
"""

import test_close
import test_decisions
import test_last_seen
import test_limits
import test_members
import test_webhooks
from harness import distributed
from harness.case import Case, json, lease, presence_path, quote, sql

TEXTS = distributed.MODE or "texts"


class Table(test_decisions.Table):
    distributed = TEXTS


class Heartbeats(test_decisions.Heartbeats):
    distributed = TEXTS


class Close(test_close.Close):
    distributed = TEXTS


class Members(test_members.Members):
    distributed = TEXTS


class Replies(test_last_seen.Replies):
    distributed = TEXTS


class Quotas(test_limits.Quotas):
    distributed = TEXTS


class Again(test_webhooks.Again):
    distributed = TEXTS


class Same(Case):
    """Two instances on one database, one of which finds the tables distributed."""

    autostart = False
    distributed = ""
    config = {"ttl_min_ms": 100, "sweep_interval_ms": 3600000, "offline_grace_ms": 1000}

    #: What an answer says of the moment in which it was given, beside durations.
    MOMENTS = ("server_time", "request_id", "text")

    def start(self):
        plain = self.start_daemon()
        distributed.pretend(self.pg, self.database, "current_setting('test.distributed', true) = 'on'")
        url = self.pg.url(self.database) + "&options=-c%20test.distributed%3Don"
        other = self.start_daemon(database_url=url)
        with open(other.log) as f:
            self.assertIn("distributed by Citus", f.read())
        with open(plain.log) as f:
            self.assertNotIn("distributed by Citus", f.read())
        return plain.base, other.base

    def still(self, value):
        """A document without what changes from one moment to the next."""
        if isinstance(value, list):
            return [self.still(v) for v in value]
        if isinstance(value, dict):
            return {k: self.still(v) for k, v in value.items()
                    if k not in self.MOMENTS and (k == "ttl_ms" or not k.endswith("_ms"))}
        return value

    def fill(self, bases, room):
        """Sessions that live, have run out, were closed, revoked, or begun again."""
        for i in range(6):
            self.ok(self.client.batch(bases[i % 2], [lease(room + r, "u%d" % u, "s%d" % i, i + 1, meta={"i": i})
                                                     for r in "abc" for u in range(3)]))
        self.age(room + "a", "s1", "u1")
        self.ok(self.client.close(bases[0], room + "a", "u0", "s0"))
        self.ok(self.client.close(bases[1], room + "a", "u0", "s1"))
        for base, user in zip(bases, ("u2", "gone")):
            self.ok(self.client.request(base, "DELETE", "/rooms/%sb/members/%s" % (room, user)))
        self.ok(self.client.request(bases[1], "PUT", "/rooms/%sb/members/u1" % room, json.dumps({"role": "r"})))

    def questions(self, room):
        rooms = [room + r for r in "abc"] + [room + "never"]
        for r in rooms:
            for view in ("sessions", "users", "count"):
                yield presence_path(r, view=view)
            yield presence_path(r, since=0)
            for path in ("leases", "members", "last-seen", "attendance"):
                yield "/rooms/%s/%s" % (quote(r), path)
            for user in ("u0", "u1", "u2", "gone", "nobody"):
                yield "/rooms/%s/users/%s/explain" % (quote(r), user)
        yield "/rooms?prefix=" + quote(room)
        yield "/rooms?limit=2"
        yield "/last-seen?user_id=u2&user_id=nobody&user_id=u0"
        for user in ("u0", "u2", "nobody"):
            yield "/users/%s/presence" % user
        yield "/webhooks"

    def test_both_answer_alike(self):
        bases = self.start()
        room = self.room("r")
        self.fill(bases, room)
        for question in self.questions(room):
            with self.subTest(question=question):
                answers = [self.client.get(base, question) for base in bases]
                self.assertEqual(answers[0].status, answers[1].status)
                self.assertEqual(answers[0].status, 200, answers[0])
                self.assertEqual(self.still(answers[0].json()), self.still(answers[1].json()))

    def test_what_was_waited_for_is_not_taken_off_the_ttl(self):
        """The time of a renewal is read when the lock is there. It is held for less than the writer waits for it, since
        another attempt would have another time anyway."""
        base = self.start()[1]
        for given in (2, None, 2, None):
            room = self.room()
            self.grant(room, base=base)
            psql = self.psql()
            psql.run("BEGIN")
            psql.run("SELECT FROM stillhere.lease WHERE room_id = %s FOR UPDATE" % sql(room))
            renewal = self.background(self.client.hb, base, room, "u", "s", given, 3000, fresh=True)
            self.pause(0.15)
            released = float(psql.value("SELECT extract(epoch FROM clock_timestamp())"))
            psql.run("COMMIT")
            self.ok(self.answer(renewal))
            ends = float(self.q("SELECT extract(epoch FROM expires_at) FROM stillhere.lease WHERE room_id = %s" % sql(room)))
            self.assertGreaterEqual(ends, released + 3)
