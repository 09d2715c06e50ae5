# SPDX-License-Identifier: Apache-2.0
"""Requests as bytes, made before the run, and the names of the sessions in them."""

import json
import os
import urllib.parse

#: Nothing ends by itself while the sides take turns: the longest ttl that the daemon's default configuration allows.
TTL_MS = 3600000

ROOMS = 1000
SESSIONS = 10000


def room(i, rooms=ROOMS):
    return "room-%04d" % (i % rooms)


def user(i):
    return "user-%07d" % i


def session(i):
    return "s-%07d" % i


def http(method, path, body=b"", headers=()):
    lines = ["%s %s HTTP/1.1" % (method, path), "Host: 127.0.0.1"] + list(headers)
    if method in ("PUT", "POST"):
        lines += ["Content-Type: application/json", "Content-Length: %d" % len(body)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def packed(document):
    return json.dumps(document, separators=(",", ":")).encode()


def heartbeat(i):
    """A heartbeat without a revision: accepted each time, and counted up."""
    return {"room_id": room(i), "user_id": user(i), "session_id": session(i), "ttl_ms": TTL_MS}


def renewals(sessions, headers=lambda i: ()):
    return [http("PUT", "/leases", packed(heartbeat(i)), headers(i)) for i in sessions]


def batches(groups):
    return [http("PUT", "/leases", packed({"leases": [heartbeat(i) for i in group]})) for group in groups]


def setex(sessions):
    """The same three names as one key, kept as long. The value is as long as what a lease has beside its names."""
    value = "x" * 32
    return [http("GET", "/SETEX/%s:%s:%s/%d/%s" % (room(i), user(i), session(i), TTL_MS // 1000, value))
            for i in sessions]


def keepalives(ids):
    return [http("POST", "/v3/lease/keepalive", packed({"ID": i})) for i in ids]


def poll_path(room_id, revision, epoch, wait_ms):
    return "/rooms/%s/presence?since=%d&epoch=%s&wait_ms=%d" % (
        urllib.parse.quote(room_id, safe=""), revision, urllib.parse.quote(epoch, safe=""), wait_ms)


def write(directory, name, requests):
    """The file that wrk/requests.lua and wire.c read. @return its path"""
    path = os.path.join(directory, name + ".requests")
    with open(path, "wb") as f:
        for request in requests:
            f.write(b"%d\n" % len(request))
            f.write(request)
    return path
