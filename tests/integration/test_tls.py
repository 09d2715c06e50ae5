# SPDX-License-Identifier: Apache-2.0
"""The server with a certificate of its own: TLS, its reload, and what plain HTTP promises, over TLS."""

import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess

from harness.case import ENVIRONMENT, SLOW, Case, Wire, json, lease, presence_path, time
from harness.daemon import daemon_environment, free_port, program
from harness.sse import Streams
from harness.tls import TRUSTED, Pair, context


def message(request_line, body=b"", *headers):
    lines = [request_line, "Host: localhost"] + list(headers)
    if body and not any(h.lower().startswith(("content-length", "transfer-encoding")) for h in headers):
        lines.append("Content-Length: %d" % len(body))
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def heartbeat(room, session, revision):
    return message("PUT /leases HTTP/1.1", json.dumps(lease(room, "u", session, revision)).encode())


def cpu_seconds(daemon):
    with open("/proc/%d/stat" % daemon.process.pid) as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def client_hello(base):
    """The first flight of a client, as bytes."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context(base).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


class TlsCase(Case):
    weight = 10

    @classmethod
    def begin(cls):
        cls.pair = Pair(ENVIRONMENT["directory"], cls.__name__)
        cls.config = dict(cls.config, **cls.pair.settings)
        super().begin()

    @property
    def port(self):
        return self.daemons[0].port

    def dial_raw(self):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=10 * SLOW)
        self.addCleanup(s.close)
        return s

    def dial_with(self, tls):
        s = tls.wrap_socket(socket.create_connection(("127.0.0.1", self.port), timeout=10 * SLOW),
                            server_hostname="127.0.0.1")
        self.addCleanup(s.close)
        return s

    def healthy(self, s):
        s.sendall(message("GET /healthz HTTP/1.1"))
        self.assertTrue(s.recv(65536).startswith(b"HTTP/1.1 200"))

    def seen(self):
        """The certificate that a new connection is shown, DER."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        return self.dial_with(tls).getpeercert(binary_form=True)


class Tls(TlsCase):
    config = {"ttl_min_ms": 1000, "longpoll_default_wait_ms": 20000}

    # -- the protocol --------------------------------------------------------------------------------------------------

    def test_the_same_over_tls(self):
        room = self.room()
        head = self.grant(room, "a", 1)["room_revision"]
        poll = self.parked(self.base, room, head)
        self.grant(room, "b", 1)
        self.assertEqual([e["session_id"] for e in self.ok(self.answer(poll))["events"]], ["b"])
        self.assertIn("(TLS)", self.daemons[0].text())

    def test_versions(self):
        for version, name in ((ssl.TLSVersion.TLSv1_3, "TLSv1.3"), (ssl.TLSVersion.TLSv1_2, "TLSv1.2")):
            tls = context(self.base)
            tls.minimum_version = tls.maximum_version = version
            s = self.dial_with(tls)
            self.assertEqual(s.version(), name)
            self.healthy(s)
        for version in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1):
            tls = context(self.base)
            tls.set_ciphers("ALL:@SECLEVEL=0")
            tls.minimum_version = tls.maximum_version = version
            with self.assertRaises((ssl.SSLError, ConnectionResetError)):
                self.dial_with(tls)

    def test_no_exchange_of_keys_without_forward_secrecy(self):
        tls = context(self.base)
        tls.maximum_version = ssl.TLSVersion.TLSv1_2
        tls.set_ciphers("kRSA")
        with self.assertRaises((ssl.SSLError, ConnectionResetError)):
            self.dial_with(tls)

    def test_alpn(self):
        for offered, chosen in ((["http/1.1"], "http/1.1"), (["h2", "http/1.1"], "http/1.1"), (["h2"], None)):
            tls = context(self.base)
            tls.set_alpn_protocols(offered)
            s = self.dial_with(tls)
            self.assertEqual(s.selected_alpn_protocol(), chosen)
            self.healthy(s)

    def test_who_speaks_plainly_is_not_answered(self):
        s = self.dial_raw()
        s.sendall(message("GET /healthz HTTP/1.1"))
        data = b""
        try:
            while True:
                more = s.recv(65536)
                if not more:
                    break
                data += more
        except ConnectionResetError:
            pass
        self.assertNotIn(b"HTTP/1.1", data)
        self.assertEqual(self.client.get(self.base, "/healthz").status, 200)

    def test_the_key_is_nowhere_in_the_log(self):
        with open(self.pair.key) as f:
            lines = [line for line in f.read().splitlines() if line and not line.startswith("-----")]
        log = self.daemons[0].text()
        self.assertFalse([line for line in lines if line in log])

    def test_the_page_asks_browsers_to_stay(self):
        reply = self.client.get(self.base, "/")
        self.assertEqual(reply.headers["strict-transport-security"], "max-age=31536000")
        self.assertNotIn("strict-transport-security", self.client.get(self.base, "/healthz").headers)

    # -- bytes: what GnuTLS has decrypted already must not be forgotten ------------------------------------------------

    def test_pipelined_requests(self):
        room = self.room()
        n = 40
        data = b"".join(heartbeat(room, "s", i + 1) for i in range(n))
        for size in (len(data), 1000, 100):
            other = self.room()
            data = b"".join(heartbeat(other, "s", i + 1) for i in range(n))
            with Wire(self.base) as wire:
                for at in range(0, len(data), size):
                    wire.send(data[at:at + size])  # each a record of its own
                replies = [wire.reply(10) for _ in range(n)]
            self.assertEqual([r["lease"]["revision"] for r in replies], list(range(1, n + 1)))

    def test_a_byte_in_a_record(self):
        room = self.room()
        with Wire(self.base) as wire:
            for byte in heartbeat(room, "s", 1):
                wire.send(bytes([byte]))
            self.assertEqual(wire.reply()["decision"], "accepted")

    def test_a_body_and_a_reply_of_a_megabyte(self):
        room = self.room()
        meta = {"m": "x" * 900}
        items = [lease(room, "u%d" % i, "s", ttl_ms=600000, meta=meta) for i in range(1000)]
        body = json.dumps({"leases": items}).encode()
        body += b" " * (1048576 - len(body))
        began = time.monotonic()
        with Wire(self.base) as wire:
            wire.send(message("PUT /leases HTTP/1.1", body) + message("GET %s HTTP/1.1" % presence_path(room)))
            results = wire.reply(30)["results"]
            self.assertEqual({r["decision"] for r in results}, {"accepted"})
            snapshot = wire.reply(30)
            self.assertGreater(len(snapshot.body), 900000)
            self.assertEqual(snapshot["counts"]["users"], 1000)
        self.assertLess(time.monotonic() - began, self.within(15))
        packed = self.client.get(self.base, presence_path(room), headers={"Accept-Encoding": "gzip"})
        self.assertEqual(packed.headers["content-encoding"], "gzip")

    def test_a_reply_to_a_slow_reader(self):
        room = self.room()
        items = [lease(room, "u%d" % i, "s", ttl_ms=600000, meta={"m": "x" * 900}) for i in range(1000)]
        self.ok(self.client.batch(self.base, items))
        with Wire(self.base) as wire:
            wire.socket.close()
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            s.connect(("127.0.0.1", self.port))
            wire.socket = context(self.base).wrap_socket(s, server_hostname="127.0.0.1")
            n = 8  # more than the kernel takes
            for _ in range(n):
                wire.send(message("GET %s HTTP/1.1" % presence_path(room)))
            self.pause(0.5)  # the server's writes come to a halt in the midst of a record
            for _ in range(n):
                self.assertEqual(wire.reply(30)["counts"]["users"], 1000)

    # -- refusals by hand ----------------------------------------------------------------------------------------------

    def test_a_body_that_is_too_long_is_refused_while_it_comes(self):
        for head in ("Content-Length: 50000000", "Transfer-Encoding: chunked"):
            with self.subTest(head=head), Wire(self.base) as wire:
                wire.send(message("PUT /leases HTTP/1.1", b"", head))
                piece = b"x" * 60000
                if "chunked" in head:
                    piece = b"%x\r\n%s\r\n" % (len(piece), piece)
                try:
                    for _ in range(40):
                        wire.send(piece)
                except OSError:
                    pass
                self.problem(wire.reply(10), 413, "body_too_large")
        self.assertEqual(self.client.get(self.base, "/healthz").status, 200)

    def test_ambiguous_framing_is_refused(self):
        with Wire(self.base) as wire:
            wire.send(message("PUT /leases HTTP/1.1", b"0\r\n\r\n", "Transfer-Encoding: chunked", "Content-Length: 5"))
            self.problem(wire.reply(5), 400, "bad_framing")
            wire.until_eof(10)

    # -- clients that are gone -----------------------------------------------------------------------------------------

    def leave(self, s, how):
        if how == "close_notify":
            try:
                s.settimeout(0.1)
                s.unwrap()
            except OSError:
                pass
        if how == "reset":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()

    def test_a_poll_whose_client_has_gone_ends(self):
        room = self.room()
        head = self.grant(room, "a", 1)["room_revision"]
        for how in ("fin", "close_notify", "reset"):
            with self.subTest(how=how):
                wire = Wire(self.base)
                wire.send(message("GET %s HTTP/1.1" % presence_path(room, head)))
                self.wait_until(lambda: self.waiting(self.base) == 1, 5, "a parked poll")
                self.leave(wire.socket, how)
                self.wait_until(lambda: self.waiting(self.base) == 0, 5, "the end of the poll")

    def test_a_stream_whose_client_has_gone_ends(self):
        room = self.room()
        self.grant(room, "a", 1)
        for how in ("fin", "close_notify", "reset"):
            with self.subTest(how=how):
                streams = Streams(self.base, [presence_path(room)])
                self.assertTrue(streams.collect(lambda: streams[0].messages))
                self.assertEqual(self.metrics(self.base)["stillhere_streams"], 1)
                self.leave(streams.sockets[0], how)
                self.wait_until(lambda: self.metrics(self.base)["stillhere_streams"] == 0, 5, "the end of the stream")
                streams.close()

    def test_streams(self):
        room = self.room()
        self.grant(room, "a", 1)
        with Streams(self.base, [presence_path(room)] * 20) as streams:
            self.assertTrue(streams.collect(lambda: all(r.messages for r in streams.readers)))
            for i in range(30):
                self.grant(room, "s%d" % i, 1, meta={"m": "x" * 500})
            head = self.head(room)
            self.assertTrue(streams.collect(lambda: all(r.last_id == str(head) for r in streams.readers), 20))
            for reader in streams.readers:
                self.assertIsNone(reader.broken)
                self.assertEqual([r for r, _ in reader.events()], list(range(head - 29, head + 1)))

    # -- the command ---------------------------------------------------------------------------------------------------

    def test_the_command_with_an_authority(self):
        room = self.room()
        self.grant(room, "tab", 1)
        path = os.path.abspath(os.environ.get("STILLHERE", "stillhere"))

        def who(*more, **environment):
            done = subprocess.run([path, "who", room, "--json", "--url", self.base, *more], capture_output=True, text=True,
                                  env=dict(os.environ, **environment), timeout=60 * SLOW)
            return done.returncode, done.stdout + done.stderr

        code, text = who("--ca-file", self.pair.cert)
        self.assertEqual(code, 0, text)
        self.assertIn('"tab"', text)
        self.assertEqual(who(STILLHERE_CA_FILE=self.pair.cert)[0], 0)
        code, text = who()
        self.assertEqual(code, 3, text)
        self.assertIn("certificate", text.lower())


class Reload(TlsCase):
    """SIGHUP, with other files at the same paths."""

    @classmethod
    def begin(cls):
        directory = ENVIRONMENT["directory"]
        cls.pairs = [Pair(directory, "reload-%d" % i, "rsa" if i == 2 else "ec") for i in range(3)]
        super().begin()

    def put(self, cert, key):
        for path, into in ((cert, self.pair.cert), (key, self.pair.key)):
            shutil.copyfile(path, into + ".new")
            os.replace(into + ".new", into)

    def hup(self, sign):
        """SIGHUP, and waits for one more line with the sign in it."""
        d = self.daemons[0]
        before = d.text().count(sign)
        d.process.send_signal(signal.SIGHUP)
        self.wait_until(lambda: d.text().count(sign) > before, 5, sign)

    def use(self, pair):
        self.put(pair.cert, pair.key)
        self.hup("new connections get the TLS certificate")
        self.assertEqual(self.seen(), pair.der)

    def test_new_connections_get_the_new_certificate_and_old_ones_go_on(self):
        room = self.room()
        self.use(self.pairs[0])
        TRUSTED[self.base] = self.pairs[0].cert
        self.addCleanup(TRUSTED.__setitem__, self.base, self.pair.cert)
        head = self.grant(room, "a", 1)["room_revision"]
        with Wire(self.base) as old, Wire(self.base) as poll:
            poll.send(message("GET %s HTTP/1.1" % presence_path(room, head)))
            old.send(heartbeat(room, "a", 2))
            self.assertEqual(old.reply().status, 200)
            self.use(self.pairs[1])
            self.use(self.pairs[2])
            TRUSTED[self.base] = self.pairs[2].cert
            old.send(heartbeat(room, "a", 3))
            self.assertEqual(old.reply().status, 200)
            self.grant(room, "b", 1, base=None, fresh=True)
            self.assertEqual(poll.reply(5)["events"][0]["session_id"], "b")

    def test_a_pair_that_cannot_be_used_leaves_the_old_one(self):
        self.use(self.pairs[1])
        bad = os.path.join(ENVIRONMENT["directory"], "bad.pem")
        with open(bad, "w") as f:
            f.write("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
        for cert, key, named in ((bad, self.pairs[0].key, "tls_cert_file"), (self.pairs[0].cert, bad, "tls_key_file"),
                                 (self.pairs[0].cert, self.pairs[2].key, "tls_key_file")):
            with self.subTest(named=named):
                self.allow_log = self.allow_log + ["cannot be used", "the TLS certificate in use stays"]
                self.put(cert, key)
                self.hup("the TLS certificate in use stays")
                self.assertIn(named, [line for line in self.daemons[0].text().splitlines() if "cannot be used" in line][-1])
                self.assertEqual(self.seen(), self.pairs[1].der)
        self.use(self.pairs[0])

    def test_reloads_while_clients_come_and_go(self):
        stop = []

        def come_and_go():
            n = 0
            while not stop:
                self.seen()
                n += 1
            return n

        futures = [self.background(come_and_go) for _ in range(4)]
        for i in range(12):
            self.put(self.pairs[i % 3].cert, self.pairs[i % 3].key)
            self.hup("new connections get the TLS certificate")
        stop.append(True)
        self.assertGreater(sum(f.result(20 * SLOW) for f in futures), 4)


class Handshakes(TlsCase):
    config = {"request_deadline_ms": 2500, "http_workers": 1}

    def test_handshakes_that_wait_cost_nothing_and_hold_nobody_up(self):
        hello = client_hello(self.base)
        d = self.daemons[0]
        before = self.metrics(self.base)["stillhere_connections"]
        waiting = []
        for i in range(20):
            s = self.dial_raw()
            s.sendall(hello if i % 2 else hello[:30])
            waiting.append(s)
        self.pause(0.3)
        cpu, began, slowest = cpu_seconds(d), time.monotonic(), 0
        while time.monotonic() - began < 1.5:
            slowest = max(slowest, self.client.get(self.base, "/healthz").seconds)
            self.pause(0.05)
        self.assertLess(cpu_seconds(d) - cpu, 0.5, "it turns round and round")
        self.assertLess(slowest, self.within(0.5))
        self.wait_until(lambda: self.metrics(self.base)["stillhere_connections"] <= before, 6, "the end of them at the deadline")

    def test_a_handshake_in_pieces(self):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context(self.base).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        s = self.dial_raw()
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    s.sendall(bytes([byte]))
                incoming.write(s.recv(65536))
        # What ends the handshake and the first request in one segment: nothing more comes that would wake anybody.
        tls.write(message("GET /healthz HTTP/1.1"))
        s.sendall(outgoing.read())
        data = b""
        while b"\r\n\r\n" not in data:
            more = s.recv(65536)
            self.assertTrue(more, "closed")
            incoming.write(more)
            try:
                data += tls.read(65536)
            except ssl.SSLWantReadError:
                pass
        self.assertTrue(data.startswith(b"HTTP/1.1 200"), data)

    def test_a_body_that_does_not_come(self):
        with Wire(self.base) as wire:
            wire.send(message("PUT /leases HTTP/1.1", b"", "Content-Length: 100"))
            self.problem(wire.reply(6), 408, "too_slow")
            wire.until_eof(6)


class Stop(TlsCase):
    autostart = False

    def test_waiting_polls_and_streams_are_answered_at_a_stop(self):
        d = self.start_daemon()
        room = self.room()
        head = self.grant(room, "a", 1)["room_revision"]
        poll = self.parked(d.base, room, head)
        with Streams(d.base, [presence_path(room)]) as streams:
            self.assertTrue(streams.collect(lambda: streams[0].messages))
            d.terminate()
            self.assertEqual(self.ok(self.answer(poll))["mode"], "unchanged")
            self.assertTrue(streams.collect(lambda: streams[0].whole or streams[0].broken))
            self.assertIsNone(streams[0].broken)
        self.stop_now(d)

    def test_beyond_the_cap_connections_are_closed(self):
        d = self.start_daemon(max_connections=2)
        socks = []
        for _ in range(2):
            s = context(d.base).wrap_socket(socket.create_connection(("127.0.0.1", d.port), timeout=10 * SLOW),
                                            server_hostname="127.0.0.1")
            self.addCleanup(s.close)
            socks.append(s)
        third = socket.create_connection(("127.0.0.1", d.port), timeout=10 * SLOW)
        self.addCleanup(third.close)
        try:
            self.assertEqual(third.recv(1000), b"")
        except ConnectionResetError:
            pass
        for s in socks:
            s.close()
        self.stop_now(d)


class Start(Case):
    """Files that cannot be used stop the start with one line that names the key."""
    autostart = False

    def refused(self, named, words, **files):
        config = dict(files, database_url=self.pg.url(self.database), listen="127.0.0.1:%d" % free_port(), log_format="text")
        done = subprocess.run([program()], env=daemon_environment(config), capture_output=True, text=True, timeout=30 * SLOW)
        self.assertIn(done.returncode, (1, 2), done.stderr)
        lines = [line for line in done.stderr.splitlines() if "info" not in line]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertIn(named, lines[0])
        self.assertRegex(lines[0].lower(), words)

    def test_files(self):
        directory = ENVIRONMENT["directory"]
        a, b = Pair(directory, "start-a"), Pair(directory, "start-b")
        nothing, missing = os.path.join(directory, "nothing.pem"), os.path.join(directory, "missing.pem")
        open(nothing, "w").close()
        locked = os.path.join(directory, "locked.key")
        subprocess.run(["openssl", "pkey", "-in", a.key, "-aes256", "-passout", "pass:x", "-out", locked], check=True)
        self.refused("tls_key_file", "needed", tls_cert_file=a.cert)
        self.refused("tls_cert_file", "needed", tls_key_file=a.key)
        self.refused("tls_cert_file", "cannot be read", tls_cert_file=missing, tls_key_file=a.key)
        self.refused("tls_key_file", "cannot be read", tls_cert_file=a.cert, tls_key_file=missing)
        self.refused("tls_cert_file", "cannot be used", tls_cert_file=nothing, tls_key_file=a.key)
        self.refused("tls_key_file", "cannot be used", tls_cert_file=a.cert, tls_key_file=nothing)
        self.refused("tls_key_file", "cannot be used", tls_cert_file=a.cert, tls_key_file=locked)
        self.refused("tls_cert_file", "cannot be used", tls_cert_file=a.key, tls_key_file=a.cert)
        self.refused("tls_key_file", "match", tls_cert_file=a.cert, tls_key_file=b.key)
