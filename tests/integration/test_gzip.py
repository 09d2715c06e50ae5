# SPDX-License-Identifier: Apache-2.0
"""Replies over 1 KiB are compressed for those who accept it (CONTRACT §9), and every client can read them."""

import gzip
import json
import re
import shutil
import subprocess
import zlib

from harness.case import SLOW, Case, Flock, Wire, lease, presence_path, quote

GZIP = {"Accept-Encoding": "gzip"}


def without_time(document):
    """What differs for each reader is left out."""
    if isinstance(document, list):
        return [without_time(d) for d in document]
    if not isinstance(document, dict):
        return document
    return {k: without_time(v) for k, v in document.items()
            if k not in ("server_time", "next_poll_ms", "request_id", "remaining_ms")}


class Gzip(Case):

    def setUp(self):
        super().setUp()
        self.big = self.room("big")
        self.ok(self.client.batch(self.base, [lease(self.big, "u%d" % i, "s", ttl_ms=600000, meta={"n": i, "s": "é\"\\"})
                                              for i in range(40)]))

    def unpack(self, reply):
        """Demands one gzip member, whole, and nothing behind it. @return its bytes"""
        self.assertEqual(reply.headers.get("content-encoding"), "gzip", reply)
        self.assertEqual(int(reply.headers["content-length"]), len(reply.body))
        self.assertIn("accept-encoding", reply.headers["vary"].lower())
        one = zlib.decompressobj(31)
        plain = one.decompress(reply.body)
        self.assertTrue(one.eof)
        self.assertEqual(one.unused_data, b"")
        self.assertEqual(gzip.decompress(reply.body), plain)
        return plain

    def test_the_same_as_plain(self):
        since = presence_path(self.big, 0)
        for path in (presence_path(self.big), since, since + "&limit=20", since + "&session_id=s&user_id=u1",
                     "/rooms/%s/leases" % quote(self.big), "/metrics"):
            with self.subTest(path=path):
                plain = self.client.get(self.base, path)
                packed = self.client.get(self.base, path, headers=GZIP)
                self.assertEqual([plain.status, packed.status], [200, 200])
                self.assertGreater(len(plain.body), 1024)
                self.assertNotIn("content-encoding", plain.headers)
                self.assertIn("accept-encoding", plain.headers["vary"].lower())
                self.assertEqual(packed.headers["content-type"], plain.headers["content-type"])
                text = self.unpack(packed)
                self.assertLess(len(packed.body), len(text) / 2)
                if path != "/metrics":
                    self.assertEqual(without_time(json.loads(text)), without_time(plain.json()))
                    self.assertRegex(json.loads(text)["server_time"], r"^\d{4}-")

    def test_a_batch_of_heartbeats(self):
        items = [lease(self.big, "u%d" % i, "s", ttl_ms=600000) for i in range(40)]
        reply = self.client.batch(self.base, items, headers=GZIP)
        results = json.loads(self.unpack(reply))["results"]
        self.assertEqual({r["decision"] for r in results}, {"accepted"})

    def test_the_edge(self):
        """A reply of 1024 bytes is sent as it is."""
        small = self.room("small")
        self.grant(small)
        reply = self.client.get(self.base, presence_path(small), headers=GZIP)
        self.assertNotIn("content-encoding", reply.headers)
        self.ok(reply)
        head = self.head(small)
        pad = 1024 - len(self.poll(self.base, small).body) - len('"pad":""')
        for more in (-8, 0, 8):  # server_time has a fixed length, next_poll_ms and revision may have a digit more
            self.grant(small, meta={"pad": "x" * (pad + more)})
            reply = self.client.get(self.base, presence_path(small), headers=GZIP)
            plain = self.client.get(self.base, presence_path(small))
            if len(plain.body) > 1030:
                self.unpack(reply)
            elif len(plain.body) < 1019:
                self.assertNotIn("content-encoding", reply.headers)
        self.assertGreater(self.head(small), head)

    def test_who_accepts(self):
        path = presence_path(self.big)
        for value, packed in (("gzip, deflate, br", True), ("*", True), ("br;q=1.0, gzip;q=0.8, *;q=0.1", True),
                              ("GZIP", True), ("identity", False), ("gzip;q=0", False), ("gzip;q=0, *", False),
                              ("deflate, br", False), ("", False), ("identity, gzip;q=0.2", False)):
            with self.subTest(value=value):
                reply = self.client.get(self.base, path, headers={"Accept-Encoding": value})
                self.assertEqual(reply.headers.get("content-encoding"), "gzip" if packed else None)
        with Wire(self.base) as wire:  # the list may come in several lines
            wire.send(("GET %s HTTP/1.1\r\nHost: x\r\nAccept-Encoding: br\r\naccept-encoding: gzip\r\n\r\n" % path).encode())
            self.unpack(wire.reply())

    def test_entity_tags(self):
        path = presence_path(self.big)
        plain = self.client.get(self.base, path)
        packed = self.client.get(self.base, path, headers=GZIP)
        self.assertRegex(plain.headers["etag"], r'^"[^"]+"$')
        self.assertEqual(packed.headers["etag"], "W/" + plain.headers["etag"], "other bytes, the same presence")
        for tag in (plain.headers["etag"], packed.headers["etag"]):
            for headers in ({}, GZIP):
                reply = self.client.get(self.base, path, headers=dict(headers, **{"If-None-Match": tag}))
                self.assertEqual([reply.status, reply.body], [304, b""])
                self.assertNotIn("content-encoding", reply.headers)
        self.grant(self.big, user="another")
        for headers in ({}, GZIP):
            reply = self.client.get(self.base, path, headers=dict(headers, **{"If-None-Match": packed.headers["etag"]}))
            self.assertEqual(reply.status, 200)

    def test_head(self):
        with Wire(self.base) as wire:
            wire.send(("HEAD %s HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n" % presence_path(self.big)).encode())
            reply = wire.reply(head_only=True)
            self.assertEqual([reply.status, reply.headers["content-encoding"]], [200, "gzip"])
            wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(wire.reply().status, 200, "no body came after the head")

    def test_one_wake_for_both_forms(self):
        head = self.head(self.big)
        plain = Flock(self.base, [presence_path(self.big, head)] * 40)
        packed = Flock(self.base, [presence_path(self.big, head)] * 40, "Accept-Encoding: gzip\r\n")
        self.wait_until(lambda: self.waiting(self.base) >= 80, 10, "parked polls")
        self.ok(self.client.batch(self.base, [lease(self.big, "v%d" % i, "s", ttl_ms=600000) for i in range(20)]))
        plain.collect(5 * SLOW)
        packed.collect(5 * SLOW)
        starts = {r.body[:-200] for r, _ in packed.replies}
        self.assertEqual(len(starts), 1, "the shared part was compressed once, or at least alike")
        texts = {json.dumps(without_time(r.json())) for r, _ in plain.replies}
        texts |= {json.dumps(without_time(json.loads(self.unpack(r)))) for r, _ in packed.replies}
        self.assertEqual(len(texts), 1)
        plain.close()
        packed.close()

    def test_curl(self):
        if not shutil.which("curl"):
            return
        url = self.base + presence_path(self.big)
        plain, packed = (subprocess.run(["curl", "-sS", "--fail", "-D", "-"] + more + [url], stdout=subprocess.PIPE,
                                        timeout=20, check=True).stdout for more in ([], ["--compressed"]))
        head, _, body = packed.partition(b"\r\n\r\n")
        self.assertTrue(re.search(rb"(?i)content-encoding: gzip", head), head)
        self.assertEqual(without_time(json.loads(body)), without_time(json.loads(plain.partition(b"\r\n\r\n")[2])))

    def test_streams_are_not_compressed(self):
        with Wire(self.base) as wire:
            wire.send(("GET %s HTTP/1.0\r\nAccept: text/event-stream\r\nAccept-Encoding: gzip\r\n\r\n" %
                       presence_path(self.big)).encode())
            wire.socket.settimeout(5)
            data = b""
            while b"event: snapshot\ndata: {" not in data:
                more = wire.socket.recv(65536)
                self.assertTrue(more)
                data += more
            self.assertNotIn(b"ontent-Encoding", data)
