# SPDX-License-Identifier: Apache-2.0
"""The others: Redis behind webdis, etcd, nginx with nchan, and libmicrohttpd with nothing behind it."""

import http.client
import json
import os
import subprocess
import threading

from harness.daemon import free_port

from . import Broken, proc
from .load import own_program

WORKERS = 2


def ask(port, method, path, body=None, timeout=10):
    """One request on a connection of its own. @return (status, body)"""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as fault:
        raise OSError(str(fault))
    finally:
        connection.close()


class Peer:
    """Servers that are one side of a row. servers[0] is the one that is asked."""

    servers = ()
    port = 0

    @property
    def base(self):
        return "http://127.0.0.1:%d" % self.port

    def check(self):
        for server in self.servers:
            server.check()

    def stop(self):
        for server in self.servers:
            server.stop()


class Webdis(Peer):
    promises = "in memory of one process; after a crash nothing is left, and an older SETEX overwrites a newer one"
    promises_kept = "on disk before the answer, in a log; an older SETEX overwrites a newer one"

    def __init__(self, world, durable=False):
        redis, webdis = world.programs.need("redis-server", "webdis")
        world.programs.need("wrk")
        redis_port, self.port = free_port(), free_port()
        directory = os.path.join(world.dir, "webdis-%d" % self.port)
        os.mkdir(directory)
        settings = [("save", ""), ("bind", "127.0.0.1")]
        settings += [("appendonly", "yes"), ("appendfsync", "always")] if durable else [("appendonly", "no")]
        args = [part for name, value in settings for part in ("--" + name, value)]
        store = world.serve("redis-server" + (", appendfsync always" if durable else ""),
                            [redis, "--port", str(redis_port), "--dir", directory] + args,
                            "defaults but: " + ", ".join("%s %s" % (n, v or '""') for n, v in settings))
        conf = {"redis_host": "127.0.0.1", "redis_port": redis_port, "redis_auth": None, "http_host": "127.0.0.1",
                "http_port": self.port, "threads": WORKERS, "pool_size": 10, "daemonize": False, "websockets": False,
                "database": 0, "acl": [{"disabled": ["DEBUG"]}], "verbosity": 0,
                "logfile": os.path.join(directory, "webdis.log")}
        path = os.path.join(directory, "webdis.json")
        with open(path, "w") as f:
            json.dump(conf, f)
        stated = {k: conf[k] for k in ("threads", "pool_size", "websockets", "verbosity")}
        front = world.serve("webdis", [webdis, path], json.dumps(stated))
        self.servers = (front, store)
        front.wait(lambda: ask(self.port, "GET", "/PING")[0] == 200)


class Etcd(Peer):
    promises = "grants and revocations through Raft to disk; a keepalive only moves a timer in the leader's memory"

    def __init__(self, world):
        etcd = world.programs.need("etcd")
        self.port, peer = free_port(), free_port()
        here, there = self.base, "http://127.0.0.1:%d" % peer
        directory = os.path.join(world.dir, "etcd-%d" % self.port)
        args = [etcd, "--name", "bench", "--data-dir", directory, "--listen-client-urls", here,
                "--advertise-client-urls", here, "--listen-peer-urls", there, "--initial-advertise-peer-urls", there,
                "--initial-cluster", "bench=" + there, "--logger", "zap", "--log-level", "error"]
        self.servers = (world.serve("etcd", args, "one member, defaults but: log-level error"),)
        self.servers[0].wait(lambda: b"true" in ask(self.port, "GET", "/health")[1])

    def grant(self, ids, ttl_s, threads=8):
        """Leases with these ids, over the gateway."""
        faults, todo = [], iter(ids)
        lock = threading.Lock()

        def work():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
            try:
                while not faults:
                    with lock:
                        i = next(todo, None)
                    if i is None:
                        return
                    connection.request("POST", "/v3/lease/grant", json.dumps({"ID": i, "TTL": ttl_s}))
                    response = connection.getresponse()
                    body = response.read()
                    if response.status != 200:
                        raise OSError("%d %r" % (response.status, body[:200]))
            except (OSError, http.client.HTTPException) as fault:
                faults.append(str(fault))
            finally:
                connection.close()
        workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if faults:
            self.check()
            raise Broken("etcd refused a lease: " + faults[0])

    def expired(self):
        """How many leases it has let expire so far."""
        name = b"etcd_debugging_server_lease_expired_total "
        for line in ask(self.port, "GET", "/metrics")[1].splitlines():
            if line.startswith(name):
                return float(line[len(name):])
        return 0.0


NGINX = """
load_module %(module)s;
%(user)s
daemon off;
worker_processes %(workers)d;
worker_rlimit_nofile 20000;
pid %(dir)s/nginx.pid;
error_log %(dir)s/error.log error;
events { worker_connections 12000; }
http {
  access_log off;
  client_body_temp_path %(dir)s/body; proxy_temp_path %(dir)s/proxy; fastcgi_temp_path %(dir)s/fastcgi;
  uwsgi_temp_path %(dir)s/uwsgi; scgi_temp_path %(dir)s/scgi;
  keepalive_timeout 300s;
  keepalive_requests 1000000;
  nchan_shared_memory_size 128M;
  server {
    listen 127.0.0.1:%(port)d backlog=4096;
    location = /sub { nchan_subscriber longpoll; nchan_channel_id $arg_id; nchan_subscriber_timeout 300s; }
    location = /pub { nchan_publisher; nchan_channel_id $arg_id; nchan_message_timeout 30s; }
  }
}
"""


class Nchan(Peer):
    promises = "messages in shared memory of one nginx, kept for a while; after a crash nothing is left"

    def __init__(self, world):
        nginx, module = world.programs.need("nginx", "nchan")
        self.port = free_port()
        directory = os.path.join(world.dir, "nginx-%d" % self.port)
        os.mkdir(directory)
        conf = NGINX % {"module": module, "user": "user nobody nogroup;" if os.geteuid() == 0 else "",
                        "workers": WORKERS, "dir": directory, "port": self.port}
        path = os.path.join(directory, "nginx.conf")
        with open(path, "w") as f:
            f.write(conf)
        stated = conf.replace(module, os.path.basename(module)).replace(directory, "DIR")
        stated = stated.replace(":%d " % self.port, ":PORT ")
        self.servers = (world.serve("nginx-nchan", [nginx, "-p", directory, "-c", path, "-e",
                                                    os.path.join(directory, "error.log")], stated.strip()),)
        self.servers[0].wait(lambda: ask(self.port, "GET", "/")[0] in (200, 403, 404))

    def pids(self):
        return proc.family(self.servers[0].process.pid)


class Bare(Peer):
    promises = "nothing: libmicrohttpd with the same threads, requests and sizes of replies, and no work done"

    def __init__(self, world, body=0, put=0):
        world.programs.need("wrk")
        self.port = free_port()
        args = [own_program("bare"), str(self.port), str(WORKERS), str(body), str(put)]
        self.servers = (world.serve("bare", args, "tests/bench/bare.c with %d threads" % WORKERS,
                                    stdin=subprocess.PIPE),)
        self.servers[0].wait(lambda: ask(self.port, "GET", "/")[0] == 200)
