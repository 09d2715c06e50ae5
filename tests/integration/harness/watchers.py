# SPDX-License-Identifier: Apache-2.0
"""Clients that watch a room as they should: poll, apply, poll again, over restarts too. One thread for hundreds."""

import re
import selectors
import socket
import threading
import time

from .client import hostport, presence_path, take_reply
from .recorder import RECORDER

REVISION = re.compile(rb'"revision":(\d+),"kind":"([a-z._]+)"')
HEAD = re.compile(rb'"mode":"([a-z]+)"(?:,"from":(\d+))?,"revision":(\d+)')
EPOCH = re.compile(rb'"epoch":"([^"]+)"')


class Watcher:
    def __init__(self, since, epoch):
        self.since, self.epoch = since, epoch
        self.socket, self.data = None, b""
        self.retry_at = 0.0
        self.events = []  # (revision, kind) in order of arrival
        self.replies = []  # (monotonic time, mode, number of events)
        self.wrong = None


class Watchers:
    """@a n watchers of a room from a cursor on. start(), then look at them under `lock`, then stop()."""

    def __init__(self, base, room, n, since, epoch, wait_ms=25000, headers=""):
        self.base, self.room, self.wait_ms, self.headers = base, room, wait_ms, headers
        self.all = [Watcher(since, epoch) for _ in range(n)]
        self.selector = selectors.DefaultSelector()
        self.lock = threading.Lock()
        self.parsed = {}  # replies are shared: each is parsed once
        self.stopping = False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self.thread.start()
        return self

    def stop(self):
        self.stopping = True
        self.thread.join(10)
        for w in self.all:
            if w.socket:
                w.socket.close()
        self.selector.close()

    def wait(self, seconds, ready):
        """Waits until ready(watcher) is true for all. @return those for whom it is not"""
        deadline = time.monotonic() + seconds
        while True:
            with self.lock:
                late = [w for w in self.all if w.wrong or not ready(w)]
            if not late or time.monotonic() > deadline:
                return late
            time.sleep(0.05)

    def replies_with_events(self, after=0.0):
        """For each watcher, how many replies with events came after a time."""
        with self.lock:
            return [sum(1 for at, _, n in w.replies if at >= after and n) for w in self.all]

    def _run(self):
        while not self.stopping:
            now = time.monotonic()
            for w in self.all:
                if w.socket is None and now >= w.retry_at:
                    self._connect(w)
            for key, _ in self.selector.select(0.05):
                self._receive(key.data)

    def _connect(self, w):
        try:
            w.socket = socket.create_connection(hostport(self.base), timeout=5)
            w.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            w.data = b""
            self._ask(w)
            w.socket.setblocking(False)
            self.selector.register(w.socket, selectors.EVENT_READ, w)
        except OSError:
            self._lost(w)

    def _lost(self, w):
        if w.socket is not None:
            try:
                self.selector.unregister(w.socket)
            except (KeyError, ValueError):
                pass
            w.socket.close()
        w.socket = None
        w.retry_at = time.monotonic() + 0.1

    def _ask(self, w):
        path = presence_path(self.room, w.since, epoch=w.epoch, wait_ms=self.wait_ms)
        w.socket.sendall(("GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n" % (path, self.headers)).encode())

    def _receive(self, w):
        try:
            more = w.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        if not more:
            self._lost(w)
            return
        w.data += more
        cut = take_reply(w.data)
        if cut is None:
            return
        w.data = cut[1]
        reply = cut[0]
        if reply.status == 503:  # starting or stopping
            self._lost(w)
            return
        with self.lock:
            self._apply(w, reply)
        if reply.headers.get("connection", "").lower() == "close":
            self._lost(w)
            return
        try:
            self._ask(w)
        except OSError:
            self._lost(w)

    def _parse(self, reply):
        shared = reply.body.rpartition(b',"server_time"')[0]
        if shared not in self.parsed:
            RECORDER.note("GET", presence_path(self.room), reply.status, reply.headers, reply.body)
            mode, since, revision = HEAD.search(shared).groups()
            events = [(int(r), k.decode()) for r, k in REVISION.findall(shared)] if mode == b"events" else []
            self.parsed[shared] = (mode.decode(), since and int(since), int(revision), events,
                                   EPOCH.search(shared).group(1).decode())
        return self.parsed[shared]

    def _apply(self, w, reply):
        if reply.status != 200:
            w.wrong = repr(reply)
            return
        mode, since, revision, events, epoch = self._parse(reply)
        w.replies.append((time.monotonic(), mode, len(events)))
        if mode == "snapshot":
            w.wrong = w.wrong or "a snapshot: %r" % reply.body[-200:]
        elif since != w.since:
            w.wrong = "asked for %d, got %r" % (w.since, since)
        if mode == "events" and [r for r, _ in events] != list(range(w.since + 1, revision + 1)):
            w.wrong = "events with gaps after %d: %r" % (w.since, events[:5])
        w.events += events
        w.since, w.epoch = revision, epoch
