# SPDX-License-Identifier: Apache-2.0
"""Real stillhered processes: start, readiness, logs, stop."""

import http.client
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import time

from . import SLOW, tls
from .client import connection_to
from .pg import clean_environment

#: Never right in a daemon's log.
FORBIDDEN = re.compile(r"AddressSanitizer|LeakSanitizer|ThreadSanitizer|UndefinedBehaviorSanitizer|runtime error:|"
                       r"\bpanic\b|\bassert", re.IGNORECASE)
#: An entry of level error, in either format of the log.
ERROR_LINE = re.compile(r"^\S+ error: |\"level\":\"error\"|^Fatal")

#: What the daemon runs under, such as valgrind; a whole command line.
WRAPPER = shlex.split(os.environ.get("TEST_WRAPPER", ""))


def program():
    path = os.environ.get("STILLHERED", "")
    if not path or not os.access(path, os.X_OK):
        raise RuntimeError("STILLHERED must name the daemon to test (is %r)" % path)
    return os.path.abspath(path)


def free_port():
    """A port that nobody listens on, below the range that outgoing connections use."""
    while True:
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def daemon_environment(config):
    """Environment configuration: key -> STILLHERE_KEY."""
    env = clean_environment()
    env["TZ"] = "Pacific/Auckland"  # the host's time zone must not matter
    env.setdefault("ASAN_OPTIONS", "abort_on_error=0:exitcode=99:detect_leaks=1")
    env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=0")
    env.setdefault("TSAN_OPTIONS", "exitcode=66:halt_on_error=0")
    for key, value in config.items():
        env["STILLHERE_" + key.upper()] = str(value)
    return env


class Daemon:
    """One stillhered on 127.0.0.1 and a port of its own."""

    def __init__(self, directory, name, config, stdout=None, port=None):
        self.name = name
        self.port = port or free_port()
        self.config = {"listen": "127.0.0.1:%d" % self.port, "log_format": "text"}
        self.config.update(config)
        self.base = "http://127.0.0.1:%d" % self.port
        if self.config.get("tls_cert_file"):
            self.base = "https://127.0.0.1:%d" % self.port
            tls.TRUSTED[self.base] = self.config["tls_cert_file"]
        if self.config["listen"].startswith("unix:"):
            self.base = self.config["listen"]
        self.log = os.path.join(directory, name + ".log")
        self.out = os.path.join(directory, name + ".out")
        self.checked = 0
        self.terminated = False
        with open(self.log, "ab") as err, open(self.out, "ab") as out:
            self.process = subprocess.Popen(WRAPPER + [program()], env=daemon_environment(self.config), cwd=directory,
                                            stdin=subprocess.DEVNULL, stdout=out if stdout is None else stdout,
                                            stderr=err)

    def wait_ready(self, seconds=30, path="/readyz"):
        """Waits for a 200 from /readyz."""
        deadline = time.monotonic() + seconds * SLOW
        while True:
            if self.process.poll() is not None:
                raise AssertionError("%s ended with %r before it was ready:\n%s" %
                                     (self.name, self.process.returncode, self.tail()))
            if self.status(path) == 200:
                return self
            if time.monotonic() > deadline:
                raise AssertionError("%s was not ready in %g s:\n%s" % (self.name, seconds * SLOW, self.tail()))
            time.sleep(0.02)

    def status(self, path):
        """The status of a GET, or None when nobody answers."""
        connection = connection_to(self.base, 5 * SLOW)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            return response.status
        except OSError:
            return None
        except http.client.HTTPException:
            return None
        finally:
            connection.close()

    def alive(self):
        return self.process.poll() is None

    def text(self):
        with open(self.log, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def output(self):
        """Standard output: the decision log."""
        with open(self.out, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def tail(self, lines=25):
        return "\n".join(self.text().splitlines()[-lines:])

    def complaints(self, allowed):
        """New log lines that must not be there. @a allowed: patterns of errors that the test provokes"""
        text = self.text()
        new, self.checked = text[self.checked:], len(text)
        bad = []
        for line in new.splitlines():
            if FORBIDDEN.search(line):
                bad.append(line)
            elif ERROR_LINE.search(line) and not any(re.search(p, line) for p in allowed):
                bad.append(line)
        return bad

    def terminate(self):
        """SIGTERM, once: a second one would mean at once."""
        if not self.terminated:
            self.terminated = True
            self.process.send_signal(signal.SIGTERM)

    def stop(self, seconds=10):
        """SIGTERM. @return None when it ended with 0 in time, else what was wrong"""
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(seconds * SLOW)
            except subprocess.TimeoutExpired:
                self.kill()
                return "%s did not end within %g s of SIGTERM:\n%s" % (self.name, seconds * SLOW, self.tail())
        if self.process.returncode != 0:
            return "%s ended with %d:\n%s" % (self.name, self.process.returncode, self.tail(60))
        return None

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
