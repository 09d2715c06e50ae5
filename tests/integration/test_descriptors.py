# SPDX-License-Identifier: Apache-2.0
"""No descriptor left: no spinning, nobody inside is hurt, and all is well as soon as there are some again."""

import socket

from harness import daemon
from harness.bystanders import Bystanders
from harness.case import SLOW, Case, Wire, time
from harness.client import hostport
from harness.process import cpu_seconds, descriptors, limit_descriptors


class Exhausted(Case):
    """The limit is reached while the daemon believes that it has enough."""

    weight = 8

    def knock(self, n):
        """Connections that the kernel takes, whether or not the daemon does."""
        socks = []
        for _ in range(n):
            s = socket.create_connection(hostport(self.base), 10 * SLOW)
            self.addCleanup(s.close)
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            socks.append(s)
        return socks

    def exhaust(self, spare):
        """Leaves room for so many, and connects three hundred. @return (their sockets, the limits before)"""
        d = self.daemons[0]
        before = limit_descriptors(d, descriptors(d) + spare)
        self.addCleanup(self.restore, d, before)
        socks = self.knock(300)
        self.wait_until(lambda: "cannot be accepted" in d.text(), 5, "the complaint")
        return socks, before

    @staticmethod
    def restore(d, before):
        if d.alive():
            limit_descriptors(d, before[0])

    def recovers(self, seconds=5):
        began = time.monotonic()
        reply = self.client.get(self.base, "/healthz", fresh=True, timeout=seconds)
        self.assertEqual(reply.status, 200)
        self.assertLess(time.monotonic() - began, seconds * SLOW)

    def test_it_waits_and_recovers_when_they_go(self):
        self.allow_log = [r"cannot be accepted"]
        d = self.daemons[0]
        with Bystanders(self):
            idle = cpu_seconds(d)
            self.pause(1)
            idle = cpu_seconds(d) - idle
            socks, _ = self.exhaust(20)
            cpu, began = cpu_seconds(d), time.monotonic()
            self.pause(3)
            used = (cpu_seconds(d) - cpu) / (time.monotonic() - began)
            self.assertLess(used - idle, 0.2 * SLOW, "of a processor, beyond what the others cost (%.2f)" % idle)
            for s in socks:
                s.close()
            self.recovers()
        self.assertLess(d.text().count("cannot be accepted"), 4, "one line in five seconds")

    def test_it_recovers_when_the_limit_is_raised(self):
        self.allow_log = [r"cannot be accepted"]
        with Bystanders(self):
            socks, before = self.exhaust(10)
            self.restore(self.daemons[0], before)
            for s in socks:
                s.settimeout(10 * SLOW)
                self.assertEqual(s.recv(65536)[:12], b"HTTP/1.1 200", "those that stood at the door are served")
                s.close()

    def test_the_database_comes_back_afterwards(self):
        """No descriptor is left for a new connection to the database either."""
        self.allow_5xx = True
        self.allow_log = [r"."]
        room = self.room()
        self.grant(room, "s", 1)
        socks, _ = self.exhaust(10)
        self.q("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND "
               "pid <> pg_backend_pid()")
        cpu, began = cpu_seconds(self.daemons[0]), time.monotonic()
        self.pause(2)
        self.assertLess((cpu_seconds(self.daemons[0]) - cpu) / (time.monotonic() - began), 0.4 * SLOW)
        self.assertEqual(self.client.get(self.base, "/healthz").status, 200, "the connection from before")
        for s in socks:
            s.close()
        self.wait_until(lambda: self.hb(self.base, room, "u", "s").status == 200, 10, "a heartbeat")
        self.wait_until(lambda: self.daemons[0].status("/readyz") == 200, 10, "readiness")


class Lowered(Case):
    """A low limit that is known from the start."""

    autostart = False

    def test_a_low_limit_lowers_what_it_takes(self):
        self.allow_5xx = True
        wrapper = list(daemon.WRAPPER)
        daemon.WRAPPER[:0] = ["prlimit", "--nofile=160:160"]
        try:
            d = self.start_daemon()
        finally:
            daemon.WRAPPER[:] = wrapper
        self.assertIn("max_connections is lowered", d.text())
        with Bystanders(self):
            wires = [Wire(d.base) for _ in range(200)]
            statuses = []
            for wire in wires:
                try:
                    wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                    reply = wire.reply(5)
                except OSError:
                    reply = None
                statuses.append(reply.status if reply else 503)
            self.assertGreater(statuses.count(200), 30)
            self.assertGreater(statuses.count(503), 50, "the rest is told so at once")
            self.assertEqual(set(statuses), {200, 503})
            # What is kept in reserve is enough for the database.
            self.q("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
                   "AND pid <> pg_backend_pid() AND application_name LIKE '%reader%'")
            self.pause(0.5)
            for wire in wires:
                wire.close()
        self.wait_until(lambda: self.client.get(d.base, "/healthz", fresh=True).status == 200, 5, "room again")
        self.assertNotIn("cannot be accepted", d.text())
        self.stop_now(d)
