# SPDX-License-Identifier: Apache-2.0
"""A pgbouncer in front of a cluster."""

import os
import pwd
import shutil
import socket
import subprocess
import time
import urllib.parse

from . import SLOW
from .daemon import free_port
from .pg import clean_environment


def program():
    for path in (os.environ.get("PGBOUNCER", ""), shutil.which("pgbouncer") or "", "/usr/sbin/pgbouncer"):
        if path and os.access(path, os.X_OK):
            return path
    raise RuntimeError("pgbouncer is missing; contrib/check installs it")


class Pgbouncer:
    """One pooler on 127.0.0.1. @a settings: lines of its section [pgbouncer]"""

    def __init__(self, pg, directory, mode="transaction", **settings):
        self.pg, self.port, self.process = pg, free_port(), None
        self.dir = os.path.join(directory, "pgbouncer%d" % self.port)
        os.mkdir(self.dir)
        self.log = os.path.join(self.dir, "log")
        users = os.path.join(self.dir, "users")
        with open(users, "w") as f:
            f.write('"postgres" ""\n"stillhere_app" ""\n"stillhere_owner" ""\n')
        values = dict({"listen_addr": "127.0.0.1", "listen_port": self.port, "unix_socket_dir": "", "auth_type": "trust",
                       "auth_file": users, "pool_mode": mode, "max_client_conn": 500, "default_pool_size": 8,
                       "admin_users": "postgres", "logfile": self.log, "pidfile": os.path.join(self.dir, "pid")},
                      **settings)
        self.config = os.path.join(self.dir, "ini")
        with open(self.config, "w") as f:
            f.write("[databases]\n* = host=%s port=5432\n[pgbouncer]\n" % pg.socket)
            f.writelines("%s = %s\n" % item for item in values.items())
        if pg.user:
            account = pwd.getpwnam(pg.user)
            for path in (self.dir, users, self.config):
                os.chown(path, account.pw_uid, account.pw_gid)

    def start(self):
        command = (["runuser", "-u", self.pg.user, "--"] if self.pg.user else []) + [program(), "-q", self.config]
        self.process = subprocess.Popen(command, cwd="/", env=clean_environment(), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10 * SLOW
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise RuntimeError("pgbouncer did not start:\n" + self.text())
                time.sleep(0.05)

    def text(self):
        if not os.path.exists(self.log):
            return ""
        with open(self.log, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def url(self, database, user="postgres"):
        return "postgresql:///%s?host=127.0.0.1&port=%d&user=%s" % (urllib.parse.quote(database), self.port, user)

    def psql(self, database, sql):
        """Runs SQL through it, a statement after the other on one connection. @return what came back"""
        command = [self.pg.psql_args(database)[0], "-X", "-q", "-A", "-t", "-h", "127.0.0.1", "-p", str(self.port), "-U",
                   "postgres", "-d", database]
        done = subprocess.run(command, env=clean_environment(), input=sql, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=30 * SLOW)
        return done.stdout.strip()

    def stop(self):
        if self.process is None:
            return
        self.process.terminate()  # runuser passes it on
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None
