# SPDX-License-Identifier: Apache-2.0
"""Behind nginx as contrib/nginx/stillhere.conf sets it up: long polls, streams, an instance that dies."""

import os
import shutil
import subprocess

from harness import LONG
from harness.case import SLOW, Case, Wire, presence_path, time
from harness.daemon import free_port
from harness.sse import Streams
from harness.tls import TRUSTED, Pair

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

FRAME = """daemon off;
worker_processes 1;
pid %(dir)s/nginx.pid;
error_log %(dir)s/nginx-error.log warn;
events { worker_connections 256; }
http {
  client_body_temp_path %(dir)s/body; proxy_temp_path %(dir)s/proxy; fastcgi_temp_path %(dir)s/fastcgi;
  uwsgi_temp_path %(dir)s/uwsgi; scgi_temp_path %(dir)s/scgi;
  %(site)s
}
"""


def replaced(text, *pairs):
    """Each must be there: the file that is shipped is the one that is tested."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


class Nginx(Case):
    """A class with an nginx in front of its daemons, at cls.proxy."""

    @classmethod
    def run_nginx(cls, site):
        """Starts it with a part of its http block, and waits until it passes requests on."""
        conf = os.path.join(cls.directory, "nginx.conf")
        with open(conf, "w", encoding="utf-8") as f:
            f.write(FRAME % {"dir": cls.directory, "site": site})
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        cls.nginx = subprocess.Popen([program, "-c", conf, "-p", cls.directory, "-e",
                                      os.path.join(cls.directory, "nginx-error.log")], stdin=subprocess.DEVNULL)
        end = time.monotonic() + 10 * SLOW
        while True:
            try:
                if cls.client.get(cls.proxy, "/healthz", fresh=True).status == 200:
                    return
            except OSError:
                pass
            assert time.monotonic() < end and cls.nginx.poll() is None, "nginx does not start"
            time.sleep(0.05)

    @classmethod
    def finish(cls):
        cls.nginx.terminate()
        cls.nginx.wait(20)
        return super().finish()


class Idle:
    """Polls that nothing happens to."""

    if LONG:
        def test_an_idle_poll_ends_before_impatient_proxies(self):
            """Many give up after 30 s: the default wait and its jitter stay below that."""
            room = self.room()
            head = self.grant(room)["room_revision"]
            polls = [self.background(self.client.poll, self.proxy, room, head, fresh=True) for _ in range(20)]
            for poll in polls:
                reply = poll.result(60)
                self.assertEqual([self.ok(reply)["mode"], reply["revision"]], ["unchanged", head])
                self.near(reply.seconds, 25, 29)


class Proxied(Idle, Nginx):
    instances = 2
    config = {"ttl_min_ms": 1000}

    @classmethod
    def begin(cls):
        super().begin()
        pair = Pair(cls.directory, "nginx")
        port = free_port()
        cls.proxy = "https://127.0.0.1:%d" % port
        TRUSTED[cls.proxy] = pair.cert
        with open(os.path.join(TREE, "contrib", "nginx", "stillhere.conf"), encoding="utf-8") as f:
            site = f.read()
        site = replaced(
            site,
            ("    server 127.0.0.1:7470;\n    # server 127.0.0.1:7471;\n",
             "".join("    server 127.0.0.1:%d;\n" % d.port for d in cls.daemons)),
            ("listen 443 ssl http2;", "listen 127.0.0.1:%d ssl http2;" % port),
            ("    listen [::]:443 ssl http2;\n", ""),
            ("/etc/ssl/presence.example.org.pem", pair.cert),
            ("/etc/ssl/private/presence.example.org.key", pair.key))
        cls.run_nginx(site)

    def test_polls_and_streams_pass_at_once(self):
        room = self.room()
        head = self.grant(room, "a", base=self.proxy)["room_revision"]
        with Streams(self.proxy, [presence_path(room, head)]) as streams:
            streams.collect(lambda: streams[0].status is not None, 5)
            poll = self.background(self.client.poll, self.proxy, room, head, wait_ms=20000)
            self.wait_until(lambda: sum(self.waiting(b) for b in self.bases) >= 1, 5, "the poll")
            began = time.monotonic()
            self.grant(room, "b", base=self.proxy)
            events = self.ok(self.answer(poll))["events"]
            self.assertEqual([e["session_id"] for e in events], ["b"])
            streams.collect(lambda: streams[0].messages, 5)
            self.assertTrue(streams[0].messages)
            self.assertLess(time.monotonic() - began, 2 * SLOW)

    def test_ids_of_requests_come_through(self):
        room = self.room()
        reply = self.client.hb(self.proxy, room, "u", "s")
        self.assertEqual(self.q("SELECT request_id FROM stillhere.lease WHERE room_id = '%s'" % room),
                         self.ok(reply)["request_id"])
        self.assertRegex(reply["request_id"], r"^[0-9a-f]{32}$")

    def test_metrics_are_for_the_inside(self):
        self.assertEqual(self.client.get(self.proxy, "/metrics").status, 404)

    def test_the_live_page(self):
        for path in ("/", "/www/page.js"):
            direct, reply = self.client.get(self.base, path), self.client.get(self.proxy, path)
            self.assertEqual([reply.status, reply.body], [200, direct.body])
            for name in ("content-security-policy", "content-type", "etag", "referrer-policy", "x-frame-options"):
                self.assertEqual(reply.headers[name], direct.headers[name], name)
            again = self.client.get(self.proxy, path, {"If-None-Match": reply.headers["etag"]})
            self.assertEqual([again.status, again.body], [304, b""])

    def test_who_hangs_up_frees_the_poll(self):
        room = self.room()
        head = self.grant(room)["room_revision"]
        before = sum(self.waiting(b) for b in self.bases)
        with Wire(self.proxy) as wire:
            wire.send(("GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" %
                       presence_path(room, head, wait_ms=50000)).encode())
            self.wait_until(lambda: sum(self.waiting(b) for b in self.bases) > before, 5, "the poll")
        self.wait_until(lambda: sum(self.waiting(b) for b in self.bases) == before, 7, "the end of the poll")

    def test_an_instance_that_dies_is_not_noticed(self):
        room = self.room()
        self.grant(room, base=self.proxy)
        extra = self.daemons[1]
        extra.kill()
        self.forget(extra)
        for i in range(40):
            self.assertEqual(self.client.hb(self.proxy, room, "u", "s").status, 200, "heartbeat %d" % i)
            self.ok(self.client.poll(self.proxy, room))


CACHE = """
proxy_cache_path %(dir)s/cache keys_zone=presence:1m;
server {
  listen 127.0.0.1:%(port)d;
  location / {
    proxy_pass http://127.0.0.1:%(daemon)d;
    proxy_read_timeout 30s;
    proxy_set_header If-None-Match $http_if_none_match;  # which a cache takes out otherwise
    proxy_cache presence;
    proxy_cache_valid any 10m;
    proxy_cache_use_stale error timeout updating http_503;
    add_header X-Cache $upstream_cache_status always;
  }
}
"""


class Caching(Idle, Nginx):
    """Behind a proxy that keeps whatever it may, and gives up after 30 s."""

    config = {"ttl_min_ms": 1000}

    @classmethod
    def begin(cls):
        super().begin()
        port = free_port()
        cls.proxy = "http://127.0.0.1:%d" % port
        cls.run_nginx(CACHE % {"dir": cls.directory, "port": port, "daemon": cls.daemons[0].port})

    def asked(self, path, **more):
        """A GET through the cache, which must not have answered it."""
        reply = self.client.get(self.proxy, path, **more)
        self.assertIn(reply.headers.get("x-cache"), ("MISS", "BYPASS", "EXPIRED"), path)
        return reply

    def test_nothing_is_kept(self):
        room, user = self.room(), "u"
        paths = (presence_path(room), presence_path(room, 0, wait_ms=0), presence_path(room, view="count"),
                 "/rooms/%s/leases" % room, "/rooms/%s/last-seen" % room, "/users/%s/presence" % user, "/rooms?prefix=" + room,
                 "/last-seen?user_id=" + user, "/rooms/%s/users/%s/explain" % (room, user), "/readyz")
        seen = {path: [] for path in paths}
        for turn in range(3):
            self.grant(room, "s%d" % turn)
            for path in paths:
                for _ in range(2):
                    reply = self.asked(path)
                    self.assertEqual(reply.status, 200, reply)
                seen[path].append(reply.body)
        for path in paths[:-1]:
            self.assertEqual(len(set(seen[path])), 3, path)

    def test_what_was_refused_is_not_kept(self):
        room, path = self.room(), "/rooms/%s/members/u" % self.room()
        for _ in range(2):
            self.assertEqual(self.asked(path).status, 404)
        self.ok(self.client.request(self.base, "PUT", path, body="{}"))
        self.assertEqual(self.asked(path).status, 200)
        self.assertEqual(self.asked(presence_path(room, "x")).status, 400)

    def test_entity_tags_through_it(self):
        room = self.room()
        self.grant(room, "a")
        first = self.asked(presence_path(room))
        for value in (first.headers["etag"], '"zzz", %s' % first.headers["etag"]):
            again = self.asked(presence_path(room), headers={"If-None-Match": value})
            self.assertEqual([again.status, again.body], [304, b""])
        self.assertEqual(self.asked("/healthz").status, 200, "the connection goes on")
        self.grant(room, "b")
        changed = self.asked(presence_path(room), headers={"If-None-Match": first.headers["etag"]})
        self.assertEqual([changed.status, changed["revision"]], [200, 3])
