# SPDX-License-Identifier: Apache-2.0
"""The JavaScript client in Chromium: the page of its README, served from another origin: copied as it stands, and by streams."""

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


#: The same page with all that a client can hold open, where a test can look at it.
MORE = [("client.join(", "window.stay = client.join("),
        ("  client.watch(room, {", "  client.watch(room, { stream: true });\n  client.cursors(room);\n"
                                  "  client.cursors(room, { stream: true });\n  client.watch(room, {")]


class Site(Case):
    """The pages, their server, and browsers."""

    autostart = False

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
        page = page.replace("http://127.0.0.1:7470", d.base)
        cls.write("index.html", page)
        for before, after in MORE:
            assert page.count(before) == 1, before
            page = page.replace(before, after)
        cls.write("more.html", page)
        cls.write("away.html", "<!doctype html><title>Away</title>")
        cls.write("favicon.ico", "")  # which browsers ask for unasked
        cls.driver = Driver(cls.directory)

    @classmethod
    def write(cls, name, text):
        with open(os.path.join(cls.site, name), "w", encoding="utf-8") as f:
            f.write(text)

    @classmethod
    def finish(cls):
        cls.driver.stop()
        cls.server.shutdown()
        cls.server.server_close()
        return super().finish()

    def open(self, name, page=""):
        browser = Browser(self.driver)
        self.addCleanup(browser.quit)
        browser.go("%s/%s?name=%s" % (self.origin, page, name))
        browser.shows("#state", "You are %s." % name)
        return browser

    def leases(self, user):
        return self.count("lease", room_id="my-first-room", user_id=user)

    def kinds(self, user):
        return [e["kind"] for e in self.events("my-first-room", user_id=user) if not e["kind"].startswith("user.")]

    def leave(self, browser, user, where="about:blank"):
        """Opens another page in its place. The close outlives it, although the lease has a minute to live."""
        browser.js("window.restored = null; addEventListener('pageshow', (e) => { window.restored = e.persisted; }, { once: true })")
        browser.go(where)
        self.wait_until(lambda: self.leases(user) == 0, 5, "the close")

    def back(self, browser):
        """The browser kept the page: it goes on where it was, and is not opened anew."""
        browser.post("/back")
        browser.until("return document.readyState === 'complete' && window.restored !== null")
        restored, why = browser.js("return [window.restored, JSON.stringify(performance.getEntriesByType('navigation')[0].notRestoredReasons)]")
        self.assertTrue(restored, "the page was not kept: %s" % why)


class OwnPage(Site):
    config = {"offline_grace_ms": 1000}
    weight = 5

    def test_the_page_of_the_readme(self):
        """Two windows; one is left and comes back, is opened twice, and closed."""
        an, bo = self.open("an"), self.open("bo")
        for browser in (an, bo):
            browser.shows("#people li", "an, one tab")
            browser.shows("#people li", "bo, one tab")
        self.leave(bo, "bo")
        an.lacks("#people li", "bo")
        self.assertEqual(self.kinds("bo"), ["lease.granted", "session.closed"])
        # And opened again, out of the browser's memory.
        self.back(bo)
        bo.shows("#state", "You are bo.")
        an.shows("#people li", "bo, one tab")
        bo.shows("#people li", "an, one tab")
        self.pause(0.5)
        self.assertEqual(self.leases("bo"), 1, "no ghost")
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


class Memory(Site):
    """A page that the browser keeps while another one is looked at, and shows again as it was."""

    config = {"offline_grace_ms": 60000}  # nobody goes offline in between, whatever the machine has to do
    weight = 5

    def test_a_page_out_of_the_browsers_memory(self):
        room = "my-first-room"
        an, bo = self.open("an"), self.open("bo", "more.html")
        an.shows("#people li", "bo, one tab")
        for n, where in enumerate(("about:blank", self.origin + "/away.html", self.origin + "/away.html")):
            session = bo.js("return window.stay.session")
            before = self.stored(room, session, "bo")["revision"]
            self.leave(bo, "bo", where)
            self.assertGreaterEqual(self.tombstone(room, session, "bo")["revision"], before)
            an.shows("#people li", "bo, leaving")
            ended = self.tombstone(room, session, "bo")["revision"]
            self.grant(room, "s", user="meanwhile%d" % n)
            self.back(bo)
            bo.shows("#people li", "meanwhile%d" % n)
            an.shows("#people li", "bo, one tab")
            bo.shows("#people li", "bo, one tab")
            self.assertGreater(self.stored(room, session, "bo")["revision"], ended)
            self.assertEqual(bo.js("return [window.stay.session, window.stay.status]"), [session, "live"])
            self.pause(0.5)
            self.assertEqual(self.leases("bo"), 1, "no ghost")
        self.assertEqual(self.kinds("bo"), ["lease.granted", "session.closed"] * 3 + ["lease.granted"])
        self.assertEqual([e["kind"] for e in self.events(room, user_id="bo") if e["kind"].startswith("user.")], ["user.online"])
        self.assertEqual([an.complaints(), bo.complaints()], [[], []])
