# SPDX-License-Identifier: Apache-2.0
"""The JavaScript client in Chromium: the page of its README, copied as it stands and served from another origin."""

import functools
import os
import re
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from harness.browser import Browser, Driver
from harness.case import Case
from harness.node import SCRIPTS

SOURCES = os.path.join(os.path.dirname(os.path.dirname(SCRIPTS)), "contrib", "js")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *unused):
        pass


class OwnPage(Case):
    config = {"offline_grace_ms": 1000}
    autostart = False
    weight = 5

    @classmethod
    def begin(cls):
        super().begin()
        cls.site = os.path.join(cls.directory, "my-page")
        os.makedirs(cls.site)
        cls.server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=cls.site))
        cls.server.daemon_threads = True
        threading.Thread(target=cls.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        cls.origin = "http://127.0.0.1:%d" % cls.server.server_address[1]
        d = cls.start_daemon(cors_origins=cls.origin)
        for name in os.listdir(SOURCES):
            if name.endswith(".js"):
                shutil.copy(os.path.join(SOURCES, name), cls.site)
        with open(os.path.join(SOURCES, "README.md"), encoding="utf-8") as f:
            page, = re.findall(r"^```html\n(.*?)^```", f.read(), re.M | re.S)
        assert "http://127.0.0.1:7470" in page
        with open(os.path.join(cls.site, "index.html"), "w", encoding="utf-8") as f:
            f.write(page.replace("http://127.0.0.1:7470", d.base))
        open(os.path.join(cls.site, "favicon.ico"), "w").close()  # which browsers ask for unasked
        cls.driver = Driver(cls.directory)

    @classmethod
    def finish(cls):
        cls.driver.stop()
        cls.server.shutdown()
        cls.server.server_close()
        return super().finish()

    def open(self, name):
        browser = Browser(self.driver)
        self.addCleanup(browser.quit)
        browser.go("%s/?name=%s" % (self.origin, name))
        browser.shows("#state", "You are %s." % name)
        return browser

    def leases(self, user):
        return self.count("lease", room_id="my-first-room", user_id=user)

    def kinds(self, user):
        return [e["kind"] for e in self.events("my-first-room", user_id=user) if not e["kind"].startswith("user.")]

    def test_the_page_of_the_readme(self):
        """Two windows; one is left and comes back, is opened twice, and closed."""
        an, bo = self.open("an"), self.open("bo")
        for browser in (an, bo):
            browser.shows("#people li", "an, one tab")
            browser.shows("#people li", "bo, one tab")
        # It is left: the close outlives it, although the lease has a minute to live.
        bo.js("addEventListener('pageshow', (event) => { window.restored = event.persisted; })")
        bo.go("about:blank")
        self.wait_until(lambda: self.leases("bo") == 0, 5, "the close")
        an.lacks("#people li", "bo")
        self.assertEqual(self.kinds("bo"), ["lease.granted", "session.closed"])
        # And opened again, out of the browser's memory where that has kept it.
        bo.post("/back")
        bo.shows("#state", "You are bo.")
        an.shows("#people li", "bo, one tab")
        bo.shows("#people li", "an, one tab")
        self.pause(0.5)
        self.assertEqual(self.leases("bo"), 1, "no ghost")
        if bo.js("return window.restored"):
            self.assertEqual(self.q("SELECT count(DISTINCT session_id) FROM stillhere.event WHERE user_id = 'bo'"), "1")
        # Another tab of the same person, closed by its owner.
        first = bo.driver.call("GET", bo.path + "/window")
        second = bo.post("/window/new", type="tab")["handle"]
        bo.post("/window", handle=second)
        bo.go(self.origin + "/?name=bo")
        an.shows("#people li", "bo, 2 tabs")
        bo.driver.call("DELETE", bo.path + "/window")
        bo.post("/window", handle=first)
        an.shows("#people li", "bo, one tab", seconds=5)
        self.assertEqual(self.kinds("bo").count("lease.expired"), 0)
        self.assertEqual([an.complaints(), bo.complaints()], [[], []])
