# SPDX-License-Identifier: Apache-2.0
"""Watching as server-sent events (CONTRACT §4)."""

import socket
import struct
import subprocess

from harness.case import SLOW, Case, Wire, lease, presence_path, quote, sql, time
from harness.pg import clean_environment
from harness.sse import Streams
from harness.watchers import Watchers


class StreamCase(Case):

    def open(self, room, since=None, base=None, headers="", n=1, version="1.1", **query):
        streams = Streams(base or self.base, [presence_path(room, since, **query)] * n, headers, version)
        self.addCleanup(streams.close)
        return streams

    def fill(self, room, n, start=0, base=None, meta=None):
        items = [lease(room, "u%d" % i, "s", ttl_ms=600000, meta=meta) for i in range(start, start + n)]
        for at in range(0, n, 1000):
            self.ok(self.client.batch(base or self.base, items[at:at + 1000]))

    def streams(self, base=None):
        return int(self.metrics(base or self.base)["stillhere_streams"])

    def reaches(self, streams, revision, seconds=10):
        """Reads until all have come so far."""
        done = streams.collect(lambda: all(at(r) >= revision for r in streams.readers), seconds)
        self.assertTrue(done, "up to %d: %r" % (revision, [at(r) for r in streams.readers][:5]))

    def in_order(self, reader, first, last):
        self.assertIsNone(reader.broken)
        self.assertEqual([r for r, _ in reader.events()], list(range(first, last + 1)))


def at(reader):
    """The position of a reader."""
    return -1 if reader.last_id is None else int(reader.last_id)


class Stream(StreamCase):
    weight = 12
    config = {"replay_limit": 20, "ttl_min_ms": 100, "longpoll_default_wait_ms": 1500}

    # -- what comes ----------------------------------------------------------------------------------------------------

    def test_a_snapshot_then_every_event(self):
        room = self.room()
        self.fill(room, 2)
        head = self.head(room)
        streams = self.open(room)
        self.reaches(streams, head)
        s = streams[0]
        self.assertEqual(s.status, 200)
        self.assertEqual(s.headers["content-type"].split(";")[0], "text/event-stream")
        self.assertEqual([s.headers.get("transfer-encoding"), s.headers.get("content-length"),
                          s.headers.get("x-accel-buffering"), s.headers.get("cache-control")],
                         ["chunked", None, "no", "no-store"])
        self.near(s.retry, 2000, 4000, "retry")
        self.assertEqual([(m.id, m.event) for m in s.messages], [(str(head), "snapshot")])
        snapshot = s.messages[0].json()
        self.assertEqual([snapshot["mode"], snapshot["reason"], snapshot["revision"], snapshot["counts"]],
                         ["snapshot", "requested", head, {"users": 2, "sessions": 2}])
        for i in range(3):
            self.grant(room, "s", user="u%d" % i, meta={"n": i, "text": "a\nb\r\nc\u2028é"})
        last = self.head(room)
        self.reaches(streams, last)
        polled = self.ok(self.poll(self.base, room, head))["events"]
        self.assertEqual([m.json() for m in s.messages[1:]], polled, "the same events as in a poll")
        self.assertEqual([(m.id, m.event) for m in s.messages[1:]], [(str(e["revision"]), e["kind"]) for e in polled])
        self.assertIsNone(s.broken)

    def test_an_event_comes_at_once(self):
        room = self.room()
        streams = self.open(room)
        self.reaches(streams, 0)
        for i in range(5):
            began = time.monotonic()
            self.grant(room, "s", user="u%d" % i)
            self.reaches(streams, self.head(room))
            self.assertLess(time.monotonic() - began, 0.25 * SLOW)
            self.pause(0.1)

    def test_cursors(self):
        room = self.room()
        self.fill(room, 3)
        head = self.head(room)
        for since, headers, first in ((1, "", 2), (1, "Last-Event-ID: 3\r\n", 4), (None, "Last-Event-ID: 2\r\n", 3),
                                      (1, "Last-Event-ID:\r\n", 2), (1, "Last-Event-ID: 3 \t\r\n", 4)):
            with self.subTest(since=since, headers=headers):
                streams = self.open(room, since, headers=headers)
                self.reaches(streams, head)
                self.in_order(streams[0], first, head)
                streams.close()
        streams = self.open(room, head)
        self.assertTrue(streams.collect(lambda: streams[0].retry is not None))
        streams.collect_for(0.3)
        self.assertEqual(streams[0].messages, [], "nothing is new")
        self.grant(room, "s", user="later")
        self.reaches(streams, self.head(room))
        self.in_order(streams[0], head + 1, self.head(room))

    def test_reasons_and_the_stream_goes_on(self):
        room = self.room()
        self.fill(room, 25)
        self.q("BEGIN; DELETE FROM stillhere.event WHERE room_id = {0} AND revision <= 3; UPDATE stillhere.room SET "
               "pruned_revision = 3 WHERE room_id = {0}; COMMIT".format(sql(room)))
        fresh = self.start_daemon()
        epoch = self.ok(self.poll(fresh.base, room))["epoch"]
        head = self.head(room)
        cases = (({"since": 1}, "pruned"), ({"since": 4}, "too_many"), ({"since": head + 7}, "ahead"),
                 ({"since": 4, "epoch": "feedfacefeedface"}, "epoch"), ({"epoch": epoch}, "requested"))
        opened = [self.open(room, base=fresh.base, **query) for query, _ in cases]
        for streams in opened:
            self.reaches(streams, head)
        self.grant(room, "s", user="later", base=fresh.base)
        last = self.head(room)
        for streams, (query, reason) in zip(opened, cases):
            with self.subTest(query=query):
                self.reaches(streams, last)
                first = streams[0].messages[0]
                self.assertEqual([first.event, int(first.id), first.json()["reason"]], ["snapshot", head, reason])
                self.in_order(streams[0], head + 1, last)
        self.stop_now(fresh)

    def test_kinds_and_keep_alive(self):
        room = self.room()
        self.fill(room, 1)
        head = self.head(room)
        began = time.monotonic()
        filtered = self.open(room, head, kinds="session.closed", n=10)
        plain = self.open(room, head)
        self.fill(room, 3, start=1)
        moved = self.head(room)
        self.reaches(plain, moved)
        filtered.collect_for(0.5)
        self.assertEqual([at(r) for r in filtered.readers], [-1] * 10)
        # By the keep-alive it is said how far the stream is, so that a reconnect does not go back to the start.
        self.reaches(filtered, moved, 17)
        took = time.monotonic() - began
        self.near(took, 13.5, 15 + 1.5 * SLOW, "the keep-alive")
        for r in filtered.readers:
            self.assertEqual([r.messages, r.comments, r.broken], [[], ["keep-alive"], None])
        plain.collect_for(0.5)
        self.assertTrue(plain.collect(lambda: plain[0].comments == ["keep-alive"], 5))
        self.ok(self.client.close(self.base, room, "u1", "s"))
        self.grant(room, "s", user="behind")
        last = self.head(room)
        filtered.collect(lambda: all(r.messages for r in filtered.readers))
        for r in filtered.readers:
            self.assertEqual([e for _, e in r.events()], ["session.closed"])
        self.reaches(plain, last)
        self.in_order(plain[0], head + 1, last)

    def test_other_kinds_are_no_messages_but_move_the_position(self):
        room = self.room()
        self.fill(room, 1)
        head = self.head(room)
        self.grant(room, "s", user="closes")
        self.ok(self.client.close(self.base, room, "closes", "s"))
        closed = self.head(room)
        self.grant(room, "s", user="after")
        last = self.head(room)
        self.assertGreater(last, closed)
        streams = self.open(room, head, kinds="session.closed")
        self.reaches(streams, last)
        self.assertEqual([m.event for m in streams[0].messages], ["session.closed"])

    def test_views_and_session(self):
        room = self.room()
        self.fill(room, 2)
        streams = self.open(room, view="count", session_id="s", user_id="u1")
        self.reaches(streams, self.head(room))
        self.assertEqual([m.event for m in streams[0].messages], ["session", "snapshot"])
        self.assertEqual([streams[0].messages[0].json()["state"], streams[0].messages[0].id], ["live", None])
        self.assertNotIn("users", streams[0].messages[1].json())
        streams = self.open(room, self.head(room), session_id="s", user_id="nobody")
        self.assertTrue(streams.collect(lambda: streams[0].messages, 5), "at once, also at the head")
        self.assertEqual(streams[0].messages[0].json()["state"], "unknown")

    # -- who gets one --------------------------------------------------------------------------------------------------

    def test_who_gets_a_stream(self):
        room = self.room()
        self.fill(room, 1)
        path = presence_path(room, 0, wait_ms=0)
        for accept in ("*/*", "application/json", "text/*", "text/event-stream;q=0", "application/json, text/event-stream"):
            reply = self.client.get(self.base, path, headers={"Accept": accept})
            self.assertEqual(reply.headers["content-type"], "application/json", accept)
            self.ok(reply)
        with Wire(self.base) as wire:
            wire.send(("HEAD %s HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n" % path).encode())
            reply = wire.reply(head_only=True)
            self.assertEqual([reply.status, reply.headers["content-type"]], [200, "application/json"])
        self.assertEqual(self.streams(), 0)
        with Wire(self.base) as wire:  # the types may come in several lines
            wire.send(("GET %s HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\nAccept: text/event-stream\r\n\r\n" %
                       path).encode())
            self.wait_until(lambda: self.streams() == 1, 5, "a stream")
        self.wait_until(lambda: self.streams() == 0, 5, "its end")

    def test_bad_questions_are_problems(self):
        room = self.room()
        accept = {"Accept": "text/event-stream"}
        for query in ("?since=x", "?kinds=none", "?limit=0", "?wait_ms=-1", "?bogus=1", "?since=1&since=2"):
            self.problem(self.client.get(self.base, "/rooms/%s/presence%s" % (quote(room), query), headers=accept), 400)
        for value in ("x", "-1", "1.5", "9007199254740992", "1 2", "0x1"):
            reply = self.client.get(self.base, presence_path(room), headers=dict(accept, **{"Last-Event-ID": value}))
            self.problem(reply, 400, field="Last-Event-ID")
        # A poll does not look at it.
        self.ok(self.client.get(self.base, presence_path(room), headers={"Last-Event-ID": "x"}))

    def test_http_1_0_is_delimited_by_the_close(self):
        room = self.room()
        d = self.start_daemon()
        self.fill(room, 2, base=d.base)
        streams = self.open(room, 0, base=d.base, version="1.0")
        self.reaches(streams, self.head(room))
        self.assertNotIn("transfer-encoding", streams[0].headers)
        d.terminate()
        self.assertTrue(streams.collect(lambda: streams[0].whole, 5))
        self.in_order(streams[0], 1, self.head(room))
        self.stop_now(d)

    # -- the end -------------------------------------------------------------------------------------------------------

    def test_shutdown_ends_them_whole(self):
        d = self.start_daemon()
        room = self.room()
        self.fill(room, 2, base=d.base)
        streams = self.open(room, base=d.base, n=50)
        self.reaches(streams, self.head(room))
        began = time.monotonic()
        d.terminate()
        self.assertTrue(streams.collect(lambda: all(r.whole or r.broken for r in streams.readers), 5))
        self.assertLess(time.monotonic() - began, 2 * SLOW)
        self.assertEqual([r.broken for r in streams.readers], [None] * 50)
        self.stop_now(d)

    def test_a_client_that_goes_is_noticed(self):
        room = self.room()
        self.fill(room, 1)
        for how in ("close", "reset", "half-close"):
            with self.subTest(how=how):
                streams = self.open(room, n=5)
                self.reaches(streams, self.head(room))
                self.assertEqual([self.streams(), self.waiting(self.base)], [5, 5])
                for s in streams.sockets:
                    if how == "half-close":
                        s.shutdown(socket.SHUT_WR)
                        continue
                    if how == "reset":
                        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    streams.selector.unregister(s)
                    s.close()
                self.wait_until(lambda: self.streams() == 0, 5, "the end of the streams")
                self.wait_until(lambda: self.waiting(self.base) == 0, 1, "the end of the waiting")
                if how == "half-close":
                    self.assertTrue(streams.collect(lambda: all(r.whole for r in streams.readers), 2))

    def test_the_connection_can_be_used_again(self):
        """Only by a client that half-closed: its next request had been sent before."""
        room = self.room()
        self.fill(room, 1)
        both = ("GET %s HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" %
                presence_path(room)).encode()
        with Wire(self.base) as wire:
            wire.send(both)
            wire.socket.shutdown(socket.SHUT_WR)
            data = wire.until_eof(5)
        self.assertIn(b"event: snapshot", data)
        self.assertIn(b"\r\n0\r\n\r\nHTTP/1.1 200 OK", data)

    def test_they_count_as_waiting(self):
        d = self.start_daemon(longpoll_max_waiting=3)
        room = self.room()
        self.fill(room, 1, base=d.base)
        streams = self.open(room, base=d.base, n=3)
        self.reaches(streams, self.head(room))
        self.assertEqual(self.waiting(d.base), 3)
        reply = self.client.get(d.base, presence_path(room), headers={"Accept": "text/event-stream"})
        self.problem(reply, 503, "too_many_waiting")
        self.allow_5xx = True
        self.problem(self.poll(d.base, room, self.head(room)), 503, "too_many_waiting")
        self.ok(self.poll(d.base, room))
        self.hb(d.base, room, "u", "s")
        streams.close()
        self.wait_until(lambda: self.waiting(d.base) == 0, 5, "the end of the streams")
        self.reaches(self.open(room, base=d.base), self.head(room))
        self.stop_now(d)


class Catching(StreamCase):
    """Far behind, slow, or not reading at all."""

    weight = 50
    config = {"replay_limit": 20000}

    def test_many_pages_in_order(self):
        room = self.room()
        self.fill(room, 3000, meta={"text": "x" * 500})
        head = self.head(room)
        streams = self.open(room, 0, n=3)  # more than memory holds, and more than may be queued
        self.reaches(streams, head, 30)
        self.fill(room, 5, start=3000)
        self.reaches(streams, self.head(room))
        for r in streams.readers:
            self.in_order(r, 1, self.head(room))

    def test_a_client_that_does_not_read_is_cut_and_nobody_else(self):
        """Each cut is counted: of one for which more piles up than may, and of one for which so little comes that nothing
        does, where the kernel would end the connection by itself."""
        room, quiet = self.room(), self.room("quiet")
        self.fill(room, 1)
        self.fill(quiet, 1)
        head = self.head(room)
        good = self.open(room, head, n=3)
        bad = Streams(self.base, [presence_path(room, head), presence_path(quiet, self.head(quiet))], receive_buffer=4096)
        self.addCleanup(bad.close)
        self.wait_until(lambda: self.streams() == 5, 5, "the streams")
        self.fill(quiet, 50, start=1, meta={"text": "x" * 1500})
        for i in range(6):
            self.fill(room, 500, start=1 + 500 * i, meta={"text": "x" * 1500})
            self.reaches(good, self.head(room), 20)
        self.assertEqual(self.streams(), 5, "they have their time")
        self.wait_until(lambda: self.streams() == 3, 60, "the cuts")
        self.assertEqual(self.metrics(self.base)["stillhere_streams_cut_total"], 2)
        self.wait_until(lambda: int(self.metrics(self.base)["stillhere_connections"]) <= 3 + 3, 5, "a closed connection")
        bad.collect(lambda: bad[0].broken and bad[1].broken, 5)
        self.assertIsNotNone(bad[0].broken, "not a whole response")
        self.assertIsNotNone(bad[1].broken)
        self.fill(room, 1, start=5000)
        self.reaches(good, self.head(room))
        for r in good.readers:
            self.in_order(r, head + 1, self.head(room))


class Crowd(StreamCase):
    """Many at once, over two instances."""

    weight = 30
    instances = 2
    config = {"fanout_window_max_ms": 800}

    def test_streams_and_polls_see_the_same(self):
        room = self.room()
        self.fill(room, 1)
        head = self.head(room)
        epoch = self.ok(self.poll(self.base, room))["epoch"]
        streams = [Streams(base, [presence_path(room, head, epoch=epoch)] * 250) for base in self.bases]
        polls = [Watchers(base, room, 250, head, epoch).start() for base in self.bases]
        for s, w in zip(streams, polls):
            self.addCleanup(s.close)
            self.addCleanup(w.stop)
        for base in self.bases:
            self.wait_until(lambda b=base: self.waiting(b) >= 500, 20, "500 that wait")
            self.assertEqual(self.streams(base), 250)

        def write(part):
            for i in range(15):
                user = "w%d-%d" % (part, i)
                self.hb(self.bases[part % 2], room, user, "s")
                if i % 2:
                    self.client.close(self.bases[(part + 1) % 2], room, user, "s")
        writers = [self.background(write, part) for part in range(4)]
        self.wait_until(lambda: all(w.done() for w in writers), 30, "the writers")
        last = self.head(room)
        self.assertGreaterEqual(last - head, 4 * 22)
        stored = [(e["revision"], e["kind"]) for e in self.events(room) if head < e["revision"] <= last]
        for s in streams:
            self.reaches(s, last, 20)
        for w in polls:
            late = w.wait(20 * SLOW, lambda w: w.since >= last)
            self.assertEqual([(x.wrong, x.since) for x in late][:3], [])
        for s in streams:
            for r in s.readers:
                self.assertIsNone(r.broken)
                self.assertEqual(r.events()[:len(stored)], stored)
        for w in polls:
            for x in w.all:
                self.assertEqual(x.events[:len(stored)], stored)


class Trouble(StreamCase):
    """The database goes, or becomes another one."""

    own_cluster = True
    weight = 15

    def test_a_stream_outlives_the_database(self):
        self.allow_5xx = True
        self.allow_log.append(".")
        room = self.room()
        self.fill(room, 1)
        head = self.head(room)
        streams = self.open(room, head)
        self.assertTrue(streams.collect(lambda: streams[0].retry))
        self.forget_query()
        self.pg.stop("immediate")
        streams.collect_for(2)
        self.assertFalse(streams[0].whole or streams[0].broken)
        self.pg.start()
        self.daemons[0].wait_ready()
        self.grant(room, "s", user="after")
        self.reaches(streams, self.head(room), 15)
        self.in_order(streams[0], head + 1, self.head(room))

    def test_another_epoch_is_a_snapshot(self):
        self.allow_5xx = True
        self.allow_log.append(".")
        room = self.room()
        self.fill(room, 3)
        head = self.head(room)
        epoch = self.ok(self.poll(self.base, room))["epoch"]
        streams = self.open(room, head)
        self.assertTrue(streams.collect(lambda: streams[0].retry))
        dump = subprocess.run([self.pg.program("pg_dump"), "-h", self.pg.socket, "-p", "5432", "-U", "postgres",
                               self.database], env=clean_environment(), stdout=subprocess.PIPE, check=True)
        self.forget_query()
        admin = self.pg.session("postgres")
        self.addCleanup(admin.close)
        admin.value("DROP DATABASE %s WITH (FORCE)" % self.database)
        admin.value("CREATE DATABASE %s" % self.database)
        subprocess.run(self.pg.psql_args(self.database) + ["-1", "-v", "ON_ERROR_STOP=1"], env=clean_environment(),
                       input=dump.stdout, stdout=subprocess.DEVNULL, check=True)
        self.assertTrue(streams.collect(lambda: streams[0].messages, 20), "it is told without being asked")
        first = streams[0].messages[0]
        self.assertEqual([first.event, int(first.id), first.json()["reason"]], ["snapshot", head, "epoch"])
        self.assertNotEqual(first.json()["epoch"], epoch)
        self.daemons[0].wait_ready()
        self.grant(room, "s", user="after")
        self.reaches(streams, self.head(room), 15)
        self.in_order(streams[0], head + 1, self.head(room))
