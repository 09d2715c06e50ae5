# SPDX-License-Identifier: Apache-2.0
"""Memory and descriptors of the instances while they live, and what they log."""

import os
import re
import threading
import time
from statistics import median

from harness.case import PG_FORBIDDEN
from harness.daemon import ERROR_LINE, FORBIDDEN, WRAPPER, program

#: A process must live this long, in seconds, for its growth to mean anything.
LIVED = 60

#: Errors that a fault explains.
EXPLAINED = re.compile(r"statement \S+ failed: (57P0[123]|08\d\d\d|no SQLSTATE|-)|the schema is not up to date|"
                       r"the database is not reached|server closed the connection|terminating connection")


def instrumented():
    """Whether a sanitizer or valgrind keeps memory for itself, so that growth means nothing."""
    with open(program(), "rb") as f:
        return bool(WRAPPER) or re.search(rb"__[at]san_init", f.read()) is not None


class Gauges(threading.Thread):
    """Samples each process every second."""

    def __init__(self, world):
        super().__init__(name="gauges", daemon=True)
        self.world = world
        self.lives = {}  # pid -> (name, [(age, resident KiB, descriptors)])

    def run(self):
        page = os.sysconf("SC_PAGE_SIZE") // 1024
        while not self.world.readers_over.wait(1):
            for d in list(self.world.instances):
                pid = d.process.pid
                try:
                    with open("/proc/%d/statm" % pid) as f:
                        resident = int(f.read().split()[1]) * page
                    descriptors = len(os.listdir("/proc/%d/fd" % pid))
                except OSError:
                    continue
                if resident:
                    self.lives.setdefault(pid, (d.name, []))[1].append((time.monotonic(), resident, descriptors))

    def growth(self):
        """@return for each process that lived long: (name, seconds, KiB then and now, descriptors then and now)"""
        out = []
        for name, samples in self.lives.values():
            # The first seconds are growth by right: buffers, connections, rooms.
            samples = samples[10:]
            if len(samples) < LIVED:
                continue
            third = len(samples) // 3
            first, last = samples[:third], samples[-third:]
            out.append((name, samples[-1][0] - samples[0][0], median(s[1] for s in first), median(s[1] for s in last),
                        median(s[2] for s in first), median(s[2] for s in last)))
        return out

    def check(self):
        """Judges what growth() has found. Events are kept in memory up to a bound for each room, so a young process
        grows towards it."""
        judged = not instrumented()
        for name, seconds, kib, kib_last, fds, fds_last in self.growth():
            if judged and kib_last > kib * 1.3 + 16384:
                self.world.violate("memory grows", "%s: %d KiB, then %d KiB after %d s" %
                                   (name, kib, kib_last, seconds))
            if fds_last > fds + 40:
                self.world.violate("descriptors grow", "%s: %d, then %d after %d s" % (name, fds, fds_last, seconds))


def check_logs(world):
    """What the instances and PostgreSQL have logged. @return how many errors a fault explains"""
    explained = 0
    for d in world.instances:
        for line in d.text().splitlines():
            if FORBIDDEN.search(line):
                world.violate("a log line that must not be", "%s: %s" % (d.name, line))
            elif ERROR_LINE.search(line):
                explained += 1
                if not EXPLAINED.search(line):
                    world.violate("an error that no fault explains", "%s: %s" % (d.name, line))
    for line in world.pg.log_lines(world.pg_mark, "soak"):
        if PG_FORBIDDEN.search(line):
            world.violate("a line in PostgreSQL's log that must not be", line)
    return explained
