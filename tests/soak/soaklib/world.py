# SPDX-License-Identifier: Apache-2.0
"""What all threads of the soak share: the cluster, the instances, the calls to them, and what was found wrong."""

import http.client
import json
import os
import random
import threading
import time
from collections import Counter
from datetime import datetime

from harness import SLOW
from harness.client import Client
from harness.daemon import Daemon
from harness.pg import Postgres

#: A 5xx, or no answer, is excused this long after the end of a fault, in seconds.
AFTERMATH = 10 * SLOW
#: More violations than this are counted and not kept.
KEPT = 100


def ms(text):
    """An RFC 3339 time as milliseconds."""
    return datetime.fromisoformat(text).timestamp() * 1000


class QuietClient(Client):
    """5xx are judged by the World; nothing is remembered here. A connection that was idle for long is not used again:
    the server may be closing it at that moment."""

    IDLE = 5.0

    def note(self, what, status):
        pass

    def request(self, base, *args, **kwargs):
        used = self.local.__dict__.setdefault("used", {})
        pool = self.local.__dict__.setdefault("pool", {})
        if base in pool and time.monotonic() - used.get(base, 0) > self.IDLE:
            pool.pop(base).close()
        try:
            return super().request(base, *args, **kwargs)
        finally:
            used[base] = time.monotonic()


class Reply:
    """What came of one request: status 0 when there was no answer; then `doc` says why."""

    def __init__(self, status, doc, sent, done):
        self.status, self.doc, self.sent, self.done = status, doc, sent, done

    @property
    def final(self):
        """Whether a client has no reason to ask again."""
        return 0 < self.status < 500


class World:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.begun = time.monotonic()
        self.offset = time.time() - self.begun  # wherever this changes, somebody has set the machine's clock
        self.lock = threading.Lock()
        self.violations, self.violation_count = [], 0
        self.counts = Counter()
        self.faults = []  # faults.Fault, the newest last
        self.faults_over = threading.Event()
        self.load_over = threading.Event()
        self.readers_over = threading.Event()
        self.heads = None  # room -> revision, once nothing changes any more
        self.client = QuietClient()
        self.down_until = [0.0] * options.instances
        self.pg, self.instances, self.generation = None, [], 0
        self.lost_time = 0.0

    # -- randomness ----------------------------------------------------------------------------------------------------

    def random(self, name):
        """A generator of its own for each thread, the same with the same seed."""
        return random.Random("%s/%s" % (self.options.seed, name))

    def age(self):
        return time.monotonic() - self.begun

    # -- processes -----------------------------------------------------------------------------------------------------

    def start(self):
        self.pg = Postgres(self.directory, fsync=True)
        self.pg.start()
        self.pg.create_database("soak")
        for i in range(self.options.instances):
            self.pg.psql("postgres", "CREATE ROLE soak%d SUPERUSER LOGIN" % i)
            os.mkdir(self.link_directory(i))
            self.reach_database(i, True)
        self.pg_mark = self.pg.log_size()
        self.instances = [self.new_instance(i) for i in range(self.options.instances)]
        for d in self.instances:
            d.wait_ready()

    def link_directory(self, i):
        return os.path.join(self.directory, "to-db%d" % i)

    def reach_database(self, i, yes):
        """Instance @a i finds the server's socket by a link of its own; without it the database is out of reach."""
        link = os.path.join(self.link_directory(i), ".s.PGSQL.5432")
        if yes and not os.path.islink(link):
            os.symlink(os.path.join(self.pg.socket, ".s.PGSQL.5432"), link)
        elif not yes and os.path.islink(link):
            os.unlink(link)

    def new_instance(self, i, port=None):
        o = self.options
        url = "postgresql:///soak?host=%s&port=5432&user=soak%d" % (self.link_directory(i).replace("/", "%2F"), i)
        return Daemon(self.directory, "i%d" % i, {
            "database_url": url, "decision_log": "transitions", "ttl_min_ms": 500, "offline_grace_ms": o.grace_ms,
            "event_retention_ms": 7 * 86400000, "event_retention_count": 10000000, "last_seen_flush_ms": 2000,
            "tombstone_retention_ms": 7 * 86400000, "log_level": "info"}, port=port)

    def restart(self, i):
        """Starts instance @a i again after its end, on the same port."""
        checked = self.instances[i].checked
        self.instances[i] = self.new_instance(i, self.instances[i].port)
        self.instances[i].checked = checked

    def psql(self, sql):
        return self.pg.psql("soak", sql)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def pick(self, rng):
        """An instance that has not failed just now, as a load balancer would; or any."""
        now = time.monotonic()
        up = [i for i, until in enumerate(self.down_until) if until <= now]
        return rng.choice(up or range(len(self.down_until)))

    def call(self, i, method, path, document=None, headers=None, timeout=4):
        """One request to instance @a i. A 5xx and no answer are violations unless a fault excuses them."""
        headers = dict(headers or {})
        body = None
        if document is not None:
            body, headers["Content-Type"] = json.dumps(document), "application/json"
        sent = time.monotonic()
        try:
            raw = self.client.request(self.instances[i].base, method, path, body=body, headers=headers, timeout=timeout)
            reply = Reply(raw.status, raw.json() if raw.body else {}, sent, time.monotonic())
        except (OSError, http.client.HTTPException, ValueError) as e:
            reply = Reply(0, "%s: %s" % (type(e).__name__, e), sent, time.monotonic())
            if isinstance(e, ValueError):
                self.violate("a reply is not JSON", "%s %s on instance %d: %r" % (method, path, i, reply.doc))
        self.counts["requests"] += 1
        if not reply.final:
            self.unavailable(i, method, path, reply)
        return reply

    def unavailable(self, i, method, path, reply):
        """A request that must be tried again: judges whether it may fail now."""
        self.counts["5xx" if reply.status else "no answer"] += 1
        if time.monotonic() - reply.sent > 0.5 or not reply.status:
            self.down_until[i] = time.monotonic() + 0.5
        if reply.status not in (0, 503):
            self.violate("a %d" % reply.status, "%s %s on instance %d: %r" % (method, path, i, reply.doc))
        elif not self.excused(reply.sent, reply.done):
            self.violate("a %d without a fault" % reply.status if reply.status else "no answer without a fault",
                         "%s %s on instance %d after %.1f s: %r" %
                         (method, path, i, reply.done - reply.sent, reply.doc))

    def excused(self, since, until, aftermath=AFTERMATH):
        """Whether a fault was on in this time, or had ended at most so long before."""
        with self.lock:
            return any(f.begin <= until and (f.end is None or since <= f.end + aftermath) for f in self.faults[-4:])

    def excused_at(self, since_ms, until_ms):
        """The same for times of day, in milliseconds, whatever the fault's place in the list."""
        shift = time.time() - time.monotonic()
        since, until = since_ms / 1000 - shift, until_ms / 1000 - shift
        return any(f.begin <= until and since <= f.end + AFTERMATH for f in self.faults)

    def quiet_seconds(self):
        """How much of the time so far no fault excused anything."""
        quiet, at = 0.0, self.begun
        for f in self.faults:
            quiet += max(0.0, f.begin - at)
            at = max(at, f.end + AFTERMATH)
        return quiet + max(0.0, time.monotonic() - at)

    # -- judgement -----------------------------------------------------------------------------------------------------

    def violate(self, what, detail, session=None):
        """Something that must not be. With a session its last actions are kept too."""
        with self.lock:
            self.violation_count += 1
            on = [f.name for f in self.faults if f.end is None or time.monotonic() - f.end < AFTERMATH]
            stepped = time.time() - time.monotonic() - self.offset
            if abs(stepped) > 0.2:  # by less than an outage takes, it ends short leases; see doc/reliability.md
                on.append("the machine's clock was stepped by %.1f s" % stepped)
            if len(self.violations) >= KEPT:
                return
            self.violations.append({"what": what, "detail": detail, "at_s": round(self.age(), 1), "faults": on,
                                    "trail": list(session.trail) if session else []})
        print("VIOLATION at %.1f s (%s): %s: %s" % (self.age(), ", ".join(on) or "no fault", what, detail[:300]),
              flush=True)
