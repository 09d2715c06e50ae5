# SPDX-License-Identifier: Apache-2.0
"""The base of all tests: a database for each class, its daemons, helpers, and the checks after each test."""

import json
import os
import random
import re
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from . import SLOW, distributed, roles
from .client import (Client, Flock, Wire, all_replies, lease, parse_metrics, presence_path, quote, raw)
from .daemon import Daemon
from .pg import Postgres
from .recorder import RECORDER

#: Never right in PostgreSQL's log, whatever a client does.
PG_FORBIDDEN = re.compile(r"deadlock detected|payload string too long|25P02|current transaction is aborted|"
                          r"(?<!\[)\b(22023|26000|21000)\b|"  # and not the number of a process
                          r"prepared statement .* does not exist|cannot affect row a second time|"
                          r"duplicate key value|violates (check|unique|not-null)|syntax error|PANIC")

#: What the tests of one process share, set by the runner.
ENVIRONMENT = {"pg": None, "directory": None}

REVISION_MAX = 9007199254740991
RFC3339 = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")


class Case(unittest.TestCase):
    """A class of tests that share a database and `instances` daemons."""

    instances = 1
    config = {}
    #: False: the class starts what it needs by itself.
    autostart = True
    #: True: a cluster of its own, with fsync, that it may stop and crash.
    own_cluster = False
    #: How its tables are distributed, see harness/distributed.py.
    distributed = distributed.MODE
    #: True: its daemons connect as the role of sql/roles.sql that cannot migrate.
    runtime_role = roles.EVERYWHERE

    # -- life ----------------------------------------------------------------------------------------------------------

    @classmethod
    def begin(cls):
        cls.client = Client()
        cls.pg = ENVIRONMENT["pg"]
        cls.directory = os.path.join(ENVIRONMENT["directory"], cls.__module__ + "." + cls.__name__)
        os.makedirs(cls.directory, exist_ok=True)
        cls.daemons = []
        cls._query = None
        cls.allowed_log = []
        cls.executor = None
        cls.counter = cls.started = 0
        cls.database = ("%s_%s_%d" % (cls.__module__, cls.__name__, os.getpid())).lower()
        if cls.own_cluster:
            cls.pg = Postgres(cls.directory, fsync=True)
            cls.pg.start()
        cls.pg.create_database(cls.database)
        where = cls.distributed if not cls.own_cluster else ""
        if where == "citus":
            distributed.join(cls.pg, cls.database)
        if cls.runtime_role:
            roles.prepare(cls.pg, cls.database)
        if where == "citus":
            if not cls.runtime_role:
                roles.migrate(cls.pg.url(cls.database))
            distributed.distribute(cls.pg, cls.database)
        elif where == "texts":
            distributed.pretend(cls.pg, cls.database)
        cls.pg_mark = cls.pg.log_size()
        if cls.autostart:
            for _ in range(cls.instances):
                cls.start_daemon(wait=False)
            for d in cls.daemons:
                d.wait_ready()

    @classmethod
    def finish(cls):
        """Stops everything. @return what was wrong, as one text, or None"""
        wrong = []
        if cls.executor:
            cls.executor.shutdown(wait=False, cancel_futures=True)
        for d in cls.daemons:
            fault = d.stop()
            if fault:
                wrong.append(fault)
            wrong += ["%s: %s" % (d.name, line) for line in d.complaints(cls.allowed_log)]
        wrong += RECORDER.violations()[:10]
        cls.forget_query()
        if cls.own_cluster:
            cls.pg.remove()
        else:
            cls.pg.drop_database(cls.database)
            distributed.drop(cls.pg, cls.database)
        return "\n".join(wrong) or None

    @classmethod
    def start_daemon(cls, wait=True, database=None, stdout=None, port=None, **config):
        """One more daemon on the class's database; on a port that was another's before, where that is given."""
        # Another database was prepared by the test, if at all.
        user = roles.RUNTIME if cls.runtime_role and database is None else "postgres"
        settings = {"database_url": cls.pg.url(database or cls.database, user)}
        settings.update(cls.config)
        settings.update(config)
        cls.started += 1
        d = Daemon(cls.directory, "d%d" % cls.started, settings, stdout, port)
        d.number = cls.started
        cls.daemons.append(d)
        return d.wait_ready() if wait else d

    @classmethod
    def forget(cls, d):
        """A daemon that the test has ended itself."""
        cls.daemons.remove(d)

    @classmethod
    def stop_now(cls, d):
        """Stops one daemon inside a test, with the demands of every stop."""
        fault = d.stop()
        bad = d.complaints(cls.allowed_log)
        cls.forget(d)
        if fault or bad:
            raise AssertionError("\n".join([fault or ""] + bad))

    @classmethod
    def forget_query(cls):
        """Closes the psql behind q(), after the database has been away."""
        if cls._query:
            cls._query.close()
            cls._query = None

    def setUp(self):
        self.allow_5xx = False
        self.allow_log = []
        self.client.server_errors.clear()
        type(self).pg_mark = self.pg.log_size()

    def tidy(self):
        """Ends what a failed test has left behind, so that the next one finds the class's own daemons alive."""
        cls = type(self)
        for d in list(self.daemons):
            own = cls.autostart and d.number <= cls.instances
            if not own or not d.alive():
                d.kill()
                self.daemons.remove(d)
        while cls.autostart and len(self.daemons) < cls.instances:
            d = cls.start_daemon()
            d.number = 0

    def check_after(self):
        """What must hold after every test. @return the faults"""
        wrong = []
        for d in self.daemons:
            if not d.alive():
                wrong.append("%s has died with %r:\n%s" % (d.name, d.process.returncode, d.tail(60)))
            wrong += ["%s logged: %s" % (d.name, line) for line in d.complaints(self.allow_log + self.allowed_log)]
        type(self).allowed_log = type(self).allowed_log + self.allow_log
        if not self.allow_5xx:
            wrong += self.client.server_errors[:10]
        wrong += ["PostgreSQL logged: " + line for line in self.pg.log_lines(self.pg_mark, self.database)
                  if PG_FORBIDDEN.search(line) and "app=psql" not in line]
        return wrong

    # -- names and time ------------------------------------------------------------------------------------------------

    @property
    def base(self):
        return self.daemons[0].base

    @property
    def bases(self):
        return [d.base for d in self.daemons]

    def room(self, hint="room"):
        """A name that no other test uses."""
        type(self).counter += 1
        return "%s-%s-%d" % (hint, self._testMethodName, self.counter)

    def within(self, seconds):
        """An upper bound, made longer for slow builds."""
        return seconds * SLOW

    def wait_until(self, ready, seconds=10, what="it"):
        """Asks again and again until ready() is true. @return its value"""
        deadline = time.monotonic() + seconds * SLOW
        while True:
            value = ready()
            if value:
                return value
            if time.monotonic() > deadline:
                self.fail("%s did not come within %g s" % (what, seconds * SLOW))
            time.sleep(0.02)

    def pause(self, seconds):
        """Lets time pass where the test is about time passing."""
        time.sleep(seconds)

    # -- the database --------------------------------------------------------------------------------------------------

    def q(self, sql):
        """Runs SQL on the class's database. @return psql's unaligned answer as a string"""
        cls = type(self)
        if cls._query is None or cls._query.process.poll() is not None:
            cls._query = cls.pg.session(cls.database)
        return cls._query.value(sql)

    def psql(self):
        """A psql of its own, for locks held until the end of the test at most."""
        session = self.pg.session(self.database)
        self.addCleanup(session.close)
        return session

    def count(self, table, **where):
        return int(self.q("SELECT count(*) FROM stillhere.%s WHERE %s" % (table, condition(where))))

    def events(self, room, **where):
        """The rows of a room's events as dicts, in order."""
        text = self.q("SELECT coalesce(json_agg(e ORDER BY revision), '[]') FROM stillhere.event e WHERE %s" %
                      condition(dict(where, room_id=room)))
        return json.loads(text)

    def stored(self, room, session, user="u"):
        """The lease's row as a dict, or None."""
        text = self.q("SELECT to_json(l) FROM stillhere.lease l WHERE %s" %
                      condition(dict(room_id=room, user_id=user, session_id=session)))
        return json.loads(text) if text else None

    def tombstone(self, room, session, user="u"):
        text = self.q("SELECT to_json(t) FROM stillhere.tombstone t WHERE %s" %
                      condition(dict(room_id=room, user_id=user, session_id=session)))
        return json.loads(text) if text else None

    def head(self, room):
        return int(self.q("SELECT coalesce((SELECT revision FROM stillhere.room WHERE room_id = %s), 0)" % sql(room)))

    def age(self, room, session="s", user="u", by="1 hour"):
        """Makes a lease older by SQL, so that its expiry has passed."""
        # The times come out of a subquery, since Citus takes no sum of a column and an interval in SET.
        self.q("UPDATE stillhere.lease l SET granted_at = o.granted, renewed_at = o.renewed, expires_at = o.expires FROM "
               "(SELECT *, granted_at - interval '{0}' AS granted, renewed_at - interval '{0}' AS renewed, "
               "expires_at - interval '{0}' AS expires FROM stillhere.lease WHERE {1} OFFSET 0) o "
               "WHERE l.room_id = o.room_id AND l.user_id = o.user_id AND l.session_id = o.session_id".format(
                   by, condition(dict(room_id=room, user_id=user, session_id=session))))

    # -- the daemon ----------------------------------------------------------------------------------------------------

    def hb(self, base, room, user, session, revision=None, ttl_ms=None, meta=None, **extra):
        return self.client.hb(base, room, user, session, revision, ttl_ms, meta, **extra)

    def ok(self, reply):
        """Demands a 200. @return its JSON"""
        self.assertEqual(reply.status, 200, reply)
        return reply.json()

    def grant(self, room, session="s", revision=None, ttl_ms=60000, user="u", base=None, **more):
        """A heartbeat that must be accepted. @return the JSON"""
        answer = self.ok(self.hb(base or self.base, room, user, session, revision, ttl_ms, **more))
        self.assertEqual(answer["decision"], "accepted")
        return answer

    def poll(self, base, room, since=None, **query):
        return self.client.poll(base, room, since, **query)

    def background(self, function, *args, **kwargs):
        """Runs a function in a thread. @return its future"""
        cls = type(self)
        if cls.executor is None:
            cls.executor = ThreadPoolExecutor(64)
        return cls.executor.submit(function, *args, **kwargs)

    def parked(self, base, room, since, **query):
        """Starts a poll and waits until the daemon counts it as waiting. @return the future of its reply"""
        before = self.waiting(base)
        future = self.background(self.client.poll, base, room, since, fresh=True, **query)
        self.wait_until(lambda: future.done() or self.waiting(base) > before, 5, "a parked poll")
        return future

    def answer(self, future, seconds=10):
        """The reply of parked() within a time."""
        return future.result(timeout=seconds * SLOW)

    def metrics(self, base):
        reply = self.client.get(base, "/metrics")
        self.assertEqual(reply.status, 200, reply)
        return parse_metrics(reply.body.decode())

    def waiting(self, base):
        return int(self.metrics(base)["stillhere_longpoll_waiting"])

    # -- demands -------------------------------------------------------------------------------------------------------

    def problem(self, reply, status, code=None, field=None):
        """Demands a problem object (CONTRACT §9). @return it"""
        self.assertEqual(reply.status, status, reply)
        self.assertEqual(reply.headers.get("content-type", "").split(";")[0], "application/problem+json", reply)
        document = reply.json()
        return self.problem_object(document, status, code, field)

    def problem_object(self, document, status, code=None, field=None):
        for name in ("type", "title", "status", "code", "detail", "request_id"):
            self.assertIn(name, document)
        self.assertEqual(document["status"], status, document)
        if code is not None:
            self.assertEqual(document["code"], code, document)
        if field is not None:
            named = document.get("field") == field or re.search(r"\b%s\b" % re.escape(field), document["detail"])
            self.assertTrue(named, "%r is not named in %r" % (field, document))
        return document

    @contextmanager
    def subTest(self, **params):
        """Names the parameters in the failure."""
        try:
            yield
        except AssertionError as e:
            raise AssertionError("%s\nwith %r" % (e, params)) from e

    def near(self, value, low, high, what="value"):
        self.assertGreaterEqual(value, low, what)
        self.assertLessEqual(value, high, what)


def sql(value):
    """An SQL literal."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return "'" + value.replace("'", "''") + "'"


def condition(where):
    return " AND ".join("%s = %s" % (k, sql(v)) for k, v in where.items()) or "true"


def steps(events):
    """Events as (revision, kind, session), to be compared with the whole list; the session is None in a user's own."""
    return [(e["revision"], e["kind"], e.get("session_id")) for e in events]


def instant(text):
    """RFC 3339 (or PostgreSQL's JSON form) as seconds."""
    from datetime import datetime
    text = text.replace("Z", "+00:00")
    return datetime.fromisoformat(text).timestamp()


__all__ = ["Case", "Client", "Daemon", "ENVIRONMENT", "Flock", "Postgres", "REVISION_MAX", "RFC3339", "SLOW", "Wire",
           "all_replies", "condition", "instant", "json", "lease", "parse_metrics", "presence_path", "quote", "random",
           "raw", "sql", "steps", "threading", "time"]
