# SPDX-License-Identifier: Apache-2.0
"""The live page: its files and their headers, and what people see of it in Chromium."""

import gzip
import os
import re

from harness.browser import Browser, Driver
from harness.case import SLOW, Case, json, quote, time
from harness.tokens import Guarded

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
#: Path -> file of the tree: whatever is in these folders is served.
WWW = {"/" if name == "index.html" else "/www/" + name: os.path.join(TREE, folder, name)
       for folder in ("src/www", "contrib/js") for name in sorted(os.listdir(os.path.join(TREE, folder)))
       if os.path.splitext(name)[1] in TYPES}
#: What a name can be: markup, quotes, the other direction of writing, something very long.
HOSTILE = ["<img src=x onerror=\"document.title='owned'\">", "</li><script>document.title='owned'</script>",
           "\" style=\"position:fixed", "\u202eevil\u202c", "W" * 128, "__proto__", "constructor", "&lt;b&gt;", "名前 テスト",
           "javascript:alert(1)"]


class Files(Case):
    """What is served."""

    def test_each_file_as_it_is_in_the_tree(self):
        self.assertGreater(len(WWW), 9)
        for path, file in WWW.items():
            with self.subTest(path=path):
                reply = self.client.get(self.base, path)
                kind = TYPES[os.path.splitext(file)[1]]
                self.assertEqual([reply.status, reply.headers["content-type"].split(";")[0]], [200, kind])
                with open(file, "rb") as f:
                    self.assertEqual(reply.body, f.read())
                self.assertEqual(reply.headers["x-content-type-options"], "nosniff")
                self.assertEqual(reply.headers["referrer-policy"], "no-referrer")
                self.assertEqual(reply.headers["cache-control"], "no-cache")
                self.assertNotIn("set-cookie", reply.headers)
        for name in ("index.html", "nothing.js", "embed.sh", "page.j", "page.jsx", "PAGE.JS"):
            self.problem(self.client.get(self.base, "/www/" + name), 404, "not_found")
        for name in ("..", "%2e%2e", "..%2fpage.js%00"):
            self.problem(self.client.get(self.base, "/www/" + name), 400)
        self.problem(self.client.get(self.base, "/page.js"), 404, "not_found")

    def test_compressed_and_not_sent_twice(self):
        for path in WWW:
            with self.subTest(path=path):
                plain = self.client.get(self.base, path)
                tag = plain.headers["etag"]
                again = self.client.get(self.base, path, headers={"If-None-Match": tag})
                self.assertEqual([again.status, again.body, again.headers["etag"]], [304, b"", tag])
                small = self.client.get(self.base, path, headers={"Accept-Encoding": "gzip"})
                if len(plain.body) > 1024:
                    self.assertEqual([small.headers["content-encoding"], small.headers["etag"]], ["gzip", "W/" + tag])
                    self.assertEqual(gzip.decompress(small.body), plain.body)
                    self.assertLess(len(small.body), len(plain.body) * 0.6)
                weak = self.client.get(self.base, path, headers={"If-None-Match": small.headers["etag"]})
                self.assertEqual(weak.status, 304)
                head = self.client.request(self.base, "HEAD", path)
                self.assertEqual([head.status, head.headers["etag"], head.body], [200, tag, b""])
        tags = [self.client.get(self.base, path).headers["etag"] for path in WWW]
        self.assertEqual(len(set(tags)), len(WWW))

    def test_the_policy_allows_its_own_files_and_nothing_else(self):
        for path in WWW:
            reply = self.client.get(self.base, path)
            policy = dict(part.strip().partition(" ")[::2] for part in reply.headers["content-security-policy"].split(";"))
            self.assertEqual(policy, {
                "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "img-src": "'self'",
                "connect-src": "'self'", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
                "require-trusted-types-for": "'script'", "trusted-types": "'none'"})
            self.assertEqual(reply.headers["x-frame-options"], "DENY")
            self.assertNotIn("strict-transport-security", reply.headers, "this server does not speak TLS")
        self.assertNotIn("content-security-policy", self.client.get(self.base, "/healthz").headers)
        text = self.client.get(self.base, "/").body.decode()
        self.assertNotRegex(text, r"(?i)<style|javascript:| on[a-z]+=|style=|https?://|<script(?![^>]*src=\"www/[a-z]+\.js\")")
        for path in WWW:
            source = self.client.get(self.base, path).body.decode()
            self.assertNotRegex(source, r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|localStorage|sessionStorage",
                                path)
        for path in re.findall(r'(?:href|src)="([a-z./]+)"', text):
            self.assertEqual(self.client.get(self.base, "/" + path).status, 200, path)

    def test_no_query_no_other_method(self):
        for path in WWW:
            self.problem(self.client.get(self.base, path + "?x=1"), 400)
            self.problem(self.client.request(self.base, "PUT", path), 405)


#: What is hard to read: text below the contrast that WCAG 2 asks for at level AA, with its ratio.
FAINT = r"""
const rgba = (c) => { const n = c.match(/[\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3]));
const light = (c) => c.map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const faint = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const e = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
  if (!text || !e.checkVisibility() || e.closest(':disabled, noscript, .hidden')) continue;
  let ground = [255, 255, 255], opacity = 1;
  const around = [];
  for (let p = e; p; p = p.parentElement) around.unshift(getComputedStyle(p));
  for (const style of around) {
    ground = over(rgba(style.backgroundColor), ground);
    opacity *= style.opacity;
  }
  const style = getComputedStyle(e), ink = rgba(style.color);
  const [high, low] = [light(over([...ink.slice(0, 3), ink[3] * opacity], ground)), light(ground)].sort((a, b) => b - a);
  const ratio = (high + 0.05) / (low + 0.05);
  const wanted = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
  if (ratio < wanted) faint.push(`${text.slice(0, 30)}: ${ratio.toFixed(2)}`);
}
return faint;
"""


class Pages:
    """Browsers for a test class."""

    config = {"ttl_min_ms": 500, "offline_grace_ms": 2000}
    weight = 8

    @classmethod
    def begin(cls):
        super().begin()
        cls.driver = Driver(cls.directory)

    @classmethod
    def finish(cls):
        cls.driver.stop()
        return super().finish()

    def browser(self, room=None, name=None, **size):
        browser = Browser(self.driver, **size)
        self.addCleanup(browser.quit)
        if room is not None:
            browser.go(self.address(room, name))
        return browser

    def address(self, room, name=None):
        return "%s/#room=%s%s" % (self.base, quote(room), "&as=" + quote(name) if name else "")

    def quiet(self, browser, allowed=r"^$"):
        """Demands that nothing was complained of: no error, no violated policy."""
        self.assertEqual([m for m in browser.complaints() if not re.search(allowed, m)], [])


class Windows(Pages, Case):
    """Several of them, and what becomes of each other's cursors."""

    def test_two_windows_and_one_is_killed(self):
        room = self.room()
        ada, bo = self.browser(room, "Ada"), self.browser(room, "Bo")
        for browser in (ada, bo):
            browser.shows("#join-note", "You are here")
            browser.shows("#people .name", "Ada")
            browser.shows("#people .name", "Bo")
        ada.point("#pad", 0.25, 0.5)
        bo.point("#pad", 0.75, 0.25)
        where = ("const c = [...document.querySelectorAll('.cursor:not([data-own])')].find(e => e.textContent === arguments[0]);"
                 "return c ? [parseFloat(c.style.left), parseFloat(c.style.top)] : null")
        ada.until("const at = (() => {%s})(); return at && Math.abs(at[0] - 75) < 2 && Math.abs(at[1] - 25) < 2" % where, "Bo")
        bo.until("const at = (() => {%s})(); return at && Math.abs(at[0] - 25) < 2 && Math.abs(at[1] - 50) < 2" % where, "Ada")
        self.quiet(ada)
        self.assertEqual(self.count("lease", room_id=room), 2)
        bo.kill()
        killed = time.monotonic()
        # Nobody said goodbye: the cursor goes when the lease has run out, 15 s after the last renewal.
        ada.lacks(".cursor:not([data-own])", "Bo", seconds=22)
        self.assertGreater(time.monotonic() - killed, 5, "a killed browser cannot have closed its lease")
        ada.shows("#events .kind", "lease.expired")
        ada.lacks("#people .name", "Bo", seconds=8)
        ada.shows("#events .kind", "user.offline")
        ada.shows("#people .name", "Ada")
        ada.shows("#earlier-list .name", "Bo")
        self.quiet(ada)

    def test_a_page_that_is_hidden_gets_a_longer_lease_but_not_at_once(self):
        """What a browser that is quit hides for a moment must not stay for minutes."""
        room = self.room()
        ada = self.browser(room, "Ada")
        ada.shows("#join-note", "You are here")
        ttl = "SELECT ttl_ms FROM stillhere.lease WHERE room_id = '%s'" % room
        hide = ("Object.defineProperty(document, 'visibilityState', {value: arguments[0], configurable: true});"
                "document.dispatchEvent(new Event('visibilitychange'))")
        ada.js(hide, "hidden")
        self.pause(1)
        self.assertEqual(self.q(ttl), "15000")
        self.wait_until(lambda: self.q(ttl) == "180000", 10, "the longer lease")
        ada.js(hide, "visible")
        self.wait_until(lambda: self.q(ttl) == "15000", 10, "the short one")

    def test_a_closed_page_takes_its_cursor_at_once_and_one_that_comes_back_has_no_ghost(self):
        room = self.room()
        ada, bo = self.browser(room, "Ada"), self.browser(room, "Bo")
        bo.shows("#join-note", "You are here")
        bo.point("#pad", 0.5, 0.5)
        ada.shows(".cursor:not([data-own])", "Bo")
        bo.js("window.restored = null; addEventListener('pageshow', (e) => { window.restored = e.persisted; })")
        bo.go("about:blank")
        ada.lacks(".cursor:not([data-own])", "Bo", seconds=8)
        ada.shows("#events .kind", "session.closed")
        self.assertEqual([e["kind"] for e in self.events(room) if e["kind"] == "lease.expired"], [])
        bo.post("/back")
        bo.until("return document.readyState === 'complete' && window.restored !== null")
        kept, why = bo.js("return [window.restored, JSON.stringify(performance.getEntriesByType('navigation')[0].notRestoredReasons)]")
        self.assertTrue(kept, "the browser did not keep the page: %s" % why)
        ada.shows("#people .name", "Bo")
        bo.shows("#join-note", "You are here")
        self.wait_until(lambda: self.count("lease", room_id=room, user_id="Bo") == 1, 5, "one lease of Bo")
        self.pause(1)
        self.assertEqual(self.count("lease", room_id=room, user_id="Bo"), 1, "no ghost")
        self.quiet(bo)

    def test_several_windows_of_one_browser(self):
        """They share six connections: polls must leave room for heartbeats and for whatever else is asked."""
        room = self.room()
        page = self.browser(room, "w0")
        for i in range(1, 4):
            page.post("/window", handle=page.post("/window/new", type="window")["handle"])
            page.go(self.address(room, "w%d" % i))
        page.shows("#join-note", "You are here")
        page.until("return document.querySelectorAll('#people .person').length === 4")
        slowest = page.js("return (async () => { let most = 0; for (let i = 0; i < 3; i++) { const began = performance.now();"
                          " await (await fetch('healthz', { cache: 'no-store' })).text();"
                          " most = Math.max(most, performance.now() - began); } return most; })()")
        self.assertLess(slowest, 8000 * SLOW)
        self.assertEqual([e for e in self.events(room) if e["kind"] == "lease.expired"], [])
        self.quiet(page)


class Page(Pages, Case):
    """What one of them shows."""

    def test_people_tabs_leaving_events(self):
        room = self.room()
        page = self.browser(room)
        page.shows("#people-note", "Nobody is here")
        self.assertEqual(self.count("lease", room_id=room), 0, "who looks on is not there")
        self.grant(room, "a", user="grace hopper")
        self.grant(room, "b", user="grace hopper")
        page.shows("#people .about", "2 tabs")
        page.shows("#people .about", "active just now")
        self.assertEqual(page.text("#people .avatar"), ["GH"])
        page.shows("#people-count", "1 person, 2 tabs")
        for session in ("a", "b"):
            self.client.close(self.base, room, "grace hopper", session)
        page.shows("#people .about", "leaving")
        page.lacks("#people .name", "grace hopper")
        self.assertEqual(page.text("#events .revision"), ["6", "5", "4", "3", "2", "1"])
        self.assertEqual(page.text("#events .kind"),
                         ["user.offline", "session.closed", "session.closed", "lease.granted", "user.online", "lease.granted"])
        self.assertEqual(page.text("#events .what")[0], "grace hopper has leftuser.offline")
        page.shows("#earlier-list .name", "grace hopper")
        page.until("return document.querySelector('#events-plot .stroke') && document.querySelector('#beats-plot .stroke')")
        page.until("return Number(document.querySelector('#events-now').textContent) >= 6")
        page.shows("#rooms .name", room)
        self.quiet(page)
        # Somebody who opens the page now sees what was there before.
        other = self.browser(room)
        other.shows("#events .kind", "user.offline")
        self.assertEqual(len(other.text("#events .kind")), 6)

    def test_hostile_names(self):
        room = HOSTILE[0]
        for name in HOSTILE:
            self.ok(self.hb(self.base, room, name, HOSTILE[1], meta={"x": HOSTILE[0]}))
            self.ok(self.hb(self.base, name, name, "s"))
        page = self.browser(room)
        page.until("return document.querySelectorAll('#people .person').length === %d" % len(HOSTILE))
        self.assertEqual(sorted(page.text("#people .name")), sorted(HOSTILE))
        for name in HOSTILE:
            reply = self.client.request(self.base, "POST", "/rooms/%s/cursors" % quote(room), headers={
                "Content-Type": "application/json"}, body=json.dumps({
                    "user_id": name, "session_id": HOSTILE[1], "data": {"x": "0;background:url(//evil)", "y": 0.5}}))
            self.assertEqual(reply.status, 202, reply)
        self.ok(self.hb(self.base, room, HOSTILE[0], "good"))
        self.client.request(self.base, "POST", "/rooms/%s/cursors" % quote(room), headers={"Content-Type": "application/json"},
                            body=json.dumps({"user_id": HOSTILE[0], "session_id": "good", "data": {"x": 9, "y": -1e300}}))
        page.shows(".cursor .label", HOSTILE[0])
        self.assertEqual(page.text(".cursor .label"), [HOSTILE[0]], "what is no place is not shown")
        page.shows("#rooms .name", HOSTILE[2])
        self.assertEqual(page.js("return [document.title, document.querySelectorAll('main img, main script').length]"),
                         [room + " \u2013 stillhere", 0])
        for width, height in ((360, 720), (1280, 900)):
            page.look(width, height)
            self.no_sideways(page)
        # Each of the rooms opens from the list.
        for name in HOSTILE[1:]:
            page.js("[...document.querySelectorAll('#rooms a')].find(a => a.querySelector('.name').textContent === arguments[0]).click()", name)
            page.until("return document.querySelector('#people-title').textContent === 'People in ' + arguments[0]", name)
            page.shows("#people .name", name)
        self.quiet(page)

    def no_sideways(self, page):
        width, inner = page.js("return [document.documentElement.scrollWidth, innerWidth]")
        self.assertLessEqual(width, inner, "there is something to scroll sideways")

    def test_sizes_dark_and_still(self):
        room = self.room()
        for i in range(12):
            self.grant(room, "s", user="person %d" % i)
        self.grant(room, "s", user="simulated one", meta={"simulated": True})
        self.grant(room, "s", user="gone", ttl_ms=500)
        page = self.browser(room, "me")
        other = self.browser(room, "somebody")
        page.shows("#join-note", "You are here")
        other.shows("#join-note", "You are here")
        other.point("#pad", 0.9, 0.9)
        page.shows(".cursor", "somebody")
        page.shows("#people .tag", "simulated")
        page.shows("#earlier-list .name", "gone")
        self.client.close(self.base, room, "person 3", "s")  # who leaves then is still shown, for 2 s
        colours = "return [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        seen = []
        for dark in (False, True):
            for width, height in ((320, 640), (390, 844), (820, 1180), (1440, 900)):
                page.look(width, height, dark=dark, still=True)
                self.no_sideways(page)
            self.assertEqual(page.js(FAINT), [])
            seen.append(page.js(colours))
        light = [sum(map(int, re.findall(r"\d+", c)[:3])) for c in seen[0]]
        dark = [sum(map(int, re.findall(r"\d+", c)[:3])) for c in seen[1]]
        self.assertTrue(light[0] > 600 > 200 > light[1] and dark[0] < 150 and dark[1] > 550, seen)
        page.point("#pad", 0.3, 0.3)
        self.assertEqual(page.js("return getComputedStyle(document.querySelector('.cursor')).transitionDuration"), "0s")
        self.quiet(page)

    def test_by_keyboard(self):
        room = self.room()
        watcher = self.browser(room)
        page = self.browser()
        page.go(self.base + "/")
        page.shows("#link", "Connected")
        page.tab_to("#room-name")
        page.keys(*room, "\ue007")
        page.shows("#people-title", room)
        page.tab_to("#join-name")  # which selects what stands there
        page.keys(*"Kay", "\ue007")
        page.shows("#join-note", "You are here")
        page.tab_to("#pad")
        page.keys("\ue014", "\ue014", "\ue015")  # right, right, down
        watcher.until("const c = document.querySelector('.cursor'); return c && c.textContent === 'Kay' && "
                      "c.style.left === '54%' && c.style.top === '52%'")
        order = page.js("return [...document.querySelectorAll('a[href], button, input, [tabindex]')]"
                        ".filter(e => e.checkVisibility() && !e.disabled && e.tabIndex < 0).length")
        self.assertEqual(order, 0, "everything can be reached")
        page.tab_to("#leave")
        page.keys("\ue00d")  # space
        watcher.lacks(".cursor", "Kay")
        self.quiet(page)

    def test_the_server_goes_and_comes_back(self):
        room = self.room()
        page = self.browser(room, "Ada")
        page.shows("#join-note", "You are here")
        page.shows("#link", "Connected")
        d = self.daemons[0]
        type(self).stop_now(d)
        page.shows("#link", "Disconnected")
        page.shows("#people-note", "No connection")
        page.shows("#people .name", "Ada")  # as it was, and said to be so
        self.assertEqual(page.js(FAINT), [])
        page.complaints()
        again = self.start_daemon(port=d.port)
        again.number = d.number
        self.client.local.__dict__.pop("pool", None)  # its connections led to the daemon before
        page.shows("#link", "Connected", seconds=30)
        page.shows("#join-note", "You are here", seconds=30)
        self.grant(room, "s", user="later")
        page.shows("#people .name", "later")
        page.lacks("#people-note", "No connection")
        self.assertEqual(self.count("lease", room_id=room, user_id="Ada"), 1)
        self.quiet(page, allowed=r"net::ERR_|Failed to load resource")


class Empty(Pages, Case):
    def test_an_empty_server(self):
        page = self.browser()
        page.go(self.base + "/")
        page.shows("#rooms-note", "Nobody has been here yet")
        page.shows("#people-note", "No room is open")
        self.assertEqual(page.js("return ['join', 'join-name'].map((id) => document.getElementById(id).disabled)"), [True] * 2)
        self.assertEqual(page.js(FAINT), [])
        # What cannot be a room says so, and the next one opens.
        page.type("#room-name", "..\n")
        page.shows("#people-note", "That cannot be a room")
        page.type("#room-name", "first\n")
        page.shows("#people-note", "Nobody is here")
        self.assertEqual(page.js("return decodeURIComponent(location.hash)"), "#room=first")
        page.type("#join-name", "x" * 129)
        page.click("#join")
        page.shows("#join-note", "That cannot be a name")
        self.assertEqual(self.q("SELECT count(*) FROM stillhere.room"), "0", "who only looks leaves no trace")
        self.quiet(page)


class WithTokens(Pages, Guarded):
    config = dict(Pages.config, metrics_access="credential")

    def test_a_token_in_memory(self):
        room = self.room()
        page = self.browser(room)
        page.shows("#token-form", "asks who you are")
        page.shows("#pulse-note", "/metrics, 401")
        page.type("#token", "not-a-token\n")
        page.shows("#token-note", "does not take this token")
        page.type("#token", self.key.token(sub="ada", sid="tab-9") + "\n")
        page.shows("#link", "Connected")
        page.shows("#people-note", "Nobody is here")
        page.lacks("#token-form", "asks who you are")
        self.assertEqual(page.js("return [document.activeElement.id, document.querySelector('#join-name').value]"),
                         ["join-name", "ada"])
        page.click("#join")
        page.shows("#join-note", "You are here")
        self.assertEqual(self.stored(room, "tab-9", user="ada")["user_id"], "ada")
        kept = page.js("return [location.href, document.cookie, localStorage.length, sessionStorage.length,"
                       " document.documentElement.outerHTML]")
        self.assertNotIn("eyJ", "%r" % kept)
        self.assertEqual(kept[1:4], ["", 0, 0])
        page.click("#token-forget")
        page.shows("#link", "Waiting for a token")
        self.wait_until(lambda: self.count("lease", room_id=room) == 0, 10, "the end of the stay")
        page.js("location.reload()")
        page.shows("#token-form", "asks who you are")
        self.quiet(page, allowed=r"status of 401")

    def test_who_is_revoked_sees_no_more(self):
        room = self.room()
        page = self.browser(room)
        page.type("#token", self.key.token(sub="ada") + "\n")
        page.shows("#people-note", "Nobody is here")
        page.click("#join")
        page.shows("#people .name", "ada")
        reply = self.client.request(self.base, "DELETE", "/rooms/%s/members/ada" % quote(room), headers={
            "Authorization": "Bearer " + self.key.token(sub="office", scope="members:write")})
        self.assertEqual(reply.status, 200, reply)
        page.shows("#people-note", "This room cannot be watched")
        page.shows("#join-note", "You cannot stay here")
        self.assertEqual(page.text("#people .name"), [])
        page.shows("#link", "Connected")  # the server answers
        self.quiet(page, allowed=r"status of 40[13]")
