# SPDX-License-Identifier: Apache-2.0
"""HTTP as clients speak it: keep-alive requests, bytes on the wire, and flocks of waiting polls."""

import http.client
import json
import re
import selectors
import socket
import threading
import time
import urllib.parse

from . import SLOW, tls
from .recorder import RECORDER, Asked

LEFT_OUT = object()


def quote(segment):
    """One path segment or query value, percent-encoded."""
    return urllib.parse.quote(segment, safe="")


def hostport(base):
    host, _, port = base.partition("//")[2].partition(":")
    return host, int(port)


def authority(base):
    """What goes into a Host header."""
    return "localhost" if base.startswith("unix:") else "%s:%d" % hostport(base)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, base, timeout):
        super().__init__("localhost", timeout=timeout)
        self.base = base

    def connect(self):
        self.sock = dial(self.base, self.timeout / SLOW)


def connection_to(base, timeout):
    """A connection of http.client to a base of the form http://, https:// or unix:/path."""
    if base.startswith("unix:"):
        return UnixConnection(base, timeout)
    if base.startswith("https:"):
        return http.client.HTTPSConnection(*hostport(base), timeout=timeout, context=tls.context(base))
    return http.client.HTTPConnection(*hostport(base), timeout=timeout)


class Reply:
    """An answer: status, headers (lower-case names), body bytes, and how long it took."""

    def __init__(self, status, headers, body, seconds=0.0):
        self.status, self.headers, self.body, self.seconds = status, headers, body, seconds

    def json(self):
        def refuse(name):
            raise ValueError("%s is not JSON" % name)
        return json.loads(self.body.decode("utf-8"), parse_constant=refuse)

    def __getitem__(self, key):
        return self.json()[key]

    def get(self, key, default=None):
        return self.json().get(key, default)

    def __repr__(self):
        return "<%d %r>" % (self.status, self.body[:600])


class Client:
    """Requests to any daemon, one keep-alive connection for each thread and daemon. Every 5xx is remembered."""

    def __init__(self):
        self.local = threading.local()
        self.lock = threading.Lock()
        self.server_errors = []

    def note(self, what, status):
        if status >= 500:
            with self.lock:
                self.server_errors.append("%d for %s" % (status, what))

    def request(self, base, method, path, body=None, headers=None, timeout=30, fresh=False):
        """One request. A connection of its own when fresh."""
        pool = self.local.__dict__.setdefault("pool", {})
        connection = None if fresh else pool.get(base)
        if connection is None:
            connection = connection_to(base, timeout * SLOW)
            if not fresh:
                pool[base] = connection
        if connection.sock is not None:
            connection.sock.settimeout(timeout * SLOW)
        connection.timeout = timeout * SLOW
        started = time.monotonic()
        try:
            connection.request(method, path, body=body, headers=headers or {})
            if connection.sock is not None and connection.sock.family != socket.AF_UNIX:
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            response = connection.getresponse()
            data = response.read()
        except Exception:
            connection.close()
            pool.pop(base, None)
            raise
        finally:
            if fresh:
                connection.close()
        self.note(method + " " + path, response.status)
        names = {}
        for name, value in response.getheaders():
            names[name.lower()] = value
        RECORDER.note(method, path, response.status, names, data, body)
        return Reply(response.status, names, data, time.monotonic() - started)

    def get(self, base, path, headers=None, timeout=30, fresh=False):
        return self.request(base, "GET", path, headers=headers, timeout=timeout, fresh=fresh)

    def put_json(self, base, document, query="", headers=None, timeout=30, fresh=False):
        return self.request(base, "PUT", "/leases" + query, body=json.dumps(document), headers=headers,
                            timeout=timeout, fresh=fresh)

    def hb(self, base, room, user, session, revision=None, ttl_ms=None, meta=None, query="", headers=None,
           timeout=30, fresh=False, **extra):
        """A heartbeat. None leaves a field out."""
        return self.put_json(base, lease(room, user, session, revision, ttl_ms, meta, **extra), query, headers,
                             timeout, fresh)

    def batch(self, base, items, headers=None, timeout=30):
        return self.put_json(base, {"leases": items}, headers=headers, timeout=timeout)

    def close(self, base, room, user, session, revision=None, headers=None, fresh=False, timeout=30):
        path = "/rooms/%s/leases/%s/%s" % (quote(room), quote(user), quote(session))
        if revision is not None:
            path += "?revision=%s" % revision
        return self.request(base, "DELETE", path, headers=headers, fresh=fresh, timeout=timeout)

    def poll(self, base, room, since=None, headers=None, timeout=70, fresh=False, **query):
        return self.get(base, presence_path(room, since, **query), headers=headers, timeout=timeout, fresh=fresh)


def lease(room, user, session, revision=None, ttl_ms=None, meta=None, **extra):
    """A heartbeat's JSON document."""
    document = {"room_id": room, "user_id": user, "session_id": session}
    for name, value in (("revision", revision), ("ttl_ms", ttl_ms), ("meta", meta)):
        if value is not None:
            document[name] = value
    document.update(extra)
    return document


def presence_path(room, since=None, **query):
    parts = [] if since is None else [("since", since)]
    parts += [(k, v) for k, v in query.items() if v is not None]
    path = "/rooms/%s/presence" % quote(room)
    return path + ("?" + "&".join("%s=%s" % (k, quote(str(v))) for k, v in parts) if parts else "")


def parse_metrics(text):
    """Prometheus text as {series: value}."""
    out = {}
    for line in text.splitlines():
        m = re.match(r"([a-zA-Z_:][^ ]*(?:\{.*\})?) ([-+0-9.eE]+|NaN|[+-]Inf)$", line)
        if m:
            out[m.group(1)] = float(m.group(2))
    return out


# -- bytes on the wire -------------------------------------------------------------------------------------------------


def dial(base, timeout=10):
    if base.startswith("unix:"):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(timeout * SLOW)
        s.connect(base[5:])
        return s
    s = socket.create_connection(hostport(base), timeout=timeout * SLOW)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if base.startswith("https:"):
        return tls.context(base).wrap_socket(s, server_hostname=hostport(base)[0])
    return s


def take_reply(data, head_only=False):
    """Cuts one whole reply off the front of data. @return (Reply, rest), or None while it is not whole"""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[:end].decode("latin-1").split("\r\n")
    status = int(head[0].split(" ")[1])
    headers = {}
    for line in head[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    if head_only or status in (204, 304) or 100 <= status < 200:
        length = 0
    if len(data) < end + 4 + length:
        return None
    return Reply(status, headers, data[end + 4:end + 4 + length]), data[end + 4 + length:]


class Wire:
    """One connection under full control."""

    def __init__(self, base, timeout=10):
        self.socket = dial(base, timeout)
        self.data = b""
        self.eof = False
        self.asked = Asked()

    def send(self, data):
        self.asked.send(data)
        self.socket.sendall(data)

    def reply(self, timeout=10, head_only=False):
        """The next whole reply; None when the server closed first."""
        deadline = time.monotonic() + timeout * SLOW
        while True:
            cut = take_reply(self.data, head_only)
            if cut:
                self.data = cut[1]
                self.asked.note(cut[0])
                return cut[0]
            if not self._receive(deadline):
                return None

    def until_eof(self, timeout=10):
        """Everything up to the server's close. Raises TimeoutError when it doesn't close."""
        deadline = time.monotonic() + timeout * SLOW
        while self._receive(deadline):
            pass
        self._note_rest()
        return self.data

    def _note_rest(self):
        data = self.data
        while data.startswith(b"HTTP/1."):
            cut = take_reply(data, self.asked.head_only())
            if not cut or "transfer-encoding" in cut[0].headers:
                return
            self.asked.note(cut[0])
            data = cut[1]

    def _receive(self, deadline):
        if self.eof:
            return False
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no whole reply in time; so far %r" % self.data[:300])
        self.socket.settimeout(left)
        try:
            more = self.socket.recv(65536)
        except socket.timeout:
            raise TimeoutError("no whole reply in time; so far %r" % self.data[:300])
        except ConnectionResetError:
            more = b""
        if not more:
            self.eof = True
            return False
        self.data += more
        return True

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()


def all_replies(data):
    """Every whole reply in data, in order; 1xx among them."""
    out = []
    while True:
        cut = take_reply(data)
        if not cut:
            return out
        out.append(cut[0])
        data = cut[1]


def raw(base, data, timeout=10, wait_eof=False):
    """Sends bytes on a new connection. @return the first reply, or all the bytes up to EOF"""
    with Wire(base, timeout) as wire:
        wire.send(data)
        return wire.until_eof(timeout) if wait_eof else wire.reply(timeout)


class Flock:
    """Many polls at once, each on a connection of its own, watched by one thread. With bodies: PUTs of these instead."""

    def __init__(self, base, paths, headers="", bodies=None):
        self.sockets = []
        self.selector = selectors.DefaultSelector()
        host = authority(base)
        for i, path in enumerate(paths):
            s = dial(base)
            s.sendall(self.request(host, path, headers, bodies[i] if bodies else None))
            s.setblocking(False)
            self.selector.register(s, selectors.EVENT_READ, i)
            self.sockets.append(s)
        self.paths, self.bodies = paths, bodies
        self.data = [b""] * len(self.sockets)
        self.replies = [None] * len(self.sockets)  # (Reply, monotonic time) or "closed"

    @staticmethod
    def request(host, path, headers, body):
        if body is None:
            return ("GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (path, host, headers)).encode()
        body = body.encode()
        return ("PUT %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n%s\r\n" % (path, host, len(body), headers)
                ).encode() + body

    def collect(self, seconds, enough=None):
        """Reads until all (or enough) have answered or the time is over. @return the list of replies so far"""
        deadline = time.monotonic() + seconds
        want = len(self.sockets) if enough is None else enough
        done = sum(r is not None for r in self.replies)
        while done < want and time.monotonic() < deadline:
            for key, _ in self.selector.select(max(0, deadline - time.monotonic())):
                i = key.data
                try:
                    more = key.fileobj.recv(65536)
                except BlockingIOError:
                    continue
                except ConnectionResetError:
                    more = b""
                self.data[i] += more
                cut = take_reply(self.data[i])
                if cut:
                    self.data[i] = cut[1]
                    self.replies[i] = (cut[0], time.monotonic())
                elif not more:
                    self.replies[i] = "closed"
                if cut or not more:
                    self.selector.unregister(key.fileobj)
                    done += 1
        return self.replies

    def close(self):
        self.selector.close()
        for s in self.sockets:
            s.close()
        for i, (path, reply) in enumerate(zip(self.paths, self.replies)):
            if isinstance(reply, tuple):
                RECORDER.note("PUT" if self.bodies else "GET", path, reply[0].status, reply[0].headers, reply[0].body,
                              self.bodies[i] if self.bodies else None)
