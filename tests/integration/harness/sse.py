# SPDX-License-Identifier: Apache-2.0
"""Server-sent events as browsers read them, one stream or hundreds watched by one thread."""

import json
import selectors
import socket
import ssl
import time

from . import SLOW
from .client import authority, dial, hostport
from .recorder import RECORDER


class Message:
    def __init__(self, id, event, data):
        self.id, self.event, self.data = id, event, data

    def json(self):
        return json.loads(self.data)

    def __repr__(self):
        return "<%s %s %.80s>" % (self.id, self.event, self.data)


class Reader:
    """The bytes of one response, as far as they have come."""

    def __init__(self):
        self.raw = b""
        self.status, self.headers = None, None
        self.text = b""
        self.whole = False  # the last chunk has come, or the close of a response without a length
        self.broken = None  # why the response can never be whole
        self.messages, self.comments = [], []
        self.retry = None
        self.last_id = None  # as a browser would send it when it comes back
        self._id, self._event, self._data = None, "", []

    def feed(self, data):
        self.raw += data
        if self.status is None:
            head, separator, rest = self.raw.partition(b"\r\n\r\n")
            if not separator:
                return
            lines = head.decode("latin-1").split("\r\n")
            self.status = int(lines[0].split(" ")[1])
            self.headers = {n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in lines[1:])}
            self.raw = rest
        if self.headers.get("transfer-encoding", "") == "chunked":
            self._chunks()
        else:
            self.text, self.raw = self.text + self.raw, b""
        self._lines()

    def end(self):
        """The server has closed."""
        if self.status is None or (self.headers.get("transfer-encoding") == "chunked" and not self.whole):
            self.broken = "closed in the midst of it"
        else:
            self.whole = True

    def _chunks(self):
        while not self.whole:
            size, separator, rest = self.raw.partition(b"\r\n")
            if not separator:
                return
            n = int(size, 16)
            if len(rest) < n + 2:
                return
            self.text += rest[:n]
            if rest[n:n + 2] != b"\r\n":
                self.broken = "a chunk has no end: %r" % rest[n:n + 20]
            self.raw = rest[n + 2:]
            self.whole = n == 0

    def _lines(self):
        *lines, self.text = self.text.split(b"\n")
        for line in lines:
            self._line(line.decode("utf-8"))

    def _line(self, line):
        if line == "":
            if self._id is not None:
                self.last_id = self._id
            if self._data:
                self.messages.append(Message(self._id, self._event or "message", "\n".join(self._data)))
            self._id, self._event, self._data = None, "", []
            return
        if line.startswith(":"):
            self.comments.append(line[1:].strip())
            return
        field, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if field == "id":
            self._id = value
        elif field == "event":
            self._event = value
        elif field == "data":
            self._data.append(value)
        elif field == "retry":
            self.retry = int(value)
        else:
            self.broken = "an unknown field: %r" % line

    def events(self):
        """(revision, kind) of all events, in order."""
        return [(int(m.id), m.event) for m in self.messages if m.event not in ("snapshot", "session")]


class Streams:
    """Many streams, each on a connection of its own, read by whoever calls collect()."""

    def __init__(self, base, paths, headers="", version="1.1", receive_buffer=None):
        self.selector = selectors.DefaultSelector()
        self.readers, self.sockets = [], []
        self.paths = paths
        host = authority(base)
        for path in paths:
            if receive_buffer:
                s = socket.socket()
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
                s.connect(hostport(base))
            else:
                s = dial(base)
            s.sendall(("GET %s HTTP/%s\r\nHost: %s\r\nAccept: text/event-stream\r\n%s\r\n" %
                       (path, version, host, headers)).encode())
            s.setblocking(False)
            reader = Reader()
            self.selector.register(s, selectors.EVENT_READ, reader)
            self.readers.append(reader)
            self.sockets.append(s)

    def collect(self, until, seconds=10):
        """Reads until until() is true. @return whether it became so within the time"""
        deadline = time.monotonic() + seconds * SLOW
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for key, _ in self.selector.select(min(left, 0.05)):
                try:
                    data = key.fileobj.recv(262144)
                    while isinstance(key.fileobj, ssl.SSLSocket) and key.fileobj.pending():
                        data += key.fileobj.recv(262144)
                except (BlockingIOError, ssl.SSLWantReadError):
                    continue
                except ConnectionResetError:
                    data = b""
                if data:
                    key.data.feed(data)
                else:
                    key.data.end()
                    self.selector.unregister(key.fileobj)
        return True

    def collect_for(self, seconds):
        """Reads for a time."""
        deadline = time.monotonic() + seconds
        self.collect(lambda: time.monotonic() >= deadline, seconds + 1)

    def __getitem__(self, i):
        return self.readers[i]

    def close(self):
        self.selector.close()
        for s in self.sockets:
            s.close()
        for path, reader in zip(self.paths, self.readers):
            if reader.status == 200:
                RECORDER.note("GET", path, 200, reader.headers, b"")
            elif reader.headers and reader.headers.get("content-length") == str(len(reader.text)):
                RECORDER.note("GET", path, reader.status, reader.headers, reader.text)
            for message in reader.messages:
                RECORDER.note_message(path, message.event, message.data)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()
