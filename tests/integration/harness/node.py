# SPDX-License-Identifier: Apache-2.0
"""The JavaScript client in a Node process, told what to do line by line, and what can stand between it and the server."""

import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time

from . import SLOW
from .faulty import Faulty

SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "js")


def program():
    node = shutil.which("node")
    assert node, "nodejs is not installed"
    return node


class Node:
    """A process with the client in it (tests/js/client.mjs), and what it has said."""

    def __init__(self, test, base, **options):
        self.process = subprocess.Popen([program(), os.path.join(SCRIPTS, "client.mjs"), json.dumps(dict(options, url=base))],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        bufsize=1)
        self.said, self.all = queue.Queue(), []
        self.faults = []
        threading.Thread(target=self.read, daemon=True).start()
        threading.Thread(target=lambda: self.faults.extend(self.process.stderr), daemon=True).start()
        test.addCleanup(self.kill)
        self.until(what="ready", seconds=30)

    def read(self):
        for line in self.process.stdout:
            self.said.put(json.loads(line))

    def tell(self, verb, **more):
        self.process.stdin.write(json.dumps(dict(more, do=verb)) + "\n")

    def until(self, seconds=10, **wanted):
        """Waits for a line that says this, after those that were waited for before. @return it"""
        deadline = time.monotonic() + seconds * SLOW
        while True:
            try:
                line = self.said.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError("%r was not said; said was %r; %s" % (wanted, self.all[-12:], "".join(self.faults)))
            self.all.append(line)
            if all(line.get(k) == v for k, v in wanted.items()):
                return line

    def now(self):
        """All that it has said until now."""
        while not self.said.empty():
            self.all.append(self.said.get())
        return self.all

    def requests(self, method):
        """Its requests of one method until now; it must have been started with trace=True."""
        return [line for line in self.now() if line["what"] == "request" and line["method"] == method]

    def state(self, name="w"):
        self.tell("state", name=name)
        return self.until(what="state", name=name)

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                stream.close()
            except BrokenPipeError:
                pass


class Middle(Faulty):
    """Stands in front of a server. @a first: called with (method, path, request body, JSON or None) before a request goes on;
    it may hold it up, or answer by itself with (status, headers, JSON). `answered` has what the server answered."""

    def __init__(self, test, behind, first):
        super().__init__(behind, self.note)
        self.first, self.answered = first, []
        test.addCleanup(self.close)

    def note(self, method, path, body, status, document):
        self.answered.append((method, path, body, status))

    def answer(self, method, path, body, headers):
        own = self.first(method, path, json.loads(body) if body else None)
        if own is None:
            return super().answer(method, path, body, headers)
        status, more, document = own
        return status, [("Content-Type", "application/json")] + list(more.items()), json.dumps(document).encode()
