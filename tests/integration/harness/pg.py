# SPDX-License-Identifier: Apache-2.0
"""A private PostgreSQL in a temporary directory, and psql sessions that stay open."""

import os
import pwd
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse

from . import SLOW

SETTINGS = """
listen_addresses = ''
port = 5432
max_connections = 200
shared_buffers = 64MB
log_destination = stderr
logging_collector = off
log_line_prefix = '%m [%p] db=%d app=%a '
log_lock_waits = on
deadlock_timeout = 1s
log_min_error_statement = error
track_counts = on
"""


def clean_environment():
    """The environment without what would change how libpq or the daemon behave."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PG", "STILLHERE_"))}


def find_programs():
    """The directory of initdb and postgres: PG_BINDIR, the newest Debian one, or the PATH's."""
    candidates = [os.environ.get("PG_BINDIR", "")]
    base = "/usr/lib/postgresql"
    if os.path.isdir(base):
        versions = sorted((v for v in os.listdir(base) if v.isdigit()), key=int, reverse=True)
        candidates += [os.path.join(base, v, "bin") for v in versions]
    for directory in candidates:
        if directory and os.path.exists(os.path.join(directory, "initdb")):
            return directory
    found = shutil.which("initdb")
    if found:
        return os.path.dirname(os.path.realpath(found))
    raise RuntimeError("no initdb: install the PostgreSQL server")


def server_user():
    """The account that the server runs as: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
            return name
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL can't run as root and there is neither a user postgres nor nobody")


class Postgres:
    """One cluster. Its socket is usable by every local user; nothing listens on TCP."""

    def __init__(self, parent=None, fsync=False, more=""):
        self.bindir = find_programs()
        self.user = server_user()
        self.dir = tempfile.mkdtemp(prefix="shpg.", dir=parent)
        os.chmod(self.dir, 0o755)
        self.socket = os.path.join(self.dir, "s")
        os.mkdir(self.socket)
        os.chmod(self.socket, 0o777)
        self.data = os.path.join(self.dir, "data")
        os.mkdir(self.data)
        self.log = os.path.join(self.dir, "log")
        open(self.log, "w").close()
        if self.user:
            account = pwd.getpwnam(self.user)
            for path in (self.socket, self.data, self.log):
                os.chown(path, account.pw_uid, account.pw_gid)
        self.process = None
        self._as_server([self.program("initdb"), "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                         "--locale=C.UTF-8", "--no-sync"])
        with open(os.path.join(self.data, "postgresql.conf"), "a") as conf:
            conf.write(SETTINGS + more)
            conf.write("unix_socket_directories = '%s'\n" % self.socket)
            conf.write("fsync = %s\n" % ("on" if fsync else "off"))

    def program(self, name):
        return os.path.join(self.bindir, name)

    def _command(self, args):
        return (["runuser", "-u", self.user, "--"] if self.user else []) + args

    def _as_server(self, args):
        done = subprocess.run(self._command(args), cwd="/", env=clean_environment(), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise RuntimeError("%s failed:\n%s" % (args[0], done.stdout))
        return done.stdout

    def start_with(self, **environment):
        """Starts it with more in its environment."""
        command = ["env"] + ["%s=%s" % item for item in environment.items()]
        self._as_server(command + [self.program("pg_ctl"), "-D", self.data, "-l", self.log, "-w", "-t", "60", "-s",
                                   "start"])
        return self

    def start(self):
        """Starts and waits until it takes connections."""
        self._as_server([self.program("pg_ctl"), "-D", self.data, "-l", self.log, "-w", "-t", "60", "-s", "start"])
        return self

    def stop(self, mode="fast"):
        """Stops and waits for the end. Mode immediate is a crash."""
        self._as_server([self.program("pg_ctl"), "-D", self.data, "-m", mode, "-w", "-t", "60", "-s", "stop"])

    def running(self):
        return os.path.exists(os.path.join(self.data, "postmaster.pid"))

    def freeze(self, stop):
        """Stops (or continues) every process of the cluster with SIGSTOP (SIGCONT): a database that hangs."""
        with open(os.path.join(self.data, "postmaster.pid")) as f:
            postmaster = int(f.readline())
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(postmaster)], stdout=subprocess.PIPE, text=True)
        for pid in [postmaster] + [int(p) for p in children.stdout.split()]:
            try:
                os.kill(pid, signal.SIGSTOP if stop else signal.SIGCONT)
            except ProcessLookupError:
                pass

    def remove(self):
        if self.running():
            try:
                self.stop("immediate")
            except RuntimeError:
                pass
        shutil.rmtree(self.dir, ignore_errors=True)

    def url(self, database, user="postgres"):
        """The libpq URI of a database."""
        return "postgresql:///%s?host=%s&port=5432&user=%s" % (
            urllib.parse.quote(database), urllib.parse.quote(self.socket), user)

    def psql_args(self, database, user="postgres"):
        return [self.program("psql") if os.path.exists(self.program("psql")) else "psql", "-X", "-q", "-A", "-t",
                "-h", self.socket, "-p", "5432", "-U", user, "-d", database]

    def psql(self, database, sql):
        """Runs SQL in a psql of its own. @return what it printed"""
        done = subprocess.run(self.psql_args(database) + ["-v", "ON_ERROR_STOP=1", "-c", sql],
                              env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError("psql: %s\n%s" % (sql, done.stderr))
        return done.stdout.rstrip("\n")

    def create_database(self, name):
        self.psql("postgres", 'CREATE DATABASE "%s"' % name)

    def drop_database(self, name):
        self.psql("postgres", 'DROP DATABASE IF EXISTS "%s" WITH (FORCE)' % name)

    def session(self, database, user="postgres"):
        return PsqlSession(self, database, user)

    def log_size(self):
        return os.path.getsize(self.log)

    def log_lines(self, since, database):
        """The log's lines about a database from a byte offset on."""
        with open(self.log, "rb") as f:
            f.seek(since)
            text = f.read().decode("utf-8", "replace")
        mark = " db=%s " % database
        return [line for line in text.splitlines() if mark in line]


class SqlError(Exception):
    """The server refused a statement."""


class PsqlSession:
    """One psql that stays open, so that transactions, row locks and LISTEN last."""

    def __init__(self, pg, database, user="postgres"):
        self.process = subprocess.Popen(pg.psql_args(database, user), env=clean_environment(), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)
        self.lines = queue.Queue()
        self.count = 0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.run("SET client_min_messages = warning")

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def send(self, sql):
        """Sends a statement and does not wait. @return the mark for expect()"""
        self.count += 1
        mark = "--mark-%d--" % self.count
        try:
            self.process.stdin.write(sql.rstrip().rstrip(";") + ";\n\\echo " + mark + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise SqlError("psql has ended")
        return mark

    def expect(self, mark, timeout=30):
        """Waits for the end of what send() sent. @return its lines"""
        out, errors = [], []
        deadline = time.monotonic() + timeout * SLOW
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError("psql did not answer within %g s; so far: %r" % (timeout * SLOW, out))
            if line is None:
                raise SqlError("psql has ended: " + "\n".join(errors + out))
            if line == mark:
                break
            if re.match(r"(psql:.*)?(ERROR|FATAL|PANIC):|server closed the connection|connection to server was lost", line):
                errors.append(line)
            out.append(line)
        if errors:
            raise SqlError("\n".join(out))
        return out

    def run(self, sql, timeout=30):
        """Runs a statement. @return its lines"""
        return self.expect(self.send(sql), timeout)

    def value(self, sql):
        """The whole answer as one string."""
        return "\n".join(self.run(sql))

    def pid(self):
        return int(self.value("SELECT pg_backend_pid()"))

    def notifications(self):
        """What LISTEN has brought since the last call."""
        return [line for line in self.run("SELECT 1") if line.startswith("Asynchronous notification")]

    def close(self):
        if self.process.poll() is None:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join(5)
        self.process.stdout.close()
