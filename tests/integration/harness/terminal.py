# SPDX-License-Identifier: Apache-2.0
"""A terminal with a program in its foreground: a real pty, and a strict model of the screen behind it."""

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import unicodedata

#: The session's leader, as a shell is: it starts the program in a process group of its own, in the foreground unless
#: the second argument says otherwise, and ends with its exit code.
LEADER = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    if sys.argv[2] == "foreground":
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[3], sys.argv[3:])
os.write(int(sys.argv[1]), b"%d\\n" % pid)
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 255)
"""

SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")
#: Invisible characters that names may have: the joiners, and the choice between text and picture.
INVISIBLE = "\u200c\u200d"


def width(c):
    if unicodedata.category(c) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


class Screen:
    """What a terminal shows. Whatever a drawn frame has no business to send is a fault."""

    def __init__(self, rows, columns):
        self.cells, self.faults, self.styles = [], [], set()
        self.old_frames = 0
        self.row = self.column = 0
        self.full = False  # the last column was written: the next character would go to a new line
        self.other = self.hidden = False
        self.wraps = True
        self.kept = ([], 0, 0)  # of the screen that is not shown: cells and cursor
        self.decode = codecs.getincrementaldecoder("utf-8")("strict").decode
        self.rest = ""
        self.resize(rows, columns)

    def resize(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.cells = [(line + [" "] * columns)[:columns] for line in self.cells[:rows]]
        self.cells += [[" "] * columns for _ in range(rows - len(self.cells))]
        self.row, self.column, self.full = min(self.row, rows - 1), min(self.column, columns - 1), False

    def lines(self):
        return ["".join(line).rstrip() for line in self.cells]

    def text(self):
        return "\n".join(self.lines()).rstrip("\n")

    def feed(self, data):
        self.rest += self.decode(data)
        while self.rest:
            if self.rest[0] == "\x1b":
                found = SEQUENCE.match(self.rest)
                if found is None and re.fullmatch(r"\x1b(\[[?0-9;]*)?", self.rest):
                    return  # the rest of it is on its way
                if found is None:
                    self.fault("sequence %r" % self.rest[:12])
                    self.rest = self.rest[1:]
                    continue
                self.rest = self.rest[found.end():]
                self.command(found.group(2), found.group(1))
            else:
                self.character(self.rest[0])
                self.rest = self.rest[1:]

    def fault(self, what):
        if not self.old_frames:
            self.faults.append("%s at row %d, column %d" % (what, self.row, self.column))

    def command(self, name, values):
        if name + values == "H":
            self.old_frames = max(0, self.old_frames - 1)
            self.row = self.column = 0
            self.full = False
        elif name + values == "K" or name + values == "J":
            # Behind a full line the cursor is still on its last character, which goes too.
            self.cells[self.row][self.column:] = [" "] * (self.columns - self.column)
            for line in self.cells[self.row + 1:] if name == "J" else []:
                line[:] = [" "] * self.columns
        elif name + values == "J2":
            self.cells = [[" "] * self.columns for _ in range(self.rows)]
        elif name in "hl" and values == "?1049":
            self.switch(name == "h")
        elif name in "hl" and values == "?25":
            self.hidden = name == "l"
        elif name in "hl" and values == "?7":
            self.wraps = name == "h"
        elif name == "m":
            self.styles.add(values)
        else:
            self.fault("sequence %s%s" % (values, name))

    def switch(self, other):
        if other == self.other:
            self.fault("the other screen twice")
        self.other = other
        (self.cells, self.row, self.column), self.kept = self.kept, (self.cells, self.row, self.column)
        self.resize(self.rows, self.columns)

    def character(self, c):
        if c == "\r":
            self.column, self.full = 0, False
        elif c == "\n":
            if self.row + 1 == self.rows and self.other:
                self.fault("it scrolls")
            if self.row + 1 == self.rows:
                self.cells = self.cells[1:] + [[" "] * self.columns]
            else:
                self.row += 1
        elif unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or (
                unicodedata.category(c) == "Cf" and c not in INVISIBLE):
            self.fault("character %r" % c)
        else:
            self.put(c)

    def put(self, c):
        n = width(c)
        if n == 0:
            at = self.column if self.full else max(self.column - 1, 0)
            at -= self.cells[self.row][at] == "" and at > 0
            self.cells[self.row][at] += c
            if len(self.cells[self.row][at]) > 5:
                self.fault("a pile of marks")
            return
        if self.full or self.column + n > self.columns:
            if not self.wraps or self.other:
                self.fault("%r beyond the margin" % c)
                return
            self.character("\r")
            self.character("\n")
        self.cells[self.row][self.column:self.column + n] = [c] + [""] * (n - 1)
        self.full = self.column + n == self.columns
        self.column = min(self.column + n, self.columns - 1)


class Terminal:
    """A program on a terminal of its own. Everything it writes goes to `screen`, and raw to `written`."""

    def __init__(self, args, environment, rows=24, columns=80, foreground=True):
        self.master, self.slave = pty.openpty()
        self.screen = Screen(rows, columns)
        self.written = b""
        os.set_blocking(self.master, False)
        self.resize(rows, columns)
        self.modes = termios.tcgetattr(self.slave)
        reader, writer = os.pipe()
        self.leader = subprocess.Popen(
            [sys.executable, "-c", LEADER, str(writer), "foreground" if foreground else "background", *args],
            env=environment, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
            pass_fds=(writer,))
        os.close(writer)
        with open(reader, encoding="ascii") as f:
            self.pid = int(f.readline())

    def resize(self, rows, columns):
        self.pump()
        self.screen.resize(rows, columns)
        # One frame may be under way that was made for the size before.
        self.screen.old_frames = 2 if self.written else 0
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def pump(self):
        """Takes in what was written."""
        while True:
            try:
                data = os.read(self.master, 65536)
            except (BlockingIOError, OSError):
                return
            self.written += data
            self.screen.feed(data)

    def text(self):
        self.pump()
        return self.screen.text()

    def type(self, data):
        os.write(self.master, data)

    def signal(self, number):
        os.kill(self.pid, number)

    def stopped(self):
        with open("/proc/%d/stat" % self.pid, encoding="utf-8") as f:
            return f.read().rpartition(")")[2].split()[0] == "T"

    def ended(self):
        """The exit code, or None while it runs."""
        self.pump()
        code = self.leader.poll()
        self.pump()
        return code

    def given_back(self):
        """What is not as it was on this terminal before the program came."""
        self.pump()
        wrong = []
        if self.screen.other or self.screen.hidden or not self.screen.wraps:
            wrong.append("screen")
        if termios.tcgetattr(self.slave) != self.modes:
            wrong.append("modes")
        return wrong

    def close(self):
        if self.leader.poll() is None:
            for pid in (self.pid, self.leader.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.leader.wait()
        os.close(self.master)
        os.close(self.slave)
