# SPDX-License-Identifier: Apache-2.0
"""What runs during the bench, in one temporary directory, and the end of all of it."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time

from . import Broken
from .ours import Cluster
from .programs import Programs


class Server:
    """A process of somebody else's server. Its configuration is stated in the results."""

    def __init__(self, world, name, args, configuration, stdin=subprocess.DEVNULL):
        self.name, self.configuration = name, configuration
        self.log = os.path.join(world.dir, name + ".log")
        world.state(name, configuration)
        with open(self.log, "ab") as log:
            # A session of its own: Ctrl-C is for the bench, which ends its servers in order.
            self.process = subprocess.Popen(args, cwd=world.dir, stdin=stdin, stdout=log, stderr=log,
                                            start_new_session=True)

    def check(self):
        """Raises Broken when it has ended."""
        if self.process.poll() is not None:
            raise Broken("%s ended by itself with %d: %s" % (self.name, self.process.returncode, self.tail()))

    def tail(self):
        with open(self.log, "rb") as f:
            return " ".join(f.read().decode("utf-8", "replace").split())[-300:]

    def wait(self, answers, seconds=20):
        """Waits until answers() is true, which may fail with OSError until then."""
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            try:
                if answers():
                    return self
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise Broken("%s did not answer within %d s: %s" % (self.name, seconds, self.tail()))
            time.sleep(0.05)

    def stop(self):
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


class World:
    """One bench. What is started belongs to a row and ends with it, but for the cluster, which serves all of them."""

    def __init__(self, options):
        self.options = options
        self.programs = Programs(options.without)
        self.seconds, self.runs, self.quick = options.seconds, options.runs, options.quick
        self.dir = tempfile.mkdtemp(prefix="stillhere-compare-", dir=options.directory)
        os.chmod(self.dir, 0o755)  # servers may run as other users
        self.configurations = {}
        self.measured = {}  # what one row leaves for another
        self.all = contextlib.ExitStack()
        self.all.callback(shutil.rmtree, self.dir, ignore_errors=True)
        self.stack = contextlib.ExitStack()
        self.cluster = None
        self.databases = 0

    # -- starting and ending -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def row(self):
        """What is started inside is stopped at its end."""
        self.stack = contextlib.ExitStack()
        try:
            yield self
        finally:
            self.stack.close()

    def own(self, thing, end):
        """Remembers how to end a thing. @return the thing"""
        self.stack.callback(self._quietly, end)
        return thing

    @staticmethod
    def _quietly(end):
        try:
            end()
        except Exception as fault:  # the others must end all the same
            print("while ending: %s" % fault, flush=True)

    def serve(self, name, args, configuration, stdin=subprocess.DEVNULL):
        server = Server(self, name, args, configuration, stdin)
        return self.own(server, server.stop)

    def close(self):
        """Ends everything. Signals have to wait for it."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        self.stack.close()
        self.all.close()

    def postgres(self):
        """The cluster that all rows share; a new one when it has ended by itself."""
        if self.cluster is None or not self.cluster.answers():
            cluster = Cluster(self)
            self.all.callback(self._quietly, cluster.remove)
            self.cluster = cluster.start()
        return self.cluster

    def database(self, sessions=0):
        """A fresh database with so many live leases."""
        self.databases += 1
        database = self.postgres().database("bench_%d" % self.databases)
        self.own(database, database.drop)
        if sessions:
            database.seed(sessions)
        return database

    # -- small things --------------------------------------------------------------------------------------------------

    def state(self, name, configuration):
        """Writes down how something is configured, without where this machine keeps it."""
        self.configurations[name] = configuration.replace(self.dir, "DIR")

    def scale(self, n, quick):
        """A size as the issue asks for it, or the one of --quick."""
        return quick if self.quick else n

    def settle(self):
        """Between runs: what the run before left to do is done, as far as that can be seen."""
        time.sleep(0.2 if self.quick else 1)
        if self.cluster is not None:
            self.cluster.settle(5 if self.quick else 60)
