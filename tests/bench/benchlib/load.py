# SPDX-License-Identifier: Apache-2.0
"""The load generators: wrk, pgbench, and our own pace and park. Each call is one run and gives back its figures."""

import glob
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time

from harness.pg import clean_environment

from . import BENCH, Broken

CONNECTIONS = 64
THREADS = 2
#: More wrong answers than one in a thousand, and the run does not count.
ERRORS_MAX = 0.001


def own_program(name):
    """One of tests/bench/*.c; make bench builds them."""
    directory = os.environ.get("BENCH_PROGRAMS", "")
    path = os.path.join(directory, name)
    if not directory or not os.access(path, os.X_OK):
        raise SystemExit("BENCH_PROGRAMS must name the directory of bare, pace and park (is %r)" % directory)
    return path


def address(base):
    return base.partition("//")[2]


def fit(figures, done, wrong, what):
    """Figures that may count. Raises Broken otherwise."""
    if done == 0 or wrong > done * ERRORS_MAX:
        raise Broken("%d failures beside %d requests: %s" % (wrong, done, what))
    return figures


def last_json(text, what):
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        raise Broken("%s: %s" % (what, " ".join(text.split())[-300:] or "it printed nothing"))
    return json.loads(lines[-1])


def finished(args, seconds, **environment):
    """Runs a program to its end. Its output is in stdout, all of it."""
    try:
        return subprocess.run(args, env=dict(clean_environment(), **environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Broken("%s did not end within %d s" % (os.path.basename(args[0]), seconds))


def wrk(programs, base, requests, seconds, connections=CONNECTIONS, weight=1):
    """As many requests as the server takes. @a weight: what one request counts for. @return value: that, a second"""
    args = [programs.need("wrk"), "-t%d" % THREADS, "-c%d" % connections, "-d%ds" % seconds, "--timeout", "10s", "-s",
            os.path.join(BENCH, "wrk", "requests.lua"), base, "--", requests]
    done = finished(args, seconds + 60)
    figures = last_json(done.stdout, "wrk")
    good = figures["requests"] - figures["status_errors"]
    figures["value"] = good * weight / figures["seconds"]
    wrong = figures["status_errors"] + figures["socket_errors"] + figures["timeouts"]
    return fit(figures, figures["requests"], wrong, "%(status_errors)d by status, %(socket_errors)d by connection, "
               "%(timeouts)d were too late" % figures)


class Pace:
    """Requests at a rate. Runs from the beginning; finish() waits, or ends it early."""

    def __init__(self, base, requests, connections, rate, seconds):
        self.process = subprocess.Popen([own_program("pace"), address(base), requests, str(connections), str(rate),
                                         str(seconds)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, start_new_session=True)
        self.seconds = seconds

    def finish(self, now=False):
        """@return p50_ms … max_ms, due, done, errors"""
        if now:
            self.process.send_signal(signal.SIGTERM)
        try:
            out, _ = self.process.communicate(timeout=self.seconds + 30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Broken("pace did not end")
        figures = last_json(out, "pace")
        wrong = figures["errors"] + figures["due"] - figures["done"]
        return fit(figures, figures["due"], wrong, "%(errors)d by status or connection, %(done)d of %(due)d answered" %
                   figures)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Park:
    """Many waiting polls on connections of their own."""

    def __init__(self, base, polls, connections, trigger):
        self.process = subprocess.Popen([own_program("park"), address(base), polls, str(connections), trigger],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, bufsize=1, start_new_session=True)
        self.connections = connections
        try:
            self._line(120)  # all connections are open
        except BaseException:
            self.close()
            raise

    def _line(self, seconds):
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        if not ready:
            raise Broken("park did not answer within %d s" % seconds)
        raise Broken("park ended: " + self.process.stderr.read().strip())

    def ask(self, command, seconds=60):
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the next line tells why
        return self._line(seconds)

    def check(self):
        """Raises Broken unless all of them stand."""
        count = self.ask("count")
        if count["standing"] != self.connections or count["lost"] or count["unfit"]:
            raise Broken("of %d polls %d stand, %d were cut off and %d got another answer than 200" % (
                self.connections, count["standing"], count["lost"], count["unfit"]))
        return count

    def fire(self):
        """Lets the event happen. @return value: milliseconds from then to the last reply"""
        figures = self.ask("fire")
        if figures["answered"] != self.connections or figures["unfit"] or figures["lost"]:
            raise Broken("of %d polls %d were answered, %d of them wrongly, and %d were cut off" % (
                self.connections, figures["answered"], figures["unfit"], figures["lost"]))
        figures["value"] = figures["last_ms"]
        return figures

    def close(self):
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                stream.close()
            except BrokenPipeError:
                pass


def percentile(sorted_values, part):
    return sorted_values[min(len(sorted_values) - 1, int(part * len(sorted_values)))]


def pgbench(programs, pg, database, scripts, settings, seconds, clients, weight=1, latencies=False):
    """Each script is one transaction, prepared, chosen at random, in a session with @a settings.
    @return value: transactions x weight, a second"""
    program = programs.need("pgbench")
    with tempfile.TemporaryDirectory(dir=pg.dir) as directory:
        args = [program, "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, THREADS)), "-T",
                str(seconds), "-h", pg.socket, "-p", "5432", "-U", "postgres"]
        for i, script in enumerate(scripts):
            path = os.path.join(directory, "%03d.sql" % i)
            with open(path, "w") as f:
                f.write(script + ";\n")
            args += ["-f", path]
        if latencies:
            args += ["-l", "--log-prefix", os.path.join(directory, "times")]
        done = finished(args + [database], seconds + 60, PGOPTIONS=settings)
        rate = re.search(r"^tps = ([0-9.]+)", done.stdout, re.MULTILINE)
        failed = re.search(r"number of failed transactions: (\d+)", done.stdout)
        if done.returncode != 0 or rate is None or (failed and int(failed.group(1))):
            raise Broken("pgbench: " + " ".join(done.stdout.split())[-300:])
        figures = {"value": float(rate.group(1)) * weight, "transactions_per_second": float(rate.group(1))}
        if latencies:
            figures.update(logged_latencies(directory))
    return figures


def logged_latencies(directory):
    times = []
    for path in glob.glob(os.path.join(directory, "times.*")):
        with open(path) as f:
            times += [int(line.split()[2]) / 1000 for line in f]
    if not times:
        raise Broken("pgbench logged no transaction")
    met = met_at_random(times)
    times.sort()
    return {"p50_ms": percentile(times, 0.5), "p99_ms": percentile(times, 0.99), "max_ms": times[-1],
            "met_at_random_p99_ms": met}


def met_at_random(times, points=8):
    """p99 of what one waits who comes at a random moment, while commits follow each other: for the end of the one under
    way, a long one being met more often than a short one, and then for one's own."""
    waits = []
    for now, following in zip(times, times[1:]):
        waits += [(now * (1 - (i + 0.5) / points) + following, now) for i in range(points)]
    waits.sort()
    rest = 0.99 * sum(weight for _, weight in waits)
    for wait, weight in waits:
        rest -= weight
        if rest <= 0:
            return wait
    return waits[-1][0]


def until(ready, seconds, what, pause=0.05):
    """Waits for ready(). @return what it said. Raises Broken after the time."""
    deadline = time.monotonic() + seconds
    while True:
        said = ready()
        if said:
            return said
        if time.monotonic() > deadline:
            raise Broken("%s did not come within %d s" % (what, seconds))
        time.sleep(pause)
