# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy in front of a database's socket that can cut, swallow and delay what goes through it."""

import selectors
import socket
import struct
import threading
import time
import urllib.parse


class Side:
    """One of the two sockets of a connection, and what waits to be sent on it."""

    def __init__(self, sock, upstream):
        self.sock, self.upstream = sock, upstream
        self.peer, self.waiting, self.ended = None, [], False


class Proxy:
    """Listens on 127.0.0.1 and connects each client to a UNIX socket. One thread does all; the methods say what to do."""

    def __init__(self, target):
        self.target = target
        self.delay = 0.0     # seconds by which everything on its way to the database is held up
        self.silent = False  # neither reads nor sends nor accepts: what is sent vanishes, and nobody hears of it
        self.lock = threading.RLock()
        self.selector = selectors.DefaultSelector()
        self.sides = set()
        self.fillers = []
        self.listener = None
        self.port = 0
        self.ending = False
        self.open()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def url(self, database, user="postgres"):
        return "postgresql:///%s?host=127.0.0.1&port=%d&user=%s" % (urllib.parse.quote(database), self.port, user)

    # -- faults --------------------------------------------------------------------------------------------------------

    def cut(self):
        """Resets every connection (RST), and refuses new ones until open()."""
        with self.lock:
            self.reset()
            self.selector.unregister(self.listener)
            self.listener.close()
            self.listener = None

    def reset(self):
        """Resets every connection (RST); new ones are welcome."""
        with self.lock:
            for side in [s for s in self.sides if not s.upstream]:
                side.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._end(side)  # and its peer

    def open(self):
        with self.lock:
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", self.port))
            s.listen(128)
            s.setblocking(False)
            self.port = s.getsockname()[1]
            self.listener = s
            self.selector.register(s, selectors.EVENT_READ, None)

    def vanish(self):
        """Packets vanish: connections stand and are silent, and the first packet of a new one is dropped as well."""
        with self.lock:
            self.silent = True
            self.listener.listen(0)
            # The queue of those who were not accepted is full now, so that the kernel answers nobody.
            for _ in range(3):
                s = socket.socket()
                s.setblocking(False)
                s.connect_ex(("127.0.0.1", self.port))
                self.fillers.append(s)

    def appear(self):
        """Ends vanish() and silent: what was held up arrives late, as it does."""
        with self.lock:
            for s in self.fillers:
                s.close()
            self.fillers = []
            self.listener.listen(128)
            self.silent = False

    def close(self):
        self.ending = True
        self.thread.join(5)
        with self.lock:
            for side in list(self.sides):
                self._end(side)
            for s in self.fillers + ([self.listener] if self.listener else []):
                s.close()
            self.selector.close()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self):
        while not self.ending:
            with self.lock:
                if not self.silent:
                    for key, _ in self.selector.select(0):
                        if key.data is None:
                            self._accept()
                        else:
                            self._receive(key.data)
                    for side in list(self.sides):
                        self._send(side)
            self._rest()

    def _rest(self):
        """Until something can be read, or half a tick is over. Without the lock, so that the methods get it."""
        if self.silent:
            time.sleep(0.01)
            return
        try:
            self.selector.select(0.005)
        except (OSError, ValueError, RuntimeError):  # changed by a method meanwhile
            pass

    def _accept(self):
        try:
            s, _ = self.listener.accept()
        except OSError:
            return
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        up = socket.socket(socket.AF_UNIX)
        try:
            up.connect(self.target)
        except OSError:
            up.close()
            s.close()
            return
        a, b = Side(s, False), Side(up, True)
        a.peer, b.peer = b, a
        for side in (a, b):
            side.sock.setblocking(False)
            self.sides.add(side)
            self.selector.register(side.sock, selectors.EVENT_READ, side)

    def _receive(self, side):
        if side not in self.sides:
            return
        try:
            data = side.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            due = time.monotonic() + (0.0 if side.upstream else self.delay)
            side.peer.waiting.append((due, data))
            return
        self.selector.unregister(side.sock)
        side.peer.ended = True

    def _send(self, side):
        now = time.monotonic()
        while side.waiting and side.waiting[0][0] <= now:
            due, data = side.waiting[0]
            try:
                n = side.sock.send(data)
            except BlockingIOError:
                return
            except OSError:
                self._end(side)
                return
            if n < len(data):
                side.waiting[0] = (due, data[n:])
                return
            side.waiting.pop(0)
        if side.ended and not side.waiting:
            self._end(side)

    def _end(self, side):
        for one in (side, side.peer):
            if one in self.sides:
                self.sides.discard(one)
                try:
                    self.selector.unregister(one.sock)
                except (KeyError, ValueError):
                    pass
                one.sock.close()
