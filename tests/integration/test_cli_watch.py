# SPDX-License-Identifier: Apache-2.0
"""`stillhere watch` on a terminal: what it draws, whatever the names and the size, and that it gives the terminal back."""

import os
import re
import signal

from harness import LONG
from harness.case import Case, quote
from harness.daemon import free_port
from harness.pg import clean_environment
from harness.terminal import Terminal
from test_cli import PROGRAM

AGO = r"active (just now|\d+ seconds? ago|\d+ minutes? ago)"


class OnTerminal(Case):
    """How all of them look at it."""

    config = {"ttl_min_ms": 500, "sweep_interval_ms": 100, "offline_grace_ms": 600000}

    def watch(self, room, *args, rows=24, columns=80, foreground=True, url=None, **environment):
        env = dict(clean_environment(), STILLHERE_URL=url or self.base, TERM="xterm-256color", LC_ALL="C", NO_COLOR="")
        env.update(environment)
        env = {name: value for name, value in env.items() if value is not None}
        terminal = Terminal([PROGRAM, "watch", room, *args], env, rows, columns, foreground)
        self.addCleanup(terminal.close)
        return terminal

    def shows(self, terminal, pattern, seconds=10):
        """Waits until the screen has it. @return the match"""
        try:
            return self.wait_until(lambda: re.search(pattern, terminal.text(), re.M), seconds, pattern)
        except AssertionError as e:
            raise AssertionError("%s; the screen:\n%s\n%s" % (e, terminal.text(), terminal.screen.faults)) from None

    def end(self, terminal, code=0, seconds=10):
        """Waits for its end, which must leave nothing behind."""
        self.wait_until(lambda: terminal.ended() is not None, seconds, "the end")
        self.assertEqual(terminal.ended(), code, terminal.text())
        self.assertEqual(terminal.given_back(), [])
        self.assertEqual(terminal.screen.faults, [])

    def stop(self, terminal):
        self.assertEqual(terminal.screen.faults, [], terminal.text())
        terminal.signal(signal.SIGTERM)
        self.end(terminal)


class Watch(OnTerminal):
    def test_people_and_events(self):
        room = self.room("class")
        for user, session in (("an", "tab-1"), ("an", "tab-2"), ("bo", "phone")):
            self.grant(room, session, user=user)
        t = self.watch(room)
        self.shows(t, r"\A%s: 2 people, 3 sessions, revision 5$" % room)
        self.shows(t, r"^  an +2 tabs +%s$" % AGO)
        self.shows(t, r"^  bo +1 tab +%s$" % AGO)
        self.shows(t, r"^Events \(UTC\)\n  \(none yet\)$")
        self.grant(room, "tab-3", user="an")
        self.shows(t, r"^  \d\d:\d\d:\d\d  lease.granted      an/tab-3$")
        self.shows(t, r"^  an +3 tabs +%s$" % AGO)
        self.ok(self.client.close(self.base, room, "bo", "phone"))
        self.shows(t, r"^  bo +leaving +%s$" % AGO)
        self.assertIn("2 people, 3 sessions", t.text())
        self.grant(room, "tab", user="cy", ttl_ms=500)
        self.shows(t, r"lease.expired      cy/tab$")
        self.shows(t, r"^  cy +leaving +%s$" % AGO)
        self.ok(self.client.request(self.base, "DELETE", "/rooms/%s/members/bo" % quote(room)))
        self.shows(t, r"user.offline       bo$")
        self.shows(t, r"^  bo +gone +%s$" % AGO)
        kinds = re.findall(r"^  \d\d:\d\d:\d\d  (\S+)", t.text(), re.M)
        self.assertEqual(kinds, [e["kind"] for e in self.events(room)][5:], "each event once, in order")
        self.stop(t)

    def test_how_long_ago_goes_on_by_itself(self):
        room = self.room()
        self.grant(room, user="an")
        t = self.watch(room)
        self.shows(t, r"an .*active just now$")
        self.shows(t, r"an .*active [2-9] seconds ago$")
        self.stop(t)

    def test_only_some_kinds(self):
        room = self.room()
        t = self.watch(room, "--kinds", "session.closed,user.online")
        self.shows(t, "nobody is here")
        self.grant(room, "a", user="an")
        self.ok(self.client.close(self.base, room, "an", "a"))
        self.shows(t, r"^  an +leaving")
        self.assertEqual(re.findall(r"^  \d\d:\d\d:\d\d  (\S+)", t.text(), re.M), ["user.online", "session.closed"])
        self.stop(t)

    def test_sizes(self):
        """Nothing goes beyond the margin or scrolls, and 40 columns are enough to read."""
        room = self.room("a-room-with-a-long-name")
        self.grant(room, "tab-1", user="a-user-with-a-really-long-name-that-fits-nowhere")
        for i in range(20):
            self.grant(room, "s", user="user-%02d" % i)
        t = self.watch(room)
        self.shows(t, r"21 people, 21 sessions, revision 42$")
        self.shows(t, r"^  and \d+ more$")
        self.grant(room, "tab-2", user="user-00")
        self.shows(t, r"lease.granted      user-00/tab-2$")
        self.assertEqual(t.screen.lines()[-1].strip(), "", "no events are made up")
        t.resize(12, 40)
        self.shows(t, r"\A.*21 people, 22 …?")
        self.shows(t, r"^  user-00 +2 tabs +active (just now|\d+ s ago)$")
        self.shows(t, r"^\d\d:\d\d:\d\d lease.granted user-00/tab-2$")
        self.shows(t, r"^  a-user-with… 1 tab +active")
        t.resize(40, 120)
        self.shows(t, r"^  user-19 +1 tab +%s$" % AGO)
        for rows, columns in ((5, 20), (2, 7), (1, 1), (24, 80)):
            t.resize(rows, columns)
            before = len(t.written)
            self.wait_until(lambda: t.text() and len(t.written) > before, 10, "a frame at %d x %d" % (rows, columns))
        self.shows(t, r"21 people, 22 sessions")
        self.stop(t)

    def test_hostile_names(self):
        """The screen's model takes whatever is not text, or goes beyond a row, for a fault."""
        room = self.room("\u202eroom\u009b2J")
        names = ["\u009b31mred", "\u202eevil\u2066", "z" * 120, "\u540d\u524d" * 20, "e" + "\u0301" * 60, "\U0001f600" * 30,
                 "\u0640" * 50, "tag\U000e0041\U000e007f", "o\u200bne\ufeff", "\u0301first", "\u2028line"]
        for name in names:
            self.grant(room, name, user=name)
        t = self.watch(room, rows=50)
        self.shows(t, r"people, \d+ sessions")
        for name in names:  # again, as events
            self.ok(self.client.close(self.base, room, name, name))
        self.shows(t, r"session.closed +e\u0301")
        self.shows(t, r"^  \?31mred +leaving")
        self.shows(t, r"^  \?evil\? +leaving")
        self.shows(t, r"^  (\u540d\u524d)+\u540d?… +leaving")
        self.assertEqual(t.screen.faults, [], t.text())
        t.resize(50, 41)
        self.shows(t, r"^  \?31mred +leaving")
        self.stop(t)

    def test_colours(self):
        room = self.room()
        self.grant(room, user="an")
        for no_color, styles in ((None, {"1", "2", "0"}), ("1", {"0"}), ("", {"1", "2", "0"})):
            t = self.watch(room, NO_COLOR=no_color)
            self.shows(t, r"^  an +1 tab")
            self.stop(t)
            self.assertLessEqual(styles, t.screen.styles)
            self.assertEqual(len(t.screen.styles) > 1, no_color != "1", t.screen.styles)

    def test_it_gives_the_terminal_back(self):
        room = self.room()
        views = [self.watch(room) for _ in range(4)]
        for t in views:
            self.shows(t, "nobody is here")
            self.assertTrue(t.screen.other and t.screen.hidden)
            self.assertEqual(t.given_back(), ["screen", "modes"])
            t.type(b"typed\r")
        self.grant(room, user="an")
        for t, end in zip(views, (b"\x03", signal.SIGTERM, signal.SIGHUP, b"\x1c")):
            self.shows(t, "lease.granted")
            self.assertNotIn(b"typed", t.written)
            if isinstance(end, bytes):
                t.type(end)
            else:
                t.signal(end)
            self.end(t)
            self.assertEqual(t.text(), "", "what stood there before")

    def test_a_refusal_is_said_on_the_terminal(self):
        t = self.watch(self.room(), "--kinds", "no.such", columns=200)
        self.end(t, 1)
        self.assertRegex(t.text(), r"\Astillhere: the server answered 400, .*kinds")
        t = self.watch(self.room(), "--token-file", "/nonexistent", columns=200)
        self.end(t, 2)
        self.assertIn("/nonexistent", t.text())
        t = self.watch(self.room(), url="http://127.0.0.1:%d" % free_port(), columns=200)
        self.shows(t, r"^! not connected yet; trying again$")
        self.end(t, 3, 30)
        self.assertIn("is not reached", t.text())

    def test_suspended_and_continued(self):
        room = self.room()
        t = self.watch(room)
        self.shows(t, "nobody is here")
        t.type(b"\x1a")
        self.wait_until(t.stopped, 10, "the stop")
        self.assertEqual(t.given_back(), [])
        self.assertEqual(t.text(), "")
        self.grant(room, user="an")
        t.signal(signal.SIGCONT)
        self.shows(t, r"^  an +1 tab")
        self.assertEqual(t.given_back(), ["screen", "modes"])
        self.stop(t)

    def test_lines_where_nothing_can_be_drawn(self):
        room = self.room()
        self.grant(room, "tab-1", user="an\u009b2J")
        views = [self.watch(room, "--plain"), self.watch(room, TERM="dumb"), self.watch(room, TERM=None),
                 self.watch(room, foreground=False), self.watch(room, "--json", columns=500)]
        for t in views:
            self.shows(t, r"1 session|\"sessions\":1")
            self.assertNotIn(b"\x1b", t.written)
            self.assertNotIn("\u009b", t.text())
            self.stop(t)
        self.assertIn('"user_id":"an\\u009b2J"', views[-1].text().replace("\n", ""))


class Lost(OnTerminal):
    def test_it_says_that_it_is_not_connected(self):
        room = self.room()
        self.grant(room, "tab-1", user="an")
        t = self.watch(room, columns=120)
        self.shows(t, r"^  an +1 tab")
        d = self.daemons[0]
        self.stop_now(d)
        self.shows(t, r"^! not connected, last answer (just now|[2-9] seconds ago); trying again$")
        self.shows(t, r"^! not connected, last answer [2-9] seconds ago; trying again$\n  \S.*$")
        self.assertIn("1 person, 1 session", t.text(), "what was known stays")
        self.start_daemon(port=d.port).number = 0
        self.grant(room, "tab-2", user="an", fresh=True)
        self.shows(t, r"^  an +2 tabs", 30)
        self.assertNotIn("not connected", t.text())
        self.assertEqual(re.findall(r"^  \d\d:\d\d:\d\d +(.+)", t.text(), re.M), ["lease.granted      an/tab-2"])
        self.stop(t)

    def test_missing_events_are_said(self):
        room = self.room()
        t = self.watch(room)
        self.shows(t, "nobody is here")
        self.q("UPDATE stillhere.incarnation SET word = 'another'")
        self.grant(room, "tab-1", user="an", fresh=True)
        self.shows(t, r"^  -- what was known no longer leads here \(epoch\): events are missing$", 30)
        self.shows(t, r"^  an +1 tab")
        self.stop(t)

    if LONG:  # twenty seconds
        def test_a_silent_server_is_noticed(self):
            room = self.room()
            t = self.watch(room)
            self.shows(t, "nobody is here")
            os.kill(self.daemons[0].process.pid, signal.SIGSTOP)
            try:
                self.shows(t, r"^! not connected, last answer \d+ seconds ago", 40)
            finally:
                os.kill(self.daemons[0].process.pid, signal.SIGCONT)
            self.wait_until(lambda: "not connected" not in t.text(), 40, "the answer")
            self.stop(t)
