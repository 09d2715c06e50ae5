# SPDX-License-Identifier: Apache-2.0
"""Finds, runs and reports the tests. Each class runs in a process of its own, a few at a time."""

import argparse
import fnmatch
import importlib
import inspect
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from . import case, daemon, distributed, durations, pg

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def classes_of(name):
    """The test classes of a module."""
    module = importlib.import_module(name)
    return [cls for _, cls in inspect.getmembers(module, inspect.isclass)
            if issubclass(cls, case.Case) and cls.__module__ == module.__name__ and methods(cls)]


def classes():
    """All test classes, module by module."""
    return [cls for name in sorted(os.listdir(HERE)) if name.startswith("test_") and name.endswith(".py")
            for cls in classes_of(name[:-3])]


def methods(cls):
    return [n for n in dir(cls) if n.startswith("test") and callable(getattr(cls, n))]


def full(cls, method):
    return "%s.%s.%s" % (cls.__module__, cls.__name__, method)


def chosen(cls, patterns):
    """The methods of a class that the command line asks for: whole names, parts of them, or wildcards."""
    if not patterns:
        return methods(cls)
    return [m for m in methods(cls)
            if any(p in full(cls, m) or fnmatch.fnmatch(full(cls, m), p) for p in patterns)]


# -- one class, in a process of its own ----------------------------------------------------------------------------------


def report(name, seconds, reason=None):
    print(json.dumps({"name": name, "seconds": seconds, "reason": reason}), flush=True)


def run_one(cls, method):
    """Runs one test. @return why it failed, or None"""
    test = cls(method)
    reason = None
    try:
        test.setUp()
        try:
            getattr(test, method)()
        finally:
            test.tearDown()
            test.doCleanups()
    except Exception:
        reason = traceback.format_exc()
    wrong = test.check_after()
    if wrong:
        reason = (reason or "") + "after the test:\n  " + "\n  ".join(wrong)
    if reason:
        for d in cls.daemons:
            reason += "\n--- the log of %s ends:\n%s" % (d.name, d.tail())
        try:
            test.tidy()
        except Exception:
            reason += "\nand afterwards:\n" + traceback.format_exc()
    return reason


def run_class(cls, names):
    started = time.monotonic()
    try:
        cls.begin()
    except Exception:
        reason = "the class could not start:\n" + traceback.format_exc()
        for d in getattr(cls, "daemons", []):
            d.kill()
        if cls.own_cluster and cls.pg is not case.ENVIRONMENT["pg"]:
            cls.pg.remove()
        for name in names:
            report(full(cls, name), time.monotonic() - started, reason)
            reason = "the class could not start: see above"
        return
    for name in names:
        started = time.monotonic()
        reason = run_one(cls, name)
        report(full(cls, name), time.monotonic() - started, reason)
    started = time.monotonic()
    try:
        reason = cls.finish()
    except Exception:
        reason = traceback.format_exc()
    report(full(cls, "clean_stop"), time.monotonic() - started, reason)


class Borrowed(pg.Postgres):
    """The server that the parent process started."""

    def __init__(self, directory):
        self.bindir, self.user = pg.find_programs(), pg.server_user()
        self.dir = directory
        self.socket = os.path.join(directory, "s")
        self.data = os.path.join(directory, "data")
        self.log = os.path.join(directory, "log")


def child(args):
    case.ENVIRONMENT["directory"] = args.directory
    case.ENVIRONMENT["pg"] = Borrowed(args.pg)
    for cls in classes_of(args.child.split(".")[0]):
        if durations.name(cls) == args.child:
            run_class(cls, args.names)
    sys.stdout.flush()
    os._exit(0)  # threads of a failed test that still wait must not hold up the rest


# -- all of them ---------------------------------------------------------------------------------------------------------


class Results:
    def __init__(self):
        self.lock = threading.Lock()
        self.passed, self.failed = 0, []
        self.measured = {}  # class -> (seconds, seconds on a core)

    def add(self, name, seconds, reason):
        with self.lock:
            if reason is None:
                self.passed += 1
                print("ok %s (%.1f s)" % (name, seconds), flush=True)
            else:
                self.failed.append(name)
                print("FAIL %s (%.1f s)\n    %s" % (name, seconds, reason.replace("\n", "\n    ")), flush=True)


def run_child(cls, names, args, server, results):
    """Runs a class in a process and passes its results on; a test without a result has failed."""
    command = [sys.executable, os.path.join(HERE, "run"), "--child", durations.name(cls),
               "--pg", server.dir, "--directory", args.directory] + names
    # What one process has compiled the next need not, and the source tree stays clean.
    env = dict(os.environ, PYTHONPYCACHEPREFIX=os.path.join(args.directory, "bytecode"))
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    seen, started = set(), time.monotonic()
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    bound = getattr(cls, "bound", 600) * max(1, case.SLOW)
    timer = threading.Timer(bound, os.kill, (process.pid, signal.SIGKILL))
    timer.start()
    other = []
    for line in process.stdout:
        try:
            result = json.loads(line)
            seen.add(result["name"])
            results.add(result["name"], result["seconds"], result["reason"])
        except ValueError:
            other.append(line)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    timer.cancel()
    if len(names) == len(methods(cls)):
        results.measured[durations.name(cls)] = (time.monotonic() - started, usage.ru_utime + usage.ru_stime)
    for name in names:
        if full(cls, name) not in seen:
            results.add(full(cls, name), 0, "no result: its process ended with %d (%g s allowed)\n%s" %
                        (process.returncode, bound, "".join(other)))
    if process.returncode != 0 and all(full(cls, n) in seen for n in names):
        results.add(full(cls, "process"), 0, "its process ended with %d\n%s" % (process.returncode, "".join(other)))


def run_program(path, server, results):
    """A cmocka program that wants an empty database."""
    started = time.monotonic()
    name = os.path.basename(path)
    server.create_database(name)
    env = dict(pg.clean_environment(), TEST_DATABASE_URL=server.url(name))
    try:
        done = subprocess.run([path], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=300 * max(1, case.SLOW))
        reason = None if done.returncode == 0 else "exit code %d\n%s" % (done.returncode, done.stdout[-8000:])
    except (OSError, subprocess.TimeoutExpired) as e:
        reason = str(e)
    results.add(name, time.monotonic() - started, reason)


def main():
    parser = argparse.ArgumentParser(
        prog="run", description="Integration tests: a real PostgreSQL from a temporary initdb, real daemons, real "
        "sockets. The environment: STILLHERED names the daemon, STILLHERE the command, TEST_DB_PROGRAM the cmocka "
        "programs that want a database (several: joined by colons), TEST_SLOW multiplies time bounds, TEST_WRAPPER is put in front of the "
        "daemon's command, TEST_RUNTIME_ROLE=1 lets the daemons connect as the role that cannot migrate, "
        "TEST_DISTRIBUTED is in harness/distributed.py, "
        "TEST_OPENAPI=0 does not hold the answers against doc/openapi.json, PG_BINDIR "
        "says where initdb is.")
    parser.add_argument("names", nargs="*", help="run only these: names, parts of names or wildcards")
    parser.add_argument("--list", action="store_true", help="print the names of all tests")
    parser.add_argument("--long", action="store_true", help="the long runs: load, revocations, outages")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="this many classes at a time (2) …")
    parser.add_argument("-w", type=int, default=2, metavar="N", help="… and this many more of those that mostly wait (2)")
    parser.add_argument("--durations", metavar="FILE", help="write into a file such as harness/durations.txt how long "
                        "each class took, and how long of that on a core")
    parser.add_argument("--keep", action="store_true", help="keep the logs' directory")
    for name in ("--child", "--pg", "--directory"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    found = classes()
    programs = [p for p in os.environ.get("TEST_DB_PROGRAM", "").split(":")
                if p and (not args.names or any(n in os.path.basename(p) for n in args.names))]
    work = [(cls, chosen(cls, args.names)) for cls in found]
    work = [(cls, names) for cls, names in work if names]
    if args.list:
        for cls, names in sorted(work, key=lambda w: w[0].__module__):
            for name in names:
                print(full(cls, name))
        for program in programs:
            print(os.path.basename(program))
        return 0
    if not work and not programs:
        print("no test has such a name", file=sys.stderr)
        return 1
    try:
        return run_all(args, work, programs, found)
    except RuntimeError as e:
        print("run: %s" % e, file=sys.stderr)
        return 1


def queue_of(items):
    q = queue.Queue()
    for item in items:
        q.put(item)
    return q


def run_all(args, work, programs, found):
    def terminated(*unused):
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, terminated)  # so that the server is stopped and removed then as well
    if work:
        daemon.program()  # complains at once where there is nothing to test
    results = Results()
    args.directory = tempfile.mkdtemp(prefix="shtest.")
    os.chmod(args.directory, 0o755)
    server = pg.Postgres(args.directory, more=distributed.SETTINGS if distributed.MODE == "citus" else "")
    workers = []
    try:
        server.start()
        workers = distributed.start_workers(args.directory)
        busy, waiting = [queue_of(items) for items in durations.plan(work)]

        def worker(*queues):
            for jobs in queues:
                while True:
                    try:
                        cls, names = jobs.get_nowait()
                    except queue.Empty:
                        break
                    run_child(cls, names, args, server, results)

        # Daemons, so that whoever ends the run need not wait for the classes that are left.
        threads = [threading.Thread(target=worker, args=(busy, waiting), daemon=True) for _ in range(max(1, args.j))]
        threads += [threading.Thread(target=worker, args=(waiting,), daemon=True) for _ in range(args.w)]
        for t in threads:
            t.start()
        for program in programs:
            run_program(program, server, results)
        for t in threads:
            t.join()
    finally:
        for s in [server] + workers:
            s.remove()
        if args.keep:
            print("logs are in " + args.directory)
        else:
            shutil.rmtree(args.directory, ignore_errors=True)
    if args.durations:
        durations.write(args.durations, results.measured, found)
    if results.failed:
        print("failed: " + " ".join(results.failed))
    print("%d passed, %d failed" % (results.passed, len(results.failed)))
    return 1 if results.failed else 0
