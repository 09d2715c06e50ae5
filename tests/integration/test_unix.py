# SPDX-License-Identifier: Apache-2.0
"""Listening on a socket in the file system (listen = unix:/path)."""

import os
import shutil
import socket
import stat
import subprocess
import tempfile

from harness.case import SLOW, Case, Wire, presence_path, time
from harness.daemon import daemon_environment, program
from harness.sse import Streams


class UnixCase(Case):
    weight = 4

    @classmethod
    def begin(cls):
        # The path of a socket has 107 bytes at most; the directory of a test may be deep.
        cls.place = tempfile.mkdtemp(prefix="shunix")
        cls.config = dict(cls.config, listen="unix:" + os.path.join(cls.place, "s"))
        super().begin()

    @classmethod
    def finish(cls):
        try:
            return super().finish()
        finally:
            shutil.rmtree(cls.place, ignore_errors=True)

    @property
    def path(self):
        return os.path.join(self.place, "s")


class Unix(UnixCase):
    config = {"max_connections_per_ip": 2, "address_rate": 1, "address_burst": 1}

    def test_the_same_over_the_socket_without_a_limit_by_address(self):
        room = self.room()
        head = self.grant(room, "a", 1)["room_revision"]
        polls = [self.background(self.client.poll, self.base, room, head, fresh=True) for _ in range(5)]
        self.wait_until(lambda: self.waiting(self.base) == 5, 5, "five polls of one address")
        self.grant(room, "b", 1)
        for poll in polls:
            self.assertEqual([e["session_id"] for e in self.ok(self.answer(poll))["events"]], ["b"])

    def test_the_path(self):
        there = os.lstat(self.path)
        self.assertTrue(stat.S_ISSOCK(there.st_mode))
        self.assertEqual(stat.S_IMODE(there.st_mode), 0o660)
        self.assertIn("listening on unix:" + self.path, self.daemons[0].text())

    def test_clients_that_go_are_noticed(self):
        room = self.room()
        head = self.grant(room, "a", 1)["room_revision"]
        with Streams(self.base, [presence_path(room)]) as streams:
            self.assertTrue(streams.collect(lambda: streams[0].messages))
            with Wire(self.base) as wire:
                wire.send(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % presence_path(room, head).encode())
                self.wait_until(lambda: self.waiting(self.base) == 2, 5, "both")
            self.wait_until(lambda: self.waiting(self.base) == 1, 5, "the end of the poll")
        self.wait_until(lambda: self.waiting(self.base) == 0, 5, "the end of the stream")

    def test_a_refusal_in_the_midst_of_an_upload(self):
        with Wire(self.base) as wire:
            wire.send(b"PUT /leases HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 1000)
            self.problem(wire.reply(5), 413, "body_too_large")

    def test_the_command(self):
        room = self.room()
        self.grant(room, "tab", 1)
        command = os.path.abspath(os.environ.get("STILLHERE", "stillhere"))
        done = subprocess.run([command, "who", room, "--json", "--url", self.base], capture_output=True, text=True,
                              timeout=60 * SLOW)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('"tab"', done.stdout)
        environment = dict(os.environ, STILLHERE_URL="unix:" + os.path.join(self.place, "nobody"), http_proxy="http://127.0.0.1:9")
        done = subprocess.run([command, "who", room], capture_output=True, text=True, timeout=60 * SLOW, env=environment)
        self.assertEqual(done.returncode, 3, done.stderr)
        done = subprocess.run([command, "who", room, "--url", "unix:nowhere"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)


class Start(UnixCase):
    autostart = False

    def refused(self, words):
        config = dict(self.config, database_url=self.pg.url(self.database), log_format="text")
        done = subprocess.run([program()], env=daemon_environment(config), capture_output=True, text=True, timeout=30 * SLOW)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, "cannot listen on unix:.*: " + words)

    def stale(self):
        """What a killed server leaves behind."""
        s = socket.socket(socket.AF_UNIX)
        s.bind(self.path)
        s.close()
        return os.lstat(self.path).st_ino

    def test_a_stale_socket_is_replaced(self):
        self.stale()
        d = self.start_daemon()
        self.assertEqual(self.client.get(d.base, "/healthz", fresh=True).status, 200)
        self.stop_now(d)
        self.assertFalse(os.path.lexists(self.path), "it is removed at the stop")

    def test_another_server_is_left_alone(self):
        d = self.start_daemon()
        made = os.lstat(self.path).st_ino
        self.refused("somebody else listens there")
        self.assertEqual(os.lstat(self.path).st_ino, made)
        self.assertEqual(self.client.get(d.base, "/healthz", fresh=True).status, 200)
        self.stop_now(d)

    def test_what_is_no_socket_stays(self):
        with open(self.path, "w") as f:
            f.write("precious")
        self.refused("there is something that is not a socket")
        with open(self.path) as f:
            self.assertEqual(f.read(), "precious")
        os.unlink(self.path)
        target = os.path.join(self.place, "target")
        self.stale()
        os.rename(self.path, target)
        os.symlink(target, self.path)
        self.refused("there is something that is not a socket")
        self.assertTrue(os.path.islink(self.path))
        os.unlink(self.path)

    def test_a_directory_that_is_not_there(self):
        config = self.config["listen"]
        try:
            type(self).config = dict(self.config, listen="unix:" + os.path.join(self.place, "no", "s"))
            self.refused("No such file")
        finally:
            type(self).config = dict(self.config, listen=config)

    def test_a_successor_keeps_its_socket(self):
        first = self.start_daemon()
        os.unlink(self.path)
        second = self.start_daemon()
        self.stop_now(first)
        self.assertEqual(self.client.get(second.base, "/healthz", fresh=True).status, 200)
        self.stop_now(second)
        self.assertFalse(os.path.lexists(self.path))

    def test_of_many_that_start_at_once_one_wins(self):
        self.stale()
        config = dict(self.config, database_url=self.pg.url(self.database), log_format="text")
        processes = [subprocess.Popen([program()], env=daemon_environment(config), stdin=subprocess.DEVNULL,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(5)]
        try:
            deadline = time.monotonic() + 20 * SLOW
            while sum(p.poll() is None for p in processes) > 1 and time.monotonic() < deadline:
                self.pause(0.05)
            self.pause(0.3)
            self.assertEqual(sum(p.poll() is None for p in processes), 1)
            self.assertEqual(self.client.get(self.config["listen"], "/healthz", fresh=True).status, 200)
        finally:
            for p in processes:
                p.terminate()
                p.wait(20 * SLOW)
        self.assertFalse(os.path.lexists(self.path))

    def test_whatever_the_umask_says(self):
        old = os.umask(0)
        try:
            d = self.start_daemon()
        finally:
            os.umask(old)
        self.assertEqual(stat.S_IMODE(os.lstat(self.path).st_mode), 0o660)
        self.stop_now(d)
        old = os.umask(0o077)
        try:
            d = self.start_daemon()
        finally:
            os.umask(old)
        self.assertEqual(stat.S_IMODE(os.lstat(self.path).st_mode), 0o660)
        self.stop_now(d)
