# SPDX-License-Identifier: Apache-2.0
"""What goes wrong: one fault at a time, at random, and how long it takes after its end until every instance accepts a
heartbeat again."""

import os
import signal
import threading
import time

from harness import SLOW
from harness.client import lease

#: Longest time to recover, in seconds.
BOUND = 10 * SLOW


class Fault:
    def __init__(self, name):
        self.name, self.begin, self.end = name, time.monotonic(), None
        self.recovery = None  # seconds, until the last instance was back
        self.detail = ""


class Faults(threading.Thread):
    """Injects until `seconds` are over. `quick` makes each short."""

    def __init__(self, world, seconds):
        super().__init__(name="faults", daemon=True)
        self.world, self.rng = world, world.random("faults")
        self.quick = world.options.quick
        self.until = time.monotonic() + seconds
        self.seconds, self.probes = seconds, 0
        self.kinds = [self.kill, self.kill, self.term, self.term, self.freeze, self.database_fast,
                      self.database_immediate, self.database_freezes, self.terminate_backends, self.kill_listeners,
                      self.cut, self.cut_silently, self.rolling, self.database_and_kill]
        self.bag, self.few = [], False

    def run(self):
        try:
            while time.monotonic() < self.until:
                pause = self.rng.choice((0.5,) if self.quick else (3, 5, 8, 16)) * self.rng.uniform(0.8, 1.2)
                time.sleep(min(pause, max(0, self.until - time.monotonic())))
                if time.monotonic() < self.until:
                    self.inject(self.next_kind())
        except Exception as e:
            self.world.violate("the thread of the faults has died", "%s: %s" % (type(e).__name__, e))
        finally:
            self.world.faults_over.set()

    def next_kind(self):
        """Each once in random order, and again. All instances die at once near the beginning and the end alone, so
        that one of them lives long enough to see its memory grow."""
        if not self.bag:
            self.bag = list(self.kinds)
            spent = 1 - (self.until - time.monotonic()) / self.seconds
            if not self.few and not 0.15 < spent < 0.85:
                self.bag.append(self.kill_all)
            self.rng.shuffle(self.bag)
        return self.bag.pop()

    def inject(self, kind):
        fault = Fault(kind.__name__)
        with self.world.lock:
            self.world.faults.append(fault)
        fault.detail = kind() or ""
        fault.end = time.monotonic()
        fault.recovery = self.recover(fault)
        print("%6.1f s: %s %s for %.1f s, recovered in %.2f s" %
              (self.world.age(), fault.name, fault.detail, fault.end - fault.begin, fault.recovery), flush=True)
        if fault.recovery > BOUND:
            self.world.violate("too slow to recover", "%s %s: %.1f s" % (fault.name, fault.detail, fault.recovery))

    def recover(self, fault):
        """@return seconds from the fault's end until every instance has accepted a heartbeat"""
        for i in range(len(self.world.instances)):
            while True:
                self.probes += 1
                reply = self.world.call(i, "PUT", "/leases", lease("probe", "u", "s%d" % i, None, 3000))
                if reply.status == 200:
                    break
                if time.monotonic() > fault.end + 6 * BOUND:
                    self.world.violate("no recovery", "instance %d after %s: %r" % (i, fault.name, reply.doc))
                    break
                time.sleep(0.02)
        return time.monotonic() - fault.end

    def length(self, longest):
        return self.rng.uniform(0.2, 0.8) if self.quick else self.rng.uniform(0.3, longest)

    def mortal(self):
        """An instance to be ended: never the last one, which lives as long as it can."""
        return self.rng.randrange(max(1, len(self.world.instances) - 1))

    def any(self):
        return self.rng.randrange(len(self.world.instances))

    # -- the kinds -----------------------------------------------------------------------------------------------------

    def kill(self):
        return self.end_and_restart([self.mortal()], "kill")

    def kill_all(self):
        return self.end_and_restart(range(len(self.world.instances)), "kill")

    def term(self):
        return self.end_and_restart([self.mortal()], "stop")

    def rolling(self):
        """All that may end, one after the other, as a deployment does."""
        some = range(max(1, len(self.world.instances) - 1))
        for i in some:
            self.end_and_restart([i], "stop")
        return "instances %s" % list(some)

    def end_and_restart(self, which, how):
        for i in which:
            d = self.world.instances[i]
            wrong = d.stop() if how == "stop" else d.kill()
            if wrong:
                self.world.violate("a bad end", wrong)
        time.sleep(self.length(3))
        for i in which:
            self.world.restart(i)
        for i in which:
            self.world.instances[i].wait_ready()
        return "instance%s %s" % ("s"[:len(which) > 1], list(which))

    def freeze(self):
        i = self.any()
        d = self.world.instances[i]
        d.process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(self.length(8))
        finally:
            d.process.send_signal(signal.SIGCONT)
        return "instance %d" % i

    def database_fast(self):
        self.database_away("fast")

    def database_immediate(self):
        self.database_away("immediate")

    def database_away(self, mode, meanwhile=None):
        self.world.pg.stop(mode)
        if meanwhile:
            meanwhile()
        # At times for longer than the steady gateway's leases last: without credit they would end.
        time.sleep(10 if not self.quick and self.rng.random() < 0.35 else self.length(6))
        self.world.pg.start()

    def database_and_kill(self):
        """An instance dies while the database is away, and is started before it is back."""
        i = self.mortal()

        def meanwhile():
            self.world.instances[i].kill()
            self.world.restart(i)
        self.database_away(self.rng.choice(("fast", "immediate")), meanwhile)
        self.world.instances[i].wait_ready()
        return "instance %d" % i

    def database_freezes(self):
        self.world.pg.freeze(True)
        try:
            time.sleep(self.length(5))
        finally:
            self.world.pg.freeze(False)

    def terminate_backends(self):
        until = time.monotonic() + self.length(3)
        n = 0
        while time.monotonic() < until:
            n += self.terminate("random() < 0.3")
            time.sleep(0.15)
        return "%d of them" % n

    def kill_listeners(self):
        return "%d of them" % self.terminate("(query LIKE 'LISTEN%' OR application_name LIKE '%listener%')")

    def terminate(self, which):
        return int(self.world.psql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = "
                                   "'soak' AND usename LIKE 'soak_' AND " + which))

    def cut(self):
        """One instance loses its connections and gets no new one."""
        i = self.any()
        self.world.reach_database(i, False)
        try:
            self.terminate("usename = 'soak%d'" % i)
            time.sleep(self.length(6))
        finally:
            self.world.reach_database(i, True)
        return "instance %d" % i

    def cut_silently(self):
        """The same without a word: what is on the way does not come, either way."""
        i = self.any()
        self.world.reach_database(i, False)
        pids = self.world.psql("SELECT pid FROM pg_stat_activity WHERE usename = 'soak%d'" % i).split()
        try:
            self.signal_server(pids, "STOP")
            time.sleep(self.length(4))
        finally:
            self.signal_server(pids, "CONT")
            self.world.reach_database(i, True)
        return "instance %d" % i

    @staticmethod
    def signal_server(pids, name):
        for pid in pids:
            try:
                os.kill(int(pid), getattr(signal, "SIG" + name))
            except ProcessLookupError:
                pass
