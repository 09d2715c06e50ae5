# SPDX-License-Identifier: Apache-2.0
"""The deploy drill, for the test and the bench: many sessions in one room, all watched; what joins, leaves and restarts
cost in replies."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from .client import hostport, lease, quote

TTL_MS = 30000
THREADS = 16


class Sessions:
    """Sessions of as many users, each renewed by a request of its own until stop()."""

    def __init__(self, base, room, every=8.0):
        self.base, self.room, self.every = base, room, every
        self.local = threading.local()
        self.executor = ThreadPoolExecutor(THREADS)
        self.held = {}  # user -> revision
        self.lock = threading.Lock()
        self.refused = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._renew, daemon=True)

    def start(self):
        self.thread.start()
        return self

    def stop(self):
        self.stopping.set()
        self.thread.join(60)
        self.executor.shutdown(wait=True, cancel_futures=True)

    def join(self, users):
        """All at once. @return seconds it took"""
        began = time.monotonic()
        list(self.executor.map(self._put, users))
        return time.monotonic() - began

    def leave(self, users):
        with self.lock:
            for user in users:
                self.held.pop(user, None)
        began = time.monotonic()
        list(self.executor.map(self._delete, users))
        return time.monotonic() - began

    def _request(self, method, path, body=None):
        """Tries again, over a new connection, until the server is there."""
        deadline = time.monotonic() + 30
        while True:
            connection = self.local.__dict__.get("connection")
            try:
                if connection is None:
                    connection = http.client.HTTPConnection(*hostport(self.base), timeout=20)
                    connection.connect()
                    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.local.connection = connection
                connection.request(method, path, body=body)
                response = connection.getresponse()
                data = response.read()
                if response.status != 503:
                    return response.status, data
            except (OSError, http.client.HTTPException):
                pass
            if connection is not None:
                connection.close()
            self.local.connection = None
            if time.monotonic() > deadline or self.stopping.is_set():
                return None, b""
            time.sleep(0.1)

    def _put(self, user):
        with self.lock:
            revision = self.held[user] = self.held.get(user, 0) + 1
        status, data = self._request("PUT", "/leases",
                                     json.dumps(lease(self.room, user, "tab", revision, TTL_MS)))
        # A renewal whose answer was lost is tried again: then it has been applied already.
        if status != 200:
            self.refused.append("%s: %s %r" % (user, status, data[:200]))

    def _delete(self, user):
        status, data = self._request("DELETE", "/rooms/%s/leases/%s/tab" % (quote(self.room), quote(user)))
        if status != 200:
            self.refused.append("%s: %s %r" % (user, status, data[:200]))

    def _renew(self):
        while not self.stopping.wait(self.every):
            with self.lock:
                users = list(self.held)
            for user in users:
                self.executor.submit(self._renew_one, user)

    def _renew_one(self, user):
        with self.lock:
            if user not in self.held:
                return
        self._put(user)


def users(prefix, n):
    return ["%s%04d" % (prefix, i) for i in range(n)]
